"""``PettingZooEnv`` and ``ParallelVectorEnv`` against raw envs stepped by hand, row by row."""

import functools

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.by_hand import AECByHand, ParallelByHand, drive
from tests.pettingzoo.envs import ACTS, KAZ, make_aec, make_parallel

NUM = 3
MODES = (None, "next_step", "same_step")
PLACES = {
    "dummy": {},
    "shmem": {"num_processes": 2},
    "spawn": {"num_processes": 1, "context": "spawn"},
}
# Place, name, autoreset mode, and the steps of each env: enough for several episodes.
TURNS = [
    ("shmem", "classic/tictactoe-v3", None, 40),
    ("dummy", "classic/leduc_holdem-v4", "same_step", 40),
    ("shmem", "classic/rps-v2", "next_step", 40),
    ("shmem", "simple_adversary", None, 60),
    ("dummy", "simple_spread", "same_step", 60),
    ("shmem", "sisl/multiwalker-v9", None, 110),
    ("dummy", KAZ, None, 150),
    ("shmem", KAZ, "same_step", 110),
    *((place, "table", mode, 50) for place in ("dummy", "shmem") for mode in MODES),
    ("dummy", "meadow", "next_step", 60),
    ("shmem", "meadow", None, 90),
    ("spawn", "table", None, 60),
]
ROUNDS = [
    ("dummy", "classic/rps-v2", None, 20),
    ("shmem", "simple_spread", None, 20),
    ("dummy", "simple_adversary", "same_step", 20),
    ("shmem", "sisl/multiwalker-v9", None, 40),
    ("dummy", "butterfly/pistonball-v6", None, 14),
    ("dummy", KAZ, "next_step", 70),
    ("shmem", KAZ, "same_step", 70),
    *((place, "meadow", mode, 30) for place in ("dummy", "shmem") for mode in MODES),
    ("spawn", "meadow", None, 12),
]


def wrapped(name, dead_steps):
    mixed = name in ("simple_adversary", "meadow")
    return PettingZooEnv(make_aec(name), dead_steps=dead_steps, heterogeneous=mixed)


@pytest.mark.parametrize("dead_steps", ["caller", "skip"])
@pytest.mark.parametrize(("place", "name", "mode", "steps"), TURNS)
def test_turns(place, name, mode, steps, dead_steps, sides):
    # What is converted from a parallel env is by hand converted likewise.
    raw = [wrapped(name, "caller").env for _ in range(NUM)]
    skip = dead_steps == "skip"
    hands = [AECByHand(env, mode, ACTS.get(name), skip=skip) for env in raw]
    fns = [functools.partial(wrapped, name, dead_steps)] * NUM
    kind = DummyVectorEnv if place == "dummy" else ShmemVectorEnv
    with kind(fns, wait_num=2, autoreset_mode=mode, **PLACES[place]) as pool:
        drive(pool, hands, steps)
    assert all(hand.episodes > 1 for hand in hands)
    # The infos of the ends, and what agents with different spaces see, have no fixed shape.
    pickled = skip or mode == "same_step" or name in ("simple_adversary", "meadow")
    assert bool(sides) == (place != "dummy" and pickled)
    for env in raw:
        env.close()


@pytest.mark.parametrize(("place", "name", "mode", "steps"), ROUNDS)
def test_rounds(place, name, mode, steps, sides):
    hands = [ParallelByHand(make_parallel(name), mode, ACTS.get(name)) for _ in range(NUM)]
    backend = "dummy" if place == "dummy" else "shmem"
    fns = [functools.partial(make_parallel, name)] * NUM
    with ParallelVectorEnv(fns, backend, 2, autoreset_mode=mode, **PLACES[place]) as pool:
        batches = drive(pool, hands, steps)
    assert all(hand.episodes > 1 for hand in hands)
    assert all(own.dtype == np.float64 for own in batches[-1][1].values())
    if place != "dummy":  # of what is in the rows, only infos that are not empty are pickled
        told = [info for batch in batches for info in batch[4]["agent_infos"] if info]
        assert bool(sides) == (name == "meadow") == bool(told)
    for hand in hands:
        hand.env.close()
