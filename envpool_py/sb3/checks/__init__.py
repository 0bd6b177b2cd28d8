"""What can be wrong with an env, stage by stage; ``check_env`` and the report are made of it.

Stages go from the outside in, and one that finds an error is the last: what comes after could not
be trusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from envpool_py.sb3.checks import behaviour, spaces, values, vec_env
from envpool_py.sb3.checks.finding import (
    EnvCheckError,
    EnvSignatureError,
    Finding,
    error,
    has_errors,
    raised,
)

__all__ = ["EnvCheckError", "EnvSignatureError", "Finding", "Stage", "stages"]


class Stage(NamedTuple):
    """What is looked at, and what was found there."""

    name: str
    findings: list[Finding]


_Check = Callable[[], Iterator[Finding]]


def stages(target: Any, *, render: bool = False) -> Iterator[Stage]:
    """Look for what is wrong with an env, with a VecEnv, or with what makes envs.

    Args:
        target: an env; a VecEnv; an env_fn or a sequence of them, whose envs are closed in the end.
        render: whether to render as well; an env is closed then, too.

    Yields:
        One stage after another, to the first in which there is an error.
    """
    if vec_env.is_vec_env(target):
        yield from _until_an_error(_checks_of_vec_env(target))
    elif isinstance(target, gym.Env):
        yield from _until_an_error(_checks_of_env(target, render=render, close=render))
    elif callable(target):
        yield from _stages_of_env_fns([target], render=render)
    elif isinstance(target, Sequence) and target and all(map(callable, target)):
        yield from _stages_of_env_fns(target, render=render)
    else:
        what = f"an env must inherit from gymnasium.Env, got {type(target).__name__}"
        yield Stage("the env", [error(what)])


def _until_an_error(checks: dict[str, _Check]) -> Iterator[Stage]:
    for name, check in checks.items():
        findings = []
        try:
            # One by one: what was found before an exception stays found.
            for finding in check():
                findings.append(finding)  # noqa: PERF402
        except Exception as exception:  # noqa: BLE001 - the env's, in a call that went well before
            findings.append(raised("the env", exception))
        yield Stage(name, findings)
        if has_errors(findings):
            return


def _checks_of_env(env: Any, *, render: bool, close: bool) -> dict[str, _Check]:
    checks: dict[str, _Check] = {
        "spaces": lambda: spaces.check_spaces(env),
        "arguments of reset": lambda: behaviour.check_reset_arguments(env),
        "observations for policies": lambda: spaces.check_observation_support(
            env.observation_space
        ),
        "actions for policies": lambda: spaces.check_action_support(env.action_space),
        "returned values": lambda: _check_values(env),
        "a whole episode": lambda: behaviour.check_episode(env),
        "options": lambda: behaviour.check_reset_options(env),
        "seeds": lambda: behaviour.check_seeds(env),
        "global generators": lambda: behaviour.check_global_random(env),
        "pickling": lambda: behaviour.check_pickling(env),
    }
    if render:
        checks["rendering"] = lambda: behaviour.check_render(env)
    if close:
        checks["closing"] = lambda: behaviour.check_close(env)
    return checks


def _checks_of_vec_env(venv: Any) -> dict[str, _Check]:
    return {
        "interface": lambda: vec_env.check_interface(venv),
        "spaces of the envs": lambda: vec_env.check_envs(venv),
        "observations for policies": lambda: spaces.check_observation_support(
            venv.observation_space
        ),
        "actions for policies": lambda: spaces.check_action_support(venv.action_space),
        "steps": lambda: vec_env.check_steps(venv),
    }


def _stages_of_env_fns(env_fns: Sequence[Callable[[], Any]], *, render: bool) -> Iterator[Stage]:
    made: list[Any] = []
    try:
        first = Stage("making envs", list(_check_env_fns(env_fns, made)))
        yield first
        if not has_errors(first.findings):
            yield from _until_an_error(_checks_of_env(made[0], render=render, close=True))
    finally:
        for env in made:
            with contextlib.suppress(Exception):  # said already, where it was looked for
                env.close()


def _check_env_fns(env_fns: Sequence[Callable[[], Any]], made: list[Any]) -> Iterator[Finding]:
    """Make the envs, put them into ``made``, and see that they are alike and not the same."""
    for i, env_fn in enumerate(env_fns):
        try:
            env = env_fn()
        except Exception as exception:  # noqa: BLE001 - whatever the env_fn raises
            yield raised(f"env {i}: env_fn", exception)
            return
        if not isinstance(env, gym.Env):
            yield error(f"env {i}: env_fn must return an env, got {type(env).__name__}")
            return
        for j, other in enumerate(made):
            if env.unwrapped is other.unwrapped:
                yield error(f"env {i}: env_fn returned the instance that env {j} has")
                return
        made.append(env)
        yield from behaviour.check_env_fn_pickling(env_fn, i)
    yield from spaces.check_same_spaces(made)


def _check_values(env: Any) -> Iterator[Finding]:
    """One reset and one step."""
    call = "reset(seed=0)"
    try:
        result = env.reset(seed=0)
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield raised(call, exception)
        return
    found = list(values.check_reset_result(result, env.observation_space, call))
    yield from found
    if found:
        return
    call = "step()"
    try:
        result = env.step(behaviour.sampler(env)())
    except Exception as exception:  # noqa: BLE001 - whatever the env raises
        yield raised(call, exception)
        return
    found = list(values.check_step_result(result, env.observation_space, call))
    yield from found
    if not found and spaces.is_goal_env(env):
        yield from values.check_goal(env, result)
