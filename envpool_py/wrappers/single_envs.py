"""Wrappers of single envs: discrete actions, truncation as termination, infos of Atari games."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class _DiscreteActions(
    gym.ActionWrapper[ObsType, ActType, NDArray[Any]], gym.utils.RecordConstructorArgs
):
    """The base class: the env's action space has the class ``kind``, and one dimension."""

    kind: type[gym.Space[Any]]
    _space: Any

    def __init__(self, env: gym.Env[ObsType, NDArray[Any]], **arguments: Any) -> None:
        _require_env(env)
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.ActionWrapper.__init__(self, env)
        space, kind = env.action_space, self.kind.__name__
        if not isinstance(space, self.kind):
            name = type(self).__name__
            raise TypeError(f"action_space: got {space}, but {name} needs a {kind}")
        if len(space.shape or ()) != 1:
            raise ValueError(f"action_space: has shape {space.shape}, but needs one dimension")


class ContinuousToDiscrete(_DiscreteActions[ObsType, NDArray[Any]]):
    """Replaces a one-dimensional Box by a MultiDiscrete of evenly spaced points.

    Along each dimension the first choice is its ``low``, the last its ``high``; a dimension with a
    single choice has its ``low``. In a Box of integers the points are rounded to integers.

    Args:
        env: an environment whose action space is a Box of shape ``(d,)`` with finite bounds.
        action_per_dim: number of choices in each dimension: one for all, or ``d`` of them.

    Attributes:
        mesh: list of ``d`` arrays, the points of each dimension.

    Raises:
        TypeError: ``env`` is no ``gymnasium.Env``, its action space is no Box, or
            ``action_per_dim`` are no integers.
        ValueError: the Box has not one dimension or no finite bounds, ``action_per_dim`` has
            another length, or a number below 1.
    """

    kind = gym.spaces.Box

    def __init__(
        self, env: gym.Env[ObsType, NDArray[Any]], action_per_dim: int | Sequence[int]
    ) -> None:
        super().__init__(env, action_per_dim=action_per_dim)
        space: Any = env.action_space
        if not space.is_bounded():
            raise ValueError(f"action_space: {space} has no finite bounds to place points between")
        choices = _integers(action_per_dim, "action_per_dim")
        if choices.ndim == 0:
            choices = np.full(space.shape, choices)
        if choices.shape != space.shape:
            text = f"has shape {choices.shape}, but action_space has {space.shape}"
            raise ValueError(f"action_per_dim: {text}")
        if (choices < 1).any():
            raise ValueError(f"action_per_dim: got {choices.min()}, but each must be 1 or more")
        bounds = zip(space.low, space.high, choices.tolist(), strict=True)
        self.mesh = [_points(*each, space.dtype) for each in bounds]
        self._points = np.concatenate(self.mesh)
        self._starts = np.cumsum(choices) - choices
        self._choices = choices
        self.action_space = gym.spaces.MultiDiscrete(choices)

    def action(self, action: ArrayLike) -> NDArray[Any]:
        """Return the point of the Box that ``action`` chooses: ``(d,)``, of the Box's dtype.

        ``action`` are integers ``(d,)``, or ``(k, d)`` for ``k`` actions. TypeError if they are no
        integers, ValueError for another shape, or a choice out of range.
        """
        choice = _integers(action, "action")
        dims = self._choices.shape
        if choice.ndim not in (1, 2) or choice.shape[-1:] != dims:
            raise ValueError(f"action: has shape {choice.shape}, but action_space has {dims}")
        wrong = (choice < 0) | (choice >= self._choices)
        if wrong.any():
            dim = int(np.argwhere(wrong)[0, -1])
            text = f"dimension {dim}, but it has choices 0 to {self._choices[dim] - 1}"
            raise ValueError(f"action: got {choice[wrong][0]} in {text}")
        points: NDArray[Any] = self._points[self._starts + choice]
        return points


