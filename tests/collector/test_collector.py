"""The collector against envs stepped by hand, and the file against what was put in."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.collector import (
    AsyncCollector,
    Episode,
    EpisodeWriter,
    RandomPolicy,
    load,
    save,
    shares,
)
from envpool_py.collector.file import check_path
from envpool_py.wrappers import VectorEnvNormObs
from tests.support.envs import (
    SPACES,
    CountEnv,
    FailsToResetEnv,
    FaultEnv,
    Gate,
    GateEnv,
    RandomEnv,
    SpaceEnv,
    UndeclaredEnv,
    VectorRewardEnv,
    draw,
)
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SEED = 7


def by_env(episodes: Iterable[Episode]) -> dict[int, list[Episode]]:
    found: dict[int, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.env_id, []).append(episode)
    return found


def rows_of(tree: Any, count: int) -> list[Any]:
    """Take the columns of an episode apart again: one dict, tuple or array per row."""
    if isinstance(tree, dict):
        parts = {key: rows_of(part, count) for key, part in tree.items()}
        return [{key: part[t] for key, part in parts.items()} for t in range(count)]
    if isinstance(tree, tuple):
        return list(zip(*(rows_of(part, count) for part in tree), strict=True))
    assert len(tree) == count
    return [tree[t] if tree.dtype.kind in "OU" else tree[t, ...] for t in range(count)]


def same(left: Any, right: Any) -> bool:
    """Whether two observations are equal in structure, dtype and every bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (np.ndarray, np.generic)):
        right = np.asarray(right)
        return left.dtype == right.dtype and np.array_equal(
            left, right, equal_nan=left.dtype.kind == "f"
        )
    return bool(left == right)


def check_by_hand(
    episodes: Iterable[Episode], env_fns: list[Callable[[], Any]], seed: int | None = SEED
) -> None:
    """Step raw envs with the actions of the episodes: all else must come out the same."""
    for env_id, own in by_env(episodes).items():
        env = env_fns[env_id]()
        for number, episode in enumerate(own):
            assert episode.episode_id == number
            assert episode.seed == (None if seed is None else seed + env_id)
            length = len(episode)
            observations = rows_of(episode.observations, length + 1)
            first = seed + env_id if seed is not None and number == 0 else None
            obs, _ = env.reset(seed=first)
            assert same(observations[0], obs)
            for t, action in enumerate(rows_of(episode.actions, length)):
                obs, reward, terminated, truncated, _ = env.step(action)
                assert same(observations[t + 1], obs)
                assert np.array_equal(episode.rewards[t], np.asarray(reward, np.float64))
                assert (episode.terminated[t], episode.truncated[t]) == (terminated, truncated)
                assert (terminated or truncated) == (t == length - 1)


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in flat(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in flat(part)]
    return [tree]


def bits(episode: Episode) -> list[Any]:
    arrays = [*flat(episode.observations), *flat(episode.actions), episode.rewards]
    arrays += [episode.terminated, episode.truncated]
    return [(str(array.dtype), array.shape, array.tobytes()) for array in arrays]


def fingerprint(episodes: Iterable[Episode]) -> list[Any]:
    """Every bit of the episodes, in an order that does not depend on when they ended."""
    return sorted((e.env_id, e.episode_id, bits(e)) for e in episodes)


def echo(obs: Any, env_ids: np.ndarray) -> np.ndarray:
    """A policy that depends on the observation alone."""
    return (np.abs(obs).sum(axis=1) * 10).astype(np.int64) % 4 + 0 * env_ids


# -------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("wait_num", [None, 1, 2])
@pytest.mark.parametrize("place", QUICK)
def test_episodes_equal_hand_stepped_envs(place: str, wait_num: int | None) -> None:
    env_fns = [partial(RandomEnv, i) for i in range(3)]
    with PLACES[place](env_fns, wait_num=wait_num) as pool:
        episodes = list(AsyncCollector(pool, echo, seed=SEED).episodes(20))
    assert {i: len(own) for i, own in by_env(episodes).items()} == {0: 7, 1: 7, 2: 6}
    check_by_hand(episodes, env_fns)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_every_space_equals_hand_stepped_envs(name: str, columns: bool) -> None:
    env_fns = [partial(SpaceEnv, i, name) for i in range(2)]
    with ShmemVectorEnv(env_fns, wait_num=1, num_processes=1, columns=columns) as pool:
        policy = RandomPolicy(pool, SEED)
        episodes = list(AsyncCollector(pool, policy, seed=SEED).episodes(4))
        action_space = pool.action_space[0]
    assert len(episodes) == 4
    check_by_hand(episodes, env_fns)
    for episode in episodes:
        assert all(map(action_space.contains, rows_of(episode.actions, 4)))


