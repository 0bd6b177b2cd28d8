"""``ParallelVectorEnv`` beside its rows: groups, states, seeds, requests, and what it refuses."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, SubprocVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv
from tests.pettingzoo.envs import EchoEnv, MeadowEnv, PlainMeadowEnv, TableEnv, make_parallel
from tests.support.reference import alike as same

LEGAL = {"hunter_0": 0, "fawn_0": 0, "hunter_1": 0}
BACKENDS = ("dummy", "shmem")


@pytest.fixture
def pool():
    with ParallelVectorEnv([MeadowEnv] * 3, num_processes=2) as made:
        yield made


@pytest.mark.parametrize("backend", BACKENDS)
def test_agents_of_equal_spaces_lie_side_by_side(backend):
    with ParallelVectorEnv([MeadowEnv] * 3, backend) as pool:
        assert pool.groups == {"hunter": ("hunter_0", "hunter_1"), "fawn": ("fawn_0", "fawn_1")}
        obs, info = pool.reset(seed=1)
        _, rewards, _, _, _ = pool.step([LEGAL] * 3)
        hunters, fawns = pool.group(obs, "hunter"), pool.group(obs, "fawn")
        assert np.shares_memory(hunters, obs["hunter_1"])
        assert np.shares_memory(fawns["observation"], obs["fawn_0"]["observation"])
        numbers = {a: np.arange(3) + n for n, a in enumerate(pool.possible_agents)}
        # The group is what is in the dict, also where that was changed.
        changed = {**obs, "hunter_1": obs["hunter_1"] + 1}
        for values in (obs, changed, rewards, numbers, info["alive"], info["action_mask"]):
            both = np.stack([values["hunter_0"], values["hunter_1"]], axis=1)
            assert same(pool.group(values, "hunter"), both)
        for order in (("fawn_0", "fawn_1"), ("fawn_1", "fawn_0")):
            values = dict(zip(("fawn_0", "fawn_1"), [obs[fawn] for fawn in order], strict=True))
            both = np.stack([obs[fawn]["observation"] for fawn in order], axis=1)
            assert same(pool.group(values, "fawn")["observation"], both)
        with pytest.raises(KeyError, match="unknown group 'wolf'; the groups are hunter, fawn"):
            pool.group(obs, "wolf")
        with pytest.raises(ValueError, match="'fawn_0' has the spaces .* one of the groups hunter"):
            pool.group(obs)
        acts = {**MeadowEnv.acts, "hunter_1": spaces.MultiDiscrete([3, 3])}
    with ParallelVectorEnv([lambda: MeadowEnv(acts=acts)], "dummy") as pool:
        own = {"hunter_0": ("hunter_0",), "hunter_1": ("hunter_1",)}
        assert pool.groups == {**own, "fawn": ("fawn_0", "fawn_1")}


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_and_what_an_env_returns_for_the_dead(backend):
    with ParallelVectorEnv([EchoEnv] * 2, backend) as pool:
        obs, _ = pool.reset(seed=1)
        assert obs["echo_0"].tolist() == ["", ""]
        obs, _, _, _, info = pool.step({"echo_0": ["x", "y"], "echo_1": ["p", "q"]})
        assert (obs["echo_0"].tolist(), obs["echo_1"].tolist()) == (["p", "q"], ["x", "y"])
        assert "action_mask" not in info
        obs, rewards, *_ = pool.step([{"echo_0": "ab", "echo_1": "c"}] * 2)
        assert (obs["echo_0"].tolist(), rewards["echo_0"].tolist()) == (["c", "c"], [1.0, 1.0])
        for actions in ([{"echo_1": "d"}] * 2, {"echo_0": ["x", "y"], "echo_1": ["d", "d"]}):
            obs, rewards, _, _, info = pool.step(actions)
            assert obs["echo_0"].tolist() == [None, None]
            assert (rewards["echo_0"].tolist(), rewards["echo_1"].tolist()) == ([0, 0], [1, 1])
            assert not info["valid"]["echo_0"].any()


def test_a_converted_env():
    env_fn = functools.partial(make_parallel, "simple_spread")
    with ParallelVectorEnv([env_fn] * 2, "dummy") as pool:
        assert pool.get_env_attr("max_cycles") == [8, 8]
        pool.set_env_attr("mood", "merry", id=1)
        assert pool.get_env_attr("mood", id=1) == ["merry"]
        with pytest.raises(EnvError, match="env 0.*mood"):
            pool.get_env_attr("mood", id=0)
        assert pool.group(pool.reset(seed=1)[0]).shape == (2, 3, 18)


def test_spaces_and_what_is_shown(pool):
    assert pool.observation_space("hunter_0") == MeadowEnv().observation_space("hunter_0")
    assert pool.action_space("fawn_1") == spaces.Discrete(3)
    assert pool.action_space("fawn_1") is pool.action_space("fawn_1")
    own = {id(pool.action_space(agent)) for agent in pool.possible_agents}
    assert len(own) == 4, "drawing for one agent leaves the others"
    with pytest.raises(KeyError, match="unknown agent 'wolf'"):
        pool.action_space("wolf")
    assert pool.metadata["name"] == "meadow_v0"
    assert (len(pool), pool.num_envs, pool.is_async) == (3, 3, False)
    assert repr(pool).startswith("ParallelVectorEnv(4 agents, ShmemVectorEnv(num_envs=3")
    shown = pool._repr_html_()
    assert "<caption>ParallelVectorEnv(4 agents, " in shown
    assert "need a reset: never reset</th><td>envs 0 to 2" in shown


def test_seeds_reach_envs_and_action_spaces(pool):
    def drawn():
        own = [pool.action_space(a) for a in pool.possible_agents]
        return [[int(space.sample()) for _ in range(9)] for space in own]

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


def test_it_offers_what_a_pool_offers(pool):
    obs, _ = pool.reset([2, 0], options=[{"total": 3}, None])
    assert obs["hunter_1"][:, 1].tolist() == [3, 0]
    assert pool.call("see", "fawn_0", id=[2])[0]["observation"].shape == (2, 2)
    assert [image.shape for image in pool.render([2, 0])] == [(4, 6, 3)] * 2
    found = pool.apply(lambda env, by: (type(env).__name__, env.t + by), 5, id=[2])
    assert found == [("MeadowEnv", 5)]
    pool.set_env_attr("level", 4)
    pool.send([LEGAL] * 2, [0, 2])
    pool.cancel([2])
    assert pool.drain()[4]["env_id"].tolist() == pool.batch_ids.tolist() == [0]
    with pytest.raises(ResetNeeded):
        pool.step([LEGAL], [2])
    pool.restart([1])
    assert pool.get_env_attr("level", 1) == [1]
    with pytest.raises(ResetNeeded):
        pool.step([LEGAL], [1])
    obs, _ = pool.reset([1], seed=[3])
    assert same(obs["hunter_1"][0], MeadowEnv().reset(seed=3)[0]["hunter_1"])
    pool.wait_num, pool.timeout = 1, 0.5
    assert pool.is_async
    assert (pool.wait_num, pool.timeout, pool.pool.wait_num) == (1, 0.5, 1)
    with pytest.raises(AttributeError):
        pool.num_envs = 4
    with ParallelVectorEnv([MeadowEnv], "dummy", measure=True) as measured:
        measured.reset()
        measured.step([LEGAL])
        assert measured.stats().steps.tolist() == [1]
    assert measured.is_closed


def test_forms_of_actions_and_an_empty_batch(pool):
    pool.reset(seed=1)
    pool.step({"hunter_0": [0, 1, 2], "hunter_1": np.array([0, 1, 2]), "fawn_0": (0, 1, 2)})
    pool.step([{**LEGAL, "fawn_1": None}] * 3)
    obs, rewards, terminated, _, info = pool.step([], [])
    assert obs["hunter_0"].shape == (0, 3)
    assert obs["fawn_0"]["observation"].shape == (0, 2, 2)
    assert rewards["fawn_0"].shape == terminated["fawn_0"].shape == info["env_id"].shape == (0,)


ONE = {agent: [0] for agent in LEGAL}
BAD_ACTIONS = [
    ([{**LEGAL, "wolf_0": 1}], ValueError, "env 1: unknown agent 'wolf_0'"),
    ([{"hunter_0": 0, "fawn_0": 0}], ValueError, "env 1: no action for agent 'hunter_1', which is"),
    ([{**LEGAL, "fawn_1": 1}], ValueError, "env 1: an action for agent 'fawn_1', which is not"),
    ([{**LEGAL, "fawn_0": None}], ValueError, "env 1: no action for agent 'fawn_0', which is"),
    ([LEGAL, LEGAL], ValueError, "got 2 actions for 1 envs"),
    ([3], TypeError, "env 1: actions must be a dict {agent: action}, got int"),
    (3, TypeError, "actions: got a int; pass a dict"),
    ([{**LEGAL, "fawn_0": [1, 2]}], ValueError, "env 1: action['fawn_0'] has shape"),
    ([{**LEGAL, "fawn_0": "up"}], TypeError, "env 1: action['fawn_0'] is 'up'"),
    ({**ONE, "wolf_0": [1]}, ValueError, "actions: unknown agent 'wolf_0'"),
    ({"hunter_0": [0], "fawn_0": [0]}, ValueError, "env 1: no action for agent 'hunter_1'"),
    ({**ONE, "fawn_0": [0, 1]}, ValueError, "agent 'fawn_0': got 2 actions for"),
    ({**ONE, "fawn_0": [None]}, ValueError, "env 1: no action for agent"),
    ({**ONE, "fawn_0": [0.5]}, ValueError, "env 1: action['fawn_0'] has dtype"),
]


def test_bad_actions_are_refused_before_any_env_steps(pool):
    pool.reset(seed=1)
    for actions, error, text in BAD_ACTIONS:
        with pytest.raises(error) as caught:
            pool.step(actions, [1])
        assert str(caught.value).startswith(text)
    assert pool.state()[:, 0].tolist() == [0, 0, 0]
    pool.step([LEGAL] * 3)


@pytest.mark.parametrize("backend", BACKENDS)
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
        assert pool.state()[:, 0].tolist() == [1, 0]
        # A view of the block shows what comes next.
        assert same((obs["hunter_0"][0], info["state"][0]), first if copy else second)
        assert copy == same(info["action_mask"]["hunter_0"], mask)
        assert info["alive"]["fawn_1"].tolist() == [False, False]
        assert pool.state_space == MeadowEnv.state_space


def test_envs_that_take_no_step(pool):
    with pytest.raises(ResetNeeded, match="envs 0 to 2: no agent is alive; reset before step"):
        pool.step([LEGAL] * 3)
    pool.send_reset(seed=1)
    with pytest.raises(AlreadyPendingCallError, match="envs 0 to 2: still resetting"):
        pool.step([LEGAL] * 3)
    pool.recv()
    with pytest.raises(IndexError):
        pool.step([LEGAL], [3])
    pool.send([LEGAL], [1])
    with pytest.raises(AlreadyPendingCallError, match="env 1: still stepping"):
        pool.step([LEGAL] * 3)
    with pytest.raises(TypeError, match="send: expected actions, got None; .* call recv"):
        pool.send(None)
    assert pool.waiting_id == [1]
    _, _, _, _, info = pool.step(None)
    assert info["env_id"].tolist() == [1]
    while not info["env_done"].any():
        _, _, _, _, info = pool.step([{a: 0 for a, flag in info["alive"].items() if flag[0]}], [1])
    with pytest.raises(ResetNeeded, match="env 1: no agent is alive; reset before step"):
        pool.step([LEGAL, {}, LEGAL])
    pool.reset([1])
    pool.step([LEGAL] * 3)


OTHERS = "env 1: observation_space is {'.*'fawn.*'hunter_0': "
AGENTS = ["hunter_0", "fawn_0", "hunter_1", "fawn_9"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"possible_agents": AGENTS}, OTHERS),
        ({"possible_agents": ["fawn_0", "hunter_0", "hunter_1", "fawn_1"]}, OTHERS),
        ({"seen": {**MeadowEnv.seen, "hunter": spaces.Box(-9, 9, (3,), np.float32)}}, OTHERS),
        ({"acts": {**MeadowEnv.acts, "hunter_1": spaces.MultiDiscrete([3, 3])}}, OTHERS),
        ({"possible_agents": []}, "env 1: env_fn raised ValueError: meadow_v0 has no possible_ag"),
    ],
)
def test_envs_with_other_agents_or_spaces_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        ParallelVectorEnv([MeadowEnv, lambda: MeadowEnv(**changes)], "dummy")


def test_wrong_arguments():
    for env_fn, text in (
        (TableEnv, "meadow_v0 is turn-based .* put PettingZooEnv around it"),
        (lambda: gym.make("CartPole-v1"), ".* which is neither a PettingZoo AECEnv nor a"),
    ):
        with pytest.raises(TypeError, match=f"env 1: env_fn raised TypeError: {text}"):
            ParallelVectorEnv([MeadowEnv, env_fn], "dummy")
    with ParallelVectorEnv([MeadowEnv], "subproc") as pool:
        assert isinstance(pool.pool, SubprocVectorEnv)
    with pytest.raises(ValueError, match="one of dummy, subproc, shmem, ray, got 'cluster'"):
        ParallelVectorEnv([MeadowEnv], "cluster")
    with pytest.raises(TypeError, match="num_processes"):
        ParallelVectorEnv([MeadowEnv], "dummy", num_processes=1)
    with pytest.raises(TypeError, match="columns"):
        ParallelVectorEnv([MeadowEnv], "dummy", columns=True)


def make_high():
    """Zeros, which absent agents have, are not in its space; nor is what it sees later."""
    space = spaces.Box(1, 9, (3,), np.float32)
    env = PlainMeadowEnv(seen={"hunter": space, "fawn": space})
    env.see = lambda _: np.full(3, 1 + 5 * env.t, np.float32)
    return env


def test_what_agents_see_is_validated():
    with ParallelVectorEnv([make_high], validate="always") as pool:
        obs, _ = pool.reset()
        assert not obs["fawn_1"].any()
        pool.step([LEGAL])
        with pytest.raises(EnvError, match=r"env 0: .* is 11.0, but observation_space has 1.0 to"):
            pool.step([LEGAL])
