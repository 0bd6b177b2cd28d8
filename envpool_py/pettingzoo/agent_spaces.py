"""Spaces of many agents as one space."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py import spaces
from envpool_py.spaces import Array

#: The keys of an observation that carries its own mask of legal actions.
OBSERVATION, ACTION_MASK = "observation", "action_mask"


class NameCode(NamedTuple):
    """Names as their places among all names."""

    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a place."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a place."""
        return np.dtype(np.int32)

    def encode(self, value: Any, what: str) -> int:
        """The place of a name."""
        try:
            return self.names.index(value)
        except ValueError:
            raise ValueError(f"{what}: {unknown_agent(value, self.names)}") from None

    def decode(self, column: Array) -> list[str]:
        """The names."""
        names = self.names
        return [names[place] for place in column.tolist()]


class AgentName(gym.spaces.Text):
    """The names of agents, and nothing else.

    Args:
        names: at least one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            max(map(len, names)),
            min_length=min(map(len, names)),
            charset="".join(sorted(set("".join(names)))),
        )
        self.names = tuple(names)

    @property
    def code(self) -> NameCode:
        """How a pool keeps a name."""
        return NameCode(self.names)

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002
        """Some agent's name."""
        return self.names[int(self.np_random.integers(len(self.names)))]

    def contains(self, x: Any) -> bool:
        """Whether it is an agent's name."""
        return x in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentName) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"AgentName({', '.join(self.names)})"


