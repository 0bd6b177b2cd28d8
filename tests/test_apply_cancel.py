"""`apply`, a function called where an env is, and `cancel`, which gives up what is in flight."""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, ShmemVectorEnv
from tests import envs
from tests.conftest import Helper, wait_until, wait_until_blocked
from tests.places import PLACES, QUICK

if TYPE_CHECKING:
    from envpool_py import BaseVectorEnv

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


@pytest.mark.parametrize("place", QUICK)
@pytest.mark.parametrize("wait_num", [None, 2])
def test_a_signal_handler_may_cancel_what_a_call_waits_for(
    place: str, wait_num: int | None, gates: list[envs.Gate]
) -> None:
    fns = [functools.partial(envs.GateEnv, tag, gate, 100) for tag, gate in enumerate(gates[:3])]
    with PLACES[place](fns, wait_num=wait_num) as pool:
        before = signal.signal(signal.SIGUSR1, lambda *_: pool.cancel())

        def cancel(pid: int = os.getpid()) -> None:
            with gates[0].held():
                wait_until_blocked(threading.main_thread())  # waiting for the env, or in its step
                os.kill(pid, signal.SIGUSR1)
                if place == "dummy":  # Python's handlers run once the env lets them
                    return
                assert wait_until(lambda: pool.waiting_id == [])

        try:
            for _ in range(2):
                pool.reset()
                helper = Helper(cancel)
                helper.start()
                if wait_num is not None:
                    pool.send([envs.BLOCK], [0])
                with pytest.raises(ResetNeeded, match="cancel"):
                    pool.recv() if wait_num else pool.step([envs.BLOCK, 0, 0])
                helper.join(20)
                assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]
                assert set(pool.step([0, 0, 0])[0][:, 2].tolist()) == {1}
                pool.drain()
        finally:
            signal.signal(signal.SIGUSR1, before)


class Signalling(envs.CountEnv):
    """Sends this process a signal in each step."""

    def step(self, action: Any) -> tuple[Any, ...]:
        os.kill(os.getpid(), signal.SIGUSR1)
        return super().step(action)


def test_what_a_handler_cancels_while_the_caller_steps_is_not_waited_for(
    gates: list[envs.Gate],
) -> None:
    fns: list[Any] = [functools.partial(envs.GateEnv, 0, gates[0], 100)]
    fns += [functools.partial(envs.CountEnv, tag, 100) for tag in range(1, 6)]
    fns[4] = functools.partial(Signalling, 4, 100)  # the first of the two that the caller steps
    done = threading.Event()

    def hold() -> None:
        with gates[0].held():
            done.wait(20)

    with ShmemVectorEnv(fns, num_processes=1, caller_steps=True, wait_num=3) as pool:
        before = signal.signal(signal.SIGUSR1, lambda *_: pool.cancel([0, 1, 2, 3]))
        helper = Helper(hold)
        try:
            pool.reset()
            helper.start()
            infos = pool.step([envs.BLOCK, 0, 0, 0, 0, 0])[4]
            assert [info["env_id"] for info in infos] == [4, 5]
        finally:
            done.set()
            signal.signal(signal.SIGUSR1, before)
        helper.finish()
        assert pool.reset()[0][:, 2].tolist() == [0] * 6


@pytest.mark.parametrize("place", [*QUICK, "shmem-caller"])
@pytest.mark.parametrize("wait_num", [None, 2])
def test_a_handler_may_cancel_at_any_moment(place: str, wait_num: int | None) -> None:
    """No row that was given up answers a later request, and what is in flight stays known."""
    fns = [functools.partial(envs.CountEnv, tag, 1000) for tag in range(6)]
    made = functools.partial(ShmemVectorEnv, num_processes=1, caller_steps=True)
    pool: BaseVectorEnv = PLACES.get(place, made)(fns, wait_num=wait_num)
    chance = random.Random(0)
    whom: list[Any] = [None]
    fired = 0

    def cancel(*_: object) -> None:
        nonlocal fired
        fired += 1
        assert fired == 1, "the call hangs"  # the watchdog has the same clock
        pool.cancel(whom[0])

    before = signal.signal(signal.SIGALRM, cancel)
    every = list(range(6))
    zeros = np.zeros(6, int)
    try:
        with pool:
            pool.reset()
            took = 1e-4
            for _ in range(1500):
                whom[0] = chance.choice([None, [0], [5], [1, 4]])
                fired, began = 0, time.perf_counter()
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1.5 * took * chance.random(), 20)
                try:
                    if wait_num is None:
                        rows = pool.step(zeros)
                    else:
                        pool.send(zeros)
                        rows = pool.recv()
                except ResetNeeded:
                    pass
                except ValueError:  # cancelled between send and recv
                    assert wait_num is not None
                else:
                    assert rows[0][:, 0].tolist() == [info["env_id"] for info in rows[4]]
                    assert set(rows[0][:, 2].tolist()) <= {1}
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                took = 0.9 * took + 0.1 * (time.perf_counter() - began)
                assert sorted([*pool.waiting_id, *pool.ready_id]) == every
                pool.cancel()
                assert pool.waiting_id == []
                obs, _ = pool.reset()
                assert obs[:, [0, 2]].tolist() == [[i, 0] for i in every]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
