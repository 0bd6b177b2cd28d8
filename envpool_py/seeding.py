"""The seed of each env, and of each episode of an env. Pure functions."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seed", "of_episode", "of_restart", "per_env"]

_One: TypeAlias = SupportsIndex | np.random.SeedSequence
#: The values of ``seed=``: one for all envs, or one per env.
Seed: TypeAlias = _One | Sequence[_One | None] | NDArray[Any] | None


def per_env(seed: Seed, ids: Sequence[int]) -> list[int | None]:
    """Return the seed of each env in ``ids``; None: no seed.

    An int ``s`` gives ``s + env_id``, a ``SeedSequence`` gives its child number ``env_id``. A list
    or array has one entry per id: an int, None or a ``SeedSequence``.

    Raises:
        TypeError: a seed is not an integer.
        ValueError: a seed is negative, or there is not one seed per id.
    """
    if isinstance(seed, np.random.SeedSequence):
        key, size = seed.spawn_key, seed.pool_size
        return [_draw_word(seed.entropy, (*key, i), pool_size=size) for i in ids]
    if isinstance(seed, np.ndarray) and seed.ndim == 0:
        seed = seed[()]
    if isinstance(seed, (list, tuple, range, np.ndarray)):
        if len(seed) != len(ids):
            raise ValueError(f"got {len(seed)} seeds for {len(ids)} envs; pass one per env")
        return [_checked_seed(entry, f"env {i}: ") for entry, i in zip(seed, ids, strict=True)]
    base = _checked_seed(seed)
    return [None if base is None else base + i for i in ids]


def of_episode(root: int, episode: int) -> int:
    """Return the seed of an env's ``episode`` (0, 1, 2, ...) with ``episode_seeds=True``.

    Episode 0 has the env's seed ``root``. Episode ``k`` has the first word of
    ``numpy.random.SeedSequence(root, spawn_key=(k,))``, so the episodes' streams are independent.
    """
    return root if episode == 0 else _draw_word(root, (episode,))


def of_restart(root: int, restarts: int, episode: int) -> int:
    """Return the seed of the first reset of an env that was recreated before this ``episode``.

    It is the first word of ``numpy.random.SeedSequence(root, spawn_key=(restarts, episode))``, with
    the env's last seed ``root`` and its number of restarts: the run can be repeated, and no new env
    repeats an earlier episode.
    """
    return _draw_word(root, (restarts, episode))


def _draw_word(entropy: Any, key: tuple[int, ...], **options: int) -> int:
    return int(np.random.SeedSequence(entropy, spawn_key=key, **options).generate_state(1)[0])


def _checked_seed(seed: Any, where: str = "") -> int | None:
    """Return ``seed`` as an int, 0 or more, or None; error messages begin with ``where``."""
    if seed is None:
        return None
    if isinstance(seed, np.random.SeedSequence):
        return int(seed.generate_state(1)[0])
    value: int | None = None
    if not isinstance(seed, (bool, np.bool_)):
        with contextlib.suppress(TypeError):
            value = operator.index(seed)
    if value is None:
        raise TypeError(f"{where}seed must be an int or None, got {type(seed).__name__} {seed!r}")
    if value < 0:
        raise ValueError(f"{where}seed must be 0 or more, got {value}")
    return value
