"""Write episodes as a data set of Minari, which is an extra."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import minari
import numpy as np
from minari.data_collector import EpisodeBuffer

from envpool_py.env import spaces

_OF_THE_POOL = {"env_id", "is_reset"}


def write(episodes: Any, dataset_id: str, options: dict[str, Any]) -> Any:
    """Write the data set; see ``Episodes.to_minari``."""
    left_out: set[str] = set()
    given = {
        "observation_space": episodes.observation_space,
        "action_space": episodes.action_space,
        "jpeg_encoding": False,
        **options,
    }
    dataset = minari.create_dataset_from_buffers(dataset_id, _buffers(episodes, left_out), **given)
    if left_out:
        warnings.warn(
            f"infos: left out {sorted(left_out)}, which some rows lack, or whose values are no"
            " numbers or texts of one shape; Minari has arrays of one value per row",
            stacklevel=3,
        )
    return dataset


def _buffers(episodes: Any, left_out: set[str]) -> Iterator[EpisodeBuffer]:
    for k, episode in enumerate(episodes):
        infos = _stacked(episode.infos, left_out)
        if episode.extras:
            infos["extras"] = episode.extras
        yield EpisodeBuffer(
            id=k,
            seed=episode.seed,
            observations=spaces.map_tree(_column, episode.obs),
            actions=spaces.map_tree(_column, episode.actions),
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos=infos or None,
        )


def _stacked(infos: tuple[dict[str, Any], ...], left_out: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in {key for info in infos for key in info} - _OF_THE_POOL:
        values = [np.asarray(info[key]) for info in infos if key in info]
        alike = len(values) == len(infos) and len({value.shape for value in values}) == 1
        if alike and all(value.dtype.kind in "biufcU" for value in values):
            found[key] = _column(np.stack(values))
        else:
            left_out.add(key)
    return found


def _column(values: Any) -> Any:
    """An array as Minari takes it: texts as a list."""
    return values.tolist() if values.dtype.kind == "U" else np.asarray(values)
