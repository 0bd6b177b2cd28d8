"""`AsyncRollouts` over envs with gym's old interface."""

import numpy as np
import stable_baselines3.common.vec_env as sb3
from stable_baselines3 import PPO

from envpool_py.sb3 import AsyncRollouts, ShmemVecEnv
from envpool_py.wrappers import OldGymEnv
from tests.wrappers.test_old_gym import Arm


class AsyncPPO(AsyncRollouts, PPO):
    pass


def test_equal_weights_with_whole_batches():
    small = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}
    found = []
    for algorithm, vec_env, more in (
        (PPO, sb3.DummyVecEnv, {}),
        (AsyncPPO, ShmemVecEnv, {"wait_num": 2}),
    ):
        venv = vec_env([lambda: OldGymEnv(Arm())] * 2)
        model = algorithm("MlpPolicy", venv, **small, **more).learn(64)
        found.append([value.numpy() for value in model.policy.state_dict().values()])
        venv.close()
    assert all(map(np.array_equal, *found))


def test_partial_batches():
    venv = ShmemVecEnv([lambda: OldGymEnv(Arm())] * 2)
    model = AsyncPPO("MlpPolicy", venv, n_steps=16, batch_size=16, seed=0, device="cpu").learn(64)
    venv.close()
    assert model.num_timesteps == 64
