"""What lies inside a stack of PettingZoo wrappers, read without going through each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

from pettingzoo import AECEnv
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

#: From actions to (observations, rewards, terminations, truncations, infos).
ParallelStep: TypeAlias = "Callable[[dict[str, Any]], Any]"

#: What changes with every step.
_NAMES = frozenset(
    {
        "agents",
        "agent_selection",
        "rewards",
        "terminations",
        "truncations",
        "infos",
        "_cumulative_rewards",
    }
)
# The methods of wrappers that do nothing but ask the layer below. `OrderEnforcingWrapper` looks
# whether there was a reset; nobody asks here before there was one.
_LOOK_BELOW = frozenset({BaseWrapper.__getattr__, OrderEnforcingWrapper.__getattr__})
_OBSERVE_BELOW = frozenset({BaseWrapper.observe, OrderEnforcingWrapper.observe})


class Inside:
    """An AEC env after its reset, as quick to ask as if there were no wrappers around it.

    PettingZoo's wrappers have ``agents``, ``rewards`` and the like through a ``__getattr__`` each,
    which asks the next one: some microseconds for an attribute, of which a row wants ten. The
    values are those that ``env`` gives; where a wrapper has one of these as its own, or looks for
    it in its own way, the wrapper is asked as ever.

    Args:
        env: an AEC env.
    """

    __slots__ = ("_base", "_env", "_last_is_plain", "_observer", "_owns")

    def __init__(self, env: Any) -> None:
        self._env = env
        self._owns: list[dict[str, Any]] = []
        layer = env
        while _looks_below(layer):
            own = vars(layer)
            self._owns.append(own)
            layer = own["env"]
        self._base = layer
        kind: Any = type(env)
        self._last_is_plain = kind.last is AECEnv.last and "last" not in vars(env)
        while _observes_below(env):
            env = vars(env)["env"]
        self._observer = env

    def now(self) -> Any:
        """What has the ``agents``, ``rewards``, ... of the env; until the next step."""
        for own in self._owns:
            if not _NAMES.isdisjoint(own):  # set on a wrapper
                return self._env
        return self._base

    def observe(self, agent: str) -> Any:
        """What ``env.observe(agent)`` returns."""
        return self._observer.observe(agent)

    def last_reward(self, now: Any) -> Any:
        """The reward that ``env.last()`` returns.

        Args:
            now: what ``now`` has returned.
        """
        if not self._last_is_plain:
            return self._env.last(observe=False)[1]
        return now._cumulative_rewards[now.agent_selection]  # noqa: SLF001 - as in `last`

    def last(self, now: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What ``env.last()`` returns.

        Args:
            now: what ``now`` has returned.
        """
        if not self._last_is_plain:
            found: tuple[Any, Any, Any, Any, dict[str, Any]] = self._env.last()
            return found
        agent = now.agent_selection
        return (
            self._observer.observe(agent),
            now._cumulative_rewards[agent],  # noqa: SLF001 - PettingZoo's wrappers give it, too
            now.terminations[agent],
            now.truncations[agent],
            now.infos[agent],
        )


def _looks_below(layer: Any) -> bool:
    """Whether all of these attributes are the next layer's, unless they are set on this one."""
    kind: Any = type(layer)
    return (
        isinstance(layer, BaseWrapper)
        and kind.__getattribute__ is object.__getattribute__
        and kind.__getattr__ in _LOOK_BELOW
        and "env" in vars(layer)
        and not any(hasattr(kind, name) for name in _NAMES)
    )


def _observes_below(layer: Any) -> bool:
    kind: Any = type(layer)
    return (
        isinstance(layer, BaseWrapper)
        and kind.observe in _OBSERVE_BELOW
        and "env" in vars(layer)
        and "observe" not in vars(layer)
    )


def quick_step(env: Any) -> ParallelStep | None:
    """What does in less time what the ``step`` of this parallel env does, until its next reset.

    There is such a thing for an AEC env that PettingZoo has converted, as many a ``parallel_env``
    is: it makes the same calls on the AEC env and returns the same, but reads by ``Inside``.

    Args:
        env: a parallel env, which has been reset.
    """
    if type(env) is not aec_to_parallel_wrapper or "step" in vars(env):
        return None
    aec = env.aec_env
    inside = Inside(aec)

    def step_converted(actions: dict[str, Any]) -> Any:
        rewards: dict[str, Any] = defaultdict(int)
        now = inside.now()
        for agent in now.agents:
            if agent != now.agent_selection:
                raise AssertionError(
                    f"it is the turn of agent {now.agent_selection!r}, not of {agent!r}; agents of"
                    " a converted env act in order, and die at the end of a cycle alone"
                )
            inside.last(now)
            aec.step(actions[agent])
            now = inside.now()
            paid = now.rewards
            for other in now.agents:
                rewards[other] += paid[other]
        flags = dict(now.terminations), dict(now.truncations)
        infos = dict(now.infos)
        observations = {agent: inside.observe(agent) for agent in now.agents}
        while now.agents and _is_dead(now):
            aec.step(None)
            now = inside.now()
        env.agents = now.agents
        return observations, rewards, *flags, infos

    return step_converted


def _is_dead(now: Any) -> bool:
    agent = now.agent_selection
    return bool(now.terminations[agent] or now.truncations[agent])
