"""``Monitor``: return, length and time of every episode, in the infos and in a CSV file."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from envpool_py.env.executor import Recreated


class EpisodeLog:
    """What ``Monitor`` and ``VecMonitor`` share, a mixin: the time of the start, and the file."""

    def _begin_log(
        self,
        filename: str | None,
        spec: Any,
        keys: tuple[str, ...],
        info_keywords: tuple[str, ...],
        override_existing: bool = True,
    ) -> None:
        self.t_start = time.time()
        self.info_keywords = info_keywords
        self.results_writer: ResultsWriter | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": str(getattr(spec, "id", None))}
            columns = (*keys, *info_keywords)
            # An env that a pool recreates continues the file of the env before it.
            override_existing &= not Recreated.is_being_made()
            self.results_writer = ResultsWriter(filename, header, columns, override_existing)
            self.t_start = self.results_writer.t_start

    def _logged(self, total: Any, length: Any, info: Mapping[str, Any], **more: Any) -> Any:
        """Write an episode that has ended; return its ``info["episode"]``."""
        seconds = round(time.time() - self.t_start, 6)
        of_info = {key: info[key] for key in self.info_keywords}
        episode = {"r": total, "l": length, "t": seconds, **of_info, **more}
        if self.results_writer is not None:
            self.results_writer.write_row(episode)
        return episode

    def close(self) -> None:
        """Close what is wrapped, and the file."""
        try:
            super().close()  # type: ignore[misc]
        finally:
            if self.results_writer is not None:
                self.results_writer.close()


class Monitor(EpisodeLog, gym.Wrapper[Any, Any, Any, Any]):
    """Adds ``info["episode"]`` to the last step of every episode.

    That is a dict of ``r`` (the return, to 6 digits), ``l`` (the length), ``t`` (seconds since the
    monitor was made, to 6 digits), of the entries ``info_keywords`` of the last info, and of the
    arguments ``reset_keywords`` of ``reset``, which are then required. A ``filename`` gets one line
    per episode, see ``ResultsWriter``; if a pool restarts the env, the file and ``t`` go on.
    Without ``allow_early_resets``, ``reset`` may not end an episode before its time.
    """

    EXT = "monitor.csv"

    def __init__(
        self,
        env: gym.Env[Any, Any],
        filename: str | None = None,
        allow_early_resets: bool = True,
        reset_keywords: tuple[str, ...] = (),
        info_keywords: tuple[str, ...] = (),
        override_existing: bool = True,
    ) -> None:
        super().__init__(env)
        self._begin_log(filename, env.spec, reset_keywords, info_keywords, override_existing)
        self.allow_early_resets = allow_early_resets
        self.reset_keywords = reset_keywords
        self.rewards: list[float] = []
        self.needs_reset = True
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        self.total_steps = 0
        self.current_reset_info: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env with these arguments.

        RuntimeError if the episode has not ended and ``allow_early_resets`` is off, ValueError if
        one of ``reset_keywords`` is missing.
        """
        if not self.allow_early_resets and not self.needs_reset:
            raise RuntimeError("reset: the episode has not ended, and allow_early_resets is False")
        for key in self.reset_keywords:
            if kwargs.get(key) is None:
                raise ValueError(f"reset: the argument {key!r} is missing, which Monitor writes")
            self.current_reset_info[key] = kwargs[key]
        self.rewards = []
        self.needs_reset = False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; RuntimeError if it was not reset since its last episode ended."""
        if self.needs_reset:
            raise RuntimeError("step: the env was not reset since its last episode ended")
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(float(reward))
        self.total_steps += 1
        if terminated or truncated:
            self.needs_reset = True
            total, length = sum(self.rewards), len(self.rewards)
            self.episode_returns.append(total)
            self.episode_lengths.append(length)
            self.episode_times.append(time.time() - self.t_start)
            episode = self._logged(round(total, 6), length, info, **self.current_reset_info)
            info = {**info, "episode": episode}
        return obs, reward, terminated, truncated, info

    def get_total_steps(self) -> int:
        """The number of steps."""
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """The return of every episode that has ended."""
        return self.episode_returns

    def get_episode_lengths(self) -> list[int]:
        """The length of every episode that has ended."""
        return self.episode_lengths

    def get_episode_times(self) -> list[float]:
        """The end of every episode, in seconds as in its ``t``."""
        return self.episode_times


class ResultsWriter:
    """A CSV file of episodes: ``#`` and a JSON header, the names of the columns, then the rows.

    A directory gets a file ``monitor.csv``; to another name that does not end so, ``.monitor.csv``
    is added. Missing directories are made. ``extra_keys`` are columns besides ``r``, ``l`` and
    ``t``. Without ``override_existing``, rows are appended to an existing file, whose ``t_start``
    stays: readers sort by ``t``.
    """

    def __init__(
        self,
        filename: str = "",
        header: Mapping[str, Any] | None = None,
        extra_keys: tuple[str, ...] = (),
        override_existing: bool = True,
    ) -> None:
        path = Path(filename)
        if path.is_dir():
            path /= Monitor.EXT
        elif not path.name.endswith(Monitor.EXT):
            path = path.with_name(f"{path.name}.{Monitor.EXT}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file_handler = path.open("w+" if override_existing else "a+", newline="\n")
        self.file_handler.seek(0)
        begun = self.file_handler.readline()
        columns = ("r", "l", "t", *extra_keys)
        self.logger = csv.DictWriter(self.file_handler, columns, lineterminator="\n")
        if not begun:
            begun = f"#{json.dumps(dict(header or {}))}\n"
            self.file_handler.write(begun)
            self.logger.writeheader()
        found = re.search(r'"t_start": ([\d.]+)', begun)
        self.t_start = float(found[1]) if found else time.time()
        self.file_handler.flush()

    def write_row(self, epinfo: Mapping[str, Any]) -> None:
        """Write one episode; ``epinfo`` has a value for every column."""
        self.logger.writerow(epinfo)
        self.file_handler.flush()

    def close(self) -> None:
        """Close the file."""
        self.file_handler.close()
