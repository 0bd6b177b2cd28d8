"""What ``PettingZooEnv`` is by itself: its spaces, its attributes, what it refuses."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.utils.conversions import aec_to_parallel

from envpool_py import DummyVectorEnv, EnvError
from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.envs import MeadowEnv, TableEnv
from tests.pettingzoo.places import BACKENDS, KAZ, POOLS, make_aec, make_parallel
from tests.support.reference import alike as same


def tictactoe(**options: Any) -> PettingZooEnv:
    return PettingZooEnv(make_aec("classic/tictactoe-v3"), **options)


WIN = (0, 3, 1, 4, 2)


@pytest.mark.parametrize("make", [make_aec, make_parallel])
def test_an_env_without_the_wrapper_is_refused(make: Any) -> None:
    bare = functools.partial(make, "simple_spread")
    with pytest.raises(EnvError, match="env 1: .*a PettingZoo env goes into PettingZooEnv") as info:
        DummyVectorEnv([tictactoe, bare])
    assert isinstance(info.value, TypeError)


@pytest.mark.parametrize("name", ["classic/leduc_holdem-v4", "sisl/multiwalker-v9", "table"])
def test_spaces_describe_what_is_returned(name: str) -> None:
    env = PettingZooEnv(make_aec(name))
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert ("mask" in obs) == isinstance(env.action_space, spaces.Discrete)
    assert env.reward_space.shape == (len(env.possible_agents),)
    env.close()


def test_spaces_are_pettingzoos_when_called() -> None:
    env = tictactoe()
    assert env.action_space.n == 9
    assert env.action_space("player_1") is env.env.action_space("player_1")
    own = env.observation_space
    assert own("player_2") is env.env.observation_space("player_2")
    assert (own["observation"], own.spaces["action_mask"]) == (own["obs"], own["mask"])
    with pytest.raises(KeyError, match="unknown agent 'nobody'; the agents are 'player_1'"):
        env.action_space("nobody")
    with pytest.raises(KeyError):
        _ = own["nothing"]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])
def test_spaces_can_be_sent(clone: Any) -> None:
    env = tictactoe()
    for space in (env.action_space, env.observation_space):
        sent = clone(space)
        assert sent == space
        assert sent("player_1") == space("player_1")
        assert type(sent) is type(space)
        space.seed(3)
        again = clone(space)
        assert same(again.sample(), space.sample())


def test_an_episode() -> None:
    env = tictactoe()
    assert isinstance(env, pettingzoo.AECEnv)
    assert env.agents == env.possible_agents == ["player_1", "player_2"]
    assert env.agent_idx == {"player_1": 0, "player_2": 1}
    with pytest.raises(ResetNeeded, match="never reset"):
        env.step(0)
    env.reset()
    rows = [env.step(action) for action in (*WIN, None, None)]
    assert env.rewards == {}
    assert [row[4]["env_done"] for row in rows] == [False] * 6 + [True]
    assert same(rows[4][1], np.array([1.0, -1.0])), "what was returned does not change"
    assert same(rows[4][4]["terminations"], np.array([True, True]))
    assert not rows[0][4]["terminations"].any()
    with pytest.raises(ResetNeeded, match="all agents are done"):
        env.step(None)
    assert not env.reset()[1]["terminations"].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_seeds_and_attributes_in_a_pool(backend: str) -> None:
    raw = TableEnv()
    raw.reset(seed=9)
    raw.reset()
    with POOLS[backend]([lambda: PettingZooEnv(TableEnv())] * 2) as pool:
        assert pool.seed(9) == [[9], [10]]  # each by one reset
        obs, _ = pool.reset()
        assert same(obs[0]["mask"], raw.infos["player_0"]["action_mask"] != 0)
        pool.set_env_attr("level", 5, id=[1])
        assert pool.get_env_attr("level") == [1, 5]
        assert [env.level for env in pool.get_env_attr("unwrapped")] == [1, 5]


def test_a_loop_over_agent_iter_is_pettingzoos() -> None:
    env = PettingZooEnv(TableEnv())
    env.reset(seed=1)
    turns = 0
    for _ in env.agent_iter():
        _, _, terminated, truncated, info = env.last()
        dead = terminated or truncated
        assert env.step(None if dead else int(info["action_mask"].argmax())) is None
        turns += 1
    assert turns > 12
    assert not env.agents
    env.reset(seed=1)
    assert env.step(0) is not None


def test_a_parallel_env_is_converted() -> None:
    env = PettingZooEnv(aec_to_parallel(make_aec(KAZ)))
    assert env.reset(seed=1)[0]["agent_id"] == "archer_0"
    env.close()
    mixed = PettingZooEnv(MeadowEnv(), heterogeneous=True)
    obs, _ = mixed.reset(seed=1)
    assert obs["agent_id"] == "hunter_0"
    assert mixed.observation_space.contains(obs)
    assert mixed.action_space("fawn_0").n == 3
    mixed.action_space.seed(1)
    assert mixed.action_space.sample() in mixed.action_space


def table(agents: list) -> TableEnv:
    env = TableEnv()
    env.possible_agents = agents
    return env


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (lambda: gym.make("CartPole-v1").unwrapped, {}, TypeError, "got CartPoleEnv, which is nei"),
        (MeadowEnv, {}, ValueError, "'fawn_0' has the spaces .* heterogeneous=True"),
        (TableEnv, {"dead_steps": "no"}, ValueError, "must be 'caller' or 'skip', got 'no'"),
        (lambda: table([]), {}, ValueError, "table_v0 has no possible_agents"),
        (lambda: table([1, 2]), {}, TypeError, "must be a str, got 1"),
        (lambda: table(["a", "a"]), {}, ValueError, "a name stands twice"),
    ],
)
def test_what_is_refused(make: Any, options: dict, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"env 1: env_fn raised {error.__name__}: .*{text}"):
        DummyVectorEnv([tictactoe, lambda: PettingZooEnv(make(), **options)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_faults_name_the_env_and_the_pool_goes_on(backend: str) -> None:
    with POOLS[backend]([tictactoe] * 2, wait_num=1) as pool:
        pool.reset()
        pool.send([None, 0])
        with pytest.raises(ValueError, match="env 0: step raised ValueError: agent 'player_1'"):
            [pool.recv() for _ in range(2)]
        while 1 in pool.waiting_id:
            assert pool.recv()[4][0]["env_id"] == 1
        with pytest.raises(ResetNeeded):
            pool.step([0], [0])
        pool.wait_num = 2
        pool.reset()
        for action in WIN:
            _, _, terminated, _, _ = pool.step([action, action], [0, 1])
        assert terminated.all()
        with pytest.raises(ValueError, match="is dead; its action must be None, got 5") as info:
            pool.step([None, 5], [0, 1])
        assert isinstance(info.value, EnvError)
        assert info.value.env_ids == (1,)
        assert not pool.step(None, [0])[4][0]["env_done"]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_autoreset_is_at_the_end_of_the_env(backend: str, mode: str) -> None:
    with POOLS[backend]([tictactoe], autoreset_mode=mode) as pool:
        pool.reset()
        rows = [pool.step([action]) for action in (*WIN, None, None)]
        done = [bool(row[4][0]["env_done"]) for row in rows[:-1]]
        assert not any(done), "one agent's death is not the end"
        *_, info = rows[-1]
        if mode == "same_step":
            assert info[0]["final_info"]["env_done"]
            assert info[0]["final_obs"]["agent_id"] == rows[-2][0][0]["agent_id"]
        else:
            assert info[0]["env_done"]
            assert pool.step([0])[4][0]["is_reset"]
        obs, _, terminated, _, _ = pool.step([8])
        assert obs[0]["agent_id"] == "player_2"
        assert not terminated[0]
        assert obs[0]["mask"].sum() == 8


class BurningTableEnv(TableEnv):
    """Raises in the step in which it has been told to."""

    burns = False

    def step(self, action: int | None) -> None:
        if self.burns:
            raise ValueError("the table burns")
        super().step(action)


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize(("backend", "after_a_death"), [("dummy", True), ("shmem", False)])
def test_the_row_of_a_lost_episode_says_that_the_env_is_done(
    backend: str, mode: str | None, *, after_a_death: bool
) -> None:
    fns = [lambda: PettingZooEnv(BurningTableEnv())]
    with POOLS[backend](fns, autoreset_mode=mode, on_error="restart") as pool:
        obs, _ = pool.reset(seed=3)
        dead = False
        while dead != after_a_death:
            action = int(np.flatnonzero(obs[0]["mask"])[0])
            obs, _, terminated, truncated, info = pool.step([action])
            dead = bool(terminated[0] or truncated[0])
        assert not dead or not info[0]["env_done"]
        pool.set_env_attr("burns", True)
        _, reward, terminated, truncated, info = pool.step([None if dead else 0])
        assert (terminated[0], truncated[0]) == (False, True)
        assert same(reward, np.zeros((1, 4)))
        told = info[0] if mode != "same_step" else info[0]["final_info"]
        assert told["env_done"]
        assert "the table burns" in told["env_error"]
        if mode == "same_step":
            assert not info[0]["env_done"], "what is shown is the next episode"
        if mode is None:
            obs, info = pool.reset()
            assert not info[0]["env_done"]
