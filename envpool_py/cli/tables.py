"""Tables on stdout, and numbers with units."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich import filesize
from rich.console import Console
from rich.table import Table

from envpool_py.bench.measure import Caller, Results

#: Where the output is no terminal, lines are this wide.
_WIDTH = 160

_COLUMNS = ("pool", "steps/s", "of the best", "step() p50", "p99", "start-up", "memory")


def show_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), title: str | None = None
) -> None:
    """Write a table; with a header, all columns but the first are aligned at the right."""
    table = Table(title=title, title_justify="left", show_header=bool(header))
    for name in header:
        table.add_column(name, justify="right" if table.columns else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def show_results(title: str, results: Results, callers: Sequence[Caller]) -> None:
    """Write a table for each caller, and failed settings below them."""
    for caller in callers if results.measured else ():
        show_table(_rows(results, caller), _COLUMNS, f"{title}, {text_of(caller)}")
    for setting, error in results.errors.items():
        print(f"  {setting.text} failed: {error}")  # noqa: T201


def text_of(*callers: Caller) -> str:
    """``policy: 0 or 300 µs per batch``; the callers differ by that time only."""
    if callers[0].policy is not None:
        return f"policy: {callers[0].name}"
    text = "policy: " + " or ".join(f"{1e6 * each.per_batch:g}" for each in callers)
    row = callers[0].per_row
    return f"{text} µs per batch" + (f" and {1e6 * row:g} µs per row" if row else "")


def _rows(results: Results, caller: Caller) -> Iterator[Sequence[str]]:
    """A row for each setting, the fastest first."""
    best, *_ = ranked = results.ranked(caller)
    for setting in ranked:
        measured = results.of(setting, caller)
        rates = [each.rate for each in measured]
        rate = count(median(rates))
        if len(rates) > 1:
            rate += f" ({count(min(rates))} to {count(max(rates))})"
        sizes = [each.memory_bytes for each in measured if each.memory_bytes is not None]
        yield (
            setting.text,
            rate,
            f"{median(rates) / results.rate(best, caller):.2f}",
            duration(median(each.step_p50 for each in measured)),
            duration(median(each.step_p99 for each in measured)),
            duration(median(each.startup_seconds for each in measured)),
            filesize.decimal(max(sizes)) if sizes else "-",
        )


def records(results: Results) -> list[dict[str, Any]]:
    """A flat record of each measurement and each failure, as ``pandas.read_json`` takes it."""
    found = [{**setting._asdict(), "error": error} for setting, error in results.errors.items()]
    for setting, measured in results.measured.items():
        for each in measured:
            fields = {**setting._asdict(), **each._asdict(), "policy": each.caller.name or None}
            fields["policy_seconds"] = each.caller.per_batch
            fields["policy_row_seconds"] = each.caller.per_row
            del fields["caller"]
            found.append(fields)
    return found


def count(value: float) -> str:
    """Three digits; thousands as k, millions as M."""
    return _in_units(value, {" M": 1e6, " k": 1e3, "": 1.0})


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    return _in_units(seconds, {" s": 1.0, " ms": 1e-3, " µs": 1e-6})


def figures(values: Sequence[float]) -> str:
    """The mean, the least and the greatest."""
    if not values:
        return "-"
    return f"mean {np.mean(values):.4g}, {min(values):.4g} to {max(values):.4g}"


def _in_units(value: float, units: dict[str, float]) -> str:
    """Three digits, or all of those before the point; ``units`` are from large to small."""
    unit = next((each for each, scale in units.items() if value >= 0.9995 * scale), [*units][-1])
    shown = value / units[unit]
    decimals = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
    return f"{shown:.{decimals}f}{unit}"
