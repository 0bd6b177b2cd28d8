"""The output of a collection: a line while it runs, and a summary."""

from __future__ import annotations

import time

import numpy as np

from envpool_py.cli.tables import figures, show_table
from envpool_py.collector import AsyncCollector, Episode

#: The number of last episodes whose mean return the line shows.
_RECENT = 100


class Summary:
    """Figures of a collection, kept while it runs; the clock starts now."""

    def __init__(self, collector: AsyncCollector) -> None:
        self.collector = collector
        self.returns: list[float] = []  # the parts of a vector reward are added up
        self.lengths: list[int] = []
        self.seconds = 0.0
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self._started

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        self.returns.append(float(np.sum(episode.total_reward)))
        self.lengths.append(len(episode))

    def line(self) -> str:
        """Return the current figures in one line."""
        steps = self.collector.num_steps
        rate = steps / max(time.perf_counter() - self._started, 1e-9)
        text = f"{steps} steps, {rate:.0f} steps/s, {len(self.returns)} episodes"
        if self.returns:
            text += f", return {np.mean(self.returns[-_RECENT:]):.4g}"
        return text

    def show(self, **more: object) -> None:
        """Write the summary to stdout, with further rows that have a value."""
        steps, rows = self.collector.num_steps, self.collector.num_rows
        shown = {
            "episodes": str(len(self.returns)),
            "steps": str(sum(self.lengths)),
            "return": figures(self.returns),
            "length": figures(self.lengths),
            "seconds": f"{self.seconds:.2f}",
            "steps/s": f"{steps / max(self.seconds, 1e-9):.0f}",
            "rows per batch": f"{rows / max(self.collector.num_batches, 1):.1f}",
        }
        shown |= {name: str(value) for name, value in more.items() if value is not None}
        show_table(shown.items())
