"""What the tests of the command line name as ``module:callable``, and envs with ids."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.support.envs import CountEnv, SpaceEnv

not_callable = 5


def scaled(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, lambda reward: 10.0 * float(reward))


def shifted(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, lambda reward: float(reward) + 1.0)


class InThirdEpisode(gym.Wrapper):
    """Misbehaves in its third episode."""

    resets = steps = 0

    def reset(self, **kwargs: Any) -> tuple:
        self.resets, self.steps = self.resets + 1, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple:
        self.steps += 1
        if self.resets == 3:
            self.misbehave()
        return self.env.step(action)


class Stuck(InThirdEpisode):
    """Hangs for good in the first step, and leaves a mark then."""

    def misbehave(self) -> None:
        (Path(os.environ["ENVPOOL_PY_MARKS"]) / f"{os.getpid()}").touch()
        while True:
            signal.pause()


class Raising(InThirdEpisode):
    """Raises in the second step."""

    def misbehave(self) -> None:
        if self.steps == 2:
            raise ValueError("boom")


def alternate(obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
    """Push the cart to where the pole leans."""
    assert len(obs) == len(env_ids)
    return (obs[:, 2] > 0).astype(np.int64)


def refuses(obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
    """Say what it was called with."""
    raise LookupError(f"got {len(obs)} rows, of envs {env_ids.tolist()}")


class Parity:
    """A policy that is made of the pool and the seed."""

    def __init__(self, pool: Any, seed: int) -> None:
        self.num_actions = [int(space.n) for space in pool.action_space]
        self.seed = seed

    def __call__(self, obs: np.ndarray, env_ids: np.ndarray) -> list[int]:
        del obs
        return [(self.seed + i) % self.num_actions[i] for i in env_ids]


class Unmakeable:
    def __init__(self, *_: Any) -> None:
        raise RuntimeError("no such weights")


class Interrupts:
    """Interrupts its own process at its ninth call, as Ctrl-C would."""

    calls = 0

    def __init__(self, *_: Any) -> None:
        pass

    def __call__(self, _: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.calls == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return 0 * env_ids


def stumbles(obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
    """Raise in the third episode."""
    if (obs[:, 1] == 2).any():
        raise LookupError("stumbled")
    return 0 * env_ids


class Different(CountEnv):
    """No two of them have the same observation space."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Different.made += 1
        self.observation_space = spaces.Box(-Different.made, 10**6, (3,), np.int64)


def space_env(name: str = "dict", length: int = 3) -> gym.Env:
    return SpaceEnv(0, name, length)


def count_env(length: int = 4, fail: bool = False) -> gym.Env:
    if fail:
        raise ValueError("asked to fail\nand this line is not shown")
    return CountEnv(0, length)


def with_size(size: object) -> gym.Env:
    return CountEnv(0, len(str(size)))


def broken_env() -> gym.Env:
    return count_env(fail=True)


MAKERS = {"Count": count_env, "Space": space_env, "Different": Different, "Broken": broken_env}
for kind, make in MAKERS.items():
    if f"EnvpoolPyTests/{kind}-v0" not in gym.registry:
        gym.register(f"EnvpoolPyTests/{kind}-v0", entry_point=make, order_enforce=False)
