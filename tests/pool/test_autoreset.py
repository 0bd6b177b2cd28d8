"""Autoreset: what an automatic reset changes, and what comes where it raises.

`tests/backends/test_matrix.py` has every kind of row in each mode.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK
from tests.support.reference import same


@pytest.mark.parametrize("healed", [False, True])
@pytest.mark.parametrize("place", QUICK)
def test_a_same_step_reset_that_raises_comes_after_the_ended_row(place: str, healed: bool) -> None:
    fns: list[Callable[[], Any]] = [
        functools.partial(envs.CountEnv, 0, 2),
        functools.partial(envs.FailsToResetEnv, 1, 2),
        functools.partial(envs.CountEnv, 2, 2),
    ]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step([0, 0, 0])
        obs, reward, terminated, truncated, info = pool.step([4, 5, 6])
        assert obs.tolist() == [[0, 1, 0], [1, 0, 2], [2, 1, 0]]  # env 1: its last observation
        assert reward.tolist() == [2.0, 1002.0, 2002.0]
        assert terminated.all()
        assert not truncated.any()
        assert info[1]["env_id"] == 1
        assert same(info[1]["final_obs"], np.array([1, 0, 2]))
        assert info[1]["final_info"]["action"] == 5
        assert len(pool.step([0, 0], [0, 2])[1]) == 2  # calls that do not name it go on
        if healed:  # a reset that names it, and works, replaces the one that raised
            pool.call("heal", id=[1])
            assert pool.reset([1])[0].tolist() == [[1, 1, 0]]
            assert pool.step([0], [1])[0].shape == (1, 3)
            return
        with pytest.raises(EnvError, match="env 1: .*ValueError: no second episode") as caught:
            pool.step([0], [1])
        assert caught.value.env_ids == (1,)
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        pool.call("heal", id=[1])
        assert pool.reset([1])[0].tolist() == [[1, 1, 0]]
        assert pool.step([3], [1])[0].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("place", BACKENDS)
def test_a_next_step_reset_that_raises_is_the_error_of_that_step(place: str) -> None:
    fns = [functools.partial(envs.FailsToResetEnv, tag, 1) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="next_step") as pool:
        pool.reset()
        assert pool.step([0, 0])[2].all()
        with pytest.raises(EnvError, match="env 1: .*no second episode"):
            pool.step([0], [1])
        pool.call("heal")
        assert pool.step([0], [0])[4][0]["is_reset"]
        obs, _ = pool.reset([1])
        assert obs.tolist() == [[1, 1, 0]]


def raises() -> None:
    raise ValueError("no third episode")


THIRD: dict[str, Callable[[], Any]] = {
    "raises": raises,
    "exits": sys.exit,
    "brings no info": lambda: None,
    "cannot be pickled": lambda: {"generator": (i for i in range(3))},
}


@pytest.mark.parametrize(
    ("place", "third"),
    [
        *itertools.product(QUICK, list(THIRD)[:-1]),
        *((place, "cannot be pickled") for place in PROCESSES),
    ],
)
def test_the_error_of_a_reset_behind_plain_rows_comes_with_the_next_step(
    place: str, third: str
) -> None:
    def reset(env: envs.CountEnv, row: tuple) -> tuple:
        return row[0], THIRD[third]() if (env.tag, env.resets) == (1, 3) else {}

    def plain(_: Any, __: Any, row: tuple) -> tuple:
        return *row[:2], row[2] or row[3], False, {}

    make = functools.partial(envs.ChangedEnv, length=3, step=plain, reset=reset)
    fns = [functools.partial(make, tag) for tag in range(3)]
    actions = [0, 0, 0]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        for _ in range(5):
            pool.step(actions)
        obs, _, terminated, _, infos = pool.step(actions)
        assert terminated.all()
        assert obs[:, 1:].tolist() == [[2, 0], [1, 3], [2, 0]]
        assert [info["final_obs"].tolist() for info in infos] == [[i, 1, 3] for i in range(3)]
        with pytest.raises(EnvError, match="env 1: reset raised"):
            pool.step(actions)
        assert pool.recv()[0][:, 1:].tolist() == [[2, 1], [2, 1]]
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        assert pool.reset([1])[0].tolist() == [[1, 3, 0]]
        assert pool.step(actions)[0][:, 1:].tolist() == [[2, 2], [3, 1], [2, 2]]


@pytest.mark.parametrize("as_list", [False, True])
def test_an_ended_row_that_an_interrupt_swallowed_does_not_answer_a_reset(as_list: bool) -> None:
    def reset(env: envs.CountEnv, row: tuple) -> tuple:
        if env.resets == 2:
            raise KeyboardInterrupt
        if env.resets == 3:
            raise ValueError("no third reset")
        return row

    fns = [functools.partial(envs.ChangedEnv, tag, 2, reset=reset) for tag in range(2)]
    actions = np.array([5, 5], dtype=np.int64)
    given: Any = actions.tolist() if as_list else actions
    with DummyVectorEnv(fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step(given)
        with pytest.raises(KeyboardInterrupt):
            pool.step(given)
        with pytest.raises(AttributeError, match="nothing_of_this_name"):
            pool.get_env_attr("nothing_of_this_name", id=[0])
        with pytest.raises(EnvError, match="env 0: reset raised ValueError: no third reset"):
            pool.reset([0])
        assert pool.reset([0])[0].tolist() == [[0, 3, 0]]
