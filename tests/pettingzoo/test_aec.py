"""``PettingZooEnv`` by itself: its spaces, its attributes, and what it refuses."""

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

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.envs import MeadowEnv, TableEnv, make_aec, make_parallel
from tests.support.reference import alike as same

WIN = (0, 3, 1, 4, 2)


def tictactoe(**options: Any) -> PettingZooEnv:
    return PettingZooEnv(make_aec("classic/tictactoe-v3"), **options)


class PartsEnv(TableEnv):
    """Its mask has two parts, which are no array."""

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        mask = spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
        return spaces.Dict({"observation": self.seen, "action_mask": mask})

    def action_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return spaces.MultiDiscrete([2, 3])

    def observe(self, agent: str) -> Any:
        mask = tuple(np.ones(n, np.int8) for n in (2, 3))
        return {"observation": super().observe(agent), "action_mask": mask}


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda: make_aec("classic/leduc_holdem-v4"), {"agent_id", "obs", "mask"}),
        (lambda: make_aec("sisl/multiwalker-v9"), {"agent_id", "obs"}),
        (MeadowEnv, {"agent_id", "obs", "mask"}),
        (PartsEnv, {"agent_id", "obs"}),
    ],
)
def test_spaces_describe_what_is_returned(make: Any, keys: set) -> None:
    env = PettingZooEnv(make(), heterogeneous=True)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert obs.keys() == env.observation_space.spaces.keys() == keys
    assert env.reward_space.shape == (len(env.possible_agents),)
    env.observation_space.seed(1)
    env.action_space.seed(1)
    for _ in range(9):
        assert env.action_space.sample() in env.action_space
        assert env.observation_space.sample() in env.observation_space
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
    for env in (tictactoe(), PettingZooEnv(MeadowEnv(), heterogeneous=True)):
        for space in (env.action_space, env.observation_space):
            space.seed(3)
            sent = clone(space)
            assert type(sent) is type(space)
            assert sent == space
            agent = env.possible_agents[0]
            assert sent(agent) == space(agent)
            assert same(sent.sample(), space.sample())


def test_an_episode() -> None:
    env = tictactoe()
    assert isinstance(env, pettingzoo.AECEnv)
    assert env.agents == env.possible_agents == ["player_1", "player_2"]
    assert env.agent_idx == {"player_1": 0, "player_2": 1}
    with pytest.raises(ResetNeeded, match="never reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="'player_1' is alive; None is the action of a dead"):
        env.step(None)
    rows = [env.step(action) for action in WIN]
    with pytest.raises(ValueError, match="'player_2' is dead; its action must be None, got 5"):
        env.step(5)
    rows += [env.step(None) for _ in range(2)]
    assert env.rewards == {}
    assert [row[4]["env_done"] for row in rows] == [False] * 6 + [True]
    assert same(rows[4][1], np.array([1.0, -1.0])), "what was returned does not change"
    assert same(rows[4][4]["terminations"], np.array([True, True]))
    assert not rows[0][4]["terminations"].any()
    with pytest.raises(ResetNeeded, match="all agents are done"):
        env.step(None)
    assert not env.reset()[1]["terminations"].any()


def test_seeds_and_attributes_in_a_pool() -> None:
    raw = TableEnv()
    raw.reset(seed=9)
    raw.reset()
    with ShmemVectorEnv([lambda: PettingZooEnv(TableEnv())] * 2, num_processes=1) as pool:
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


def named(*agents: Any) -> PettingZooEnv:
    env = TableEnv()
    env.possible_agents = list(agents)
    return PettingZooEnv(env)


@pytest.mark.parametrize(
    ("env_fn", "error", "text"),
    [
        (lambda: make_aec("classic/rps-v2"), TypeError, "a PettingZoo env goes into PettingZooEnv"),
        (lambda: make_parallel("meadow"), TypeError, "a PettingZoo env goes into PettingZooEnv"),
        (
            lambda: PettingZooEnv(gym.make("CartPole-v1").unwrapped),
            TypeError,
            "env_fn raised TypeError: got CartPoleEnv, which is neither",
        ),
        (lambda: PettingZooEnv(MeadowEnv()), ValueError, "'fawn_0' has the spaces .* heterogen"),
        (lambda: tictactoe(dead_steps="no"), ValueError, "must be 'caller' or 'skip', got 'no'"),
        (named, ValueError, "table_v0 has no possible_agents"),
        (functools.partial(named, 1, 2), TypeError, "must be a str, got 1"),
        (functools.partial(named, "a", "a"), ValueError, "a name stands twice"),
    ],
)
def test_what_is_refused(env_fn: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"env 1: .*{text}") as caught:
        DummyVectorEnv([tictactoe, env_fn])
    assert isinstance(caught.value, EnvError)
