"""Sessions: time-outs, cancelled calls, and the end of the `async with` block."""

import asyncio
import contextlib
import functools
import gc
import os
import signal
import threading
import time
import types
import weakref

import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, ShmemVectorEnv, ThreadVectorEnv
from envpool_py.engine import recreation
from envpool_py.pool import recv_async
from envpool_py.worker import supervisor
from tests.faults.helpers import expire, kill
from tests.sessions.helpers import (
    GO,
    MODES,
    count_fns,
    fine,
    open_sessions,
    play,
    time_passes,
    turns,
    until,
)
from tests.support import envs, every_line
from tests.support.envs import BLOCK
from tests.support.helpers import Helper, wait_until
from tests.support.places import LOCAL, PLACES, QUICK, paired, slow, soak

CONCURRENT = ("thread", "subproc-fork")
NOTHING = contextlib.nullcontext()


class BlockingEnv(envs.CountEnv):
    """Action 1, and the option "block", block without end. A folder says so."""

    def __init__(self, tag, path):
        super().__init__(tag, 1000)
        self.path = path / f"blocks{tag}"

    def reset(self, *, seed=None, options=None):
        if options and options.get("block"):
            self.step(BLOCK)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == BLOCK:
            self.path.mkdir(exist_ok=True)  # leaves no descriptor if the thread ends here
        while action == BLOCK:
            time.sleep(1e-3)
        return super().step(action)


def blocking(place, path, num_envs=2, **options):
    fns = [functools.partial(BlockingEnv, i, path) for i in range(num_envs)]
    return PLACES[place](fns, **options)


def blocks(path, num_envs):
    """Return whether that many envs block."""
    return len(list(path.glob("blocks*"))) == num_envs


@pytest.mark.parametrize(
    ("place", "mode", "by"),
    [
        *paired(CONCURRENT, MODES, ["timeout"]),
        ("subproc-fork", "raise", "step_timeout"),
    ],
)
async def test_a_timeout_replaces_what_blocks(place, mode, by, tmp_path):
    of_pool, of_step = ({}, {by: 60}) if by == "timeout" else ({by: 60.0}, {})
    with blocking(place, tmp_path, on_error=mode, **of_pool) as pool:
        async with pool.sessions() as sessions:
            async with sessions.open() as env, sessions.open() as other:
                text = rf"env 0: did not end its \w+ within {by}=60\S* seconds \(test_cancels.py:"
                step = asyncio.create_task(env.step(BLOCK, **of_step))
                if by == "timeout":
                    await time_passes(lambda: blocks(tmp_path, 1))
                else:
                    await until(lambda: blocks(tmp_path, 1))
                    expire(pool)
                with pytest.raises(EnvTimeoutError, match=text):
                    await step
                assert (await other.step(GO, timeout=60))[0].tolist()[2] == 1
            async with sessions.open(timeout=60), sessions.open(timeout=60) as env:
                assert env.obs.tolist()[2] == 0
        assert pool.restarts.tolist() == [1, 0]
        fine(pool)


async def test_a_reset_may_time_out(tmp_path):
    async with open_sessions(blocking("thread", tmp_path, 1)) as sessions:
        with pytest.raises(EnvTimeoutError, match="env 0: did not end its reset within"):
            await sessions.open(options={"block": True}, timeout=0.05)
        async with sessions.open() as env:
            assert env.info["options"] is None


async def test_what_an_abandoned_thread_has_open_is_freed_at_once(tmp_path):
    class HoldingEnv(BlockingEnv):
        def step(self, action):
            opened = Opened()
            held.add(opened)
            return super().step(action)

    class Opened:
        pass

    held = weakref.WeakSet()
    gc.disable()
    try:
        async with open_sessions(ThreadVectorEnv([lambda: HoldingEnv(0, tmp_path)])) as sessions:
            with pytest.raises(EnvTimeoutError):
                async with sessions.open() as env:
                    await env.step(BLOCK, timeout=0.05)
            await until(lambda: not held)
    finally:
        gc.enable()


@pytest.mark.parametrize("place", ["thread-packed", "shmem-fork-packed"])
async def test_a_timeout_of_an_env_that_has_not_begun(place, tmp_path):
    async with open_sessions(blocking(place, tmp_path, 3)) as sessions:
        opened = [await sessions.open() for _ in range(3)]
        hangs = asyncio.create_task(opened[0].step(BLOCK))
        await until(lambda: blocks(tmp_path, 1))
        text = r"env 1: did not end its step within .* steps env 0 \(test_cancels.py:\d+\); its"
        with pytest.raises(TimeoutError, match=text):
            await opened[1].step(GO, timeout=0.1)
        await asyncio.wait([hangs])


