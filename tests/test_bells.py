"""Steps that are asked for and answered by bells: what they bring, and that nobody oversleeps."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv, WorkerDiedError
from envpool_py.worker import bells, child, processes, sharing
from envpool_py.worker.lane import Lane
from tests import envs
from tests.conftest import Helper, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envpool_py import BaseVectorEnv

pytestmark = pytest.mark.skipif(not bells.WORK_HERE, reason="bells need stores to be seen in order")


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cores as it takes for everybody to look for everybody."""
    for module in (sharing, processes):
        monkeypatch.setattr(module, "usable_cores", lambda: list(range(8)))


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of the frames that are written to processes."""
    kinds: list[int] = []
    write = Lane.write

    def noted(lane: Lane, data: bytes) -> bool:
        kinds.append(child.FRAME.unpack_from(data)[0])
        return write(lane, data)

    monkeypatch.setattr(Lane, "write", noted)
    return kinds


def made(env_fns: Any, *, num_processes: int = 1, **options: Any) -> BaseVectorEnv:
    return ShmemVectorEnv(env_fns, num_processes=num_processes, caller_steps=True, **options)


def counting(num_envs: int, length: int = 3) -> list[Callable[[], Any]]:
    return [functools.partial(envs.CountEnv, tag, length) for tag in range(num_envs)]


def the_bells(pool: BaseVectorEnv) -> Any:
    return pool._lives._group._there._bells


def asleep(pool: BaseVectorEnv, who: int) -> Callable[[], bool]:
    """Whether process ``who`` has said that it sleeps; -1 is the pool."""
    words = the_bells(pool)._words
    at = 0 if who < 0 else bells._places(who)[2]
    return lambda: words[at] != 0


def deeply(condition: Callable[[], bool]) -> bool:
    """Wait until somebody sleeps and has looked for the last time."""

    def condition_lasts() -> bool:
        if not condition():
            return False
        time.sleep(5 * bells.DOZE)
        return condition()

    return wait_until(condition_lasts)


@contextlib.contextmanager
def interrupted_once_asleep(pool: BaseVectorEnv) -> Iterator[None]:
    """Have a signal handler raise InterruptedError once the pool sleeps in the block."""

    def handler(*_: object) -> None:
        raise InterruptedError("by the test")

    def interrupt() -> None:
        assert deeply(asleep(pool, -1))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    helper = Helper(interrupt)
    try:
        helper.start()
        yield
    finally:
        helper.join(20)
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("num_processes", [1, 3])
@pytest.mark.parametrize("autoreset_mode", ["same_step", "next_step"])
def test_rows_are_those_of_a_loop(
    num_processes: int, autoreset_mode: str, frames: list[int]
) -> None:
    fns = counting(9)
    with (
        made(fns, num_processes=num_processes, autoreset_mode=autoreset_mode) as pool,
        DummyVectorEnv(fns, autoreset_mode=autoreset_mode) as loop,
    ):
        pool.reset(seed=3)
        loop.reset(seed=3)
        frames.clear()
        for n in range(40):
            actions = np.arange(9) + n
            got, due = pool.step(actions), loop.step(actions)
            for column, other in zip(got[:4], due[:4], strict=True):
                np.testing.assert_array_equal(column, other)
            assert str(got[4].tolist()) == str(due[4].tolist())
    assert frames.count(child.STEP) == num_processes, "only the first step is to be a frame"


def test_anything_may_come_between(frames: list[int]) -> None:
    fns = counting(5)
    rng = np.random.default_rng(0)
    with made(fns, num_processes=2) as pool, DummyVectorEnv(fns) as loop:

        def both(call: Callable[[BaseVectorEnv], Any]) -> None:
            got, due = call(pool), call(loop)
            assert str(got) == str(due)

        both(lambda p: p.reset())
        for _ in range(300):
            some = rng.permutation(5)[: rng.integers(1, 6)]
            actions = rng.integers(0, 100, 5)
            kind = rng.choice(["all", "all", "all", "some", "reset", "ask", "halves"])
            if kind == "all":
                both(lambda p, a=actions: p.step(a))
            elif kind == "some":
                both(lambda p, a=actions, i=some: p.step(a[: len(i)], i))
            elif kind == "reset":
                both(lambda p, i=some: p.reset(i))
            elif kind == "ask":
                both(lambda p, i=some: p.get_env_attr("steps", i))
            else:
                both(lambda p, a=actions: (p.send(a), p.recv())[1])
    assert frames.count(child.STEP) < 300


def test_a_process_that_sleeps_is_woken(frames: list[int]) -> None:
    with made(counting(4, 100)) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))
        for n in range(2, 6):
            assert deeply(asleep(pool, 0))
            frames.clear()
            assert pool.step(np.zeros(4, int))[0][:, 2].tolist() == [n] * 4
            assert frames == [child.RING]


def test_a_pool_that_sleeps_is_woken(gates: list[envs.Gate]) -> None:
    fns = [functools.partial(envs.GateEnv, tag, gate, 100) for tag, gate in enumerate(gates)]
    with made(fns) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))
        for n in range(2, 6):

            def let_go() -> None:
                with gates[0].held():
                    assert deeply(asleep(pool, -1))

            helper = Helper(let_go)
            helper.start()
            assert pool.step(np.array([envs.BLOCK, 0, 0, 0]))[0][:, 2].tolist() == [n] * 4
            helper.join(20)


def test_a_ring_is_heard_in_a_doze(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rings may have read too early that the other one is awake."""
    monkeypatch.setattr(child, "DOZE", 2)
    with made(counting(4, 100)) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))
        ring_all = bells.Bells.ring_all

        def ring_unaware(self: bells.Bells) -> list[int]:
            ring_all(self)
            return []

        monkeypatch.setattr(bells.Bells, "ring_all", ring_unaware)
        assert wait_until(asleep(pool, 0))
        helper = Helper(lambda: pool.step(np.zeros(4, int)))
        helper.start()
        helper.join(20)
        assert pool.get_env_attr("t") == [2] * 4


