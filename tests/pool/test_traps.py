"""The usual mistakes of a first hour: each is told once, in the caller, with the caller's line."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

import envpool_py
from envpool_py import BaseVectorEnv, EnvError
from tests.backends.test_worker_contract import ThreadWorker
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK


def line() -> int:
    """Return the number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno


# ------------------------------------------------------------------- what `make` does by default


class DictEnv(envs.CountEnv):
    """Its observation is a dict."""

    def __init__(self) -> None:
        super().__init__(0, length=2)
        self.observation_space = gym.spaces.Dict({"count": self.observation_space})

    def observe(self) -> Any:
        return {"count": super().observe()}


def test_make_resets_at_the_end_and_returns_arrays() -> None:
    with envpool_py.make(DictEnv, 3, backend="dummy") as pool:
        assert pool.reset()[0]["count"].tolist() == [[0, 0, 0]] * 3
        pool.step([0] * 3)
        obs, _, terminated, _, infos = pool.step([0] * 3)
        assert terminated.all()
        assert obs["count"].tolist() == [[0, 1, 0]] * 3
        assert infos[1]["final_obs"]["count"].tolist() == [0, 0, 2]
        assert pool.step([0] * 3)[0]["count"].tolist() == [[0, 1, 1]] * 3
    with envpool_py.make(DictEnv, 1, backend="dummy", autoreset_mode=None, columns=False) as pool:
        assert pool.autoreset_mode is None
        assert pool.reset()[0][0].keys() == {"count"}


# -------------------------------------------------------------- a step after the episode's end


def short(tag: int, length: int) -> Callable[[], gym.Env]:
    return functools.partial(envs.CountEnv, tag, length)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_step_after_the_end_is_warned_of_once(place: str) -> None:
    fns = [short(0, 9), short(1, 2), short(2, 3), short(3, 9)]
    with PLACES[place](fns) as pool:
        pool.reset()
        for _ in range(2):
            pool.step([0] * 4)
        here = line() + 2
        with pytest.warns(UserWarning, match="env 1: stepped after its episode ended") as caught:
            row = pool.step([0] * 4)
        (warning,) = caught
        assert str(warning.message).endswith(
            'call reset(1), or pass autoreset_mode="same_step"',
        )
        assert (warning.filename, warning.lineno) == (__file__, here)
        assert row[0][1].tolist() == [1, 0, 3]  # the step reached the env all the same
        assert row[1][1] == 1003
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pool.step([0] * 4)  # env 2 too, and env 1 again


