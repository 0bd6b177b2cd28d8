"""The interface, on every backend."""

from __future__ import annotations

import functools
import re
import signal
import sys
import types
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from stable_baselines3.common.vec_env.base_vec_env import tile_images as sb3_tile_images

import envpool_py as ep
import envpool_py.sb3 as own
from envpool_py.sb3.common.vec_env.base_vec_env import tile_images
from envpool_py.seeding import of_episode
from envpool_py.spaces import map_tree
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import RGB, WalkEnv, walkers
from tests.sb3.reference import assert_same
from tests.support.envs import BufferEnv, ChangedEnv, CountEnv

IDLE = np.zeros(3, int)
IN_PROCESSES = pytest.mark.parametrize("make", ["shmem"], indirect=True)


class Tagged(gym.Wrapper):
    """A wrapper with an attribute and methods of its own."""

    label = "wrapper"

    def times(self, number: int) -> int:
        return 2 * number

    def knows(self, name: str) -> bool:
        return hasattr(self.unwrapped, name)

    def told(self, method: str, id: int, indices_: int = 0) -> tuple:  # noqa: A002
        return method, id, indices_


class Labelled(Tagged):
    """A subclass, to be found by its base class."""


class Native(own.VecEnv):
    """Steps all its envs at once, in NumPy; an env is one number that falls to 0."""

    def __init__(self, num_envs: int) -> None:
        self.state = np.zeros(num_envs, np.float32)
        super().__init__(num_envs, spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2))

    def reset(self) -> Any:
        self.state[:] = 9 if self._seeds[0] is None else self._seeds[0] % 9
        self._reset_seeds()
        return self.state[:, None].copy()

    def step_async(self, actions: Any) -> None:
        self.state -= actions + 1

    def step_wait(self) -> Any:
        dones = self.state <= 0
        infos: list[dict] = [{} for _ in dones]
        for i in np.flatnonzero(dones):
            infos[i]["terminal_observation"] = self.state[i : i + 1].copy()
        self.state[dones] = 9
        return self.state[:, None].copy(), np.ones(self.num_envs, np.float32), dones, infos

    def get_attr(self, attr_name: str, indices: Any = None) -> list:
        return [getattr(self, attr_name, None) for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list:
        return [isinstance(self, wrapper_class) for _ in self._get_indices(indices)]

    close = set_attr = env_method = lambda *_, **__: None


def test_what_was_returned_stays_though_the_env_reuses_its_observation(make: Any) -> None:
    venv = make([functools.partial(BufferEnv, 7, length=3)] * 2)
    venv.reset()
    rows = [venv.step(np.zeros(2, int)) for _ in range(6)]
    expected = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert [tuple(row[0][0].tolist()) for row in rows] == [(7, *pair) for pair in expected]
    for episode, row in enumerate((rows[2], rows[5])):
        info = row[3][1]
        assert info["terminal_observation"].tolist() == [7, episode, 3]
        assert info["array"].tolist() == [episode, 3]
        assert info["TimeLimit.truncated"] is (episode == 1)
    assert [row[3][0]["step"] for row in rows] == [1, 2, 3, 1, 2, 3]
    assert "terminal_observation" not in rows[3][3][0]
    assert [info["array"].tolist() for info in venv.reset_infos] == [[2, 0], [2, 0]]


def test_seeds_and_options_serve_one_reset(make: Any) -> None:
    venv = make([WalkEnv] * 3)
    assert venv.seed(10) == [10, 11, 12]
    options = {"level": {"n": 1}}
    venv.set_options(options)
    options["level"]["n"] = 5  # a copy was taken
    venv.reset()
    venv.reset()
    assert venv.seed([7, None, 9]) == [7, None, 9]
    venv.set_options([{"a": 1}, {}, None])
    while not venv.step(IDLE)[2].all(where=[True, False, False]):
        continue
    venv.reset()
    logs = venv.get_attr("log")
    assert logs[0][:2] == [(10, {"level": {"n": 1}}), (None, None)]
    # Automatic resets in between take neither.
    assert set(logs[0][2:-1]) == {(None, None)}
    assert [log[-1] for log in logs] == [(7, {"a": 1}), (None, None), (9, None)]


def test_a_seed_of_none_is_drawn_and_leaves_numpy_alone() -> None:
    venv = Native(2)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - it is what is watched
    first, second = venv.seed(), venv.seed()
    assert first != second
    assert first[1] == first[0] + 1
    assert_same(np.random.get_state()[1], before)  # noqa: NPY002


def test_seeds_and_options_for_automatic_resets_too(make: Any) -> None:
    for option in ({"reset_fn": lambda i, k: (100 * i + k, {"k": k})}, {"episode_seeds": True}):
        venv = make([WalkEnv] * 2, **option)
        venv.seed(5)
        venv.reset()
        for _ in range(15):
            venv.step(np.zeros(2, int))
        logs = venv.get_attr("log")
        assert [log[0] for log in logs] == [(5, None), (6, None)]
        for i, log in enumerate(logs):
            planned = [(100 * i + k, {"k": k}) for k in range(1, len(log))]
            by_episode = [(of_episode(5 + i, k), None) for k in range(1, len(log))]
            assert log[1:] == (planned if "reset_fn" in option else by_episode) != []


def test_a_step_before_the_first_reset_reaches_the_env(make: Any) -> None:
    assert make([CountEnv] * 2).step(np.array([0, 1]))[0].tolist() == [[0, -1, 1]] * 2


@pytest.mark.parametrize("columns", [True, False])
def test_nested_observations(columns: bool) -> None:
    pool = ep.DummyVectorEnv(walkers(obs="nested"), autoreset_mode="same_step", columns=columns)
    venv = own.PoolVecEnv(pool)
    venv.seed(0)
    obs = venv.reset()
    first, _ = WalkEnv("nested").reset(seed=0)
    assert_same(map_tree(lambda part: part[0], obs), first)
    discrete = obs["in"]["y"][1]
    assert (discrete.shape, discrete.dtype) == ((3,), np.int64)


def uses(venv: Any) -> list[Any]:
    """Requests that need an open VecEnv without a pending step."""
    return [
        lambda: venv.step_async(IDLE),
        lambda: venv.get_attr("tag"),
        lambda: venv.set_attr("tag", 1),
        lambda: venv.has_attr("tag"),
        lambda: venv.env_method("add", 1),
        lambda: venv.env_is_wrapped(Tagged),
        venv.get_images,
    ]


def test_misuse_of_the_protocol_is_refused_and_does_no_harm(make: Any) -> None:
    venv = make([RGB] * 3)
    venv.reset()
    with pytest.raises(NoAsyncCallError, match="no step is pending"):
        venv.step_wait()
    venv.step_async(IDLE)
    for use in uses(venv):
        with pytest.raises(AlreadyPendingCallError, match="a step is pending"):
            use()
    assert len(venv.step_wait()) == 4
    assert venv.get_attr("tag") == [0, 0, 0]
    venv.step_async(IDLE)
    venv.reset()  # cancels the step
    with pytest.raises(NoAsyncCallError):
        venv.step_wait()
    venv.step_async(IDLE)
    venv.close()
    for use in (*uses(venv), venv.reset, venv.step_wait):
        with pytest.raises(ClosedEnvironmentError, match="is closed"):
            use()


def test_attributes_and_methods(make: Any) -> None:
    venv = make([lambda: Tagged(WalkEnv())] * 3)
    assert venv.get_attr("label") == ["wrapper"] * 3
    venv.set_attr("tag", 5, indices=[0, 2])
    assert venv.get_attr("tag") == [5, 0, 5]
    assert venv.get_attr("tag", [1, 0, 1]) == [0, 5, 0]
    assert venv.env_method("add", 2, times=3, indices=np.int64(-1)) == [11]
    assert venv.env_method("times", 4, indices=slice(2)) == [8, 8]
    # Arguments have any name.
    assert venv.env_method("told", method="m", id=3) == [("m", 3, 0)] * 3
    assert venv.env_method("told", "m", indices=[1], id=4, indices_=5) == [("m", 4, 5)]
    # What is set stays one: the env itself sees it.
    assert venv.env_method("add", 0) == [5, 0, 5]
    assert venv.has_attr("tag")
    assert venv.has_attr("label")
    assert not venv.has_attr("nothing")
    with pytest.raises(AttributeError, match="env 0: .*nothing"):
        venv.get_attr("nothing")


@pytest.mark.parametrize("cls", [*BACKENDS.values(), sb3.DummyVecEnv])
def test_a_new_attribute_is_set_on_the_outermost_wrapper(cls: Any) -> None:
    """Finding 15: as Stable-Baselines3 does it; an attribute that is there is set where it is."""
    venv = cls([lambda: Tagged(WalkEnv())])
    venv.set_attr("added", 7)
    assert venv.get_attr("added") == [7]
    assert venv.env_method("knows", "added") == [False]


def paired() -> gym.Env:
    """An env whose reward is the sum of its action, which has two parts."""
    env = ChangedEnv(step=lambda _, action, row: (row[0], action[0] + action[1].sum(), *row[2:]))
    env.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))
    return env


