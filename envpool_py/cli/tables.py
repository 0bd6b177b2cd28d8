"""Tables on stdout, and numbers with units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich import filesize
from rich.console import Console
from rich.table import Table

from envpool_py.bench.measure import Caller, Measurement, Results
from envpool_py.cli.callers import text_of

#: Where the output is no terminal, lines are this wide.
_WIDTH = 160


def show_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), title: str | None = None
) -> None:
    """Write a table; with a header, all columns but the first are aligned at the right."""
    table = Table(title=title, title_justify="left", show_header=bool(header))
    for name in header:
        table.add_column(name, justify="right" if table.columns else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def show_results(title: str, results: Results, callers: Sequence[Caller]) -> None:
    """Write a table for each caller, and failed settings below them."""
    header = ("pool", "steps/s", "of the best", "step() p50", "p99", "start-up", "memory")
    for caller in callers if results.measured else ():
        show_table(_rows(results, caller), header, f"{title}, {text_of(caller)}")
    for setting, error in results.errors.items():
        _console().print(f"  {setting.text} failed: {error}", markup=False, highlight=False)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _rows(results: Results, caller: Caller) -> Iterable[Sequence[str]]:
    """A row for each setting, the fastest first."""
    ranked = results.ranked(caller)
    for setting in ranked:
        measured = results.of(setting, caller)
        yield (
            setting.text,
            _spread([each.rate for each in measured], count),
            f"{results.rate(setting, caller) / results.rate(ranked[0], caller):.2f}",
            duration(median(each.step_p50 for each in measured)),
            duration(median(each.step_p99 for each in measured)),
            duration(median(each.startup_seconds for each in measured)),
            memory(measured),
        )


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The median, and in brackets the least and the greatest."""
    if len(values) == 1:
        return text(values[0])
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"


def memory(measured: Sequence[Measurement]) -> str:
    """The greatest memory of the measurements; a dash if it is unknown."""
    known = [each.memory_bytes for each in measured if each.memory_bytes is not None]
    return filesize.decimal(max(known)) if known else "-"


def records(results: Results) -> list[dict[str, Any]]:
    """A flat record of each measurement and each failure, as ``pandas.read_json`` takes it."""
    found: list[dict[str, Any]] = []
    for setting, measured in results.measured.items():
        for each in measured:
            fields = setting._asdict() | each._asdict()
            caller: Caller = fields.pop("caller")
            fields["policy"] = caller.name or None
            fields["policy_seconds"] = caller.per_batch
            fields["policy_row_seconds"] = caller.per_row
            found.append(fields)
    failed = results.errors.items()
    return found + [{**setting._asdict(), "error": error} for setting, error in failed]


def count(value: float) -> str:
    """Three digits; thousands as k, millions as M."""
    return _in_units(value, {" M": 1e6, " k": 1e3, "": 1.0})


def figures(values: Sequence[float]) -> str:
    """The mean, the least and the greatest."""
    if not values:
        return "-"
    return f"mean {np.mean(values):.4g}, {min(values):.4g} to {max(values):.4g}"


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    return _in_units(seconds, {" s": 1.0, " ms": 1e-3, " µs": 1e-6})


def _in_units(value: float, units: dict[str, float]) -> str:
    """Three digits, or all of those before the point; ``units`` are from large to small."""
    unit = next((each for each, scale in units.items() if value >= 0.9995 * scale), [*units][-1])
    shown = value / units[unit]
    decimals = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
    return f"{shown:.{decimals}f}{unit}"
