"""Wrappers of whole batches, bit for bit beside those of Gymnasium and Stable-Baselines3."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import vec_env as theirs

from envpool_py import DummyVectorEnv, wrappers
from tests.sb3.envs import WalkEnv
from tests.support.reference import same

NUM, STEPS = 3, 60


class Float32(gym.RewardWrapper):
    """Gives rewards that a float32 holds: Stable-Baselines3 stores them so."""

    def reward(self, reward):
        return float(np.float32(reward))


def test_rewards_are_those_of_vec_normalize_and_a_saved_one_goes_on_alike(tmp_path):
    made = [lambda: Float32(WalkEnv())] * NUM
    venv = theirs.VecNormalize(theirs.DummyVecEnv(made), norm_obs=False, gamma=0.9, clip_reward=2)
    pool = DummyVectorEnv(made, autoreset_mode="same_step")
    normed = wrappers.NormalizeReward(pool, gamma=0.9)
    venv.seed(5)
    venv.reset()
    with normed as envs:
        envs.reset(seed=5)
        for n, _ in enumerate(range(STEPS)):
            if n == STEPS // 2:
                normed.save(tmp_path / "a.npz")
                normed.return_rms = wrappers.RunningMeanStd(clip_max=None, epsilon=1e-8)
                normed.load(tmp_path / "a.npz")
            _, expected, dones, _ = venv.step([0] * NUM)
            _, reward, terminated, truncated, _ = envs.step([0] * NUM)
            assert same(np.clip(reward, -2, 2).astype(np.float32), expected)
            assert np.array_equal(terminated | truncated, dones)
        rms = venv.ret_rms
        assert (normed.return_rms.mean, normed.return_rms.var) == (rms.mean, rms.var)
    venv.close()


class Noise(gym.Env):
    """Its episodes are truncated only."""

    observation_space = gym.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.left = int(self.np_random.integers(2, 9))
        return self.np_random.normal(size=2), {}

    def step(self, action):
        self.left -= 1
        reward = float(self.np_random.integers(-4, 5)) + action
        return self.np_random.normal(size=2), reward, False, self.left == 0, {}


def test_rewards_are_those_of_gymnasium_but_for_its_float32_returns():
    """Gymnasium's also drops the return where an env terminates, one step too early."""
    mode = AutoresetMode.SAME_STEP
    venv = gym.vector.SyncVectorEnv([Noise] * NUM, autoreset_mode=mode)
    venv = gym.wrappers.vector.NormalizeReward(venv, gamma=0.5)
    pool = DummyVectorEnv([Noise] * NUM, autoreset_mode=mode)
    with wrappers.NormalizeReward(pool, gamma=0.5) as envs:
        venv.reset(seed=1)
        envs.reset(seed=1)
        for _ in range(STEPS):
            expected, found = venv.step([0] * NUM), envs.step([0] * NUM)
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
            assert np.array_equal(found[3], expected[3])
    venv.close()


def test_observations_are_those_of_gymnasium_with_its_settings():
    venv = gym.vector.SyncVectorEnv([Noise] * NUM, autoreset_mode=AutoresetMode.NEXT_STEP)
    venv = gym.wrappers.vector.NormalizeObservation(venv)
    with DummyVectorEnv([Noise] * NUM, autoreset_mode="next_step") as pool:
        envs = wrappers.VectorEnvNormObs(pool)
        prior = {"mean": np.zeros(2), "clip_max": None, "epsilon": 1e-8, "count": 1e-4}
        envs.set_obs_rms(wrappers.RunningMeanStd(**prior))
        assert same(envs.reset(seed=1)[0].astype(np.float32), venv.reset(seed=1)[0])
        for _ in range(STEPS):
            found, expected = envs.step([0] * NUM)[0], venv.step([0] * NUM)[0]
            assert same(found.astype(np.float32), expected)
    venv.close()
