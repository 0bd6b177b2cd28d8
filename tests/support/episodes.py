"""The oracle of the collector: raw envs, stepped by hand with the actions of its episodes."""

from functools import partial

import numpy as np

from envpool_py.collector import RandomPolicy
from tests.faults.helpers import MODES
from tests.support import envs
from tests.support.places import paired

SEED = 7
UNDECLARED = ("alike", "ragged", "card", "object")
KINDS = ("discrete", "box-scalar", "nested", "text", "sequence", "mixed")
SUBJECTS = {
    **{name: partial(envs.SpaceEnv, name=name) for name in KINDS},
    **{kind: partial(envs.UndeclaredEnv, kind=kind) for kind in UNDECLARED},
    "vectors": partial(envs.VectorRewardEnv, length=3),
}
"""Those whose values are stored in different ways."""

CELLS = paired([*SUBJECTS], [False], MODES)
CELLS += [(name, True, mode) for name in ("nested", "mixed") for mode in MODES]
"""A subject, whether its observations are columns, and a mode of autoreset."""


def random_policy(pool):
    """Return a policy that draws random actions; those of undeclared spaces are always alike."""
    if None in pool.action_space:
        return lambda _, ids: [{"any": "thing", "env": int(i)} for i in ids]
    return RandomPolicy(pool, 1)


def by_env(episodes):
    found = {}
    for episode in episodes:
        found.setdefault(episode.env_id, []).append(episode)
    return found


def rows_of(tree, count):
    """Take the columns of an episode apart again: one dict, tuple or array per row."""
    if isinstance(tree, dict):
        parts = {key: rows_of(part, count) for key, part in tree.items()}
        return [{key: part[t] for key, part in parts.items()} for t in range(count)]
    if isinstance(tree, tuple):
        return list(zip(*(rows_of(part, count) for part in tree), strict=True))
    assert len(tree) == count
    return [tree[t] if tree.dtype.kind in "OU" else tree[t, ...] for t in range(count)]


def equal(left, right):
    """Whether two observations are equal in structure, dtype and every bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, (np.ndarray, np.generic)):
        right = np.asarray(right)
        return left.dtype == right.dtype and np.array_equal(
            left, right, equal_nan=left.dtype.kind == "f"
        )
    return bool(left == right)


def check_by_hand(episodes, env_fns, seed=SEED):
    """Step raw envs with the actions of the episodes: all else must come out the same."""
    for env_id, own in by_env(episodes).items():
        env = env_fns[env_id]()
        for number, episode in enumerate(own):
            assert episode.episode_id == number
            assert episode.env_seed == (None if seed is None else seed + env_id)
            length = len(episode)
            observations = rows_of(episode.obs, length + 1)
            first = seed + env_id if seed is not None and number == 0 else None
            assert episode.seed == first
            obs, _ = env.reset(seed=first)
            assert equal(observations[0], obs)
            for t, action in enumerate(rows_of(episode.actions, length)):
                obs, reward, terminated, truncated, _ = env.step(action)
                assert equal(observations[t + 1], obs)
                assert np.array_equal(episode.rewards[t], np.asarray(reward, np.float64))
                assert (episode.terminated[t], episode.truncated[t]) == (terminated, truncated)
                assert (terminated or truncated) == (t == length - 1)


def flat(tree):
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in flat(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in flat(part)]
    return [tree]


def bits(episode):
    arrays = [*flat(episode.obs), *flat(episode.actions), episode.rewards]
    arrays += [episode.terminated, episode.truncated]
    return [(str(array.dtype), array.shape, array.tobytes()) for array in arrays]


def fingerprint(episodes):
    """Every bit of the episodes, in an order that does not depend on when they ended."""
    return sorted((e.env_id, e.episode_id, bits(e)) for e in episodes)
