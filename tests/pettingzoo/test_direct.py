"""Reading past PettingZoo's wrappers gives what reading through them gives, with the same calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, BaseWrapper, OrderEnforcingWrapper

from envpool_py.pettingzoo import PettingZooEnv
from envpool_py.pettingzoo.convert import Direct, converted_step
from tests.pettingzoo.by_hand import AECByHand
from tests.pettingzoo.envs import MeadowEnv, TableEnv
from tests.pettingzoo.places import make_aec
from tests.support.reference import alike as same


class Own(BaseWrapper):
    """Has all that a row is made of in its own way, from its first step on also an attribute."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return {agent: {"told": True} for agent in found} if name == "infos" else found

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self.__dict__.pop("rewards", None)

    def step(self, action: Any) -> None:
        super().step(action)
        self.rewards = dict.fromkeys(self.env.agents, 7)

    def observe(self, agent: str) -> Any:
        return 2 * super().observe(agent)

    def last(self, observe: bool = True) -> tuple:
        seen, reward, *rest = super().last(observe)
        return seen, reward - 1, *rest


def wrapped(kind: Any, *, inside: bool) -> Any:
    """Wrap a table, with a wrapper of this kind outside or inside of PettingZoo's own."""
    if inside:
        return OrderEnforcingWrapper(AssertOutOfBoundsWrapper(kind(TableEnv())))
    return kind(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(TableEnv())))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", [BaseWrapper, Own])
def test_wrappers_have_their_say(kind: Any, *, inside: bool) -> None:
    hand = AECByHand(wrapped(kind, inside=inside))
    env = PettingZooEnv(wrapped(kind, inside=inside))
    rng = np.random.default_rng(0)
    for seed in range(2):
        expected = hand.reset(seed)
        found = env.reset(seed=seed)
        assert same(found, (expected["obs"], expected["info"]))
        while not hand.over:
            action = hand.choose(expected, rng)
            expected = hand.step(action)
            assert same(env.step(action), tuple(expected.values()))


def test_the_wrappers_that_come_with_an_env_are_passed_by() -> None:
    for name in ("classic/tictactoe-v3", "simple_spread"):
        env = make_aec(name)
        env.reset(seed=0)
        direct = Direct(env)
        assert direct.rewards is env.unwrapped.rewards
        assert same(direct.last(), env.last())


def test_a_wrapper_that_is_put_in_later_is_seen_from_the_next_reset_on() -> None:
    env = PettingZooEnv(wrapped(BaseWrapper, inside=False))
    env.reset(seed=0)
    env.env.env = Own(env.env.env)
    obs, _ = env.reset(seed=0)
    obs = env.step(int(np.flatnonzero(obs["mask"])[0]))[0]
    assert same(obs["obs"], env.observe(obs["agent_id"]))


class Counting(BaseWrapper):
    """Counts what is asked of the env."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.calls: list[tuple] = []

    def observe(self, agent: str) -> Any:
        self.calls.append(("observe", agent))
        return super().observe(agent)

    def step(self, action: Any) -> None:
        self.calls.append(("step", action))
        super().step(action)


@pytest.mark.parametrize(
    "make", [lambda: simple_spread_v3.env(max_cycles=4), lambda: parallel_to_aec(MeadowEnv())]
)
def test_a_converted_env_makes_the_same_calls_and_returns_the_same(make: Any) -> None:
    theirs, ours = (aec_to_parallel(Counting(OrderEnforcingWrapper(make()))) for _ in range(2))
    rng = np.random.default_rng(0)
    for seed in range(2):
        assert same(theirs.reset(seed=seed), ours.reset(seed=seed))
        step = converted_step(ours)
        assert step is not None
        while theirs.agents:
            actions = {agent: int(rng.integers(3)) for agent in theirs.agents}
            expected, got = theirs.step(actions), step(actions)
            assert same(got, expected)
            assert [list(part) for part in got] == [list(part) for part in expected]
            assert ours.agents == theirs.agents
    assert ours.aec_env.calls == theirs.aec_env.calls


def test_a_parallel_env_of_its_own_is_stepped_by_itself() -> None:
    assert converted_step(MeadowEnv()) is None
    converted = simple_spread_v3.parallel_env(max_cycles=4)
    converted.reset(seed=0)
    converted.step = converted.step  # somebody's own
    assert converted_step(converted) is None
