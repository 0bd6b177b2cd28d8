"""The seeds of the episodes that a collector starts."""

from __future__ import annotations

from collections.abc import Sequence

from envpool_py import seeding
from envpool_py.pool.base import BaseVectorEnv


class EpisodeSeeds:
    """The seeds of the envs and of their running episodes.

    Attributes:
        of_env: by env, the seed of its first episode, or that of which the pool makes all others.
        of_episode: by env, the seed that its last reset was given.
    """

    def __init__(self, pool: BaseVectorEnv, seeds: list[int | None]) -> None:
        self._engine = pool.engine
        self._unused = dict(enumerate(seeds))
        self._given: dict[int, int | None] = {}
        self.of_env = list(seeds)
        self.of_episode: list[int | None] = [None] * len(seeds)

    def take(self, env_ids: Sequence[int]) -> list[int | None]:
        """The seeds for resets of these envs: each env's only once."""
        seeds = [self._unused.pop(i, None) for i in env_ids]
        self._given.update(zip(env_ids, seeds, strict=True))
        return seeds

    def begin(self, env_ids: Sequence[int]) -> None:
        """The episodes of these envs have begun, and their first rows are there."""
        for i in env_ids:
            seed = self._given.pop(i, None)
            options, positions = self._engine.options.env, self._engine.flight.positions
            reset_fn = options.reset_fn
            episode, root = max(positions.returned(i)[0], 0), positions.roots[i]
            if options.episode_seeds and root is not None:
                self.of_env[i], seed = root, seeding.of_episode(root, episode)
            elif reset_fn is not None and seed is None:
                seed, _ = reset_fn(i, episode)
            self.of_episode[i] = seed
