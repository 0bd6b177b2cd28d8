"""What goes wrong is said, with the env's id, within seconds; and close always returns."""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import envpool_py as ep
import envpool_py.sb3 as own
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import WalkEnv
from tests.support.envs import ChangedEnv, CountEnv, FaultEnv, StoreEnv
from tests.support.helpers import no_process_left

IDLE = [""] * 3
IN_PROCESSES = pytest.mark.parametrize("make", ["shmem"], indirect=True)


def failing(fault: str) -> list[str]:
    """Actions of three ``FaultEnv``, of which the second fails."""
    return ["", fault, ""]


def test_an_exception_in_step(make: Any) -> None:
    venv = make([FaultEnv] * 3)
    venv.reset()
    with pytest.raises(ep.EnvError, match="env 1: step raised ValueError: boom") as caught:
        venv.step(failing("value"))
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


def test_an_exception_in_a_method_or_attribute(make: Any) -> None:
    venv = make([functools.partial(StoreEnv, 0)] * 2)
    venv.reset()
    for use, text in (
        (lambda: venv.env_method("fail", "boom", indices=1), "call raised LookupError: boom"),
        (lambda: venv.get_attr("nothing", 1), "get_attr raised AttributeError.*nothing"),
        (lambda: venv.env_method("nothing", indices=1), ".*nothing"),
    ):
        with pytest.raises(ep.EnvError, match=f"env 1: {text}"):
            use()
    venv.step(np.zeros(2, int))  # no reset was needed


def with_lock(_: Any, action: Any, row: tuple) -> tuple:
    return (*row[:4], {"lock": threading.Lock()} if action else {})


@IN_PROCESSES
def test_a_result_that_can_not_be_sent(make: Any) -> None:
    venv = make([functools.partial(ChangedEnv, step=with_lock), StoreEnv])
    venv.reset()
    for use in (lambda: venv.get_attr("lock", 1), lambda: venv.env_method("give_lock", indices=1)):
        with pytest.raises(ep.EnvError, match="env 1: .*pickle"):
            use()
    assert not venv.has_attr("lock")
    venv.set_attr("lock", None, 0)
    assert venv.has_attr("lock")
    venv.step(np.zeros(2, int))
    with pytest.raises(ep.EnvError, match="env 0: .*pickle"):
        venv.step(np.ones(2, int))
    venv.reset()


@IN_PROCESSES
@pytest.mark.parametrize("where", ["step", "reset", "idle"])
def test_a_killed_worker(make: Any, where: str) -> None:
    venv = make([FaultEnv] * 3, num_processes=3)
    venv.reset()
    if where == "idle":
        venv.processes[1].kill()
    for _ in range(2):  # and again, at once
        venv.set_options([{}, {"fault": "SIGKILL"}, {}])
        with pytest.raises(ep.WorkerDiedError, match="env 1: .*killed by SIGKILL"):
            venv.reset() if where == "reset" else venv.step(failing("SIGKILL"))
    with pytest.raises(ep.WorkerDiedError, match="env 1"):
        venv.get_attr("tag")
    assert venv.get_attr("tag", [0, 2]) == [0, 0]


@IN_PROCESSES
@pytest.mark.parametrize("fault", ["value", "SIGKILL"])
def test_envs_that_are_recreated(make: Any, fault: str) -> None:
    venv = make([FaultEnv] * 3, num_processes=3, on_error="restart")
    venv.reset()
    obs, _, dones, infos = venv.step(failing(fault))
    assert dones.tolist() == [False, True, False]
    assert re.search("env 1: .*(boom|SIGKILL)", infos[1]["env_error"])
    assert infos[1]["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(infos[1]["terminal_observation"], [0, 0, 0])
    assert obs.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert not venv.step(IDLE)[2].any()
    assert venv.get_attr("resets") == [1, 1, 1]


ENV = WalkEnv()


@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([], ValueError, "env_fns is empty"),
        ([WalkEnv, lambda: 1 / 0], ZeroDivisionError, "env 1: env_fn raised ZeroDivisionError"),
        ([lambda: ENV] * 2, ValueError, "env 1: .* returned the instance that env 0 has"),
        ([WalkEnv, lambda: WalkEnv("double")], ValueError, "env 1: obs.* is .*but that of env 0"),
        ([WalkEnv, lambda: WalkEnv(action="box")], ValueError, "env 1: action_space is .*, but"),
        (
            [WalkEnv, lambda: WalkEnv(render_mode="ansi")],
            AssertionError,  # a ValueError too
            "env 1: render_mode is 'ansi', but that of env 0 is None",
        ),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_env_fns(backend: str, env_fns: Any, error: type, text: str) -> None:
    options = {} if backend == "dummy" else {"num_processes": 1}
    with no_process_left(), pytest.raises(error, match=text) as caught:
        BACKENDS[backend](env_fns, **options)
    assert error is not AssertionError or isinstance(caught.value, ValueError)


def test_too_few_actions_and_too_many(make: Any) -> None:
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


def test_wrong_seeds_and_options() -> None:
    venv = own.DummyVecEnv([WalkEnv] * 3)
    for use, error, text in (
        (lambda: venv.seed([1, 2]), ValueError, "got 2 seeds for 3 envs"),
        (lambda: venv.seed("a"), TypeError, "seed"),
        (lambda: venv.seed(-1), ValueError, "seed must be 0 or more, got -1"),
        (lambda: venv.set_options([{}, {}]), ValueError, "got 2 options for 3 envs"),
        (lambda: venv.set_options([{}, 3, {}]), TypeError, "env 1: options must be a dict"),
    ):
        with pytest.raises(error, match=text):
            use()
    venv.reset()
    for name in ("autoreset_mode", "columns", "reset_first"):  # a VecEnv decides these
        with pytest.raises(TypeError, match=f"multiple values for keyword argument '{name}'"):
            own.DummyVecEnv([WalkEnv], **{name: None})


def test_what_is_no_pool() -> None:
    with pytest.raises(TypeError, match="got list, but a pool is needed"):
        own.PoolVecEnv([WalkEnv])
    with ep.DummyVectorEnv([WalkEnv]) as pool:
        with pytest.raises(ValueError, match="autoreset_mode is None.*autoreset_mode='same_step'"):
            own.PoolVecEnv(pool)
        assert not pool.is_closed


@pytest.mark.parametrize("cls", [own.SubprocVecEnv, own.ShmemVecEnv])
def test_start_methods(cls: Any) -> None:
    with pytest.raises(ValueError, match="must be one of fork, .*, got 'vfork'"):
        cls([WalkEnv], start_method="vfork")
    expected = own.make_vec_env(WalkEnv, 2, seed=0).reset()
    context = "spawn" if cls is own.ShmemVecEnv else None
    kwargs = {"start_method": context, "num_processes": 1}
    venv = own.make_vec_env(WalkEnv, 2, seed=0, vec_env_cls=cls, vec_env_kwargs=kwargs)
    np.testing.assert_array_equal(venv.reset(), expected)
    assert (context or "forkserver") in repr(venv)
