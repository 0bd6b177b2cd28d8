"""What lies inside a stack of PettingZoo wrappers, read without going through each of them."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

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
        self._last_is_plain = type(env).last is AECEnv.last and "last" not in vars(env)
        while _observes_below(env):
            env = vars(env)["env"]
        self._observer = env

    def now(self) -> Any:
        """What has the ``agents``, ``rewards``, ... of the env; until the next step."""
        for own in self._owns:
            if not _NAMES.isdisjoint(own):  # set on a wrapper
                return self._env
        return self._base

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
    kind = type(layer)
    return (
        isinstance(layer, BaseWrapper)
        and kind.__getattribute__ is object.__getattribute__
        and kind.__getattr__ in _LOOK_BELOW
        and "env" in vars(layer)
        and not any(hasattr(kind, name) for name in _NAMES)
    )


def _observes_below(layer: Any) -> bool:
    return (
        isinstance(layer, BaseWrapper)
        and type(layer).observe in _OBSERVE_BELOW
        and "env" in vars(layer)
        and "observe" not in vars(layer)
    )
