"""Returns and lengths of episodes, compared with Gymnasium's wrapper around each env."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv
from envpool_py.wrappers import RecordEpisodeStatistics
from tests.support.envs import FaultEnv, VectorRewardEnv
from tests.wrappers.envs import env_fns

FNS = env_fns("discrete", 5)
RECORDED = [lambda env_fn=fn: gym.wrappers.RecordEpisodeStatistics(env_fn()) for fn in FNS]


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("wait_num", [None, 2])
def test_each_episode_is_that_of_an_env_alone(mode, wait_num):
    pool = DummyVectorEnv(RECORDED, wait_num=wait_num, autoreset_mode=mode)
    with RecordEpisodeStatistics(pool, buffer_length=1000, stats_key="ours") as envs:
        envs.reset()
        ended, found = np.zeros(5, bool), []
        for _ in range(40):
            to_reset = ended if mode is None else np.zeros(len(ended), bool)
            envs.send_reset(envs.batch_ids[to_reset])
            stepped = envs.batch_ids[~to_reset]
            envs.send([0] * len(stepped), stepped)
            _, _, terminated, truncated, infos = envs.recv()
            ended = terminated | truncated
            assert ["ours" in info for info in infos] == ended.tolist()
            for info in infos[ended]:
                theirs = info.get("final_info", info)["episode"]
                found.append((info["ours"]["r"], info["ours"]["l"]))
                assert found[-1] == (theirs["r"], theirs["l"])
                assert info["ours"]["t"] == pytest.approx(theirs["t"], abs=5)
        assert list(zip(envs.return_queue, envs.length_queue, strict=True)) == found
        assert envs.episode_count == len(envs.time_queue) == len(found)
        envs.drain()


def episodes(infos):
    return [(i["env_id"], i["episode"]["r"], i["episode"]["l"]) for i in infos if "episode" in i]


def test_a_reset_or_seed_in_the_middle_starts_again():
    with RecordEpisodeStatistics(DummyVectorEnv(FNS[:2])) as envs:
        found = []
        for name in ("reset", "send_reset", "seed"):
            envs.reset()
            envs.step([0, 0])
            getattr(envs, name)(0)  # of env 0, or with seed 0
            envs.drain()
            envs.step([0, 0])
            found += episodes(envs.step([0, 0])[-1])
        assert found[:2] == [(0, 101.0 + 102.0, 2), (1, 1.0 + 2.0 + 3.0, 3)]
        assert found[2:] == [(0, 603.0, 2), (1, 306.0, 3), (0, 1003.0, 2)]


def test_vector_rewards_have_vector_returns():
    fns = [partial(VectorRewardEnv, tag, 2) for tag in range(2)]
    with RecordEpisodeStatistics(DummyVectorEnv(fns), stats_key="mine") as envs:
        envs.reset()
        first = envs.step([0, 0])[1]
        _, second, *_, infos = envs.step([0, 0])
        assert np.array_equal([info["mine"]["r"] for info in infos], first + second)


def test_a_restart_ends_an_episode():
    with RecordEpisodeStatistics(DummyVectorEnv([FaultEnv], on_error="restart")) as envs:
        envs.reset()
        _, reward, *_ = envs.step([""])
        assert episodes(envs.step(["value"])[-1]) == [(0, reward[0], 2)]


def test_an_entry_of_another_wrapper_is_not_replaced():
    with RecordEpisodeStatistics(DummyVectorEnv(RECORDED[:1])) as envs:
        envs.reset()
        envs.step([0])
        with pytest.raises(ValueError, match="env 0: the info has an entry"):
            envs.step([0])  # the last of the episode
