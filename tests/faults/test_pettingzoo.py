"""PettingZoo envs that fail: findings 2 and 5."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

import envpool_py
from envpool_py.pettingzoo import PettingZooEnv
from tests.faults.helpers import MODES, RESTART, kill
from tests.faults.test_restart import POLICIES, SEED, episode_of
from tests.pettingzoo.envs import TableEnv
from tests.record.runs import Run
from tests.support.places import PLACES
from tests.support.reference import same

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


def is_over(info: dict) -> bool:
    return bool(info["env_done"] or "final_obs" in info)


class Tables(Run):
    """A pool of tables, which are played by legal actions."""

    def __init__(self, pool: BaseVectorEnv) -> None:
        super().__init__(pool)
        self.actions: dict[int, int | None] = {}

    def keep(self, batch: tuple) -> tuple:
        for obs, _, terminated, truncated, info in zip(*batch, strict=True):
            dead = (terminated or truncated) and not is_over(info)  # the agent, and not the env
            self.actions[info["env_id"]] = None if dead else int(np.flatnonzero(obs["mask"])[0])
        return super().keep(batch)

    def play(self, steps: int) -> int:
        """Step all envs so often; return in how many rows one agent alone was terminated."""
        alone = 0
        for _ in range(steps):
            actions = [self.actions[i] for i in range(len(self.pool))]
            _, _, terminated, truncated, infos = self.step(actions)
            over = np.array([is_over(info) for info in infos])
            alone += int(((terminated | truncated) & ~over).sum())
            if self.pool.autoreset_mode is None and over.any():
                self.reset(np.flatnonzero(over))
        return alone

    def episodes(self) -> list[list[int]]:
        """Return the episodes that the env objects have begun."""
        seeds = self.pool.get_env_attr("seeds")
        return [[episode_of(i, seed) for seed in own] for i, own in enumerate(seeds)]


def first_action(env: PettingZooEnv) -> int:
    return int(np.flatnonzero(env.infos[env.agent_selection]["action_mask"])[0])


@pytest.mark.parametrize(("mode", "begin"), [*((mode, "reset") for mode in MODES), (None, "seed")])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_agent_that_is_terminated_begins_no_episode_of_the_schedule(
    policy: str, mode: str | None, begin: str
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES["shmem-fork-packed"]([make_table] * 3, **options) as pool:
        tables = Tables(pool)
        if begin == "reset":
            tables.reset(seed=SEED)
        else:
            pool.seed(SEED)
            tables.actions = dict(enumerate(pool.apply(first_action)))
        assert tables.play(47) > 3
        begun = tables.episodes()
        for own in begun:
            assert own == list(range(len(own)))
            assert len(own) > 2
        expected = [len(own) for own in begun]
        for _ in range(2):
            kill(pool, 1)
            if policy == "by hand":
                pool.restart([1])
            tables.reset()
            assert [own[-1] for own in tables.episodes()] == expected
            expected = [number + 1 for number in expected]
            # On to where an agent has been terminated, and the episode is not over.
            assert tables.play(9) > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_a_terminated_agent_that_is_not_returned_yet_ends_no_episode(
    mode: str | None,
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **RESTART}
    with PLACES["dummy"]([make_table]) as pool:
        hand = Tables(pool)
        hand.reset(seed=SEED)
        steps = 0
        while not hand.play(1):
            steps += 1
    with PLACES["shmem-fork"]([make_table] * 2, num_processes=1, **options) as pool:
        tables = Tables(pool)
        tables.reset(seed=SEED)
        for _ in range(steps):
            tables.step([tables.actions[0]], [0])
        pool.send([tables.actions[0], tables.actions[1]])
        tables.keep(pool.step(None, id=[1]))
        kill(pool, 1)  # the row of env 0 has come; an agent of its was terminated
        assert pool.step([tables.actions[1]], [1])[3].tolist() == [True]
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
        assert tables.episodes() == [[1], [1]]


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


@pytest.mark.parametrize("at", [2, 9, 30])
@pytest.mark.parametrize("mode", MODES)
def test_a_pettingzoo_env_is_restored(mode: str | None, at: int, tmp_path: Path) -> None:
    runs = []
    once = functools.partial(make_once, str(tmp_path / "killed"), at)
    for place, fn, options in (
        ("dummy", make_table, {}),
        ("shmem-fork-packed", once, {"on_error": "replay"}),
    ):
        with PLACES[place]([make_table, fn], autoreset_mode=mode, **options) as pool:
            runs.append(Tables(pool))
            runs[-1].reset(seed=3)
            runs[-1].play(40)
    assert (tmp_path / "killed").exists()
    infos = [info for *_, info in runs[1].rows_of(1)]
    assert sum(info.pop("env_replayed", None) is not None for info in infos) == 1
    assert [same(runs[0].rows_of(i), runs[1].rows_of(i)) for i in range(2)] == [True, True]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_a_record_of_a_pettingzoo_env_is_replayed(
    place: str, mode: str | None, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    with PLACES[place]([make_table] * 2, autoreset_mode=mode, record=record) as pool:
        tables = Tables(pool)
        tables.reset(seed=3)
        tables.play(40)
    assert same(tables.batches, list(envpool_py.replay(record, [make_table] * 2)))
