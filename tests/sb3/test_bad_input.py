"""What goes wrong is said, with the env's id, within seconds; and close always returns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import envpool_py as ep
import envpool_py.sb3 as own
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import WalkEnv
from tests.support.envs import CountEnv, FaultEnv, StoreEnv
from tests.support.helpers import no_process_left

IDLE = [""] * 3
VALUE, KILL = ["", "value", ""], ["", "SIGKILL", ""]
"""Actions of three ``FaultEnv``, of which the second fails."""


def test_an_exception_in_step(make: Any) -> None:
    venv = make([FaultEnv] * 3)
    venv.reset()
    with pytest.raises(ep.EnvError, match="env 1: step raised ValueError: boom") as caught:
        venv.step(VALUE)
    assert caught.value.env_ids == (1,)
    assert isinstance(caught.value, ValueError)
    assert "_fault" in str(caught.value), "the worker's traceback"
    # Attributes can be read, and nothing of the failed step is left over.
    assert venv.get_attr("resets") == [1, 1, 1]
    with pytest.raises(ResetNeeded, match="env 1: it has raised"):
        venv.step(IDLE)
    venv.env_method("reset", indices=1)
    assert venv.get_attr("resets") == [1, 2, 1]
    assert venv.step(IDLE)[0][:, 1:].tolist() == [[0, 2], [1, 1], [0, 2]]
    assert venv.reset().shape == (3, 3)


def test_an_exception_in_reset(make: Any) -> None:
    venv = make([FaultEnv] * 3)
    venv.seed(4)
    for reset in (venv.reset, lambda: venv.env_method("reset", options={"fault": "value"})):
        venv.set_options([{}, {"fault": "value"}, {}])
        with pytest.raises(ValueError, match=r"envs? .*1.*: reset raised ValueError: boom"):
            reset()
    assert venv.get_attr("resets") == [1, 0, 1]
    venv.set_options()
    assert [info["seed"] for info in (venv.reset(), venv.reset_infos)[1]] == [4, 5, 6]


def test_an_exception_in_a_method_or_attribute() -> None:
    venv = BACKENDS["shmem"]([partial(StoreEnv, 0)] * 2)
    venv.reset()
    for name, args, text in (
        ("env_method", ("fail", "boom"), "call raised LookupError: boom"),
        ("env_method", ("nothing",), ".*nothing"),
        ("env_method", ("give_lock",), ".*pickle"),
        ("get_attr", ("nothing",), "get_attr raised AttributeError.*nothing"),
        ("get_attr", ("lock",), ".*pickle"),
    ):
        with pytest.raises(ep.EnvError, match=f"env 1: {text}"):
            getattr(venv, name)(*args, indices=1)
    assert venv.has_attr("lock")
    venv.step(np.zeros(2, int))  # no reset was needed


@pytest.mark.parametrize("where", ["step", "reset", "idle"])
def test_a_killed_worker(where: str) -> None:
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


def test_envs_that_are_recreated() -> None:
    venv = BACKENDS["shmem"]([FaultEnv] * 3, num_processes=3, on_error="restart")
    venv.reset()
    obs, _, dones, infos = venv.step(KILL)
    assert dones.tolist() == [False, True, False]
    assert "SIGKILL" in infos[1]["env_error"]
    assert infos[1]["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(infos[1]["terminal_observation"], [0, 0, 0])
    assert obs.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert not venv.step(IDLE)[2].any()


OTHER_MODE = [WalkEnv, lambda: WalkEnv(render_mode="ansi")]


@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([], ValueError, "env_fns is empty"),
        ([WalkEnv, lambda: 1 / 0], ZeroDivisionError, "env 1: env_fn raised ZeroDivisionError"),
        ([WalkEnv, lambda: WalkEnv("double")], ValueError, "env 1: obs.* is .*but that of env 0"),
        (OTHER_MODE, AssertionError, "env 1: render_mode is 'ansi', but that of env 0 is None"),
        (OTHER_MODE, ValueError, "env 1: render_mode is 'ansi', but that of env 0 is None"),
    ],
)
def test_wrong_env_fns(make: Any, env_fns: Any, error: type, text: str) -> None:
    with no_process_left(), pytest.raises(error, match=text):
        make(env_fns)


def test_wrong_actions(make: Any) -> None:
    venv = make([CountEnv] * 3)
    venv.reset()
    for actions, error, text in (
        (np.zeros(2, int), ValueError, "got 2 actions for 3 envs"),
        (0, TypeError, "actions: .*got int"),
        (None, TypeError, "actions, got None"),
        (np.array(["a", "b", "c"]), (TypeError, ValueError), "action"),
    ):
        with pytest.raises(error, match=text):
            venv.step(actions)
    venv.step(np.zeros(3, int))  # nothing was sent
    with pytest.warns(UserWarning, match="got 4 actions for 3 envs") as caught:
        rows = venv.step(np.zeros(4, int))
    assert rows[0][:, 2].tolist() == [2, 2, 2]
    assert caught[0].filename == __file__


def test_wrong_arguments() -> None:
    venv, plain = own.DummyVecEnv([WalkEnv] * 3), ep.DummyVectorEnv([WalkEnv])
    for call, args, kwargs, error, text in (
        (venv.seed, ([1, 2],), {}, ValueError, "got 2 seeds for 3 envs"),
        (venv.seed, ("a",), {}, TypeError, "seed"),
        (venv.seed, (-1,), {}, ValueError, "seed must be 0 or more, got -1"),
        (venv.set_options, ([{}, {}],), {}, ValueError, "got 2 options for 3 envs"),
        (venv.set_options, ([{}, 3, {}],), {}, TypeError, "env 1: options must be a dict"),
        # A VecEnv decides these.
        (own.DummyVecEnv, ([WalkEnv],), {"autoreset_mode": None}, TypeError, "multiple values"),
        (own.DummyVecEnv, ([WalkEnv],), {"columns": False}, TypeError, "multiple values"),
        (own.DummyVecEnv, ([WalkEnv],), {"reset_first": True}, TypeError, "multiple values"),
        (own.ShmemVecEnv, ([WalkEnv], "vfork"), {}, ValueError, "one of fork, .*, got 'vfork'"),
        (own.PoolVecEnv, ([WalkEnv],), {}, TypeError, "got list, but a pool is needed"),
        (own.PoolVecEnv, (plain,), {}, ValueError, "autoreset_mode is None.*='same_step'"),
    ):
        with pytest.raises(error, match=text):
            call(*args, **kwargs)
    assert not plain.is_closed
    plain.close()


@pytest.mark.parametrize(("cls", "method"), [(own.SubprocVecEnv, None), (own.ShmemVecEnv, "spawn")])
def test_start_methods(cls: Any, method: str | None) -> None:
    expected = own.make_vec_env(WalkEnv, 2, seed=0).reset()
    kwargs = {"start_method": method, "num_processes": 1}
    venv = own.make_vec_env(WalkEnv, 2, seed=0, vec_env_cls=cls, vec_env_kwargs=kwargs)
    np.testing.assert_array_equal(venv.reset(), expected)
    assert (method or "forkserver") in repr(venv)
