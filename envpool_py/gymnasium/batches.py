"""A pool's observations as elements of batched spaces: arrays, or tuples of ``n`` values."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from envpool_py.ids import IdArray

_FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_RAGGED = (spaces.Text, spaces.Graph, spaces.Sequence, spaces.OneOf)


def has_custom_space(space: Space[Any]) -> bool:
    """Whether ``space``, or a space in it, is none of Gymnasium's."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(has_custom_space(part) for _, part in _parts(space))
    return not isinstance(space, (*_FIXED, *_RAGGED))


def from_pool(space: Space[Any], obs: Any) -> Any:
    """The observations of a pool, made with ``columns`` or without, in Gymnasium's form."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        if not isinstance(space, _FIXED):
            return tuple(obs)
        return np.asarray(obs, space.dtype).reshape(len(obs), *(space.shape or ()))
    if isinstance(obs, (np.ndarray, list)):  # rows
        obs = {key: [row[key] for row in obs] for key, _ in _parts(space)}
    columns = {key: from_pool(part, obs[key]) for key, part in _parts(space)}
    return columns if isinstance(space, spaces.Dict) else tuple(columns.values())


def put(space: Space[Any], batch: Any, ids: IdArray, rows: Any) -> Any:
    """``batch`` with ``rows`` in the places ``ids``; arrays are changed, all else is new."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        columns = {key: put(part, batch[key], ids, rows[key]) for key, part in _parts(space)}
        return columns if isinstance(space, spaces.Dict) else tuple(columns.values())
    if isinstance(space, _FIXED):
        batch[ids] = rows
        return batch
    values = dict(enumerate(batch or ())) | dict(zip(ids.tolist(), rows, strict=True))
    return tuple(value for _, value in sorted(values.items()))


def _parts(space: Any) -> Any:
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
