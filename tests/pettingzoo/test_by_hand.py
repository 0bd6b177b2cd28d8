"""``PettingZooEnv`` and ``ParallelVectorEnv`` against raw envs stepped by hand, row by row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.by_hand import AECByHand, ParallelByHand, drive
from tests.pettingzoo.envs import MeadowEnv
from tests.pettingzoo.places import ACTS, KAZ, PLACES, POOLS, make_aec, make_parallel

NUM = 3
# Steps of each env; enough for several episodes.
TURNS = {
    "classic/tictactoe-v3": 40,
    "classic/connect_four-v3": 60,
    "classic/leduc_holdem-v4": 40,
    "classic/rps-v2": 40,
    "simple_adversary": 60,
    "sisl/multiwalker-v9": 110,
    KAZ: 150,
    "table": 60,
    "meadow": 90,
}
SKIPPED = {KAZ: 110, "simple_spread": 60, "table": 60, "meadow": 60}
ROUNDS = {
    "classic/rps-v2": 20,
    "simple_spread": 20,
    "simple_adversary": 20,
    "sisl/multiwalker-v9": 40,
    "butterfly/pistonball-v6": 14,
    KAZ: 70,
    "meadow": 30,
    "quiet_meadow": 30,
}
# Of these only the infos and observations of no fixed shape would be pickled, and there are none.
FIXED = {"classic/tictactoe-v3", "classic/rps-v2", "table", "sisl/multiwalker-v9"}


def wrapped(name: str, dead_steps: str) -> Any:
    mixed = name in ("simple_adversary", "meadow")
    return PettingZooEnv(make_aec(name), dead_steps=dead_steps, heterogeneous=mixed)


@pytest.mark.parametrize(("backend", "wait_num"), PLACES)
@pytest.mark.parametrize(
    ("name", "dead_steps"),
    [*((name, "caller") for name in TURNS), *((name, "skip") for name in SKIPPED)],
)
def test_turns(
    name: str, dead_steps: str, backend: str, wait_num: int | None, sides: list[Any]
) -> None:
    skip = dead_steps == "skip"
    # What is converted from a parallel env is by hand converted likewise.
    raw = [wrapped(name, "caller").env for _ in range(NUM)]
    hands = [AECByHand(env, skip=skip, acts=ACTS.get(name)) for env in raw]
    fns = [functools.partial(wrapped, name, dead_steps)] * NUM
    with POOLS[backend](fns, wait_num=wait_num) as pool:
        assert drive(pool, hands, (SKIPPED if skip else TURNS)[name]) >= NUM
    assert sides == [] or skip or name not in FIXED
    for env in raw:
        env.close()


@pytest.mark.parametrize(("backend", "wait_num"), PLACES)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, None) for name in ROUNDS),
        *((name, "next_step") for name in ("meadow", "quiet_meadow", KAZ)),
        *((name, "same_step") for name in ("meadow", "quiet_meadow", KAZ)),
    ],
)
def test_rounds(
    name: str, mode: str | None, backend: str, wait_num: int | None, sides: list[Any]
) -> None:
    hands = [ParallelByHand(make_parallel(name), mode, acts=ACTS.get(name)) for _ in range(NUM)]
    processes = {} if backend == "dummy" else {"num_processes": 2}
    fns = [functools.partial(make_parallel, name)] * NUM
    with ParallelVectorEnv(fns, backend, wait_num, autoreset_mode=mode, **processes) as pool:
        assert drive(pool, hands, ROUNDS[name]) >= NUM
        assert all(own.dtype == np.float64 for own in pool.drain()[1].values())
    if name != "meadow":  # which has infos
        assert sides == [], "nothing of a fixed shape is pickled"
    for hand in hands:
        hand.env.close()


def test_infos_that_are_not_empty_are_pickled(sides: list[Any]) -> None:
    with ParallelVectorEnv([MeadowEnv], num_processes=1) as pool:
        pool.reset(seed=2)
    assert [item.keys() for item in sides] == [{"info"}]
    assert sides[0]["info"]["agents"].keys() == {"hunter_0", "hunter_1"}