@pytest.mark.parametrize("kind", ["alike", "ragged", "card", "object"])
def test_undeclared_spaces_equal_hand_stepped_envs(kind: str) -> None:
    env_fns = [partial(UndeclaredEnv, i, kind) for i in range(2)]

    def policy(obs: Any, env_ids: np.ndarray) -> list[Any]:
        assert len(obs) == len(env_ids)
        return [{"any": "thing", "env": int(i)} for i in env_ids]

    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        episodes = list(AsyncCollector(pool, policy, seed=SEED).episodes(4))
    check_by_hand(episodes, env_fns)
    assert [action["env"] for action in episodes[0].actions] == [episodes[0].env_id] * 4


def test_a_random_policy_needs_declared_action_spaces() -> None:
    with (
        DummyVectorEnv([partial(UndeclaredEnv, 0, "alike")]) as pool,
        pytest.raises(ValueError, match="env 0 declares no action space"),
    ):
        RandomPolicy(pool)


@pytest.mark.parametrize("length", [1, 255, 256, 257, 600])
def test_episodes_may_be_longer_than_a_block(length: int) -> None:
    env_fns = [partial(CountEnv, i, length) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED).episodes(4))
    assert [len(episode) for episode in episodes] == [length] * 4
    check_by_hand(episodes, env_fns)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_lengths_blocks_and_limits_equal_hand_stepped_envs(data: st.DataObject) -> None:
    num_envs = data.draw(st.integers(1, 5), "num_envs")
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=num_envs, max_size=num_envs))
    wait_num = data.draw(st.integers(1, num_envs), "wait_num")
    block = data.draw(st.integers(2, 7), "block")
    env_fns = [partial(CountEnv, i, length) for i, length in enumerate(lengths)]
    with (
        pytest.MonkeyPatch.context() as patch,
        DummyVectorEnv(env_fns, wait_num=wait_num) as pool,
    ):
        patch.setattr("envpool_py.collector.buffer._LONGEST_BLOCK", block)
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED)
        found: list[Episode] = []
        for _ in range(data.draw(st.integers(1, 3), "calls")):
            limit = data.draw(st.integers(0, 30), "limit")
            balanced = data.draw(st.booleans(), "balanced")
            if data.draw(st.booleans(), "counts_episodes"):
                episodes = list(collector.episodes(limit, balanced=balanced))
                assert len(episodes) == limit
            else:
                episodes = list(collector.episodes(num_steps=limit, balanced=balanced))
                assert sum(map(len, episodes)) >= limit
            found += episodes
    check_by_hand(found, env_fns)
    assert collector.num_steps == sum(map(len, found))


class LargeEnv(CountEnv):
    """Observations so large that a block has room for very few."""

    def __init__(self, tag: int, length: int) -> None:
        super().__init__(tag, length)
        self.observation_space = spaces.Box(0, 255, (1 << 22,), np.uint8)

    def observe(self) -> np.ndarray:
        return np.full(1 << 22, 16 * self.tag + self.t, np.uint8)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_large_observations_equal_hand_stepped_envs(length: int) -> None:
    env_fns = [partial(LargeEnv, i, length) for i in range(4)]
    with ShmemVectorEnv(env_fns, wait_num=2, num_processes=1) as pool:
        policy = RandomPolicy(pool, 0)
        for episode in AsyncCollector(pool, policy, seed=SEED).episodes(4):
            expected = 16 * episode.env_id + np.arange(length + 1)
            assert np.array_equal(episode.observations[:, 0], expected)
            assert np.array_equal(episode.observations[:, -1], expected)


@pytest.mark.parametrize("place", BACKENDS)
def test_vector_rewards(place: str) -> None:
    env_fns = [partial(VectorRewardEnv, i, 3) for i in range(3)]
    with PLACES[place](env_fns, wait_num=1) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED).episodes(6))
    check_by_hand(episodes, env_fns)
    for episode in episodes:
        assert episode.rewards.shape == (3, 3)
        assert np.array_equal(episode.total_reward, np.sum(list(episode.rewards), axis=0))


