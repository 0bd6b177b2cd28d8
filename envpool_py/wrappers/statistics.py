"""Running statistics for the leaves of a space, and their file. Functions.

A tree has the form of the observations: one ``RunningMeanStd`` for a single array, a dict of trees
for a Dict, a tuple of trees for a Tuple. A part that is not normalised is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env import spaces
from envpool_py.env.spaces import map_tree
from envpool_py.record import untrusted_files
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
        spaces.tree_of(space),
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
    """Raise TypeError or ValueError unless ``tree`` fits ``space``; None: undeclared."""
    if isinstance(tree, (dict, tuple)):
        kind = gym.spaces.Dict if isinstance(tree, dict) else gym.spaces.Tuple
        if space is not None and not isinstance(space, kind):
            raise TypeError(f"{name}: got a {type(tree).__name__}, but the space is {space}")
        own = _parts(tree if space is None else space.spaces)
        _require_same(tree, own, name, "the space")
        for key, part in _parts(tree).items():
            check(part, None if space is None else own[key], f"{name}[{key!r}]")
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

    A batch, which does not change, is an array ``(k, ...)``, an object array ``(k,)`` of dicts or
    tuples, or a dict or tuple of arrays. TypeError or ValueError if the tree has another form.
    """
    in_rows = isinstance(batch, np.ndarray) and batch.dtype == object
    if in_rows and not len(batch):
        return batch

    def change(column: Any, rms: Any) -> Any:
        if rms is None:
            return column
        if not isinstance(column, np.ndarray) or column.dtype == object:
            row = column[0] if isinstance(column, np.ndarray) else column
            hint = "declare an observation_space, or give set_obs_rms statistics of its form"
            got = f"got a {type(row).__name__}, which one RunningMeanStd can't normalise"
            raise TypeError(f"obs: {got}; {hint}")
        if update:
            rms.update(column)
        return rms.norm(column)

    first, *others = batch if in_rows else [batch]
    layout = _layout_of(tree, first)
    for row in others:
        spaces.split(layout, row, "obs")  # an error, if its form is another
    columns = spaces.as_columns(layout, batch)
    parts = map(change, spaces.split(layout, columns, "obs"), spaces.split(layout, tree, "obs"))
    if in_rows and not spaces.is_leaf(layout):
        return spaces.as_rows(layout, list(parts), len(batch))
    return spaces.join(layout, parts)


def _layout_of(tree: Any, value: Any) -> Any:
    """Return a layout in the order of this row or batch; statistics are of stacked leaves."""
    if not isinstance(tree, (dict, tuple)):
        return spaces.Leaf((), (), None, stacked=tree is not None)
    _require_same(value, _parts(tree), "obs", "obs_rms")
    layout = {key: _layout_of(tree[key], part) for key, part in _parts(value).items()}
    return layout if isinstance(tree, dict) else tuple(layout.values())


def normalised_space(tree: Statistics, space: Any) -> Any:
    """Return the space of the normalised observations of ``space``; None: not known."""
    if tree is None or space is None:
        return space
    if isinstance(tree, (dict, tuple)):
        own = _parts(space.spaces).items()
        parts = {key: normalised_space(tree[key], part) for key, part in own}
        return spaces.space_of(parts if isinstance(tree, dict) else tuple(parts.values()))
    if space.shape is None or space.dtype is None:
        return None
    dtype = space.dtype if np.issubdtype(space.dtype, np.floating) else np.float64
    limit = tree.clip_max or np.inf
    return gym.spaces.Box(-limit, limit, space.shape, dtype)


def save(tree: Statistics, path: str | os.PathLike[str]) -> None:
    """Write the statistics of every leaf to an .npz file, whole or not at all.

    ``paths`` in the file is a JSON list of the leaves' paths; ``mean_0``, ``var_0``, ``count_0``,
    ``clip_max_0`` (infinite for no limit) and ``eps_0`` belong to the first, and so on.
    """
    found = dict(leaves(tree))
    arrays: dict[str, Any] = {"paths": np.array(json.dumps(list(found)))}
    for n, leaf in enumerate(found.values()):
        arrays |= {f"{field}_{n}": getattr(leaf, field) for field in _FIELDS}
        arrays[f"clip_max_{n}"] = leaf.clip_max or np.inf
    target = Path(path)
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            np.savez(file, **arrays)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def load(tree: Statistics, space: gym.Space[Any] | None, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save`` into the leaves of ``tree``; ValueError if it has another form."""
    name = os.fspath(path)
    with untrusted_files.field(f"{name}: is no file that VectorEnvNormObs.save wrote"):
        file = untrusted_files.read_archive(Path(name))
        paths = json.loads(untrusted_files.text_of(file["paths"]))
        stored = {tuple(leaf_path): _leaf(file, n) for n, leaf_path in enumerate(paths)}
    present = dict(leaves(tree))
    if stored.keys() != present.keys():
        there, here = sorted(map(str, stored)), sorted(map(str, present))
        raise ValueError(f"{name}: has statistics at {there}, but obs_rms has them at {here}")
    new = (stored[leaf_path] for leaf_path in present)
    check(map_tree(lambda leaf: None if leaf is None else next(new), tree), space, name)
    for leaf_path, leaf in present.items():
        vars(leaf).update(vars(stored[leaf_path]))


def _leaf(file: dict[str, NDArray[Any]], n: int) -> RunningMeanStd:
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
