"""Trees of a space's leaves, and values taken apart and put together along them. Pure functions.

A *layout* is the shape of a space without its bounds: a ``Leaf``, a dict of layouts (``Dict``) or a
tuple of layouts (``Tuple``). A leaf with a fixed shape and dtype (``Box``, ``Discrete``,
``MultiDiscrete``, ``MultiBinary``) can live in a block of memory; any other (``Text``, ``Graph``,
``Sequence``, ``OneOf``, a custom space, no space at all) is an object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.errors import from_signal_handler

Array: TypeAlias = "NDArray[Any]"

_FIXED = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)
_RAGGED = (gym.spaces.Text, gym.spaces.Graph, gym.spaces.Sequence, gym.spaces.OneOf)
_IMMUTABLE = (int, float, complex, bool, str, bytes, type(None), np.generic)


class Code(Protocol):
    """How the values of a space are kept as arrays of a fixed shape and dtype.

    A space that has one as its ``code`` need not be pickled, though its values are no such arrays.
    It can be pickled and compared itself.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a value that is kept."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Likewise."""

    def encode(self, value: Any, what: str) -> Any:
        """What is kept of a value; TypeError or ValueError where it is none of the space's."""

    def decode(self, column: Array) -> list[Any]:
        """The values, each its own, of an array ``(k, *shape)`` of what was kept."""


class Leaf(NamedTuple):
    """One leaf of a layout.

    ``dtype`` is None for an object. ``stacked`` says of an object that rows which happen to be
    alike become one array: what is not declared may well be an array. ``scalar``: a single value is
    a NumPy scalar (``Discrete``), and not an array of no dimension (``Box`` of shape ``()``).
    ``code``: values are kept in shape and dtype by this.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    stacked: bool = False
    scalar: bool = False
    code: Code | None = None

    def one(self, column: Array, k: int) -> Any:
        """Value ``k`` of an array of values, in the type that the space samples."""
        if self.code is not None:
            return self.code.decode(column[k : k + 1])[0]
        return column[k] if self.scalar else column[k, ...]

    def each(self, column: Array) -> list[Any]:
        """The values of an array of values, each as ``one`` gives it; an object as it is."""
        if self.code is not None:
            return self.code.decode(column)
        if self.shape or self.scalar or self.dtype is None:
            return list(column)
        return [column[k, ...] for k in range(len(column))]


#: A leaf, or a dict or tuple of layouts.
Layout: TypeAlias = "Leaf | dict[Any, Layout] | tuple[Layout, ...]"


def layout_of(
    space: gym.Space[Any] | None, path: tuple[Any, ...] = (), *, coded: bool = False
) -> Any:
    """The layout of ``space``; None stands for an env that declares no space.

    Args:
        space: of any kind.
        path: of the space within another.
        coded: with the codes of spaces that have one; such leaves are objects otherwise.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: layout_of(sub, (*path, key), coded=coded) for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(layout_of(sub, (*path, i), coded=coded) for i, sub in enumerate(space.spaces))
    code: Code | None = getattr(space, "code", None) if coded else None
    if code is not None:
        return Leaf(path, code.shape, code.dtype, code=code)
    if isinstance(space, _FIXED):
        scalar = isinstance(space, gym.spaces.Discrete)
        return Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype), scalar=scalar)
    # A space of the user's own that says a shape has arrays for elements.
    arrays = space is None or (not isinstance(space, _RAGGED) and space.shape is not None)
    return Leaf(path, (), None, stacked=arrays)


def is_leaf(layout: Any) -> bool:
    """Whether ``layout`` is a leaf; it is a NamedTuple, and so a tuple as well."""
    return isinstance(layout, Leaf)


def leaves(layout: Any) -> list[Leaf]:
    """The leaves of ``layout``, depth first, in the order of the space."""
    if is_leaf(layout):
        return [layout]
    parts = layout.values() if isinstance(layout, dict) else layout
    return [leaf for part in parts for leaf in leaves(part)]


def is_fixed(layout: Any) -> bool:
    """Whether every leaf has a fixed shape and dtype."""
    return all(leaf.dtype is not None for leaf in leaves(layout))


def split(layout: Any, value: Any, what: str) -> list[Any]:
    """The leaves of ``value``, in the order of ``leaves(layout)``.

    Raises:
        TypeError: a part of ``value`` is no dict or tuple where the space has one.
        ValueError: its keys or its length are not those of the space.
    """
    parts: list[Any] = []
    _split(layout, value, what, parts)
    return parts


