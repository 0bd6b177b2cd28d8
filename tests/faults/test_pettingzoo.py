"""PettingZoo envs that fail, or whose process dies: findings 2 and 5."""

import functools
import re

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import envpool_py
from envpool_py import EnvError, WorkerDiedError
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from envpool_py.seeding import of_episode
from tests.faults.helpers import MODES, RESTART, kill
from tests.pettingzoo.by_hand import AECByHand, ParallelByHand, drive, pick, row_of
from tests.pettingzoo.envs import BURNS, PlainMeadowEnv, TableEnv
from tests.support.places import PLACES
from tests.support.reference import alike as same

pytestmark = pytest.mark.slow

SEED = 11
LEGAL = {"hunter_0": 0, "fawn_0": 0, "hunter_1": 0}


def make_table():
    return PettingZooEnv(TableEnv())


# ---------------------------------------- finding 2: an agent that is terminated ends no episode


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("mode", "seeds"), [*((mode, False) for mode in MODES), (None, True)])
def test_a_terminated_agent_ends_no_episode(restarts, mode, seeds):
    schedules = [functools.partial(of_episode, SEED + i) for i in range(3)]
    hands = [AECByHand(TableEnv(), mode, seeds=schedule) for schedule in schedules]
    options = {"episode_seeds": True, "autoreset_mode": mode, **(RESTART if restarts else {})}
    with PLACES["shmem-fork-packed"]([make_table] * 3, **options) as pool:
        if seeds:
            pool.seed(SEED)
            for hand in hands:
                hand.reset()
        drive(pool, hands, 60, seed=None if seeds else SEED)
        for _ in range(2):
            assert all(hand.episodes > 2 for hand in hands)
            kill(pool, 1)
            if not restarts:
                pool.restart([1])
            # On to where an agent has been terminated, and the episode is not over.
            drive(pool, hands, 16, seed=None)
            assert hands[1].terminated["hunter_0"]
            assert not hands[1].over


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_is_not_returned_yet_ends_no_episode(mode):
    env, steps = make_table(), 1
    env.reset(seed=SEED)
    while not env.step(0)[2]:
        steps += 1
    options = {"episode_seeds": True, "autoreset_mode": mode, **RESTART}
    with PLACES["shmem-fork"]([make_table] * 2, num_processes=1, **options) as pool:

        def lose(i, action):
            assert pool.step([action], [i])[3].tolist() == [True]
            if mode is None:
                pool.reset([i])
            elif mode == "next_step":
                assert pool.step([0], [i])[4][0]["is_reset"]

        pool.reset(seed=SEED)
        for _ in range(steps - 1):
            pool.step([0], [0])
        pool.send([0, 0])
        pool.step(None, id=[1])
        kill(pool, 1)  # the row of env 0 has come; an agent of its was terminated
        lose(1, 0)
        _, _, terminated, _, infos = pool.step(None, id=[0])
        assert terminated[0]
        assert "env_error" not in infos[0]
        lose(0, None)
        assert pool.get_env_attr("seeds") == [[of_episode(SEED + i, 1)] for i in range(2)]


# ------------------------------------- finding 5: multi-agent envs are restored and replayed


@pytest.mark.parametrize(
    ("mode", "at"), [(None, 2), (None, 12), ("next_step", 36), ("same_step", 36)]
)
def test_an_env_of_turns_is_restored(mode, at):
    hands = [AECByHand(TableEnv(), mode) for _ in range(2)]
    options = {"autoreset_mode": mode, "on_error": "replay"}
    with PLACES["shmem-fork"]([make_table] * 2, **options) as pool:
        batches = drive(pool, hands, 40, {at: lambda: kill(pool, 1)})
    told = [info for *_, infos in batches for info in infos if "env_replayed" in info]
    assert [info["env_id"] for info in told] == [1]


