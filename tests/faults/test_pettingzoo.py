"""PettingZoo envs that fail, or whose process dies."""

import functools
import re

import numpy as np
import pytest

import envpool_py
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from envpool_py.seeding import of_episode
from tests.faults.helpers import MODES, RESTART, kill
from tests.pettingzoo.by_hand import AECByHand, drive, pick, row_of
from tests.pettingzoo.envs import BURNS, PlainMeadowEnv, TableEnv
from tests.support.places import PLACES, paired
from tests.support.reference import alike as same

pytestmark = pytest.mark.slow

SEED = 11
LEGAL = {"hunter_0": 0, "fawn_0": 0, "hunter_1": 0}


class Forwarding:
    """A wrapper of the user's; Gymnasium's take no such env."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


def make_table():
    return PettingZooEnv(TableEnv())


@pytest.mark.parametrize(
    ("mode", "seeds", "restarts"), paired([*MODES, None], [False] * 3 + [True], [False, True])
)
def test_a_terminated_agent_ends_no_episode(mode, seeds, restarts):
    """The schedule of seeds goes on where it was."""
    schedules = [functools.partial(of_episode, SEED + i) for i in range(3)]
    hands = [AECByHand(TableEnv(), mode, seeds=schedule) for schedule in schedules]
    options = {"episode_seeds": True, "autoreset_mode": mode, **(RESTART if restarts else {})}
    with PLACES["shmem-fork-packed"]([lambda: Forwarding(make_table())] * 3, **options) as pool:
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
def test_the_record_of_an_env_of_turns_is_replayed(mode, tmp_path):
    record = tmp_path / "record"
    hands = [AECByHand(TableEnv(), mode) for _ in range(2)]
    with PLACES["dummy"]([make_table] * 2, autoreset_mode=mode, record=record) as pool:
        batches = drive(pool, hands, 40)
    assert same(batches, list(envpool_py.replay(record, [make_table] * 2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dead", [False, True])
def test_the_row_of_a_lost_episode_of_turns(mode, dead):
    with PLACES["dummy"]([make_table], autoreset_mode=mode, on_error="restart") as pool:
        pool.reset(seed=3)
        while dead and not pool.step([0])[2][0]:
            pass
        pool.set_env_attr("level", BURNS)
        _, reward, terminated, truncated, info = pool.step([None if dead else 0])
        assert (terminated[0], truncated[0]) == (False, True)
        assert same(reward, np.zeros((1, 4)))
        told = info[0] if mode != "same_step" else info[0]["final_info"]
        assert told["env_done"]
        assert "the table burns" in told["env_error"]
        first = pool.reset()[1] if mode is None else info
        assert first[0]["env_done"] == (mode == "next_step"), "the next episode is shown"


@pytest.mark.parametrize("mode", MODES)
def test_the_row_of_a_lost_episode_of_rounds(mode):
    with ParallelVectorEnv([PlainMeadowEnv] * 2, autoreset_mode=mode, on_error="restart") as pool:
        pool.reset(seed=1)
        pool.step([LEGAL] * 2)
        obs, *_ = pool.step([LEGAL] * 2)
        pool.set_env_attr("level", BURNS, [1])
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
            pool.reset([1])
        elif mode == "next_step":
            assert pool.step(acts)[4]["is_reset"].tolist() == [False, True]
        pool.set_env_attr("level", 1, [1])
        assert pool.step([LEGAL], [1])[4]["env_error"].tolist() == [None]
