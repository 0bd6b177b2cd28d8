"""Wrappers of pools on partial batches."""

import functools

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, wrappers
from tests.support.envs import CountEnv, RandomEnv
from tests.wrappers.envs import env_fns

NUM = 5
MODES = [None, "next_step", "same_step"]


def play(pool, wait_num):
    """Step a pool in partial batches; return for each env the rewards of its steps."""
    rewards = [[] for _ in range(NUM)]
    pool.reset(seed=list(range(NUM)))
    if wait_num is None:
        pool.wait_num = NUM
    to_reset, stepped = np.array([], int), np.arange(NUM)
    while min(map(len, rewards)) <= 10:  # a busy machine may keep one env waiting
        pool.send_reset(to_reset)
        pool.send([0] * len(stepped), stepped)
        _, reward, terminated, truncated, infos = pool.recv()
        for k, i in enumerate(pool.batch_ids.tolist()):
            if "is_reset" in infos[k]:
                assert reward[k] == 0
            else:
                rewards[i].append(reward[k])
        ended = (terminated | truncated) & (pool.autoreset_mode is None)
        to_reset = pool.batch_ids[ended]
        stepped = np.setdiff1d(pool.batch_ids, to_reset)
    pool.drain()
    return rewards


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait_num", [2, None])
def test_normalised_rewards(mode, wait_num, tmp_path):
    """Each reward is divided by the deviation of all returns so far, kept for each env by hand."""
    fns = [lambda i=i: CountEnv(i, 3 + i % 2) for i in range(NUM)]
    pool = DummyVectorEnv(fns, wait_num=2, autoreset_mode=mode)
    batches = []

    class Raw(wrappers.VectorEnvWrapper):
        def _returned(self, batch):
            batches.append((self.venv.batch_ids, *batch))
            return batch

    envs = wrappers.NormalizeReward(Raw(pool), gamma=0.5)
    found = play(envs, wait_num)
    returns, seen = dict.fromkeys(range(NUM), 0.0), []
    expected = [[] for _ in range(NUM)]
    for ids, *batch in batches:
        rows = [] if len(batch) == 2 else list(zip(ids, *batch[1:], strict=True))
        rows = [row for row in rows if "is_reset" not in row[-1]]
        for i, reward, *_ in rows:
            returns[i] = 0.5 * returns[i] + reward
            seen.append(returns[i])
        for i, reward, terminated, truncated, _ in rows:
            # The prior: a mean of 0 and a variance of 1 with the weight of 1e-4 rows.
            total = len(seen) + 1e-4
            mean = sum(seen) / total
            var = (1e-4 * (1 + mean**2) + sum((x - mean) ** 2 for x in seen)) / total
            expected[i].append(reward / np.sqrt(var + 1e-8))
            if terminated or truncated:
                returns[i] = 0.0
    for i in range(NUM):
        np.testing.assert_allclose(found[i], expected[i][: len(found[i])], rtol=1e-9)
    envs.save(tmp_path / "returns.npz")
    other = wrappers.NormalizeReward(pool)
    other.load(tmp_path / "returns.npz")
    assert vars(other.return_rms) == vars(envs.return_rms)
    envs.close()
    for wrong in ({"gamma": 1.5}, {"epsilon": 0}):
        with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
            wrappers.NormalizeReward(pool, **wrong)


def test_a_wrapper_declares_one_space_everywhere():
    with DummyVectorEnv(env_fns("uint8", 2)) as pool:
        inner = wrappers.VectorEnvNormObs(pool)
        envs = wrappers.NormalizeReward(inner)
        assert inner.single_observation_space == inner.observation_space[0]
        assert inner.single_observation_space != pool.single_observation_space
        assert envs.single_observation_space == envs.observation_space[0]
        assert envs.reset(seed=0)[0][0] in envs.single_observation_space


class PairEnv(RandomEnv):
    """Two rewards, or the one with this number, that no space declares."""

    def __init__(self, tag, number=None):
        super().__init__(tag)
        self.number = number

    def step(self, action):
        obs, reward, *flags, _ = super().step(action)
        pair = [reward, 3 * reward**2]
        if self.number is None:
            return obs, pair, *flags, {"is_reset": True}  # a key of its own
        return obs, pair[self.number], *flags, {}


def test_each_component_of_vector_rewards_is_normalised_by_itself():
    def rewards(number=None):
        fns = [functools.partial(PairEnv, i, number) for i in range(NUM)]
        with DummyVectorEnv(fns, autoreset_mode="same_step") as pool:
            envs = wrappers.NormalizeReward(pool)
            envs.reset(seed=1)
            return np.array([envs.step([k % 4] * NUM)[1] for k in range(20)])

    assert np.array_equal(rewards(), np.stack([rewards(0), rewards(1)], axis=2))
