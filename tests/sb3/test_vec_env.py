"""The interface, on every backend: equal to Stable-Baselines3's; and its errors."""

import itertools
import re
import sys
import types
import warnings
from functools import partial
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, TransformReward

import envpool_py as ep
import envpool_py.sb3 as own
from envpool_py.spaces import map_tree
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import ACTIONS, BOX, RGB, SPACES, Native, WalkEnv, walkers
from tests.sb3.reference import assert_same, walk_together
from tests.support.envs import CountEnv, FaultEnv, SpaceEnv, StoreEnv
from tests.support.helpers import no_process_left

IDLE = np.zeros(3, int)


@pytest.mark.parametrize(
    ("backend", "obs", "action"),
    [
        *(("dummy", *pair) for pair in zip(SPACES, itertools.cycle(ACTIONS), strict=False)),
        ("shmem", "dict", "multi-discrete"),
        ("shmem", "tuple", "box"),
        ("subproc", "discrete", "discrete"),
    ],
)
def test_every_space(backend, obs, action):
    env_fns = walkers(obs=obs, action=action, render_mode="rgb_array")
    subproc = partial(own.SubprocVecEnv, start_method="fork")
    ours = BACKENDS.get(backend, subproc)(env_fns)
    assert walk_together(ours, sb3.DummyVecEnv(env_fns)) > 20


@pytest.mark.parametrize("columns", [True, False])
def test_nested_observations(columns):
    """Stable-Baselines3 refuses them."""
    inner = spaces.Dict({"x": BOX, "y": SPACES["tuple"]})
    env_fns = walkers(obs=spaces.Dict({"in": inner, "b": BOX}))
    pool = ep.DummyVectorEnv(env_fns, autoreset_mode="same_step", columns=columns)
    venv = own.PoolVecEnv(pool)
    venv.seed(0)
    obs = venv.reset()
    assert_same(map_tree(lambda part: part[0], obs), env_fns[0]().reset(seed=0)[0])
    discrete = obs["in"]["y"][1]
    assert (discrete.shape, discrete.dtype) == ((3,), np.int64)


def test_seeds_and_options_serve_one_reset(make):
    venv = make([WalkEnv] * 3)
    assert venv.seed([7, None, 9]) == [7, None, 9]
    options = [{"a": {"n": 1}}, {}, None]
    venv.set_options(options)
    options[0]["a"]["n"] = 5  # a copy was taken
    venv.reset()
    while not venv.step(IDLE)[2].all(where=[True, False, False]):
        continue
    venv.reset()
    logs = venv.get_attr("log")
    assert [log[0] for log in logs] == [(7, {"a": {"n": 1}}), (None, None), (9, None)]
    # Neither automatic resets nor the second one take them.
    assert len(logs[0]) > 2
    assert {row for log in logs for row in log[1:]} == {(None, None)}


REQUESTS = [
    ("get_attr", ("tag", [1, 0, 1]), {}),
    ("env_method", ("add", 2), {"times": 3, "indices": -1}),
    ("env_method", ("class_name",), {"indices": [1, 2]}),  # of a wrapper
    ("env_method", ("told",), {"method": "m", "id": 3}),
    ("env_method", ("told", "m"), {"indices": [1], "id": 4, "indices_": 5}),
    ("env_is_wrapped", (TransformReward,), {}),  # a base class of ClipReward
    ("env_is_wrapped", (ClipReward, [1, 2]), {}),
    ("set_attr", ("added", 7), {}),  # finding 15: on the outermost wrapper
    ("get_attr", ("added",), {}),
    ("has_attr", ("added",), {}),
    ("get_images", (), {}),
]
"""Requests that need an open VecEnv without a pending step."""


def test_misuse_of_the_protocol_is_refused_and_does_no_harm(make):
    venv = make([RGB] * 3)
    venv.reset()
    with pytest.raises(gym.error.NoAsyncCallError, match="no step is pending"):
        venv.step_wait()
    venv.step_async(IDLE)
    for name, args, kwargs in (*REQUESTS, ("step_async", (IDLE,), {})):
        with pytest.raises(gym.error.AlreadyPendingCallError, match="a step is pending"):
            getattr(venv, name)(*args, **kwargs)
    assert len(venv.step_wait()) == 4
    assert not venv.has_attr("added")
    venv.step_async(IDLE)
    venv.reset()  # cancels the step
    with pytest.raises(gym.error.NoAsyncCallError):
        venv.step_wait()
    venv.step_async(IDLE)
    venv.close()
    last = (("step_async", (IDLE,), {}), ("reset", (), {}), ("step_wait", (), {}))
    for name, args, kwargs in (*REQUESTS, *last):
        with pytest.raises(gym.error.ClosedEnvironmentError, match="is closed"):
            getattr(venv, name)(*args, **kwargs)


