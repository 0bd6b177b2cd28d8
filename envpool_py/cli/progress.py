"""Show the progress of a command on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from envpool_py.cli.arguments import complain


@contextmanager
def showing(total: float, status: Callable[[], tuple[float, str]]) -> Iterator[None]:
    """Show a bar on a terminal, elsewhere every ten seconds a line: what is done, and a text."""
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
        speed_estimate_period=300.0,
        disable=not console.is_terminal,
    )
    task = bar.add_task(status()[1], total=total)
    ended = threading.Event()

    def update() -> None:  # in a thread, so that a busy loop need not do it
        while not ended.wait(10.0 if bar.disable else 0.25):
            done, text = status()
            if bar.disable:
                complain(text)
            else:  # work that goes on beyond its limit makes no more than 100 %
                bar.update(task, completed=min(done, total), description=text)

    thread = threading.Thread(target=update, daemon=True)
    thread.start()
    try:
        with bar:
            yield
    finally:
        ended.set()
        thread.join()
