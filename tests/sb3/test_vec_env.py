"""The interface, on every backend: equal to Stable-Baselines3's; its names; and its errors."""

import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import types
from functools import partial
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.monitor as sb3_monitor
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, TransformReward

import envpool_py as ep
import envpool_py.sb3 as own
from envpool_py.env.spaces import map_tree
from envpool_py.sb3 import common
from envpool_py.sb3.common.vec_env import base_vec_env
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import ACTIONS, BOX, RGB, SPACES, WalkEnv, walkers
from tests.sb3.reference import assert_same, outcome, theirs_like, walk_together
from tests.support.envs import CountEnv, FaultEnv, SpaceEnv, StoreEnv
from tests.support.helpers import no_process_left, run_python

IDLE = np.zeros(3, int)


@pytest.mark.parametrize(
    ("backend", "obs", "action"),
    [
        *(("dummy", *pair) for pair in zip(SPACES, itertools.cycle(ACTIONS), strict=False)),
        ("shmem", "dict", "multi-discrete"),
        ("shmem", "tuple", "box"),
    ],
)
def test_every_space(backend, obs, action):
    env_fns = walkers(obs=obs, action=action, render_mode="rgb_array")
    ours = BACKENDS[backend](env_fns)
    assert walk_together(ours, theirs_like(ours, env_fns)) > 20


@pytest.mark.parametrize("columns", [True, False])
def test_nested_observations_over_a_wrapped_partial_pool(columns):
    """Stable-Baselines3 refuses such observations."""
    inner = spaces.Dict({"x": BOX, "y": SPACES["tuple"]})
    env_fns = walkers(obs=spaces.Dict({"in": inner, "b": BOX}))
    options = {"wait_num": 1, "context": "fork", "columns": columns}
    pool = ep.ShmemVectorEnv(env_fns, autoreset_mode="same_step", **options)
    venv = own.PoolVecEnv(ep.VectorEnvWrapper(pool))
    venv.seed(0)
    obs = venv.reset()
    rewards = venv.step([0, 1, 2])[1]
    for i, env_fn in enumerate(env_fns):
        env = env_fn()
        assert_same(map_tree(lambda part, i=i: part[i], obs), env.reset(seed=i)[0])
        assert rewards[i] == env.step(i)[1]
    discrete = obs["in"]["y"][1]
    assert (discrete.shape, discrete.dtype) == ((3,), np.int64)
    venv.close()
    assert pool.is_closed


def test_seeds_and_options_of_each_env(make):
    venv = make([WalkEnv] * 3)
    assert venv.seed([7, None, 9]) == [7, None, 9]
    options = [{"a": {"n": 1}}, {}, None]
    venv.set_options(options)
    options[0]["a"]["n"] = 5  # a copy was taken
    venv.reset()
    assert venv.get_attr("log") == [[(7, {"a": {"n": 1}})], [(None, None)], [(9, None)]]


REQUESTS = [
    ("get_attr", ("tag", [1, 0, 1]), {}),
    ("env_method", ("add", 2), {"times": 3, "indices": -1}),
    ("env_method", ("class_name",), {"indices": [1, 2]}),  # of a wrapper
    ("env_method", ("told",), {"method": "m", "id": 3}),
    ("env_method", ("told", "m"), {"env_id": 3}),
    ("env_is_wrapped", (TransformReward,), {}),  # a base class of ClipReward
    ("env_is_wrapped", (ClipReward, [1, 2]), {}),
    ("set_attr", ("added", 7), {}),  # on the outermost wrapper
    ("get_attr", ("added",), {}),
    ("has_attr", ("added",), {}),
    ("get_images", (), {}),
]
"""Requests that need an open VecEnv without a pending step."""


