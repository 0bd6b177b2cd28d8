"""``check_env``: whether the algorithms of Stable-Baselines3 can train on an env.

It finds what Stable-Baselines3's finds; ``envpool-py check`` finds more.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envpool_py.env.spaces import map_tree
from envpool_py.env.validation import OLD_GYM
from envpool_py.sb3.common.preprocessing import parts_of

#: Spaces that no policy supports; their observations are not checked.
_UNSUPPORTED = (spaces.Sequence, spaces.Graph, spaces.OneOf)


class EnvCheckError(AssertionError):
    """An env cannot be trained on."""


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Check an env: spaces, signature of ``reset``, returned values and their types, goals.

    The env is reset and stepped. Without ``skip_render_check`` it is rendered too, and closed.
    NaN and infinite values are warned of, and, with ``warn``, spaces that policies do not support.

    EnvCheckError, an ``AssertionError``, if the env cannot be trained on; TypeError if ``reset``
    does not take a seed.
    """
    _require_kind(env, gym.Env, "an env must inherit from gymnasium.Env")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        text = f"{name}: it must be one of gymnasium.spaces, got {space!r:.80}"
        _require(isinstance(space, gym.Space), text)
    obs_space, action_space = env.observation_space, env.action_space
    is_goal_env = hasattr(env.unwrapped, "compute_reward")
    text = "observation_space: a goal env needs a Dict; if it is none, rename its compute_reward()"
    _require(not is_goal_env or isinstance(obs_space, spaces.Dict), text)
    try:
        env.reset(seed=0)
    except TypeError as error:
        if "seed" in str(error) or "keyword" in str(error):
            raise TypeError(f"reset() must take a seed: {error}") from error
        raise  # of the body of reset
    if warn:
        for doubt in _doubts(obs_space, action_space):
            warnings.warn(doubt, stacklevel=2)
        bounded = not isinstance(action_space, spaces.Box) or action_space.is_bounded()
        _require(bounded, f"action_space: {action_space} is unbounded; actions need bounds")
    parts = parts_of(obs_space).values()
    if any(isinstance(space, _UNSUPPORTED) for space in (obs_space, *parts)):
        return
    _check_returned_values(env, is_goal_env=is_goal_env)
    if not skip_render_check:
        if warn and env.metadata.get("render_modes") is None:
            warnings.warn("metadata has no render_modes", stacklevel=2)
        if env.render_mode:
            env.render()
        env.close()
    nested = any(isinstance(part, (spaces.Dict, spaces.Tuple)) for part in parts)
    if not nested and not isinstance(action_space, spaces.Dict) and not _returns_finite(env):
        warnings.warn("the env returned a NaN or an infinity", stacklevel=2)


def sample_action(env: Any) -> Any:
    """A random action; a legal one where the env has ``action_masks``."""
    space = env.action_space
    masks = getattr(env.unwrapped, "action_masks", None)
    if masks is None or not isinstance(space, spaces.Discrete):
        return space.sample()
    return space.sample(mask=np.asarray(masks(), dtype=np.int8))


def checked_step(env: Any) -> Any:
    """The result of a step with ``sample_action``; EnvCheckError unless it has five values."""
    returned = env.step(sample_action(env))
    names = "obs, reward, terminated, truncated, info"
    is_row = isinstance(returned, tuple) and len(returned) == 5
    got = _kind(returned)
    got += OLD_GYM if got == "4 values" else ""
    _require(is_row, f"step() must return a tuple ({names}), got {got}")
    return returned


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise EnvCheckError(message)


def _require_kind(value: Any, kinds: Any, rule: str) -> None:
    _require(isinstance(value, kinds), f"{rule}, got {_kind(value)}")


