"""The layout of a space, and functions that split and join values by it. Pure functions.

A *layout* is the structure of a space without its bounds: a ``Leaf``, a dict of layouts (``Dict``)
or a tuple of layouts (``Tuple``). A leaf with a fixed shape and dtype (``Box``, ``Discrete``,
``MultiDiscrete``, ``MultiBinary``) is stored in the block; any other leaf (``Text``, ``Graph``,
``Sequence``, ``OneOf``, a custom space, no space) is an object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import is_, itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.interrupts import ordinary, suppressed

Array: TypeAlias = "NDArray[Any]"

#: The types of objects that may be stacked into one array.
NUMERIC = (np.ndarray, np.generic, int, float, complex)
#: Gymnasium's spaces whose values are arrays of a fixed shape.
FIXED = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
_NUMPY_SCALARS = {np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_}
_IMMUTABLE = frozenset({int, float, complex, bool, str, bytes, type(None), *_NUMPY_SCALARS})
# NumPy's own dtypes, which need no copies: these would take half of the time to copy a space.
_DTYPES = {id(dtype): dtype for dtype in map(np.dtype, np.typecodes["All"])}


class Code(Protocol):
    """Stores values that are no arrays as arrays of a fixed shape and dtype.

    The values of a space that has one as ``_envpool_py_code`` need not be pickled. A code can be
    pickled and compared.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def encode(self, value: Any, what: str) -> Any:
        """Return the array to store; TypeError or ValueError if the space lacks the value."""

    def decode(self, column: Array) -> list[Any]:
        """Return the values that an array ``(k, *shape)`` stores, each a new object."""


class Leaf(NamedTuple):
    """One leaf of a layout.

    ``dtype`` is None for an object. ``stacked``: rows of this object that are arrays of one shape
    become one array. ``scalar``: a value is a NumPy scalar (``Discrete``), not an array without
    dimensions (``Box`` of shape ``()``). ``code``: stores values in this shape and dtype.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    stacked: bool = False
    scalar: bool = False
    code: Code | None = None

    def name(self, what: str) -> str:
        """Return the leaf's name in messages, such as ``obs['camera'][0]``."""
        return what + "".join(f"[{key!r}]" for key in self.path)

    def each(self, column: Array) -> list[Any]:
        """Return all values of a column, in the type that the space samples; objects unchanged."""
        if self.code is not None:
            return self.code.decode(column)
        if self.shape or self.scalar or self.dtype is None:
            return list(column)
        return [column[k, ...] for k in range(len(column))]


