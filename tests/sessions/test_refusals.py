"""What sessions refuse, and what a pool refuses while its sessions are open."""

import asyncio
import functools

import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import DummyVectorEnv
from tests.sessions.helpers import GO, count_fns, fine, open_sessions, play
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.places import BACKENDS, PLACES


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
                async with sessions.open():
                    pass
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
                async with sessions:
                    pass
            session = sessions.open()
            async with session:
                with pytest.raises(RuntimeError, match="open another session"):
                    async with session:
                        pass
                await session.step(GO)
            with pytest.raises(RuntimeError, match="open another session"):
                async with session:
                    pass
            await assert_all_free(sessions)
        with pytest.raises(RuntimeError, match="call pool.sessions"):
            async with sessions:
                pass
        assert pool.reset()[0].shape[0] == 3


async def test_what_a_session_refuses():
    with PLACES["thread"](count_fns()) as pool:
        closed = pool.sessions()
        with pytest.raises(RuntimeError, match="async with"):
            async with closed.open():
                pass
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
            for seed in (-1, "x"):
                with pytest.raises((TypeError, ValueError)):
                    async with sessions.open(seed=seed):
                        pass
            with pytest.raises(TypeError, match="options"):
                async with sessions.open(options=3):
                    pass
            await assert_all_free(sessions)
