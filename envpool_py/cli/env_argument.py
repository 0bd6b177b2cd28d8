"""Find the env that ``ENV``, ``--wrapper`` and ``--env-kwarg`` name, for every command."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib.util
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envpool_py.bench.settings import Setting
from envpool_py.cli import importing
from envpool_py.cli.arguments import UsageError, key_value
from envpool_py.cli.importing import Imported, imported
from envpool_py.record import named_env


def add_env(parser: argparse.ArgumentParser, others: str = "", nargs: str | None = None) -> None:
    """Add ``ENV``, ``--env-kwarg`` and ``--wrapper``; ``others`` describes further forms of ENV."""
    parser.add_argument(
        "env",
        metavar="ENV",
        nargs=nargs,
        help="an id (CartPole-v1), module:ID, or a class or function that makes the env:"
        f" module:Class, path/file.py:Class{others}",
    )
    parser.add_argument(
        "--env-kwarg",
        type=key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="keyword argument of the env, the value a Python literal; may be repeated",
    )
    parser.add_argument(
        "--wrapper",
        type=imported,
        action="append",
        default=[],
        metavar="MODULE:CALLABLE",
        help="wrapper(env) -> env, put around each env; may be repeated, the innermost first",
    )


def env_fn_of(
    args: argparse.Namespace, *, pettingzoo: bool = False, **more: Any
) -> Callable[[], Any]:
    """The env_fn of the env that the arguments name; it can be sent to a process.

    ``pettingzoo``: the command takes PettingZoo's envs as well. ``more`` are keyword arguments that
    the command adds; a class or function gets those that it takes.
    """
    names = [name for name, _ in args.env_kwarg]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--env-kwarg: {name} is given twice")
    given = dict(args.env_kwarg)
    wrappers = [wrapper.value for wrapper in args.wrapper]
    if pettingzoo and is_pettingzoo(args.env):
        from envpool_py.pettingzoo.making import make_by_name  # noqa: PLC0415 - an extra

        env_fn = functools.partial(make_by_name, args.env, {**more, **given}, wrappers)
    else:
        found = _find(args.env)
        if isinstance(found, Imported):
            maker, kwargs = found.value, _accepted(found, given, more)
        else:  # not its id, which the worker process need not know
            maker = functools.partial(gym.make, found, disable_env_checker=True)
            kwargs = {**more, **given}
        env_fn = functools.partial(_make_env, maker, kwargs, wrappers)
    wrapper_names = [_absolute(wrapper.name) for wrapper in args.wrapper]
    named_env.attach(env_fn, _absolute(args.env), given, wrapper_names)
    return env_fn


def take_recorded(args: argparse.Namespace, recorded: dict[str, Any]) -> None:
    """Set ``ENV`` to that of a record; ``--env-kwarg`` and ``--wrapper`` change it."""
    kwargs = {key: ast.literal_eval(text) for key, text in recorded["env_kwargs"].items()}
    args.env = recorded["env"]
    args.env_kwarg = list({**kwargs, **dict(args.env_kwarg)}.items())
    args.wrapper = args.wrapper or [imported(name) for name in recorded["wrappers"]]


def _absolute(name: str) -> str:
    """``path/file.py:name`` with the whole path, so that it holds in other folders."""
    place, sign, rest = name.rpartition(":")
    return f"{Path(place).resolve()}{sign}{rest}" if place.endswith(".py") else name


def code_of(args: argparse.Namespace, setting: Setting) -> str:
    """The Python code that makes this pool of the env that the arguments name."""
    found = _find(args.env)
    lines = ["import envpool_py"]
    if isinstance(found, Imported):
        place = Path(args.env.rpartition(":")[0])
        if place.suffix == ".py" and place.parent != Path():
            lines[0] += f"  # with {place.parent} on PYTHONPATH"
        lines.append(_import_line(found))
        env = found.path
    else:
        module, name = _parts(args.env)
        env = json.dumps(f"{module}:{name}" if module else name)
    words = [env, str(setting.num_envs)]
    if args.env_kwarg:
        given = ", ".join(f"{key!r}: {value!r}" for key, value in args.env_kwarg)
        words.append(f"env_kwargs={{{given}}}")
    if args.wrapper:
        lines += [_import_line(each) for each in args.wrapper]
        words.append(f"wrappers=[{', '.join(each.path for each in args.wrapper)}]")
    words.append(f"backend={json.dumps(setting.pool)}")
    words += [f"{key}={value}" for key, value in setting.options.items()]
    return "\n".join([*dict.fromkeys(lines), f"pool = envpool_py.make({', '.join(words)})"])


def is_pettingzoo(env: str) -> bool:
    """Whether PettingZoo, and nothing else, knows an env of this name."""
    if importlib.util.find_spec("pettingzoo") is None:
        return False
    with contextlib.suppress(UsageError):
        _find(env)
        return False
    from envpool_py.pettingzoo.making import find_env  # noqa: PLC0415 - an extra

    importing.find_in_working_directory()
    with contextlib.suppress(Exception):  # a module can't be imported: the UsageError says it
        return find_env(env) is not None
    return False


def _find(env: str) -> EnvSpec | Imported:
    """The spec of a registered id, or the callable that makes the env; UsageError: neither."""
    place, name = _parts(env)
    if name.endswith(".py"):
        some = importing.callables_of(importing.load(env))
        raise UsageError(f"{env}: name the class or function in it, as {env}:{[*some, 'Env'][0]}")
    if place == "ale_py" and importlib.util.find_spec(place) is None:
        raise UsageError(f'{env}: needs ale_py; pip install "envpool-py[atari]"')
    module = importing.load(place) if place else None  # it may register the id
    with contextlib.suppress(gym.error.Error):
        return gym.spec(name)
    known = list(gym.registry)
    if module is not None:
        try:
            return Imported(env, importing.callable_of(module, name), module.__name__, name)
        except AttributeError:
            known += importing.callables_of(module)
    forms = "an id of Gymnasium, MODULE:ID, MODULE:CLASS, MODULE:FUNCTION or FILE.py:CLASS"
    near = importing.did_you_mean(name, known)
    raise UsageError(f"no env is named {env!r}{near}; ENV is {forms}")


def _parts(env: str) -> tuple[str, str]:
    """The module or file, and the id or callable in it."""
    place, _, name = env.rpartition(":")
    return place or ("ale_py" if name.startswith("ALE/") else ""), name


def _accepted(found: Imported, kwargs: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """``kwargs``, and what the callable takes of ``more``; UsageError: it does not take them."""
    try:
        signature = inspect.signature(found.value)
    except (TypeError, ValueError):  # of a type in C
        return {**more, **kwargs}
    kinds = {name: each.kind for name, each in signature.parameters.items()}
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        more = {name: value for name, value in more.items() if name in kinds}
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values()))
        text = f"{found.name}: {error}; it takes ({takes}), and --env-kwarg KEY=VALUE sets them"
        raise UsageError(text) from None
    return {**more, **kwargs}


def _import_line(found: Imported) -> str:
    first = found.path.partition(".")[0]
    if all(part.isidentifier() for part in found.module.split(".")):
        return f"from {found.module} import {first}"
    return f"import importlib; {first} = importlib.import_module({found.module!r}).{first}"


def _make_env(
    maker: Callable[..., Any], kwargs: dict[str, Any], wrappers: Sequence[Callable[[Any], Any]]
) -> Any:
    """Make one env; runs in the worker process."""
    env = maker(**kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
