"""Measurements as tables on stdout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from envpool_py.bench.measure import Measurement, Results

#: Where the output is no terminal, lines are this wide.
_WIDTH = 160


def show(title: str, results: Results, thinks: Sequence[float]) -> None:
    """Write a table for each time that the caller computes, and failed settings below them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for think in thinks:
        console.print(_table(f"{title}, the caller computes {per_batch(think)}", results, think))
    for setting, error in results.errors.items():
        console.print(f"  {setting.text} failed: {error}", markup=False, highlight=False)


def _table(title: str, results: Results, think: float) -> Table:
    table = Table("pool", title=title, title_justify="left")
    for name in ("steps/s", "of the best", "step() p50", "p99", "start-up", "memory"):
        table.add_column(name, justify="right", overflow="fold")
    ranked = results.ranked(think)
    for setting in ranked:
        measured = results.of(setting, think)
        table.add_row(
            setting.text,
            _spread([each.rate for each in measured], count),
            f"{results.rate(setting, think) / results.rate(ranked[0], think):.2f}",
            _spread([each.timing.step_p50 for each in measured], duration, only_median=True),
            _spread([each.timing.step_p99 for each in measured], duration, only_median=True),
            _spread([each.startup_seconds for each in measured], duration, only_median=True),
            memory(measured),
        )
    return table


def _spread(
    values: Sequence[float], text: Callable[[float], str], *, only_median: bool = False
) -> str:
    """The median, and in brackets the least and the greatest."""
    if only_median or len(values) == 1:
        return text(median(values))
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def memory(measured: Sequence[Measurement]) -> str:
    """The most that the envs took; a dash where it is unknown."""
    known = [each.memory_bytes for each in measured if each.memory_bytes is not None]
    return size(max(known)) if known else "-"


def per_batch(*seconds: float) -> str:
    """``0 or 300 µs per batch``."""
    return " or ".join(f"{1e6 * each:g}" for each in seconds) + " µs per batch"


def count(value: float) -> str:
    """Three digits; thousands as k, millions as M."""
    for unit, text in ((1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * unit:
            return _digits(value / unit) + text
    return _digits(value)


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, text in ((1.0, " s"), (1e-3, " ms")):
        if seconds >= 0.9995 * unit:
            return _digits(seconds / unit) + text
    return _digits(seconds / 1e-6) + " µs"


def size(bytes_: float) -> str:
    """Three digits and a unit."""
    for unit, text in ((1e6, " MB"), (1e3, " kB")):
        if bytes_ >= 0.9995 * unit:
            return _digits(bytes_ / unit) + text
    return f"{bytes_:.0f} B"


def _digits(value: float) -> str:
    """Three digits, or all of those before the point."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
