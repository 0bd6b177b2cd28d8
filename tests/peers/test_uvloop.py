"""uvloop: an event loop whose timers have no time that can be read, and come up to 1 ms early."""

import asyncio

import pytest
import uvloop

from tests.sessions.helpers import GO, count_fns, fine
from tests.support.envs import BLOCK, GateEnv
from tests.support.places import PLACES

uvloop.run(asyncio.sleep(0))  # the first loop of a process opens a pipe that stays


@pytest.mark.parametrize("place", ["thread", "subproc-fork", "dummy"])
def test_sessions(place):
    async def run(pool):
        async def conversation(task):
            async with sessions.open() as env:
                if task % 10 == 5:
                    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
                while not env.done:
                    await env.step(GO)

        async with pool.sessions() as sessions:
            return await sessions.map(conversation, range(40), on_failure="record")

    with PLACES[place](count_fns()) as pool:
        failed = uvloop.run(run(pool)).failed
        assert [k for k in range(40) if failed[k]] == [5, 15, 25, 35]
        fine(pool)


def test_a_timeout(gates):
    async def run(pool):
        async with pool.sessions() as sessions:
            async with sessions.open() as env:
                with pytest.raises(TimeoutError, match="did not end its step within timeout=0.001"):
                    await env.step(BLOCK, timeout=1e-3)
            async with sessions.open() as env:
                await env.step(GO)

    with PLACES["subproc-fork"]([lambda: GateEnv(0, gates[0], 1000)]) as pool:
        uvloop.run(run(pool))
