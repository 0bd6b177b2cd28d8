"""Envs whose methods are coroutines: in one event loop per process, all in flight at once."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import subprocess
import sys
import threading
import warnings

import gymnasium as gym
import pytest

from envpool_py import DummyVectorEnv, EnvError, EnvTimeoutError, ThreadVectorEnv
from envpool_py.threads import thread_host
from envpool_py.worker import supervisor
from tests.faults.helpers import expire
from tests.support import envs
from tests.support.helpers import wait_until, wait_until_blocked
from tests.support.places import PLACES, QUICK, paired
from tests.support.reference import HandStepped, check, check_reset


class AsyncRandomEnv(envs.RandomEnv):
    async def reset(self, **kwargs):
        await asyncio.sleep(0)
        return super().reset(**kwargs)

    async def step(self, action):
        await asyncio.sleep(0)
        if action == 3:
            raise LookupError("boom")
        return super().step(action)


@pytest.mark.parametrize(
    ("place", "mode", "wrapped"), paired(QUICK, ["same_step", "next_step"], [False, True])
)
def test_rows_and_errors_are_those_of_hand_stepped_envs(place, mode, wrapped):
    def make(kind, tag):
        return gym.wrappers.TimeLimit(kind(tag), 3) if wrapped else kind(tag)

    hand = HandStepped([functools.partial(make, envs.RandomEnv, i) for i in range(3)], mode)
    fns = [functools.partial(make, AsyncRandomEnv, i) for i in range(3)]
    space = hand.envs[0].observation_space
    with PLACES[place](fns, autoreset_mode=mode) as pool:
        check_reset(pool.reset(seed=7), hand.reset(seeds=[7, 8, 9]), space)
        for _ in range(20):
            check(pool.step([2] * 3), hand.step([2] * 3), space)
        pool.reset()
        text = r"env 1: step raised LookupError: boom \(test_coroutines.py:\d+\)"
        with pytest.raises(LookupError, match=text) as caught:
            pool.step([2, 3, 2])
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (1,)


class MeetingEnv(envs.CountEnv):
    """A step ends when three envs are in one; all in the same event loop."""

    async def reset(self, **kwargs):
        self.loop = asyncio.get_running_loop()
        self.beats = 0
        self.task = asyncio.create_task(self.beat())
        return super().reset(**kwargs)

    async def beat(self):
        """Goes on between the steps."""
        while True:
            await asyncio.sleep(1e-3)
            self.beats += 1

    async def step(self, action):
        loop = asyncio.get_running_loop()
        assert loop is self.loop
        here = vars(loop).setdefault("here", [])
        here.append(loop.create_future())
        if len(here) == 3:
            for each in here:
                each.set_result(None)
            here.clear()
        else:
            await here[-1]
        return super().step(action)

    async def double(self, number):
        await asyncio.sleep(0)
        return 2 * number, id(asyncio.get_running_loop())

    async def close(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def make_meeting(tag):
    await asyncio.sleep(0)
    return MeetingEnv(tag)


def test_all_envs_are_in_flight_at_once_in_one_loop():
    with ThreadVectorEnv([functools.partial(make_meeting, tag) for tag in range(3)]) as pool:
        pool.reset()
        for step in (1, 2, 3):
            assert pool.step([0] * 3)[0].tolist() == [[i, 0, step] for i in range(3)]
        assert wait_until(lambda: min(pool.get_env_attr("beats")) > 2)
        assert [number for number, _ in pool.call("double", 4)] == [8] * 3
        assert len({loop for _, loop in pool.call("double", 4)}) == 1

        async def add(env, number):
            await asyncio.sleep(0)
            return env.tag + number

        assert pool.apply(add, 5) == [5, 6, 7]


class HalfAsyncEnv(envs.CountEnv):
    """Action 1 waits without end. The env keeps its thread, because its reset may block."""

    begun, cancelled = threading.Event(), threading.Event()

    async def step(self, action):
        if action == 1:
            await self.hang_here()
        return super().step(action)

    async def hang_here(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class HangingEnv(HalfAsyncEnv):
    """The same in the event loop."""

    async def reset(self, **kwargs):
        return super().reset(**kwargs)


BOTH = pytest.mark.parametrize("kind", [HalfAsyncEnv, HangingEnv])


def hanging(kind):
    kind.begun.clear()
    kind.cancelled.clear()
    return [functools.partial(kind, tag, 100) for tag in range(2)]


def alive():
    return [each for each in threading.enumerate() if each.name.startswith("envpool_py")]


@pytest.mark.parametrize(
    ("on_error", "kind"),
    [("raise", HalfAsyncEnv), ("raise", HangingEnv), ("restart", HangingEnv)],
)
def test_a_coroutine_that_hangs_is_reported_with_its_stack_and_cancelled(on_error, kind):
    with ThreadVectorEnv(hanging(kind), step_timeout=60.0, on_error=on_error) as pool:
        pool.reset()
        assert pool.step([0], [0])[0].tolist() == [[0, 0, 1]]
        pool.send([1], [1])
        assert HangingEnv.begun.wait(60)
        for thread in alive():
            wait_until_blocked(thread)
        expire(pool)
        if on_error == "raise":
            text = r"env 1: did not end its request within \S+ seconds \(test_coroutines.py:"
            with pytest.raises(EnvTimeoutError, match=text) as caught:
                pool.recv()
            assert "in hang_here" in str(caught.value)
            assert "; its coroutine was cancelled" in str(caught.value)
        else:
            assert pool.recv()[3].tolist() == [True]
        assert HangingEnv.cancelled.wait(60)
        pool.reset()
        # The event loop, and a thread per env that needs one.
        assert wait_until(lambda: len(alive()) == (1 if kind is HangingEnv else 3))
        assert pool.step([0, 0])[0].tolist() == [[0, 1, 1], [1, 0, 1]]
    assert not alive()


class StubbornEnv(envs.CountEnv):
    """Action 1 waits until it is released, whatever cancels it."""

    begun, released = threading.Event(), threading.Event()

    async def reset(self, **kwargs):
        return super().reset(**kwargs)

    async def step(self, action):
        while action and not self.released.is_set():
            self.begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e-3)
        return super().step(action)


@BOTH
def test_close_cancels_a_coroutine_that_hangs(kind):
    """Within the time that a thread has: else there is a warning, which is an error here."""
    pool = ThreadVectorEnv(hanging(kind))
    pool.reset()
    pool.send([0, 1])
    assert HangingEnv.begun.wait(60)
    pool.close()
    assert HangingEnv.cancelled.is_set()
    assert not alive()


def test_close_abandons_a_coroutine_that_cannot_be_cancelled(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.3)
    pool = ThreadVectorEnv([StubbornEnv])
    pool.reset()
    pool.send([1])
    assert StubbornEnv.begun.wait(60)
    text = "env 0: could not be closed: the coroutine was abandoned"
    with pytest.warns(RuntimeWarning, match=text):
        pool.close()
    StubbornEnv.released.set()
    assert wait_until(lambda: not alive())


@BOTH
@pytest.mark.parametrize("num_threads", [1, 2])
def test_cancel_hits_what_has_been_sent_and_nothing_later(num_threads, kind):
    """With one thread, env 1 waits behind env 0, or has begun, when it is cancelled."""
    with ThreadVectorEnv(hanging(kind), num_threads=num_threads) as pool:
        pool.reset()
        for episode in range(1, 41):
            pool.send([0, 1])
            pool.cancel()
            assert pool.reset()[0].tolist() == [[0, episode, 0], [1, episode, 0]]
            for step in (1, 2):
                expected = [[0, episode, step], [1, episode, step]]
                assert pool.step([0, 0])[0].tolist() == expected


def test_cancel_spares_the_envs_of_the_same_thread():
    class Gated(envs.CountEnv):
        async def step(self, action):
            if action:
                begun.set()
                while not gate.is_set():  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(0)
            return super().step(action)

    begun, gate = threading.Event(), threading.Event()
    with ThreadVectorEnv([Gated, Gated], num_threads=1, wait_num=1) as pool:
        pool.reset()
        pool.send([1, 1])
        assert begun.wait(60)
        pool.cancel([1])
        gate.set()
        assert pool.recv()[0].tolist() == [[0, 0, 1]]
        assert pool.reset([1])[0].tolist() == [[0, 1, 0]]


def test_a_fork_has_a_loop_of_its_own():
    fns = [functools.partial(AsyncRandomEnv, tag) for tag in range(2)]
    with ThreadVectorEnv(fns) as pool:
        pool.reset()
        with PLACES["shmem-fork"](fns) as other:
            other.reset()
            other.step([0, 0])
        pool.step([0, 0])
    assert not alive()


class OneTaskEnv(HangingEnv):
    """Reset, step and close are in one task; action 2 cancels it between two steps."""

    name, closed = contextvars.ContextVar("name"), []

    async def reset(self, **kwargs):
        self.task = asyncio.current_task()
        self.name.set(self.tag)
        return await super().reset(**kwargs)

    async def step(self, action):
        assert (self.name.get(), asyncio.current_task()) == (self.tag, self.task)
        if action == 2:
            asyncio.get_running_loop().call_soon(self.task.cancel)
        elif action == 3:
            await asyncio.sleep(0)
        return await super().step(action)

    async def close(self):
        self.closed.append((self.name.get(), asyncio.current_task() is self.task))


def test_reset_step_and_close_are_in_one_task():
    """So a time-out of the reset reaches the steps, also one that is over between two steps."""
    OneTaskEnv.closed.clear()
    with ThreadVectorEnv([functools.partial(OneTaskEnv, tag, 100) for tag in range(2)]) as pool:
        pool.reset()
        assert pool.step([0, 2])[0][:, 2].tolist() == [1, 1]
        with pytest.raises(concurrent.futures.CancelledError, match="env 1: step raised") as caught:
            pool.step([0, 3])
        assert caught.value.env_ids == (1,)
        pool.reset()
        assert pool.step([3, 3])[0][:, 2].tolist() == [1, 1]
    assert sorted(OneTaskEnv.closed) == [(0, True), (1, True)]


class BlockingEnv(HangingEnv):
    gate = threading.Event()

    async def step(self, action):
        if action == 2:
            self.gate.wait()
        return await super().step(action)


def test_a_timeout_names_the_env_that_blocks_the_event_loop():
    BlockingEnv.gate.clear()
    pool = ThreadVectorEnv([BlockingEnv, BlockingEnv], step_timeout=60.0)
    pool.reset()
    for i, action in enumerate((1, 2)):  # in this order: the second one blocks the event loop
        pool.send([action], [i])
        assert wait_until(lambda i=i: pool.engine.block.heartbeats["env"][i] == i + 1)
    for thread in alive():
        wait_until_blocked(thread)
    expire(pool)
    place = r"\(test_coroutines.py:\d+\)"
    text = rf"env 0: did not \D*60.0 seconds {place}; the event loop runs env 1 {place}"
    with pytest.raises(EnvTimeoutError, match=text):
        pool.recv()
    BlockingEnv.gate.set()
    pool.close()
    assert wait_until(lambda: not alive())


@pytest.mark.parametrize(("place", "method"), paired(QUICK, ["reset", "step"]))
def test_a_coroutine_behind_a_decorator_is_refused(place, method):
    def decorated(self, *args, **kwargs):
        del self, args, kwargs
        return asyncio.sleep(0)

    kind = type("Decorated", (envs.CountEnv,), {method: decorated})
    with PLACES[place]([kind]) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the coroutine was never awaited
        with pytest.raises(TypeError, match="got coroutine; only methods of the base gym.Env"):
            pool.reset() and pool.step([0])


async def test_a_blocked_event_loop_does_not_block_that_of_the_sessions(monkeypatch):
    monkeypatch.setattr(thread_host, "_ROW_ENDS_WITHIN", 600.0)
    BlockingEnv.gate.clear()

    async def conversation(task):
        async with sessions.open() as env:
            await env.step(2 if task == 0 else 1)

    fns = [functools.partial(BlockingEnv, tag) for tag in range(3)]
    with ThreadVectorEnv(fns, step_timeout=0.1) as pool:
        async with pool.sessions() as sessions:
            outcomes = await sessions.map(conversation, range(9), on_failure="record")
            assert outcomes.failed.all()
        BlockingEnv.gate.set()
    assert await asyncio.to_thread(wait_until, lambda: not alive())


def test_a_coroutine_that_steps_a_pool_of_coroutines_is_no_hang():
    class Nesting(HangingEnv):
        async def step(self, action):  # noqa: ARG002
            with DummyVectorEnv([lambda: HangingEnv(1)]) as inner:
                inner.reset()

    with ThreadVectorEnv([lambda: Nesting(0)]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 0: .*steps a pool of such envs; use a thread"):
            pool.step([0])


def test_an_env_is_recreated_beside_the_event_loop():
    """Its env_fn may block; the env must belong into the loop, as the one before."""
    begun, gate = threading.Event(), threading.Event()

    def make():
        begun.set()
        gate.wait()
        return HangingEnv(7)

    with ThreadVectorEnv([HangingEnv, HangingEnv], wait_num=1) as pool:
        pool.reset()
        opener = threading.Thread(target=lambda: begun.wait() and gate.set())
        opener.start()
        pool.restart([0], env_fns=[make])
        opener.join()
        assert pool.reset([0])[0].tolist() == [[7, 0, 0]]
        with pytest.raises(EnvError, match="no coroutine functions"):
            pool.restart([1], env_fns=[envs.CountEnv])


PROGRAM = """
import asyncio
import logging
import gymnasium as gym
from envpool_py import EnvTimeoutError, ThreadVectorEnv

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    async def reset(self, *, seed=None, options=None):
        return 0, {}
    async def step(self, action):
        await asyncio.sleep(60 * action)
        return 0, 0.0, False, False, {}

async def main(pool):
    async with pool.sessions() as sessions:
        for timeout in [1e-9, 0.001] * 20:
            try:
                async with sessions.open() as env:
                    await env.step(0)
                    await env.step(1, timeout=timeout)
            except EnvTimeoutError:
                pass

logging.getLogger("asyncio").setLevel("ERROR")  # its warnings are of callbacks that take long
with ThreadVectorEnv([Env] * 8) as pool:
    asyncio.run(main(pool))
    pool.reset()
    pool.send([0, 1] * 4)
    pool.cancel()
    pool.reset()
    assert not pool.restarts.any()
    pool.send([1] * 8)
"""


def test_timeouts_of_a_moment_abandon_nothing_and_development_mode_has_no_warning():
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
