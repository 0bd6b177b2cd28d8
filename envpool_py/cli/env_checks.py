"""The checks of ``envpool-py check``: whether agents can be trained on an env."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import random
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.utils import env_checker, passive_env_checker

from envpool_py.cli.naming import NO_PETTINGZOO
from envpool_py.env import validation
from envpool_py.env.failures import describe, place_of
from envpool_py.errors import EnvError, EnvTimeoutError
from envpool_py.pool.backend_choice import disturb
from envpool_py.pool.pool_classes import ShmemVectorEnv
from envpool_py.sb3.common.env_checker import check_env, checked_step

#: A whole episode is stepped, up to so many steps and seconds.
_MOST_STEPS, _MOST_SECONDS = 1000, 10.0


class Finding(NamedTuple):
    """A finding: an "error" makes training impossible, a "warning" may, a "note" does not."""

    level: str
    message: str


#: The name of a stage, and its findings; None: it begins.
Stage: TypeAlias = tuple[str, list[Finding] | None]
_Check: TypeAlias = tuple[str, Callable[[Any], Iterable[Finding]]]


def stages_beside(env_fns: Sequence[Callable[[], Any]], limit: float) -> Iterator[Stage]:
    """As ``stages``, in another process where fork is, in which each may take ``limit`` seconds."""
    if "fork" not in multiprocessing.get_all_start_methods():
        yield from stages(env_fns)
        return
    make = functools.partial(_Stages, env_fns)
    stage = _MAKING
    with ShmemVectorEnv([make], context="fork", step_timeout=limit) as pool:
        try:
            while found := pool.call("next_stage")[0]:
                stage, _ = found
                yield found
        except EnvError as error:
            end = re.sub(r"^.* process (was killed by )?| \(.*", "", error.message)
            if isinstance(error, EnvTimeoutError):
                end = f"it has not ended within {limit:g} seconds"
            place = "".join(re.findall(r" \((\S+:\d+)\)", error.message))
            yield stage, [Finding("error", f"{end} at {place}" if place else end)]
        except KeyboardInterrupt:
            worker: Any = pool.workers[0]
            os.kill(worker.process.pid, signal.SIGINT)
            with contextlib.suppress(EnvError):
                yield from pool.get_env_attr("latest")
            raise


class _Stages(gym.Env[Any, Any]):
    """The stages as an env of a pool, whose process they are in."""

    observation_space: Any = None
    action_space: Any = None

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        self._stages = stages(env_fns)
        self.latest: Any = None

    def next_stage(self) -> Any:
        """Return what ``stages`` yields next; None: that was the last one."""
        self.latest = next(self._stages, None)
        return self.latest


def stages(env_fns: Sequence[Callable[[], Any]]) -> Iterator[Stage]:
    """Check the envs, and close them; an error that an earlier stage has found is a note."""
    envs: list[Any] = []
    try:
        yield _MAKING, None
        yield _MAKING, list(_make_envs(env_fns, envs))
        found_by: dict[str, str] = {}  # the stage that has found an error, by its text
        *checks, closing = _CHECKS.items()
        beside = functools.partial(_check_beside, envs[1:])
        every: list[_Check] = [*checks, ("two at once", beside), closing]
        for name, check in every if envs else ():
            findings: list[Finding] = []
            yield name, None
            with contextlib.suppress(Exception):  # "spaces" says what is wrong with it
                envs[0].action_space.seed(0)  # so that a second check finds the same
            try:
                findings += check(envs[0])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the env raises
                findings.append(Finding("error", _text_of(error)))
            except KeyboardInterrupt as error:
                yield name, [Finding("error", f"it ran until Ctrl-C{place_of(error)}")]
                raise
            for k, (level, text) in enumerate(findings):
                if level == "error" and found_by.setdefault(text, name) != name:
                    why = f"not checked, because of the error in {found_by[text]!r}"
                    findings[k] = Finding("note", why)
            yield name, findings
    finally:
        for env in envs:
            with contextlib.suppress(Exception):  # the last stage says it
                env.close()


def _make_envs(env_fns: Sequence[Callable[[], Any]], envs: list[Any]) -> Iterator[Finding]:
    """Append the envs to ``envs``; check that they are alike, and not the same instance."""
    for i, env_fn in enumerate(env_fns):
        try:
            env = env_fn()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the env_fn raises
            yield Finding("error", f"env {i}: env_fn raised {_text_of(error)}")
            return
        if not isinstance(env, gym.Env):
            got = type(env).__name__ + validation.OLD_GYM * hasattr(env, "step")
            if hasattr(env, "possible_agents"):
                got = f"{type(env).__name__}, an env of PettingZoo; {NO_PETTINGZOO}"
            yield Finding("error", f"env {i}: env_fn must return an env, got {got}")
            return
        if any(env.unwrapped is other.unwrapped for other in envs):
            yield Finding("error", f"env {i}: env_fn returned the instance of another env")
        envs.append(env)
    # To load it here would give a class of __main__ copies of its attributes.
    text = "env_fn can't be sent to a process: "
    yield from _outcome("warning", cloudpickle.dumps, env_fns[0], prefix=text)
    for name in ("observation_space", "action_space", "render_mode"):
        first, *others = (getattr(env, name, None) for env in envs)
        for i, value in enumerate(others, 1):
            if value != first:
                text = f"env {i}: {name} is {value}, but that of env 0 is {first}"
                yield Finding("error", text)


def _text_of(error: BaseException) -> str:
    return describe(error).partition("\n")[0] + place_of(error)


def _outcome(
    level: str, function: Callable[..., Any], *args: Any, prefix: str = ""
) -> Iterator[Finding]:
    """The warnings of a call, and, at this level, the exception that it raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - whatever the env raises
            yield Finding(level, prefix + _text_of(error))
    for each in caught:
        text = re.sub(r"\x1b\[\d+m(WARN: )?", "", str(each.message))  # without Gymnasium's colours
        yield Finding("warning", prefix + text.strip())


