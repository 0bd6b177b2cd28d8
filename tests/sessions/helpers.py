"""What the tests of sessions share."""

import asyncio
import contextlib
import functools

from tests.support import envs

GO = 0
MODES = ("raise", "restart")


def count_fns(num_envs=3, length=4):
    return [functools.partial(envs.CountEnv, tag, length) for tag in range(num_envs)]


def fine(pool):
    """Assert that the pool takes calls again and that every env works."""
    obs, _ = pool.reset()
    assert [row[2] for row in obs.tolist()] == [0] * len(pool)
    assert [row[2] for row in pool.step([GO] * len(pool))[0].tolist()] == [1] * len(pool)


@contextlib.asynccontextmanager
async def open_sessions(pool):
    """Open the sessions of a pool; after them it takes calls again, and is closed."""
    with pool:
        async with pool.sessions() as sessions:
            yield sessions
        fine(pool)


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(1e-3)


async def until(condition):
    """Let other coroutines run until a condition holds."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(1e-3)
    raise AssertionError


async def time_passes(condition):
    """Wait until a condition holds; then the time of every call with a time-out is over."""
    await until(condition)
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + 1e4
    for _ in range(3):
        await asyncio.sleep(0)
    del loop.time


async def play(sessions):
    """Step an env to the end of its episode; return the last observation."""
    async with sessions.open() as env:
        while not env.done:
            await env.step(GO)
        return env.obs.tolist()


def outcomes_of(pool, conversation, tasks):
    """Return the outcomes of `conversation(sessions, task)` for these tasks."""

    async def run():
        async with pool.sessions() as sessions:
            each = functools.partial(conversation, sessions)
            return await asyncio.wait_for(sessions.map(each, tasks, on_failure="record"), 60)

    return asyncio.run(run())