def test_an_answer_is_heard_in_a_doze(
    monkeypatch: pytest.MonkeyPatch, gates: list[envs.Gate]
) -> None:
    monkeypatch.setattr(processes, "DOZE", 2)
    answer = bells.Bell.answer

    def answer_unaware(self: bells.Bell, *, whole: bool) -> bool:
        answer(self, whole=whole)
        return False

    monkeypatch.setattr(bells.Bell, "answer", answer_unaware)
    fns = [functools.partial(envs.GateEnv, tag, gate, 100) for tag, gate in enumerate(gates)]
    with made(fns) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))

        def let_go() -> None:
            with gates[0].held():
                assert wait_until(asleep(pool, -1))

        helper = Helper(let_go)
        helper.start()
        assert pool.step(np.array([envs.BLOCK, 0, 0, 0]))[0][:, 2].tolist() == [2] * 4
        helper.join(20)


class OddEnv(envs.CountEnv):
    """Does what its action says."""

    def step(self, action: Any) -> tuple:
        row = super().step(action)
        if action == 1:
            raise KeyError("as it was told")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 3:
            row[4]["object"] = {1, 2}
        if action == 4:
            return np.zeros(7), *row[1:]
        return row


@pytest.mark.parametrize("num_processes", [1, 3])
def test_rows_that_do_not_fit_into_the_block(num_processes: int) -> None:
    fns = [functools.partial(OddEnv, tag, 100) for tag in range(8)]
    with made(fns, num_processes=num_processes) as pool:
        pool.reset()
        for n in range(1, 30):
            actions = np.where(np.arange(8) == n % 8, 3, 9)
            obs, *_, infos = pool.step(actions)
            assert obs[:, 2].tolist() == [n] * 8
            assert [info["env_id"] for info in infos if "object" in info] == [n % 8]


@pytest.mark.parametrize("action", [1, 4])
def test_an_error_leaves_the_rows_of_the_others(action: int) -> None:
    fns = [functools.partial(OddEnv, tag, 100) for tag in range(4)]
    with made(fns) as pool:
        for n in range(3):
            pool.reset()
            pool.step(np.zeros(4, int))
            pool.step(np.zeros(4, int))
            with pytest.raises(EnvError, match="env 1:"):
                pool.step(np.array([0, action, 0, 0]))
            obs, *_, infos = pool.recv()
            assert [info["env_id"] for info in infos] == [0, 2, 3]
            assert obs[:, 1:].tolist() == [[n, 3]] * 3


