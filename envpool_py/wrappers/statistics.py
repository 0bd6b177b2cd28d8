"""Running statistics for the leaves of a space, and their file. Functions.

A tree has the form of the observations: one ``RunningMeanStd`` for a single array, a dict of trees
for a Dict, a tuple of trees for a Tuple. A part that is not normalised is None.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env import spaces
from envpool_py.env.spaces import map_tree
from envpool_py.wrappers.running_mean_std import RunningMeanStd

#: The type of ``VectorEnvNormObs.obs_rms``.
Statistics: TypeAlias = "RunningMeanStd | dict[Any, Statistics] | tuple[Statistics, ...] | None"

_Path: TypeAlias = "tuple[Any, ...]"

_FIELDS = ("mean", "var", "count", "clip_max", "eps")


def for_space(space: gym.Space[Any] | None) -> Statistics:
    """Return new statistics for the observations of ``space``; None: no space is declared.

    In a Dict or a Tuple only Box leaves are normalised, because a Discrete or MultiBinary leaf is a
    category or a mask. TypeError if the space has nothing to normalise.
    """
    if space is None or space.shape is not None:
        return RunningMeanStd()
    tree: Statistics = map_tree(
        lambda part: RunningMeanStd() if isinstance(part, gym.spaces.Box) else None,
        spaces.parts_of(space),
    )
    if not list(leaves(tree)):
        raise TypeError(f"observation_space: {space} has nothing to normalise")
    return tree


def leaves(tree: Statistics, path: _Path = ()) -> Iterator[tuple[_Path, RunningMeanStd]]:
    """Yield the path and the statistics of every leaf that is normalised, depth first."""
    if isinstance(tree, (dict, tuple)):
        for key, part in _parts(tree).items():
            yield from leaves(part, (*path, key))
    elif tree is not None:
        yield path, tree


def check(tree: Statistics, space: gym.Space[Any] | None, name: str) -> None:
    """Check that ``tree`` can normalise the observations of ``space``; None: undeclared.

    TypeError if a part of the tree is no statistics, or of another kind than the space; ValueError
    for other keys, another length or shape.
    """
    if isinstance(tree, (dict, tuple)):
        kind = gym.spaces.Dict if isinstance(tree, dict) else gym.spaces.Tuple
        own: dict[Any, gym.Space[Any]] = {}
        if isinstance(space, kind):
            own = _parts(space.spaces)
            _require_same(tree, own, name, "the space")
        elif space is not None:
            raise TypeError(f"{name}: got a {type(tree).__name__}, but the space is {space}")
        for key, part in _parts(tree).items():
            check(part, own.get(key), f"{name}[{key!r}]")
    elif tree is not None:
        if not (hasattr(tree, "update") and hasattr(tree, "norm")):
            raise TypeError(f"{name}: got {tree!r}, but it must be a RunningMeanStd or None")
        if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
            raise TypeError(f"{name}: got {tree!r}, but the space is {space}")
        shape = np.shape(tree.mean)
        declared = None if space is None else space.shape
        if declared is not None and shape not in ((), declared):
            raise ValueError(f"{name}: has shape {shape}, but the space has {declared}")


def normalise(tree: Statistics, batch: Any, *, update: bool) -> Any:
    """Return the batch with every leaf normalised; with ``update`` update the statistics first.

    The batch, which is not written to, is an array ``(k, ...)``, an object array ``(k,)`` of dicts
    or tuples, or a dict or tuple of arrays; so is the result. TypeError for rows that are no
    numbers where the tree has a ``RunningMeanStd``, ValueError for other keys, lengths or shapes.
    """
    rows_of_objects = isinstance(batch, np.ndarray) and batch.dtype == object
    if tree is None or (rows_of_objects and not len(batch)):
        return batch
    if isinstance(tree, (dict, tuple)):
        if rows_of_objects:
            return _normalise_rows(tree, batch, update=update)
        _require_same(batch, _parts(tree), "obs", "obs_rms")
        parts = _parts(batch).items()
        columns = {key: normalise(tree[key], part, update=update) for key, part in parts}
        return columns if isinstance(tree, dict) else tuple(columns.values())
    if rows_of_objects or not isinstance(batch, np.ndarray):
        row = batch[0] if rows_of_objects else batch
        raise TypeError(
            f"obs: got a {type(row).__name__}, which one RunningMeanStd can't normalise; declare"
            " an observation_space, or give set_obs_rms statistics of the observation's form"
        )
    if update:
        tree.update(batch)
    return tree.norm(batch)


def _normalise_rows(tree: Any, rows: NDArray[Any], *, update: bool) -> NDArray[Any]:
    """Normalise an object array of dicts or tuples: as columns, then split into rows again."""
    for row in rows:
        _require_same(row, _parts(tree), "obs", "obs_rms")
    layout = _layout_of(tree, rows[0])
    columns = normalise(tree, spaces.as_columns(layout, rows), update=update)
    parts = spaces.split(layout, columns, "obs")
    return spaces.as_rows(layout, parts, len(rows))


def _layout_of(tree: Any, row: Any) -> Any:
    """Return a layout of rows like this one, in their order; statistics are of stacked leaves."""
    if isinstance(tree, dict):
        return {key: _layout_of(tree[key], part) for key, part in row.items()}
    if isinstance(tree, tuple):
        return tuple(map(_layout_of, tree, row))
    return spaces.Leaf((), (), None, stacked=tree is not None)


def normalised_space(tree: Statistics, space: Any) -> Any:
    """Return the space of the normalised observations of ``space``; None: not known."""

    def normalised(part: Any, rms: Any) -> Any:
        if rms is None:
            return part
        if part.shape is None or part.dtype is None:
            return None
        dtype = part.dtype if np.issubdtype(part.dtype, np.floating) else np.float64
        limit = rms.clip_max or np.inf
        return gym.spaces.Box(-limit, limit, part.shape, dtype)

    if tree is None or space is None:
        return space
    return spaces.space_of(map_tree(normalised, spaces.parts_of(space), tree))


def save(tree: Statistics, path: str | os.PathLike[str]) -> None:
    """Write the statistics of every leaf to an .npz file, whole or not at all.

    ``paths`` in the file is a JSON list of the leaves' paths; ``mean_0``, ``var_0``, ``count_0``,
    ``clip_max_0`` (infinite for no limit) and ``eps_0`` belong to the first, and so on.
    """
    arrays: dict[str, Any] = {}
    paths = []
    for n, (leaf_path, leaf) in enumerate(leaves(tree)):
        paths.append(leaf_path)
        for field in _FIELDS:
            arrays[f"{field}_{n}"] = getattr(leaf, field)
        arrays[f"clip_max_{n}"] = leaf.clip_max or np.inf
    target = Path(path)
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            np.savez(file, paths=np.array(json.dumps(paths)), **arrays)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def load(tree: Statistics, space: gym.Space[Any] | None, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save`` into the leaves of ``tree``; nothing in the file is unpickled.

    ValueError if it is no file of ``save``, or has statistics of other observations than those of
    ``tree`` and ``space``; ``tree`` does not change then.
    """
    name = os.fspath(path)
    stored = _read(name)
    present = dict(leaves(tree))
    if stored.keys() != present.keys():
        raise ValueError(
            f"{name}: has statistics at {sorted(map(str, stored))},"
            f" but obs_rms has them at {sorted(map(str, present))}"
        )
    new = (stored[leaf_path] for leaf_path in present)
    check(map_tree(lambda leaf: None if leaf is None else next(new), tree), space, name)
    for leaf_path, leaf in present.items():
        for field in _FIELDS:
            setattr(leaf, field, getattr(stored[leaf_path], field))