def test_attributes_and_methods(make):
    clipped, changed = partial(ClipReward, RGB(), -1), partial(TransformReward, RGB(), abs)
    ours, theirs = (cls([RGB, clipped, changed]) for cls in (make, sb3.DummyVecEnv))
    for name, args, kwargs in REQUESTS:
        answers = [getattr(venv, name)(*args, **kwargs) for venv in (ours, theirs)]
        assert_same(*answers, f"{name}{args}")
    assert [hasattr(env, "added") for env in ours.get_attr("unwrapped")] == [True, False, False]
    # An attribute that is there is set where it is; theirs sets it on the outermost wrapper.
    ours.set_attr("tag", 5, indices=[0, 2])
    assert ours.env_method("add", 0, indices=slice(3)) == [5, 0, 5]
    with pytest.raises(AttributeError, match="env 0: .*nothing"):
        ours.get_attr("nothing")
    with pytest.raises(TypeError, match="must be a class"):
        ours.env_is_wrapped("ClipReward")
    assert make([StoreEnv]).has_attr("lock")  # though it can not be sent


def test_indices_in_every_form():
    venv = own.DummyVecEnv([partial(CountEnv, i) for i in range(3)])
    mask = [True, False, True]
    forms = [1, -1, np.int64(2), [2, 0], [1, 1, 0], np.array([0, 2]), mask, np.array(mask)]
    for form in (*forms, slice(None, None, -1), range(2), slice(None)):
        assert venv.get_attr("tag", form) == np.atleast_1d(np.arange(3)[form]).tolist()
    for form, which in (((0, -2), [0, 1]), ((i for i in (1, 2)), [1, 2]), ([], [])):
        assert venv.get_attr("tag", form) == which
    for wrong in (3, [0, -4], [True], 1.0, ["0"], "01"):
        with pytest.raises(IndexError, match=re.escape(f"got indices {wrong!r}, but there are 3")):
            venv.get_attr("tag", wrong)


def test_actions_in_tuples(make):
    venv = make([partial(SpaceEnv, 0, "tuple")])
    venv.reset()
    action = venv.action_space.sample()
    for actions in (tuple(np.array([part]) for part in action), [action]):
        assert_same(venv.step(actions)[3][0]["action"], action)


def test_one_env_can_be_reset_alone(make):
    venv = make([WalkEnv] * 3)
    venv.seed(0)
    venv.reset()
    results = venv.env_method("reset", seed=8, options={"x": 1}, indices=1)
    expected = WalkEnv().reset(seed=8, options={"x": 1})
    assert_same(results, [expected])
    assert venv.reset_infos[1] == expected[1]
    assert [log[-1] for log in venv.get_attr("log")] == [(0, None), (8, {"x": 1}), (2, None)]
    for method in ("step", "close"):
        with pytest.raises(ValueError, match=method):
            venv.env_method(method)


def test_what_scripts_reach_for():
    env = WalkEnv()
    for cls in (own.DummyVecEnv, sb3.DummyVecEnv):
        venv = cls([lambda: env, WalkEnv])
        assert venv.envs[0] is env
        # Finding 17: a model seeds the space of env 0, with Stable-Baselines3 and here.
        assert venv.action_space is env.action_space
        assert venv.observation_space is env.observation_space
    venv = own.SubprocVecEnv([CountEnv] * 2, start_method="fork")
    assert [process.pid for process in venv.processes] == venv.env_method("pid")
    assert (venv.spec, venv.unwrapped, venv.waiting, venv.closed) == (None, venv, False, False)
    assert repr(venv).startswith("SubprocVecEnv(")
    venv.step_async(np.zeros(2, int))
    assert venv.waiting
    assert venv.step_wait()[0].tolist() == [[0, -1, 1]] * 2  # before the first reset
    venv.close()
    assert (venv.waiting, venv.closed) == (False, True)


