"""Checks of how an env behaves: over episodes, under seeds, and towards what it has returned."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.utils import env_checker
from gymnasium.utils.env_checker import data_equivalence

from envpool_py.errors import describe
from envpool_py.sb3.checks.finding import (
    EnvSignatureError,
    Finding,
    error,
    note,
    raised,
    warning,
)
from envpool_py.sb3.checks.values import check_step_result
from envpool_py.spaces import snapshot

#: A whole episode is looked for in so many steps, and so many seconds.
_MOST_STEPS = 1000
_MOST_SECONDS = 10.0
#: Steps of which two runs are compared.
_COMPARED = 20
#: What an env raises that refuses a step after the end of its episode.
_REFUSALS = (gym.error.Error, RuntimeError, AssertionError)


def check_reset_arguments(env: Any) -> Iterator[Finding]:
    """``reset`` takes ``seed`` and ``options``."""
    try:
        parameters = inspect.signature(env.unwrapped.reset).parameters.values()
    except (TypeError, ValueError):  # written in C, say
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [parameter.name for parameter in parameters]
    if "seed" not in names:
        yield Finding("error", "reset() must take a seed", EnvSignatureError)
    if "options" not in names:
        yield warning("reset() takes no options; Gymnasium's reset(seed, options) does")
    for parameter in parameters:
        if parameter.name == "seed" and parameter.default is not None:
            yield warning(
                f"reset(): seed is {parameter.default} by default, so that every reset is alike; it"
                " should be None",
            )


def check_reset_options(env: Any) -> Iterator[Finding]:
    """``reset`` takes options that are empty."""
    try:
        env.reset(options={})
    except TypeError as exception:
        yield warning(f"reset(options={{}}) raised {describe(exception)}")
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield raised("reset(options={})", exception)


def check_episode(env: Any) -> Iterator[Finding]:
    """A whole episode of random actions: every row is right, and what was returned stays."""
    actions = sampler(env)
    deadline = time.monotonic() + _MOST_SECONDS
    kept = [env.reset(seed=0)]
    copies = [_copied(kept[0])]
    calls = ["reset()"]
    for number in range(1, _MOST_STEPS + 1):
        call = f"step() number {number}"
        try:
            result = env.step(actions())
        except Exception as exception:  # noqa: BLE001 - whatever the env raises
            yield raised(call, exception)
            return
        found = list(check_step_result(result, env.observation_space, call))
        yield from found
        changed = _changed(kept[-1], copies[-1])
        if changed:
            yield _reused(changed, calls[-1], call)
        if found or changed:
            return
        obs, _, terminated, truncated, info = result
        kept, copies, calls = [(obs, info)], [_copied((obs, info))], [call]
        if terminated or truncated:
            yield from _check_end(env, actions, kept[0], copies[0], call)
            return
        if time.monotonic() > deadline:
            break
    yield note(f"no episode has ended in {number} steps")


def _check_end(
    env: Any, actions: Callable[[], Any], last: Any, last_copy: Any, call: str
) -> Iterator[Finding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's envs warn of just this
            env.step(actions())
    except _REFUSALS as refusal:
        yield note(f"a step after the end of an episode raises {describe(refusal)}")
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield warning(
            f"a step after the end of an episode raised {describe(exception)};"
            " gymnasium.error.ResetNeeded says what is meant",
        )
    try:
        env.reset()
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield raised("reset() after the end of an episode", exception)
        return
    changed = _changed(last, last_copy)
    if changed:
        yield _reused(changed, call, "reset()")


def _reused(what: str, first: str, second: str) -> Finding:
    return warning(
        f"the {what} that {first} returned was changed by {second}; return a new one each time,"
        " for callers keep them",
    )


def _copied(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return snapshot(pair[0]), snapshot(pair[1])


def _changed(pair: tuple[Any, Any], copies: tuple[Any, Any]) -> str:
    for what, value, before in zip(("observation", "info"), pair, copies, strict=True):
        if not same(value, before):
            return what
    return ""


def check_seeds(env: Any) -> Iterator[Finding]:
    """One seed and the same actions give one run; another seed gives another, if chance plays."""
    if env.spec is not None and env.spec.nondeterministic:
        return
    first = _run(env, 0)
    if not same(first, _run(env, 0)):
        yield warning(
            "reset(seed=0) and the same actions gave two different runs; draw from self.np_random",
        )
    elif same(first, _run(env, 1)) and not same(_run(env, None), _run(env, None)):
        yield warning(
            "reset(seed=0) and reset(seed=1) gave the same run, but reset() gives different ones:"
            " the seed has no effect",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            env_checker.check_reset_seed_determinism(env)
        except Exception as exception:  # noqa: BLE001 - Gymnasium's own verdict, whatever it is
            yield warning(f"Gymnasium: {describe(exception).partition(': ')[2]}")


def _run(env: Any, seed: int | None) -> list[Any]:
    actions = sampler(env)
    obs, _ = env.reset(seed=seed)
    run = [snapshot(obs)]
    for _ in range(_COMPARED):
        obs, reward, terminated, truncated, _ = env.step(actions())
        run.append((snapshot(obs), reward, terminated, truncated))
        if terminated or truncated:
            break
    return run


def check_global_random(env: Any) -> Iterator[Finding]:
    """Neither NumPy's global generator nor Python's is drawn from."""
    before = np.random.get_state(legacy=False)  # noqa: NPY002 - it is what is watched
    python_before = random.getstate()
    _run(env, 0)
    if not same(before, np.random.get_state(legacy=False)):  # noqa: NPY002
        yield warning(
            "the env draws from np.random, which reset(seed=...) does not seed; draw from"
            " self.np_random",
        )
    if python_before != random.getstate():
        yield warning(
            "the env draws from the random module, which reset(seed=...) does not seed; draw from"
            " self.np_random",
        )


def check_pickling(env: Any) -> Iterator[Finding]:
    """What is returned can be sent from a worker process."""
    obs, info = env.reset(seed=0)
    values = {"the observation of reset()": obs, "the info of reset()": info}
    obs, _, _, _, info = env.step(sampler(env)())
    values |= {"the observation of step()": obs, "the info of step()": info}
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception as exception:  # noqa: BLE001 - pickling runs the user's code
            yield warning(
                f"{name} can't be sent from a worker process: {describe(exception)}",
            )


def check_env_fn_pickling(env_fn: Callable[[], Any], i: int) -> Iterator[Finding]:
    """An env_fn can be sent to a worker process."""
    try:
        pickle.loads(cloudpickle.dumps(env_fn))  # noqa: S301 - written a moment ago
    except Exception as exception:  # noqa: BLE001 - pickling runs the user's code
        yield warning(
            f"env {i}: env_fn can't be sent to a worker process, which spawn and forkserver need:"
            f" {describe(exception)}",
        )


def check_render(env: Any) -> Iterator[Finding]:
    """The env renders in its own mode."""
    if not env.metadata.get("render_modes"):
        yield warning("metadata names no render_modes")
    if env.render_mode is None:
        return
    try:
        image = env.render()
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield raised("render()", exception)
        return
    if env.render_mode == "rgb_array" and not (
        isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8
    ):
        yield warning("render() under 'rgb_array' should return a uint8 array (height, width, 3)")


def check_close(env: Any) -> Iterator[Finding]:
    """The env can be closed, twice."""
    for call in ("close()", "a second close()"):
        try:
            env.close()
        except Exception as exception:  # noqa: BLE001 - whatever the env raises
            yield error(f"{call} raised {describe(exception)}")
            return


def sampler(env: Any) -> Callable[[], Any]:
    """Random actions, the same each time, and allowed ones where the env says which are.

    The env's own space is left alone.
    """
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    masks = getattr(env.unwrapped, "action_masks", None)
    if masks is None or not isinstance(space, gym.spaces.Discrete):
        sample: Callable[[], Any] = space.sample
        return sample
    return lambda: space.sample(mask=np.asarray(masks(), dtype=np.int8))


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit; a NaN is equal to itself."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.dtype.kind == "f":
        return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        return bool(data_equivalence(one, other, exact=True))
    except Exception:  # noqa: BLE001 - a user's object may refuse to be compared
        return one is other
