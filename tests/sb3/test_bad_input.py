"""What goes wrong is said, with the env's id, within seconds; and close always returns."""

from __future__ import annotations

import functools
import re
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

import envpool_py as ep
import envpool_py.sb3 as own
from tests.sb3.envs import FaultEnv, WalkEnv

FAIL_1 = np.array([0, 1, 0])
IDLE = np.zeros(3, int)
in_processes = pytest.mark.parametrize("make", ["subproc", "shmem"], indirect=True)


def faulty(**kwargs: Any) -> list[Any]:
    """Three envs, of which the second fails."""
    return [FaultEnv, functools.partial(FaultEnv, **kwargs), FaultEnv]


def test_an_exception_in_step(make: Any) -> None:
    venv = make(faulty(where="step"))
    venv.reset()
    with pytest.raises(ep.EnvError, match="env 1: step raised LookupError: boom") as caught:
        venv.step(FAIL_1)
    assert caught.value.env_ids == (1,)
    assert isinstance(caught.value, LookupError)
    assert "_fail" in str(caught.value), "the worker's traceback"
    # Attributes can be read, and nothing of the failed step is left over.
    assert venv.get_attr("resets") == [1, 1, 1]
    with pytest.raises(ResetNeeded, match="env 1: it has raised"):
        venv.step(IDLE)
    venv.env_method("reset", indices=1)
    assert venv.get_attr("resets") == [1, 2, 1]
    assert len(venv.step(IDLE)) == 4
    assert venv.reset().shape == (3, 1)


def test_an_exception_in_reset(make: Any) -> None:
    venv = make(faulty(where="reset"))
    venv.reset()
    venv.seed(4)
    for k, reset in ((2, venv.reset), (3, lambda: venv.env_method("reset"))):
        with pytest.raises(LookupError, match="env 1: reset raised LookupError: boom"):
            reset()
        assert venv.get_attr("resets") == [k, k, k]
    venv.set_attr("where", "", 1)
    venv.reset()


def test_an_exception_in_a_method_or_attribute(make: Any) -> None:
    venv = make([FaultEnv] * 2)
    venv.reset()
    for use, text in (
        (lambda: venv.env_method("fail", indices=1), "env 1: call raised LookupError: boom"),
        (lambda: venv.get_attr("broken", 1), "env 1: get_attr raised LookupError: boom"),
        (lambda: venv.env_method("nothing", indices=1), "env 1: .*nothing"),
    ):
        with pytest.raises(ep.EnvError, match=text):
            use()
    venv.step(np.zeros(2, int))  # no reset was needed


@in_processes
def test_a_result_that_can_not_be_sent(make: Any) -> None:
    venv = make(faulty(where="info"))
    venv.reset()
    for use in (lambda: venv.get_attr("lock", 1), lambda: venv.env_method("give_lock", indices=1)):
        with pytest.raises(ep.EnvError, match="env 1: .*pickle"):
            use()
    assert venv.has_attr("lock")
    venv.step(IDLE)
    with pytest.raises(ep.EnvError, match="env 1: .*pickle"):
        venv.step(FAIL_1)
    venv.reset()
    venv.step(IDLE)


@in_processes
@pytest.mark.parametrize("where", ["step", "reset", "idle"])
def test_a_killed_worker(make: Any, where: str) -> None:
    venv = make(faulty(where=where, how="kill"), num_processes=3)
    venv.reset()
    if where == "idle":
        venv.processes[1].kill()
    for _ in range(2):  # and again, at once
        with pytest.raises(ep.WorkerDiedError, match="env 1: .*killed by SIGKILL"):
            venv.reset() if where == "reset" else venv.step(FAIL_1)
    with pytest.raises(ep.WorkerDiedError, match="env 1"):
        venv.get_attr("where")
    assert venv.get_attr("where", [0, 2]) == ["", ""]


