"""``ParallelVectorEnv`` against raw envs stepped by hand, and beside its rows."""

import asyncio
import functools

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import BaseVectorEnv, EnvError
from envpool_py.pettingzoo import ParallelVectorEnv
from tests.pettingzoo.by_hand import MODES, ParallelByHand, drive
from tests.pettingzoo.envs import ACTS, KAZ, MeadowEnv, PlainMeadowEnv, TableEnv, make_parallel
from tests.support.reference import alike as same

# As TURNS in `test_aec.py`.
ROUNDS = [
    ("dummy", "classic/rps-v2", None, 20),
    ("dummy", "simple_adversary", "same_step", 20),
    ("shmem", "sisl/multiwalker-v9", None, 40),
    ("shmem", KAZ, "same_step", 70),
    ("shmem", "ghosts", "same_step", 30),
    ("dummy", "own_converted", None, 30),
    *zip(("shmem", "dummy", "shmem"), ["meadow"] * 3, MODES, [30] * 3, strict=True),
]


@pytest.mark.parametrize(("place", "name", "mode", "steps"), ROUNDS)
def test_rows_are_those_of_envs_stepped_by_hand(place, name, mode, steps, sides):
    hands = [ParallelByHand(make_parallel(name), mode, ACTS.get(name)) for _ in range(3)]
    fns = [functools.partial(make_parallel, name)] * 3
    processes = None if place == "dummy" else 2
    with ParallelVectorEnv(fns, place, 2, None, mode, processes) as pool:
        batches = drive(pool, hands, steps)
    assert all(hand.episodes > 1 for hand in hands)
    assert all(own.dtype == np.float64 for own in batches[-1][1].values())
    if place != "dummy":  # of what is in the rows, only infos that are not empty are pickled
        told = [info for batch in batches for info in batch[4]["agent_infos"] if info]
        assert bool(sides) == (name in ("meadow", "ghosts")) == bool(told)
    for hand in hands:
        hand.env.close()


LEGAL = {"hunter_0": 0, "fawn_0": 0, "hunter_1": 0}
WHEEL = {**MeadowEnv.acts, "hunter_1": spaces.MultiDiscrete([3, 3])}


@pytest.fixture
def pool():
    with ParallelVectorEnv([MeadowEnv] * 3, num_processes=2) as made:
        yield made


def test_agents_of_equal_spaces_lie_side_by_side(pool):
    assert pool.groups == {"hunter": ("hunter_0", "hunter_1"), "fawn": ("fawn_0", "fawn_1")}
    obs, info = pool.reset(seed=1)
    _, rewards, _, _, _ = pool.step([LEGAL] * 3)
    fawns = pool.group(obs, "fawn")["observation"]
    assert np.shares_memory(fawns, obs["fawn_0"]["observation"])
    # The group is what is in the dict, also where that was changed.
    changed = {**obs, "hunter_1": obs["hunter_1"] + 1}
    swapped = {"hunter_0": obs["hunter_1"], "hunter_1": obs["hunter_0"]}
    for values in (obs, changed, swapped, rewards, info["alive"], info["action_mask"]):
        both = np.stack([values["hunter_0"], values["hunter_1"]], axis=1)
        assert same(pool.group(values, "hunter"), both)
    with pytest.raises(KeyError, match="unknown group 'wolf'; the groups are hunter, fawn"):
        pool.group(obs, "wolf")
    with pytest.raises(ValueError, match="'fawn_0' has the spaces .* one of the groups hunter"):
        pool.group(obs)
    with ParallelVectorEnv([lambda: MeadowEnv(acts=WHEEL)], "dummy") as other:
        assert list(other.groups) == ["hunter_0", "fawn", "hunter_1"]


def test_a_converted_env():
    env_fn = functools.partial(make_parallel, "simple_spread")
    with ParallelVectorEnv([env_fn] * 2, "dummy") as pool:
        assert pool.get_env_attr("max_cycles") == [8, 8]
        pool.set_env_attr("mood", "merry", id=1)
        assert pool.get_env_attr("mood", id=1) == ["merry"]
        with pytest.raises(EnvError, match="env 0.*mood"):
            pool.get_env_attr("mood", id=0)
        assert pool.group(pool.reset(seed=1)[0]).shape == (2, 3, 18)
        with pytest.raises(EnvError, match="env 0.*action is not in action space"):
            pool.step({agent: [9, 0] for agent in pool.possible_agents})