async def test_the_loop_turns_while_many_processes_are_restarted(tmp_path, monkeypatch):
    turn, restarted = 0, []

    def restart_slowly(*args):
        restarted.append(turn)
        restart(*args)
        time.sleep(2 * recreation._LONGEST_TURN)

    def count():
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    restart, loop = supervisor.Supervisor.restart, asyncio.get_running_loop()
    monkeypatch.setattr(supervisor.Supervisor, "restart", restart_slowly)
    num_envs = 16
    options = {"on_error": "restart", "restart_backoff": 1e-9}
    with blocking("shmem-fork", tmp_path, num_envs, **options) as pool:
        async with pool.sessions() as sessions:
            opened = [await sessions.open() for _ in range(num_envs)]
            steps = [asyncio.create_task(each.step(BLOCK)) for each in opened]
            await until(lambda: blocks(tmp_path, num_envs))
            for i in range(num_envs):
                kill(pool, i)
            count()
            await asyncio.gather(*steps, return_exceptions=True)
            await until(lambda: len(restarted) == num_envs)
    assert max(map(restarted.count, restarted)) <= num_envs // 2


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-caller"])
async def test_envs_of_this_thread_have_no_timeouts(place):
    async with open_sessions(PLACES[place](count_fns())) as sessions:
        with pytest.raises(ValueError, match="cannot stop them; use ThreadVectorEnv"):
            await sessions.open(timeout=3)
        async with sessions.open() as env:
            with pytest.raises(ValueError, match="timeout"):
                await env.step(GO, timeout=3)
            assert (await env.step(GO))[0].tolist()[2] == 1  # nothing was sent


class SlowEnv(envs.CountEnv):
    """Takes a second to be recreated."""

    def __init__(self, tag, path):
        super().__init__(tag)
        if path.exists():
            time.sleep(1)
        path.touch()


@pytest.mark.slow
async def test_a_timeout_while_the_process_of_the_env_is_replaced(tmp_path):
    fns = [functools.partial(SlowEnv, 0, tmp_path / "made")]
    async with open_sessions(
        PLACES["subproc-fork"](fns, recycle=1, fresh_process=True)
    ) as sessions:
        async with sessions.open() as env:
            while not env.done:
                await env.step(GO)
        text = "env 0: did not end its reset within timeout=0.3 seconds"
        with pytest.raises(EnvTimeoutError, match=text):  # it is recycled in a new process
            async with sessions.open(timeout=0.3):
                raise AssertionError
        async with sessions.open() as env:
            assert env.obs.tolist() == [0, 0, 0]


class PatientEnv(envs.CountEnv):
    """A coroutine: action 1 waits without end, 2 also when it is cancelled, until `may_end`."""

    def __init__(self, tag):
        super().__init__(tag, 1000)
        self.waiting, self.may_end = threading.Event(), threading.Event()

    async def reset(self, **kwargs):
        return super().reset(**kwargs)

    async def step(self, action):
        if action:
            self.waiting.set()
        try:
            await asyncio.sleep(1e6 if action else 0)
        finally:
            while action == 2 and not self.may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1e-3)
        return super().step(action)


def patient():
    """Return a pool of one PatientEnv, and the list of those that it makes."""
    made = []

    def make():
        made.append(PatientEnv(0))
        return made[-1]

    return made, ThreadVectorEnv([make])


@pytest.mark.parametrize(("action", "late"), [(1, True), (2, True), (2, False)])
async def test_an_env_is_kept_and_is_free_only_when_its_request_has_ended(action, late):
    before = threading.active_count()
    made, pool = patient()
    with pool:
        async with pool.sessions() as sessions:
            async with sessions.open() as env:
                task = asyncio.create_task(env.step(action, timeout=60))
                await until(made[0].waiting.is_set)
                if late:
                    await time_passes(lambda: True)
                    error = EnvTimeoutError
                    text = r"timeout=60 seconds \(test_cancels.py:\d+\); its coroutine was cancel"
                else:
                    task.cancel()
                    error, text = asyncio.CancelledError, None
                with pytest.raises(error, match=text):
                    await task
            waiter = asyncio.create_task(sessions.open().__aenter__())
            if action == 2:
                await turns(20)
                assert not waiter.done()
                made[0].may_end.set()
            env = await waiter
            assert (await env.step(GO, timeout=60))[0].tolist() == [0, 1, 1]
        assert pool.restarts.tolist() == [0]
        assert made[0].resets == 2
        assert wait_until(lambda: threading.active_count() == before + 1)  # the event loop


