"""Reading past PettingZoo's wrappers gives what reading through them gives, with the same calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from pettingzoo.utils.wrappers import (
    AssertOutOfBoundsWrapper,
    BaseWrapper,
    OrderEnforcingWrapper,
    TerminateIllegalWrapper,
)

from envpool_py.pettingzoo import PettingZooEnv
from envpool_py.pettingzoo.convert import Direct, converted_step
from tests.pettingzoo.by_hand import AECByHand
from tests.pettingzoo.envs import MeadowEnv, TableEnv, make_aec, make_parallel
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


WRAPPINGS = {
    "outside": lambda kind: kind(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(TableEnv()))),
    "inside": lambda kind: OrderEnforcingWrapper(AssertOutOfBoundsWrapper(kind(TableEnv()))),
    # A legal move is told by the mask that was seen last, and the env is not asked once more.
    "no_illegal_moves": lambda kind: TerminateIllegalWrapper(kind(TableEnv()), -1),
}


@pytest.mark.parametrize(
    ("kind", "wrapping"),
    [(Own, "outside"), (Own, "inside"), *((Counting, name) for name in WRAPPINGS)],
)
def test_wrappers_have_their_say(kind: Any, wrapping: str) -> None:
    hand = AECByHand(WRAPPINGS[wrapping](kind))
    env = PettingZooEnv(WRAPPINGS[wrapping](kind))
    rng = np.random.default_rng(0)
    for seed in range(2):
        expected = hand.reset(seed)
        del expected["info"]["is_reset"]
        assert same(env.reset(seed=seed), (expected["obs"], expected["info"]))
        while not hand.over:
            action = hand.choose(expected, rng)
            expected = hand.step(action)
            assert same(env.step(action), tuple(expected.values()))
    assert kind is Own or env.calls == hand.env.calls


def test_the_wrappers_that_come_with_an_env_are_passed_by() -> None:
    for name in ("classic/tictactoe-v3", "simple_spread"):
        env = make_aec(name)
        env.reset(seed=0)
        direct = Direct(env)
        assert vars(direct) is vars(env.unwrapped)
        assert same(direct.last(), env.last())


def test_an_illegal_move_ends_the_game() -> None:
    raw, env = make_aec("classic/tictactoe-v3"), PettingZooEnv(make_aec("classic/tictactoe-v3"))
    raw.reset()
    env.reset()
    for _ in range(2):
        raw.step(0)
        env.step(0)
    assert env.rewards == raw.rewards == {"player_1": 0, "player_2": -1}
    assert env.terminations == raw.terminations


def test_a_wrapper_that_is_put_in_later_is_seen_from_the_next_reset_on() -> None:
    env = PettingZooEnv(WRAPPINGS["outside"](BaseWrapper))
    env.reset(seed=0)
    env.env.env = Own(env.env.env)
    env.reset(seed=0)
    obs = env.step(0)[0]
    assert same(obs["obs"], env.observe(obs["agent_id"]))


@pytest.mark.parametrize(
    "make", [lambda: make_aec("simple_spread"), lambda: parallel_to_aec(MeadowEnv())]
)
def test_a_converted_env_makes_the_same_calls_and_returns_the_same(make: Any) -> None:
    theirs, ours = (aec_to_parallel(Counting(OrderEnforcingWrapper(make()))) for _ in range(2))
    rng = np.random.default_rng(0)
    for seed in range(2):
        assert same(theirs.reset(seed=seed), ours.reset(seed=seed))
        step = converted_step(ours)
        while theirs.agents:
            actions = {agent: int(rng.integers(3)) for agent in theirs.agents}
            expected, got = theirs.step(actions), step(actions)
            assert same(got, expected)
            assert [list(part) for part in got] == [list(part) for part in expected]
            assert ours.agents == theirs.agents
    assert ours.aec_env.calls == theirs.aec_env.calls


def test_a_parallel_env_of_its_own_is_stepped_by_itself() -> None:
    assert converted_step(MeadowEnv()) is None
    converted = make_parallel("simple_spread")
    converted.reset(seed=0)
    converted.step = converted.step  # somebody's own
    assert converted_step(converted) is None
