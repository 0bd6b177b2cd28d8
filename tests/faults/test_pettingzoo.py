"""PettingZoo envs that fail: findings 2, 5 and 6."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import envpool_py
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.faults.helpers import MODES, RESTART, kill
from tests.faults.test_schedule import POLICIES, SEED, episode_of
from tests.pettingzoo.envs import FaultyMeadowEnv, PlainMeadowEnv, TableEnv
from tests.places import PLACES

if TYPE_CHECKING:
    from pathlib import Path

    from envpool_py import BaseVectorEnv

pytestmark = pytest.mark.slow

# ---------------------------------------- finding 2: an agent that is terminated ends no episode


class SeedsTableEnv(TableEnv):
    """Remembers the seeds of its resets."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.seeds.append(seed)
        super().reset(seed=seed, options=options)


def make_table() -> PettingZooEnv:
    return PettingZooEnv(SeedsTableEnv())


def legal(obs: dict, info: dict, ended: Any) -> int | None:
    """Return an action of the agent to act, None if it is dead."""
    dead = ended and not info["env_done"] and "final_obs" not in info
    return None if dead else int(np.flatnonzero(obs["mask"])[0])


def play(pool: BaseVectorEnv, actions: list, steps: int) -> tuple[list, int]:
    """Step all envs of a pool of tables so often.

    Returns:
        The next actions, and the number of rows in which one agent alone was terminated.
    """
    one_alone = 0
    for _ in range(steps):
        obs, _, terminated, truncated, infos = pool.step(actions)
        ended = terminated | truncated
        actions = [legal(*row) for row in zip(obs, infos, ended, strict=True)]
        done = [info["env_done"] or "final_obs" in info for info in infos]
        one_alone += sum(ended[k] and not done[k] for k in range(len(done)))
        if pool.autoreset_mode is None and any(done):
            obs, infos = pool.reset(np.flatnonzero(done))
            for first, info in zip(obs, infos, strict=True):
                actions[info["env_id"]] = legal(first, info, False)
    return actions, one_alone


def table_episodes(pool: BaseVectorEnv) -> list[list[int]]:
    """Return the episodes that the env objects of a pool of tables have begun."""
    seeds = pool.get_env_attr("seeds")
    return [[episode_of(i, seed) for seed in own] for i, own in enumerate(seeds)]


def mask_of(env: PettingZooEnv) -> np.ndarray:
    return np.asarray(env.infos[env.agent_selection]["action_mask"])


