"""``VecCheckNan``: find the origin of a NaN or an infinity."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.errors import name_ids
from envpool_py.sb3.common.vec_env.base_vec_env import ResultWrapper


class VecCheckNan(ResultWrapper):
    """Checks actions, observations and rewards for NaN and infinity, and names the envs.

    With ``raise_exception`` it raises ``ValueError`` from ``reset`` and ``step``, else it warns,
    with ``warn_once`` only the first time. ``check_inf``: check for infinities as well. Actions
    that are dicts are a NotImplementedError.
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
            raise NotImplementedError("VecCheckNan: actions that are dicts are not checked")
        self.raise_exception = raise_exception
        self.warn_once = warn_once
        self.check_inf = check_inf
        self._warned = False
        self._actions: Any = None
        self._observations: Any = None

    def step_async(self, actions: NDArray[Any]) -> None:
        origin = "the model, whose last observations were"
        self._check({"actions": actions}, origin, self._observations)
        self._actions = actions
        self.venv.step_async(actions)

    def _after_reset(self, obs: Any) -> Any:
        self._observations = obs
        self._check({"observations": obs}, "the envs, at", "reset")
        return obs

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self._observations = obs
        values = {"observations": obs, "rewards": rewards}
        self._check(values, "the envs, whose last actions were", self._actions)
        return obs, rewards, dones, infos

    def check_array_value(self, name: str, value: NDArray[Any]) -> list[tuple[str, str]]:
        """Pairs of ``name`` and ``"inf"`` or ``"nan"``, for what ``value`` ``(n, ...)`` has."""
        return [(name, kind) for name, kind, _ in self._found(name, value)]

    def _found(self, name: str, value: Any) -> Iterator[tuple[str, str, list[int]]]:
        """The name of each array ``(n, ...)`` with such values, their kind and their rows."""
        if isinstance(value, (dict, tuple)):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._found(f"{name}[{key!r}]", part)
            return
        array = np.asarray(value)
        if array.dtype.kind in "fc":
            rows = array.reshape(len(array), -1)
            for kind, test in (("inf", np.isinf), ("nan", np.isnan)):
                wrong = np.flatnonzero(test(rows).any(axis=1)).tolist()
                if wrong and (kind == "nan" or self.check_inf):
                    yield name, kind, wrong

    def _check(self, values: dict[str, Any], origin: str, last: Any) -> None:
        if self._warned and self.warn_once and not self.raise_exception:
            return
        found = [
            f"{name_ids(ids)}: found {kind} in {part}"
            for name, value in values.items()
            for part, kind, ids in self._found(name, value)
        ]
        if found:
            self._warned = True
            message = f"{', '.join(found)}; it comes from {origin} {last}"
            if self.raise_exception:
                raise ValueError(message)
            warnings.warn(message, stacklevel=4)
