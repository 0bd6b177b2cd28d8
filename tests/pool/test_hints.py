"""Hints for what users of other libraries type, and warnings that name the right culprit."""

import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.worker import cores_and_threads
from tests.support.envs import CountEnv
from tests.support.helpers import ROOT


class NanEnv(gym.Env):
    """Copies its action into the observation and the reward, or has nan of its own."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, own=0.0):
        self.own = own

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        obs = action + np.float32(self.own)
        return obs, float(obs[0]), False, False, {}


def test_a_class_in_place_of_a_list():
    for pool in (DummyVectorEnv, ShmemVectorEnv):
        with pytest.raises(TypeError, match=r"\[CountEnv\] \* num_envs"):
            pool(CountEnv)


def test_the_space_of_a_pool_is_a_list():
    with DummyVectorEnv([CountEnv] * 2) as pool:
        assert isinstance(pool.action_space, list)
        with pytest.raises(AttributeError, match=r"\[space.sample\(\) for space in envs"):
            pool.action_space.sample()
        with pytest.raises(AttributeError, match=r"spaces\[i\].shape.*single_observation_space"):
            _ = pool.observation_space.shape


@pytest.mark.parametrize(("own", "given", "blamed"), [(0.0, np.nan, True), (np.nan, 0.0, False)])
def test_nan_of_the_policy_is_not_blamed_on_the_env(own, given, blamed):
    with DummyVectorEnv([lambda: NanEnv(own)] * 2) as pool:
        pool.reset()
        with pytest.warns(UserWarning, match="nan") as found:
            pool.step(np.full((2, 1), given, np.float32))
    texts = [str(each.message) for each in found]
    assert all(("the action has nan" in text) == blamed for text in texts)
    assert len(texts) == 2  # observation and reward


def test_a_step_of_all_envs_in_a_partial_batch_names_batch_ids():
    with ShmemVectorEnv([CountEnv] * 4, wait_num=2) as pool:
        pool.reset()
        pool.send([0] * 4)
        pool.recv()
        pool.send([0] * len(pool.ready_id), pool.ready_id)
        with pytest.raises(gym.error.AlreadyPendingCallError, match="pass pool.batch_ids"):
            pool.step([0] * 4)


PUBLIC = """
import sys, envpool_py
names = {"sb3", "gymnasium", "envpool", "collector", "make", "RayVectorEnv", "PettingZooEnv"}
assert names <= set(dir(envpool_py)), dir(envpool_py)
envpool_py.sb3.SubprocVecEnv, envpool_py.gymnasium.make_vec, envpool_py.envpool.make
envpool_py.collector.AsyncCollector
assert "torch" not in sys.modules
envpool_py.ShmemVecEnv
"""


def test_public_names_need_no_import_of_their_own_and_a_misspelt_one_has_a_hint():
    """Python adds it where it prints the error."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run([sys.executable, "-c", PUBLIC], check=False, **options)
    error = "AttributeError: module 'envpool_py' has no attribute 'ShmemVecEnv'."
    assert done.stderr.splitlines()[-1] == f"{error} Did you mean: 'ShmemVectorEnv'?"


class Torch:
    """In place of torch, whose import takes seconds; only its number of threads is asked for."""

    def __init__(self, threads):
        self.threads = threads

    def get_num_threads(self):
        return self.threads

    def set_num_threads(self, threads):
        self.threads = threads


@pytest.mark.parametrize(
    ("threads", "processes", "said"), [(2, 1, True), (1, 2, False), (1, 1, False), (2, 0, False)]
)
def test_threads_of_torch_that_outnumber_the_cores(threads, processes, said, monkeypatch):
    monkeypatch.setattr(cores_and_threads, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(cores_and_threads, "_WARNED", [])
    monkeypatch.setitem(sys.modules, "torch", Torch(threads))
    counts = []
    for _ in range(2):  # the second pool does not warn again
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            pool = DummyVectorEnv([CountEnv] * 2)
            if processes:
                pool.close()
                pool = ShmemVectorEnv([CountEnv] * 2, num_processes=processes, context="fork")
            pool.close()
        texts = [each for each in found if "torch.set_num_threads(1)" in str(each.message)]
        assert all(each.filename == __file__ for each in texts)
        counts.append(len(texts))
    assert counts == [int(said), 0]
