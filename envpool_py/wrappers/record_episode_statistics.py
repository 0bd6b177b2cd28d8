"""Record return, length and time of each episode, in its last info and in queues."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import Array
from envpool_py.env_ids import IdArray
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.wrappers.vector import EpisodeWrapper


class RecordEpisodeStatistics(EpisodeWrapper):
    """Add ``info["episode"]`` to the row that ends an episode, for partial batches too.

    The dict has the keys of Gymnasium's wrapper: ``"r"`` the return (a float; an array ``(m,)``
    for vector rewards), ``"l"`` the number of steps, ``"t"`` the seconds since the reset. An
    episode that ends by a restart (``info["env_error"]``) counts as well.

    For envs with one agent: an episode ends where ``terminated`` or ``truncated`` is true.

    Args:
        venv: the pool to wrap.
        buffer_length: how many episodes the queues hold.
        stats_key: the entry of the info.

    Attributes:
        return_queue, length_queue, time_queue: the values of the latest episodes, of all envs.
        episode_count: the number of episodes that have ended.

    Raises:
        ValueError: an episode ended, and its info has an entry ``stats_key`` already.
    """

    def __init__(
        self, venv: BaseVectorEnv, buffer_length: int = 100, stats_key: str = "episode"
    ) -> None:
        super().__init__(venv)
        self.return_queue: deque[Any] = deque(maxlen=buffer_length)
        self.length_queue: deque[int] = deque(maxlen=buffer_length)
        self.time_queue: deque[float] = deque(maxlen=buffer_length)
        self.episode_count = 0
        self._stats_key = stats_key
        self._returns: Array = np.zeros(len(venv))
        self._lengths = np.zeros(len(venv), np.int64)
        self._starts = np.full(len(venv), time.perf_counter())

    def _begin(self, ids: IdArray) -> None:
        self._returns[ids] = 0
        self._lengths[ids] = 0
        self._starts[ids] = time.perf_counter()

    def _stepped(self, ids: IdArray, stepped: NDArray[np.bool_], batch: tuple[Any, ...]) -> Any:
        _, reward, terminated, truncated, infos = batch
        if self._returns.ndim < reward.ndim and len(ids):
            self._returns = np.zeros((len(self), *reward.shape[1:]))
        self._returns[ids[stepped]] += reward[stepped]
        self._lengths[ids[stepped]] += 1
        ended = terminated | truncated
        for env_id, info in zip(ids[ended].tolist(), infos[ended], strict=True):
            if self._stats_key in info:
                raise ValueError(
                    f"env {env_id}: the info has an entry {self._stats_key!r} already; pass another"
                    " stats_key, or remove the other wrapper that adds it"
                )
            info[self._stats_key] = self._finish(env_id)
        return batch

    def _finish(self, env_id: int) -> dict[str, Any]:
        total = self._returns[env_id]
        episode: dict[str, Any] = {
            "r": total.copy() if total.ndim else float(total),
            "l": int(self._lengths[env_id]),
            "t": round(time.perf_counter() - float(self._starts[env_id]), 6),
        }
        self.return_queue.append(episode["r"])
        self.length_queue.append(episode["l"])
        self.time_queue.append(episode["t"])
        self.episode_count += 1
        return episode