@pytest.mark.parametrize("place", BACKENDS)
def test_all_envs_of_the_batch_are_named(place: str) -> None:
    with PLACES[place]([short(0, 1), short(1, 9), short(2, 1)], wait_num=3, timeout=60.0) as pool:
        pool.reset()
        pool.step([0] * 3)
        text = r"envs 0, 2: stepped after their episodes ended; call reset\(ids\) with these ids"
        with pytest.warns(UserWarning, match=text):
            pool.step([0] * 3)


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_envs_that_are_reset_are_not_warned_of(place: str, mode: str | None) -> None:
    with (
        PLACES[place]([short(i, 2 + i) for i in range(3)], autoreset_mode=mode) as pool,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        pool.reset()
        for _ in range(7):
            _, _, terminated, truncated, _ = pool.step([0] * 3)
            ended = np.flatnonzero(terminated | truncated)
            if mode is None and len(ended):
                pool.reset(ended)


def test_a_worker_of_your_own_warns_too() -> None:
    for mode, expected in ((None, 1), ("same_step", 0), ("next_step", 0)):
        with (
            BaseVectorEnv([short(0, 1)], ThreadWorker, autoreset_mode=mode) as pool,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            pool.reset()
            for _ in range(3):
                pool.step([0])
        assert len(caught) == expected


# ---------------------------------------------------------------------- what envs return


def nan(env: envs.CountEnv, _: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
    del env
    return row[0], float("nan"), *row[2:]


def lower(by: int, env: envs.CountEnv, *row: Any) -> tuple[Any, ...]:
    """Return the row of a reset or step with an observation that is so much lower."""
    del env
    return row[-1][0] - [by, 0, 0], *row[-1][1:]


NAN = functools.partial(envs.ChangedEnv, step=nan)


def low(by: int) -> Callable[[], gym.Env]:
    change = functools.partial(lower, by)
    return functools.partial(envs.ChangedEnv, step=change, reset=change)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_warning_about_rows_names_all_envs_and_the_line(place: str) -> None:
    silence = 'pass validate="off" to silence this'
    with (
        PLACES[place]([NAN, low(9), low(9), NAN]) as pool,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        lines = [line() + 1]
        pool.reset()
        lines.append(line() + 1)
        pool.step([0] * 4)
        pool.step([0] * 4)
    assert [str(each.message) for each in caught] == [
        f"envs 1 to 2: obs[0] is -9, but observation_space has -1 to 1000000; {silence}",
        f"envs 0, 3: reward is nan; {silence}",
    ]
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, one) for one in lines]


@pytest.mark.parametrize("place", BACKENDS)
def test_findings_that_differ_say_whose_is_shown(place: str) -> None:
    text = r"envs 0 to 1: obs\[0\] is -3, but .* in env 0; pass"
    with PLACES[place]([low(3), low(4)]) as pool, pytest.warns(UserWarning, match=text):
        pool.reset()


# ---------------------------------------------------------------------- after an env raised


@pytest.mark.parametrize("place", BACKENDS)
def test_a_step_after_an_error_says_what_is_unread(place: str) -> None:
    fns = [functools.partial(envs.FaultEnv, i) for i in range(3)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="env 1: step raised"):
            pool.step(["", "value", ""])
        text = r"envs 0, 2: a result of the previous step is still unread; call recv\(\), or reset"
        for _ in range(2):  # it stays so, and nothing is sent
            with pytest.raises(AlreadyPendingCallError, match=text):
                pool.step([""] * 3)
        assert pool.recv()[4][0]["env_id"] == 0
        assert pool.batch_ids.tolist() == [0, 2]
        with pytest.raises(ResetNeeded, match="env 1: it has raised"):
            pool.step([""] * 3)


@pytest.mark.parametrize("place", BACKENDS)
@pytest.mark.parametrize("when", ["at once", "after recv", "after another error", "in a reset"])
def test_a_reset_of_all_envs_always_works(place: str, when: str) -> None:
    with PLACES[place]([functools.partial(envs.FaultEnv, i) for i in range(3)]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="env 2: step raised"):
            pool.step(["", "", "value"])
        if when == "after recv":
            pool.recv()
        elif when == "after another error":
            pool.reset([2])
            with pytest.raises(EnvError, match="env 2: step raised"):
                pool.step(["value"], [2])
        elif when == "in a reset":
            with pytest.raises(EnvError, match="env 0: reset raised"):
                pool.reset(options=[{"fault": "value"}, None, None])
        obs, infos = pool.reset()
        assert obs[:, 2].tolist() == [0, 0, 0]
        assert [info["env_id"] for info in infos] == [0, 1, 2]
        pool.step([""] * 3)


# ---------------------------------------------------------------------- in a notebook


@pytest.mark.parametrize("place", BACKENDS)
def test_a_notebook_shows_the_states_of_the_envs(place: str) -> None:
    with PLACES[place]([functools.partial(envs.FaultEnv, i) for i in range(4)]) as pool:
        assert "<th>need a reset: never reset</th><td>envs 0 to 3</td>" in pool._repr_html_()
        pool.reset([0, 1, 2])
        pool.send([""], [2])
        with pytest.raises(EnvError):
            pool.step(["value"], [1])
        shown = pool._repr_html_()
        for text, ids in (
            ("ready for a step", "env 0"),
            ("need a reset: raised", "env 1"),
            ("in flight: stepping", "env 2"),
            ("need a reset: never reset", "env 3"),
            ("rows returned", "3"),
        ):
            assert f"<th>{text}</th><td>{ids}</td>" in shown
        assert f"<caption>{repr(pool).replace(chr(39), '&#x27;')}</caption>" in shown
    assert "closed" in pool._repr_html_()
