"""Which env stepped and which waited: what each env of a pool did and when, on one clock.

Each env keeps when its steps and resets began and ended; the caller keeps when it sent each request
and when it received the batch. On Linux and macOS all processes have the same clock.
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
    ``batches``: the ids of each batch, the last env to finish first.
    """

    title: str
    seconds: float
    caller: list[Span]
    envs: list[list[Span]]
    batches: list[list[int]]


def noted(env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> list[Callable[[], Noted]]:
    """``env_fns`` of envs that keep their times."""
    return [lambda env_fn=env_fn: Noted(env_fn()) for env_fn in env_fns]  # type: ignore[misc]


def record(pool: BaseVectorEnv, seconds: float, warm_up: float) -> Timeline:
    """Step a pool of ``Noted`` envs with random actions, each env as soon as its row is returned.

    Args:
        pool: with an autoreset mode; never reset.
        seconds: how long to record.
        warm_up: for how long to step before.
    """
    pool.reset(seed=0)
    spaces: list[Any] = pool.action_space
    ids: list[int] = list(range(len(pool)))
    sent = [0.0] * len(pool)
    requests: list[list[tuple[float, float]]] = [[] for _ in ids]  # of each env: sent, returned
    batches: list[tuple[float, list[int]]] = []
    caller: list[Span] = []
    start = returned = time.perf_counter() + warm_up
    while (now := time.perf_counter()) < start + seconds:
        actions = [spaces[i].sample() for i in ids]
        for i in ids:
            sent[i] = time.perf_counter()
        caller.append((CALLER, returned, sent[ids[0]]))
        pool.step(actions, ids)
        returned, ids = time.perf_counter(), pool.batch_ids.tolist()
        batches.append((returned, ids))
        for i in ids:
            requests[i].append((sent[i], returned))
    pool.drain()
    spans: list[list[Span]] = pool.get_env_attr("spans")
    whole = [_filled(*both) for both in zip(spans, requests, strict=True)]
    ends = [np.array([end for _, _, end in each]) for each in spans]

    def finished(i: int, before: float) -> float:
        return float(ends[i][np.searchsorted(ends[i], before) - 1])

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
    place = 0
    for begin, end in requests:
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
    """For each env the part of the batches of several rows in which it was the last."""
    several = [ids for ids in timeline.batches if len(ids) > 1]
    counts = [sum(ids[0] == i for ids in several) for i in range(len(timeline.envs))]
    return [count / max(len(several), 1) for count in counts]