def _kind(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__


def _doubts(space: Any, actions: Any) -> Iterator[str]:
    """What policies may not support in the spaces of observations and of actions."""
    parts = parts_of(space)
    kinds = {type(part) for part in (space, *parts.values())}
    for kind in _UNSUPPORTED:
        if kind in kinds:
            yield f"observation_space: {kind.__name__} is not supported by policies"
    named = {f"observation_space[{key!r}]": part for key, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        named = {}
        yield "observation_space: Tuple is not supported by policies; make it a Dict"
    elif any(isinstance(part, spaces.Dict) for part in parts.values()):
        yield "Nested observation spaces are not supported by policies; flatten the inner Dict"
    whole = {"observation_space": space, "action_space": actions}
    for name, one in (whole | named).items():
        if isinstance(one, (spaces.Discrete, spaces.MultiDiscrete)) and np.any(one.start):
            yield f"{name}: {_kind(one)} starts at {one.start}, but policies count from 0"
        if isinstance(one, spaces.MultiDiscrete) and name in whole and len(one.shape) > 1:
            yield f"{name}: MultiDiscrete of shape {one.shape}, but policies need one dimension"
        if isinstance(one, spaces.Box):
            doubts = _doubts_of_actions if name == "action_space" else _doubts_of_obs
            yield from doubts(name, one)
    if isinstance(actions, (spaces.Dict, spaces.Tuple)):
        yield f"action_space: {_kind(actions)} is not supported; policies return arrays"


def _doubts_of_actions(name: str, space: spaces.Box) -> Iterator[str]:
    if (space.low != -1).any() or (space.high != 1).any():
        yield (
            f"{name}: from {space.low.min():g} to {space.high.max():g}, but policies learn"
            " best from -1 to 1; gymnasium.wrappers.RescaleAction scales actions"
        )
    if space.dtype != np.float32:
        yield f"{name}: dtype is {space.dtype}, but policies return float32"


def _doubts_of_obs(name: str, space: spaces.Box) -> Iterator[str]:
    shape = space.shape
    if len(shape) not in (1, 3):
        yield f"{name}: shape {shape} is neither that of a vector nor that of an image; flatten it"
    if len(shape) != 3:
        return
    image = f"{name}: shape {shape} is that of an image, but"
    if space.dtype != np.uint8:
        yield f"{image} dtype is {space.dtype}, and image policies take uint8"
    if (space.low != 0).any() or (space.high != 255).any():
        yield f"{image} its bounds are not 0 and 255, by which image policies scale it"
    smallest = shape.index(min(shape))
    if smallest == 1:
        yield f"{image} the second dimension is the smallest; channels are taken to be the last"
    if min(shape[1:] if smallest == 0 else shape[:2]) < 36:
        yield f"{image} it is smaller than 36x36, which the usual image policy needs"


def _check_returned_values(env: Any, *, is_goal_env: bool) -> None:
    space = env.observation_space
    result = env.reset()
    is_pair = isinstance(result, tuple) and len(result) == 2
    _require(is_pair, f"reset() must return a tuple (obs, info), got {_kind(result)}{OLD_GYM}")
    obs, info = result
    _require_kind(info, dict, "reset() must return an info dict")
    if is_goal_env:
        missing = {"observation", "achieved_goal", "desired_goal"} - space.spaces.keys()
        _require(not missing, f"a goal env needs the keys {sorted(missing)} in its observations")
    _check_obs(obs, space, "reset(): the observation")
    obs, reward, terminated, truncated, info = checked_step(env)
    _check_obs(obs, space, "step(): the observation")
    _require_kind(reward, (float, int), "step(): the reward must be a float")
    _require_kind(terminated, bool, "step(): terminated must be a bool")
    _require_kind(truncated, bool, "step(): truncated must be a bool")
    _require_kind(info, dict, "step(): the info must be a dict")
    if is_goal_env:
        _check_goal(env.unwrapped.compute_reward, obs, reward, info)


def _check_obs(obs: Any, space: Any, what: str) -> None:
    """Check that an observation is in its space; else raise an error that says why."""
    if isinstance(space, spaces.Dict):
        _require_kind(obs, dict, f"{what} must be a dict")
        keys, needed = list(obs), list(space.spaces)
        _require(set(keys) == set(needed), f"{what} has the keys {keys}, but needs {needed}")
        for key, part in space.items():
            try:
                _check_obs(obs[key], part, what)
            except EnvCheckError as error:
                raise EnvCheckError(f"Error while checking key={key}: {error}") from error
        return
    if not isinstance(space, spaces.Tuple):
        _require(not isinstance(obs, tuple), f"{what} must be a single value, got a tuple")
        is_int = isinstance(space, spaces.Discrete)
        right = np.issubdtype(type(obs), np.integer) if is_int else isinstance(obs, np.ndarray)
        _require(right, f"{what} must be {'an int' if is_int else 'an array'}, got {_kind(obs)}")
    if isinstance(obs, np.ndarray):
        expected = f"{what} does not match the space. Expected:"
        _require(obs.shape == space.shape, f"{expected} {space.shape}, actual shape: {obs.shape}")
        dtypes = f"{expected} {space.dtype}, actual dtype: {obs.dtype}"
        _require(np.can_cast(obs.dtype, space.dtype), dtypes)
    if isinstance(space, spaces.Box):
        wrong = np.argwhere((obs < space.low) | (obs > space.high)).tolist()
        places = "; ".join(
            f"Expected: {space.low[k]} <= obs[{','.join(map(str, k))}] <= {space.high[k]},"
            f" actual value: {obs[k]}"
            for k in map(tuple, wrong[:20])
        )
        _require(not wrong, f"{what} has {len(wrong)} invalid indices: {places}")
    _require(space.contains(obs), f"{what} is not in observation_space {space}: {obs!r:.200}")


def _check_goal(compute_reward: Any, obs: Any, reward: Any, info: Any) -> None:
    goals = [obs["achieved_goal"], obs["desired_goal"]]
    one = compute_reward(*goals, info)
    _require(one == reward, f"step() returned the reward {reward}, but compute_reward() {one}")
    pairs = [np.stack([np.atleast_1d(goal)] * 2) for goal in goals]
    both = compute_reward(*pairs, np.array([info, info]))
    shape = np.shape(both)
    _require(shape == (2,), f"compute_reward() of 2 goals has shape {shape}, not (2,)")
    _require(both[0] == reward, f"compute_reward() of 2 goals gives {both[0]}, of one {reward}")


def _returns_finite(env: Any) -> bool:
    values = [env.reset()[0]]
    for _ in range(10):
        obs, reward, terminated, truncated, _ = env.step(sample_action(env))
        values += [obs, reward]
        if terminated or truncated:
            values.append(env.reset()[0])
    leaves: list[Any] = []
    map_tree(leaves.append, tuple(values))
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves)
