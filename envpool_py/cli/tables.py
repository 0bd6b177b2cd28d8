"""Tables on stdout, and numbers with units."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np
from rich import filesize
from rich.console import Console
from rich.table import Table

from envpool_py.bench.measure import Caller, Results
from envpool_py.bench.settings import LOOP, Setting
from envpool_py.cli.naming import printable


def show_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), title: str | None = None
) -> None:
    """Write a table; with a header, all columns but the first are aligned at the right."""
    title = title and printable(title)
    table = Table(title=title, title_justify="left", show_header=bool(header))
    for name in header:
        table.add_column(name, justify="right" if table.columns else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    width = 80 if header else 160  # where the output is no terminal; lists have long values
    console_width = None if sys.stdout.isatty() else width
    Console(width=console_width, markup=False, emoji=False).print(table)


def show_results(title: str, results: Results, callers: Sequence[Caller]) -> None:
    """Write a table for each caller, the fastest first, and failed settings below them."""
    for caller in callers if results.measured else ():
        best, *_ = ranked = results.ranked(caller)
        loop = next((setting for setting in ranked if setting.pool == LOOP), None)
        header = ["pool", "steps/s", "times loop" if loop else "of the best", "step() p50", "p99"]
        is_long = best.num_envs >= 100  # then the start-up time and the memory matter
        header += ["start-up", "memory"] if is_long else []
        rows = []
        for setting in ranked:
            measured = results.of(setting, caller)
            row = [setting.text, rate_of(results, setting, caller)]
            row.append(f"{results.rate(setting, caller) / results.rate(loop or best, caller):.2f}")
            row.append(duration(median(each.step_p50 for each in measured)))
            row.append(duration(median(each.step_p99 for each in measured)))
            if is_long:
                sizes = [each.memory_bytes for each in measured if each.memory_bytes is not None]
                row.append(duration(median(each.startup_seconds for each in measured)))
                row.append(filesize.decimal(max(sizes)) if sizes else "-")
            rows.append(row)
        show_table(rows, header, f"{title}, {text_of(caller)}")
    for setting, error in results.errors.items():
        print(f"  {setting.text} failed: {printable(error)}")  # noqa: T201


def text_of(*callers: Caller) -> str:
    """``policy: 0 or 300 µs per batch``; the callers differ by that time only."""
    if callers[0].policy is not None:
        return f"policy: {callers[0].name}"
    text = "policy: " + " or ".join(f"{1e6 * each.per_batch:g}" for each in callers)
    row = callers[0].per_row
    return f"{text} µs per batch" + (f" and {1e6 * row:g} µs per row" if row else "")


def rate_of(results: Results, setting: Setting, caller: Caller) -> str:
    """``12 300 ± 4 %``: the median of the steps per second, and half of their spread."""
    rates = [each.rate for each in results.of(setting, caller)]
    spread = (max(rates) - min(rates)) / 2 / median(rates)
    return separated(median(rates)) + (f" ± {100 * spread:.0f} %" if len(rates) > 1 else "")


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


def separated(value: float) -> str:
    """Three digits, or all of those before the point; the thousands separated: ``12 300``."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    rounded = value if decimals else float(f"{value:.3g}")
    return f"{rounded:,.{decimals}f}".replace(",", " ")


def duration(seconds: float) -> str:
    units = {"s": 1.0, "ms": 1e3, "µs": 1e6}
    unit = next((each for each, scale in units.items() if scale * seconds >= 0.9995), "µs")
    return f"{separated(units[unit] * seconds)} {unit}"


def figures(values: Sequence[float]) -> str:
    """The mean and its standard error, the least and the greatest."""
    if not values:
        return "-"
    mean, more = _short(np.mean(values)), len(values) - 1
    error = f", standard error {np.std(values) / more**0.5:.4g}" if more else ""
    return f"mean {mean}{error}, {_short(min(values))} to {_short(max(values))}"


def _short(value: Any) -> str:
    """Four digits, or all of those before the point, the thousands separated."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}".replace(",", " ")
