"""make_vec_env, against Stable-Baselines3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.env_util as sb3_env_util
from stable_baselines3.common.monitor import Monitor as Sb3Monitor

import envpool_py.sb3 as own
from envpool_py.sb3.common.env_util import is_wrapped, unwrap_wrapper
from tests.sb3.envs import WalkEnv
from tests.sb3.reference import assert_same, walk_together


class Scaled(gym.RewardWrapper):
    def __init__(self, env: gym.Env, by: float = 2) -> None:
        super().__init__(env)
        self.by = by

    def reward(self, reward: Any) -> float:
        return self.by * float(reward)


CASES: dict[str, dict] = {
    "an id": {"env_id": "CartPole-v1", "n_envs": 3},
    "a callable": {"env_id": WalkEnv, "n_envs": 2, "env_kwargs": {"obs": "dict"}},
    "a wrapper": {
        "env_id": "CartPole-v1",
        "wrapper_class": Scaled,
        "wrapper_kwargs": {"by": 3},
        "monitor_kwargs": {"info_keywords": ()},
    },
    "a function": {
        "env_id": "MountainCar-v0",
        "n_envs": 2,
        "env_kwargs": {"max_episode_steps": 9},
        "wrapper_class": lambda env: Scaled(Scaled(env)),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_theirs(case: str) -> None:
    ours = own.make_vec_env(seed=7, **CASES[case])
    theirs = sb3_env_util.make_vec_env(seed=7, **CASES[case])
    assert isinstance(ours, own.DummyVecEnv)
    actions = [
        [venv.action_space.sample() for _ in range(5)]
        for venv in (ours, theirs)  # seeded alike
    ]
    np.testing.assert_array_equal(*actions)
    for attribute in ("render_mode", "metadata"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    assert_same(ours.reset(), theirs.reset())
    assert walk_together(ours, theirs, steps=60) > 2
    assert ours.env_is_wrapped(Sb3Monitor) == theirs.env_is_wrapped(Sb3Monitor)


def test_the_first_reset_is_seeded_and_start_index_counts(tmp_path: Path) -> None:
    """Theirs takes no notice of start_index in the envs' seeds."""
    whole = own.make_vec_env(WalkEnv, 4, seed=3)
    folder = tmp_path / "deep" / "logs"
    part = own.make_vec_env(WalkEnv, 2, seed=3, start_index=2, monitor_dir=str(folder))
    np.testing.assert_array_equal(whole.reset()[2:], part.reset())
    assert part.get_attr("log")[0] == [(5, None)]
    part.close()
    assert {file.name for file in folder.iterdir()} == {"2.monitor.csv", "3.monitor.csv"}


def test_an_env_that_knows_no_render_mode() -> None:
    class Plain(gym.Env):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
        observation_space = gym.spaces.Discrete(2)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.render_mode = None

    gym.register("EnvpoolPyTests/Plain-v0", Plain)
    try:
        venv = own.make_vec_env("EnvpoolPyTests/Plain-v0")
    finally:
        del gym.registry["EnvpoolPyTests/Plain-v0"]
    assert venv.render_mode is None


def test_wrong_numbers() -> None:
    with pytest.raises(ValueError, match="env_fns is empty"):
        own.make_vec_env("CartPole-v1", 0)
    with pytest.raises(gym.error.NameNotFound, match="env 0: env_fn raised"):
        own.make_vec_env("Nothing-v0")


def test_wrappers_of_one_env() -> None:
    env = Scaled(own.Monitor(WalkEnv()))
    for cls in (own.Monitor, Sb3Monitor):
        assert is_wrapped(env, cls)
        assert unwrap_wrapper(env, cls) is env.env
    assert unwrap_wrapper(env, gym.wrappers.TimeLimit) is None