def _read(name: str) -> dict[_Path, RunningMeanStd]:
    malformed = (LookupError, TypeError, ValueError, AttributeError, EOFError, zipfile.BadZipFile)
    try:
        with np.load(name, allow_pickle=False) as file:
            paths = json.loads(str(file["paths"]))
            return {tuple(path): _leaf(file, n) for n, path in enumerate(paths)}
    except malformed as error:
        raise ValueError(f"{name}: is no file that VectorEnvNormObs.save wrote") from error


def _leaf(file: Any, n: int) -> RunningMeanStd:
    mean, var, *numbers = (file[f"{field}_{n}"] for field in _FIELDS)
    count, limit, epsilon = (number.item() for number in numbers)
    leaf = RunningMeanStd(mean, np.sqrt(var), limit if limit < np.inf else None, epsilon, count)
    leaf.var = np.asarray(var, dtype=np.float64)  # the square of the root would differ
    if mean.shape != var.shape:
        raise ValueError(f"var_{n} has shape {var.shape}, but mean_{n} has {mean.shape}")
    return leaf


def _parts(tree: Any) -> dict[Any, Any]:
    return dict(tree if isinstance(tree, dict) else enumerate(tree))


def _require_same(value: Any, parts: dict[Any, Any], name: str, other: str) -> None:
    if not isinstance(value, (dict, tuple)):
        raise TypeError(f"{name}: got a {type(value).__name__}, but {other} has {list(parts)}")
    if _parts(value).keys() != parts.keys():
        raise ValueError(f"{name}: has {list(_parts(value))}, but {other} has {list(parts)}")
