"""Find what the user names: a module, a callable, and the env of ``ENV`` with its options."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envpool_py import env_by_name
from envpool_py.bench.settings import MAKE, Setting
from envpool_py.env.failures import in_one_line


class UsageError(argparse.ArgumentTypeError):
    """Bad input on the command line; the message is one line."""


NO_PETTINGZOO = "this command takes Gymnasium's; pettingzoo.test has checks (parallel_api_test,"
NO_PETTINGZOO += " api_test), and collect takes both"


class Imported(NamedTuple):
    """The callable that ``module:callable`` or ``FILE.py:callable`` names."""

    name: str  # as the user wrote it
    value: Callable[..., Any]
    module: str
    path: str  # of the callable within its module


def printable(text: str) -> str:
    """The text with control characters escaped as by ``repr``: a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def find_in(folder: Path) -> None:
    """Let modules in a folder be imported, as ``python -m`` does with the working directory."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def load(place: str) -> ModuleType:
    """Import a module by its name, or a file that ends in ``.py``; UsageError if that fails.

    A file is imported under its own name, with its folder on ``sys.path``, so that every process
    can import it again. A file of a package is imported as a module of the package.
    """
    name, folder, file = place, Path.cwd(), Path(place).resolve()
    is_file = place.endswith(".py")
    if is_file:
        name, folder = file.stem, file.parent
        if not file.is_file():
            near = did_you_mean(file.stem, [each.stem for each in folder.glob("*.py")], ".py")
            raise UsageError(f"there is no file {place}{near}")
        while (folder / "__init__.py").exists():
            folder, name = folder.parent, f"{folder.name}.{name}"
    find_in(folder)
    try:
        __import__(name)  # not by importlib, whose line would be named as the place
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the user's code
        raise UsageError(f"can't import {place!r}: {in_one_line(error)}") from None
    module = sys.modules[name]
    found = getattr(module, "__file__", None) or "a built-in module"
    if is_file and Path(found).resolve() != file:
        raise UsageError(f"{place}: another module has the name {name!r}, {found}; rename the file")
    return module


def imported(text: str) -> Imported:
    """The type of an argument ``module:callable`` or ``FILE.py:callable``."""
    place, _, path = text.rpartition(":")
    if not place or not path:
        raise UsageError(f"must be module:callable or FILE.py:callable, got {text}")
    module = load(place)
    found = env_by_name.attribute(module, path)
    if found is None:
        near = did_you_mean(path, callables_of(module))
        raise UsageError(f"{place!r} has no {path!r}{near}")
    if not callable(found):
        text = f"{module.__name__}:{path} must be a class or function"
        raise UsageError(f"{text}, got {type(found).__name__}")
    return Imported(text, found, module.__name__, path)


def callables_of(module: ModuleType) -> list[str]:
    """The public classes and functions that a module defines."""
    found = inspect.getmembers(module, callable)
    own = [name for name, value in found if getattr(value, "__module__", None) == module.__name__]
    return [name for name in own if not name.startswith("_")]


def did_you_mean(name: str, known: Iterable[str], suffix: str = "") -> str:
    """``"; did you mean A, B"``, or nothing if no known name is similar."""
    near = [f"{each}{suffix}" for each in difflib.get_close_matches(name, known)]
    return f"; did you mean {', '.join(near)}" if near else ""


def key_value(text: str) -> tuple[str, Any]:
    """The type of ``key=value``: a Python literal, or a bare word, which is a string."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise UsageError(f"must be key=value, got {text!r}")
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return key, ast.literal_eval(value)
    if value.lower() in ("true", "false", "none", "null"):  # as bare words they would be strings
        raise UsageError(f"{key} is {value}; Python writes True, False, None")
    if not re.fullmatch(r"[\w./:-]+", value):
        raise UsageError(f"the value of {key} is no Python literal: {value!r}")
    return key, value


def add_env(parser: argparse.ArgumentParser, others: str = "", nargs: str | None = None) -> None:
    """Add ``ENV``, ``--env-kwarg`` and ``--wrapper``; ``others`` describes further forms of ENV."""
    repeated: dict[str, Any] = {"action": "append", "default": []}
    forms = "module:ID, or a class or function that makes the env: module:Class, path/file.py:Class"
    text = f"an id (CartPole-v1), {forms}{others}"
    parser.add_argument("env", metavar="ENV", nargs=nargs, help=text)
    text = "keyword argument of the env, the value a Python literal; may be repeated"
    parser.add_argument("--env-kwarg", type=key_value, metavar="KEY=VALUE", help=text, **repeated)
    text = "wrapper(env) -> env, put around each env; may be repeated, the innermost first"
    name = "MODULE:CALLABLE"
    parser.add_argument("--wrapper", type=imported, metavar=name, help=text, **repeated)


