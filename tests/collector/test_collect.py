"""The collector against envs stepped by hand."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

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
    RandomPolicy,
    shares,
)
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
)
from tests.support.episodes import SEED, by_env, check_by_hand, equal, fingerprint, rows_of
from tests.support.places import BACKENDS, PLACES, QUICK


def echo(obs: Any, env_ids: np.ndarray) -> np.ndarray:
    """A policy that depends on the observation alone."""
    return (np.abs(obs).sum(axis=1) * 10).astype(np.int64) % 4 + 0 * env_ids


# -------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("name", "columns"), [*((name, False) for name in SPACES), ("nested", True), ("mixed", True)]
)
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
            assert not pool.waiting_id
    check_by_hand(found, env_fns)
    assert collector.num_started == collector.num_episodes == len(found)
    assert collector.num_steps == sum(map(len, found))


class LargeEnv(CountEnv):
    """Observations so large that a block has room for very few."""

    def __init__(self, tag: int, length: int) -> None:
        super().__init__(tag, length)
        self.observation_space = spaces.Box(0, 255, (1 << 22,), np.uint8)

    def observe(self) -> np.ndarray:
        return np.full(1 << 22, 16 * self.tag + self.t, np.uint8)


@pytest.mark.parametrize("length", [2, 5])
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
    """Those of envs stepped by hand, whose policy is random or depends on the observation."""
    env_fns = [partial(RandomEnv, i) for i in range(3)]
    found = set()
    for place, wait_num in itertools.product(QUICK, (None, 1, 2)):
        with PLACES[place](env_fns, wait_num=wait_num) as pool:
            for policy in (RandomPolicy(pool, SEED), echo):
                episodes = list(AsyncCollector(pool, policy, seed=SEED).episodes(**limit))
                check_by_hand(episodes, env_fns)
                found.add((policy is echo, str(fingerprint(episodes))))
            if "num_episodes" in limit:
                assert [len(own) for _, own in sorted(by_env(episodes).items())] == [4, 4, 3]
    assert len(found) == 2


def test_shares_differ_by_one_at_most() -> None:
    for total, num_envs in itertools.product([0, 1, 2, 3, 7, 100], [1, 3, 4]):
        parts = shares(total, num_envs)
        assert len(parts) == num_envs
        assert sum(parts) == total
        assert max(parts) - min(parts) <= 1
        assert parts == sorted(parts, reverse=True)


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


@pytest.mark.parametrize("kind", [Waits, ResetsSlowly])
def test_the_others_go_on_while_one_env_waits(kind: type[GateEnv], gates: list[Gate]) -> None:
    env_fns = [partial(kind, 0, gates[0], 3), partial(CountEnv, 1, 3), partial(CountEnv, 2, 3)]
    with PLACES["shmem-fork"](env_fns, wait_num=1) as pool:
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
        (0, "got int"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_episodes": -1}, "num_episodes must be 0 or more, got -1"),
        ({"num_steps": -5}, "num_steps must be 0 or more, got -5"),
        ({"num_episodes": 1, "num_steps": 1}, "both num_episodes and num_steps"),
        ({"batch_size": 0}, "batch_size must be 1 or more, got 0"),
    ],
)
def test_wrong_limits_are_refused_at_once(arguments: dict[str, int], message: str) -> None:
    with DummyVectorEnv([CountEnv]) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool))
        with pytest.raises(ValueError, match=message):
            (collector.steps if "batch_size" in arguments else collector.episodes)(**arguments)


def test_seeds_per_env() -> None:
    with DummyVectorEnv([RandomEnv] * 2) as pool:
        collector = AsyncCollector(pool, echo, seed=[4, None])
        first = by_env(collector.episodes(2))
        with pytest.raises(ValueError, match="got 3 seeds for 2 envs"):
            AsyncCollector(pool, echo, seed=[1, 2, 3])
    assert (first[0][0].env_seed, first[1][0].env_seed) == (4, None)
    assert equal(first[0][0].observations[0], RandomEnv().reset(seed=4)[0])
