"""Truncated steps that are terminated too."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from envpool_py.wrappers import TruncatedAsTerminated


class Ends(gym.Env):
    """Its step returns the flags it is given as the action."""

    observation_space = gym.spaces.Discrete(1)
    action_space = gym.spaces.MultiBinary(2)

    def step(self, action: Any) -> tuple:
        return 7, 1.5, *action, {"flags": action}


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_terminated_or_truncated(terminated: bool, truncated: bool) -> None:
    flags = (terminated, truncated)
    row = TruncatedAsTerminated(Ends()).step(flags)
    assert row == (7, 1.5, terminated or truncated, truncated, {"flags": flags})


def test_the_end_of_a_time_limit() -> None:
    env = TruncatedAsTerminated(gym.make("Pendulum-v1", max_episode_steps=3))
    env.reset(seed=0)
    flags = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (True, True)]
    assert gym.make(env.spec).spec == env.spec


def test_what_is_no_env() -> None:
    with pytest.raises(
        TypeError, match="env: got 'CartPole-v1', but the wrapper needs a gymnasium"
    ):
        TruncatedAsTerminated("CartPole-v1")