def _split(layout: Any, value: Any, what: str, parts: list[Any]) -> None:
    if is_leaf(layout):
        parts.append(value)
    elif isinstance(layout, dict):
        if not isinstance(value, Mapping):
            raise TypeError(f"{what} is a {type(value).__name__}, but the space is a Dict")
        if value.keys() != layout.keys():
            raise ValueError(
                f"{what} has the keys {sorted(map(str, value))},"
                f" but the space has {sorted(map(str, layout))}"
            )
        for key, part in layout.items():
            _split(part, value[key], f"{what}[{key!r}]", parts)
    else:
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"{what} is a {type(value).__name__}, but the space is a Tuple")
        if len(value) != len(layout):
            raise ValueError(
                f"{what} has {len(value)} parts, but the space is a Tuple of {len(layout)}"
            )
        for i, part in enumerate(layout):
            _split(part, value[i], f"{what}[{i}]", parts)


def join(layout: Any, parts: Sequence[Any]) -> Any:
    """Put together what ``split`` took apart."""
    return _join(layout, iter(parts).__next__)


def _join(layout: Any, take: Callable[[], Any]) -> Any:
    if is_leaf(layout):
        return take()
    if isinstance(layout, dict):
        return {key: _join(part, take) for key, part in layout.items()}
    return tuple(_join(part, take) for part in layout)


def join_rows(layout: Any, columns: Sequence[Array], count: int) -> list[Any]:
    """The ``count`` values of a batch one by one, from an array ``(count, ...)`` for each leaf."""
    if not columns:
        return [join(layout, ()) for _ in range(count)]
    parts = [leaf.each(column) for leaf, column in zip(leaves(layout), columns, strict=True)]
    if isinstance(layout, dict) and all(map(is_leaf, layout.values())):
        return [dict(zip(layout, row, strict=True)) for row in zip(*parts, strict=True)]
    return [join(layout, row) for row in zip(*parts, strict=True)]


