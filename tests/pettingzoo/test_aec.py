"""``PettingZooEnv`` by itself: spaces, attributes, what it refuses, and wrappers inside of it."""

import copy
import functools
import pickle

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.pettingzoo import PettingZooEnv
from envpool_py.pettingzoo.convert import Direct, converted_step
from tests.pettingzoo.by_hand import AECByHand
from tests.pettingzoo.envs import MeadowEnv, PlainMeadowEnv, TableEnv, make_aec, make_parallel
from tests.support.reference import alike as same


def tictactoe(**options):
    return PettingZooEnv(make_aec("classic/tictactoe-v3"), **options)


def mask_of_two_parts():
    env, mask = TableEnv(), spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
    seen = spaces.Dict(observation=spaces.Discrete(3), action_mask=mask)
    acts = spaces.MultiDiscrete([2, 3])
    env.observation_space, env.action_space = lambda _: seen, lambda _: acts
    env.observe = lambda _: seen.sample()
    return env


@pytest.mark.parametrize(
    ("make", "has_mask"),
    [
        (lambda: make_aec("classic/leduc_holdem-v4"), True),
        (lambda: make_aec("sisl/multiwalker-v9"), False),
        (MeadowEnv, True),
        (mask_of_two_parts, False),  # it is no array, and stays in the observation
    ],
)
def test_spaces_describe_what_is_returned(make, has_mask):
    env = PettingZooEnv(make(), heterogeneous=True)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert obs.keys() == {"agent_id", "obs", *(["mask"] if has_mask else [])}
    assert env.reward_space.shape == (len(env.possible_agents),)
    for space in (env.observation_space, env.action_space):
        space.seed(1)
        assert all(space.sample() in space for _ in range(9))
    env.close()


def test_spaces_are_pettingzoos_when_called():
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
def test_spaces_can_be_sent(clone):
    env = PettingZooEnv(MeadowEnv(), heterogeneous=True)
    for space in (env.action_space, env.observation_space, tictactoe().action_space):
        space.seed(3)
        sent = clone(space)
        assert (type(sent), sent) == (type(space), space)
        agent = next(iter(space._own))
        assert sent(agent) == space(agent)
        assert same(sent.sample(), space.sample())


