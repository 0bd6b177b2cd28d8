"""Random errors, deaths, hangs, time-outs and cancels: every conversation gets its own answers."""

import asyncio
import contextlib
import functools
import itertools
import os
import random
import signal
import time

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError
from tests.sessions.helpers import MODES
from tests.support.places import PLACES, QUICK, paired, slow, soak

NUM = 8
HANG, DIE, RAISE, SLOW = range(1, 5)


class ChaosEnv(gym.Env):
    """Observes the task of its reset and the number of its step; does what the action says."""

    observation_space = gym.spaces.Box(-1, 10**9, (2,), np.int64)
    action_space = gym.spaces.Discrete(10)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        self.task, self.count = options["task"], 0
        if options["fails"]:
            raise LookupError(f"task {self.task}")
        return np.array([self.task, 0]), {"task": self.task}

    def step(self, action):
        self.count += 1
        while action == HANG:
            time.sleep(1e-3)
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == RAISE:
            raise LookupError(f"task {self.task}")
        if action == SLOW:
            time.sleep(2e-3)
        row = np.array([self.task, self.count]), float(self.task)
        return *row, self.count == 5, False, {"task": self.task, "text": f"{self.task}"}


class AsyncChaosEnv(ChaosEnv):
    async def reset(self, **kwargs):
        return super().reset(**kwargs)

    async def step(self, action):
        await asyncio.sleep(1e6 if action == HANG else 0)
        return super().step(action)


async def converse(sessions, task, kinds, timeout):
    """Check every answer; return the number of answers."""
    rng = random.Random(task)
    options = {"task": task, "fails": rng.random() < 0.03}
    wait = rng.choice([0, 0.01]) if rng.random() < 0.05 else None
    async with sessions.open(options=options, wait=wait) as env:
        assert env.obs.tolist() == [task, 0]
        assert env.info["task"] == task
        while not env.done:
            kind = rng.choice(kinds) if rng.random() < 0.06 else 0
            step = env.step(kind, timeout=timeout if kind == HANG else None)
            if rng.random() < 0.04:
                step = asyncio.wait_for(step, rng.choice([0, 1e-3]))
            obs, reward, _, truncated, info = await step
            assert obs.tolist() == [task, env.episode_return / task if task else obs[1]]
            assert (reward, truncated, info["task"]) == (task, False, task)
            assert info["text"] == str(task)
            if rng.random() < 0.1:
                await asyncio.sleep(1e-3)
        return env.obs.tolist()[1]


async def map_all(sessions, conversation, tasks, rng):  # noqa: ARG001 - as the other endings
    outcomes = await sessions.map(conversation, tasks, on_failure="record")
    assert [one.task for one in outcomes] == list(tasks)
    return outcomes


async def cancel_map(sessions, conversation, tasks, rng):
    mapping = asyncio.ensure_future(sessions.map(conversation, tasks, on_failure="record"))
    asyncio.get_running_loop().call_later(rng.random() * 0.05, mapping.cancel)
    try:
        return await mapping
    except asyncio.CancelledError as error:
        while not hasattr(error, "finished"):  # Python 3.10 raises another one for a task
            error = error.__context__
        return error.finished


async def leave_stream(sessions, conversation, tasks, rng):
    found = []
    async with contextlib.aclosing(sessions.stream(conversation, tasks)) as outcomes:
        async for outcome in outcomes:
            found.append(outcome)
            if rng.random() < 0.1:
                break
    return found


async def open_one(sessions, task):
    """Open a session; again if its process was killed for the cancelled request of a neighbour."""
    while True:
        try:
            return await sessions.open(options={"task": task, "fails": False})
        except WorkerDiedError as death:
            assert "was cancelled" in str(death)  # noqa: PT017 - it may raise or not


ENDINGS = (cancel_map, leave_stream)
SOME = (*QUICK, "coroutines", "thread-packed")


@pytest.mark.parametrize(
    ("place", "count", "mode"),
    [
        *slow(*paired(SOME, [40], MODES)),
        *soak(*((place, 2000, mode) for place in SOME for mode in MODES)),
    ],
)
def test_no_answer_reaches_another_conversation(place, count, mode):
    here = place in ("dummy", "shmem-fork-caller")
    in_process = here or place in ("coroutines", "thread", "thread-packed")
    kinds = [RAISE, SLOW, *([] if here else [HANG]), *([] if in_process else [DIE])]
    timeout = None if here else 0.5 if place == "ray" else 0.05
    lost = []

    async def run(pool):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context))
        rng = random.Random(1)
        async with pool.sessions() as sessions:

            async def conversation(task):
                inner = asyncio.ensure_future(converse(sessions, task, kinds, timeout))
                if rng.random() < 0.05:
                    loop.call_later(rng.random() * 0.02, inner.cancel)
                return await inner

            outcomes = await map_all(sessions, conversation, range(count // 2), rng)
            parts = [range(k, k + 10) for k in range(count // 2, count, 10)]
            for ending, part in zip(itertools.cycle(ENDINGS), parts, strict=False):
                outcomes += await ending(sessions, conversation, part, rng)
            found = {type(one.error).__name__ for one in outcomes}
            for one in outcomes:
                allowed = (EnvError, asyncio.CancelledError, asyncio.TimeoutError, TimeoutError)
                assert one.error is None or isinstance(one.error, allowed), one
                assert one.error is not None or one.value == 5
                if type(one.error).__name__ == "EnvError[LookupError]":
                    assert f"task {one.task} " in f"{one.error.message} "
            # Every env is free: all of them at once.
            done = [await open_one(sessions, k) for k in range(NUM)]
            assert sorted(env.env_id for env in done) == list(range(NUM))
            for each in done:
                each.close()
        return found

    env = AsyncChaosEnv if place == "coroutines" else ChaosEnv
    options = {"max_restarts": None, "restart_backoff": 1e-3} if mode == "restart" else {}
    make = PLACES["thread" if place == "coroutines" else place]
    with make([functools.partial(env)] * NUM, on_error=mode, **options) as pool:
        found = asyncio.run(run(pool))
        pool.reset(options={"task": 7, "fails": False})
        assert pool.step([0] * NUM)[0].tolist() == [[7, 1]] * NUM
    assert not lost
    if count > 1000:
        assert {"NoneType", "EnvError[LookupError]", "CancelledError"} <= found
        assert "TimeoutError" in found  # of `wait_for`, or of `open(wait=)`
        assert here or EnvTimeoutError.__name__ in found
        assert in_process or WorkerDiedError.__name__ in found
