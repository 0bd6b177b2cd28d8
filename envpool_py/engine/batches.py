"""Gather rows of the block into batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env import info_codec, spaces
from envpool_py.env.block import BESIDE, FINAL, FORM, RESET_ROW, Beside, Block
from envpool_py.env.failures import env_error
from envpool_py.env_ids import Selection
from envpool_py.errors import EnvError


class Batches:
    """Gathers rows of the block into batches for the caller; see ``BatchOptions``."""

    def __init__(self, block: Block, *, columns: bool, copy: bool) -> None:
        self._block, self._obs_layout = block, block.spec.obs
        self._as_columns, self._copy = columns, copy
        # Whether the observations of a batch are the array of the only leaf.
        self._is_one_array = spaces.is_leaf(self._obs_layout) and self._obs_layout.code is None
        # Copies a row out of an array for each leaf; those of the usual spaces by a short path.
        self._copy_row: Callable[[list[spaces.Array], int], Any] = (
            (lambda columns, i: columns[0][i].copy())
            if self._is_one_array and self._obs_layout.shape and self._obs_layout.dtype is not None
            else functools.partial(spaces.copy_row, self._obs_layout)
        )
        self.info_reader = info_codec.Reader(*block.info_memory)
        #: The first env with a vector reward that no space declares, and the shape of that reward.
        self.first_vector_reward: tuple[int, tuple[int, ...]] | None = None
        # The last observations that were returned, as an array for each leaf; empty: not kept.
        self._last_obs: list[spaces.Array] = []

    def bare_infos(self, listed: list[int]) -> spaces.Array:
        """Return a new info for each of these envs, with nothing but its ``env_id``."""
        return np.fromiter([{"env_id": i} for i in listed], object, len(listed))

    def gather(
        self, envs: Selection, beside: dict[int, Beside]
    ) -> tuple[list[Any], Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Gather observations (leaf by leaf, and joined for the caller), rewards and flags."""
        block, ids, index, whole = self._block, envs.ids, envs.index, envs.is_whole
        parts: list[Any] = []
        objects = 0
        for n, array in enumerate(block.obs):
            if array is None:
                kept: Any = block.targets[n]
                values = [kept[i] if kept else beside[i]["objects"][objects] for i in ids.tolist()]
                parts.append(spaces.stack_objects(values, block.obs_leaves[n]))
                objects += 1
            elif not whole:
                parts.append(array[ids] if array.ndim == 1 else array.take(ids, 0))
            else:
                parts.append(array.copy() if self._copy else array)
        if self._last_obs:
            for last, part in zip(self._last_obs, parts, strict=True):
                if last.dtype.hasobject:
                    last[index] = np.fromiter(map(spaces.snapshot, part), object, len(ids))
                else:
                    last[index] = part
        reward, terminated, truncated = block.reward, block.terminated, block.truncated
        if not whole:
            reward, terminated, truncated = reward[ids], terminated[ids], truncated[ids]
        elif self._copy:
            reward, terminated, truncated = reward.copy(), terminated.copy(), truncated.copy()
        if self.first_vector_reward is not None:
            reward = np.zeros((len(ids), *self.first_vector_reward[1]))
            for k, i in enumerate(ids.tolist()):
                reward[k] = beside.get(i, {}).get("reward", 0)
        obs = parts[0] if self._is_one_array else self._join(parts, len(ids))
        return parts, obs, reward, terminated, truncated

    def wrong_rewards(self, ids: Iterable[int], beside: dict[int, Beside]) -> dict[int, EnvError]:
        """Return an error for each env whose reward has another shape than that of the others.

        Only of vectors that no space declares; rows without a reward are zeros among them.
        """
        vectors = {i: one["reward"].shape for i, one in beside.items() if "reward" in one}
        if not vectors and self.first_vector_reward is None:
            return {}
        shapes = {i: () for i in ids if i not in vectors and self._block.reward[i]} | vectors
        first, shape = self.first_vector_reward or next(iter(shapes.items()))
        if shape:
            self.first_vector_reward = first, shape
        text = f"that of env {first} has shape {shape}; all rewards of a pool must have one shape"
        return {
            i: env_error(ValueError(f"reward has shape {own}, but {text}"), i, "step")
            for i, own in shapes.items()
            if own != shape
        }

    def _join(self, parts: list[Any], count: int) -> Any:
        """Join the arrays of the leaves into the observations that the caller gets."""
        if not self._as_columns:
            return spaces.as_rows(self._obs_layout, parts, count)
        columns = [
            part if leaf.code is None else np.fromiter(leaf.code.decode(part), object, count)
            for leaf, part in zip(self._block.obs_leaves, parts, strict=True)
        ]
        return spaces.join(self._obs_layout, columns)

    def complete_infos(
        self,
        infos: spaces.Array,
        listed: list[int],
        marked: list[tuple[int, int]],
        beside: dict[int, Beside],
        *,
        resets: bool,
    ) -> None:
        """Add the values of infos to the rows that have a mark.

        ``marked`` are the positions of these rows in the batch, each with its mark; ``infos`` and
        ``listed``, the env ids, are of all rows. ``resets``: set ``is_reset`` in infos of resets.
        """
        read, kept = self.info_reader.read, self._block.infos
        for k, mark in marked:
            i = listed[k]
            if mark >= FORM:
                form = mark // FORM
                if form == info_codec.KEPT:
                    infos[k] = info = kept[i]
                    info["env_id"] = i
                else:
                    infos[k] = read(i, form)
            elif mark & BESIDE and (info := beside[i].get("info")) is not None:
                infos[k] = info = dict(info)  # an env may return one dict as observation and info
                info["env_id"] = i
            if mark & FINAL:
                info = infos[k]
                if mark & BESIDE and "final_obs" in beside[i]:
                    info["final_obs"] = beside[i]["final_obs"]
                else:
                    info["final_obs"] = self._copy_row(self._block.finals, i)
                info.setdefault("final_info", {})
            if mark & RESET_ROW and resets:
                infos[k]["is_reset"] = True

    def keep_last_obs(self) -> None:
        """Keep copies of returned observations from now on, because a fault may spoil the row."""
        self._last_obs = self._last_obs or [
            np.empty(self._block.spec.num_envs, object) if array is None else np.zeros_like(array)
            for array in self._block.obs
        ]

    def last_obs(self, i: int) -> Any:
        """Return a copy of the last observation of env ``i`` that the caller got."""
        return self._copy_row(self._last_obs, i)

    def last_obs_parts(self, i: int) -> list[spaces.Array]:
        """Return views of it as an array ``(1, ...)`` for each leaf; the next overwrites them."""
        return [column[i : i + 1] for column in self._last_obs]