@pytest.mark.parametrize("mode", [None, "ansi", "rgb_array"])
@pytest.mark.parametrize("asked", [None, "human", "ansi", "rgb_array"])
def test_rendering_is_theirs(mode, asked, monkeypatch):
    answers = []
    for cls in (sb3.DummyVecEnv, own.DummyVecEnv):
        shown = []
        cv2 = types.SimpleNamespace(imshow=lambda _, it, to=shown: to.append(it), waitKey=bool)
        monkeypatch.setitem(sys.modules, "cv2", cv2)
        venv = cls([partial(WalkEnv, render_mode=mode)] * 5)
        for i in range(5):
            venv.set_attr("tag", i + 1, indices=i)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers.append([venv.render(asked), shown, len(caught), venv.get_images()])
    warned = f"mode is {asked!r}, but the envs' render_mode is {mode!r}"
    assert not answers[1][2] or warned in str(caught[0].message)
    assert_same(answers[1], answers[0])
    monkeypatch.setitem(sys.modules, "cv2", None)
    if shown:
        with pytest.raises(ImportError, match="opencv"):
            venv.render("human")


def test_envs_without_a_render_mode():
    space, functions = spaces.Discrete(2), {"reset": bool, "step": bool}
    plain = types.SimpleNamespace(observation_space=space, action_space=space, **functions)
    with pytest.warns(UserWarning, match="no render_mode"):
        venv = own.DummyVecEnv([lambda: plain])
    assert venv.render_mode is None
    assert venv.metadata == {"render_modes": []}


def test_over_a_wrapped_partial_pool():
    options = {"num_processes": 2, "context": "fork", "autoreset_mode": "same_step"}
    pool = ep.ShmemVectorEnv([WalkEnv] * 4, wait_num=1, reset_first=False, **options)
    venv = own.PoolVecEnv(ep.VectorEnvWrapper(pool))
    assert walk_together(venv, sb3.DummyVecEnv([WalkEnv] * 4)) > 20
    venv.close()
    assert pool.is_closed


def test_waiting_that_is_broken_off(make, monkeypatch):
    venv = make([CountEnv] * 2)
    venv.reset()
    with monkeypatch.context() as patch:
        patch.setattr(venv.pool, "step", Mock(side_effect=KeyboardInterrupt))
        venv.step_async(np.zeros(2, int))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    with pytest.raises(gym.error.ResetNeeded, match="cancelled"):
        venv.step(np.zeros(2, int))
    # The late answers are not taken for those of the reset.
    assert venv.reset()[:, 2].tolist() == [0, 0]
    assert venv.step(np.zeros(2, int))[0][:, 2].tolist() == [1, 1]


def test_a_vec_env_of_a_users_own():
    for cls in (own.VecEnv, own.VecEnvWrapper):
        with pytest.raises(TypeError, match="abstract"):
            cls(1, spaces.Discrete(2), spaces.Discrete(2))
    venv = own.VecMonitor(own.VecNormalize(own.VecFrameStack(Native(4), 2)))
    assert isinstance(venv.unwrapped, sb3.VecEnv)
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - that of the caller, who keeps it
    first, second = venv.seed(), venv.seed()
    assert first == list(range(first[0], first[0] + 4)) != second
    assert_same(np.random.get_state()[1], state)  # noqa: NPY002
    assert venv.seed(5) == [5, 6, 7, 8]
    assert venv.reset().shape == (4, 2)
    for _ in range(12):
        venv.step(np.ones(4, int))
    # From 5 by twos to 0 or below, three steps; then from 9, five.
    assert venv.episode_count == 4 * 2
    assert venv.has_attr("state")
    with pytest.raises(NotImplementedError, match="Native has no images"):
        venv.get_images()


# ---------------------------------------------------------------------------------- errors

NOTHING = [""] * 3
VALUE, KILL = ["", "value", ""], ["", "SIGKILL", ""]
"""Actions of three ``FaultEnv``, of which the second fails."""


def test_an_exception_in_step(make):
    venv = make([FaultEnv] * 3)
    venv.reset()
    with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
        venv.step(VALUE)
    # Attributes can be read, and nothing of the failed step is left over.
    assert venv.get_attr("resets") == [1, 1, 1]
    with pytest.raises(gym.error.ResetNeeded, match="env 1: it has raised"):
        venv.step(NOTHING)
    venv.env_method("reset", indices=1)
    assert venv.step(NOTHING)[0][:, 1:].tolist() == [[0, 2], [1, 1], [0, 2]]
    assert venv.reset().shape == (3, 3)