def test_actions_in_tuples(make: Any) -> None:
    venv = make([paired])
    venv.reset()
    columns = (np.array([2]), np.array([[0.25, 0.5]], np.float32))
    assert venv.step(columns)[1] == [2.75]
    assert venv.step([(1, np.array([0.25, 0.5], np.float32))])[1] == [1.75]


def test_indices_in_every_form() -> None:
    mask = [True, False, True]
    forms = [1, -1, np.int64(2), [2, 0], [1, 1, 0], np.array([0, 2]), mask, np.array(mask)]
    for form in (*forms, slice(None, None, -1), range(2), slice(None)):
        assert Native(3)._get_indices(form) == np.atleast_1d(np.arange(3)[form]).tolist()
    for form, which in (
        (None, [0, 1, 2]),
        ((0, -2), [0, 1]),
        ((i for i in (1, 2)), [1, 2]),
        ([], []),
    ):
        assert Native(3)._get_indices(form) == which


@pytest.mark.parametrize("indices", [3, [0, -4], [True], 1.0, ["0"], "01"])
def test_indices_that_are_none(indices: Any) -> None:
    with pytest.raises(IndexError, match=re.escape(f"got indices {indices!r}, but there are 3")):
        Native(3)._get_indices(indices)


def test_one_env_can_be_reset_alone(make: Any) -> None:
    venv = make([WalkEnv] * 3)
    venv.seed(0)
    venv.reset()
    [(obs, info)] = venv.env_method("reset", seed=8, options={"x": 1}, indices=1)
    expected_obs, expected_info = WalkEnv().reset(seed=8, options={"x": 1})
    np.testing.assert_array_equal(obs, expected_obs)
    assert info == expected_info
    assert venv.reset_infos[1] == expected_info
    assert [log[-1] for log in venv.get_attr("log")] == [(0, None), (8, {"x": 1}), (2, None)]
    for method in ("step", "close"):
        with pytest.raises(ValueError, match=method):
            venv.env_method(method)