def test_seeds_reach_envs_and_action_spaces(pool):
    def drawn():
        own = [pool.action_space(a) for a in pool.possible_agents]
        return [[int(space.sample()) for _ in range(9)] for space in own]

    assert pool.observation_space("hunter_0") == MeadowEnv().observation_space("hunter_0")
    assert pool.action_space("fawn_1") == spaces.Discrete(3)
    with pytest.raises(KeyError, match="unknown agent 'wolf'"):
        pool.action_space("wolf")
    assert pool.seed(5) == [[5], [6], [7]]  # each by one reset
    first = drawn()
    assert first[0] != first[2], "agents of equal spaces draw from streams of their own"
    assert drawn() != first
    pool.step([LEGAL] * 3)
    obs, _ = pool.reset()
    raw = MeadowEnv()
    raw.reset(seed=6)
    raw.step(LEGAL)
    assert same(obs["hunter_1"][1], raw.reset()[0]["hunter_1"])
    pool.reset([0], seed=5)
    assert drawn() == first


def test_it_offers_what_a_pool_offers():
    with ParallelVectorEnv([MeadowEnv] * 3, num_processes=2, measure=True) as pool:
        obs, _ = pool.reset([2, 0], options=[{"total": 3}, None])
        assert obs["hunter_1"][:, 1].tolist() == [3, 0]
        pool.send([LEGAL] * 2, [0, 2])
        pool.cancel([2])
        obs, *_, info = asyncio.run(pool.recv_async())
        assert (info["env_id"].tolist(), len(obs["hunter_1"])) == ([0], 1)
        assert pool.stats().steps[0] == 1
        pool.restart([1])
        for env in (1, 2):
            with pytest.raises(ResetNeeded):
                pool.step([LEGAL], [env])
        assert (len(pool), pool.num_envs, pool.is_async) == (3, 3, False)
        pool.wait_num, pool.timeout = 1, 0.5
        assert (pool.wait_num, pool.timeout, pool.pool.wait_num, pool.is_async) == (1, 0.5, 1, True)
        assert pool.metadata["name"] == "meadow_v0"
        assert repr(pool).startswith("ParallelVectorEnv(4 agents, ShmemVectorEnv(num_envs=3")
    assert pool.is_closed


def test_it_has_the_names_of_pettingzoo_and_of_a_pool(pool):
    with pytest.raises(TypeError, match="sessions: ParallelVectorEnv has none"):
        pool.sessions()
    public = {*dir(pettingzoo.ParallelEnv), *dir(BaseVectorEnv)}
    assert {name for name in public if name[0] != "_"} <= set(dir(pool))
    raw = MeadowEnv()
    assert (pool.agents, pool.num_agents, pool.max_num_agents) == ([], 0, 4)
    raw.reset()
    pool.reset()
    for _ in range(3):
        assert (pool.agents, pool.num_agents) == (raw.agents, len(raw.agents))
        raw.step(dict.fromkeys(raw.agents, 0))
        pool.step([dict.fromkeys(agents, 0) for agents in pool.get_env_attr("agents")])
    assert pool.unwrapped is pool
    assert pool.single_observation_space("fawn_0") is pool.observation_space("fawn_0")
    assert pool.single_action_space("fawn_0") == raw.action_space("fawn_0")
    assert pool.render_grid().shape == (8, 12, 3)
    assert pool.spec == [None] * 3
    assert not pool.waiting_conn
    pool.wait_num = 2
    assert pool.pool.wait_num == 2
    with pytest.raises(AttributeError, match="no attribute 'wait_mum'"):
        pool.wait_mum  # noqa: B018


ONE = {agent: [0] for agent in LEGAL}
BAD_ACTIONS = [
    ([{**LEGAL, "wolf_0": 1}], ValueError, "env 1: unknown agent 'wolf_0'"),
    ([{"hunter_0": 0, "fawn_0": 0}], ValueError, "env 1: no action for agent 'hunter_1', which is"),
    ([{**LEGAL, "fawn_1": 1}], ValueError, "env 1: an action for agent 'fawn_1', which is not"),
    ([LEGAL, LEGAL], ValueError, "got 2 actions for 1 envs"),
    ([3], TypeError, "env 1: actions must be a dict {agent: action}, got int"),
    (3, TypeError, "actions: got a int; pass a dict"),
    ({**ONE, "fawn_0": 0}, TypeError, "agent 'fawn_0': got a scalar, not 1 actions"),
    ([{**LEGAL, "fawn_0": [1, 2]}], ValueError, "env 1: action['fawn_0'] has shape"),
    ({**ONE, "wolf_0": [1]}, ValueError, "actions: unknown agent 'wolf_0'"),
    ({"hunter_0": [0], "fawn_0": [0]}, ValueError, "env 1: no action for agent 'hunter_1'"),
    ({**ONE, "fawn_0": [0, 1]}, ValueError, "agent 'fawn_0': got 2 actions for"),
]