def test_a_death_in_a_step_is_told_and_mended() -> None:
    fns = [functools.partial(OddEnv, tag, 100) for tag in range(4)]
    with made(fns) as pool:
        pool.reset()
        for n in range(3):
            pool.step(np.zeros(4, int))
            pool.step(np.zeros(4, int))
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                pool.step(np.array([2, 0, 0, 0]))
            pool.restart([0])
            assert pool.reset()[0][:, 1].tolist() == [0, 0, n + 1, n + 1]
            assert pool.step(np.zeros(4, int))[0][:, 2].tolist() == [1] * 4


def test_a_step_that_was_given_up_answers_no_other(gates: list[envs.Gate]) -> None:
    fns = [functools.partial(envs.GateEnv, tag, gate, 100) for tag, gate in enumerate(gates)]

    with made(fns) as pool:
        pool.reset()
        for n in range(3):
            pool.step(np.zeros(4, int))
            pool.step(np.zeros(4, int))
            with interrupted_once_asleep(pool), pytest.raises(InterruptedError):
                pool.step(np.array([envs.BLOCK, 0, 0, 0]))
            gates[0].release()
            assert pool.reset()[0][:, 1:].tolist() == [[n + 1, 0]] * 4
            for m in range(1, 4):
                assert pool.step(np.zeros(4, int))[0][:, 2].tolist() == [m] * 4


def test_a_process_has_ended_a_ring_that_was_given_up(gates: list[envs.Gate]) -> None:
    """It is not to be ended for it when its envs are made anew."""
    fns = [functools.partial(envs.GateEnv, tag, gate, 100) for tag, gate in enumerate(gates)]
    with made(fns) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))
        pids = pool.call("pid")
        with interrupted_once_asleep(pool), pytest.raises(InterruptedError):
            pool.step(np.array([envs.BLOCK, 0, 0, 0]))
        gates[0].release()
        pool.restart([0, 1])
        assert pool.call("pid") == pids


def test_a_death_is_seen_beside_rows_that_have_come() -> None:
    with made(counting(4, 100), wait_num=1) as pool:
        pool.reset()
        pids = pool.call("pid")
        pool.send(np.zeros(2, int), [0, 1])
        results = pool._lives._group._there._results
        poll = select.poll()
        poll.register(results, select.POLLIN)
        assert poll.poll(10_000), "the rows have not come"
        os.kill(pids[0], signal.SIGKILL)
        assert pool._lives._group.lane_of(0).ends(10)
        pool.cancel()
        pool.restart([0])
        assert pool.call("pid")[0] != pids[0]
        assert pool.reset([0, 1])[0][:, 2].tolist() == [0, 0]


@pytest.mark.parametrize("then", ["reset", "ask", "restart"])
def test_a_ring_that_nobody_was_woken_for_comes_before_what_follows(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Ctrl-C comes between the ring and the frame that wakes the process."""
    fns = [functools.partial(envs.CountEnv, tag, 100) for tag in range(4)]
    with made(fns) as pool:
        pool.reset()
        pool.step(np.zeros(4, int))
        pids = pool.call("pid")
        for n in range(1, 4):
            assert pool.step(np.zeros(4, int))[0][:, 2].tolist() == [1 + (n == 1)] * 4
            assert deeply(asleep(pool, 0))
            with monkeypatch.context() as patch:
                patch.setattr(Lane, "write", interrupted_in_write(patch, then))
                with pytest.raises(KeyboardInterrupt):
                    pool.step(np.zeros(4, int))
            if then == "ask":
                assert pool.get_env_attr("t", id=[0, 1]) == [2 + (n == 1)] * 2
            elif then == "restart":
                pool.restart([0, 1])
                assert pool.call("pid") == pids
            assert pool.reset()[0][:, 2].tolist() == [0] * 4
            assert pool.get_env_attr("t") == [0] * 4


def interrupted_in_write(patch: pytest.MonkeyPatch, then: str) -> Callable[..., bool]:
    """``Lane.write`` that is interrupted; the second time, too, but where it is to wake at last."""
    write = Lane.write
    left = 1 if then == "restart" else 2

    def interrupted(lane: Lane, data: bytes) -> bool:  # noqa: ARG001
        nonlocal left
        left -= 1
        if not left:
            patch.setattr(Lane, "write", write)
        raise KeyboardInterrupt

    return interrupted