def test_misuse_of_the_protocol_is_refused_and_does_no_harm(make):
    venv = make([RGB] * 3)
    venv.reset()
    venv.step_async(IDLE)
    for name, args, kwargs in (*REQUESTS, ("step_async", (IDLE,), {})):
        with pytest.raises(gym.error.AlreadyPendingCallError, match="a step is pending"):
            getattr(venv, name)(*args, **kwargs)
    assert len(venv.step_wait()) == 4
    assert not venv.has_attr("added")
    venv.step_async(IDLE)
    venv.reset()  # cancels the step
    with pytest.raises(gym.error.NoAsyncCallError, match="no step is pending"):
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
    forms = [1, -1, np.int64(2), [2, 0], [1, 1, 0], [], mask, np.array(mask), slice(None, None, -1)]
    for form in forms:
        assert venv.get_attr("tag", form) == np.atleast_1d(np.arange(3)[form]).tolist()
    for form, which in (((0, -2), [0, 1]), ((i for i in (1, 2)), [1, 2])):
        assert venv.get_attr("tag", form) == which
    for wrong in (3, [0, -4], [True], 1.0, ["0"]):
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
    expected = WalkEnv().reset(seed=8, options={"x": 1})
    assert_same(venv.env_method("reset", seed=8, options={"x": 1}, indices=1), [expected])
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
        # A model seeds the space of env 0, with Stable-Baselines3 and here.
        assert venv.action_space is env.action_space
        assert venv.observation_space is env.observation_space
    venv = own.SubprocVecEnv([CountEnv] * 2, start_method="fork")
    assert [process.pid for process in venv.processes] == venv.env_method("pid")
    assert (venv.spec, venv.unwrapped, venv.waiting, venv.closed) == (None, venv, False, False)
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
        (image, told), (images, more) = outcome(venv.render, asked), outcome(venv.get_images)
        answers.append([image, shown, len(told), images, len(more)])
    assert_same(*answers)
    text = f"render: mode is {asked!r}, but the envs' render_mode is {mode!r}"
    assert all(one.startswith(text) for one in told)


