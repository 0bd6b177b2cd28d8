"""Seeds: of env ``i``, and of its episode ``k``. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias

import numpy as np

#: What ``seed=`` takes: one value for all envs, or one for each.
Seed: TypeAlias = (
    "SupportsIndex | np.random.SeedSequence"
    " | Sequence[SupportsIndex | np.random.SeedSequence | None] | np.ndarray | None"
)


def per_env(seed: Seed, ids: Sequence[int]) -> list[int | None]:
    """The seed of each of the envs ``ids``.

    Args:
        seed: None: no seed. An int ``s``: ``s + env_id`` for each env. A ``SeedSequence``: its
            child number ``env_id`` for each env. A list or array: one entry (an int, None or a
            ``SeedSequence``) for each of ``ids``, in that order.
        ids: env ids.

    Raises:
        TypeError: a seed is not an integer.
        ValueError: a seed is negative, or their number is not that of ``ids``.
    """
    if seed is None:
        return [None] * len(ids)
    if isinstance(seed, np.random.SeedSequence):
        return [_state(seed, i) for i in ids]
    if isinstance(seed, np.ndarray) and seed.ndim == 0:
        seed = seed[()]
    if isinstance(seed, (list, tuple, range, np.ndarray)):
        if len(seed) != len(ids):
            raise ValueError(f"got {len(seed)} seeds for {len(ids)} envs")
        return [
            _state(entry) if isinstance(entry, np.random.SeedSequence) else _checked(entry, i)
            for entry, i in zip(seed, ids, strict=True)
        ]
    base = _checked(seed, None)
    if base is None:
        return [None] * len(ids)
    return [base + i for i in ids]


def of_episode(root: int, episode: int) -> int:
    """The seed of an env's ``episode`` (0, 1, 2, ...), under ``episode_seeds=True``.

    Episode 0 takes the env's seed as it is; episode ``k`` the first word of
    ``numpy.random.SeedSequence(root, spawn_key=(k,))``, whose streams do not depend on each other.
    """
    if episode == 0:
        return root
    return int(np.random.SeedSequence(root, spawn_key=(episode,)).generate_state(1)[0])


def _state(sequence: np.random.SeedSequence, child: int | None = None) -> int:
    if child is not None:
        sequence = np.random.SeedSequence(
            sequence.entropy, spawn_key=(*sequence.spawn_key, child), pool_size=sequence.pool_size
        )
    return int(sequence.generate_state(1)[0])


def _checked(seed: object, env_id: int | None) -> int | None:
    where = "" if env_id is None else f"env {env_id}: "
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, SupportsIndex):
        raise TypeError(f"{where}seed must be an int or None, got {type(seed).__name__} {seed!r}")
    try:
        value = seed.__index__()
    except TypeError:
        raise TypeError(
            f"{where}seed must be an int or None, got {type(seed).__name__} {seed!r}"
        ) from None
    if value < 0:
        raise ValueError(f"{where}seed must be 0 or more, got {value}")
    return value
