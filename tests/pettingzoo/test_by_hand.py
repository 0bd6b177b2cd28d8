"""``PettingZooEnv`` and ``ParallelVectorEnv`` against raw envs stepped by hand, row by row."""

import functools

import numpy as np
import pytest
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.by_hand import AECByHand, ParallelByHand, drive
from tests.pettingzoo.envs import ACTS, KAZ, PlainMeadowEnv, TableEnv, make_aec, make_parallel

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
    ("shmem", "sisl/multiwalker-v9", None, 110),
    ("dummy", KAZ, None, 150),
    *((place, "table", mode, 50) for place in ("dummy", "shmem") for mode in MODES),
    ("shmem", "meadow", None, 90),
    ("spawn", "table", None, 60),
]
ROUNDS = [
    ("dummy", "classic/rps-v2", None, 20),
    ("dummy", "simple_adversary", "same_step", 20),
    ("shmem", "sisl/multiwalker-v9", None, 40),
    ("shmem", KAZ, "same_step", 70),
    *((place, "meadow", mode, 30) for place in ("dummy", "shmem") for mode in MODES),
    ("shmem", "ghosts", "same_step", 30),
    ("spawn", "meadow", None, 12),
]


@pytest.mark.parametrize("dead_steps", ["caller", "skip"])
@pytest.mark.parametrize(("place", "name", "mode", "steps"), TURNS)
def test_turns(place, name, mode, steps, dead_steps, sides):
    mixed, skip = name in ("simple_adversary", "meadow"), dead_steps == "skip"

    def make():
        return PettingZooEnv(make_aec(name), dead_steps=dead_steps, heterogeneous=mixed)

    # An env that is converted from a parallel env is converted likewise by hand.
    hands = [AECByHand(make().env, mode, ACTS.get(name), skip=skip) for _ in range(NUM)]
    kind = DummyVectorEnv if place == "dummy" else ShmemVectorEnv
    with kind([make] * NUM, wait_num=2, autoreset_mode=mode, **PLACES[place]) as pool:
        drive(pool, hands, steps)
    assert all(hand.episodes > 1 for hand in hands)
    # The infos of the ends, and observations of different spaces, have no fixed shape.
    pickled = skip or mode == "same_step" or mixed
    assert bool(sides) == (place != "dummy" and pickled)
    for hand in hands:
        hand.env.close()


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
        assert bool(sides) == (name in ("meadow", "ghosts")) == bool(told)
    for hand in hands:
        hand.env.close()


# ---------------------------- rows read past the wrappers, which have their say nevertheless


class Own(wrappers.BaseWrapper):
    """Changes all values that a row is made of, and counts its calls."""

    def __init__(self, env):
        super().__init__(env)
        self.calls = []

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return {a: {**found[a], "told": 1} for a in found} if name == "infos" else found

    def step(self, action):
        self.calls.append(action)
        super().step(action)
        self.rewards = dict.fromkeys(self.env.agents, 7)

    def observe(self, agent):
        self.calls.append(agent)
        return 2 * super().observe(agent)

    def last(self, observe=True):
        seen, reward, *rest = super().last(observe)
        return seen, reward - 1, *rest


def theirs(env):
    """Wrap an env as the envs of PettingZoo are."""
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(env))


def in_turns(make):
    return AECByHand(make()), DummyVectorEnv([lambda: PettingZooEnv(make())])


def in_rounds(make):
    return ParallelByHand(make()), ParallelVectorEnv([make], "dummy")


@pytest.mark.parametrize(
    ("made", "make"),
    [
        (in_turns, lambda: Own(theirs(TableEnv()))),
        (in_turns, lambda: theirs(Own(TableEnv()))),
        # It tells a legal move by the mask that was seen last, and does not ask the env again.
        (in_turns, lambda: wrappers.TerminateIllegalWrapper(Own(TableEnv()), -1)),
        (in_rounds, lambda: aec_to_parallel(Own(theirs(parallel_to_aec(PlainMeadowEnv()))))),
    ],
)
def test_custom_wrappers_are_called_as_by_hand(made, make):
    hand, pool = made(make)
    with pool:
        drive(pool, [hand], 60)
        assert pool.get_env_attr("calls") == [getattr(hand.env, "aec_env", hand.env).calls]