def layout_of(
    space: gym.Space[Any] | None, path: tuple[Any, ...] = (), *, coded: bool = False
) -> Any:
    """Return the layout of ``space``, at ``path`` in another space; None: no space is declared.

    With ``coded``, a space that has a ``Code`` is a leaf of its shape and dtype, else an object.
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: layout_of(sub, (*path, key), coded=coded) for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(layout_of(sub, (*path, i), coded=coded) for i, sub in enumerate(space.spaces))
    code: Code | None = getattr(space, "_envpool_py_code", None) if coded else None
    if code is not None:
        return Leaf(path, code.shape, code.dtype, code=code)
    if isinstance(space, FIXED):
        scalar = isinstance(space, gym.spaces.Discrete)
        return Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype), scalar=scalar)
    # The elements of a custom space with a shape are arrays.
    return Leaf(path, (), None, stacked=space is None or space.shape is not None)


def is_leaf(layout: Any) -> bool:
    """Whether ``layout`` is a leaf; do not test for a tuple, because a leaf is one as well."""
    return isinstance(layout, Leaf)


def leaves(layout: Any) -> list[Leaf]:
    """Return the leaves of ``layout``, depth first, in the order of the space."""
    found: list[Leaf] = []
    map_tree(found.append, layout)
    return found


def is_fixed(layout: Any) -> bool:
    return all(leaf.dtype is not None for leaf in leaves(layout))


def tree_of(space: Any) -> Any:
    """Return a space as nested dicts and tuples of its leaves, for ``map_tree``."""
    if isinstance(space, gym.spaces.Dict):
        return {key: tree_of(part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(tree_of, space.spaces))
    return space


def space_of(tree: Any) -> Any:
    """Return the space of nested dicts and tuples of spaces."""
    if isinstance(tree, dict):  # pairs, since of a dict Gymnasium sorts the keys
        return gym.spaces.Dict([(key, space_of(part)) for key, part in tree.items()])
    return gym.spaces.Tuple(map(space_of, tree)) if isinstance(tree, tuple) else tree


def split(layout: Any, value: Any, what: str) -> list[Any]:
    """Return the leaves of ``value``, in the order of ``leaves(layout)``.

    TypeError if a part of ``value`` is no dict or tuple but the space has one there, ValueError if
    its keys or its length are not those of the space.
    """
    if is_leaf(layout):
        return [value]
    is_dict = isinstance(layout, dict)
    kinds: Any = Mapping if is_dict else (tuple, list)
    if not isinstance(value, kinds):
        space = "Dict" if is_dict else "Tuple"
        raise TypeError(f"{what} is a {type(value).__name__}, but the space is a {space}")
    if is_dict and value.keys() != layout.keys():
        found, keys = sorted(map(str, value)), sorted(map(str, layout))
        raise ValueError(f"{what} has the keys {found}, but the space has {keys}")
    if len(value) != len(layout):
        text = f"{len(value)} parts, but the space is a Tuple of {len(layout)}"
        raise ValueError(f"{what} has {text}")
    parts = []
    for key, part in layout.items() if is_dict else enumerate(layout):
        if is_leaf(part):
            parts.append(value[key])
        else:
            parts += split(part, value[key], f"{what}[{key!r}]")
    return parts


def join(layout: Any, parts: Iterable[Any]) -> Any:
    """Join the leaves that ``split`` returned into one value."""
    parts = iter(parts)
    return map_tree(lambda _: next(parts), layout)


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply ``function`` to every leaf of nested dicts and tuples, and to that leaf of others."""
    if isinstance(tree, dict):
        return {k: map_tree(function, tree[k], *[other[k] for other in others]) for k in tree}
    if type(tree) is tuple:  # and no Leaf
        return tuple([map_tree(function, *parts) for parts in zip(tree, *others, strict=True)])
    return function(tree, *others)


def take(tree: Any, rows: Any) -> Any:
    """Return the rows of an index of every array of nested dicts and tuples."""
    return map_tree(itemgetter(rows), tree)


def as_rows(layout: Any, columns: Sequence[Array], count: int) -> Array:
    """Return the values of a batch, an array ``(count, ...)`` per leaf, as an object array."""
    if is_leaf(layout):
        return objects(layout.each(columns[0]))
    parts = [leaf.each(column) for leaf, column in zip(leaves(layout), columns, strict=True)]
    rows = zip(*parts, strict=True) if parts else [()] * count
    if isinstance(layout, dict) and all(map(is_leaf, layout.values())):
        return objects([dict(zip(layout, row, strict=True)) for row in rows])
    return objects([join(layout, row) for row in rows])


def objects(values: Sequence[Any]) -> Array:
    """Return any objects as an object array ``(k,)``."""
    return np.fromiter(values, dtype=object, count=len(values))


def as_columns(layout: Any, obs: Any) -> Any:
    """Return the observations of a batch, rows or columns, as an array for each leaf."""
    if is_leaf(layout) or not isinstance(obs, np.ndarray):
        return obs
    return map_tree(lambda leaf, *values: column_of(leaf, values), layout, *obs)


def column_of(leaf: Leaf, values: Sequence[Any]) -> Array:
    """Return ``k`` values of a leaf as an array ``(k, ...)``; objects as ``stack_objects``."""
    if leaf.dtype is None:
        return stack_objects(list(values), leaf)
    return np.asarray(values, leaf.dtype).reshape(len(values), *leaf.shape)


def copy_row(layout: Any, columns: Sequence[Array], i: int) -> Any:
    """Return a copy of value ``i`` of a batch, from an array ``(k, ...)`` per leaf."""
    return snapshot(as_rows(layout, [column[i : i + 1] for column in columns], 1)[0])


