"""Who stepped and who waited: what each env of a pool did and when, on one clock.

Envs note down themselves when each step and reset began and ended; the caller notes down when it
asked and when it had its batch. On Linux and macOS the clock is one for all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py.pool import BaseVectorEnv

#: What an env, or the caller, is doing.
STEP, RESET, QUEUED, DONE, CALLER = "step", "reset", "queued", "done", "caller"

#: (what, begin, end), in seconds
Span = tuple[str, float, float]


class Noted(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the times of the env's steps and resets; ``spans`` has them."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.spans: list[Span] = []

    def step(self, action: Any) -> Any:
        """Step the env."""
        begun = time.perf_counter()
        result = self.env.step(action)
        self.spans.append((STEP, begun, time.perf_counter()))
        return result

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env."""
        begun = time.perf_counter()
        result = self.env.reset(**kwargs)
        self.spans.append((RESET, begun, time.perf_counter()))
        return result


class Timeline(NamedTuple):
    """What happened from 0 to ``seconds``.

    ``caller``: spans between a batch and the next request. ``envs``: spans of each env, in order.
    ``batches``: for each batch when it was handed out, and the envs in it, the last to end first.
    """

    title: str
    seconds: float
    caller: list[Span]
    envs: list[list[Span]]
    batches: list[tuple[float, list[int]]]


def noted(env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> list[Callable[[], Noted]]:
    """``env_fns`` of envs that note down their times."""
    return [lambda env_fn=env_fn: Noted(env_fn()) for env_fn in env_fns]  # type: ignore[misc]


def record(pool: BaseVectorEnv, seconds: float, warm_up: float) -> Timeline:
    """Step a pool of ``Noted`` envs with random actions, each env anew as soon as its row is there.

    Args:
        pool: with an autoreset mode; never reset.
        seconds: how long to record.
        warm_up: for how long to step before.
    """
    num_envs = len(pool)
    pool.reset(seed=0)
    spaces: list[Any] = pool.action_space
    ids: list[int] = list(range(num_envs))
    sent = [0.0] * num_envs
    asked: list[tuple[int, float, float]] = []  # (env, sent, handed out)
    caller: list[Span] = []
    start = free = time.perf_counter() + warm_up
    while (now := time.perf_counter()) < start + seconds:
        actions = [spaces[i].sample() for i in ids]
        for i in ids:
            sent[i] = time.perf_counter()
        caller.append((CALLER, free, sent[ids[0]]))
        infos = pool.step(actions, ids)[4]
        free = time.perf_counter()
        ids = [info["env_id"] for info in infos]
        asked += [(i, sent[i], free) for i in ids]
    pool.drain()
    spans: list[list[Span]] = pool.get_env_attr("spans")
    whole = [
        _filled(spans[i], [each[1:] for each in asked if each[0] == i]) for i in range(num_envs)
    ]
    cut = [_cut(each, start, now) for each in whole]
    return Timeline(
        repr(pool), now - start, _cut(caller, start, now), cut, _batches(asked, spans, start)
    )


def _filled(spans: list[Span], asked: list[tuple[float, float]]) -> list[Span]:
    """The spans of an env, with what lies between request and row and is neither step nor reset."""
    found: list[Span] = []
    place = 0
    for begin, end in asked:
        while place < len(spans) and spans[place][1] < begin:  # of an earlier request
            place += 1
        at, what = begin, QUEUED
        while place < len(spans) and spans[place][2] <= end:
            span = spans[place]
            found += [(what, at, span[1]), span]
            at, what = span[2], DONE
            place += 1
        found.append((what, at, end))
    return found


def _cut(spans: list[Span], start: float, end: float) -> list[Span]:
    return [
        (what, max(begin, start) - start, min(stop, end) - start)
        for what, begin, stop in spans
        if stop > start and begin < end and stop > begin
    ]


def _batches(
    asked: list[tuple[int, float, float]], spans: list[list[Span]], start: float
) -> list[tuple[float, list[int]]]:
    ends = [np.array([span[2] for span in each]) for each in spans]
    batches: dict[float, list[tuple[float, int]]] = {}
    for i, _, handed_out in asked:
        if handed_out > start:
            last = ends[i][np.searchsorted(ends[i], handed_out) - 1]
            batches.setdefault(handed_out, []).append((float(last), i))
    return [(at - start, [i for _, i in sorted(rows)[::-1]]) for at, rows in batches.items()]


def shares(timeline: Timeline) -> dict[str, list[float]]:
    """For each of step, reset, queued and done the part of the time that each env spent so."""
    return {
        kind: [
            sum(end - begin for what, begin, end in spans if what == kind) / timeline.seconds
            for spans in timeline.envs
        ]
        for kind in (STEP, RESET, QUEUED, DONE)
    }


def last_of_batches(timeline: Timeline) -> list[float]:
    """For each env the part of the batches, of two rows or more, whose last row was its own."""
    several = [ids for _, ids in timeline.batches if len(ids) > 1]
    counts = [sum(ids[0] == i for ids in several) for i in range(len(timeline.envs))]
    return [count / max(len(several), 1) for count in counts]