@pytest.mark.parametrize(("mode", "at"), [(None, 2), ("next_step", 14), ("same_step", 14)])
def test_an_env_of_rounds_is_restored(mode, at):
    hands = [ParallelByHand(PlainMeadowEnv(), mode) for _ in range(2)]
    options = {"autoreset_mode": mode, "on_error": "replay"}
    with ParallelVectorEnv([PlainMeadowEnv] * 2, **options) as pool:
        batches = drive(pool, hands, 20, {at: lambda: kill(pool.pool, 1)})
    told = [[text and text[:7] for text in info["env_replayed"]] for *_, info in batches]
    assert [row for row in told if any(row)] == [[None, "env 1: "]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_a_record_is_replayed(place, mode, tmp_path):
    record = tmp_path / "record"
    hands = [AECByHand(TableEnv(), mode) for _ in range(2)]
    with PLACES[place]([make_table] * 2, autoreset_mode=mode, record=record) as pool:
        batches = drive(pool, hands, 40)
    assert same(batches, list(envpool_py.replay(record, [make_table] * 2)))


# --------------------------------------------------------------------------- rows that are lost


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after_a_death", [False, True])
def test_the_row_of_a_lost_episode_of_turns(mode, after_a_death):
    place = "dummy" if after_a_death else "shmem-fork"
    with PLACES[place]([make_table], autoreset_mode=mode, on_error="restart") as pool:
        pool.reset(seed=3)
        dead = False
        while dead != after_a_death:
            dead = bool(pool.step([0])[2][0])
        pool.set_env_attr("level", BURNS)
        _, reward, terminated, truncated, info = pool.step([None if dead else 0])
        assert (terminated[0], truncated[0]) == (False, True)
        assert same(reward, np.zeros((1, 4)))
        told = info[0] if mode != "same_step" else info[0]["final_info"]
        assert told["env_done"]
        assert "the table burns" in told["env_error"]
        if mode == "same_step":
            assert not info[0]["env_done"], "the next episode is shown"
        if mode is None:
            assert not pool.reset()[1][0]["env_done"]


LOST = [("shmem", "restart", None), ("dummy", "restart", "same_step")]
LOST += [("dummy", "replay", "next_step"), ("shmem", "replay", "same_step")]


@pytest.mark.parametrize(("backend", "on_error", "mode"), LOST)
def test_the_row_of_a_lost_episode_of_rounds(backend, on_error, mode):
    fns, options = [PlainMeadowEnv] * 2, {"autoreset_mode": mode, "on_error": on_error}
    with ParallelVectorEnv(fns, backend, **options) as pool:
        pool.reset(seed=1)
        pool.step([LEGAL] * 2)
        obs, *_ = pool.step([LEGAL] * 2)
        pool.set_env_attr("level", BURNS, [1])  # so a step that is repeated raises again
        acts = {agent: [0, 0] for agent in pool.possible_agents}
        batch = pool.step(acts)
        assert batch[4]["env_error"][0] is None
        assert re.match("env 1: (.|\n)*the meadow burns", batch[4]["env_error"][1])
        assert batch[4]["env_done"].tolist() == [False, True]
        row = row_of(batch, 1)
        info = row.info
        assert row.rewards == row.terminated == dict.fromkeys(acts, 0)
        assert row.truncated == info["valid"] == dict.fromkeys(acts, 1)
        assert info["alive"] == {a: mode == "same_step" and a in LEGAL for a in acts}
        last = info["final_obs"] if mode == "same_step" else row.obs
        assert same(last, pick(obs, 1)), "the last that was known"
        if mode is None:
            with pytest.raises(ResetNeeded):
                pool.step(acts)
            pool.reset([1])
        elif mode == "next_step":
            assert pool.step(acts)[4]["is_reset"].tolist() == [False, True]
        pool.set_env_attr("level", 1, [1])
        assert pool.step([LEGAL], [1])[4]["env_error"].tolist() == [None]


def blind(env):
    env.see = lambda agent: np.zeros(2, np.float32)  # noqa: ARG005


def test_an_error_names_the_env_and_the_others_continue():
    with ParallelVectorEnv([PlainMeadowEnv] * 3) as pool:
        pool.reset(seed=1)
        pool.apply(blind, id=1)
        text = r"env 1: step raised ValueError: obs\['agents'\]\['hunter_0'\] has shape \(2,\), but"
        with pytest.raises(ValueError, match=text) as caught:
            pool.step([LEGAL] * 3)
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (1,)
        assert pool.recv()[4]["env_id"].tolist() == [0, 2]
        with pytest.raises(ResetNeeded):
            pool.step([LEGAL], [1])
        kill(pool.pool, 2)
        with pytest.raises(WorkerDiedError, match="env 2: the worker process was killed by SIG"):
            pool.step([LEGAL] * 2, [0, 2])
        assert pool.recv()[4]["env_id"].tolist() == [0]
        pool.restart([1, 2])
        pool.reset()