def fit(value: Any, shape: tuple[int, ...], dtype: Any, what: str, space: str) -> Array:
    """Return ``value`` as an array of exactly this shape and dtype.

    Accepted are equal values of any numeric type, floats of another precision, and one element in
    place of a scalar. TypeError for values that are no numbers; ValueError for another shape, or
    for values that the dtype cannot hold.
    """
    try:
        array = np.asarray(value)
    except ordinary(TypeError, ValueError) as error:
        raise TypeError(f"{what} can't be made into an array: {error}") from None
    if array.dtype.kind not in "biufc":
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"a {type(value).__name__}"
        if array.dtype.kind == "O" and all(isinstance(each, int) for each in array.flat):
            raise ValueError(f"{what} is {shown}, which {space}, of dtype {dtype}, can't hold")
        raise TypeError(f"{what} is {shown}, but {space} has numbers of dtype {dtype}")
    if array.shape != shape:
        if shape or array.size != 1:
            raise ValueError(f"{what} has shape {array.shape}, but {space} has {shape}")
        array = array.reshape(())  # one element in place of a scalar
    if array.dtype == dtype:
        return array
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        cast = array.real.astype(dtype) if dtype.kind != "c" else array.astype(dtype)
        is_float = array.dtype.kind == dtype.kind and dtype.kind in "fc"
        held = np.isfinite(cast) | ~np.isfinite(array) if is_float else cast == array
    if not held.all():
        detail = f" (got {array[()]})" if array.ndim == 0 else ""
        text = f"{what} has dtype {array.dtype} and values{detail} that {space}, of dtype {dtype},"
        raise ValueError(f"{text} can't hold without loss")
    return cast


def stack_objects(values: list[Any], leaf: Leaf) -> Array:
    """Return the rows of an object leaf as an object array ``(k,)``.

    If a ``stacked`` leaf has arrays or numbers of one shape, return one array ``(k, ...)``.
    """
    if leaf.stacked and values and all(isinstance(value, NUMERIC) for value in values):
        arrays = [np.asarray(value) for value in values]
        if all(a.shape == arrays[0].shape and a.dtype.kind in "biufc" for a in arrays):
            return np.stack(arrays)
    return objects(values)


def snapshot(value: Any) -> Any:
    """Return a deep copy of ``value``; envs, and objects that cannot be copied, unchanged."""
    try:
        return _snapshot(value)
    except RecursionError:  # it holds itself
        return copy.deepcopy(value)


def _snapshot(value: Any) -> Any:
    kind = type(value)
    if kind is dict:  # the most frequent cases first
        if _IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: _snapshot(part) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(value if _IMMUTABLE.issuperset(map(type, value)) else map(_snapshot, value))
    if kind in _IMMUTABLE:
        return value
    # A structured scalar (void) may be a view of an array.
    if isinstance(value, (np.ndarray, np.void)) and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, (np.generic, gym.Env)):
        return value
    if isinstance(value, dict):
        own = getattr(value, "__dict__", {})  # maybe the dict itself
        parts, own = ({key: _snapshot(part) for key, part in of.items()} for of in (value, own))
        with suppressed():  # it may forbid changes
            clone = copy.copy(value)
            for key, part in parts.items():
                clone[key] = part
            if own:
                vars(clone).update(own)
            return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind._make(map(_snapshot, value))
    try:
        return copy.deepcopy(value, _DTYPES.copy())
    except ordinary():  # it cannot be copied
        return value


def batch_actions(layout: Any, actions: Any, ids: Sequence[int]) -> list[Array] | None:
    """Return the actions of a batch as one array ``(k, *shape)`` per leaf.

    ``actions`` are an array of shape ``(k, *shape)`` or a sequence of ``k`` actions; for a Dict or
    Tuple space also a dict or a tuple of arrays ``(k, ...)``. ``ids`` are the envs, for messages.
    Return None if no array can hold them: the layout is not fixed, or an action is None; use
    ``list_actions`` then. TypeError and ValueError as of ``split`` and ``fit``, or if there is not
    one action per id.
    """
    found = leaves(layout)
    fixed = all(leaf.dtype is not None for leaf in found)
    columns = _columns(layout, actions, ids) if fixed else None
    if columns is None:
        return None
    return list(map(_stack, found, columns, repeat(ids)))


