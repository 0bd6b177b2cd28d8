"""``PettingZooEnv`` against raw envs stepped by hand, and by itself."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from pettingzoo.classic.tictactoe.tictactoe import raw_env

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.env.wrapper_layers import make_for_random_actions
from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.by_hand import MODES, AECByHand, drive
from tests.pettingzoo.envs import ACTS, KAZ, MeadowEnv, PlainMeadowEnv, TableEnv, make_aec
from tests.support.places import PLACES, QUICK
from tests.support.reference import alike as same

# Place, name, autoreset mode, and the steps of each env: enough for several episodes.
TURNS = [
    ("shmem", "classic/tictactoe-v3", None, 40),
    ("dummy", "classic/leduc_holdem-v4", "same_step", 40),
    ("shmem", "classic/rps-v2", "next_step", 40),
    ("shmem", "simple_adversary", None, 60),
    ("shmem", "sisl/multiwalker-v9", None, 110),
    ("dummy", KAZ, None, 150),
    ("shmem", "meadow", None, 90),
    *zip(("dummy", "shmem", "shmem"), ["table"] * 3, MODES, [50] * 3, strict=True),
    ("dummy", "own_outside", None, 50),
    ("dummy", "own_inside", None, 50),
]


SKIPPED = [turn for turn in TURNS if turn[1] in (KAZ, "classic/tictactoe-v3", "meadow")]
SKIPPED += zip(("shmem", "dummy", "dummy"), ["table"] * 3, MODES, [50] * 3, strict=True)
DEAD = [*((*turn, "caller") for turn in TURNS), *((*turn, "skip") for turn in SKIPPED)]


@pytest.mark.parametrize(("place", "name", "mode", "steps", "dead_steps"), DEAD)
def test_rows_are_those_of_envs_stepped_by_hand(place, name, mode, steps, dead_steps, sides):
    mixed, skip = name in ("simple_adversary", "meadow"), dead_steps == "skip"

    def make():
        return PettingZooEnv(make_aec(name), dead_steps=dead_steps, heterogeneous=mixed)

    # An env that is converted from a parallel env is converted likewise by hand.
    hands = [AECByHand(make().env, mode, ACTS.get(name), skip=skip) for _ in range(3)]
    kind, options = (
        (DummyVectorEnv, {}) if place == "dummy" else (ShmemVectorEnv, {"num_processes": 2})
    )
    with kind([make] * 3, wait_num=2, autoreset_mode=mode, **options) as pool:
        drive(pool, hands, steps)
    assert all(hand.episodes > 1 for hand in hands)
    # The infos of the ends, and observations of different spaces, have no fixed shape.
    pickled = skip or mode == "same_step" or mixed
    assert bool(sides) == (place != "dummy" and pickled)
    for hand in hands:
        hand.env.close()


def tictactoe(**options):
    return PettingZooEnv(make_aec("classic/tictactoe-v3"), **options)


MASKED = [("classic/leduc_holdem-v4", 1), ("sisl/multiwalker-v9", 0), ("meadow", 1)]


@pytest.mark.parametrize(("name", "has_mask"), MASKED)
def test_spaces_describe_what_is_returned_and_can_be_copied(name, has_mask):
    env = PettingZooEnv(make_aec(name), heterogeneous=True)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert ("mask" in obs) == has_mask
    assert env.reward_space.shape == (len(env.possible_agents),)
    agent = env.possible_agents[1]
    for space in (env.observation_space, env.action_space):
        space.seed(1)
        assert all(space.sample() in space for _ in range(9))
        for clone in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
            assert (type(clone), clone, clone(agent)) == (type(space), space, space(agent))
            assert same(clone.sample(), copy.deepcopy(space).sample())
    env.close()


def test_spaces_are_pettingzoos_when_called():
    env = tictactoe()
    own = env.observation_space
    assert env.action_space.n == 9
    assert env.action_space("player_1") is env.env.action_space("player_1")
    assert own("player_2") is env.env.observation_space("player_2")
    assert (own["observation"], own.spaces["action_mask"]) == (own["obs"], own["mask"])
    with pytest.raises(KeyError, match="unknown agent 'nobody'; the agents are 'player_1'"):
        env.action_space("nobody")


@pytest.mark.parametrize("dead_steps", ["caller", "skip"])
def test_a_throw_away_env_takes_random_actions_as_legal_ones(dead_steps):
    env = make_for_random_actions(lambda: PettingZooEnv(raw_env(), dead_steps=dead_steps))
    for _ in range(9):  # an illegal move raises in this env
        env.reset()
        while env.agents:
            env.step(env.action_space.sample())


def test_an_episode():
    env = tictactoe()
    assert env.agents == env.possible_agents == ["player_1", "player_2"]
    assert env.agent_idx == {"player_1": 0, "player_2": 1}
    with pytest.raises(ResetNeeded, match="never reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="'player_1' is alive; None is the action of a dead"):
        env.step(None)
    rows = [env.step(action) for action in (0, 3, 1, 4, 2)]
    with pytest.raises(ValueError, match="'player_2' is dead; its action must be None, or pass"):
        env.step(5)
    rows += [env.step(None) for _ in range(2)]
    assert [row[4]["env_done"] for row in rows] == [False] * 6 + [True]
    assert same(rows[4][1], np.array([1.0, -1.0])), "what was returned does not change"
    with pytest.raises(ResetNeeded, match="all agents are done"):
        env.step(None)
    env.reset()
    for agent, action in zip(env.agent_iter(), (0, 3, 1, 4, 2, None, None), strict=True):
        assert env.agent_selection == agent
        assert env.step(action) is None, "last() returns it"


@pytest.mark.parametrize("place", QUICK)
async def test_a_session_goes_on_until_no_agent_is_left(place):
    raw = TableEnv()
    raw.reset(seed=9)
    agents = []
    for agent in raw.agent_iter():
        agents.append(agent)
        raw.step(None if raw.last()[2] or raw.last()[3] else 0)
    seen = []
    with PLACES[place]([lambda: PettingZooEnv(TableEnv())]) as pool:
        async with pool.sessions() as sessions, sessions.open(seed=9) as env:
            is_dead = False
            while not env.done:
                seen.append(env.obs["agent_id"])
                _, _, *flags, _ = await env.step(None if is_dead else 0)
                is_dead = any(flags)
    assert seen == agents


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


@pytest.mark.parametrize(
    ("env_fn", "error", "text"),
    [
        (MeadowEnv, TypeError, "a PettingZoo env goes into PettingZooEnv"),
        (lambda: PettingZooEnv(gym.Env()), TypeError, "TypeError: got Env, which is neither"),
        (lambda: PettingZooEnv(MeadowEnv()), ValueError, "'fawn_0' has the spaces .* heterogen"),
        (lambda: tictactoe(dead_steps="no"), ValueError, "must be 'caller' or 'skip', got 'no'"),
        (lambda: PettingZooEnv(MeadowEnv(possible_agents=[])), ValueError, "no possible_agents"),
        (lambda: PettingZooEnv(MeadowEnv(possible_agents=[1])), TypeError, "a str, got 1"),
        (lambda: PettingZooEnv(MeadowEnv(possible_agents=["a"] * 2)), ValueError, "stands twice"),
    ],
)
def test_what_is_refused(env_fn, error, text):
    with pytest.raises(error, match=f"env 1: .*{text}") as caught:
        DummyVectorEnv([tictactoe, env_fn])
    assert isinstance(caught.value, EnvError)
