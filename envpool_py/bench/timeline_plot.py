"""A timeline as a picture. Needs matplotlib."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from envpool_py.bench.timeline import CALLER, DONE, QUEUED, RESET, STEP, Timeline

_COLOURS = {
    STEP: "tab:blue",
    RESET: "tab:orange",
    QUEUED: "khaki",
    DONE: "lightgrey",
    CALLER: "black",
}
_MEANINGS = {
    STEP: "steps",
    RESET: "resets",
    QUEUED: "waits for its turn",
    DONE: "row waits for others",
    CALLER: "the caller's own work",
}


def draw(timeline: Timeline, path: str) -> None:
    """Draw a line for each env, the caller above them; time in milliseconds goes to the right.

    Raises:
        OSError: the file can't be written.
    """
    num_envs = len(timeline.envs)
    figure = Figure(figsize=(14, 1.5 + 0.22 * (num_envs + 1)), layout="constrained")
    panel = figure.subplots()
    for place, spans in enumerate([timeline.caller, *timeline.envs]):
        for kind, colour in _COLOURS.items():
            bars = [
                (1e3 * begin, 1e3 * (end - begin)) for what, begin, end in spans if what == kind
            ]
            panel.broken_barh(bars, (place - 0.4, 0.8), color=colour, linewidth=0)
    panel.set_yticks(range(num_envs + 1), ["caller", *(f"env {i}" for i in range(num_envs))])
    panel.tick_params(labelsize="small")
    panel.set_ylim(num_envs + 0.5, -0.5)
    panel.set_xlim(0, 1e3 * timeline.seconds)
    panel.set_xlabel("milliseconds")
    panel.set_title(timeline.title, fontsize="medium")
    figure.legend(
        handles=[Patch(color=colour, label=_MEANINGS[kind]) for kind, colour in _COLOURS.items()],
        loc="outside lower center",
        ncols=len(_COLOURS),
        fontsize="small",
    )
    figure.savefig(path, dpi=150)
