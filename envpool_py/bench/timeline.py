"""Record when each env of a pool steps, resets and waits, and draw it.

Each env keeps when its steps and resets began and ended; the caller keeps when it sent each request
and when it received the batch. On Linux and macOS all processes have the same clock.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from envpool_py.env.common_spec import missing_space
from envpool_py.errors import EnvError
from envpool_py.pool.base import BaseVectorEnv

#: What an env is doing, and the caller between a batch and the next request.
STEP, RESET, QUEUED, DONE = "steps", "resets", "waits for its turn", "waits for others"
CALLER = "the caller's own work"
_COLOURS = {STEP: "tab:blue", RESET: "tab:orange", QUEUED: "khaki", DONE: "lightgrey"}

#: (what, begin, end), in seconds
Span = tuple[str, float, float]


class Noted(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the times of the env's steps and resets; ``spans`` has them."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.spans: list[Span] = []

    def step(self, action: Any) -> Any:
        return self._timed(STEP, self.env.step, action)

    def reset(self, **kwargs: Any) -> Any:
        return self._timed(RESET, self.env.reset, **kwargs)

    def _timed(self, what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        result = call(*args, **kwargs)
        self.spans.append((what, begun, time.perf_counter()))
        return result


class Timeline(NamedTuple):
    """What happened from 0 to ``seconds``."""

    title: str
    seconds: float
    caller: list[Span]  # between a batch and the next request
    envs: list[list[Span]]
    batches: list[list[int]]  # the ids of each batch, the last env to finish first


def noted(env_fn: Callable[[], gym.Env[Any, Any]]) -> Callable[[], Noted]:
    return lambda: Noted(env_fn())


def record(
    pool: BaseVectorEnv,
    seconds: float,
    warm_up: float,
    policy: Callable[[int], object] = lambda _num_rows: None,
) -> Timeline:
    """Step a pool of ``Noted`` envs with random actions, each env as soon as its row is returned.

    The pool has an autoreset mode and was never reset. It is stepped for ``warm_up`` seconds before
    the recording. ``policy`` is called before each request with its number of rows.
    """
    spaces: list[Any] = pool.action_space
    if None in spaces:
        raise EnvError(missing_space(spaces.index(None), "action_space"), [spaces.index(None)])
    pool.reset(seed=0)
    ids: list[int] = list(range(len(pool)))
    sent: dict[int, float] = {}
    requests: list[list[tuple[float, float]]] = [[] for _ in ids]  # of each env: sent, returned
    batches: list[tuple[float, list[int]]] = []
    caller: list[Span] = []
    start = returned = time.perf_counter() + warm_up
    while (now := time.perf_counter()) < start + seconds:
        policy(len(ids))
        actions = [spaces[i].sample() for i in ids]
        sent |= dict.fromkeys(ids, time.perf_counter())
        caller.append((CALLER, returned, sent[ids[0]]))
        pool.step(actions, ids)
        returned, ids = time.perf_counter(), pool.batch_ids.tolist()
        batches.append((returned, ids))
        for i in ids:
            requests[i].append((sent[i], returned))
    pool.drain()
    spans: list[list[Span]] = pool.get_env_attr("spans")
    whole = [_filled(*both) for both in zip(spans, requests, strict=True)]
    ends = [[end for _, _, end in each] for each in spans]

    def finished(i: int, before: float) -> float:
        return ends[i][bisect_left(ends[i], before) - 1]

    return Timeline(
        repr(pool),
        now - start,
        _cut(caller, start, now),
        [_cut(each, start, now) for each in whole],
        [sorted(rows, key=lambda i: -finished(i, at)) for at, rows in batches if at > start],
    )


def _filled(spans: list[Span], requests: list[tuple[float, float]]) -> list[Span]:
    """The spans of an env, with the times between request and row that are neither."""
    found: list[Span] = []
    begins, ends = [begin for _, begin, _ in spans], [end for _, _, end in spans]
    for begin, end in requests:
        at, what = begin, QUEUED
        for span in spans[bisect_left(begins, begin) : bisect_right(ends, end)]:
            found += [(what, at, span[1]), span]
            at, what = span[2], DONE
        found.append((what, at, end))
    return found


def _cut(spans: list[Span], start: float, end: float) -> list[Span]:
    return [
        (what, max(begin, start) - start, min(stop, end) - start)
        for what, begin, stop in spans
        if stop > start and begin < end and stop > begin
    ]


def shares(timeline: Timeline) -> dict[str, list[float]]:
    """The part of the time that each env spent with each of the four things it does."""

    def share(spans: list[Span], kind: str) -> float:
        return sum(end - begin for what, begin, end in spans if what == kind) / timeline.seconds

    return {kind: [share(spans, kind) for spans in timeline.envs] for kind in _COLOURS}


def last_of_batches(timeline: Timeline) -> list[float]:
    """For each env the part of the batches of several rows in which it was the last."""
    several = [ids for ids in timeline.batches if len(ids) > 1]
    counts = [sum(ids[0] == i for ids in several) for i in range(len(timeline.envs))]
    return [count / max(len(several), 1) for count in counts]


def draw_spans(panel: Any, lines: Sequence[Sequence[Span]], colours: Mapping[str, str]) -> None:
    """Draw a line for each list of spans, the first above; the axis is in milliseconds."""
    for place, spans in enumerate(lines):
        for kind, colour in colours.items():
            own = [(begin, end) for what, begin, end in spans if what == kind]
            bars = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in own]
            panel.broken_barh(bars, (place - 0.4, 0.8), color=colour, linewidth=0)
    panel.set_ylim(len(lines) - 0.5, -0.5)


def draw(timeline: Timeline, path: str) -> None:
    """Draw a line for each env, the caller above them. OSError: the file can't be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    from matplotlib.patches import Patch  # noqa: PLC0415 - likewise

    num_envs = len(timeline.envs)
    figure = Figure(figsize=(14, 1.5 + 0.22 * (num_envs + 1)), layout="constrained")
    panel = figure.subplots()
    colours = {**_COLOURS, CALLER: "black"}
    draw_spans(panel, [timeline.caller, *timeline.envs], colours)
    panel.set_yticks(range(num_envs + 1), ["caller", *(f"env {i}" for i in range(num_envs))])
    panel.tick_params(labelsize="small")
    panel.set(xlim=(0, 1e3 * timeline.seconds), xlabel="milliseconds")
    panel.set_title(timeline.title, fontsize="medium")
    handles = [Patch(color=colour, label=kind) for kind, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(path, dpi=150)
