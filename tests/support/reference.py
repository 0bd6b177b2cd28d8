"""The oracle: the same envs stepped by hand, in this process, without the package under test."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclasses.dataclass
class Row:
    """What one env gave: a reset's row has reward 0 and flags False.

    `reward_shape` is that of the env's `reward_space`.
    """

    env_id: int
    obs: Any
    info: dict[str, Any]
    reward: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    reward_shape: tuple[int, ...] = ()

    def marked(self):
        """Return the row as `send_reset` delivers it."""
        return dataclasses.replace(self, info={**self.info, "is_reset": True})


class HandStepped:
    """Raw envs in a list, stepped one by one in a plain loop.

    `autoreset_mode` is None, "same_step" or "next_step". Rows are deep copies, so that envs
    which reuse their buffers cannot change them.
    """

    def __init__(self, env_fns, autoreset_mode=None):
        self.envs = [make() for make in env_fns]
        self.mode = autoreset_mode
        self.ended = [False] * len(self.envs)

    def ids(self, ids):
        return list(range(len(self.envs))) if ids is None else [int(i) for i in ids]

    def reset(self, ids=None, seeds=None, options=None):
        ids = self.ids(ids)
        seeds = seeds or [None] * len(ids)
        options = options or [None] * len(ids)
        rows = zip(ids, seeds, options, strict=True)
        return [self._reset(i, seed=s, options=o) for i, s, o in rows]

    def _reset(self, i, **kwargs):
        self.ended[i] = False
        obs, info = copy.deepcopy(self.envs[i].reset(**copy.deepcopy(kwargs)))
        return Row(i, obs, {**info, "env_id": i}, reward_shape=self.reward_shape(i))

    def step(self, actions, ids=None):
        return [self._step(i, a) for i, a in zip(self.ids(ids), actions, strict=True)]

    def _step(self, i, action):
        if self.mode == "next_step" and self.ended[i]:
            return self._reset(i).marked()
        if isinstance(action, np.ndarray) and action.ndim == 0:
            action = action[()]  # as `actions[i]` of a batch
        result = copy.deepcopy(self.envs[i].step(copy.deepcopy(action)))
        obs, reward, terminated, truncated, info = result
        self.ended[i] = bool(terminated or truncated)
        outcome = reward, terminated, truncated, self.reward_shape(i)
        if self.mode == "same_step" and self.ended[i]:
            first = self._reset(i)
            final = {"final_obs": obs, "final_info": info}
            return Row(i, first.obs, {**first.info, **final}, *outcome)
        return Row(i, obs, {**info, "env_id": i}, *outcome)

    def reward_shape(self, i):
        return getattr(getattr(self.envs[i], "reward_space", None), "shape", ())


def spread(seed, ids):
    """Return the seeds that an int means: `seed + env_id`."""
    return [seed + int(i) for i in ids]


def in_columns(space, actions):
    """Write a list of Dict or Tuple actions as a dict or tuple of arrays."""
    if isinstance(space, spaces.Dict):
        return {k: in_columns(leaf, [a[k] for a in actions]) for k, leaf in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_columns(leaf, [a[k] for a in actions]) for k, leaf in enumerate(space))
    return np.stack(actions)


def same(left, right):
    """Tell whether two values are equal bit for bit, types, dtypes and shapes included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype == object:
            pairs = zip(left.ravel(), right.ravel(), strict=True)
            return all(same(a, b) for a, b in pairs)
        return left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (float, np.floating)):
        return bool(np.array_equal(left, right, equal_nan=True))
    return bool(left == right)


def alike(left, right):
    """As `same`, but a NumPy scalar and Python's of the same kind and value are alike."""
    if isinstance(right, (bool, int, float, np.generic)) and np.ndim(left) == 0:
        kinds = {np.asarray(left).dtype.kind.replace("u", "i")}
        kinds.add(np.asarray(right).dtype.kind.replace("u", "i"))
        return len(kinds) == 1 and bool(np.array_equal(left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[k], right[k]) for k in left)
    if isinstance(left, (tuple, list)) and type(left) is type(right):
        return len(left) == len(right) and all(map(alike, left, right))
    return same(left, right)


ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_obs(obs, raw, space, *, columns=False):
    """Assert that a batch of observations holds the raw observations, in its documented form."""
    if columns and isinstance(space, (spaces.Dict, spaces.Tuple)):
        is_dict = isinstance(space, spaces.Dict)
        leaves = space.spaces if is_dict else dict(enumerate(space))
        assert type(obs) is (dict if is_dict else tuple)
        assert list(obs if is_dict else range(len(obs))) == list(leaves)
        for key, leaf in leaves.items():
            check_obs(obs[key], [r[key] for r in raw], leaf, columns=True)
        return
    assert isinstance(obs, np.ndarray)
    assert len(obs) == len(raw)
    kinds = {(r.shape, r.dtype.str) if isinstance(r, np.ndarray) else None for r in raw}
    if isinstance(space, ARRAYS):
        assert same(obs, np.array(raw, space.dtype).reshape(len(raw), *space.shape))
    elif space is None and len(kinds) == 1 and None not in kinds:
        assert same(obs, np.stack(raw))
    else:
        assert obs.dtype == object
        assert obs.shape == (len(raw),)
        for got, want in zip(obs, raw, strict=True):
            assert space is None or space.contains(got), f"{got!r} is not in {space}"
            assert (same if space is None else alike)(got, want), f"{got!r} is not {want!r}"


def check_info(info, rows):
    """Assert that infos are an object array of dicts equal to the raw ones and `env_id`."""
    assert isinstance(info, np.ndarray)
    assert info.dtype == object
    assert info.shape == (len(rows),)
    for got, row in zip(info, rows, strict=True):
        assert type(got) is dict
        assert type(got["env_id"]) is int
        assert same(got, row.info), f"{got!r} is not {row.info!r}"


def check_reset(result, rows, space, *, columns=False):
    """Assert that what `reset` returned is these rows, in this order."""
    obs, info = result
    check_obs(obs, [row.obs for row in rows], space, columns=columns)
    check_info(info, rows)


def check_reward(reward, rows):
    """Assert that rewards are float64 and of the declared shape, where a row is a reset's too."""
    assert isinstance(reward, np.ndarray)
    assert reward.dtype == np.float64
    assert len(reward) == len(rows)
    for got, row in zip(reward, rows, strict=True):
        want = np.broadcast_to(np.float64(row.reward), row.reward_shape)
        assert same(np.array(got), np.array(want))


def check(batch, rows, space, *, columns=False):
    """Assert that a batch is these rows, in this order."""
    assert type(batch) is tuple
    obs, reward, terminated, truncated, info = batch
    check_obs(obs, [row.obs for row in rows], space, columns=columns)
    check_reward(reward, rows)
    assert same(terminated, np.array([row.terminated for row in rows], bool))
    assert same(truncated, np.array([row.truncated for row in rows], bool))
    check_info(info, rows)


class Pending:
    """The rows that must still come, by env: what an asynchronous pool has in flight."""

    def __init__(self, space, *, columns=False):
        self.rows = {}
        self.space, self.columns = space, columns

    def __len__(self):
        return len(self.rows)

    def add(self, rows):
        for row in rows:
            assert row.env_id not in self.rows, "the test sent to an env in flight"
            self.rows[row.env_id] = row

    def take(self, batch):
        """Check a batch against the rows in flight, take them out, and return its env ids."""
        ids = [info["env_id"] for info in batch[4]]
        assert len(set(ids)) == len(ids)
        rows = [self.rows.pop(i) for i in ids]
        check(batch, rows, self.space, columns=self.columns)
        return ids
