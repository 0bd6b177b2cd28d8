"""``VecCheckNan``: says where a NaN or an infinity comes from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.errors import name_ids
from envpool_py.sb3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn, VecEnvWrapper


class VecCheckNan(VecEnvWrapper):
    """Looks for NaN and infinity in actions, observations and rewards, and names the envs.

    Args:
        venv: the VecEnv to watch.
        raise_exception: raise ``ValueError``; else warn.
        warn_once: warn the first time only.
        check_inf: look for infinities as well.

    Raises:
        NotImplementedError: the actions are dicts.
    """

    def __init__(
        self,
        venv: Any,
        raise_exception: bool = False,
        warn_once: bool = True,
        check_inf: bool = True,
    ) -> None:
        super().__init__(venv)
        if isinstance(venv.action_space, gym.spaces.Dict):
            raise NotImplementedError("VecCheckNan: actions that are dicts are not looked into")
        self.raise_exception = raise_exception
        self.warn_once = warn_once
        self.check_inf = check_inf
        self._warned = False
        self._actions: Any = None
        self._observations: Any = None

    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations.

        Raises:
            ValueError: there is a NaN or infinity, and ``raise_exception``.
        """
        self._observations = self.venv.reset()
        self._check("the envs, at reset", observations=self._observations)
        return self._observations

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs.

        Args:
            actions: ``(num_envs, *shape)``.

        Raises:
            ValueError: there is a NaN or infinity, and ``raise_exception``.
        """
        self._check(
            f"the model, whose last observations were {self._observations}", actions=actions
        )
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step begun; return ``obs, rewards, dones, infos``.

        Raises:
            ValueError: there is a NaN or infinity, and ``raise_exception``.
        """
        obs, rewards, dones, infos = self.venv.step_wait()
        self._observations = obs
        self._check(
            f"the envs, whose last actions were {self._actions}",
            observations=obs,
            rewards=rewards,
        )
        return obs, rewards, dones, infos

    def check_array_value(self, name: str, value: NDArray[Any]) -> list[tuple[str, str]]:
        """What is wrong with one array.

        Args:
            name: what to call it.
            value: its first axis counts envs.

        Returns:
            Pairs of ``name`` and ``"inf"`` or ``"nan"``; none where all is well.
        """
        return [(name, kind) for kind, _ in self._found(value)]

    def _found(self, value: Any) -> Iterator[tuple[str, list[int]]]:
        array = np.asarray(value)
        if array.dtype.kind not in "fc":
            return
        tests = [("inf", np.isinf)] if self.check_inf else []
        for kind, test in (*tests, ("nan", np.isnan)):
            bad = test(array)
            if bad.any():
                rows = bad.reshape(len(bad), -1).any(axis=1) if bad.ndim else bad[None]
                yield kind, np.flatnonzero(rows).tolist()

    def _check(self, origin: str, **values: Any) -> None:
        if self._warned and self.warn_once and not self.raise_exception:
            return
        found = [
            f"{name_ids(ids)}: found {kind} in {part}"
            for name, value in values.items()
            for part, array in _parts(name, value)
            for kind, ids in self._found(array)
        ]
        if not found:
            return
        self._warned = True
        message = f"{', '.join(found)}; it comes from {origin}"
        if self.raise_exception:
            raise ValueError(message)
        warnings.warn(message, stacklevel=4)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a tree, and what they are called."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(f"{name}.{key}", part)
    elif isinstance(value, tuple):
        for n, part in enumerate(value):
            yield from _parts(f"{name}.{n}", part)
    else:
        yield name, value
