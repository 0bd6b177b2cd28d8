"""Errors for what is missing: they name the argument, the env or the option that helps."""

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo import ParallelEnv

from envpool_py import ParallelVectorEnv, make
from envpool_py.gymnasium import VectorEnv, make_vec
from envpool_py.sb3 import DummyVecEnv, make_vec_env
from tests.support.envs import CountEnv


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


def test_arguments_of_make_vec_env():
    for key in ("on_error", "restart_backoff", "autoreset_mode"):
        text = rf"make_vec_env: {key} is an option of the pool; pass vec_env_kwargs={{'{key}': "
        with pytest.raises(TypeError, match=text):
            make_vec_env("CartPole-v1", 2, **{key: "restart"})
    with pytest.raises(TypeError, match=r"stiffness is no argument; .* env_kwargs=\{'stiffness'"):
        make_vec_env(CountEnv, 2, stiffness=3)
    with make_vec_env(CountEnv, 2, vec_env_kwargs={"on_error": "restart"}) as venv:
        assert isinstance(venv, DummyVecEnv)


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
