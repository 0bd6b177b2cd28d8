"""Checks of what ``reset`` and ``step`` return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.sb3.checks.finding import Finding, error, named

_ARRAYS = (gym.spaces.Box, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
#: How many wrong places of an array are listed.
_LISTED = 10


def check_reset_result(result: Any, space: gym.Space[Any], call: str) -> Iterator[Finding]:
    """``reset`` returned an observation of the space and an info dict."""
    if not isinstance(result, tuple):
        yield error(f"{call} must return a tuple (obs, info), got {named(result)}")
    elif len(result) != 2:
        yield error(f"{call} must return a tuple (obs, info), got {len(result)} values")
    else:
        obs, info = result
        if not isinstance(info, dict):
            yield error(f"{call} must return an info dict, got {named(info)}")
        yield from check_obs(obs, space, f"{call}: the observation")


def check_step_result(result: Any, space: gym.Space[Any], call: str) -> Iterator[Finding]:
    """``step`` returned five values, each of its type."""
    if not isinstance(result, tuple) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, tuple) else named(result)
        yield error(
            f"{call} must return a tuple (obs, reward, terminated, truncated, info), got {got}",
        )
        return
    obs, reward, *flags, info = result
    yield from check_obs(obs, space, f"{call}: the observation")
    if not isinstance(reward, (float, int)):
        yield error(
            f"{call}: the reward must be a float, got {named(reward)}; float(reward) makes one",
        )
    elif not np.isfinite(reward):
        yield error(f"{call}: the reward is {reward}")
    for name, flag in zip(("terminated", "truncated"), flags, strict=True):
        if not isinstance(flag, bool):
            yield error(f"{call}: {name} must be a bool, got {named(flag)}; bool({name}) makes one")
    if not isinstance(info, dict):
        yield error(f"{call}: the info must be a dict, got {named(info)}")


def check_obs(
    obs: Any, space: gym.Space[Any], name: str, *, bounds: bool = True
) -> Iterator[Finding]:
    """An observation belongs to its space; if not, why.

    Args:
        obs: the observation.
        space: where it should belong.
        name: what to call it.
        bounds: False: values may be out of bounds.
    """
    found = list(_problems(obs, space, name, bounds=bounds))
    if bounds and not found and not space.contains(obs):
        found = [f"{name} is not in observation_space {space}: {obs!r:.200}"]
    for message in found:
        yield error(message)


def _problems(obs: Any, space: gym.Space[Any], name: str, *, bounds: bool) -> Iterator[str]:
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(obs, dict):
            yield f"{name} must be a dict, got {named(obs)}"
        elif obs.keys() != space.spaces.keys():
            yield f"{name} has the keys {list(obs)}, but observation_space has {list(space.spaces)}"
        else:
            for key, part in space.items():
                yield from _problems(obs[key], part, f"{name}[{key!r}]", bounds=bounds)
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            yield f"{name} must be a tuple of {len(space.spaces)}, got {named(obs)}"
        else:
            for n, part in enumerate(space.spaces):
                yield from _problems(obs[n], part, f"{name}[{n}]", bounds=bounds)
    elif isinstance(obs, tuple) and isinstance(space, (gym.spaces.Discrete, *_ARRAYS)):
        yield f"{name} must be a single value, got a tuple"
    elif isinstance(space, gym.spaces.Discrete):
        if not isinstance(obs, (int, np.integer)) or isinstance(obs, bool):
            yield f"{name} must be an int, got {named(obs)}"
    elif isinstance(space, _ARRAYS):
        yield from _array_problems(obs, space, name, bounds=bounds)


def _array_problems(obs: Any, space: Any, name: str, *, bounds: bool) -> Iterator[str]:
    if not isinstance(obs, np.ndarray):
        if not (isinstance(obs, np.generic) and space.shape == ()):
            yield f"{name} must be a NumPy array, got {named(obs)}"
    elif obs.shape != space.shape:
        yield f"{name} has shape {obs.shape}, but observation_space has {space.shape}"
    elif not np.can_cast(obs.dtype, space.dtype):
        yield (
            f"{name} has dtype {obs.dtype}, but observation_space has {space.dtype};"
            f" .astype(np.{space.dtype}) casts it"
        )
    elif obs.dtype.kind == "f" and np.isnan(obs).any():
        places = np.argwhere(np.isnan(obs)).tolist()
        yield f"{name} is NaN at {', '.join(map(str, places[:_LISTED]))}"
    elif bounds and isinstance(space, gym.spaces.Box):
        wrong = np.argwhere((obs < space.low) | (obs > space.high))
        if len(wrong):
            lines = [
                f"{space.low[place]} <= obs{list(place)} <= {space.high[place]}, got {obs[place]}"
                for place in map(tuple, wrong[:_LISTED].tolist())
            ]
            lines += ["..."] if len(wrong) > _LISTED else []
            yield f"{name} is out of bounds at {len(wrong)} places: {'; '.join(lines)}"


def check_goal(env: Any, step_result: Any) -> Iterator[Finding]:
    """A goal env's reward is what ``compute_reward`` says, of one goal and of many."""
    obs, reward, _, _, info = step_result
    missing = [key for key in ("observation", "achieved_goal", "desired_goal") if key not in obs]
    if missing:
        yield error(f"the observation has no {', '.join(missing)}, which a goal env needs")
        return
    achieved, desired = obs["achieved_goal"], obs["desired_goal"]
    compute = env.unwrapped.compute_reward
    computed = compute(achieved, desired, info)
    if computed != reward:
        yield error(f"step() gave the reward {reward}, but compute_reward() {computed}")
        return
    goals = [np.stack([np.atleast_1d(goal)] * 2) for goal in (achieved, desired)]
    many = compute(*goals, np.array([info, info]))
    if np.shape(many) != (2,):
        yield error(f"compute_reward() of 2 goals has shape {np.shape(many)}, not (2,)")
    elif many[0] != reward:
        yield error(f"compute_reward() of 2 goals gives {many[0]}, but of the first alone {reward}")
