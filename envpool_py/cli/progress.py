"""The progress of a command, on stderr."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from envpool_py.cli.arguments import complain

#: Seconds between two lines of progress where there is no terminal.
_BETWEEN_LINES = 10.0

#: The remaining time is estimated from the pace of this time, seconds.
_PACE = 300.0

#: How much is done, and what is done now.
Status = Callable[[], tuple[float, str]]


@contextmanager
def showing(total: float, status: Status) -> Iterator[None]:
    """Show a bar on a terminal, elsewhere a line now and then; ``status`` is asked for both."""
    console = Console(stderr=True)
    with _Bar(total, status, console) if console.is_terminal else _lines(status):
        yield


class _Bar(Progress):
    """A bar that asks for the status whenever it is drawn, so that a busy loop need not tell it."""

    def __init__(self, total: float, status: Status, console: Console) -> None:
        self._status = status
        super().__init__(
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            transient=True,
            expand=True,
            speed_estimate_period=_PACE,
        )
        self.add_task("", total=total)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            done, text = self._status()
            # Work that goes on beyond its limit makes no more than 100 %.
            self.update(task.id, completed=min(done, task.total or 0), description=text)
        return super().get_renderables()


@contextmanager
def _lines(status: Status) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(_BETWEEN_LINES):
            complain(status()[1])

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