def list_actions(layout: Any, actions: Any, ids: Sequence[int]) -> list[Any]:
    """Return the actions of a batch one by one, in the types that the space samples.

    For layouts that are not fixed, and for batches in which an action is None. Fixed leaves are
    checked, with the errors of ``batch_actions``.
    """
    if is_leaf(layout) and layout.dtype is None:  # such as text: nothing to check
        return list(_checked(actions, len(ids)))
    columns, rows = _columns(layout, actions, ids), actions
    if columns is not None and not is_leaf(layout):
        rows = [join(layout, [column[k] for column in columns]) for k in range(len(ids))]
    return [
        None if row is None else fit_tree(layout, row, f"env {i}: action", "action_space")
        for i, row in zip(ids, rows, strict=True)
    ]


def fit_tree(layout: Any, value: Any, what: str, space: str) -> Any:
    """Return ``value`` with every fixed leaf converted by ``fit``; other leaves unchanged."""
    parts = split(layout, value, what)
    for n, leaf in enumerate(leaves(layout)):
        if leaf.dtype is not None and leaf.code is None:
            array = fit(parts[n], leaf.shape, leaf.dtype, leaf.name(what), space)
            # A copy: later changes of the caller's array must not reach the env.
            is_scalar = leaf.scalar or not (leaf.shape or leaf.path)  # as ``actions[i]`` is
            parts[n] = array[()] if is_scalar else array.copy()
    return join(layout, parts)


def _columns(layout: Any, actions: Any, ids: Sequence[int]) -> list[Any] | None:
    """Return the actions of a batch leaf by leaf; None if one of them is None."""
    if isinstance(layout, dict):
        has_columns = isinstance(actions, Mapping)
    else:
        has_columns = (
            not is_leaf(layout)
            and isinstance(actions, tuple)
            and len(actions) == len(layout)
            and all(isinstance(part, (np.ndarray, Mapping)) for part in actions)
        )
    if has_columns:
        return [_checked(column, len(ids)) for column in split(layout, actions, "actions")]
    if any(map(is_, _checked(actions, len(ids)), repeat(None))):
        return None
    if is_leaf(layout):
        return [actions]
    trees = [split(layout, each, f"env {i}: action") for i, each in zip(ids, actions, strict=True)]
    return [[tree[n] for tree in trees] for n in range(len(leaves(layout)))]


def _checked(actions: Any, count: int) -> Any:
    """Return ``actions``; raise unless there is one per env."""
    is_wrong = isinstance(actions, (str, bytes)) or not hasattr(actions, "__len__")
    # The test of a Mapping takes longer than the rest.
    if is_wrong or (type(actions) is not list and isinstance(actions, Mapping)):
        got = type(actions).__name__
        raise TypeError(f"actions: expected {count} actions, one per env; got {got}")
    try:
        length = len(actions)
    except ordinary(TypeError):  # an array, or a tensor, of no dimension
        raise TypeError(f"actions: expected {count} actions, one per env; got a scalar") from None
    if length != count:
        raise ValueError(f"got {length} actions for {count} envs; pass one per env")
    return actions


def _stack(leaf: Leaf, rows: Any, ids: Sequence[int]) -> Array:
    """Return ``rows`` as one array of the leaf's dtype; an error names the env."""
    name = leaf.name("action")
    try:
        return fit(rows, (len(ids), *leaf.shape), leaf.dtype, name, "action_space")
    except ordinary(TypeError, ValueError):
        column = np.empty((len(ids), *leaf.shape), leaf.dtype)
        for k, (i, row) in enumerate(zip(ids, rows, strict=True)):
            column[k] = fit(row, leaf.shape, leaf.dtype, f"env {i}: {name}", "action_space")
        return column
