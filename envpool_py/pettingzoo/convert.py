"""What a user hands over, as an AEC or as a parallel env; and its outside as that of its inside."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec


def as_aec(env: Any) -> Any:
    """The env as an AEC env; a parallel one is converted.

    Raises:
        TypeError: not PettingZoo's.
        ValueError: it does not name its possible agents.
    """
    if isinstance(env, ParallelEnv):
        agents_of(env)
        return parallel_to_aec(env)
    if not isinstance(env, AECEnv):
        raise TypeError(_not_pettingzoo(env))
    agents_of(env)
    return env


def as_parallel(env: Any) -> Any:
    """The env as a parallel env; an AEC one is converted where that is safe.

    Raises:
        TypeError: not PettingZoo's, or turn-based.
        ValueError: it does not name its possible agents.
    """
    if isinstance(env, AECEnv):
        if not getattr(env, "metadata", {}).get("is_parallelizable", False):
            raise TypeError(
                f"{env} is turn-based (its metadata has no is_parallelizable);"
                " put PettingZooEnv around it and use any of the pools"
            )
        agents_of(env)
        return aec_to_parallel(env)
    if not isinstance(env, ParallelEnv):
        raise TypeError(_not_pettingzoo(env))
    agents_of(env)
    return env


def agents_of(env: Any) -> list[str]:
    """The names of all agents that may ever appear.

    Raises:
        TypeError: a name is no str.
        ValueError: there are none, or one stands twice.
    """
    agents = list(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ValueError(
            f"{env} has no possible_agents; rows need to know all agents that may ever appear"
        )
    for agent in agents:
        if not isinstance(agent, str):
            raise TypeError(f"{env}: the name of an agent must be a str, got {agent!r}")
    if len(set(agents)) != len(agents):
        raise ValueError(f"{env}: a name stands twice in possible_agents {agents}")
    return agents


def set_inside(env: Any, name: str, value: Any) -> None:
    """Set an attribute on the outermost layer that has it as its own, else on the base env."""
    layer = env
    while name not in vars(layer) and not hasattr(type(layer), name):
        inner = vars(layer).get("env", vars(layer).get("aec_env"))
        if inner is None:
            break
        layer = inner
    setattr(layer, name, value)


def get_inside(env: Any, name: str) -> Any:
    """An attribute of the env, or of what it has been converted from: where ``set_inside`` sets it.

    Raises:
        AttributeError: none of them has it.
    """
    try:
        return getattr(env, name)
    except AttributeError:
        # What PettingZoo converts hides what it has converted.
        converted = next(
            (vars(one)["aec_env"] for one in layers_of(env) if _is_converted(one)), None
        )
        if converted is None or name.startswith("_"):
            raise
        return getattr(converted, name)


def _is_converted(env: Any) -> bool:
    return vars(env).get("aec_env") is not None


def layers_of(env: Any) -> list[Any]:
    """The wrappers of the env, the outermost first, and the base env."""
    layers = [env]
    while (inner := vars(layers[-1]).get("env", vars(layers[-1]).get("aec_env"))) is not None:
        layers.append(inner)
    return layers


def _not_pettingzoo(env: Any) -> str:
    return (
        f"got {type(env).__name__}, which is neither a PettingZoo AECEnv nor a ParallelEnv;"
        " a Gymnasium env goes into a pool as it is"
    )