async def test_a_coroutine_that_is_cancelled_and_goes_on_loses_its_thread(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.1)
    made, pool = patient()
    with pool:
        async with pool.sessions() as sessions:
            async with sessions.open() as env:
                task = asyncio.create_task(env.step(2))
                await until(made[0].waiting.is_set)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with sessions.open() as env:
                assert env.env_id == 0
                await env.step(GO)
        monkeypatch.undo()
        assert pool.restarts.tolist() == [1]
        made[0].may_end.set()
    assert len(made) == 2


@pytest.mark.parametrize(("place", "mode"), paired(CONCURRENT, MODES))
async def test_a_cancelled_step_is_no_failure(place, mode, tmp_path):
    reported = []

    limit = {"max_restarts": 1, "on_restart": lambda *args: reported.append(args)}
    options = {"on_error": mode, **(limit if mode == "restart" else {})}
    with blocking(place, tmp_path, 1, **options) as pool:
        async with pool.sessions() as sessions:
            for _ in range(3):
                async with sessions.open() as env:
                    task = asyncio.create_task(env.step(BLOCK))
                    await until(lambda: blocks(tmp_path, 1))
                    (tmp_path / "blocks0").rmdir()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    with pytest.raises(ResetNeeded, match="was cancelled"):
                        await env.step(GO)
            async with sessions.open() as env:
                await env.step(GO)
        assert pool.restarts.tolist() == [3]  # code that blocks cannot be cancelled
        assert not reported


class CloseBlocksEnv(BlockingEnv):
    """Its first ``close`` blocks, its step raises."""

    def step(self, action):
        if action == GO:
            raise LookupError
        super().step(action)

    def close(self):
        with contextlib.suppress(FileExistsError):
            self.path.mkdir()
            self.step(BLOCK)


@pytest.mark.parametrize("one", [{"num_threads": 1}, {"num_processes": 1, "context": "fork"}])
async def test_the_close_of_a_neighbour_is_not_blamed_for_a_cancel(one, tmp_path):
    fns = [functools.partial(kind, 0, tmp_path) for kind in (BlockingEnv, CloseBlocksEnv)]
    pool = ThreadVectorEnv if "num_threads" in one else ShmemVectorEnv
    with pool(fns, on_error="restart", **one) as pool:
        async with pool.sessions() as sessions, sessions.open(env_ids=[0]) as env:
            with pytest.raises(EnvError, match="LookupError"):
                async with sessions.open(env_ids=[1]) as other:
                    await other.step(GO)
            await until(lambda: blocks(tmp_path, 1))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(env.step(GO), 0.05)
            async with sessions.open(env_ids=[1]):
                pass  # and nothing was warned of, which would be an error here


@pytest.mark.parametrize("place", LOCAL)
async def test_a_step_that_is_cancelled_in_the_turn_in_which_it_is_sent(place):
    async with open_sessions(PLACES[place](count_fns(2))) as sessions:
        for k in range(8):
            async with sessions.open() as env:
                task = asyncio.create_task(env.step(GO))
                for _ in range(k % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        outcomes = await sessions.map(lambda _: play(sessions), range(6))
        assert [one.value[2] for one in outcomes] == [4] * 6


# ---------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(("place", "mode"), paired(CONCURRENT, MODES))
async def test_at_the_end_all_that_wait_get_an_error(place, mode, tmp_path):
    with blocking(place, tmp_path, on_error=mode) as pool:

        async def step():
            async with sessions.open() as env:
                await env.step(BLOCK)

        async with pool.sessions() as sessions:
            tasks = [asyncio.create_task(step()) for _ in range(4)]  # two of them wait for an env
            await until(lambda: blocks(tmp_path, 2))
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ClosedEnvironmentError)
        with pytest.raises(ClosedEnvironmentError):
            await sessions.open()
        fine(pool)


@pytest.mark.parametrize(("place", "by_thread"), paired(QUICK, [False, True]))
async def test_a_pool_closed_meanwhile(place, by_thread):
    pool = PLACES[place](count_fns(3, 10**9))

    async def step():
        async with sessions.open() as env:
            while True:
                await env.step(GO)

    async with pool.sessions() as sessions:
        tasks = [asyncio.create_task(step()) for _ in range(5)]
        await turns()
        if by_thread:
            await asyncio.to_thread(pool.close)
        else:
            pool.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ClosedEnvironmentError)
    assert pool.is_closed


@pytest.mark.parametrize("place", CONCURRENT)
def test_an_interrupt_ends_all(place, tmp_path):
    """Ctrl-C while envs hang: the event loop cancels the main task, and nothing waits."""

    async def run(pool):
        async def step(_):
            async with sessions.open() as env:
                await env.step(BLOCK)

        async with pool.sessions() as sessions:
            await sessions.map(step, range(4))

    with blocking(place, tmp_path) as pool:

        def interrupt():
            assert wait_until(lambda: blocks(tmp_path, 2))
            os.kill(os.getpid(), signal.SIGINT)

        helper = Helper(interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run(pool))
        helper.finish()
        fine(pool)


