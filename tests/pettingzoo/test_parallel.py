"""What ``ParallelVectorEnv`` is beside its rows: groups, states, seeds, and what it refuses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, SubprocVectorEnv, WorkerDiedError
from envpool_py.pettingzoo import ParallelVectorEnv
from tests.pettingzoo.envs import (
    FaultyMeadowEnv,
    GhostEnv,
    MeadowEnv,
    PlainMeadowEnv,
    TableEnv,
    TalkEnv,
)
from tests.pettingzoo.places import BACKENDS, make_aec, make_parallel
from tests.support.reference import alike as same

LEGAL = {"hunter_0": 0, "fawn_0": 0, "hunter_1": 0}


@pytest.fixture(params=BACKENDS)
def pool(request: pytest.FixtureRequest) -> Any:
    with ParallelVectorEnv([MeadowEnv] * 3, request.param) as made:
        yield made


def test_agents_of_equal_spaces_lie_side_by_side(pool: Any) -> None:
    assert pool.groups == {"hunter": ("hunter_0", "hunter_1"), "fawn": ("fawn_0", "fawn_1")}
    obs, info = pool.reset(seed=1)
    hunters, fawns = pool.group(obs, "hunter"), pool.group(obs, "fawn")["observation"]
    assert np.shares_memory(hunters, obs["hunter_1"])
    assert np.shares_memory(fawns, obs["fawn_0"]["observation"])
    assert same(hunters, np.stack([obs["hunter_0"], obs["hunter_1"]], axis=1))
    assert same(fawns, np.stack([obs[f]["observation"] for f in ("fawn_0", "fawn_1")], axis=1))
    _, rewards, terminated, _, _ = pool.step([LEGAL] * 3)
    own = {a: np.arange(3) for a in pool.possible_agents}
    for values in (rewards, terminated, own, info["alive"], info["action_mask"]):
        both = np.stack([values["hunter_0"], values["hunter_1"]], axis=1)
        assert same(pool.group(values, "hunter"), both)
    with pytest.raises(KeyError, match="unknown group 'wolf'; the groups are hunter, fawn"):
        pool.group(obs, "wolf")
    with pytest.raises(ValueError, match="'fawn_0' has the spaces .* one of the groups hunter, f"):
        pool.group(obs)
    obs["hunter_1"] = obs["hunter_1"] + 1  # what is grouped is what is in the dict
    assert same(pool.group(obs, "hunter"), np.stack([obs["hunter_0"], obs["hunter_1"]], axis=1))
    obs["fawn_0"], obs["fawn_1"] = obs["fawn_1"], obs["fawn_0"]
    both = [obs[fawn]["observation"] for fawn in ("fawn_0", "fawn_1")]
    assert same(pool.group(obs, "fawn")["observation"], np.stack(both, axis=1))


def test_what_an_env_returns_for_the_dead_is_not_shown() -> None:
    with ParallelVectorEnv([GhostEnv], "dummy") as pool:
        pool.reset()
        seen = []
        for _ in range(3):
            obs, rewards, _, _, info = pool.step({"ghost_0": [0], "ghost_1": [0]})
            seen.append((obs["ghost_0"].tolist(), rewards["ghost_0"].tolist()))
        assert seen == [([[1.0]], [1.0]), ([[2.0]], [1.0]), ([[0.0]], [0.0])]
        assert obs["ghost_1"].tolist() == [[3.0]]
        assert rewards["ghost_1"].tolist() == [1.0]
        assert info["valid"]["ghost_0"].tolist() == [False]


def test_a_converted_env() -> None:
    env_fn = functools.partial(make_parallel, "simple_spread")
    with ParallelVectorEnv([env_fn] * 2, "dummy") as pool:
        assert pool.get_env_attr("max_cycles") == [env_fn().unwrapped.max_cycles] * 2
        pool.set_env_attr("mood", "merry", id=1)
        assert pool.get_env_attr("mood", id=1) == ["merry"]
        with pytest.raises(EnvError, match="env 0.*mood"):
            pool.get_env_attr("mood", id=0)
        assert pool.group(pool.reset(seed=1)[0]).shape == (2, 3, 18)
    with ParallelVectorEnv([functools.partial(make_aec, "classic/rps-v2")] * 2, "dummy") as pool:
        pool.reset(seed=1)
        _, rewards, _, _, _ = pool.step({a: [0, 1] for a in pool.possible_agents})
        assert rewards["player_0"].tolist() == [0, 0]


def test_spaces(pool: Any) -> None:
    assert pool.observation_space("hunter_0") == MeadowEnv().observation_space("hunter_0")
    assert pool.action_space("fawn_1") == spaces.Discrete(3)
    assert pool.action_space("fawn_1") is pool.action_space("fawn_1")
    with pytest.raises(KeyError, match="unknown agent 'wolf'"):
        pool.action_space("wolf")
    assert pool.metadata["name"] == "meadow_v0"
    assert (len(pool), pool.num_envs, pool.is_async) == (3, 3, False)
    assert repr(pool).startswith(f"ParallelVectorEnv(4 agents, {type(pool.pool).__name__}(num_env")
    shown = pool._repr_html_()
    assert "<caption>ParallelVectorEnv(4 agents, " in shown
    assert "need a reset: never reset</th><td>envs 0 to 2" in shown


@pytest.mark.parametrize("backend", BACKENDS)
def test_state(backend: str) -> None:
    with ParallelVectorEnv([MeadowEnv] * 3, backend, state_in_info=True) as pool:
        _, info = pool.reset(seed=1)
        before = info["state"].copy()
        info_1 = pool.step([LEGAL], [1])[4]
        assert same(info["state"], before)
        assert pool.state()[:, 0].tolist() == [0, 1, 0]
        assert same(info_1["state"], pool.state([1]))
        assert pool.state_space == MeadowEnv.state_space


def test_seeds_reach_envs_and_action_spaces(pool: Any) -> None:
    def drawn() -> list[list[int]]:
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


def test_options_and_attributes(pool: Any) -> None:
    obs, _ = pool.reset([2, 0], options=[{"total": 3}, None])
    assert obs["hunter_1"][:, 1].tolist() == [3, 0]
    pool.set_env_attr("level", 4, [1])
    assert pool.get_env_attr("level") == [1, 4, 1]
    assert [env.level for env in pool.get_env_attr("unwrapped")] == [1, 4, 1]
    assert pool.call("bits", 2, id=[1])[0].shape == (2,)
    assert [image.shape for image in pool.render([2, 0])] == [(4, 6, 3)] * 2


def test_forms_of_actions_and_an_empty_batch(pool: Any) -> None:
    pool.reset(seed=1)
    pool.step({"hunter_0": [0, 1, 2], "hunter_1": np.array([0, 1, 2]), "fawn_0": (0, 1, 2)})
    pool.step([{**LEGAL, "fawn_1": None}] * 3)
    obs, rewards, terminated, _, info = pool.step([], [])
    assert obs["hunter_0"].shape == (0, 3)
    assert obs["fawn_0"]["observation"].shape == (0, 2, 2)
    assert rewards["fawn_0"].shape == terminated["fawn_0"].shape == info["env_id"].shape == (0,)


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
    ({**{a: [0] for a in LEGAL}, "wolf_0": [1]}, ValueError, "actions: unknown agent 'wolf_0'"),
    ({"hunter_0": [0], "fawn_0": [0]}, ValueError, "env 1: no action for agent 'hunter_1'"),
    (
        {**{a: [0] for a in LEGAL}, "fawn_0": [0, 1]},
        ValueError,
        "agent 'fawn_0': got 2 actions for",
    ),
    ({**{a: [0] for a in LEGAL}, "fawn_0": [None]}, ValueError, "env 1: no action for agent"),
    ({**{a: [0] for a in LEGAL}, "fawn_0": [0.5]}, ValueError, "env 1: action['fawn_0'] has dtype"),
]


def test_bad_actions_are_refused_before_any_env_steps(pool: Any) -> None:
    pool.reset(seed=1)
    for actions, error, text in BAD_ACTIONS:
        with pytest.raises(error) as caught:
            pool.step(actions, [1])
        assert str(caught.value).startswith(text)
        assert pool.state()[:, 0].tolist() == [0, 0, 0]
    pool.step([LEGAL] * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_offers_what_a_pool_offers(backend: str) -> None:
    with ParallelVectorEnv([MeadowEnv] * 3, backend, wait_num=3, measure=True) as pool:
        pool.reset(seed=1)
        pool.step([LEGAL] * 3)
        assert pool.stats().steps.tolist() == [1, 1, 1]
        assert pool.apply(lambda env, by: (type(env).__name__, env.t + by), 5, id=[2]) == [
            ("MeadowEnv", 6)
        ]
        pool.set_env_attr("level", 4)
        pool.send([LEGAL] * 2, [0, 2])
        pool.cancel([2])
        assert pool.drain()[4]["env_id"].tolist() == pool.batch_ids.tolist() == [0]
        with pytest.raises(ResetNeeded):
            pool.step([LEGAL], [2])
        pool.restart([2])
        assert pool.get_env_attr("level") == [4, 4, 1]
        with pytest.raises(ResetNeeded):
            pool.step([LEGAL], [2])
        obs, _ = pool.reset([2], seed=[3])
        assert same(obs["hunter_1"][0], MeadowEnv().reset(seed=3)[0]["hunter_1"])
        pool.step([LEGAL], [2])
        pool.wait_num, pool.timeout = 1, 0.5
        assert pool.is_async
        assert (pool.wait_num, pool.timeout, pool.pool.wait_num) == (1, 0.5, 1)
        with pytest.raises(AttributeError):
            pool.num_envs = 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_are_valid_until_the_next_call(backend: str) -> None:
    with ParallelVectorEnv([PlainMeadowEnv] * 2, backend, copy=False) as pool:
        raw = PlainMeadowEnv()
        own = [pool.action_space(agent) for agent in pool.possible_agents]
        assert len(set(map(id, own))) == 4, "drawing for one agent leaves the others"
        obs, info = pool.reset(seed=1)
        view = obs["hunter_0"]
        assert same(view[0], raw.reset(seed=1)[0]["hunter_0"])
        alive = {a: flags.copy() for a, flags in info["alive"].items()}
        obs, *_ = pool.step([LEGAL] * 2)
        assert same(view, obs["hunter_0"]), "it is a view"
        assert same(obs["hunter_0"][0], raw.step(LEGAL)[0]["hunter_0"])
        assert same(alive, dict(info["alive"]))


def test_envs_that_take_no_step(pool: Any) -> None:
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
    assert pool.step(None)[4]["env_id"].tolist() == [1]


def test_an_env_that_is_over_asks_for_a_reset(pool: Any) -> None:
    _, info = pool.reset(seed=1)
    while not info["env_done"].any():
        alive = info["alive"]
        acts = [{a: 0 for a in alive if alive[a][k]} for k in range(3)]
        *_, info = pool.step(acts)
    over = np.flatnonzero(info["env_done"])
    assert not any(info["alive"][a][over].any() for a in pool.possible_agents)
    with pytest.raises(
        ResetNeeded, match=f"env.* {over[0]}.*: no agent is alive; reset before step"
    ):
        pool.step([{}] * 3)
    _, info = pool.reset(over)
    assert all(info["alive"][a].all() for a in LEGAL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_names_the_env_and_the_others_go_on(backend: str) -> None:
    legal = dict.fromkeys(LEGAL, 0)
    with ParallelVectorEnv([PlainMeadowEnv, FaultyMeadowEnv, PlainMeadowEnv], backend) as pool:
        pool.reset(seed=1)
        pool.set_env_attr("level", 3, [1])
        with pytest.raises(
            ValueError, match=r"env 1: step raised ValueError: obs\['agents'\]\['hunter_0'\]"
        ) as e:
            pool.step([legal] * 3)
        assert isinstance(e.value, EnvError)
        assert e.value.env_ids == (1,)
        assert "has shape (2,), but observation_space has (3,)" in str(e.value)
        batch = pool.recv()
        assert batch[4]["env_id"].tolist() == [0, 2]
        with pytest.raises(ResetNeeded):
            pool.step([legal], [1])
        pool.set_env_attr("level", 1, [1])
        pool.reset([1])
        pool.step([legal], [1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("on_error", "mode"),
    [("restart", None), ("restart", "same_step"), ("replay", "next_step"), ("replay", "same_step")],
)
def test_a_lost_row_tells_its_error(backend: str, on_error: str, mode: str | None) -> None:
    """Finding 6. An env that raises again when it is restored is lost with ``"replay"`` too."""
    legal = dict.fromkeys(LEGAL, 0)
    fns = [PlainMeadowEnv, FaultyMeadowEnv]
    with ParallelVectorEnv(fns, backend, autoreset_mode=mode, on_error=on_error) as pool:
        pool.reset(seed=1)
        pool.set_env_attr("level", 2, [1])
        assert pool.step([legal] * 2)[4]["env_error"].tolist() == [None, None]
        obs, *_ = pool.step([legal] * 2)
        acts = {a: [0, 0] for a in PlainMeadowEnv.possible_agents}
        again, rewards, terminated, truncated, info = pool.step(acts)
        assert info["env_done"].tolist() == [False, True]
        assert info["env_error"][0] is None
        assert "env 1: " in info["env_error"][1]
        assert "the meadow burns" in info["env_error"][1]
        for agent in PlainMeadowEnv.possible_agents:
            assert rewards[agent][1] == 0
            assert not terminated[agent][1]
            assert truncated[agent][1]
            assert info["valid"][agent][1]
            seen = info["final_obs"][1][agent] if mode == "same_step" else again[agent][1]
            assert same(seen, obs[agent][1]), "the last that was known"
            there = mode == "same_step" and agent in LEGAL
            assert info["alive"][agent][1] == there
        if mode is None:
            with pytest.raises(ResetNeeded):
                pool.step(acts)
            pool.reset([1])
        elif mode == "next_step":
            assert pool.step(acts)[4]["is_reset"].tolist() == [False, True]
        pool.set_env_attr("level", 1, [1])
        assert pool.step([legal], [1])[4]["env_error"].tolist() == [None]


class OnceMeadowEnv(PlainMeadowEnv):
    """Raises in its third step, but for the file that says that it has done so."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def step(self, actions: dict) -> tuple:
        if self.t == 2 and not self.path.exists():
            self.path.touch()
            raise ValueError("the meadow burns once")
        return super().step(actions)