@pytest.mark.parametrize(("mode", "begin"), [*((mode, "reset") for mode in MODES), (None, "seed")])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_agent_that_is_terminated_begins_no_episode_of_the_schedule(
    policy: str, mode: str | None, begin: str
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES["shmem-fork-packed"]([make_table] * 3, **options) as pool:
        if begin == "reset":
            obs, infos = pool.reset(seed=SEED)
            actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
        else:
            pool.seed(SEED)
            actions = [int(np.flatnonzero(bits)[0]) for bits in pool.apply(mask_of)]
        _, one_alone = play(pool, actions, 47)
        assert one_alone > 3
        begun = table_episodes(pool)
        for own in begun:
            assert own == list(range(len(own)))
            assert len(own) > 2
        expected = [len(own) for own in begun]
        for _ in range(2):
            kill(pool, 1)
            if policy == "by hand":
                pool.restart([1])
            obs, infos = pool.reset()
            assert [own[-1] for own in table_episodes(pool)] == expected
            expected = [number + 1 for number in expected]
            # On to where an agent has been terminated, and the episode is not over.
            actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
            assert play(pool, actions, 9)[1] > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_a_terminated_agent_that_is_not_returned_yet_ends_no_episode(
    mode: str | None,
) -> None:
    hand = make_table()
    obs, info = hand.reset(seed=SEED)
    options = {"episode_seeds": True, "autoreset_mode": mode, **RESTART}
    with PLACES["shmem-fork"]([make_table] * 2, num_processes=1, **options) as pool:
        both, infos = pool.reset(seed=SEED)
        others = legal(both[1], infos[1], False)
        while True:
            action = legal(obs, info, False)
            obs, _, terminated, truncated, info = hand.step(action)
            if terminated or truncated:
                break
            pool.step([action], [0])
        assert not info["env_done"]
        pool.send([action, others])
        both, _, terminated, truncated, infos = pool.step(None, id=[1])
        others = legal(both[0], infos[0], terminated[0] or truncated[0])
        kill(pool, 1)  # env 0's row is there
        assert pool.step([others], [1])[3].tolist() == [True]
        if mode is None:
            pool.reset([1])
        elif mode == "next_step":
            assert pool.step([0], [1])[4][0]["is_reset"]
        _, _, terminated, truncated, infos = pool.step(None, id=[0])
        assert "env_error" not in infos[0]
        assert terminated[0] or truncated[0]
        assert pool.step([None], [0])[3].tolist() == [True]
        if mode is None:
            pool.reset([0])
        elif mode == "next_step":
            assert pool.step([0], [0])[4][0]["is_reset"]
        assert table_episodes(pool) == [[1], [1]]


# ----------------------------------- finding 5: a PettingZooEnv is restored and replayed


class OnceTableEnv(TableEnv):
    """Kills its process in one step, once in all: a file says that it has."""

    def __init__(self, path: str, at: int) -> None:
        super().__init__()
        self.path, self.at, self.steps = path, at, 0

    def step(self, action: int | None) -> None:
        self.steps += 1
        if self.steps == self.at:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        super().step(action)


def make_once(path: str, at: int) -> PettingZooEnv:
    return PettingZooEnv(OnceTableEnv(path, at))


def table_rows(pool: BaseVectorEnv, steps: int) -> tuple[list[tuple], int]:
    """Play a pool of tables.

    Returns:
        All rows, and how often an env was restored.
    """
    obs, infos = pool.reset(seed=3)
    actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
    rows: list[tuple] = [(obs[k], infos[k]) for k in range(len(infos))]
    restored = 0
    for _ in range(steps):
        obs, rewards, terminated, truncated, infos = pool.step(actions)
        ended = terminated | truncated
        actions = [legal(*row) for row in zip(obs, infos, ended, strict=True)]
        for info in infos:
            assert "env_error" not in info
            restored += info.pop("env_replayed", None) is not None
        rows += zip(obs, rewards, terminated, truncated, infos, strict=True)
        if pool.autoreset_mode is None:
            over = [k for k, info in enumerate(infos) if info["env_done"]]
            if over:
                obs, infos = pool.reset(over)
                rows += zip(obs, infos, strict=True)
                for first, info in zip(obs, infos, strict=True):
                    actions[info["env_id"]] = legal(first, info, False)
    return rows, restored


@pytest.mark.parametrize("at", [2, 9, 30])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["shmem-fork-packed"])
def test_a_pettingzoo_env_is_restored(
    place: str, mode: str | None, at: int, tmp_path: Path
) -> None:
    with PLACES["dummy"]([make_table] * 2, autoreset_mode=mode) as pool:
        expected, _ = table_rows(pool, 40)
    fns = [make_table, functools.partial(make_once, str(tmp_path / "killed"), at)]
    options = {"on_error": "replay", "restart_backoff": 0.0, "autoreset_mode": mode}
    with PLACES[place](fns, **options) as pool:
        rows, restored = table_rows(pool, 40)
    assert (tmp_path / "killed").exists()
    assert restored == 1
    assert data_equivalence(rows, expected, exact=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_a_record_of_a_pettingzoo_env_is_replayed(
    place: str, mode: str | None, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    with PLACES[place]([make_table] * 2, autoreset_mode=mode, record=record) as pool:
        rows, _ = table_rows(pool, 40)
    again: list[tuple] = []
    with envpool_py.replay(record, [make_table] * 2) as batches:
        for batch in batches:
            again += zip(*batch, strict=True)
    assert len(again) == len(rows)
    for row, other in zip(rows, again, strict=True):
        if len(row) == 2:  # of a reset
            assert data_equivalence(row, (other[0], other[4]), exact=True)
        else:
            assert data_equivalence(row, other, exact=True)


# -------------------------------------------------------- finding 6: a lost row has its error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["restart", "replay"])
@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_a_lost_row_of_a_parallel_env_tells_its_error(
    backend: str, on_error: str, mode: str | None
) -> None:
    fns = [PlainMeadowEnv, FaultyMeadowEnv]
    with ParallelVectorEnv(fns, backend, autoreset_mode=mode, on_error=on_error) as pool:
        pool.reset(seed=1)
        pool.set_env_attr("level", 2, [1])  # it will raise again when it is restored
        acts = {agent: [0, 0] for agent in PlainMeadowEnv.possible_agents}
        for _ in range(2):
            assert pool.step(acts)[4]["env_error"].tolist() == [None, None]
        _, rewards, terminated, truncated, info = pool.step(acts)
        assert info["env_error"][0] is None
        assert "env 1: " in info["env_error"][1]
        assert "the meadow burns" in info["env_error"][1]
        assert info["env_done"].tolist() == [False, True]
        for agent in PlainMeadowEnv.possible_agents:
            assert rewards[agent][1] == 0
            assert not terminated[agent][1]
            assert truncated[agent][1]
            assert info["valid"][agent][1]
