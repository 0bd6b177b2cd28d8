"""Outcomes as they end, and whatever ends them; sessions without a block; what is refused."""

import asyncio
import contextlib
import functools
import gc
import itertools
import sys
import threading

import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import DummyVectorEnv
from tests.sessions.helpers import (
    GO,
    count_fns,
    fine,
    open_sessions,
    play,
    time_passes,
    turns,
    until,
)
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.places import BACKENDS, PLACES, QUICK, paired


def numbers():
    yield from range(3)
    raise OSError("of the tasks")


async def async_numbers():
    for k in range(4):
        await asyncio.sleep(0)
        yield k


class Gate:
    """Conversations that end when they are told, in any order."""

    def __init__(self, sessions, count=4):
        self.sessions, self.begun, self.ended = sessions, set(), []
        self.doors = [asyncio.Event() for _ in range(count)]

    async def __call__(self, task):
        try:
            self.begun.add(task)
            await self.doors[task].wait()
            async with self.sessions.open() as env:
                await env.step(GO)
            return task
        finally:
            self.ended.append(task)


@pytest.mark.parametrize(("place", "tasks"), paired(BACKENDS, [lambda: range(4), async_numbers]))
async def test_outcomes_come_as_they_end(place, tasks):
    async with open_sessions(PLACES[place](count_fns(2))) as sessions:
        gate, found = Gate(sessions), []
        gate.doors[3].set()
        async for task, value, error in sessions.stream(gate, tasks()):
            assert (value, error) == (task, None)
            found.append(task)
            if task:
                gate.doors[task - 1].set()
        assert found == [3, 2, 1, 0]
        outcomes = await sessions.map(gate, tasks())
        assert [one.value for one in outcomes] == [0, 1, 2, 3]


async def test_a_loop_that_is_left_cancels_the_conversations():
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:
        gate = Gate(sessions, 100)
        gate.doors[2].set()
        async with contextlib.aclosing(sessions.stream(gate, range(100))) as outcomes:
            async for task, _, _ in outcomes:
                assert task == 2
                break
        assert len(gate.begun) <= 5  # twice the envs, and the next
        assert set(gate.ended) == gate.begun
        assert (await play(sessions))[2] == 4


async def cancel(sessions, gate):
    mapping = asyncio.ensure_future(sessions.map(gate, range(4)))
    await until(lambda: len(gate.ended) == 3)
    await turns()
    mapping.cancel()
    await mapping


async def wait_for(sessions, gate):
    mapping = sessions.map(gate, range(4), on_failure="record")
    waiting = asyncio.ensure_future(asyncio.wait_for(mapping, 60))
    await until(lambda: len(gate.ended) == 3)
    await turns()
    await time_passes(lambda: True)
    try:
        await waiting
    except asyncio.TimeoutError as error:
        cause = error.__cause__
    raise cause  # not above, where it would lose its context


async def break_generator(sessions, gate):
    await sessions.map(gate, numbers(), on_failure="record")


