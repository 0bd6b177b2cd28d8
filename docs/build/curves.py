"""Pictures of curves in panels, for the pages: readable on light and on dark screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_STYLE = """
svg { --paper: #fff; --ink: #24292f; --line: #d0d7de; LIGHT }
@media (prefers-color-scheme: dark) {
svg { --paper: #0d1117; --ink: #e6edf3; --line: #30363d; DARK } }
text { fill: var(--ink); font: 14px Helvetica, Arial, sans-serif; }
.axis { stroke: var(--line); } .run { fill: none; stroke-width: 1; opacity: 0.35; }
.mean, circle { fill: none; stroke-width: 3; }
"""
WIDTH, HEIGHT, LEFT, TOP = 330, 200, 68, 46
RIGHT, BELOW = 36, 54
FEW = 5
"""A curve of so many points at most shows them."""


class Curve(NamedTuple):
    """A line of a panel; ``points`` are parts of its width, and values."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "mean"


class Panel(NamedTuple):
    """Curves over one axis; ``ticks`` are places on it, as parts of the width, and their texts."""

    title: str
    curves: Sequence[Curve]
    ticks: Mapping[float, str]


def drawn(panels: Sequence[Panel], colours: Mapping[str, str], label: str, axis: str) -> str:
    """An SVG of two panels in a row; ``colours`` has a light and a dark one of each name."""
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BELOW
    keys = {name: f"--c{k}" for k, name in enumerate(colours)}
    parts = []
    for place, panel in enumerate(panels):
        x0, y0 = place % 2 * width + LEFT, place // 2 * height + TOP + HEIGHT
        parts.append(
            f'<text x="{x0}" y="{y0 - HEIGHT - 18}" font-weight="bold">{panel.title}</text>'
        )
        most = max(value for curve in panel.curves for _, value in curve.points)
        for share in (0, 0.5, 1):
            y = y0 - share * HEIGHT
            text = f"{share * most:,.0f}".replace(",", " ")
            parts += [
                f'<line class="axis" x1="{x0}" x2="{x0 + WIDTH}" y1="{y}" y2="{y}"/>',
                f'<text x="{x0 - 8}" y="{y + 5}" text-anchor="end">{text}</text>',
            ]
        for share, text in panel.ticks.items():
            x = x0 + share * WIDTH
            parts.append(f'<text x="{x}" y="{y0 + 20}" text-anchor="middle">{text}</text>')
        for curve in panel.curves:
            shown = [(x0 + x * WIDTH, y0 - y / most * HEIGHT) for x, y in curve.points]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
            stroke = f'style="stroke: var({keys[curve.name]})"'
            parts.append(f'<polyline class="{curve.kind}" {stroke} points="{points}"/>')
            few = shown if len(shown) <= FEW else []
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" {stroke}/>' for x, y in few]
    # Two names are in the first panel, more are where the next panel would be.
    apart = len(colours) > 2
    place = len(panels) if apart else 0
    x, y = place % 2 * width + LEFT + 12, place // 2 * height + TOP + 8
    for row, (name, key) in enumerate(keys.items()):
        at, stroke = y + 22 * row, f'style="stroke: var({key})"'
        parts += [
            f'<line class="mean" {stroke} x1="{x}" x2="{x + 24}" y1="{at}" y2="{at}"/>',
            f'<text x="{x + 32}" y="{at + 5}">{name}</text>',
        ]
    rows = -(-(len(panels) + apart) // 2)
    parts.append(f'<text x="{LEFT}" y="{rows * height - 12}">{axis}</text>')
    style = _STYLE
    for number, mode in enumerate(("LIGHT", "DARK")):
        own = (f"{keys[name]}: {both.split()[number]};" for name, both in colours.items())
        style = style.replace(mode, " ".join(own))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {rows * height}"'
        f' role="img" aria-label="{label}">\n<style>{style}</style>\n'
        '<rect width="100%" height="100%" rx="12" style="fill: var(--paper)"/>\n'
        + "\n".join([*parts, "</svg>\n"])
    )