def test_forms_of_actions(pool):
    pool.reset(seed=1)
    for actions, error, text in BAD_ACTIONS:
        with pytest.raises(error) as caught:
            pool.step(actions, [1])
        assert str(caught.value).startswith(text)
    assert pool.state()[:, 0].tolist() == [0, 0, 0], "none was stepped"
    pool.step({"hunter_0": [0, 1, 2], "hunter_1": np.array([0, 1, 2]), "fawn_0": (0, 1, 2)})
    pool.step([{**LEGAL, "fawn_1": None}] * 3)
    obs, rewards, terminated, _, info = pool.step([], [])
    assert obs["hunter_0"].shape == (0, 3)
    assert obs["fawn_0"]["observation"].shape == (0, 2, 2)
    assert rewards["fawn_0"].shape == terminated["fawn_0"].shape == info["env_id"].shape == (0,)


def test_envs_that_take_no_step(pool):
    with pytest.raises(ResetNeeded, match="envs 0 to 2: no agent is alive; reset before step"):
        pool.step([LEGAL] * 3)
    pool.reset(seed=1)
    with pytest.raises(IndexError):
        pool.step([LEGAL], [3])
    pool.send([LEGAL], [1])
    with pytest.raises(AlreadyPendingCallError, match="env 1: still stepping"):
        pool.step([LEGAL] * 3)
    assert pool.waiting_id == [1]
    info = pool.step(None)[4]
    assert info["env_id"].tolist() == [1]
    while not info["env_done"].any():
        info = pool.step([{a: 0 for a, flag in info["alive"].items() if flag[0]}], [1])[4]
    with pytest.raises(ResetNeeded, match="env 1: no agent is alive; reset before step"):
        pool.step([LEGAL, {}, LEGAL])
    pool.reset([1])
    pool.step([LEGAL] * 3)


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
@pytest.mark.parametrize("copy", [True, False])
def test_states_and_views_of_the_block(backend, copy):
    options = {"state_in_info": True, "copy": copy}
    with ParallelVectorEnv([PlainMeadowEnv] * 2, backend, **options) as pool:
        raw = PlainMeadowEnv()
        obs, info = pool.reset(seed=1)
        first = raw.reset(seed=1)[0]["hunter_0"], raw.state()
        mask = info["action_mask"]["hunter_0"].copy()
        assert same((obs["hunter_0"][0], info["state"][0]), first)
        later, *_, info_1 = pool.step([LEGAL], [0])
        second = raw.step(LEGAL)[0]["hunter_0"], raw.state()
        assert same((later["hunter_0"][0], info_1["state"][0]), second)
        assert same(pool.state([0])[0], second[1])
        # A view of the block shows what comes next.
        assert same((obs["hunter_0"][0], info["state"][0]), first if copy else second)
        assert copy == same(info["action_mask"]["hunter_0"], mask)
        assert info["alive"]["fawn_1"].tolist() == [False, False]
        assert pool.state_space == MeadowEnv.state_space


OTHERS = "observation_space is {'.*'fawn.*'hunter_0': "
OTHER_ORDER = ["fawn_0", "hunter_0", "hunter_1", "fawn_1"]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: MeadowEnv(possible_agents=OTHER_ORDER), ValueError, OTHERS),
        (lambda: MeadowEnv(seen=PlainMeadowEnv.seen), ValueError, OTHERS),
        (lambda: MeadowEnv(acts=WHEEL), ValueError, OTHERS),
        (lambda: MeadowEnv(possible_agents=[]), ValueError, ".*no possible_agents"),
        (TableEnv, TypeError, ".* meadow_v0 is turn-based .* put PettingZooEnv around it"),
        (gym.Env, TypeError, ".* which is neither a PettingZoo AECEnv nor a"),
    ],
)
def test_envs_that_are_refused(make, error, text):
    with pytest.raises(error, match=f"env 1: {text}"):
        ParallelVectorEnv([MeadowEnv, make], "dummy")


def test_what_agents_see_is_validated():
    text = r"env 0: .*'hunter_0'.* is 3000.0, but observation_space has 0.0 to"
    with ParallelVectorEnv([MeadowEnv], "dummy", validate="always") as pool:
        pool.reset()
        with pytest.raises(EnvError, match=text):
            pool.reset(options={"total": 3000})