def test_infos_are_kept_when_asked_for() -> None:
    env_fns = [partial(CountEnv, i, 2 + i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        policy = RandomPolicy(pool, 0)
        episodes = list(AsyncCollector(pool, policy, seed=SEED, keep_infos=True).episodes(4))
        without = list(AsyncCollector(pool, policy).episodes(2))
    for episode in episodes:
        places = [(info["env_id"], info["episode"], info["step"]) for info in episode.infos]
        i, number = episode.env_id, episode.episode_id
        assert places == [(i, number, t) for t in range(len(episode) + 1)]
    assert [episode.infos for episode in without] == [(), ()]


def test_envs_whose_spaces_differ() -> None:
    env_fns = [partial(SpaceEnv, i, name) for i, name in enumerate(("text", "dict", "custom"))]
    with DummyVectorEnv(env_fns, wait_num=2) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 3), seed=SEED).episodes(6))
    check_by_hand(episodes, env_fns)


# ---------------------------------------------------------------- whatever the timing


@pytest.mark.parametrize(
    "limit", [{"num_episodes": 11}, {"num_steps": 50}], ids=["episodes", "steps"]
)
def test_the_same_episodes_everywhere(limit: dict[str, int]) -> None:
    env_fns = [partial(RandomEnv, i) for i in range(3)]

    def collect(place: str, wait_num: int | None) -> list[Any]:
        with PLACES[place](env_fns, wait_num=wait_num) as pool:
            policy = RandomPolicy(pool, SEED)
            return fingerprint(AsyncCollector(pool, policy, seed=SEED).episodes(**limit))

    expected = collect("dummy", None)
    for place, wait_num in itertools.product(QUICK, (None, 1, 2)):
        assert collect(place, wait_num) == expected, (place, wait_num)


def test_another_seed_gives_other_episodes() -> None:
    found = []
    for seed in (1, 2, 1):
        with DummyVectorEnv([RandomEnv] * 2) as pool:
            policy = RandomPolicy(pool, seed)
            found.append(fingerprint(AsyncCollector(pool, policy, seed=seed).episodes(4)))
    assert found[0] == found[2] != found[1]


def test_several_calls_go_on_with_the_same_episodes() -> None:
    with DummyVectorEnv([RandomEnv] * 3, wait_num=2) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, SEED), seed=SEED)
        parts = [e for n in (2, 1, 9) for e in collector.episodes(n)]
    check_by_hand(parts, [RandomEnv] * 3)
    # Envs 2, then 1 and 2 had their first reset in a later call: each with its own seed.
    assert [len(by_env(parts)[i]) for i in range(3)] == [5, 4, 3]


@pytest.mark.parametrize("num_envs", [1, 3, 4])
@pytest.mark.parametrize("total", [0, 1, 2, 3, 7, 100])
def test_shares_differ_by_one_at_most(total: int, num_envs: int) -> None:
    parts = shares(total, num_envs)
    assert len(parts) == num_envs
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize("place", QUICK)
@pytest.mark.parametrize("balanced", [True, False])
def test_just_as_many_episodes_as_asked_for(place: str, balanced: bool) -> None:
    with PLACES[place]([RandomEnv] * 3, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED)
        for number in (0, 1, 2, 3, 8):
            episodes = list(collector.episodes(number, balanced=balanced))
            assert len(episodes) == number
            assert len(pool.waiting_id) == 0
        assert collector.num_started == collector.num_episodes == 14