def env_fn_of(
    args: argparse.Namespace, *, pettingzoo: bool = False, **more: Any
) -> Callable[[], Any]:
    """The env_fn of the env that the arguments name; it can be sent to a process.

    ``pettingzoo``: the command takes PettingZoo's envs as well. ``more`` are keyword arguments that
    the command adds; a class or function gets those that it takes.
    """
    given = dict(args.env_kwarg)
    names = [name for name, _ in args.env_kwarg]
    for name in given:
        if names.count(name) > 1:
            raise UsageError(f"--env-kwarg: {name} is given twice")
    wrappers, kwargs = [wrapper.value for wrapper in args.wrapper], {**more, **given}
    env_fn: Callable[[], Any]
    if is_pettingzoo(args.env):
        if not pettingzoo:
            raise UsageError(f"{args.env} is an env of PettingZoo; {NO_PETTINGZOO}")
        from envpool_py.pettingzoo.making import make_by_name  # noqa: PLC0415 - an extra

        maker = functools.partial(make_by_name, args.env)
        env_fn = functools.partial(env_by_name.make_env, maker, kwargs, wrappers)
    elif isinstance(found := _find(args.env), Imported):
        kwargs = _accepted(found, given, more)
        env_fn = env_by_name.env_fn_of(found.value, kwargs, wrappers)
    else:
        env_fn = env_by_name.env_fn_of(found, kwargs, wrappers, disable_env_checker=True)
    if pettingzoo and "pettingzoo" in sys.modules:  # the env may be one of PettingZoo
        from envpool_py.pettingzoo.making import make_rows  # noqa: PLC0415 - an extra

        env_fn = functools.partial(make_rows, env_fn)
    wrapper_names = [_absolute(wrapper.name) for wrapper in args.wrapper]
    env_by_name.attach_names(env_fn, _absolute(args.env), given, wrapper_names)
    return env_fn


def _absolute(name: str) -> str:
    """``path/file.py:name`` with the whole path, so that it holds in other folders."""
    place, sign, rest = name.rpartition(":")
    return f"{Path(place).resolve()}{sign}{rest}" if place.endswith(".py") else name


def code_of(args: argparse.Namespace, setting: Setting) -> str:
    """The Python code that makes this pool of the env that the arguments name."""
    found, imports, named = _find(args.env), ["import envpool_py"], [*args.wrapper]
    if isinstance(found, Imported):
        named.insert(0, found)
        env = found.path
        folder = Path(args.env.rpartition(":")[0]).parent
        if folder != Path():  # of a file elsewhere
            imports[0] += f"  # with {folder} on PYTHONPATH"
    else:
        env = json.dumps(":".join(filter(None, env_by_name.module_and_name(args.env))))
    for each in named:
        first = each.path.partition(".")[0]
        line = f"from {each.module} import {first}"
        if not all(part.isidentifier() for part in each.module.split(".")):  # of a file my-env.py
            line = f"import importlib; {first} = importlib.import_module({each.module!r}).{first}"
        imports.append(line)
    words = [env, str(setting.num_envs)]
    if args.env_kwarg:
        words.append(f"env_kwargs={dict(args.env_kwarg)}")
    if args.wrapper:
        words.append(f"wrappers=[{', '.join(each.path for each in args.wrapper)}]")
    for key, value in {"backend": setting.pool, **setting.options}.items():
        words.append(f"{key}={json.dumps(value) if isinstance(value, str) else value}")
    lines = [*dict.fromkeys(imports), f"pool = envpool_py.make({', '.join(words)})"]
    if setting.started_processes or setting.pool == MAKE:
        # Where processes are not forked, each of them imports the program.
        lines[-1:] = ['if __name__ == "__main__":', f"    {lines[-1]}"]
    return "\n".join(lines)


def is_registered(env: str) -> bool:
    """Whether it is an id in Gymnasium's registry, ALE's included; runs no other code."""
    with contextlib.suppress(ImportError, gym.error.Error):
        return ":" not in env and isinstance(env_by_name.find(env), EnvSpec)
    return False


def is_pettingzoo(env: str) -> bool:
    """Whether PettingZoo, and nothing else, knows an env of this name."""
    with contextlib.suppress(UsageError):
        _find(env)
        return False
    find_in(Path.cwd())
    # A module can't be imported: the UsageError says it.
    with contextlib.suppress(Exception, SystemExit):
        from envpool_py.pettingzoo.making import find_env  # noqa: PLC0415 - an extra

        return find_env(env) is not None
    return False


def _find(env: str) -> EnvSpec | Imported:
    """The spec of a registered id, or the callable that makes the env; UsageError: neither."""
    place, _, name = env.rpartition(":")
    if name.endswith(".py"):
        some = callables_of(load(env))
        raise UsageError(f"{env}: name the class or function in it, as {env}:{[*some, 'Env'][0]}")
    module = load(place).__name__ if place else ""
    try:
        found = env_by_name.find(f"{module}:{name}")
    except (ImportError, TypeError) as error:
        raise UsageError(str(error)) from None
    except gym.error.Error:
        known = [*gym.registry, *(callables_of(load(place)) if place else ())]
        forms = "an id of Gymnasium, MODULE:ID, MODULE:CLASS, MODULE:FUNCTION or FILE.py:CLASS"
        near = did_you_mean(name, known)
        raise UsageError(f"no env is named {env!r}{near}; ENV is {forms}") from None
    return found if isinstance(found, EnvSpec) else Imported(env, found, module, name)


def _accepted(found: Imported, given: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """``given``, with ``more`` if the callable takes it; UsageError: it can't take ``given``."""
    kwargs = {**more, **given}
    try:
        signature = inspect.signature(found.value)
    except (TypeError, ValueError):  # of a type in C
        return kwargs
    with contextlib.suppress(TypeError):
        signature.bind(**kwargs)
        return kwargs
    try:
        signature.bind(**given)
    except TypeError as error:
        names, why = list(signature.parameters), str(error)
        takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        if not takes_any and (unknown := [name for name in given if name not in names]):
            why = f"there is no argument {unknown[0]!r}{did_you_mean(unknown[0], names)}"
        takes = ", ".join(map(str, signature.parameters.values()))
        text = f"{found.name}: {why}; it takes ({takes}), and --env-kwarg KEY=VALUE sets them"
        raise UsageError(text) from None
    return given
