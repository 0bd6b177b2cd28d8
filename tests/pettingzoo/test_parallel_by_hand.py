"""``ParallelVectorEnv`` against raw parallel envs stepped by hand, row by row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py.pettingzoo import ParallelVectorEnv
from tests.pettingzoo.by_hand import ParallelByHand, row_of
from tests.pettingzoo.envs import MeadowEnv
from tests.pettingzoo.places import ACTS, KAZ, PLACES, make_parallel
from tests.support.reference import alike as same

NUM = 3
# Steps of each env; enough for several episodes.
STEPS = {
    "classic/rps-v2": 20,
    "simple_spread": 20,
    "simple_adversary": 20,
    "sisl/multiwalker-v9": 40,
    "butterfly/pistonball-v6": 14,
    "butterfly/cooperative_pong-v6": 20,
    KAZ: 70,
    "meadow": 30,
    "quiet_meadow": 30,
}


def as_batches(agents: list[str], actions: list[dict[str, Any]]) -> dict[str, Any]:
    """Actions of several envs as a batch for each agent, None for the dead."""
    return {a: [row.get(a) for row in actions] for a in agents if any(a in r for r in actions)}


def drive(pool: Any, hands: list[ParallelByHand], num_steps: int) -> int:
    """Step all envs that many times; return how many episodes ended."""
    rngs = [np.random.default_rng(i) for i in range(NUM)]
    obs, info = pool.reset(seed=7)
    rows = [hand.reset(7 + i) for i, hand in enumerate(hands)]
    nothing = {a: np.zeros(NUM) for a in hands[0].agents}
    flags = {a: np.zeros(NUM, bool) for a in hands[0].agents}
    for i in range(NUM):
        assert same(row_of((obs, nothing, flags, flags, info), i), rows[i])
    left, free, ended = [num_steps] * NUM, list(range(NUM)), 0
    while any(left) or pool.waiting_id:
        if pool.autoreset_mode is None:
            over = [i for i in free if rows[i]["env_done"]]
            pool.send_reset(over)
            for i in over:
                rows[i] = {**hands[i].reset(), "is_reset": True}
            free = [i for i in free if i not in over]
        ids = [i for i in free if left[i]]
        actions = [hands[i].choose(rows[i], rngs[i]) for i in ids]
        for i, action in zip(ids, actions, strict=True):
            left[i] -= 1
            rows[i] = hands[i].step(action)
            ended += rows[i]["env_done"]
        if ids:
            # Both forms of actions, in turn.
            given = actions if left[ids[0]] % 2 else as_batches(hands[0].agents, actions)
            pool.send(given, ids)
        batch = pool.recv()
        free = batch[4]["env_id"].tolist()
        for k, i in enumerate(free):
            assert same(row_of(batch, k), rows[i]), (row_of(batch, k), rows[i])
        for rewards in batch[1].values():
            assert rewards.dtype == np.float64
    return ended


def run(name: str, backend: str, wait_num: int | None, mode: str | None) -> None:
    fns = [functools.partial(make_parallel, name)] * NUM
    hands = [ParallelByHand(make_parallel(name), mode, acts=ACTS.get(name)) for _ in range(NUM)]
    processes = None if backend == "dummy" else 2
    with ParallelVectorEnv(
        fns, backend, wait_num, autoreset_mode=mode, num_processes=processes
    ) as pool:
        assert drive(pool, hands, STEPS[name]) >= NUM
    for hand in hands:
        hand.env.close()


@pytest.mark.parametrize(("backend", "wait_num"), PLACES)
@pytest.mark.parametrize("name", sorted(STEPS))
def test_rows_are_those_of_the_raw_env(
    name: str, backend: str, wait_num: int | None, sides: list[Any]
) -> None:
    run(name, backend, wait_num, None)
    if name != "meadow":  # which has infos
        assert sides == [], "nothing of a fixed shape is pickled"


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(("backend", "wait_num"), PLACES)
@pytest.mark.parametrize("name", ["meadow", "quiet_meadow", "simple_adversary", KAZ])
def test_automatic_resets(
    name: str, backend: str, mode: str, wait_num: int | None, sides: list[Any]
) -> None:
    run(name, backend, wait_num, mode)
    if name != "meadow":
        assert sides == []


def test_infos_that_are_not_empty_are_pickled(sides: list[Any]) -> None:
    with ParallelVectorEnv([MeadowEnv], num_processes=1) as pool:
        pool.reset(seed=2)
    assert [item.keys() for item in sides] == [{"info"}]
    assert sides[0]["info"]["agents"].keys() == {"hunter_0", "hunter_1"}