def test_a_wait_that_is_interrupted(make, monkeypatch):
    venv = make([CountEnv] * 2)
    venv.reset()
    venv.step_async(np.zeros(2, int))
    with monkeypatch.context() as patch:
        patch.setattr(venv.pool, "step", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    with pytest.raises(gym.error.ResetNeeded, match="cancelled"):
        venv.step(np.zeros(2, int))
    # The late answers are not taken for those of the reset.
    assert venv.reset()[:, 2].tolist() == [0, 0]


class Native(own.VecEnv):
    """A custom VecEnv, whose envs are no objects."""

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    env_is_wrapped = property()  # an AttributeError
    reset = step_async = step_wait = close = set_attr = env_method = get_attr


def test_a_custom_vec_env():
    with pytest.warns(UserWarning, match="no render_mode"):
        native = Native(4, BOX, spaces.Discrete(2))
    assert (native.render_mode, native.metadata) == (None, {"render_modes": []})
    venv = own.VecMonitor(native)
    assert isinstance(venv.unwrapped, sb3.VecEnv)
    assert [venv.has_attr(name) for name in ("render_mode", "nothing")] == [True, False]
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - that of the caller, who keeps it
    first, second = venv.seed(), venv.seed()
    assert first == list(range(first[0], first[0] + 4)) != second
    assert_same(np.random.get_state()[1], state)  # noqa: NPY002
    with pytest.raises(NotImplementedError, match="Native has no images"):
        venv.get_images()


NOTHING = [""] * 3
VALUE, KILL = ["", "value", ""], ["", "SIGKILL", ""]
"""Actions of three ``FaultEnv``, of which the second fails."""


def test_an_exception_of_an_env(make):
    venv = make([FaultEnv] * 3)
    venv.reset()
    with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
        venv.step(VALUE)
    # Attributes can be read, and nothing of the failed step is left over.
    assert venv.get_attr("resets") == [1, 1, 1]
    with pytest.raises(gym.error.ResetNeeded, match="env 1: an exception was raised"):
        venv.step(NOTHING)
    venv.env_method("reset", indices=1)
    assert venv.step(NOTHING)[0][:, 1:].tolist() == [[0, 2], [1, 1], [0, 2]]
    # Seeds serve the next reset that succeeds.
    venv.seed(4)
    text = r"envs? (.*1|0 to 2).*: reset raised ValueError: boom"
    for reset in (venv.reset, lambda: venv.env_method("reset", options={"fault": "value"})):
        venv.set_options([{}, {"fault": "value"}, {}])
        with pytest.raises(ValueError, match=text):
            reset()
    venv.set_options()
    assert venv.reset().shape == (3, 3)
    assert [info["seed"] for info in venv.reset_infos] == [4, 5, 6]


def test_an_env_that_is_recreated():
    venv = BACKENDS["shmem"]([FaultEnv] * 3, num_processes=3, on_error="restart")
    venv.reset()
    obs, _, dones, infos = venv.step(KILL)
    assert (dones.tolist(), infos[1]["TimeLimit.truncated"]) == ([False, True, False], True)
    assert "SIGKILL" in infos[1]["env_error"]
    assert infos[1]["terminal_observation"].tolist() == [0, 0, 0]
    assert obs.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert venv.restarts.tolist() == [0, 1, 0]
    assert "1 restarts" in repr(venv)


def test_wrong_actions(make):
    venv = make([CountEnv] * 3)
    venv.reset()
    for actions, error in ((np.zeros(2, int), ValueError), (0, TypeError), (None, TypeError)):
        with pytest.raises(error, match="got 2 actions for 3 envs|actions.* got (int|None)"):
            venv.step(actions)
    with pytest.warns(UserWarning, match="got 4 actions for 3 envs") as caught:
        rows = venv.step(np.zeros(4, int))
    assert rows[0][:, 2].tolist() == [1, 1, 1], "nothing was sent before"
    assert caught[0].filename == __file__


def test_wrong_arguments(make):
    venv, plain = own.DummyVecEnv([WalkEnv] * 3), ep.DummyVectorEnv([WalkEnv])
    (ansi,) = walkers(1, render_mode="ansi")
    for call, args, error, text in (
        (venv.seed, ([1, 2],), ValueError, "got 2 seeds for 3 envs"),
        (venv.set_options, ([{}, {}],), ValueError, "got 2 options for 3 envs"),
        (make, ([],), ValueError, "env_fns is empty"),
        (make, ([WalkEnv, lambda: WalkEnv("double")],), ValueError, "but that of env 0"),
        (make, ([WalkEnv, ansi],), AssertionError, "env 1: render_mode is 'ansi', but that of"),
        (own.ShmemVecEnv, ([WalkEnv], "vfork"), ValueError, "for 'vfork': .* one of fork, "),
        (own.PoolVecEnv, ([WalkEnv],), TypeError, "got list, but a pool is needed"),
        (own.PoolVecEnv, (plain,), ValueError, "autoreset_mode is None.*='same_step'"),
    ):
        with no_process_left(), pytest.raises(error, match=text):
            call(*args)
    assert not plain.is_closed


# ---------------------------------------------------------------------------------- registration

# Those of preprocessing are for policies; CloudpickleWrapper pickles their env_fns.
NOT_HERE = {"CloudpickleWrapper", "maybe_transpose", "preprocess_obs", "get_obs_shape"}
NOT_HERE |= {"get_flattened_obs_dim", "get_action_dim", "check_for_nested_spaces"}
# Of Monitor's files: pandas reads them, and Stable-Baselines3 has its own.
NOT_HERE |= {"LoadMonitorResultsError", "get_monitor_files", "load_results"}
PRIVATE = {"_patch_env", "_convert_space"}

WITHOUT = """
import importlib, pkgutil, sys
absent = ("stable_baselines3", "torch", "cv2", "imageio_ffmpeg", "rich", "pandas", "ale_py")
sys.modules.update(dict.fromkeys(absent))
finders = list(sys.meta_path)
import envpool_py.sb3 as own
for _, name, _ in pkgutil.walk_packages(own.__path__, "envpool_py.sb3."):
    if name != "envpool_py.sb3.async_rollouts":
        importlib.import_module(name)
try:
    own.AsyncRollouts
except ImportError as error:
    assert ".[sb3]" in str(error)
venv = own.make_vec_env("CartPole-v1", 2, vec_env_cls=own.ShmemVecEnv,
                        vec_env_kwargs={"start_method": "fork"})
venv = own.VecMonitor(own.VecNormalize(own.VecFrameStack(venv, 2)))
venv.reset()
obs, *_ = venv.step([1, 1])
print(obs.shape, own.register(), venv.env_is_wrapped(own.Monitor))
venv.close()
assert sys.meta_path == finders
assert {sys.modules[name] for name in absent} == {None}
"""


def test_without_stable_baselines3_and_torch():
    """Neither the package nor a VecEnv installs a finder that waits for them."""
    assert run_python("-W", "ignore", "-c", WITHOUT) == "(2, 8) False [True, True]\n"


def test_a_worker_imports_neither():
    venv = own.make_vec_env(WalkEnv, 1, vec_env_cls=own.SubprocVecEnv)
    assert "forkserver" in repr(venv)
    assert venv.env_is_wrapped(sb3_monitor.Monitor) == [True]
    names = {"torch", "stable_baselines3", "numpy"}
    assert venv.pool.apply(lambda _: names & sys.modules.keys()) == [{"numpy"}]


def test_every_class_is_registered():
    """A program of docs/sb3.md imports theirs later, and calls `register`."""
    assert own.register()
    for name in {*sb3.__all__} - {"CloudpickleWrapper", "StackedObservations"}:
        if inspect.isclass(getattr(sb3, name)):
            assert issubclass(getattr(own, name), getattr(sb3, name))
    assert not issubclass(own.DummyVecEnv, (sb3.SubprocVecEnv, sb3.VecEnvWrapper))


def by_position(function):
    """Names and defaults of the parameters that may be passed by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.default) for one in parameters if one.kind in kinds]


def pairs():
    """Every class and function that a module of theirs defines, with ours of the same path."""
    for _, path, _ in pkgutil.walk_packages(common.__path__, f"{common.__name__}."):
        if path.endswith("pool_vec_env"):
            continue
        ours = importlib.import_module(path)
        module = importlib.import_module(path.replace(own.__name__, "stable_baselines3"))
        for name, theirs in vars(module).items():
            defined = callable(theirs) and theirs.__module__ == module.__name__
            if defined and (name[0] != "_" or name in PRIVATE) and name not in NOT_HERE:
                yield getattr(ours, name), theirs


def test_every_public_name_and_parameter_of_theirs_is_here():
    functions = []
    for ours, theirs in pairs():
        public = {name for name in dir(theirs) if name[0] != "_"}
        assert public <= set(dir(ours))
        if not inspect.isclass(theirs):
            functions.append((ours, theirs))
            continue
        for name in (*(public if issubclass(ours, own.VecEnv) else ()), "__init__"):
            methods = getattr(ours, name), getattr(theirs, name)
            functions += [methods] if all(map(inspect.isfunction, methods)) else []
    assert len(functions) > 100
    for ours, theirs in functions:
        expected = by_position(theirs)
        if ours.__name__ == "make_atari_env":  # the last ones are keywords
            expected = expected[: len(by_position(ours))]
        assert by_position(ours)[: len(expected)] == expected, ours
    assert set(sb3.__all__) - NOT_HERE <= set(own.vec_env.__all__) <= set(own.__all__)
    for name in ("VecEnvIndices", "VecEnvObs", "VecEnvStepReturn"):
        assert hasattr(base_vec_env, name)


@pytest.mark.parametrize(("outer", "inner"), [(own, sb3), (sb3, own), (own, own)])
def test_theirs_and_ours_find_each_others_wrappers(outer, inner):
    venv = outer.VecMonitor(inner.VecNormalize(own.ShmemVecEnv([WalkEnv], "fork")))
    for package in (own, sb3):
        assert own.unwrap_vec_wrapper(venv, package.VecMonitor) is venv
        assert package.unwrap_vec_normalize(venv) is venv.venv
        assert not own.is_vecenv_wrapped(venv, package.VecFrameStack)
    assert sb3.is_vecenv_wrapped(venv, sb3.VecMonitor)
    assert isinstance(venv.unwrapped, sb3.SubprocVecEnv)
    assert venv.unwrapped is venv.venv.venv
