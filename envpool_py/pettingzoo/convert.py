"""Convert PettingZoo's two kinds of env into each other, and read attributes inside wrappers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from types import MethodType, SimpleNamespace
from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import aec_to_parallel, aec_to_parallel_wrapper, parallel_to_aec

#: PettingZoo's wrappers that only forward ``agents``, ``rewards``, ... of the env inside.
_TRANSPARENT = {
    wrappers.AssertOutOfBoundsWrapper,
    wrappers.BaseWrapper,
    wrappers.CaptureStdoutWrapper,
    wrappers.ClipOutOfBoundsWrapper,
    wrappers.OrderEnforcingWrapper,
    wrappers.TerminateIllegalWrapper,
}


def as_aec(env: Any) -> Any:
    """Return the env as an AEC env; convert a parallel one. TypeError, ValueError: it is unfit."""
    check_agents(env)
    return parallel_to_aec(env) if isinstance(env, ParallelEnv) else env


def as_parallel(env: Any) -> Any:
    """Return the env as a parallel env; convert an AEC one, TypeError if it is turn-based."""
    is_aec = isinstance(env, AECEnv)
    if is_aec and not getattr(env, "metadata", {}).get("is_parallelizable", False):
        hint = "put PettingZooEnv around it and use any of the pools"
        raise TypeError(f"{env} is turn-based (its metadata has no is_parallelizable); {hint}")
    check_agents(env)
    return aec_to_parallel(env) if is_aec else env


def check_agents(env: Any) -> None:
    """Raise unless this is an env of PettingZoo that names all agents that may ever appear."""
    if not isinstance(env, (AECEnv, ParallelEnv)):
        text = "is neither a PettingZoo AECEnv nor a ParallelEnv; a Gymnasium env goes into a pool"
        raise TypeError(f"got {type(env).__name__}, which {text} unchanged")
    agents = list(getattr(env, "possible_agents", None) or ())
    if not agents:
        text = "has no possible_agents; rows need to know all agents that may ever appear"
        raise ValueError(f"{env} {text}")
    for agent in agents:
        if not isinstance(agent, str):
            raise TypeError(f"{env}: the name of an agent must be a str, got {agent!r}")
    if len(set(agents)) != len(agents):
        raise ValueError(f"{env}: a name stands twice in possible_agents {agents}")


def unknown_agent(agent: Hashable, agents: Iterable[str]) -> str:
    """The message about a name that no agent has."""
    return f"unknown agent {agent!r}; the agents are {', '.join(map(repr, agents))}"


def layers_of(env: Any) -> list[Any]:
    """The wrappers and converters of the env, the outermost first, and the base env."""
    layers = [env]
    while (inner := vars(layers[-1]).get("env", vars(layers[-1]).get("aec_env"))) is not None:
        layers.append(inner)
    return layers


def set_inside(env: Any, name: str, value: Any) -> None:
    """Set an attribute on the outermost layer that has it as its own, else on the base env."""
    layers = layers_of(env)
    own = (layer for layer in layers if name in vars(layer) or hasattr(type(layer), name))
    setattr(next(own, layers[-1]), name, value)


def get_inside(env: Any, name: str) -> Any:
    """An attribute of the env, or of what it was converted from, which the converter hides."""
    converter = next((layer for layer in layers_of(env) if "aec_env" in vars(layer)), None)
    if converter is None or name.startswith("_") or hasattr(env, name):
        return getattr(env, name)
    return getattr(converter.aec_env, name)


class Direct:
    """An AEC env after its reset, whose attributes are read past PettingZoo's own wrappers.

    These wrappers look up every attribute in the next layer, some microseconds each, and a row
    needs ten: without this a step of ``simple_spread`` takes 20 % longer, of ``tictactoe`` 43 %.
    ``step`` goes through all wrappers, and a custom wrapper is never passed by.
    """

    __slots__ = ("__dict__", "_core", "last", "observe", "step")

    def __init__(self, env: Any) -> None:
        self._core = _below(env, _TRANSPARENT)
        self.__dict__ = self._core.__dict__  # the same: attributes are read without a call
        self.step = env.step
        self.observe = _below(env, _TRANSPARENT - {wrappers.TerminateIllegalWrapper}).observe
        # An outermost custom wrapper may have a `last` of its own.
        self.last = env.last if self._core is env else MethodType(AECEnv.last, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def _below(env: Any, passed_by: set[Any]) -> Any:
    while type(env) in passed_by:
        env = env.env
    return env


def converted_step(env: Any) -> Callable[[dict[str, Any]], Any] | None:
    """PettingZoo's ``step`` of a converted env on a ``Direct`` of it, until the next reset."""
    if type(env) is not aec_to_parallel_wrapper or "step" in vars(env):
        return None
    inner = SimpleNamespace(aec_env=Direct(env.aec_env))

    def step(actions: dict[str, Any]) -> Any:
        result = aec_to_parallel_wrapper.step(inner, actions)
        env.agents = inner.agents
        return result

    return step
