"""Find the env that a name means, and make an ``env_fn`` of it.

Each function that takes an env by name takes the same forms: an id of Gymnasium's registry,
``module:id``, ``module:callable``, an ``EnvSpec``, or a callable that makes the env.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from envpool_py import extras

#: The env as a user names it.
Env: TypeAlias = str | EnvSpec | Callable[..., Any]

_ATTRIBUTE = "envpool_py_env"
# An id in the registry, with the module that registers it, such as "ale_py:ALE/Pong-v5".
_ID = re.compile(r"([\w.]+):[\w/-]+-v\d+")


def module_and_name(env: str) -> tuple[str, str]:
    """Return the module to import, or "", and the id or callable; ``ALE/...`` is of ``ale_py``."""
    place, _, name = env.rpartition(":")
    return place or ("ale_py" if name.startswith("ALE/") else ""), name


def find(env: Env) -> Any:
    """Return the spec of a registered id, or the callable that makes the env.

    Raises:
        TypeError: ``env`` is of another type, or names what is not callable.
        gymnasium.error.Error: the id is not registered.
        ImportError: the module cannot be imported.
    """
    if callable(env) or isinstance(env, EnvSpec):
        return env
    if not isinstance(env, str):
        hint = f"; pass a callable, such as lambda: {type(env).__name__}()"
        text = f"env must be an id or a callable, got {type(env).__name__}"
        raise TypeError(text + (hint if hasattr(env, "step") else ""))
    place, name = module_and_name(env)
    if place == "ale_py":
        extras.load(place, f"{env}: needs ale_py; {extras.hint('atari')}")
    module = importlib.import_module(place) if place else None  # which may register the id
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        found = attribute(module, name)
        if found is None:
            hint = ""
            if name.endswith("-v5") and "/" not in name:  # as EnvPool names Atari games
                hint = f"; an Atari game is named 'ALE/{name}'"
            elif not place and not isinstance(error, gym.error.VersionNotFound):
                hint = f"; if another module registers it, write 'module:{name}'"
                if name.startswith(("atari/", "butterfly/", "classic/", "mpe/", "sisl/")):
                    hint += "; an env of PettingZoo: pass a callable that wraps it in PettingZooEnv"
            raise type(error)(f"{error}{hint}") from None
    if not callable(found):
        raise TypeError(f"{env} must be a class or function, got {type(found).__name__}")
    return found


def attribute(module: Any, path: str) -> Any:
    """Return what a module has at ``path``, such as ``A.b``; None: nothing."""
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        return None


def env_fn_of(
    env: Env,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Callable[[Any], Any]] = (),
    **of_make: Any,
) -> Callable[[], Any]:
    """Return an ``env_fn`` that can be sent to a process, and that a record can name.

    ``kwargs`` go to ``gymnasium.make``, or to the callable; ``of_make`` to ``gymnasium.make`` only.
    The first of ``wrappers`` is the innermost. The errors are those of ``find``.
    """
    found = find(env)
    _check_arguments(found, kwargs)
    # A spec, because a worker process need not know the id.
    maker = functools.partial(gym.make, found, **of_make) if isinstance(found, EnvSpec) else found
    env_fn = functools.partial(make_env, maker, dict(kwargs), tuple(wrappers))
    attach_names(env_fn, env.id if isinstance(env, EnvSpec) else env, kwargs, wrappers)
    return env_fn


def _check_arguments(found: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise a TypeError that names ``env_kwargs`` if a callable lacks an argument."""
    if isinstance(found, EnvSpec):
        return
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # of a type in C
        return
    lists = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in lists]
    missing = [name for name in needed if name not in kwargs]
    if missing:
        name = getattr(found, "__name__", repr(found))
        given = ", ".join(f"{one!r}: ..." for one in missing)
        raise TypeError(f"{name} needs {', '.join(missing)}; pass env_kwargs={{{given}}}")


def make_env(maker: Callable[..., Any], kwargs: dict[str, Any], wrappers: Sequence[Any]) -> Any:
    """Make one env; runs where the env is."""
    env = maker(**kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def modules_of(env_fn: Any) -> set[str]:
    """Return the modules that ``env_fn`` imports, if all that it does is to make a registered env.

    Of other functions none: they may set variables that must be set before.
    """
    found = env_fn
    while isinstance(found, functools.partial) and found.args:
        place = getattr(found.func, "__module__", None) or ""  # methods in C have none
        if found.func is not gym.make and not place.startswith("envpool_py."):
            return set()
        found = found.args[0]
    if isinstance(found, (str, EnvSpec)):
        return set() if found is env_fn else modules_of_id(found)
    code = found.__code__ if isinstance(found, FunctionType) else None
    if code is None or code.co_freevars or code.co_names[1:] not in ((), ("make",)):
        return set()
    called = found.__globals__.get((*code.co_names, "")[0])
    if called is gym.make if len(code.co_names) == 1 else called is gym:
        return set().union(*(modules_of_id(one) for one in code.co_consts if type(one) is str))
    return set()


def modules_of_id(env: str | EnvSpec) -> set[str]:
    """Return the modules that ``gymnasium.make`` imports for this id; none if it is no id."""
    named = _ID.fullmatch(env) if isinstance(env, str) else None
    spec = gym.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else env
    entry = getattr(spec, "entry_point", None)
    found = {named[1]} if named else set()
    return found | ({entry.partition(":")[0]} if isinstance(entry, str) else set())


def takes(env: Env, name: str) -> bool:
    """Whether ``gymnasium.make``, or what makes this env, has a parameter of this name."""
    maker = find(env)
    known = {"max_episode_steps", "render_mode", "disable_env_checker"}
    if isinstance(maker, EnvSpec):
        if name in known or name in maker.kwargs:
            return True
        maker = maker.entry_point
        maker = load_env_creator(maker) if isinstance(maker, str) else maker
    try:
        return name in inspect.signature(maker).parameters
    except (TypeError, ValueError):  # of a type in C
        return True


def attach_names(
    env_fn: Callable[[], Any],
    env: str | Callable[..., Any],
    kwargs: Mapping[str, Any],
    wrappers: Sequence[str | Callable[..., Any]],
) -> None:
    """Name what ``env_fn`` makes, if the command line can make it by names and Python literals."""
    names = [each if isinstance(each, str) else _import_name(each) for each in (env, *wrappers)]
    if None not in names and all(map(_is_literal, kwargs.values())):
        texts = {key: repr(value) for key, value in kwargs.items()}
        found = {"env": names[0], "env_kwargs": texts, "wrappers": names[1:]}
        setattr(env_fn, _ATTRIBUTE, found)


def names_of(env_fns: Sequence[Callable[[], Any]]) -> dict[str, Any] | None:
    """What ``attach_names`` has noted of these env_fns; None if they differ or nothing is noted."""
    first, *others = [getattr(env_fn, _ATTRIBUTE, None) for env_fn in env_fns]
    return first if all(other == first for other in others) else None


def _import_name(function: Callable[..., Any]) -> str | None:
    """``module:name`` of a class or function that can be imported under it."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found = attribute(sys.modules.get(str(module)), path)
    # To import the main module again would run the program.
    return f"{module}:{path}" if found is function and module != "__main__" else None


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False
