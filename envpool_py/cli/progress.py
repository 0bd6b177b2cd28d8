"""The progress of a list of measurements, on stderr. Needs rich."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from envpool_py.cli.arguments import complain

#: A line of progress is written so often where there is no terminal, seconds.
_BETWEEN_LINES = 10.0

#: The time that remains is told from the pace of this time, seconds.
_PACE = 300.0


class Steps:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, total: float, unit: str = "") -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}" + unit),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            expand=True,
            speed_estimate_period=_PACE,
        )
        self._task = self._bar.add_task("", total=total)
        self._in_lines = not console.is_terminal
        self._of = f"of {total:.0f}{unit}"
        self._last_line = 0.0

    def at(self, done: float, what: str) -> None:
        """Say how much is done, and what is done now."""
        self._bar.update(self._task, completed=done, description=what)
        if self._in_lines and time.monotonic() - self._last_line > _BETWEEN_LINES:
            self._last_line = time.monotonic()
            complain(f"{done:.0f} {self._of}: {what}")

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the bar; between two such blocks others may write."""
        if self._in_lines:
            yield
            return
        with self._bar:
            yield