def test_wrappers_of_the_envs(make: Any) -> None:
    venv = make([WalkEnv, lambda: Labelled(WalkEnv()), lambda: Tagged(Tagged(WalkEnv()))])
    assert venv.env_is_wrapped(Tagged) == [False, True, True]
    assert venv.env_is_wrapped(Labelled, indices=[1, 2]) == [True, False]
    assert venv.env_is_wrapped(gym.Wrapper, 1) == [True]
    with pytest.raises(TypeError, match="must be a class"):
        venv.env_is_wrapped("Tagged")


def test_what_scripts_reach_for() -> None:
    env = WalkEnv()
    for cls in (own.DummyVecEnv, sb3.DummyVecEnv):
        venv = cls([lambda: env, WalkEnv])
        assert venv.envs[0] is env
        # Finding 17: a model seeds the space of env 0, with Stable-Baselines3 and here.
        assert venv.action_space is env.action_space
        assert venv.observation_space is env.observation_space
        venv.close()
    venv = own.SubprocVecEnv([CountEnv] * 2, start_method="fork")
    assert [process.pid for process in venv.processes] == venv.env_method("pid")
    assert not venv.closed
    venv.reset()
    venv.step_async(np.zeros(2, int))
    assert venv.waiting
    venv.step_wait()
    assert not venv.waiting
    venv.close()
    assert venv.closed


def test_images_are_tiled(make: Any) -> None:
    venv = make([RGB] * 5)
    for i in range(5):
        venv.set_attr("tag", i + 1, indices=i)
    images = venv.get_images()
    assert [int(image[0, 0, 0]) for image in images] == [10, 20, 30, 40, 50]
    tiled = venv.render()
    # Three rows of two, the last place black.
    assert tiled.shape == (12, 12, 3)
    assert tiled[::4, ::6, 0].tolist() == [[10, 20], [30, 40], [50, 0]]
    assert_same(venv.render(mode="rgb_array"), tiled)
    assert venv.render_mode == "rgb_array"
    assert venv.metadata == WalkEnv.metadata
    assert venv.spec is None
    assert venv.unwrapped is venv
    assert type(venv).__name__ in repr(venv)


