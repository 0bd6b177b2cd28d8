"""What an env id on the command line stands for."""

from __future__ import annotations

import difflib
import importlib

import gymnasium as gym

from envpool_py.cli.arguments import UsageError, find_in_working_directory


def whole_id(env_id: str) -> str:
    """The id that ``gymnasium.make`` takes in a fresh process: with the module that registers it.

    Raises:
        UsageError: there is no such env.
    """
    env_spec(env_id)
    return ":".join(filter(None, _parts(env_id)))


def _parts(env_id: str) -> tuple[str, str]:
    """The module, and the id in it."""
    module, _, name = env_id.rpartition(":")
    return module or ("ale_py" if name.startswith("ALE/") else ""), name


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
