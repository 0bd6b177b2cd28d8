"""The seeds of the episodes that a collector starts."""

from __future__ import annotations

from collections.abc import Sequence

from envpool_py import seeding
from envpool_py.pool.base import BaseVectorEnv


class EpisodeSeeds:
    """The seeds of the envs and of their running episodes.

    Attributes:
        of_env: by env, the seed of its first episode, or that of which the pool makes all others.
        of_episode: by env, the seed of its last reset.
    """

    def __init__(self, pool: BaseVectorEnv, seeds: list[int | None]) -> None:
        self._inner = pool._inner
        self._unused = dict(enumerate(seeds))
        self.of_env = list(seeds)
        self.of_episode: list[int | None] = [None] * len(seeds)

    def take(self, env_ids: Sequence[int]) -> list[int | None]:
        """The seeds for resets of these envs: each env's only once."""
        for i in env_ids:
            self.of_episode[i] = self._unused.pop(i, None)
        return [self.of_episode[i] for i in env_ids]

    def begin(self, env_ids: Sequence[int]) -> None:
        """The episodes of these envs have begun, and their first rows are there."""
        options = self._inner.env_options
        for i in env_ids:
            root, episode = self._inner.episode_of(i)
            if options.episode_seeds and root is not None:
                self.of_env[i], self.of_episode[i] = root, seeding.of_episode(root, episode)
            elif options.reset_fn is not None and self.of_episode[i] is None:
                self.of_episode[i], _ = options.reset_fn(i, episode)
