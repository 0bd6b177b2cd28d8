"""The env that ``ENV_ID``, ``--wrapper`` and ``--env-kwarg`` stand for, for every command."""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from envpool_py.cli.arguments import UsageError, find_in_working_directory, imported, key_value


def add_env_argument(parser: argparse.ArgumentParser, others: str = "") -> None:
    """Add ``ENV_ID``; ``others`` says what else it may be."""
    parser.add_argument("env_id", metavar="ENV_ID", help=f"as gymnasium.make takes it{others}")


def add_env_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--wrapper`` and ``--env-kwarg``, which say how an env is made."""
    parser.add_argument(
        "--wrapper",
        type=imported,
        action="append",
        default=[],
        metavar="MODULE:CALLABLE",
        help="wrapper(env) -> env, put around each env; may be repeated, the innermost first",
    )
    parser.add_argument(
        "--env-kwarg",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for gymnasium.make, the value a Python literal; may be repeated",
    )


def env_fn_of(args: argparse.Namespace, *, pettingzoo: bool = False) -> Callable[[], Any]:
    """The env_fn of the env that the arguments name; it can be sent to a process.

    ``pettingzoo`` says whether the command takes PettingZoo's envs as well.

    Raises:
        UsageError: there is no such env, or a keyword is given twice.
    """
    given = getattr(args, "env_kwarg", [])
    kwargs = dict(given)
    for name in kwargs:
        if [key for key, _ in given].count(name) > 1:
            raise UsageError(f"--env-kwarg: {name} is given twice")
    wrappers = [wrapper.value for wrapper in getattr(args, "wrapper", [])]
    if pettingzoo and is_pettingzoo(args.env_id):
        from envpool_py.pettingzoo.making import make_by_name  # noqa: PLC0415 - an extra

        return functools.partial(make_by_name, args.env_id, kwargs, wrappers)
    spec = env_spec(args.env_id)
    return functools.partial(_make_env, spec, {"disable_env_checker": True, **kwargs}, wrappers)


def is_pettingzoo(env_id: str) -> bool:
    """Whether PettingZoo, and not Gymnasium, knows an env of this name."""
    if env_id.rpartition(":")[2] in gym.registry or importlib.util.find_spec("pettingzoo") is None:
        return False
    from envpool_py.pettingzoo.making import find_env  # noqa: PLC0415 - an extra

    find_in_working_directory()
    return find_env(env_id) is not None


def whole_id(env_id: str) -> str:
    """The id that ``gymnasium.make`` takes in a fresh process: with the module that registers it.

    Raises:
        UsageError: there is no such env.
    """
    env_spec(env_id)
    return ":".join(filter(None, _parts(env_id)))


def env_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of an env id, of ``module:env_id`` too; modules in the working directory are found.

    Raises:
        UsageError: there is none.
    """
    module, name = _parts(env_id)
    if module:
        find_in_working_directory()
        try:
            importlib.import_module(module)
        except ImportError as error:
            hint = '; pip install "envpool-py[atari]"' if module == "ale_py" else ""
            raise UsageError(f"{env_id}: {error}{hint}") from None
    try:
        return gym.spec(name)
    except gym.error.Error:
        near = difflib.get_close_matches(name, gym.registry)
        hint = "MODULE:ENV_ID imports the module first"
        if near:
            hint = f"did you mean {', '.join(near)}"
        raise UsageError(f"no env has the id {env_id!r}; {hint}") from None


def _parts(env_id: str) -> tuple[str, str]:
    """The module, and the id in it."""
    module, _, name = env_id.rpartition(":")
    return module or ("ale_py" if name.startswith("ALE/") else ""), name


def _make_env(
    spec: gym.envs.registration.EnvSpec,
    kwargs: dict[str, Any],
    wrappers: Sequence[Callable[[Any], Any]],
) -> Any:
    """Make one env; runs in the worker process, which need not know the env's id."""
    env: Any = gym.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
