"""Checks of spaces: that they are there, and that policies can take them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import passive_env_checker

from envpool_py.sb3.checks.finding import Finding, error, note, raised, warning
from envpool_py.sb3.common.preprocessing import is_image_space_channels_first

_OBS = "observation_space"
_ACTION = "action_space"
#: Pixels that the first convolutions of the usual image policy need, each way.
_SMALLEST_IMAGE = 36


def check_spaces(env: Any) -> Iterator[Finding]:
    """The spaces are there, they are Gymnasium's, and Gymnasium finds nothing wrong with them."""
    checkers: dict[str, Callable[[Any], None]] = {
        _OBS: passive_env_checker.check_observation_space,
        _ACTION: passive_env_checker.check_action_space,
    }
    for name, check in checkers.items():
        try:
            space = getattr(env, name)
        except AttributeError:
            yield error(f"{name}: there is none, but an env must have one")
            continue
        if not isinstance(space, gym.Space):
            yield error(f"{name}: it must be one of gymnasium.spaces, got {space!r:.80}")
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check(space)
            except Exception as exception:  # noqa: BLE001 - Gymnasium's verdict, whatever it is
                yield error(f"{name}: {exception}")
        for each in caught:
            yield warning(f"{name}: {_plain(str(each.message))}")
    if is_goal_env(env):
        yield note("there is a compute_reward(), so this is taken for a goal env")
        if not isinstance(getattr(env, _OBS, None), gym.spaces.Dict):
            yield error(
                f"{_OBS}: a goal env needs a Dict, and there is a compute_reward(); where this is"
                " no goal env, give that method another name"
            )


def is_goal_env(env: Any) -> bool:
    """Whether an env says what its reward would be for other goals."""
    return hasattr(env.unwrapped, "compute_reward")


def check_observation_support(space: gym.Space[Any]) -> Iterator[Finding]:
    """Policies can take the observations."""
    yield from _check_part(space, _OBS)
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            name = f"{_OBS}[{key!r}]"
            if isinstance(part, gym.spaces.Dict):
                yield warning(
                    f"{name}: a Dict within a Dict, which no policy takes; put its entries into the"
                    " outer one"
                )
            else:
                yield from _check_part(part, name)
    elif isinstance(space, gym.spaces.Tuple):
        for n, part in enumerate(space.spaces):
            yield from _check_part(part, f"{_OBS}[{n}]")


def _check_part(space: gym.Space[Any], name: str) -> Iterator[Finding]:
    yield from _check_start(space, name)
    if isinstance(space, gym.spaces.Box):
        yield from _check_box(space, name)
    elif isinstance(space, gym.spaces.Tuple):
        yield warning(f"{name}: a Tuple, which no policy takes; make it a Dict")
    elif isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim > 1:
        yield warning(
            f"{name}: a MultiDiscrete of shape {space.nvec.shape}, of which policies take one"
            " dimension; flatten it by a wrapper"
        )
    elif isinstance(space, gym.spaces.Sequence):
        yield warning(f"{name}: a Sequence, which no policy takes; pad it to a fixed size")
    elif isinstance(space, (gym.spaces.Graph, gym.spaces.OneOf)):
        yield warning(f"{name}: a {type(space).__name__}, which no policy takes")


def check_action_support(space: gym.Space[Any]) -> Iterator[Finding]:
    """Policies can give the actions."""
    yield from _check_start(space, _ACTION)
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim > 1:
        yield warning(
            f"{_ACTION}: a MultiDiscrete of shape {space.nvec.shape}, of which policies give one"
            " dimension; flatten it by a wrapper"
        )
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        yield warning(
            f"{_ACTION}: a {type(space).__name__}, but policies give arrays; flatten it by a"
            " wrapper"
        )
    if not isinstance(space, gym.spaces.Box):
        return
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        yield error(f"{_ACTION}: {space} is unbounded, but continuous actions need finite bounds")
    elif (space.low != -1).any() or (space.high != 1).any():
        yield warning(
            f"{_ACTION}: from {space.low.min():g} to {space.high.max():g}, but policies learn best"
            " from -1 to 1; gymnasium.wrappers.RescaleAction scales it"
        )
    if space.dtype != np.float32:
        yield warning(f"{_ACTION}: dtype is {space.dtype}, but policies give float32")


def _check_start(space: gym.Space[Any], name: str) -> Iterator[Finding]:
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)) and np.any(space.start):
        yield warning(
            f"{name}: a {type(space).__name__} that starts at {space.start}, but policies count"
            " from 0; shift it by a wrapper"
        )


def _check_box(space: gym.spaces.Box, name: str) -> Iterator[Finding]:
    dims = len(space.shape)
    if dims not in (1, 3):
        yield warning(
            f"{name}: shape {space.shape} is neither that of a vector nor that of an image; flatten"
            " it, or use a policy of your own"
        )
    if dims != 3:
        return
    if space.dtype != np.uint8:
        yield warning(
            f"{name}: shape {space.shape} is that of an image, but dtype is {space.dtype} and image"
            " policies take uint8; where it is no image, flatten it"
        )
    if (space.low != 0).any() or (space.high != 255).any():
        yield warning(
            f"{name}: shape {space.shape} is that of an image, but its bounds are not 0 and 255, by"
            " which image policies scale it"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = is_image_space_channels_first(space)
    for each in caught:
        yield warning(f"{name}: {each.message}")
    height, width = space.shape[1:] if first else space.shape[:2]
    if min(height, width) < _SMALLEST_IMAGE:
        yield warning(
            f"{name}: images of {height}x{width} are too small for the usual image policy, which"
            f" needs {_SMALLEST_IMAGE}x{_SMALLEST_IMAGE}; use a features extractor of your own"
        )


def check_same_spaces(envs: list[Any]) -> Iterator[Finding]:
    """All envs have the spaces and the render mode of the first."""
    for name in (_OBS, _ACTION, "render_mode"):
        first = getattr(envs[0], name, None)
        for i, env in enumerate(envs):
            try:
                other = getattr(env, name, None)
            except Exception as exception:  # noqa: BLE001 - a property may raise anything
                yield raised(f"env {i}: {name}", exception)
                break
            if other != first:
                yield error(f"env {i}: {name} is {other}, but that of env 0 is {first}")


def _plain(message: str) -> str:
    """A warning of Gymnasium's without its colours and its prefix."""
    text = message.replace("\x1b[33m", "").replace("\x1b[0m", "")
    return text.removeprefix("WARN: ").rstrip()