@pytest.mark.parametrize("total", [1, 5, 60])
def test_each_env_runs_until_it_has_its_share_of_the_steps(total: int) -> None:
    env_fns = [partial(CountEnv, i, 2 + 5 * i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=2) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        episodes = by_env(collector.episodes(num_steps=total))
    assert sum(len(e) for own in episodes.values() for e in own) >= total
    for i, share in enumerate(shares(total, 3)):
        lengths = [len(episode) for episode in episodes.get(i, [])]
        assert sum(lengths) >= share
        assert sum(lengths[:-1]) < max(share, 1)  # the last was started because it was wanted


def test_unbalanced_steps_stop_once_there_are_enough() -> None:
    with DummyVectorEnv([partial(CountEnv, i, 4) for i in range(3)], wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        episodes = list(collector.episodes(num_steps=22, balanced=False))
    # 22 steps are there while three episodes run, which are finished.
    assert 22 <= sum(map(len, episodes)) <= 21 + 3 * 4
    assert collector.num_steps == sum(map(len, episodes))


def test_short_episodes_are_not_favoured() -> None:
    """Env 0 ends at once, env 1 late: with an equal share each, however many are asked for."""
    env_fns = [partial(CountEnv, 0, 1), partial(CountEnv, 1, 50)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        episodes = by_env(AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(10))
        assert [len(episodes[i]) for i in (0, 1)] == [5, 5]
        # First come, first served: of the ten that start, the long one is kept as well.
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        episodes = by_env(collector.episodes(10, balanced=False))
        assert [len(episodes[i]) for i in (0, 1)] == [9, 1]


# --------------------------------------------------------------------------- never waiting


class Waits(GateEnv):
    """Waits at its gate in its second step."""

    def step(self, action: Any) -> tuple:
        return super().step(1 if self.t == 1 else 0 * action)


class ResetsSlowly(GateEnv):
    """Waits at its gate in every reset but the first."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        return super().reset(seed=seed, options={"block": True} if self.resets else options)


@contextmanager
def shut(gate: Gate) -> Iterator[None]:
    """Keep a gate shut, whether or not its env has come to it; open it for good at the end."""
    fifo = os.open(gate.path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield
    finally:
        with tempfile.NamedTemporaryFile(dir=Path(gate.path).parent, delete=False) as empty:
            Path(empty.name).replace(gate.path)
        os.close(fifo)


@pytest.mark.parametrize("place", [name for name in PROCESSES if "packed" not in name])
@pytest.mark.parametrize("kind", [Waits, ResetsSlowly])
def test_the_others_go_on_while_one_env_waits(
    place: str, kind: type[GateEnv], gates: list[Gate]
) -> None:
    env_fns = [partial(kind, 0, gates[0], 3), partial(CountEnv, 1, 3), partial(CountEnv, 2, 3)]
    with PLACES[place](env_fns, wait_num=1) as pool:
        episodes = AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(30)
        with shut(gates[0]):
            found = [next(episodes) for _ in range(20)]
            # Of env 0 there can be the one episode before the reset that waits.
            assert sum(episode.env_id == 0 for episode in found) <= (kind is ResetsSlowly)
        found += episodes
    assert [len(own) for _, own in sorted(by_env(found).items())] == [10, 10, 10]


def test_envs_work_while_the_caller_has_the_episode() -> None:
    with PLACES["shmem-fork"]([partial(CountEnv, i, 3) for i in range(3)], wait_num=1) as pool:
        for _ in itertools.islice(AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(), 9):
            assert sorted(pool.waiting_id) == [0, 1, 2]


def test_memory_does_not_hold_what_was_yielded() -> None:
    with DummyVectorEnv([partial(LargeEnv, i, 3) for i in range(2)], wait_num=1) as pool:
        for episode in AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(4):
            copied = episode.observations
            assert copied.base is None  # an array of its own, of just its size
            assert len(copied) == 4


# ---------------------------------------------------------------------------- the policy


class Recurrent:
    """Acts by how many observations it has seen in this episode of this env."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def start_episodes(self, env_ids: np.ndarray) -> None:
        self.seen.update(dict.fromkeys(env_ids.tolist(), 0))

    def __call__(self, obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        assert obs[:, 0].tolist() == env_ids.tolist()
        assert [self.seen[i] for i in env_ids] == obs[:, 2].tolist()
        for i in env_ids:
            self.seen[i] += 1
        return np.array([self.seen[i] for i in env_ids])


@pytest.mark.parametrize("wait_num", [1, 2, 3])
def test_a_policy_is_told_of_the_start_of_episodes(wait_num: int) -> None:
    env_fns = [partial(CountEnv, i, 2 + i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=wait_num) as pool:
        episodes = list(AsyncCollector(pool, Recurrent()).episodes(12))
    for episode in episodes:
        assert episode.actions.tolist() == list(range(1, len(episode) + 1))


def test_the_policy_may_be_replaced_on_the_way() -> None:
    with DummyVectorEnv([partial(CountEnv, 0, 3)]) as pool:
        collector = AsyncCollector(pool, lambda _, ids: np.full(len(ids), 5))
        found = []
        for episode in collector.episodes(2):
            found.append(episode.actions.tolist())
            collector.policy = lambda _, ids: [7] * len(ids)
    assert found == [[5, 5, 5], [7, 7, 7]]


class Lists(gym.Env):
    """Takes a Tuple of a Discrete and a Box, and keeps what it got."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Tuple((spaces.Discrete(9), spaces.Box(-1, 1, (2,))))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        return 0, {}

    def step(self, action: Any) -> tuple:
        return 1, float(action[0] + 10 * action[1][1]), True, False, {}


@pytest.mark.parametrize(
    "act",
    [
        lambda k: [(n, [0.0, 0.5]) for n in range(k)],
        lambda k: (np.arange(k), np.tile([0.0, 0.5], (k, 1))),
    ],
    ids=["rows", "columns"],
)
def test_actions_of_composite_spaces_in_either_form(act: Callable[[int], Any]) -> None:
    with DummyVectorEnv([Lists] * 3) as pool:
        episodes = list(AsyncCollector(pool, lambda _, ids: act(len(ids))).episodes(3))
    for n, episode in enumerate(episodes):
        assert episode.actions[0].tolist() == [n]
        assert episode.actions[1].tolist() == [[0.0, 0.5]]
        assert episode.actions[1].dtype == np.float32
        assert episode.total_reward == n + 5.0


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0], "got 1 actions for 2 envs"),
        (np.zeros((2, 3)), "env 0: action has shape"),
        ([0, None], "None as an action"),
        (0, "got a int"),
    ],
)
def test_wrong_actions_are_refused(actions: Any, message: str) -> None:
    with DummyVectorEnv([CountEnv] * 2) as pool:
        episodes = AsyncCollector(pool, lambda *_: actions).episodes(2)
        with pytest.raises((ValueError, TypeError), match=message):
            next(episodes)


def test_random_actions_do_not_depend_on_the_batches() -> None:
    with DummyVectorEnv([CountEnv] * 3) as pool:
        together, apart = RandomPolicy(pool, 5), RandomPolicy(pool, 5)
        rows = np.array([together(None, np.arange(3)) for _ in range(300)])
        rng = np.random.default_rng(0)
        done = [0, 0, 0]
        while min(done) < 200:
            ids = rng.permutation(3)[: rng.integers(1, 4)]
            for i, action in zip(ids, apart(None, ids), strict=True):
                if done[i] < 300:
                    assert action == rows[done[i], i]
                done[i] += 1
        assert set(rows[:, 0].tolist()) <= set(range(100))
        assert len(set(map(tuple, rows.T))) == 3  # each env has a stream of its own


def test_random_actions_are_drawn_evenly() -> None:
    class Few(CountEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Discrete(4, start=-1)

    with DummyVectorEnv([Few]) as pool:
        policy = RandomPolicy(pool, 0)
        actions = [policy(None, np.array([0]))[0] for _ in range(4000)]
    values, counts = np.unique(actions, return_counts=True)
    assert values.tolist() == [-1, 0, 1, 2]
    # 4000 draws of probability 1/4 have a deviation of 27: five of them.
    assert np.abs(counts - 1000).max() < 137


def test_a_wrapped_pool_gives_the_episodes_what_it_gives_the_policy() -> None:
    seen: dict[int, list[np.ndarray]] = {}

    class Looks(RandomPolicy):
        def start_episodes(self, env_ids: np.ndarray) -> None:
            seen.update({int(i): [] for i in env_ids})

        def __call__(self, obs: np.ndarray, env_ids: np.ndarray, /) -> Any:
            for i, row in zip(env_ids, obs, strict=True):
                seen[i].append(row)
            return super().__call__(obs, env_ids)

    with VectorEnvNormObs(DummyVectorEnv([RandomEnv] * 3, wait_num=2)) as pool:
        for episode in AsyncCollector(pool, Looks(pool, 0), seed=SEED).episodes(12):
            assert np.array_equal(episode.observations[:-1], seen[episode.env_id])
        assert pool.obs_rms.count > 12


# ---------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("place", BACKENDS)
def test_an_env_that_raises_ends_the_loop_and_the_next_goes_on(place: str) -> None:
    def policy(obs: np.ndarray, env_ids: np.ndarray) -> list[str]:
        return [
            "value" if i == 1 and episode == 1 and t == 2 else ""
            for i, (_, episode, t) in zip(env_ids, obs, strict=True)
        ]

    with PLACES[place]([partial(FaultEnv, i, 5) for i in range(3)], wait_num=1) as pool:
        collector = AsyncCollector(pool, policy)
        found = []
        with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
            found += iter(collector.episodes(30))
        again = list(collector.episodes(6))
    for episode in again:
        assert len(episode) == 5
        assert (episode.observations[:, 1] == episode.episode_id).all()
        assert episode.observations[:, 2].tolist() == list(range(6))
        assert (episode.observations[:, 1] == episode.observations[0, 1]).all()
    assert {i: len(own) for i, own in by_env(again).items()} == {0: 2, 1: 2, 2: 2}


def test_a_reset_that_raises_ends_the_loop() -> None:
    with DummyVectorEnv([FailsToResetEnv] * 2) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        episodes = collector.episodes()
        assert {next(episodes).env_id, next(episodes).env_id} == {0, 1}
        with pytest.raises(EnvError, match="reset raised ValueError: no second episode"):
            next(episodes)


def test_what_has_ended_is_yielded_before_the_error_of_a_policy() -> None:
    def policy(obs: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        if (obs[:, 1] == 1).any():
            raise LookupError("the second episode")
        return 0 * env_ids

    with DummyVectorEnv([partial(CountEnv, i, 2 + i) for i in range(2)]) as pool:
        episodes = AsyncCollector(pool, policy).episodes()
        # The batch of env 0's reset is that in which env 1's first episode ends.
        assert [next(episodes).env_id, next(episodes).env_id] == [0, 1]
        with pytest.raises(LookupError, match="the second episode"):
            next(episodes)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_loop_that_was_left_early(place: str) -> None:
    env_fns = [partial(CountEnv, i, 3 + i) for i in range(3)]
    with PLACES[place](env_fns, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        for _ in collector.episodes():
            break
        found = list(collector.episodes(6))
        assert len(pool.waiting_id) == 0
    for episode in found:
        assert len(episode) == 3 + episode.env_id
        assert (episode.observations[:, 1] == episode.episode_id).all()  # by the env's own count
        assert episode.observations[:, 2].tolist() == list(range(len(episode) + 1))
    numbers = [[e.episode_id for e in own] for _, own in sorted(by_env(found).items())]
    assert [own[1] - own[0] for own in numbers] == [1, 1, 1]


def test_counters() -> None:
    with DummyVectorEnv([partial(CountEnv, i, 3) for i in range(2)], wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        episodes = list(collector.episodes(6))
    assert collector.num_episodes == collector.num_started == len(episodes) == 6
    assert collector.num_steps == 18
    assert collector.num_rows == 24  # six of them of resets
    assert collector.num_batches == 24  # one row each


def test_a_pool_that_resets_itself_is_refused() -> None:
    with (
        DummyVectorEnv([CountEnv], autoreset_mode="same_step") as pool,
        pytest.raises(ValueError, match=r"autoreset_mode is .*same_step"),
    ):
        AsyncCollector(pool, RandomPolicy(pool))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_episodes": -1}, "num_episodes must be 0 or more, got -1"),
        ({"num_steps": -5}, "num_steps must be 0 or more, got -5"),
        ({"num_episodes": 1, "num_steps": 1}, "both num_episodes and num_steps"),
    ],
)
def test_wrong_limits_are_refused_at_once(arguments: dict[str, int], message: str) -> None:
    with DummyVectorEnv([CountEnv]) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool))
        with pytest.raises(ValueError, match=message):
            collector.episodes(**arguments)


def test_seeds_per_env() -> None:
    with DummyVectorEnv([RandomEnv] * 2) as pool:
        collector = AsyncCollector(pool, echo, seed=[4, None])
        first = by_env(collector.episodes(2))
        with pytest.raises(ValueError, match="got 3 seeds for 2 envs"):
            AsyncCollector(pool, echo, seed=[1, 2, 3])
    assert (first[0][0].seed, first[1][0].seed) == (4, None)
    assert same(first[0][0].observations[0], RandomEnv().reset(seed=4)[0])


# ------------------------------------------------------------------------------- the file

STORABLE = [
    name
    for name in SPACES
    if name not in ("mixed", "graph", "custom", "custom-arrays", "one-of")
    and not name.startswith("sequence")
]


def make_episodes(name: str, number: int = 5) -> tuple[list[Episode], spaces.Space]:
    """Collect episodes of a SpaceEnv, in the order in which they ended."""
    env_fns = [partial(SpaceEnv, i, name, 2 + i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED)
        return list(collector.episodes(number)), pool.observation_space[0]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", STORABLE)
def test_a_file_gives_back_what_was_put_in(
    tmp_path: Path, name: str, compress: bool, mmap: bool
) -> None:
    episodes, space = make_episodes(name)
    path = tmp_path / "a.npz"
    save(path, episodes, space, space, {"what": [1, "x"]}, compress=compress)
    found = load(path, mmap=mmap)
    assert found.metadata == {"what": [1, "x"]}
    assert found.observation_space == space
    assert found.action_space == space
    assert len(found) == 5
    assert found.num_steps == sum(map(len, episodes))
    expected = sorted(episodes, key=lambda e: (e.env_id, e.episode_id))
    for one, other in zip(expected, found, strict=True):
        assert (one.env_id, one.episode_id, one.seed) == (
            other.env_id,
            other.episode_id,
            other.seed,
        )
        assert one.total_reward == other.total_reward
        for part in ("observations", "actions"):
            count = len(one) + (part == "observations")
            left, right = (rows_of(getattr(e, part), count) for e in (one, other))
            assert all(map(same, left, right)), part
        for part in ("rewards", "terminated", "truncated"):
            assert same(getattr(one, part), np.asarray(getattr(other, part))), part


def test_a_file_is_read_by_numpy_alone(tmp_path: Path) -> None:
    episodes, space = make_episodes("nested")
    save(tmp_path / "a.npz", episodes, space, space)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert {"observations/b/1/flags", "observations/c/image", "actions/a"} <= arrays.keys()
    assert json.loads(str(arrays["metadata"]))["version"] == 1
    episodes.sort(key=lambda e: (e.env_id, e.episode_id))
    for n, episode in enumerate(episodes):
        start, length = arrays["episodes/start"][n], arrays["episodes/length"][n]
        first = arrays["episodes/observation_start"][n]
        assert length == len(episode)
        assert arrays["episodes/env_id"][n] == episode.env_id
        assert arrays["episodes/return"][n] == episode.rewards.sum()
        assert np.array_equal(arrays["rewards"][start : start + length], episode.rewards)
        assert np.array_equal(
            arrays["observations/c/image"][first : first + length + 1],
            episode.observations["c"]["image"],
        )


def test_transitions(tmp_path: Path) -> None:
    env_fns = [partial(CountEnv, i, 2 + i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        episodes = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED).episodes(7)
        save(tmp_path / "a.npz", episodes, pool.observation_space[0], pool.action_space[0])
    rows = load(tmp_path / "a.npz").transitions()
    assert len(rows.rewards) == len(rows.observations) == len(rows.next_observations) == 20
    for k in range(20):
        tag, episode, t = rows.observations[k]
        assert (tag, episode) == (rows.env_ids[k], rows.episode_ids[k])
        assert rows.next_observations[k].tolist() == [tag, episode, t + 1]
        assert rows.rewards[k] == tag * 1000 + episode * 100 + t + 1
        assert (rows.terminated[k] or rows.truncated[k]) == (t + 1 == 2 + tag)


def test_episodes_of_a_file_are_a_sequence(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    save(tmp_path / "a.npz", episodes, space, space)
    found = load(tmp_path / "a.npz")
    assert [e.env_id for e in found[1:4]] == [0, 0, 1]
    assert found[-1].env_id == found[4].env_id == 1
    assert found.returns.tolist() == [e.total_reward for e in found]
    assert found.lengths.tolist() == [2, 2, 2, 3, 3]
    assert repr(found) == "<5 episodes, 12 steps>"
    with pytest.raises(IndexError):
        found[5]


def test_equal_episodes_make_equal_files(tmp_path: Path) -> None:
    episodes, space = make_episodes("dict")
    save(tmp_path / "a.npz", episodes, space, space)
    save(tmp_path / "b.npz", reversed(episodes), space, space)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_vector_rewards_and_no_seed_in_a_file(tmp_path: Path) -> None:
    with DummyVectorEnv([partial(VectorRewardEnv, i, 3) for i in range(2)]) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(3))
        save(tmp_path / "a.npz", episodes, pool.observation_space[0], pool.action_space[0])
    found = load(tmp_path / "a.npz")
    assert found.rewards.shape == (9, 3)
    assert found.returns.shape == (3, 3)
    assert found.seeds.tolist() == [-1, -1, -1]
    assert found[0].seed is None


def test_keys_that_a_path_could_not_hold(tmp_path: Path) -> None:
    space = spaces.Dict(
        {
            "a/b": spaces.Discrete(3),
            "a": spaces.Dict({"b": spaces.Discrete(3)}),
            "~1": spaces.Discrete(3),
        }
    )
    rows = {"a/b": np.array([1, 1]), "a": {"b": np.array([2, 2])}, "~1": np.array([0, 0])}
    actions = {"a/b": np.array([1]), "a": {"b": np.array([2])}, "~1": np.array([0])}
    flags = np.array([True]), np.array([False])
    save(tmp_path / "a.npz", [Episode(0, 0, 1, rows, actions, np.ones(1), *flags)], space, space)
    (found,) = load(tmp_path / "a.npz")
    assert same(found.observations, rows)
    assert same(found.actions, actions)


def test_a_writer_that_aborts_leaves_what_was_there(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    path = tmp_path / "a.npz"
    save(path, episodes, space, space)
    before = path.read_bytes()
    with pytest.raises(LookupError):  # noqa: PT012, SIM117 - it is the block that raises
        with EpisodeWriter(path, space, space) as writer:
            writer.write(episodes[0])
            raise LookupError
    with EpisodeWriter(path, space, space):
        pass  # no episode: nothing to put in place
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_there_before_the_writer_closes(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    writer = EpisodeWriter(tmp_path / "a.npz", space, space)
    writer.write(episodes[0])
    assert not (tmp_path / "a.npz").exists()
    writer.close()
    writer.close()
    assert len(load(tmp_path / "a.npz")) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def test_a_write_that_was_broken_off_leaves_no_trace(tmp_path: Path) -> None:
    episodes, space = make_episodes("tuple", 3)
    spoilt = Episode(0, 9, 1, episodes[0].observations, episodes[0].actions[:2], *[np.ones(2)] * 3)
    wrong = Episode(
        0, 9, 1, episodes[0].observations, episodes[0].actions, np.ones((2, 3)), *[np.ones(2)] * 2
    )
    with EpisodeWriter(tmp_path / "a.npz", space, space) as writer:
        writer.write(episodes[0])
        with pytest.raises(ValueError, match="actions has 2 parts"):
            writer.write(spoilt)
        with pytest.raises(ValueError, match=r"rewards: got rows of shape \(3,\)"):
            writer.write(wrong)
        for episode in episodes[1:]:
            writer.write(episode)
    found = load(tmp_path / "a.npz")
    expected = sorted(episodes, key=lambda e: (e.env_id, e.episode_id))
    assert fingerprint(found) == fingerprint(expected)


@pytest.mark.parametrize("name", ["mixed", "graph", "sequence", "one-of", "custom"])
def test_spaces_without_a_form_of_arrays_are_refused(tmp_path: Path, name: str) -> None:
    space = SPACES[name]()
    with pytest.raises(TypeError, match="has no form of arrays"):
        EpisodeWriter(tmp_path / "a.npz", space, space)
    assert not list(tmp_path.iterdir())


def test_metadata_that_json_cannot_hold_is_refused_at_once(tmp_path: Path) -> None:
    space = spaces.Discrete(2)
    with pytest.raises(TypeError):
        EpisodeWriter(tmp_path / "a.npz", space, space, {"array": np.zeros(2)})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([3, np.inf]), dtype=np.float64),
        spaces.Box(np.float32(0.1), np.float32(0.7), (2, 2)),
        spaces.Box(2**60, 2**61, (2,), np.uint64),
        spaces.Text(5, charset="xyz", min_length=0),
        spaces.Dict(
            {"z": spaces.Discrete(2), "a": spaces.Discrete(2, dtype=np.int8)}, sort_keys=False
        ),
    ],
)
def test_spaces_survive_json(tmp_path: Path, space: spaces.Space) -> None:
    rows = [draw(space, np.random.default_rng(k)) for k in range(2)]
    flags = np.array([True]), np.array([False])
    columns = [
        {key: np.array([row[key] for row in some]) for key in space}
        if isinstance(space, spaces.Dict)
        else np.array(some)
        for some in (rows, rows[:1])
    ]
    save(tmp_path / "a.npz", [Episode(0, 0, 1, *columns, np.ones(1), *flags)], space, space)
    found = load(tmp_path / "a.npz")
    assert found.observation_space == space
    assert found.observation_space.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(found.observation_space) == list(space)


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match="not a file of episodes"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="it has no metadata"):
        load(tmp_path / "other.npz")
    np.savez(
        tmp_path / "later.npz",
        metadata=np.array(json.dumps({"format": "envpool_py episodes", "version": 99})),
    )
    with pytest.raises(ValueError, match="version 99"):
        load(tmp_path / "later.npz")
    np.savez(tmp_path / "strange.npz", metadata=np.array(json.dumps({"format": "x"})))
    with pytest.raises(ValueError, match="the format is 'x'"):
        load(tmp_path / "strange.npz")


def test_paths_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory"):
        check_path(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        check_path(tmp_path / "none" / "a.npz")
    with pytest.raises(OSError, match="is not a regular file"):
        check_path("/dev/null")
    check_path(tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_a_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    (tmp_path / "link.npz").symlink_to(tmp_path / "target.npz")
    save(tmp_path / "link.npz", episodes, space, space)
    assert (tmp_path / "link.npz").is_symlink()
    assert len(load(tmp_path / "target.npz")) == 5


def test_a_seed_too_large_to_store(tmp_path: Path) -> None:
    flags = np.array([True]), np.array([False])
    space = spaces.Discrete(2)
    episode = Episode(0, 0, 1 << 63, np.zeros(2), np.zeros(1), np.ones(1), *flags)
    with (
        EpisodeWriter(tmp_path / "a.npz", space, space) as writer,
        pytest.raises(ValueError, match="seed must be below"),
    ):
        writer.write(episode)
