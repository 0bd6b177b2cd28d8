"""Stable-Baselines3's PPO learns to its end over envs that fail in 1 % of their steps."""

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO

from envpool_py.sb3 import SubprocVecEnv


class Unreliable(gym.Wrapper):
    """Raises in 1 % of the steps, by the env's own stream of random numbers."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.chance = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.chance.random() < 0.01:
            raise ConnectionError("the simulator is gone")
        return super().step(action)


def make():
    return Unreliable(gym.make("CartPole-v1"))


def test_ppo_ends():
    venv = SubprocVecEnv([make] * 4, start_method="fork", on_error="restart", num_processes=2)
    venv.seed(0)
    model = PPO("MlpPolicy", venv, n_steps=256, batch_size=256, n_epochs=1, device="cpu", seed=0)
    model.learn(8192)
    assert model.num_timesteps >= 8192
    assert 50 < venv.restarts.sum() < 150
    assert not np.isnan(model.predict(np.zeros((1, 4), np.float32))[0]).any()
    venv.close()