def test_an_episode():
    env = tictactoe()
    assert isinstance(env, pettingzoo.AECEnv)
    assert env.agents == env.possible_agents == ["player_1", "player_2"]
    assert env.agent_idx == {"player_1": 0, "player_2": 1}
    with pytest.raises(ResetNeeded, match="never reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="'player_1' is alive; None is the action of a dead"):
        env.step(None)
    rows = [env.step(action) for action in (0, 3, 1, 4, 2)]
    with pytest.raises(ValueError, match="'player_2' is dead; its action must be None, got 5"):
        env.step(5)
    rows += [env.step(None) for _ in range(2)]
    assert env.rewards == {}
    assert [row[4]["env_done"] for row in rows] == [False] * 6 + [True]
    assert same(rows[4][1], np.array([1.0, -1.0])), "what was returned does not change"
    with pytest.raises(ResetNeeded, match="all agents are done"):
        env.step(None)


def test_seeds_and_attributes_in_a_pool():
    raw = TableEnv()
    raw.reset(seed=9)
    raw.reset()
    with ShmemVectorEnv([lambda: PettingZooEnv(TableEnv())] * 2, num_processes=1) as pool:
        assert pool.seed(9) == [[9], [10]]  # each by one reset
        obs, _ = pool.reset()
        assert same(obs[0]["mask"], raw.infos["hunter_0"]["action_mask"] != 0)
        pool.set_env_attr("level", 5, id=[1])
        assert pool.get_env_attr("level") == [1, 5]
        assert [type(env) for env in pool.get_env_attr("unwrapped")] == [PlainMeadowEnv] * 2


def test_a_loop_over_agent_iter_is_pettingzoos():
    env = PettingZooEnv(TableEnv())
    env.reset(seed=1)
    turns = 0
    for _ in env.agent_iter():
        _, _, terminated, truncated, _ = env.last()
        assert env.step(None if terminated or truncated else 0) is None
        turns += 1
    assert turns > 12
    assert not env.agents
    env.reset(seed=1)
    assert env.step(0) is not None


def named(*agents):
    env = TableEnv()
    env.possible_agents = list(agents)
    return PettingZooEnv(env)


@pytest.mark.parametrize(
    ("env_fn", "error", "text"),
    [
        (TableEnv, TypeError, "a PettingZoo env goes into PettingZooEnv"),
        (MeadowEnv, TypeError, "a PettingZoo env goes into PettingZooEnv"),
        (
            lambda: PettingZooEnv(gym.Env()),
            TypeError,
            "raised TypeError: got Env, which is neither",
        ),
        (lambda: PettingZooEnv(MeadowEnv()), ValueError, "'fawn_0' has the spaces .* heterogen"),
        (lambda: tictactoe(dead_steps="no"), ValueError, "must be 'caller' or 'skip', got 'no'"),
        (named, ValueError, "meadow_v0 has no possible_agents"),
        (functools.partial(named, 1, 2), TypeError, "must be a str, got 1"),
        (functools.partial(named, "a", "a"), ValueError, "a name stands twice"),
    ],
)
def test_what_is_refused(env_fn, error, text):
    with pytest.raises(error, match=f"env 1: .*{text}") as caught:
        DummyVectorEnv([tictactoe, env_fn])
    assert isinstance(caught.value, EnvError)


# ---------------------------- rows read past the wrappers, which have their say nevertheless


class Own(wrappers.BaseWrapper):
    """Has all that a row is made of in its own way, from its first step on also an attribute."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return {agent: {"told": True} for agent in found} if name == "infos" else found

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.__dict__.pop("rewards", None)

    def step(self, action):
        super().step(action)
        self.rewards = dict.fromkeys(self.env.agents, 7)

    def observe(self, agent):
        return 2 * super().observe(agent)

    def last(self, observe=True):
        seen, reward, *rest = super().last(observe)
        return seen, reward - 1, *rest


class Counting(wrappers.BaseWrapper):
    """Counts what is asked of the env."""

    def __init__(self, env):
        super().__init__(env)
        self.calls = []

    def observe(self, agent):
        self.calls.append(("observe", agent))
        return super().observe(agent)

    def step(self, action):
        self.calls.append(("step", action))
        super().step(action)


def theirs(env):
    """Wrap an env as the envs of PettingZoo are."""
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(env))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own(theirs(TableEnv())),
        lambda: theirs(Own(TableEnv())),
        lambda: Counting(theirs(TableEnv())),
        # It tells a legal move by the mask that was seen last, and does not ask the env again.
        lambda: wrappers.TerminateIllegalWrapper(Counting(TableEnv()), -1),
    ],
)
def test_custom_wrappers_are_not_passed_by(make):
    hand, env = AECByHand(make()), PettingZooEnv(make())
    rng = np.random.default_rng(0)
    for seed in range(2):
        expected = hand.reset(seed)
        del expected.info["is_reset"]
        assert same(env.reset(seed=seed), (expected.obs, expected.info))
        while not hand.over:
            action = hand.choose(expected, rng)
            expected = hand.step(action)
            assert same(env.step(action), tuple(expected))
    assert getattr(env, "calls", None) == getattr(hand.env, "calls", None)


def test_the_wrappers_that_come_with_an_env_are_passed_by():
    for name in ("classic/tictactoe-v3", "simple_spread"):
        env = make_aec(name)
        env.reset(seed=0)
        assert vars(Direct(env)) is vars(env.unwrapped)


def test_a_wrapper_that_is_put_in_later_is_seen_from_the_next_reset_on():
    env = PettingZooEnv(theirs(TableEnv()))
    env.reset(seed=0)
    env.env.env = Own(env.env.env)
    env.reset(seed=0)
    obs = env.step(0)[0]
    assert same(obs["obs"], env.observe(obs["agent_id"]))


@pytest.mark.parametrize(
    "make", [lambda: make_aec("simple_spread"), lambda: parallel_to_aec(MeadowEnv())]
)
def test_a_converted_env_makes_the_same_calls_and_returns_the_same(make):
    raw, ours = (aec_to_parallel(Counting(theirs(make()))) for _ in range(2))
    rng = np.random.default_rng(0)
    for seed in range(2):
        assert same(raw.reset(seed=seed), ours.reset(seed=seed))
        step = converted_step(ours)
        while raw.agents:
            actions = {agent: int(rng.integers(3)) for agent in raw.agents}
            expected, got = raw.step(actions), step(actions)
            assert same(got, expected)
            assert [list(part) for part in got] == [list(part) for part in expected]
            assert ours.agents == raw.agents
    assert ours.aec_env.calls == raw.aec_env.calls


def test_converted_envs_are_stepped_through_their_wrappers():
    assert converted_step(MeadowEnv()) is None
    converted = make_parallel("simple_spread")
    converted.reset(seed=0)
    with pytest.raises(AssertionError, match="action is not in action space"):
        converted_step(converted)(dict.fromkeys(converted.agents, 9))
    converted.step = converted.step  # somebody's own
    assert converted_step(converted) is None