def fit(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str, space: str) -> Array:
    """``value`` as an array of just this shape and dtype.

    Taken are equal values of any numeric type, and floats of another precision.

    Raises:
        TypeError: not numbers.
        ValueError: another shape, or values that the dtype can't hold.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        if from_signal_handler(error):
            raise
        raise TypeError(f"{what} can't be made into an array: {error}") from None
    if array.dtype.kind not in "biufc":
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"a {type(value).__name__}"
        raise TypeError(f"{what} is {shown}, but {space} has numbers of dtype {dtype}")
    if array.shape != shape:
        raise ValueError(f"{what} has shape {array.shape}, but {space} has {shape}")
    if array.dtype == dtype:
        return array
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        cast = array.real.astype(dtype) if dtype.kind != "c" else array.astype(dtype)
        if array.dtype.kind == dtype.kind and dtype.kind in "fc":
            held = bool((np.isfinite(cast) | ~np.isfinite(array)).all())
        else:
            held = bool((cast == array).all())
    if not held:
        detail = f" (got {array[()]})" if array.ndim == 0 else ""
        raise ValueError(
            f"{what} has dtype {array.dtype} and values{detail} that {space}, of dtype {dtype},"
            " can't hold without loss"
        )
    return cast


def stack_objects(values: list[Any], leaf: Leaf) -> Array:
    """A batch of the rows of an object leaf: an array of shape ``(k, ...)``.

    Rows of an undeclared leaf that are arrays or numbers of one shape become one array of numbers;
    any others an object array of shape ``(k,)``.
    """
    if leaf.stacked and values:
        arrays = [
            np.asarray(v) if isinstance(v, (np.ndarray, np.generic, int, float, complex)) else None
            for v in values
        ]
        first = arrays[0]
        if first is not None and all(
            a is not None and a.shape == first.shape and a.dtype.kind in "biufc" for a in arrays
        ):
            return np.stack([a for a in arrays if a is not None])
    batch = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        batch[i] = value
    return batch


def snapshot(value: Any) -> Any:
    """A copy that its owner can't change later.

    Arrays and containers are copied, other objects by ``copy.deepcopy``. An env, and what refuses
    to be copied, is handed over as it is.
    """
    kind = type(value)
    if kind is dict:  # first what is most frequent
        if _IMMUTABLE_TYPES.issuperset(map(type, value.values())):
            return value.copy()
        return {key: snapshot(part) for key, part in value.items()}
    if kind in _IMMUTABLE_TYPES:
        return value
    if isinstance(value, np.ndarray):
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if isinstance(value, _IMMUTABLE):
        return value
    if kind is list or kind is tuple:
        return kind(map(snapshot, value))
    if isinstance(value, dict):
        clone = copy.copy(value)
        for key, part in value.items():
            clone[key] = snapshot(part)
        return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(snapshot, value))
    if not isinstance(value, gym.Env):
        try:
            return copy.deepcopy(value)
        except Exception as error:  # it refuses to be copied
            if from_signal_handler(error):
                raise
    return value


_IMMUTABLE_TYPES = frozenset(
    {*_IMMUTABLE, np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_}
)


def batch_actions(layout: Any, actions: Any, ids: Sequence[int]) -> list[Array] | None:
    """The actions of a batch as one array ``(k, *shape)`` per leaf, for a fixed layout.

    Args:
        layout: a layout of which every leaf is fixed.
        actions: an array of shape ``(k, *shape)`` or a sequence of ``k`` actions; for a Dict or
            Tuple space also a dict or a tuple of arrays ``(k, ...)``.
        ids: the env of each action, for messages.

    Returns:
        None where an action is None, which no array can hold: ``list_actions`` gives them one by
        one.

    Raises:
        TypeError: not numbers, or not of the structure of the space.
        ValueError: another number of actions than ``ids``, another shape, values that don't fit.
    """
    count = len(ids)
    if is_leaf(layout):
        if (
            isinstance(actions, np.ndarray)
            and actions.dtype == layout.dtype
            and actions.shape == (count, *layout.shape)
        ):
            return [actions]
        rows = _as_rows(actions, count)
        if any(row is None for row in rows):
            return None
        return [_stack_fitting(layout, rows, ids, actions)]
    columns = _columns(layout, actions)
    if columns is not None:
        parts = []
        for leaf, column in zip(leaves(layout), columns, strict=True):
            rows = _as_rows(column, count)
            parts.append(_stack_fitting(leaf, rows, ids, column))
        return parts
    rows = _as_rows(actions, count)
    if any(row is None for row in rows):
        return None
    split_rows = [split(layout, row, f"env {i}: action") for i, row in zip(ids, rows, strict=True)]
    return [
        _stack_fitting(leaf, [row[n] for row in split_rows], ids, None)
        for n, leaf in enumerate(leaves(layout))
    ]


def list_actions(layout: Any, actions: Any, ids: Sequence[int]) -> list[Any]:
    """The actions of a batch one by one, as the env's own space would give them.

    For layouts that are not fixed, and for batches with None among the actions. What has a fixed
    leaf is checked against it.

    Raises:
        TypeError, ValueError: as ``batch_actions``.
    """
    count = len(ids)
    columns = None if is_leaf(layout) else _columns(layout, actions)
    if columns is not None:
        by_leaf = [_as_rows(column, count) for column in columns]
        rows = [join(layout, [column[k] for column in by_leaf]) for k in range(count)]
    else:
        rows = _as_rows(actions, count)
    return [
        None if row is None else fit_tree(layout, row, f"env {i}: action", "action_space")
        for i, row in zip(ids, rows, strict=True)
    ]


def fit_tree(layout: Any, value: Any, what: str, space: str) -> Any:
    """``value`` with every fixed leaf made to fit by ``fit``; other leaves as they are."""
    parts = split(layout, value, what)
    for n, leaf in enumerate(leaves(layout)):
        if leaf.dtype is not None and leaf.code is None:
            name = what + "".join(f"[{key!r}]" for key in leaf.path)
            array = fit(parts[n], leaf.shape, leaf.dtype, name, space)
            # The env's own: what the caller does to its array later does not reach the env.
            parts[n] = array[()] if leaf.scalar else array.copy()
    return join(layout, parts)


def _columns(layout: Any, actions: Any) -> list[Any] | None:
    """The arrays of a dict or tuple of arrays; None where ``actions`` is a sequence of actions."""
    if isinstance(layout, dict) and isinstance(actions, Mapping):
        return split(layout, actions, "actions")
    if (
        isinstance(layout, tuple)
        and isinstance(actions, tuple)
        and len(actions) == len(layout)
        and all(isinstance(part, (np.ndarray, Mapping)) for part in actions)
    ):
        return split(layout, actions, "actions")
    return None


def _as_rows(actions: Any, count: int) -> Any:
    if isinstance(actions, (str, bytes, Mapping)) or not hasattr(actions, "__len__"):
        raise TypeError(
            f"actions: got a {type(actions).__name__};"
            " pass a sequence or an array of one action per env"
        )
    try:
        length = len(actions)
    except TypeError:  # an array, or a tensor, of no dimension
        raise TypeError("actions: got a scalar; pass one action per env") from None
    if length != count:
        raise ValueError(f"got {length} actions for {count} envs")
    return actions


def _stack_fitting(leaf: Leaf, rows: Any, ids: Sequence[int], whole: Any) -> Array:
    """``rows`` as one array of the leaf's dtype, or an error that names the env."""
    assert leaf.dtype is not None  # noqa: S101 - for the type checker
    name = "action" + "".join(f"[{key!r}]" for key in leaf.path)
    try:
        source = rows if whole is None else whole
        return fit(source, (len(ids), *leaf.shape), leaf.dtype, name, "action_space")
    except (TypeError, ValueError):
        fitted = [
            fit(row, leaf.shape, leaf.dtype, f"env {i}: {name}", "action_space")
            for i, row in zip(ids, rows, strict=True)
        ]
        return np.stack(fitted) if fitted else np.empty((0, *leaf.shape), leaf.dtype)
