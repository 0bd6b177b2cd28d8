"""Batches of transitions, extras, infos and seeds against envs stepped by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.collector import AsyncCollector, Episode, RandomPolicy, Transitions
from envpool_py.wrappers import VectorEnvNormObs
from tests.support.envs import (
    CountEnv,
    FaultEnv,
    RandomEnv,
    SpaceEnv,
    UndeclaredEnv,
    VectorRewardEnv,
)
from tests.support.episodes import SEED, by_env, check_by_hand, equal, fingerprint, rows_of
from tests.support.places import PLACES, QUICK

MODES = [None, "next_step", "same_step"]


def check_steps(batches: Iterable[Transitions], env_fns: list[Callable[[], Any]]) -> int:
    """Step raw envs with the actions of the batches: all else must come out the same."""
    envs = [env_fn() for env_fn in env_fns]
    last = [env.reset(seed=SEED + i) for i, env in enumerate(envs)]
    episodes = [0] * len(envs)
    for batch in batches:
        columns = (rows_of(tree, len(batch)) for tree in (batch.obs, batch.action, batch.next_obs))
        for t, (i, obs, action, next_obs) in enumerate(zip(batch.env_id, *columns, strict=True)):
            assert equal(obs, last[i][0])
            if batch.info is not None:
                assert_infos(batch.info[t], last[i][1], i)
            assert batch.episode_id[t] == episodes[i]
            *row, info = envs[i].step(action)
            assert equal(next_obs, row[0])
            assert np.array_equal(batch.reward[t], row[1])
            assert (batch.terminated[t], batch.truncated[t]) == tuple(row[2:])
            if batch.next_info is not None:
                assert_infos(batch.next_info[t], info, i)
            last[i] = row[0], info
            if row[2] or row[3]:
                episodes[i] += 1
                last[i] = envs[i].reset()
    return sum(episodes)


def assert_infos(found: dict[str, Any], expected: dict[str, Any], env_id: int) -> None:
    own = {key: value for key, value in found.items() if key not in ("env_id", "is_reset")}
    assert found["env_id"] == env_id
    assert own.keys() == expected.keys()
    assert all(np.array_equal(own[key], expected[key]) for key in own)


def take(batches: Iterable[Transitions], number: int) -> list[Transitions]:
    return list(itertools.islice(batches, number))


# -------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", QUICK)
def test_transitions_equal_hand_stepped_envs(place: str, mode: str | None) -> None:
    env_fns = [partial(RandomEnv, i) for i in range(3)]
    for wait_num, batch_size in itertools.product((None, 2), (None, 1, 7)):
        with PLACES[place](env_fns, wait_num=wait_num, autoreset_mode=mode) as pool:
            policy = RandomPolicy(pool, 1)
            collector = AsyncCollector(pool, policy, seed=SEED, keep_infos=True)
            batches = take(collector.steps(batch_size), 50)
            if batch_size is not None:
                assert {len(batch) for batch in batches} == {batch_size}
            assert collector.num_steps >= sum(map(len, batches))
        assert check_steps(batches, env_fns) > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "columns"),
    [("nested", False), ("nested", True), ("mixed", True), ("text", False), ("box-scalar", False)],
)
def test_transitions_of_every_space(name: str, columns: bool, mode: str | None) -> None:
    env_fns = [partial(SpaceEnv, i, name) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1, columns=columns, autoreset_mode=mode) as pool:
        batches = take(AsyncCollector(pool, RandomPolicy(pool, 1), seed=SEED).steps(5), 6)
    assert check_steps(batches, env_fns) > 2


@pytest.mark.parametrize(
    "env_fn",
    [
        partial(VectorRewardEnv, 0, 3),
        partial(UndeclaredEnv, 0, "alike"),
        partial(UndeclaredEnv, 0, "ragged"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_transitions_of_vector_rewards_and_undeclared_spaces(env_fn: Any, mode: str | None) -> None:
    with DummyVectorEnv([env_fn, env_fn], wait_num=1, autoreset_mode=mode) as pool:
        collector = AsyncCollector(pool, lambda _, ids: [0] * len(ids), seed=SEED)
        batches = take(collector.steps(4), 8)
    assert check_steps(batches, [env_fn, env_fn]) > 2


@pytest.mark.parametrize("mode", MODES[1:])
def test_episodes_are_the_same_in_every_mode(mode: str) -> None:
    def collect(mode: str | None) -> list[Any]:
        env_fns = [partial(RandomEnv, i) for i in range(3)]
        with ShmemVectorEnv(env_fns, wait_num=2, num_processes=1, autoreset_mode=mode) as pool:
            collector = AsyncCollector(pool, RandomPolicy(pool, 1), seed=SEED, keep_infos=True)
            episodes = list(collector.episodes(11))
        check_by_hand(episodes, env_fns)
        infos = {(e.env_id, e.episode_id): e.infos for e in episodes}
        return [fingerprint(episodes), [str(infos[key]) for key in sorted(infos)]]

    assert collect(mode) == collect(None)


@pytest.mark.parametrize("mode", MODES)
def test_wrapped_pools(mode: str | None) -> None:
    env_fns = [partial(CountEnv, i, 3) for i in range(2)]
    with VectorEnvNormObs(DummyVectorEnv(env_fns, autoreset_mode=mode)) as pool:
        (batch,) = take(AsyncCollector(pool, RandomPolicy(pool, 0)).steps(12), 1)
    for i in range(2):
        own = batch[batch.env_id == i]
        inside = ~(own.terminated | own.truncated)[:-1]
        assert equal(own.next_obs[:-1][inside], own.obs[1:][inside])
        assert not np.isclose(own.next_obs[:-1][~inside], own.obs[1:][~inside]).all()


# -------------------------------------------------------------------------- loop after loop


def test_steps_go_on_after_a_loop_that_was_left() -> None:
    env_fns = [partial(RandomEnv, i) for i in range(3)]
    with PLACES["shmem-fork-packed"](env_fns, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 1), seed=SEED)
        batches = [next(collector.steps(size)) for size in (2, 9, 1, 30, 2, 2)]
    check_steps(batches, env_fns)


def test_steps_start_afresh_after_episodes_and_after_an_error() -> None:
    fail = [False]

    def policy(_: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        if fail[0]:
            raise LookupError
        return 0 * env_ids

    with DummyVectorEnv([partial(CountEnv, i, 5) for i in range(2)], wait_num=1) as pool:
        collector = AsyncCollector(pool, policy)
        steps = collector.steps(3)
        next(steps)
        assert [len(episode) for episode in collector.episodes(2)] == [5, 5]
        with pytest.raises(RuntimeError, match="another loop over this collector has begun"):
            next(steps)
        assert next(collector.steps(2)).obs[:, 1:].tolist() == [[2, 0], [2, 0]]
        fail[0] = True
        with pytest.raises(LookupError):
            next(collector.steps(100))
        fail[0] = False
        assert next(collector.steps(2)).obs[:, 1:].tolist() == [[3, 0], [3, 0]]


def test_envs_work_while_the_caller_has_the_batch() -> None:
    with PLACES["shmem-fork"]([partial(CountEnv, i, 3) for i in range(3)], wait_num=1) as pool:
        for _ in take(AsyncCollector(pool, RandomPolicy(pool, 0)).steps(4), 9):
            assert sorted(pool.waiting_id) == [0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_env_ends_its_episode_with_a_truncated_step(mode: str | None) -> None:
    def policy(obs: np.ndarray, env_ids: np.ndarray) -> list[str]:
        return [
            "exit" if i == 1 and number == 1 and t == 2 else ""
            for i, (_, number, t) in zip(env_ids, obs, strict=True)
        ]

    env_fns = [partial(FaultEnv, i, 5) for i in range(2)]
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": mode}
    with PLACES["subproc-fork"](env_fns, wait_num=1, **options) as pool:
        collector = AsyncCollector(pool, policy, keep_infos=True)
        batch = next(collector.steps(1))
        lengths = np.empty(0)
        while len(lengths) < 3:  # env 0 goes on while env 1 is restarted
            batch = batch.join(next(collector.steps(10)))
            own = batch[batch.env_id == 1]
            lengths = np.diff(np.flatnonzero(own.terminated | own.truncated), prepend=-1)
    assert lengths[:3].tolist() == [5, 3, 5]
    lost = next(k for k, info in enumerate(own.next_info) if "env_error" in info)
    assert lost == 7
    assert own.truncated[lost]
    assert own.next_obs[lost].tolist() == own.obs[lost].tolist() == [1, 1, 2]
    assert own.obs[lost + 1][2] == 0


# ------------------------------------------------------------------------ extras and infos


@pytest.mark.parametrize("mode", MODES)
def test_extras_and_infos_belong_to_their_rows(mode: str | None) -> None:
    def policy(obs: np.ndarray, env_ids: np.ndarray, infos: Any) -> Any:
        assert [info["env_id"] for info in infos] == env_ids.tolist()
        assert [info["step"] for info in infos] == obs[:, 2].tolist()
        log_prob = -obs.sum(axis=1).astype(np.float32)
        return obs[:, 2], {"log_prob": log_prob, "hidden": np.stack([obs, obs + 1], axis=1)}

    def check(obs: np.ndarray, actions: np.ndarray, extras: dict[str, np.ndarray]) -> None:
        assert np.array_equal(actions, obs[:, 2])
        assert np.array_equal(extras["log_prob"], -obs.sum(axis=1))
        assert extras["log_prob"].dtype == np.float32
        assert np.array_equal(extras["hidden"], np.stack([obs, obs + 1], axis=1))

    env_fns = [partial(CountEnv, i, 3 + i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=2, autoreset_mode=mode) as pool:
        collector = AsyncCollector(pool, policy, keep_infos=["step", "nothing"])
        episodes = list(collector.episodes(9))
        batches = take(collector.steps(8), 6)
    for episode in episodes:
        check(episode.observations[:-1], episode.actions, episode.extras)
        assert episode.infos == tuple({"step": t} for t in range(len(episode) + 1))
    for batch in batches:
        check(batch.obs, batch.action, batch.extras)
        assert [info["step"] for info in batch.info] == batch.obs[:, 2].tolist()
        assert [info["step"] for info in batch.next_info] == batch.next_obs[:, 2].tolist()


class NeedsGradient:
    """As a torch tensor."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("detach it")