class MultiDiscreteToDiscrete(_DiscreteActions[ObsType, np.int64]):
    """Numbers all combinations of a one-dimensional MultiDiscrete in one Discrete action space.

    The last dimension changes fastest: of ``MultiDiscrete([2, 3])``, action 4 is ``[1, 1]``.
    TypeError if ``env`` is no ``gymnasium.Env``, or its action space no MultiDiscrete; ValueError
    if that has not the shape ``(d,)``, or more combinations than an int64 can number.
    """

    kind = gym.spaces.MultiDiscrete

    def __init__(self, env: gym.Env[ObsType, NDArray[Any]]) -> None:
        super().__init__(env)
        self._space = env.action_space
        self._total = total = math.prod(self._space.nvec.tolist())
        if total > np.iinfo(np.int64).max:
            text = f"has {total} combinations, more than an int64 can number"
            raise ValueError(f"action_space: {text}")
        self.action_space = gym.spaces.Discrete(total)

    def action(self, action: ArrayLike) -> NDArray[Any]:
        """Return the combination with this number: ``(d,)``, of the MultiDiscrete's dtype.

        ``action`` is an integer, or ``(k,)`` of them, for a result ``(k, d)``. TypeError if they
        are no integers, ValueError for more dimensions, or a number out of range.
        """
        number = _integers(action, "action")
        if number.ndim > 1:
            raise ValueError(f"action: has shape {number.shape}, but needs () or (k,)")
        wrong = (number < 0) | (number >= self._total)
        if wrong.any():
            known = f"actions 0 to {self._total - 1}"
            raise ValueError(f"action: got {number[wrong][0]}, but action_space has {known}")
        combination = np.stack(np.unravel_index(number, self._space.nvec), axis=-1)
        combination += self._space.start
        return combination.astype(self._space.dtype)


class TruncatedAsTerminated(
    gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs
):
    """Sets ``terminated`` in every truncated step; ``truncated`` does not change.

    For algorithms that must treat the end of a time limit as the end of the task. TypeError if
    ``env`` is no ``gymnasium.Env``.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        _require_env(env)
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the env; ``terminated`` is true if ``truncated`` is."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info


class AtariInfo(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Adds EnvPool's ``lives``, ``reward`` and ``terminated`` to the infos of an Atari game.

    Wrappers around it may clip rewards and end episodes at lost lives; the infos still have the
    reward of the game and the end of the game. Put it around the frame skip, and within these::

        def end_at_lost_lives(env):
            return EpisodicLifeEnv(AtariInfo(gym.wrappers.AtariPreprocessing(env)))

    TypeError if ``env`` is no Atari game of ``ale_py``.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        self._ale: Any = getattr(getattr(env, "unwrapped", None), "ale", None)
        if self._ale is None:
            raise TypeError(f"env: got {env!r}, but AtariInfo needs an Atari game of ale_py")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(self, **kwargs: Any) -> tuple[ObsType, dict[str, Any]]:
        """Reset the game."""
        obs, info = self.env.reset(**kwargs)
        return obs, self._with(info, 0.0, terminated=False)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the game."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with(info, reward, terminated=terminated)

    def _with(self, info: dict[str, Any], reward: Any, *, terminated: bool) -> dict[str, Any]:
        """Return the info with EnvPool's entries; ``terminated`` is 0 or 1, as there."""
        own = {"lives": self._ale.lives(), "reward": float(reward), "terminated": int(terminated)}
        return {**info, **own}


def _require_env(env: object) -> None:
    if not isinstance(env, gym.Env):
        raise TypeError(f"env: got {env!r}, but the wrapper needs a gymnasium.Env")


def _integers(value: ArrayLike, name: str) -> NDArray[np.integer[Any]]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: got {value!r}, but it must be integers")
    return array


def _points(low: Any, high: Any, count: int, dtype: Any) -> NDArray[Any]:
    points = np.linspace(low, high, count)
    return (np.rint(points) if np.issubdtype(dtype, np.integer) else points).astype(dtype)
