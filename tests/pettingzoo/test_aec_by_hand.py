"""``PettingZooEnv`` in every pool against raw AEC envs stepped by hand, row by row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.by_hand import AECByHand, check_row
from tests.pettingzoo.places import ACTS, KAZ, PLACES, POOLS, make_aec

NUM = 3
# Rows for each env; enough for several episodes but where a step is dear.
ROWS = {
    "classic/tictactoe-v3": 40,
    "classic/connect_four-v3": 60,
    "classic/leduc_holdem-v4": 40,
    "classic/chess-v6": 25,
    "classic/rps-v2": 40,
    "simple_spread": 60,
    "simple_adversary": 60,
    "sisl/multiwalker-v9": 110,
    "butterfly/pistonball-v6": 50,
    "butterfly/cooperative_pong-v6": 30,
    KAZ: 150,
    "table": 60,
    "meadow": 90,
}
MIXED = {"simple_adversary", "meadow"}
# Of these only the infos and observations of no fixed shape would be pickled, and there are none.
FIXED = {"classic/tictactoe-v3", "classic/rps-v2", "table", "sisl/multiwalker-v9"}


def wrapped(name: str, dead_steps: str) -> Any:
    return PettingZooEnv(make_aec(name), dead_steps=dead_steps, heterogeneous=name in MIXED)


def drive(pool: Any, hands: list[AECByHand], num_rows: int) -> int:
    """Step all envs that many times; return how many episodes ended."""
    rngs = [np.random.default_rng(i) for i in range(NUM)]
    obs, info = pool.reset(seed=[7 + 10 * i for i in range(NUM)])
    rows = [hand.reset(7 + 10 * i) for i, hand in enumerate(hands)]
    for i in range(NUM):
        check_row(rows[i], obs[i], info[i], env_id=i)
    left = [num_rows] * NUM
    free, ended = list(range(NUM)), 0
    while any(left) or pool.waiting_id:
        for i in [i for i in free if rows[i]["over"]]:
            ended += 1
            obs, info = pool.reset([i])
            rows[i] = hands[i].reset(None)
            check_row(rows[i], obs[0], info[0], env_id=i)
        ids = [i for i in free if left[i]]
        if ids:
            actions = [hands[i].choose(rows[i], rngs[i]) for i in ids]
            for i, action in zip(ids, actions, strict=True):
                left[i] -= 1
                rows[i] = hands[i].step(action)
            batch = pool.step(actions, ids)
        else:
            batch = pool.step(None)
        obs, rewards, terminated, truncated, infos = batch
        assert rewards.dtype == np.float64
        free = [info["env_id"] for info in infos]
        for k, i in enumerate(free):
            stepped = rewards[k], terminated[k], truncated[k]
            check_row(rows[i], obs[k], infos[k], stepped, env_id=i)
    return ended


def run(name: str, backend: str, wait_num: int | None, dead_steps: str) -> None:
    fns = [functools.partial(wrapped, name, dead_steps)] * NUM
    # What is converted from a parallel env is by hand converted likewise.
    hands = [
        AECByHand(wrapped(name, "caller").env, skip=dead_steps == "skip", acts=ACTS.get(name))
        for _ in range(NUM)
    ]
    with POOLS[backend](fns, wait_num=wait_num) as pool:
        assert drive(pool, hands, ROWS[name]) >= (0 if name == "classic/chess-v6" else NUM)
    for hand in hands:
        hand.env.close()


@pytest.mark.parametrize(("backend", "wait_num"), PLACES)
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_of_the_raw_env(
    name: str, backend: str, wait_num: int | None, sides: list[Any]
) -> None:
    run(name, backend, wait_num, "caller")
    assert sides == [] or name not in FIXED


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
@pytest.mark.parametrize(
    "name", [KAZ, "classic/connect_four-v3", "simple_spread", "table", "meadow"]
)
def test_skipped_dead_steps(name: str, backend: str) -> None:
    run(name, backend, None, "skip")