@pytest.mark.parametrize(
    ("place", "part", "every"),
    [
        ("thread", "step", 1),
        ("subproc-fork", "close", 31),
        *slow(("thread", "close", 3), ("thread", "end", 2), ("thread", "timeout", 7)),
        *slow(
            ("subproc-fork", "step", 3), ("subproc-fork", "close", 11), ("subproc-fork", "end", 5)
        ),
        *soak(*((place, part, 1) for place in CONCURRENT for part in ("close", "end", "timeout"))),
    ],
)
def test_a_signal_at_any_line_ends_all(place, part, every, tmp_path):
    """The env hangs: a request that was forgotten would be in the way of the next reset."""

    def lines(now, target):
        return every_line.Lines(scene, KeyboardInterrupt, target) if now == part else NOTHING

    async def run(target):
        async with pool.sessions() as sessions:
            env = await sessions.open()
            step = asyncio.create_task(env.step(BLOCK, timeout=60))
            step.add_done_callback(lambda _: step.cancelled() or step.exception())  # no log line
            with lines("step", target) as seen:
                await asyncio.sleep(0)
            await until(lambda: blocks(tmp_path, 1))
            with lines("timeout", target) as seen_late:
                await (time_passes(lambda: True) if part == "timeout" else turns(1))
            with lines("close", target) as seen_close:
                env.close()
            with pytest.raises((ResetNeeded, EnvTimeoutError)):
                await step
            async with sessions.open() as env:
                with lines("end", target) as seen_end:
                    await sessions.__aexit__()
            return (seen or seen_late or seen_close or seen_end).places([1])

    scene = types.SimpleNamespace(look=lambda: None)
    # The lines after a time-out depend on when a thread ends.
    raised = contextlib.suppress if part == "timeout" else pytest.raises
    with blocking(place, tmp_path, 1) as pool:
        num_threads = threading.active_count()
        for target in asyncio.run(run(None))[::every]:
            gc.collect()  # not in the lines that are walked
            with raised(KeyboardInterrupt):
                asyncio.run(run(target))
            fine(pool)
            assert wait_until(lambda: threading.active_count() == num_threads)


@pytest.mark.parametrize("every", [*slow(3), *soak(1)])
@pytest.mark.filterwarnings("ignore:.*(was taken|never awaited)")  # where it was interrupted
def test_after_an_error_of_a_handler_nobody_waits_indefinitely(every, tmp_path):
    """The event loop logs what a callback raises, and goes on: no timer, result or env is lost."""

    async def run(target):
        async def talk(k):
            options = {"options": {"block": True}, "timeout": 0.05} if k == 0 else {}
            async with sessions.open(**options) as env:
                await env.step(GO)

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with pool.sessions() as sessions:
            with every_line.Lines(scene, RuntimeError, target) as seen:
                running = sessions.map(talk, range(3), on_failure="record")
                with contextlib.suppress(RuntimeError, ClosedEnvironmentError):
                    await asyncio.wait_for(running, 20)
            gc.collect()
            takers = [taker and taker() for taker in sessions._takers]
            with contextlib.suppress(ClosedEnvironmentError):  # the receiver was interrupted
                for k, taker in enumerate(takers):
                    if not (taker and taker._holds_env):  # one that no line has closed has its env
                        await sessions.open(env_ids=k, wait=20)
            return seen.places([1])

    scene = types.SimpleNamespace(look=lambda: None)
    with blocking("thread", tmp_path) as pool:
        places = asyncio.run(run(None))
        for target in [each for each in places if f"{os.sep}sessions{os.sep}" in each[0]][::every]:
            gc.collect()  # not in the lines that are walked
            with contextlib.suppress(RuntimeError):
                asyncio.run(run(target))
            fine(pool)


def test_results_are_noticed_although_one_notice_was_lost(monkeypatch):
    """An interrupt came before the first line of what the event loop calls."""
    now, called = [1e9], []
    monkeypatch.setattr(recv_async.time, "monotonic", lambda: now[0])
    poller = types.SimpleNamespace(duplicate=lambda: -1, rings=True)
    hosts = types.SimpleNamespace(supervisor=types.SimpleNamespace(poller=poller), local=[])
    loop = types.SimpleNamespace(call_soon_threadsafe=called.append)
    with recv_async.listening(hosts, loop, lambda: None):
        for now[0], count in ((1e9, 1), (1e9 + 0.5, 1), (1e9 + 1.5, 2), (1e9 + 1.6, 2)):
            poller.listener()
            assert len(called) == count
        called[-1]()
        poller.listener()
        assert len(called) == 3
