"""Checks of a VecEnv: of what it returns, and of how it behaves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py.errors import describe
from envpool_py.sb3.checks.behaviour import same
from envpool_py.sb3.checks.finding import Finding, error, has_errors, named, raised, warning
from envpool_py.sb3.checks.values import check_obs
from envpool_py.spaces import snapshot

_STEPS = 200
_METHODS = (
    "reset",
    "step_async",
    "step_wait",
    "step",
    "close",
    "seed",
    "get_attr",
    "set_attr",
    "env_method",
    "env_is_wrapped",
)


def is_vec_env(value: Any) -> bool:
    """Whether this is a VecEnv, of whatever library: it steps in two parts."""
    return all(hasattr(value, name) for name in ("num_envs", "step_async", "step_wait"))


def check_interface(venv: Any) -> Iterator[Finding]:
    """It has the methods, spaces of single envs, and envs that are alike."""
    for name in _METHODS:
        if not callable(getattr(venv, name, None)):
            yield error(f"there is no method {name}")
    if not isinstance(venv.num_envs, int) or venv.num_envs < 1:
        yield error(f"num_envs is {venv.num_envs!r}, but an int of 1 or more is needed")
    for name in ("observation_space", "action_space"):
        space = getattr(venv, name, None)
        if not isinstance(space, gym.Space):
            yield error(f"{name} is {space!r:.80}, but a space is needed")
    if not hasattr(venv, "render_mode"):
        yield warning("there is no render_mode, for which wrappers ask")


def check_envs(venv: Any) -> Iterator[Finding]:
    """The envs within have equal spaces; one wrapped by a VecEnvWrapper may have others."""
    for name in ("observation_space", "action_space"):
        try:
            found = venv.get_attr(name)
        except Exception as exception:  # noqa: BLE001 - whatever the VecEnv raises
            yield warning(f"get_attr({name!r}) raised {describe(exception)}")
            continue
        for i, space in enumerate(found):
            if space != found[0]:
                yield error(
                    f"env {i}: {name} is {space}, but that of env 0 is {found[0]}",
                )
                break


def check_steps(venv: Any) -> Iterator[Finding]:
    """Rows are right at resets, at steps and at the ends of episodes, and stay as they were."""
    actions = copy.deepcopy(venv.action_space)
    actions.seed(0)
    try:
        venv.seed(0)
        obs = venv.reset()
    except Exception as exception:  # noqa: BLE001 - whatever the VecEnv raises
        yield raised("reset()", exception)
        return
    found = list(_check_rows(venv, obs, "reset()"))
    if len(getattr(venv, "reset_infos", [None] * venv.num_envs)) != venv.num_envs:
        found.append(error(f"there are {len(venv.reset_infos)} reset_infos"))
    for number in range(1, _STEPS + 1):
        yield from found
        if has_errors(found):
            return
        before = snapshot(obs)
        call = f"step() number {number}"
        try:
            result = venv.step(np.array([actions.sample() for _ in range(venv.num_envs)]))
        except Exception as exception:  # noqa: BLE001 - whatever the VecEnv raises
            yield raised(call, exception)
            return
        found = list(_check_step(venv, result, call))
        if not same(obs, before):
            yield warning(f"observations were changed by {call}; algorithms keep them")
            return
        if not has_errors(found):
            obs = result[0]
            if result[2].any():
                yield from found
                return


def _check_step(venv: Any, result: Any, call: str) -> Iterator[Finding]:
    n = venv.num_envs
    if not isinstance(result, tuple) or len(result) != 4:
        got = f"{len(result)} values" if isinstance(result, tuple) else named(result)
        yield error(f"{call} must return a tuple (obs, rewards, dones, infos), got {got}")
        return
    obs, rewards, dones, infos = result
    yield from _check_rows(venv, obs, call)
    for name, value, kinds in (("rewards", rewards, "f"), ("dones", dones, "b")):
        if not isinstance(value, np.ndarray) or value.shape != (n,):
            got = f"shape {value.shape}" if isinstance(value, np.ndarray) else named(value)
            yield error(f"{call}: {name} must be an array of shape ({n},), got {got}")
            return
        if value.dtype.kind not in kinds:
            yield error(f"{call}: {name} have dtype {value.dtype}")
            return
    if not np.isfinite(rewards).all():
        yield error(f"{call}: the rewards are {rewards}")
    if not isinstance(infos, (list, tuple)) or len(infos) != n:
        yield error(f"{call}: infos must be a list of {n} dicts, got {named(infos)}")
        return
    for i, (info, done) in enumerate(zip(infos, dones, strict=True)):
        if not isinstance(info, dict):
            yield error(f"{call}: env {i}: the info must be a dict, got {named(info)}")
        elif done and "terminal_observation" not in info:
            yield error(f"{call}: env {i} is done, but has no terminal_observation")
        elif done:
            yield from check_obs(
                info["terminal_observation"],
                venv.observation_space,
                f"{call}: env {i}: terminal_observation",
                bounds=False,
            )
            if "TimeLimit.truncated" not in info:
                yield warning(
                    f"{call}: env {i} is done, and its info does not say TimeLimit.truncated,"
                    " without which a truncated episode counts as terminated",
                )


def _check_rows(venv: Any, obs: Any, call: str) -> Iterator[Finding]:
    found = list(_lengths(obs, venv.observation_space, venv.num_envs, f"{call}: observations"))
    yield from found
    if not found:
        for i in range(venv.num_envs):
            # Bounds may be those of the envs still: VecNormalize leaves them as they are.
            yield from check_obs(
                _row(obs, i), venv.observation_space, f"{call}: env {i}: obs", bounds=False
            )


def _lengths(obs: Any, space: Any, n: int, name: str) -> Iterator[Finding]:
    if isinstance(space, gym.spaces.Dict) and isinstance(obs, dict):
        if obs.keys() != space.spaces.keys():
            yield error(f"{name} have the keys {list(obs)}, not {list(space.spaces)}")
            return
        for key, part in space.items():
            yield from _lengths(obs[key], part, n, f"{name}[{key!r}]")
    elif isinstance(space, gym.spaces.Tuple) and isinstance(obs, tuple):
        for k, part in enumerate(space.spaces):
            yield from _lengths(obs[k], part, n, f"{name}[{k}]")
    elif not isinstance(obs, np.ndarray) or len(obs) != n:
        got = f"shape {obs.shape}" if isinstance(obs, np.ndarray) else named(obs)
        yield error(f"{name} must be arrays of {n} rows, got {got}")


def _row(obs: Any, i: int) -> Any:
    if isinstance(obs, dict):
        return {key: _row(part, i) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_row(part, i) for part in obs)
    return obs[i]
