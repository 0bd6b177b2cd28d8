"""Hints for what users of other libraries type or leave out; warnings that name the culprit."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo import ParallelEnv

from envpool_py import DummyVectorEnv, ParallelVectorEnv, ShmemVectorEnv, make
from envpool_py.gymnasium import VectorEnv, make_vec
from envpool_py.worker import cores_and_threads
from tests.support.envs import CountEnv
from tests.support.helpers import ROOT


class NanEnv(CountEnv):
    """Copies its action into the observation and the reward, or has nan of its own."""

    def __init__(self, own):
        super().__init__()
        self.observation_space = self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.own = own

    def observe(self):
        return np.zeros(1, np.float32)

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


@pytest.mark.parametrize(
    ("threads", "processes", "said"), [(2, 1, True), (1, 2, False), (1, 1, False), (2, 0, False)]
)
def test_threads_of_torch_that_outnumber_the_cores(threads, processes, said, monkeypatch):
    monkeypatch.setattr(cores_and_threads, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(cores_and_threads, "_WARNED", [])
    # In place of torch, whose import takes seconds; only its number of threads is asked for.
    torch = SimpleNamespace(get_num_threads=lambda: threads, set_num_threads=lambda _: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
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


class Arm(CountEnv):
    def __init__(self, stiffness, *, damping=0.1):
        super().__init__()
        self.stiffness, self.damping = stiffness, damping


NEEDS = r"Arm needs stiffness; pass env_kwargs=\{'stiffness': \.\.\.\}"


@pytest.mark.parametrize("backend", ["auto", "dummy", "shmem", "thread"])
def test_a_missing_argument_of_the_env(backend):
    with pytest.raises(TypeError, match=NEEDS):
        make(Arm, 2, backend=backend)
    with make(Arm, 2, backend=backend, env_kwargs={"stiffness": 3.0}) as pool:
        assert pool.get_env_attr("stiffness") == [3.0, 3.0]


class Bare(CountEnv):
    """Has no space of one kind."""

    def __init__(self, name):
        super().__init__()
        delattr(self, name)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_vector_env_names_the_space_that_is_missing(name):
    for fns in ([lambda: Bare(name)] * 2, [CountEnv, lambda: Bare(name)]):
        i = 0 if len({*fns}) == 1 else 1
        with pytest.raises((TypeError, RuntimeError), match=f"env {i}: {name} is"):
            VectorEnv(fns, context="fork")
    with pytest.raises(TypeError, match=f"env 0: {name} is missing; set self.{name} = gym"):
        make_vec(lambda: Bare(name), 2, "sync")


class ComingBack(ParallelEnv):
    """``b`` ends in step 1, is away after it, and is listed again after step 2."""

    metadata = {"name": "coming_back"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, blind=False):
        self.blind = blind

    def observation_space(self, agent):  # noqa: ARG002
        return gym.spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):  # noqa: ARG002
        return gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):  # noqa: ARG002
        self.agents, self.t = ["a", "b"], 0
        return {agent: np.ones(1, np.float32) for agent in self.agents}, {"a": {}, "b": {}}

    def step(self, actions):
        self.t += 1
        agents = list(actions)
        obs = {agent: np.ones(1, np.float32) for agent in agents}
        if self.blind:
            obs.pop("a", None)
        ends = {agent: agent == "b" and not self.blind for agent in agents}
        self.agents = ["a"] if self.t == 1 and not self.blind else ["a", "b"]
        rewards = dict.fromkeys(agents, 1.0)
        return obs, rewards, ends, dict.fromkeys(agents, False), {agent: {} for agent in agents}


def test_an_agent_that_comes_back_and_one_without_an_observation_are_warned_of_once():
    for blind, text in (
        (False, "b is in env.agents again after its end"),
        (True, "a is alive, but has no observation"),
    ):
        fns = [lambda blind=blind: ComingBack(blind)] * 2
        with ParallelVectorEnv(fns, backend="dummy") as pool:
            pool.reset()
            actions = {"a": np.zeros(2, int), "b": np.zeros(2, int)}
            if not blind:
                pool.step(actions)
            with pytest.warns(UserWarning, match=text) as warned:
                pool.step(actions)
            assert len(warned) == 1  # for both envs
            for _ in range(2):  # a second warning would be an error
                pool.step(actions)