@in_processes
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_envs_that_are_recreated(make: Any, how: str) -> None:
    venv = make(faulty(where="step", how=how), num_processes=3, on_error="restart")
    venv.reset()
    obs, _, dones, infos = venv.step(FAIL_1)
    assert dones.tolist() == [False, True, False]
    assert re.search("env 1: .*(boom|SIGKILL)", infos[1]["env_error"])
    assert infos[1]["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(infos[1]["terminal_observation"], np.zeros(1))
    assert obs.shape == (3, 1)
    assert not venv.step(IDLE)[2].any()
    assert venv.get_attr("resets") == [1, 1, 1]


class Stuck(WalkEnv):
    """Never comes back from a step."""

    def step(self, _: Any) -> Any:
        signal.pause()


@in_processes
def test_close_with_a_stuck_env(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.2)
    venv = make([WalkEnv, Stuck])
    venv.reset()
    venv.step_async(np.zeros(2, int))
    venv.close()


class Wider(WalkEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-2, 2, (3,), np.float32)


ENV = WalkEnv()


@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([], ValueError, "env_fns is empty"),
        ([ENV], TypeError, "env 0: env_fn must be callable, got WalkEnv; .*lambda"),
        (WalkEnv, TypeError, "env_fns must be a sequence"),
        ([WalkEnv, lambda: None], ep.EnvError, "env 1: env_fn .*NoneType"),
        ([WalkEnv, lambda: 1 / 0], ZeroDivisionError, "env 1: env_fn raised ZeroDivisionError"),
        ([WalkEnv, lambda: WalkEnv("double")], ValueError, "env 1: obs.* is .*but that of env 0"),
        ([WalkEnv, lambda: WalkEnv(action="box")], ValueError, "env 1: action_space is .*, but"),
        ([WalkEnv, Wider], ValueError, "env 1: observation_space is"),
        (
            [WalkEnv, lambda: WalkEnv(render_mode="ansi")],
            AssertionError,  # a ValueError too
            "env 1: render_mode is 'ansi', but that of env 0 is None",
        ),
    ],
)
def test_wrong_env_fns(make: Any, env_fns: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        make(env_fns)
    assert error is not AssertionError or isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "cls",
    [own.DummyVecEnv, lambda fns: own.SubprocVecEnv(fns, start_method="fork", num_processes=1)],
)
def test_the_same_instance_twice(cls: Any) -> None:
    with pytest.raises(ValueError, match="env 1: .* returned the instance that env 0 has"):
        cls([lambda: ENV, lambda: ENV])


def test_too_few_actions_and_too_many(make: Any) -> None:
    venv = make([FaultEnv] * 3)
    venv.reset()
    for actions, error, text in (
        (np.zeros(2, int), ValueError, "got 2 actions for 3 envs"),
        (0, TypeError, "actions: got int"),
        (None, TypeError, "actions: got NoneType"),
        (np.array(["a", "b", "c"]), (TypeError, ValueError), "action"),
    ):
        with pytest.raises(error, match=text):
            venv.step(actions)
    venv.step(IDLE)  # nothing was sent
    with pytest.warns(UserWarning, match="got 4 actions for 3 envs") as caught:
        rows = venv.step(np.zeros(4, int))
    assert rows[0].shape == (3, 1)
    assert caught[0].filename == __file__


def test_wrong_seeds_and_options(make: Any) -> None:
    venv = make([WalkEnv] * 3)
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


@pytest.mark.parametrize("name", ["autoreset_mode", "columns", "reset_first"])
def test_options_that_a_vec_env_decides(make: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} can't be given"):
        make([WalkEnv], **{name: None})


def test_what_is_no_pool() -> None:
    with pytest.raises(TypeError, match="got list, but a pool is needed"):
        own.PoolVecEnv([WalkEnv])
    with ep.DummyVectorEnv([WalkEnv]) as pool:
        with pytest.raises(ValueError, match="autoreset_mode is None.*autoreset_mode='same_step'"):
            own.PoolVecEnv(pool)
        assert not pool.is_closed


@pytest.mark.parametrize(
    ("obs", "text"),
    [
        (np.zeros(1, np.uint8), r"env 0: .*shape \(1,\)"),
        (np.full(3, 300.7), "env 0: .*can't hold without loss"),
    ],
)
def test_an_observation_that_does_not_fit(make: Any, obs: np.ndarray, text: str) -> None:
    """Stable-Baselines3 broadcasts it, or casts it."""

    class Small(FaultEnv):
        observation_space = spaces.Box(0, 255, (3,), np.uint8)

        def reset(self, **_: Any) -> Any:
            return obs, {}

    with pytest.raises(ValueError, match=text):
        make([Small]).reset()


@pytest.mark.parametrize("cls", [own.SubprocVecEnv, own.ShmemVecEnv])
def test_start_methods(cls: Any) -> None:
    with pytest.raises(ValueError, match="must be one of fork, .*, got 'vfork'"):
        cls([WalkEnv], start_method="vfork")
    expected = own.make_vec_env(WalkEnv, 2, seed=0).reset()
    for context in ("spawn", None):
        kwargs = {"start_method": context, "num_processes": 1}
        venv = own.make_vec_env(WalkEnv, 2, seed=0, vec_env_cls=cls, vec_env_kwargs=kwargs)
        np.testing.assert_array_equal(venv.reset(), expected)
        assert (context or "forkserver") in repr(venv)
        venv.close()