def _check_spaces(env: Any) -> Iterator[Finding]:
    yield from _outcome("error", passive_env_checker.check_observation_space, env.observation_space)
    yield from _outcome("error", passive_env_checker.check_action_space, env.action_space)


def _check_options(env: Any) -> Iterator[Finding]:
    env.reset()  # raises what is no matter of options
    yield from _outcome("warning", env_checker.check_reset_options, env)


def _check_episode(env: Any) -> list[Finding]:
    """Check that every value is valid and picklable, and that no later call changes it."""
    deadline = time.monotonic() + _MOST_SECONDS
    call, returned, over = "reset()", env.reset(seed=0), False
    for number in range(1, _MOST_STEPS + 2):  # the last is the reset after the last step
        try:
            before = [cloudpickle.dumps(value) for value in returned]
        except Exception as error:  # noqa: BLE001 - pickling runs the user's code
            text = f"{call}: a value can't be sent from a worker process: {describe(error)}"
            return [Finding("warning", text)]
        last_call, last = call, returned
        if over:
            call, returned = "reset()", env.reset()
        elif number > _MOST_STEPS or time.monotonic() > deadline:
            break
        else:
            call = f"step() number {number}"
            obs, reward, terminated, truncated, info = checked_step(env)
            wrong = validation.complaint(env.observation_space, obs)
            wrong = wrong or validation.reward_complaint(reward)
            if wrong:
                return [Finding("error", f"{call}: {wrong}")]
            returned = (obs, info)
        for name, value, pickled in zip(("observation", "info"), last, before, strict=True):
            if cloudpickle.dumps(value) != pickled:
                text = f"the {name} that {last_call} returned was changed by {call}; return a copy"
                return [Finding("warning", text)]
        if over:
            return []
        over = terminated or truncated
    return [Finding("note", f"no episode has ended in {number - 1} steps")]


def _check_seeds(env: Any) -> Iterator[Finding]:
    """Check that equal seeds give equal runs, and that other seeds give other runs."""
    if env.spec is not None and env.spec.nondeterministic:
        return
    if _run(env, 0) != _run(env, 0):
        text = "reset(seed=0) and the same actions gave two different runs; draw from np_random"
        yield Finding("warning", text)
    elif _run(env, 0) == _run(env, 1) and _run(env, None) != _run(env, None):
        yield Finding("warning", "the seed has no effect: two seeds gave the same run")


def _check_global_generators(env: Any) -> Iterator[Finding]:
    """Check that the env does not draw from the global generators of NumPy and Python."""
    before = pickle.dumps(np.random.get_state()), random.getstate()  # noqa: NPY002
    _run(env, 0)
    text = "the env draws from {}, which reset(seed=...) does not seed; draw from self.np_random"
    if before[0] != pickle.dumps(np.random.get_state()):  # noqa: NPY002
        yield Finding("warning", text.format("np.random"))
    if before[1] != random.getstate():
        yield Finding("warning", text.format("the random module"))


def _check_rendering(env: Any) -> Iterator[Finding]:
    if env.metadata.get("render_modes") is None:
        yield Finding("warning", "metadata has no render_modes")
    if env.render_mode is not None:
        env.reset()
        yield from _outcome("error", env.render)


def _check_beside(others: Sequence[Any], env: Any) -> Iterator[Finding]:
    """Check that another env in the same process does not change what the env returns."""
    if others and disturb(env, others[0]):
        text = "env 1, stepped in turn with env 0, changes what env 0 returns: they share state in"
        text += " a module or a device; give each env its own process (make does, and so does"
        yield Finding("warning", f"{text} ShmemVectorEnv without num_processes)")


def _check_closing(env: Any) -> Iterator[Finding]:
    for call in ("close()", "a second close()"):
        yield from _outcome("error", env.close, prefix=f"{call}: ")


def _run(env: Any, seed: int | None) -> list[bytes]:
    """Return the results of a reset and a few steps, pickled: so a NaN equals itself."""
    env.action_space.seed(0)
    run = [cloudpickle.dumps(env.reset(seed=seed)[0])]
    for _ in range(20):
        *values, _ = checked_step(env)
        run.append(cloudpickle.dumps(values))
        if values[2] or values[3]:
            break
    return run


_MAKING = "making envs"
_CHECKS: dict[str, Callable[[Any], Iterable[Finding]]] = {
    "spaces": _check_spaces,
    "training": lambda env: _outcome("error", check_env, env),
    "options": _check_options,
    "a whole episode": _check_episode,
    "seeds": _check_seeds,
    "global generators": _check_global_generators,
    "rendering": _check_rendering,
    "closing": _check_closing,
}