class SomeArrayCode(NamedTuple):
    """Arrays of some few shapes and dtypes as bytes; the last one says which.

    ``kinds``: shape and dtype of each, and whether it is a scalar; None for no value at all.
    """

    kinds: tuple[tuple[tuple[int, ...], str, bool] | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the bytes."""
        return (1 + max(_nbytes(kind) for kind in self.kinds),)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the bytes."""
        return np.dtype(np.uint8)

    def encode(self, value: Any, what: str) -> Array:
        """The bytes of a value."""
        data = np.zeros(self.shape, np.uint8)
        if value is None and None in self.kinds:
            data[-1] = self.kinds.index(None)
            return data
        array = np.asarray(value)
        fitting = [n for n, kind in enumerate(self.kinds) if kind and kind[0] == array.shape]
        exact = [n for n in fitting if (self.kinds[n] or ((), ""))[1] == array.dtype.str]
        for n in exact or fitting:
            kind = self.kinds[n]
            if kind is None:
                continue
            fitted = spaces.fit(array, kind[0], np.dtype(kind[1]), what, "an agent's space")
            data[-1] = n
            data[: fitted.nbytes] = np.frombuffer(fitted.tobytes(), np.uint8)
            return data
        raise ValueError(f"{what} has shape {array.shape}, which no agent's space has")

    def decode(self, column: Array) -> list[Any]:
        """The values."""
        return [self._value(row) for row in column]

    def _value(self, row: Array) -> Any:
        kind = self.kinds[row[-1]]
        if kind is None:
            return None
        shape, dtype, scalar = kind
        array = np.frombuffer(row[: _nbytes(kind)].tobytes(), dtype).reshape(shape).copy()
        return array[()] if scalar else array


def _nbytes(kind: tuple[tuple[int, ...], str, bool] | None) -> int:
    if kind is None:
        return 0
    return int(np.prod(kind[0], dtype=np.int64)) * np.dtype(kind[1]).itemsize


class SpaceOfSomeAgent(gym.Space[Any]):
    """What any one of the agents may see or do, where their spaces differ.

    Args:
        own: the space of each agent.
    """

    def __init__(self, own: Mapping[str, gym.Space[Any] | None]) -> None:
        super().__init__()
        self.own = dict(own)

    @property
    def code(self) -> SomeArrayCode | None:
        """How a pool keeps what an agent sees; None where that is no array of a fixed shape."""
        kinds: list[tuple[tuple[int, ...], str, bool] | None] = []
        for space in self.own.values():
            leaf = None if space is None else spaces.layout_of(space)
            if leaf is not None and (not spaces.is_leaf(leaf) or leaf.dtype is None):
                return None
            kinds.append(None if leaf is None else (leaf.shape, leaf.dtype.str, leaf.scalar))
        distinct = tuple(dict.fromkeys(kinds))
        return SomeArrayCode(distinct) if len(distinct) <= 256 else None

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """What a random agent may see or do."""
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
        """Whether this may be some agent's."""
        return any(x is None if space is None else x in space for space in self.own.values())

    @property
    def is_np_flattenable(self) -> bool:
        """False: it has no shape."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpaceOfSomeAgent) and self.own == other.own

    def __hash__(self) -> int:
        return hash(tuple(self.own))

    def __repr__(self) -> str:
        return f"SpaceOfSomeAgent({self.own})"


class AnyArray(gym.spaces.Box):
    """Arrays of one shape and dtype, whatever is in them; without the weight of bounds.

    Args:
        shape: of the array.
        dtype: likewise.
    """

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        gym.Space.__init__(self, tuple(shape), dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return AnyArray, (self.shape, self.dtype)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """Zeros."""
        return np.zeros(self.shape, self.dtype)

    def contains(self, x: Any) -> bool:
        """Whether it is an array of this shape and dtype."""
        return isinstance(x, np.ndarray) and x.shape == self.shape and x.dtype == self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyArray) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.shape, str(self.dtype)))

    def __repr__(self) -> str:
        return f"AnyArray({self.shape}, {self.dtype})"


class AnyObject(gym.Space[Any]):
    """Objects of any kind, which no array of a fixed shape can hold."""

    @property
    def is_np_flattenable(self) -> bool:
        """False: it has no shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """None."""
        return

    def contains(self, x: Any) -> bool:  # noqa: ARG002 - the signature of a space
        """True."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyObject)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "AnyObject()"


class _Callable:
    """Mixed into a space: called with an agent's name it gives that agent's own space."""

    _own: dict[str, gym.Space[Any]]

    def __call__(self, agent: str) -> gym.Space[Any]:
        """The space of one agent."""
        try:
            return self._own[agent]
        except KeyError:
            raise KeyError(unknown_agent(agent, self._own)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time, and pickle would look for it by name.
        plain_class: Any = type(self).__bases__[1]
        plain = plain_class.__new__(plain_class)
        plain.__dict__.update(vars(self))
        own = plain.__dict__.pop("_own")
        return _as_callable, (plain, own)


def callable_space(space: gym.Space[Any], own: Mapping[str, gym.Space[Any]]) -> Any:
    """A copy of ``space`` that can be called with an agent's name, for that agent's own space."""
    return _as_callable(copy.deepcopy(space), dict(own))


def _as_callable(space: gym.Space[Any], own: dict[str, gym.Space[Any]]) -> Any:
    kind: Any = type(space)
    mixed = _callable_class(kind)
    made = mixed.__new__(mixed)
    made.__dict__.update(vars(space), _own=own)
    return made


@functools.cache
def _callable_class(plain: Any) -> Any:
    return type(plain.__name__, (_Callable, plain), {"__doc__": plain.__doc__})


def unknown_agent(agent: Hashable, agents: Sequence[str] | Mapping[str, Any]) -> str:
    """The message about a name that no agent has."""
    return f"unknown agent {agent!r}; the agents are {', '.join(map(repr, agents))}"


def all_equal(own: Sequence[Any]) -> bool:
    """Whether all spaces are the same."""
    return all(space == own[0] for space in own[1:])


def has_own_mask(space: gym.Space[Any]) -> bool:
    """Whether observations of this space carry the mask of legal actions."""
    return isinstance(space, gym.spaces.Dict) and ACTION_MASK in space.spaces


def without_mask(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space of an observation without its mask."""
    if not isinstance(space, gym.spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != ACTION_MASK}
    return rest[OBSERVATION] if rest.keys() == {OBSERVATION} else gym.spaces.Dict(rest)


def mask_shape(observation: gym.Space[Any], action: gym.Space[Any]) -> tuple[int, ...] | None:
    """The shape of the mask of legal actions; None where there is no saying what it would be."""
    if isinstance(observation, gym.spaces.Dict) and ACTION_MASK in observation.spaces:
        shape = observation.spaces[ACTION_MASK].shape
        return None if shape is None else tuple(shape)
    return (int(action.n),) if isinstance(action, gym.spaces.Discrete) else None
