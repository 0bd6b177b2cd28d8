"""`apply`, a function called where an env is, and `cancel`, which gives up what is in flight."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING

import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError
from tests.support import envs
from tests.support.places import PLACES, QUICK

if TYPE_CHECKING:
    pass

FNS = [functools.partial(envs.CountEnv, tag) for tag in range(3)]


@pytest.mark.parametrize("place", [*QUICK, "shmem-spawn-packed"])
def test_apply_calls_the_function_where_the_env_is(place: str) -> None:
    with PLACES[place](FNS) as pool:
        assert pool.apply(lambda env, plus, times: (env.tag + plus) * times, 1, times=2) == [
            2,
            4,
            6,
        ]
        assert pool.apply(lambda env: env.tag, id=[2, 0]) == [2, 0]
        assert pool.apply(lambda env: os.getpid()) == pool.call("pid")  # noqa: ARG005
        with pytest.raises(EnvError, match="env 1: apply raised ZeroDivisionError") as caught:
            pool.apply(lambda env: 1 / (env.tag - 1))
        assert isinstance(caught.value, ZeroDivisionError)
        pool.reset()
        pool.send([pool.action_space[0].sample()], [1])
        with pytest.raises(AlreadyPendingCallError, match="env 1"):
            pool.apply(lambda env: env.tag)


def test_what_cannot_be_sent_is_named() -> None:
    with PLACES["subproc-fork"](FNS) as pool:
        with pytest.raises(EnvError, match="env 0: apply raised TypeError: the result cannot"):
            pool.apply(lambda env: threading.Lock(), id=0)  # noqa: ARG005
        assert pool.apply(lambda env: env.tag) == [0, 1, 2]


@pytest.mark.parametrize("wait_num", [None, 1])
@pytest.mark.parametrize("place", QUICK)
def test_cancel_drops_what_is_in_flight(place: str, wait_num: int | None) -> None:
    with PLACES[place](FNS, wait_num=wait_num) as pool:
        pool.reset()
        action = pool.action_space[0].sample()
        pool.cancel()  # nothing to give up
        pool.send([action] * 2, [0, 2])
        pool.cancel([2])
        assert pool.waiting_id == [0]
        with pytest.raises(ResetNeeded, match="env 2"):
            pool.step([action], [2])
        assert pool.recv()[0][:, 0].tolist() == [0]
        pool.send_reset([0, 1])
        pool.cancel()
        assert pool.waiting_id == []
        obs, _ = pool.reset()
        assert obs[:, [0, 2]].tolist() == [[0, 0], [1, 0], [2, 0]]
        pool.send([action] * 3)
        assert sorted(pool.drain()[0][:, 2].tolist()) == [1, 1, 1]
