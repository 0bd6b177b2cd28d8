"""Envs whose steps cost a known amount of one thing: computing, waiting, or carrying data.

``make`` puts around them what ``gymnasium.make`` puts around any env.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: Steps in an episode; it ends by truncation.
EPISODE = 100


def make(cls: type[Synthetic], *args: Any) -> gym.Env[Any, Any]:
    """Make an env as ``gymnasium.make`` does."""
    spec = gym.envs.registration.EnvSpec(
        f"EnvpoolPyBench/{cls.__name__}-v0",
        entry_point=functools.partial(cls, *args),
        max_episode_steps=EPISODE,
    )
    return gym.make(spec)


class Synthetic(gym.Env[Any, Any]):
    """Costs next to nothing by itself; subclasses say what a step does and what it returns."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, whatever the action."""
        del action
        self._step += 1
        self._work()
        return self._observation(), 1.0, False, False, self._info()

    def _work(self) -> None:
        pass

    def _observation(self) -> Any:
        return np.full(4, self._step, np.float32)

    def _info(self) -> dict[str, Any]:
        return {}


def _vector(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


class Spin(Synthetic):
    """Computes for ``microseconds`` of this thread's CPU time, however long that takes."""

    def __init__(self, microseconds: float) -> None:
        super().__init__(_vector(4))
        self._nanoseconds = round(1000 * microseconds)

    def _work(self) -> None:
        clock = time.thread_time_ns
        end = clock() + self._nanoseconds
        while clock() < end:
            pass


class Sleep(Synthetic):
    """Waits: 1 ms at least and 2.7 ms on average, once in an episode 34 ms.

    The times of an episode's steps are the 100 middle quantiles of a Pareto distribution (shape
    1.5) in an order of this env's own, so that every episode takes as long as any other.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(_vector(4))
        quantiles = (np.arange(EPISODE) + 0.5) / EPISODE
        times = 0.001 * (1 - quantiles) ** (-1 / 1.5)
        self._times = np.random.default_rng(seed).permutation(times).tolist()

    def _work(self) -> None:
        time.sleep(self._times[self._step - 1])


class Image(Synthetic):
    """Returns a new uint8 image every step: a square that moves over a background."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        super().__init__(spaces.Box(0, 255, shape, np.uint8))
        self._background = np.random.default_rng(seed).integers(0, 128, shape, np.uint8)

    def _observation(self) -> NDArray[np.uint8]:
        image = self._background.copy()
        at = self._step % 64
        image[at : at + 8, at : at + 8] = 255
        return image


class Dict(Synthetic):
    """Returns a dict of five leaves of four kinds."""

    def __init__(self) -> None:
        super().__init__(
            spaces.Dict(
                {
                    "position": _vector(3),
                    "velocity": _vector(3),
                    "range": _vector(32),
                    "touch": spaces.MultiBinary(4),
                    "task": spaces.Discrete(10),
                }
            )
        )

    def _observation(self) -> dict[str, Any]:
        now = float(self._step)
        return {
            "position": np.full(3, now, np.float32),
            "velocity": np.full(3, -now, np.float32),
            "range": np.full(32, now, np.float32),
            "touch": np.full(4, self._step % 2, np.int8),
            "task": np.int64(self._step % 10),
        }


class Info(Synthetic):
    """Returns ten scalars in its info: six floats, three ints and a bool."""

    def __init__(self) -> None:
        super().__init__(_vector(4))

    def _info(self) -> dict[str, Any]:
        now = float(self._step)
        return {
            "x": now,
            "y": 2 * now,
            "z": 3 * now,
            "speed": 0.5 * now,
            "cost": -now,
            "energy": 100.0 - now,
            "lap": self._step // 10,
            "lives": 3,
            "score": 7 * self._step,
            "touching": self._step % 2 == 0,
        }