ENDINGS = {
    cancel: asyncio.CancelledError,
    wait_for: asyncio.CancelledError,
    break_generator: OSError,
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_no_ending_of_map_loses_outcomes(ending):
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:
        gate = Gate(sessions)
        for door in gate.doors[:3]:
            door.set()
        with pytest.raises(ENDINGS[ending]) as caught:
            await ending(sessions, gate)
        error = caught.value
        while not hasattr(error, "finished"):  # Python 3.10 raises another one for a task
            error = error.__context__
        assert [one.value for one in error.finished] == [0, 1, 2]


async def test_the_outcome_of_what_was_cancelled_has_its_message():
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:

        async def conversation(task):
            asyncio.current_task().cancel(task)
            await asyncio.sleep(0)

        outcomes = await sessions.map(conversation, ["too slow"], on_failure="record")
        error = outcomes[0].error
        # Python 3.10 makes another one for the task.
        assert str(error.__context__ if sys.version_info < (3, 11) else error) == "too slow"


@pytest.mark.parametrize("place", BACKENDS)
async def test_no_task_is_begun_after_the_end_of_the_sessions(place):
    begun = []

    async def conversation(task):
        begun.append(task)
        if task == 7:
            pool.close()
        await play(sessions)

    with PLACES[place](count_fns()) as pool:
        async with pool.sessions() as sessions:
            with pytest.raises(ClosedEnvironmentError) as caught:
                await sessions.map(conversation, itertools.count(), on_failure="record")
    assert len(begun) < 7 + 3 * len(pool)
    assert any(one.error is None for one in caught.value.finished)


async def test_a_plain_function_that_raises_is_an_outcome():
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:

        def conversation(task):
            return play(sessions) if 1 / task > 0 else "no coroutine"

        outcomes = await sessions.map(conversation, [1, 0, -1], on_failure="record")
        assert outcomes.failed.tolist() == [False, True, True]
        assert isinstance(outcomes[1].error, ZeroDivisionError)
        assert "must be an `async def` function; it returned 'no coro" in outcomes.errors[2]


@pytest.mark.parametrize("place", QUICK)
async def test_a_session_without_a_block(place):
    async with open_sessions(PLACES[place](count_fns())) as sessions:
        opened = [await sessions.open() for _ in range(3)]
        for seconds in (0, 0.01):
            text = f"none of 3 envs was free within wait={seconds} seconds"
            with pytest.raises(TimeoutError, match=text):
                await sessions.open(wait=seconds)
        await opened[1].step(GO)
        for _ in range(2):
            opened[1].close()
        with pytest.raises(ResetNeeded, match="it was closed"):
            await opened[1].step(GO)
        async with sessions.open(wait=0) as env:
            assert env.env_id == opened[1].env_id
        with pytest.raises(RuntimeError, match="opened before"):
            await opened[1]
        for each in opened:
            each.close()
        await asyncio.gather(*[play(sessions) for _ in range(6)])


@pytest.mark.parametrize("place", QUICK)
async def test_a_session_that_is_closed_during_a_step(place):
    async with open_sessions(PLACES[place](count_fns(1))) as sessions:
        session = await sessions.open()
        step = asyncio.ensure_future(session.step(GO))
        await asyncio.sleep(0)
        session.close()
        with pytest.raises(ResetNeeded, match="closed during this step"):
            await step
        session = await sessions.open()
        step = asyncio.ensure_future(session.step(GO))
        await asyncio.sleep(0)
        while sessions._awaited_rows:
            sessions._poll()  # then the row is there, but the task has not run
        session.close()
        assert (await step)[0].tolist()[2] == 1
        with pytest.raises(ResetNeeded, match="it was closed"):
            await session.step(GO)


async def test_one_of_some_envs():
    async with (
        open_sessions(PLACES["thread"](count_fns())) as sessions,
        sessions.open(env_ids=[2, 1]) as one,
        sessions.open(env_ids=[2, 1]) as other,
    ):
        assert [one.env_id, other.env_id] == [2, 1]
        with pytest.raises(TimeoutError, match="none of 1 envs"):
            await sessions.open(env_ids=2, wait=0)
        waiter = asyncio.create_task(sessions.open(env_ids=[1]).__aenter__())
        await turns()
        async with sessions.open() as env:  # env 0 is free, and none waits for it
            assert env.env_id == 0
        one.close()
        await turns()
        assert not waiter.done()
        other.close()
        assert (await waiter).env_id == 1
        waiter.result().close()


async def test_what_open_and_map_refuse():
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:
        for options, kind, text in (
            ({"wait": -1}, ValueError, "wait must be 0 or more, got -1"),
            ({"wait": "1"}, TypeError, "wait must be seconds"),
            ({"env_ids": 2}, IndexError, "env id 2 is out of range: this pool has envs 0 to 1"),
            ({"env_ids": []}, ValueError, "env_ids is empty"),
            ({"seed": -1}, ValueError, "seed"),
            ({"seed": "x"}, TypeError, "seed"),
            ({"options": 3}, TypeError, "options"),
        ):
            with pytest.raises(kind, match=text):
                await sessions.open(**options)
        with pytest.raises(AttributeError, match="'obs'; open it by `async with`, or await"):
            sessions.open().obs  # noqa: B018
        async with sessions.open() as session:
            with pytest.raises(AttributeError, match="'reset'; it is one episode"):
                session.reset()
        with pytest.raises(ValueError, match="on_failure"):
            await sessions.map(play, [], on_failure="ignore")
        assert len(await sessions.map(play, [])) == 0


async def test_a_session_that_is_never_closed():
    async with open_sessions(PLACES["thread"](count_fns(2))) as sessions:
        taken = [await sessions.open()]
        with pytest.warns(ResourceWarning, match="env 0 was taken until now; close"):  # noqa: PT031
            taken.clear()
            gc.collect()
        assert (await play(sessions))[2] == 4
    assert not any("envpool_py" in each.name for each in threading.enumerate())


# ------------------------------------------------------------------------- what is refused


async def assert_all_free(sessions):
    """Assert that each of the three envs can have a session."""
    async with sessions.open() as one, sessions.open() as two, sessions.open() as three:
        assert len({one.env_id, two.env_id, three.env_id}) == 3


@pytest.mark.parametrize("place", BACKENDS)
async def test_other_calls_of_the_pool_are_refused(place):
    pool = PLACES[place](count_fns())
    other = pool.sessions()
    async with open_sessions(pool) as sessions, sessions.open() as env:
        calls = (
            pool.reset,
            lambda: pool.step([GO] * 3),
            lambda: pool.send([GO], [2]),
            pool.recv,
            lambda: pool.call("pid"),
            pool.cancel,
            pool.restart,
            pool.sessions,
        )
        for call in calls:
            with pytest.raises(AlreadyPendingCallError, match="its sessions are open"):
                call()
        with pytest.raises(AlreadyPendingCallError, match="others of this pool are open"):
            await other.__aenter__()
        with pytest.raises(AlreadyPendingCallError, match="another coroutine or session already"):
            await pool.recv_async()
        assert (await env.step(GO))[0].tolist()[2] == 1


async def test_envs_in_flight_are_refused(gates):
    fns = [functools.partial(envs.GateEnv, i, gates[i], 1000) for i in range(2)]
    with PLACES["thread"](fns, wait_num=1) as pool:
        pool.reset()
        pool.send([BLOCK], [0])
        with pytest.raises(AlreadyPendingCallError, match=r"envs \[0\] are in flight"):
            await pool.sessions().__aenter__()
        gates[0].release()
        assert pool.recv()[0].tolist() == [[0, 0, 1]]
        async with pool.sessions():
            pass
        assert pool.is_async


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_autoreset_mode_is_refused(mode):
    text = "make the pool with autoreset_mode=None"
    with (
        DummyVectorEnv(count_fns(), autoreset_mode=mode) as pool,
        pytest.raises(ValueError, match=text),
    ):
        pool.sessions()


async def test_another_event_loop_is_refused():
    async with open_sessions(PLACES["thread"](count_fns())) as sessions, sessions.open() as env:

        async def elsewhere():
            with pytest.raises(RuntimeError, match="another event loop"):
                await env.step(GO)
            with pytest.raises(RuntimeError, match="another event loop"):
                await sessions.open()
            for collect in (sessions.map, lambda *args: anext(sessions.stream(*args))):
                with pytest.raises(RuntimeError, match="another event loop"):
                    await collect(play, [sessions])

        await asyncio.to_thread(asyncio.run, elsewhere())
        await env.step(GO)


@pytest.mark.parametrize("place", BACKENDS)
def test_sessions_that_nobody_ends_end_with_their_loop(place):
    async def begin(pool):
        session = await (await pool.sessions().__aenter__()).open()
        await session.step(GO)
        return session

    with PLACES[place](count_fns(2)) as pool:
        session = asyncio.run(begin(pool))
        with pytest.raises(ClosedEnvironmentError, match="the event loop of the sessions has"):
            asyncio.run(session.step(GO))
        fine(pool)
        asyncio.run(begin(pool))
        fine(pool)


async def test_a_second_async_with_is_refused():
    with PLACES["thread"](count_fns()) as pool:
        sessions = pool.sessions()
        async with sessions:
            with pytest.raises(RuntimeError, match="call pool.sessions"):
                await sessions.__aenter__()
            session = sessions.open()
            async with session:
                with pytest.raises(RuntimeError, match="open another session"):
                    await session
                await session.step(GO)
            with pytest.raises(RuntimeError, match="open another session"):
                await session
            await assert_all_free(sessions)
        with pytest.raises(RuntimeError, match="call pool.sessions"):
            await sessions.__aenter__()
        assert pool.reset()[0].shape[0] == 3


async def test_what_a_session_refuses():
    with PLACES["thread"](count_fns()) as pool:
        closed = pool.sessions()
        with pytest.raises(RuntimeError, match="async with"):
            await closed.open()
        with pytest.raises(RuntimeError, match="async with"):
            await closed.map(play, [closed])
        async with pool.sessions() as sessions:
            session = sessions.open()
            with pytest.raises(ResetNeeded, match="async with"):
                await session.step(GO)
            async with session as env:
                with pytest.raises(TypeError, match="timeout"):
                    await env.step(GO, timeout="3")
                first = asyncio.create_task(env.step(GO))
                await asyncio.sleep(0)
                with pytest.raises(ResetNeeded, match=f"env {env.env_id} is in a step; await"):
                    await env.step(GO)
                await first
                for _ in range(3):
                    await env.step(GO)
                assert env.done
                with pytest.raises(ResetNeeded, match="its episode is over"):
                    await env.step(GO)
            with pytest.raises(ResetNeeded, match="block has ended"):
                await env.step(GO)
            await assert_all_free(sessions)
