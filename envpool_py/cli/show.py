"""What a collection shows: progress while it runs, and a summary. Needs rich."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from envpool_py.cli.arguments import complain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from envpool_py.collector import AsyncCollector, Episode

#: A line of progress is written so often where there is no terminal, seconds.
_BETWEEN_LINES = 10.0


class Summary:
    """Figures of a collection, kept as it runs."""

    def __init__(self) -> None:
        self.num_episodes = 0
        self.num_steps = 0
        self.seconds = 0.0
        self.recent: deque[float] = deque(maxlen=100)
        self._returns = _Figures()
        self._lengths = _Figures()
        self._rows_per_batch = 0.0
        self._all_steps = 0
        self._started = time.perf_counter()

    def start(self) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def add(self, episode: Episode) -> None:
        """Count one episode; the parts of a vector reward are added up."""
        total = float(np.sum(episode.total_reward))
        self.num_episodes += 1
        self.num_steps += len(episode)
        self.recent.append(total)
        self._returns.add(total)
        self._lengths.add(len(episode))

    def stop(self, collector: AsyncCollector) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self._started
        self._rows_per_batch = collector.num_rows / max(collector.num_batches, 1)
        self._all_steps = collector.num_steps

    def line(self, collector: AsyncCollector) -> str:
        """How it goes, in one line."""
        rate = collector.num_steps / max(time.perf_counter() - self._started, 1e-9)
        text = f"{collector.num_steps} steps, {rate:.0f} steps/s, {self.num_episodes} episodes"
        if self.recent:
            text += f", return {np.mean(self.recent):.4g}"
        return text

    def show(self, seed: int, out: str | None) -> None:
        """Write the summary to stdout."""
        table = Table(show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        table.add_row("episodes", str(self.num_episodes))
        table.add_row("steps", str(self.num_steps))
        table.add_row("return", str(self._returns))
        table.add_row("length", str(self._lengths))
        table.add_row("seconds", f"{self.seconds:.2f}")
        table.add_row("steps/s", f"{self._all_steps / max(self.seconds, 1e-9):.0f}")
        table.add_row("rows per batch", f"{self._rows_per_batch:.1f}")
        table.add_row("seed", str(seed))
        if out is not None:
            table.add_row("file", out)
        Console().print(table)


class _Figures:
    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._min = np.inf
        self._max = -np.inf

    def add(self, value: float) -> None:
        self._count += 1
        self._sum += value
        self._min = min(self._min, value)
        self._max = max(self._max, value)

    def __str__(self) -> str:
        if not self._count:
            return "-"
        return f"mean {self._sum / self._count:.4g}, {self._min:.4g} to {self._max:.4g}"


@contextmanager
def showing(
    collector: AsyncCollector, summary: Summary, episodes: int | None, steps: int | None
) -> Iterator[None]:
    """Show the progress of ``collector`` on stderr, and keep the time.

    A bar on a terminal; elsewhere a line now and then.
    """
    console = Console(stderr=True)
    summary.start()
    try:
        with (
            _Bar(collector, summary, episodes, steps, console)
            if console.is_terminal
            else _lines(collector, summary)
        ):
            yield
    finally:
        summary.stop(collector)


class _Bar(Progress):
    """A bar that looks at the collector whenever it is drawn: the loop need not tell it."""

    def __init__(
        self,
        collector: AsyncCollector,
        summary: Summary,
        episodes: int | None,
        steps: int | None,
        console: Console,
    ) -> None:
        self._collector = collector
        self._summary = summary
        self._counts_episodes = episodes is not None
        super().__init__(
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            transient=True,
            expand=True,
        )
        self.add_task("", total=episodes or steps)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            done = self._collector.num_steps
            if self._counts_episodes:
                done = self._summary.num_episodes
            # Episodes that run on when there are enough steps make no more than 100 %.
            self.update(
                task.id,
                completed=min(done, task.total or 0),
                description=self._summary.line(self._collector),
            )
        return super().get_renderables()


@contextmanager
def _lines(collector: AsyncCollector, summary: Summary) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(_BETWEEN_LINES):
            complain(summary.line(collector))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
