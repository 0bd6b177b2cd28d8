"""Combine the spaces of many agents into one, and find the masks of legal actions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np

from envpool_py.env import spaces
from envpool_py.env.spaces import Array
from envpool_py.pettingzoo.convert import unknown_agent

#: From an agent to its observation space and its action space.
AgentSpaces: TypeAlias = "dict[str, tuple[gym.Space[Any], gym.Space[Any]]]"
#: The keys of an observation that carries its own mask of legal actions.
OBSERVATION, ACTION_MASK = "observation", "action_mask"

_T = TypeVar("_T")


def of_agent(own: Mapping[str, _T], agent: str) -> _T:
    """What ``own`` has for this agent; KeyError: no agent has this name."""
    if agent not in own:
        raise KeyError(unknown_agent(agent, own))
    return own[agent]


def odd_one_out(own: Mapping[str, Any]) -> str | None:
    """The first agent whose value is not equal to that of the first one; None if all are alike."""
    first = next(iter(own.values()))
    return next((agent for agent, value in own.items() if value != first), None)


def assert_alike(own: AgentSpaces, otherwise: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` unless all agents have the same spaces; ``otherwise`` is its hint."""
    other = odd_one_out(own)
    if other is not None:
        first = next(iter(own))
        has = "agent {!r} has the spaces {} and {}, but {!r} has {} and {}; {}"
        raise error(has.format(other, *own[other], first, *own[first], otherwise))


def blank(space: gym.Space[Any]) -> Any:
    """Return the value of an absent agent: zeros, or None if a space has no arrays."""

    def zeros(leaf: spaces.Leaf) -> Any:
        if leaf.dtype is None:
            return None
        return np.zeros(leaf.shape, leaf.dtype)[() if leaf.scalar else ...]

    return spaces.map_tree(zeros, spaces.layout_of(space))


class Masks(NamedTuple):
    """The shape of an agent's mask, and whether it is in the observation or else in the info."""

    shape: tuple[int, ...]
    in_obs: bool

    def read(self, observation: Any, info: Mapping[str, Any]) -> Array | None:
        """The mask, bool; None if the env gives none."""
        mask = observation[ACTION_MASK] if self.in_obs else info.get(ACTION_MASK)
        return None if mask is None else np.asarray(mask) != 0


def masks_of(own: AgentSpaces) -> dict[str, Masks]:
    """Where the masks of those agents are whose actions are masked or discrete."""
    masks = {}
    for agent, (seen, acts) in own.items():
        mask = seen.spaces.get(ACTION_MASK) if isinstance(seen, gym.spaces.Dict) else None
        if mask is not None and mask.shape is not None:
            masks[agent] = Masks(mask.shape, in_obs=True)
        elif isinstance(acts, gym.spaces.Discrete):
            masks[agent] = Masks((int(acts.n),), in_obs=False)
    return masks


def bools(shape: tuple[int, ...]) -> gym.Space[Any]:
    """The space of flags, or of a mask."""
    return gym.spaces.Box(0, 1, shape, np.bool_)


def rest_of(parts: Mapping[str, Any]) -> Any:
    """An observation, or its spaces, without the mask: ``"observation"`` if that is all."""
    rest = {key: part for key, part in parts.items() if key != ACTION_MASK}
    return rest[OBSERVATION] if rest.keys() == {OBSERVATION} else rest


class NameCode(NamedTuple):
    """Names as their places among all names: the ``Code`` by which a pool stores them."""

    names: tuple[str, ...]
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.int32)

    def encode(self, value: Any, what: str) -> int:
        if value not in self.names:
            raise ValueError(f"{what}: {unknown_agent(value, self.names)}")
        return self.names.index(value)

    def decode(self, column: Array) -> list[str]:
        return [self.names[place] for place in column.tolist()]


class AgentName(gym.spaces.Text):
    """The ``names`` of agents, at least one, and nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        least, most = min(map(len, names)), max(map(len, names))
        super().__init__(most, min_length=least, charset="".join(sorted({*"".join(names)})))
        self.names = tuple(names)
        self._envpool_py_code = NameCode(self.names)

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002
        return self.names[int(self.np_random.integers(len(self.names)))]

    def contains(self, x: Any) -> bool:
        return x in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentName) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"AgentName({', '.join(self.names)})"


class SpaceOfSomeAgent(gym.Space[Any]):
    """The values of any one of the agents, whose spaces ``own`` differ; None has the value None."""

    def __init__(self, own: Mapping[str, gym.Space[Any] | None]) -> None:
        super().__init__()
        self.own = dict(own)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        space = list(self.own.values())[int(self.np_random.integers(len(self.own)))]
        return None if space is None else space.sample()

    def seed(self, seed: Any = None) -> Any:
        """Seed which agent is drawn, and the space of each."""
        seeds = super().seed(seed)
        for n, space in enumerate(self.own.values()):
            if space is not None:
                space.seed(None if seed is None else seed + n)
        return seeds

    def contains(self, x: Any) -> bool:
        return any(x is None if space is None else x in space for space in self.own.values())

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpaceOfSomeAgent) and self.own == other.own

    def __hash__(self) -> int:
        return hash(tuple(self.own))

    def __repr__(self) -> str:
        return f"SpaceOfSomeAgent({self.own})"


def common(own: Mapping[str, gym.Space[Any] | None]) -> gym.Space[Any]:
    """The space of any agent's value."""
    first = next(iter(own.values()))
    alike = first is not None and odd_one_out(own) is None
    return first if alike else SpaceOfSomeAgent(own)  # type: ignore[return-value]


class _Callable:
    """Mixed into a space: called with an agent's name it gives that agent's own space."""

    _own: dict[str, gym.Space[Any]]

    def __call__(self, agent: str) -> gym.Space[Any]:
        return of_agent(self._own, agent)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, and pickle would look for it by name.
        return _empty, (type(self).__bases__[1],), vars(self)


def callable_space(space: gym.Space[Any], own: Mapping[str, gym.Space[Any]]) -> Any:
    """A copy of ``space`` that can be called with an agent's name, for that agent's own space."""
    made = _empty(type(space))
    made.__dict__.update(vars(copy.deepcopy(space)), _own=dict(own))
    return made


def _empty(plain: Any) -> Any:
    return object.__new__(_callable_class(plain))


@functools.cache
def _callable_class(plain: Any) -> Any:
    return type(plain.__name__, (_Callable, plain), {"__doc__": plain.__doc__})