@pytest.mark.parametrize("mode", [None, "same_step"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_that_is_restored(backend: str, mode: str | None, tmp_path: Path) -> None:
    fns = [PlainMeadowEnv, functools.partial(OnceMeadowEnv, tmp_path / "burnt")]
    raw = PlainMeadowEnv()
    with ParallelVectorEnv(fns, backend, autoreset_mode=mode, on_error="replay") as pool:
        _, info = pool.reset(seed=1)
        assert info["env_replayed"].tolist() == [None, None]
        raw.reset(seed=2)
        for t in range(5):
            acts = {agent: [0, 0] for agent in pool.possible_agents}
            obs, rewards, *_, info = pool.step(acts)
            seen, paid, *_ = raw.step(dict.fromkeys(raw.agents, 0))
            assert info["env_error"].tolist() == [None, None]
            assert info["env_replayed"][0] is None
            assert (info["env_replayed"][1] is not None) == (t == 2)
            assert t != 2 or "the meadow burns once" in info["env_replayed"][1]
            assert info["valid"]["hunter_1"].all()
            assert same(obs["hunter_1"][1], seen["hunter_1"])
            assert rewards["hunter_1"][1] == paid["hunter_1"]


def test_a_dead_process_is_named() -> None:
    with ParallelVectorEnv([MeadowEnv] * 2) as pool:
        pool.reset(seed=1)
        with pytest.raises(AssertionError, match="env 1: step raised .*: fawn_0 can't do 9"):
            pool.step([LEGAL, {**LEGAL, "fawn_0": 9}])  # the env itself says it
        pool.recv()
        pool.reset()
        pool.pool.workers[1].process.kill()
        with pytest.raises(WorkerDiedError, match="env 1: the worker process was killed by SIG"):
            pool.step([LEGAL] * 2)
        assert pool.recv()[4]["env_id"].tolist() == [0]


class Bounded(MeadowEnv):
    def observation_space(self, agent: str) -> Any:
        space = super().observation_space(agent)
        return space if isinstance(space, spaces.Dict) else spaces.Box(-9, 9, (3,), np.float32)


class Wider(MeadowEnv):
    def action_space(self, agent: str) -> Any:
        return spaces.MultiDiscrete([3, 3]) if agent == "hunter_1" else super().action_space(agent)


def named(*agents: str) -> Any:
    env = MeadowEnv()
    env.possible_agents = list(agents)
    return env


def test_agents_of_one_name_and_different_spaces_are_groups_of_their_own() -> None:
    with ParallelVectorEnv([Wider], "dummy") as pool:
        own = {"hunter_0": ("hunter_0",), "hunter_1": ("hunter_1",)}
        assert pool.groups == {**own, "fawn": ("fawn_0", "fawn_1")}


@pytest.mark.parametrize(
    "other",
    [
        functools.partial(named, "hunter_0", "fawn_0", "hunter_1", "fawn_9"),
        functools.partial(named, "fawn_0", "hunter_0", "hunter_1", "fawn_1"),
        Bounded,
        Wider,
    ],
)
def test_envs_with_other_agents_or_spaces_are_refused(other: Any) -> None:
    with pytest.raises(ValueError, match="env 1: observation_space is {'.*'fawn.*'hunter_0': "):
        ParallelVectorEnv([MeadowEnv, other], "dummy")


@pytest.mark.parametrize(
    ("env_fn", "error", "text"),
    [
        (lambda: gym.make("CartPole-v1"), TypeError, "which is neither a PettingZoo AECEnv nor a"),
        (TableEnv, TypeError, "table_v0 is turn-based .* put PettingZooEnv around it"),
        (named, ValueError, "meadow_v0 has no possible_agents"),
    ],
)
def test_what_is_no_parallel_env_is_refused(env_fn: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=f"env 1: env_fn raised {error.__name__}: .*{text}"):
        ParallelVectorEnv([MeadowEnv, env_fn], "dummy")


def test_arguments() -> None:
    with ParallelVectorEnv([MeadowEnv], "subproc") as pool:
        assert isinstance(pool.pool, SubprocVectorEnv)
    with pytest.raises(ValueError, match="one of dummy, subproc, shmem, ray, got 'cluster'"):
        ParallelVectorEnv([MeadowEnv], "cluster")
    with pytest.raises(TypeError, match="num_processes"):
        ParallelVectorEnv([MeadowEnv], "dummy", num_processes=1)
    with pytest.raises(TypeError, match="columns"):
        ParallelVectorEnv([MeadowEnv], "dummy", columns=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_without_a_fixed_shape(backend: str) -> None:
    with ParallelVectorEnv([TalkEnv] * 2, backend) as pool:
        obs, _ = pool.reset(seed=1)
        assert obs["talker_0"].tolist() == ["", ""]
        obs, _, _, _, info = pool.step([{"talker_0": "ab", "talker_1": "c"}] * 2)
        assert obs["talker_0"].tolist() == ["c", "c"]
        assert obs["talker_1"].tolist() == ["ab", "ab"]
        assert "action_mask" not in info
        obs, *_ = pool.step({"talker_0": ["x", "y"], "talker_1": ["p", "q"]})
        assert obs["talker_1"].tolist() == ["x", "y"]


class HighMeadowEnv(PlainMeadowEnv):
    """Zeros, which absent agents have, are not in its space; nor is what it sees later."""

    seen = spaces.Box(1, 9, (3,), np.float32)

    def see(self, agent: str) -> np.ndarray:  # noqa: ARG002
        return np.full(3, 1 + 5 * self.t, np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_agents_see_is_validated(backend: str) -> None:
    with ParallelVectorEnv([HighMeadowEnv], backend, validate="always") as pool:
        obs, _ = pool.reset()
        assert not obs["fawn_1"].any()
        pool.step([LEGAL])
        with pytest.raises(EnvError, match=r"env 0: .* is 11.0, but observation_space has 1.0 to"):
            pool.step([LEGAL])