@pytest.mark.parametrize(
    ("extras", "error", "message"),
    [
        ([{"v": [1]}], ValueError, r"extras\['v'\]: expected one row for each of 2 envs"),
        ([{"v": ["a", "b"]}], TypeError, r"extras\['v'\]: expected numbers"),
        ([{"v": NeedsGradient()}], TypeError, r"extras\['v'\]: can't be made .*: detach it"),
        ([{"v": [1, 2]}, {"w": [1, 2]}], ValueError, r"extras have the keys \['w'\]"),
        ([{"v": [1, 2]}, {}], ValueError, r"extras have the keys \[\]"),
        ([{"v": [1, 2]}, {"v": [[1], [2]]}], ValueError, r"got rows of shape \(1,\)"),
        ([{"v": [1, 2]}, {"v": [0.5, 1]}], TypeError, "got dtype float64, but before it was int64"),
    ],
)
@pytest.mark.parametrize("kind", ["episodes", "steps"])
def test_wrong_extras_are_refused(
    kind: str, extras: list[dict[str, Any]], error: type[Exception], message: str
) -> None:
    returned = iter(extras)
    with DummyVectorEnv([CountEnv] * 2) as pool:
        collector = AsyncCollector(pool, lambda _, ids: (0 * ids, next(returned)))
        with pytest.raises(error, match=message):
            next(getattr(collector, kind)())
        collector.policy = lambda _, ids: 0 * ids  # none of the extras is remembered
        assert next(collector.episodes()).extras == {}


