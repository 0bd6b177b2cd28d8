"""Figures as a picture. Needs matplotlib."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from envpool_py.bench import figures
from envpool_py.bench.contestants import BY_NAME
from envpool_py.bench.report import Report
from envpool_py.bench.table import label
from envpool_py.bench.workloads import Workload

#: Panels side by side, and how wide one is, inches.
_COLUMNS = 3
_WIDTH = 5.5

_COLOURS = {
    "envpool_py": "tab:blue",
    "ceiling": "tab:gray",
    "gymnasium": "tab:orange",
    "sb3": "tab:green",
    "tianshou": "tab:red",
    "pufferlib": "tab:purple",
    "torchrl": "tab:brown",
    "supersuit": "tab:olive",
    "agilerl": "tab:cyan",
}


def draw(report: Report, path: str) -> None:
    """Draw a panel for each workload: the part of the limit as bars, CPU efficiency as dots.

    Raises:
        OSError: the file can't be written.
        ValueError: files of that kind can't be written.
    """
    workloads = report.workloads()
    columns = min(_COLUMNS, len(workloads))
    lines = -(-len(workloads) // columns)
    most = max(len(figures.rows(report, workload)) for workload in workloads)
    figure = Figure(figsize=(_WIDTH * columns, (0.25 * most + 1) * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for workload, panel in zip(workloads, panels, strict=False):
        _panel(panel, report, workload)
    for panel in list(panels):
        panel.axis("off")
    figure.savefig(path, dpi=150)


def _panel(panel: Any, report: Report, workload: Workload) -> None:
    rows = figures.rows(report, workload)[::-1]  # the first is drawn at the bottom
    middle = [row.of_limit.median for row in rows]
    panel.barh(
        [label(row.contestant, report.num_cores) for row in rows],
        middle,
        xerr=[
            [row.of_limit.median - row.of_limit.least for row in rows],
            [row.of_limit.greatest - row.of_limit.median for row in rows],
        ],
        color=[_COLOURS[BY_NAME[row.contestant].library] for row in rows],
    )
    known = [(row.cpu_efficiency.median, i) for i, row in enumerate(rows) if row.cpu_efficiency]
    if known:
        panel.plot(*zip(*known, strict=True), "k.", label="CPU efficiency")
    panel.set_xlim(0, 1.05)
    panel.set_title(workload.title, fontsize="medium")
    panel.tick_params(labelsize="small")
    panel.set_xlabel("of the limit (dots: CPU efficiency)", fontsize="small")