def test_an_exception_in_reset(make):
    venv = make([FaultEnv] * 3)
    venv.seed(4)
    for reset in (venv.reset, lambda: venv.env_method("reset", options={"fault": "value"})):
        venv.set_options([{}, {"fault": "value"}, {}])
        with pytest.raises(ValueError, match=r"envs? .*1.*: reset raised ValueError: boom"):
            reset()
    venv.set_options()
    assert [info["seed"] for info in (venv.reset(), venv.reset_infos)[1]] == [4, 5, 6]


@pytest.mark.parametrize("where", ["step", "reset", "idle"])
def test_a_killed_worker(where):
    venv = BACKENDS["shmem"]([FaultEnv] * 3, num_processes=3)
    venv.reset()
    if where == "idle":
        venv.processes[1].kill()
    for _ in range(2):  # and again, at once
        venv.set_options([{}, {"fault": "SIGKILL"}, {}])
        with pytest.raises(ep.WorkerDiedError, match="env 1: .*killed by SIGKILL"):
            venv.reset() if where == "reset" else venv.step(KILL)
    with pytest.raises(ep.WorkerDiedError, match="env 1"):
        venv.get_attr("tag")
    assert venv.get_attr("tag", [0, 2]) == [0, 0]


def test_envs_that_are_recreated():
    venv = BACKENDS["shmem"]([FaultEnv] * 3, num_processes=3, on_error="restart")
    venv.reset()
    obs, _, dones, infos = venv.step(KILL)
    assert dones.tolist() == [False, True, False]
    assert "SIGKILL" in infos[1]["env_error"]
    assert infos[1]["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(infos[1]["terminal_observation"], [0, 0, 0])
    assert obs.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert not venv.step(NOTHING)[2].any()


@pytest.mark.parametrize("error", [ValueError, AssertionError])
def test_wrong_env_fns(make, error):
    with no_process_left(), pytest.raises(error, match="env 1: render_mode is 'ansi', but that of"):
        make([WalkEnv, lambda: WalkEnv(render_mode="ansi")])


def test_wrong_actions(make):
    venv = make([CountEnv] * 3)
    venv.reset()
    for actions, error in ((np.zeros(2, int), ValueError), (0, TypeError), (None, TypeError)):
        with pytest.raises(error, match="got 2 actions for 3 envs|actions.* got (int|None)"):
            venv.step(actions)
    venv.step(np.zeros(3, int))  # nothing was sent
    with pytest.warns(UserWarning, match="got 4 actions for 3 envs") as caught:
        rows = venv.step(np.zeros(4, int))
    assert rows[0][:, 2].tolist() == [2, 2, 2]
    assert caught[0].filename == __file__


def test_wrong_arguments():
    venv, plain = own.DummyVecEnv([WalkEnv] * 3), ep.DummyVectorEnv([WalkEnv])
    for call, args, error, text in (
        (venv.seed, ([1, 2],), ValueError, "got 2 seeds for 3 envs"),
        (venv.seed, (-1,), ValueError, "seed must be 0 or more, got -1"),
        (venv.set_options, ([{}, {}],), ValueError, "got 2 options for 3 envs"),
        (venv.set_options, ([{}, 3, {}],), TypeError, "env 1: options must be a dict"),
        (own.DummyVecEnv, ([],), ValueError, "env_fns is empty"),
        (own.DummyVecEnv, ([WalkEnv, lambda: 1 / 0],), ZeroDivisionError, "env 1: env_fn raised"),
        (own.DummyVecEnv, ([WalkEnv, lambda: WalkEnv("double")],), ValueError, "but that of env 0"),
        (own.ShmemVecEnv, ([WalkEnv], "vfork"), ValueError, "one of fork, .*, got 'vfork'"),
        (own.PoolVecEnv, ([WalkEnv],), TypeError, "got list, but a pool is needed"),
        (own.PoolVecEnv, (plain,), ValueError, "autoreset_mode is None.*='same_step'"),
    ):
        with pytest.raises(error, match=text):
            call(*args)
    for name in ("autoreset_mode", "columns", "reset_first"):  # a VecEnv decides these
        with pytest.raises(TypeError, match=f"multiple values for keyword argument '{name}'"):
            own.DummyVecEnv([WalkEnv], **{name: None})
    assert not plain.is_closed
    plain.close()