def test_a_policy_that_names_no_infos_is_passed_none() -> None:
    class Module:
        """As a torch module: what is called says nothing of the arguments of forward."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)

        def forward(self, obs: np.ndarray, env_ids: np.ndarray, infos: Any) -> Any:
            assert len(obs) == len(infos)
            return 0 * env_ids

    with DummyVectorEnv([CountEnv] * 2) as pool:
        collector = AsyncCollector(pool, Module())
        assert len(next(collector.episodes())) == 4
        collector.policy = lambda *args: 0 * args[1]
        assert len(next(collector.episodes())) == 4
        with pytest.raises(TypeError, match="policy must be callable, got int"):
            collector.policy = 3


# ------------------------------------------------------------------------------------ seeds


def seeds_of_episode(env_id: int, episode: int) -> tuple[int | None, dict[str, Any] | None]:
    return (None if episode == 2 else 100 * env_id + episode), None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("option", ["episode_seeds", "reset_fn"])
def test_an_episode_has_the_seed_of_its_reset(
    option: str, seed: int | None, mode: str | None
) -> None:
    value = True if option == "episode_seeds" else seeds_of_episode
    env_fns = [partial(RandomEnv, i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1, autoreset_mode=mode, **{option: value}) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=seed)
        episodes = by_env(collector.episodes(8))
    for i, own in episodes.items():
        assert [episode.episode_id for episode in own] == [0, 1, 2, 3]
        assert_seeds_reproduce(own, unseeded=[2] if option == "reset_fn" else [])
        if seed is not None:
            assert own[0].env_seed == own[0].seed == seed + i
        assert len({episode.env_seed for episode in own}) == 1


def assert_seeds_reproduce(episodes: list[Episode], unseeded: list[int]) -> None:
    for episode in episodes:
        assert (episode.seed is None) == (episode.episode_id in unseeded)
        if episode.seed is not None:
            assert equal(episode.observations[0], RandomEnv().reset(seed=episode.seed)[0])


def test_an_env_that_raises_ends_the_steps() -> None:
    with DummyVectorEnv([partial(FaultEnv, i, 5) for i in range(2)]) as pool:
        collector = AsyncCollector(pool, lambda _, ids: ["value" if i else "" for i in ids])
        with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
            next(collector.steps(10))
