"""Show the progress of a command on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from envpool_py.cli.arguments import complain

#: Seconds between two updates of the line on a terminal, and between two lines elsewhere.
_ON_TERMINAL, _BETWEEN_LINES = 0.25, 10.0

#: How much is done, and what is done now.
Status = Callable[[], tuple[float, str]]


@contextmanager
def showing(total: float, status: Status) -> Iterator[None]:
    """Show a line that changes on a terminal, elsewhere a line now and then, by ``status``."""
    is_terminal, begun, ended = sys.stderr.isatty(), time.monotonic(), threading.Event()

    def write(line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{line[:width]:<{width}}\r")
        sys.stderr.flush()

    def update() -> None:  # in a thread, so that a busy loop need not do it
        while not ended.wait(_ON_TERMINAL if is_terminal else _BETWEEN_LINES):
            done, text = status()
            if is_terminal:  # work that goes on beyond its limit makes no more than 100 %
                part = min(done / total, 1.0)
                left = (time.monotonic() - begun) * (1 / part - 1) if part else 0.0
                write(f"{part:4.0%}  {text}" + (f"  {left:.0f} s left" if left else ""))
            else:
                complain(text)

    thread = threading.Thread(target=update, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if is_terminal:
            write("")