@pytest.mark.parametrize("shape", [(1, 2, 3, 3), (2, 2, 3, 1), (4, 3, 2, 3), (7, 2, 3, 4)])
def test_the_tile_is_theirs(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    assert_same(tile_images(images), sb3_tile_images(images))
    assert_same(tile_images(list(images)), sb3_tile_images(images / 1).astype(np.uint8))


@pytest.mark.parametrize("shapes", [[], [(2, 2, 3), (3, 2, 3)], [(2, 2)]])
def test_images_that_can_not_be_tiled(shapes: list) -> None:
    for tile in (tile_images, sb3_tile_images):
        with pytest.raises(ValueError, match="array|unpack|shape"):
            tile([np.ones(shape) for shape in shapes])


def test_human_shows_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    cv2 = types.SimpleNamespace(
        imshow=lambda name, image: shown.append((name, image)), waitKey=lambda _: None
    )
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    venv = own.DummyVecEnv([RGB] * 2)
    assert venv.render("human") is None
    name, image = shown[0]
    assert isinstance(name, str)
    np.testing.assert_array_equal(image, venv.render()[..., ::-1])
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match="opencv"):
        venv.render("human")


@pytest.mark.parametrize("mode", [None, "ansi", "rgb_array"])
@pytest.mark.parametrize("asked", [None, "human", "ansi", "rgb_array"])
def test_render_modes(mode: Any, asked: Any) -> None:
    if (mode, asked) == ("rgb_array", "human"):
        return  # a window
    answers = []
    for cls in (own.DummyVecEnv, sb3.DummyVecEnv):
        venv = cls([functools.partial(WalkEnv, render_mode=mode)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            image = venv.render(asked)
        answers.append((image is None, bool(caught)))
        if cls is own.DummyVecEnv and caught:
            assert f"mode is {asked!r}, but the envs' render_mode is {mode!r}" in str(caught[0])
    assert answers[0] == answers[1]


def test_envs_without_a_render_mode() -> None:
    plain = types.SimpleNamespace(
        observation_space=spaces.Discrete(2),
        action_space=spaces.Discrete(2),
        reset=lambda **_: (0, {}),
        step=lambda _: (0, 0.0, False, False, {}),
    )
    with pytest.warns(UserWarning, match="no render_mode"):
        venv = own.DummyVecEnv([lambda: plain])
    assert venv.render_mode is None
    assert venv.metadata == {"render_modes": []}
    with pytest.warns(UserWarning, match="images need 'rgb_array'"):
        assert venv.get_images() == [None]


def test_over_a_wrapped_partial_pool() -> None:
    pool = ep.ShmemVectorEnv(
        [WalkEnv] * 4, wait_num=1, num_processes=2, context="fork", autoreset_mode="same_step"
    )
    venv, other = own.PoolVecEnv(ep.VectorEnvWrapper(pool)), own.DummyVecEnv([WalkEnv] * 4)
    for each in (venv, other):
        each.seed(2)
    np.testing.assert_array_equal(venv.reset(), other.reset())
    for _ in range(20):
        assert_same(venv.step(np.ones(4, int)), other.step(np.ones(4, int)))
    venv.close()
    assert pool.is_closed


@IN_PROCESSES
def test_seeding_the_envs_leaves_the_callers_space_alone(make: Any) -> None:
    venv = make([WalkEnv])
    venv.action_space.seed(0)
    expected = [venv.action_space.sample() for _ in range(3)]
    venv.action_space.seed(0)
    venv.seed(5)
    venv.reset()
    assert [venv.action_space.sample() for _ in range(3)] == expected


def test_waiting_that_is_broken_off(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = make([CountEnv] * 2)
    venv.reset()
    with monkeypatch.context() as patch:
        patch.setattr(venv.pool, "step", lambda *_: signal.raise_signal(signal.SIGINT))
        venv.step_async(np.zeros(2, int))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    with pytest.raises(ResetNeeded, match="cancelled"):
        venv.step(np.zeros(2, int))
    # The late answers are not taken for those of the reset.
    assert venv.reset()[:, 2].tolist() == [0, 0]
    assert venv.step(np.zeros(2, int))[0][:, 2].tolist() == [1, 1]


def test_a_vec_env_of_a_users_own() -> None:
    for cls in (own.VecEnv, own.VecEnvWrapper):
        with pytest.raises(TypeError, match="abstract"):
            cls(1, spaces.Discrete(2), spaces.Discrete(2))
    venv = own.VecMonitor(own.VecNormalize(own.VecFrameStack(Native(4), 2)))
    assert venv.seed(5) == [5, 6, 7, 8]
    assert venv.reset().shape == (4, 2)
    for _ in range(12):
        venv.step(np.ones(4, int))
    # From 5 by twos to 0 or below, three steps; then from 9, five.
    assert venv.episode_count == 4 * 2
    assert venv.unwrapped.num_envs == 4
    assert venv.render_mode is None
    assert venv.has_attr("state")
    with pytest.raises(NotImplementedError, match="Native has no images"):
        venv.get_images()
    venv.close()
