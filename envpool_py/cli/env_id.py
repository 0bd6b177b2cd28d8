"""What an env id on the command line stands for."""

from __future__ import annotations

import difflib
import importlib

import gymnasium as gym

from envpool_py.cli.arguments import UsageError, find_in_working_directory


def env_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """The spec of an env id, of ``module:env_id`` too; modules in the working directory are found.

    Raises:
        UsageError: there is none.
    """
    module, _, name = env_id.rpartition(":")
    if name.startswith("ALE/"):
        module = module or "ale_py"
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
