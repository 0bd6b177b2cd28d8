"""Each conversation gets the error of its own env, and a dead env takes few of the tasks."""

import asyncio
import contextlib
import functools
import gc
import os
import weakref

import gymnasium as gym
import pytest

from envpool_py import EnvError, EnvTimeoutError, ShmemVectorEnv, ThreadVectorEnv
from tests.sessions.helpers import outcomes_of
from tests.support.helpers import wait_until
from tests.support.places import BACKENDS, PLACES, QUICK, paired

KINDS = (ConnectionError, KeyError)
BUDGETS = {"raise": {}, "restart": {"on_error": "restart"}}
BUDGETS |= {"used up": {"on_error": "restart", "max_restarts": 1}}


class TaskEnv(gym.Env):
    """Observes text. A reset with a task fails, and so does each reset of a dead env."""

    def __init__(self, dead=False):
        self.dead = dead

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        if self.dead:
            raise ConnectionError("refused")
        if options:
            raise KINDS[options["task"] % 2](f"<{options['task']}>")
        return "r", {}

    def step(self, action):  # noqa: ARG002
        return "o", 1.0, True, False, {}


async def play(sessions, task=None):
    async with sessions.open(options=None if task is None else {"task": task}) as env:
        await env.step(0)
        await asyncio.sleep(5e-3)  # other sessions wait meanwhile


@pytest.mark.parametrize("place", ["thread", "shmem-fork"])
def test_an_error_that_is_dropped_is_freed_at_once(place):
    """It may hold what is open: the error of an HTTP client has its socket."""

    async def run(pool):
        freed = []
        async with pool.sessions() as sessions:
            for task in range(4):
                try:
                    await play(sessions, task)
                except EnvError as error:
                    freed.append(weakref.ref(error))
                await asyncio.sleep(0.01)
        return freed

    gc.disable()
    try:
        with PLACES[place]([TaskEnv]) as pool:
            freed = asyncio.run(run(pool))
            assert [ref() for ref in freed] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("place", "scene"), paired(QUICK, [("restart", False), ("restart", True), ("raise", False)])
)
def test_each_conversation_has_the_error_of_its_own_env(place, scene):
    mode, worked = scene

    async def conversation(sessions, task):
        if task < 0:
            await play(sessions)
        else:
            await play(sessions, task)

    tasks = [*([-1] * 4 if worked else []), *range(12)]
    with PLACES[place]([TaskEnv] * 4, on_error=mode) as pool:
        outcomes = outcomes_of(pool, conversation, tasks)
    failed = [(task, error) for task, _, error in outcomes if task >= 0]
    for task, error in failed:
        assert isinstance(error, KINDS[task % 2])
        assert f"<{task}>" in str(error)
        assert len(error.env_ids) == 1
    assert len({id(error) for _, error in failed}) == 12


@pytest.mark.parametrize(("place", "budget"), paired(BACKENDS, [*BUDGETS]))
def test_a_dead_env_takes_few_tasks(place, budget):
    fns = [functools.partial(TaskEnv, k == 0) for k in range(8)]
    # A retry gets another env if it begins within the back-off: seconds, on any machine.
    with PLACES[place](fns, **BUDGETS[budget], restart_backoff=5.0) as pool:
        outcomes = outcomes_of(pool, lambda sessions, _: play(sessions), range(200))
        assert 1 <= outcomes.failed.sum() <= 50  # twice its share

        async def retried(sessions, _):
            with contextlib.suppress(ConnectionError):
                return await play(sessions)
            return await play(sessions)

        assert not outcomes_of(pool, retried, range(200)).failed.any()


def test_an_env_that_cannot_be_recreated_is_no_hang_and_takes_few_tasks(tmp_path):
    def make(k):
        (tmp_path / f"{k}").touch(exist_ok=k > 0)
        return DyingEnv()

    class DyingEnv(TaskEnv):
        def step(self, action):
            if action:
                os._exit(7)
            return super().step(action)

    async def conversation(sessions, _, env_ids=None, action=1):
        async with sessions.open(env_ids=env_ids) as env:
            await env.step(action if env.env_id == 0 else 0)
            await asyncio.sleep(5e-3)

    of_env_0 = functools.partial(conversation, env_ids=0, action=0)
    with PLACES["subproc-fork"]([functools.partial(make, k) for k in range(4)]) as pool:
        outcomes = outcomes_of(pool, conversation, range(200))
        assert 2 <= outcomes.failed.sum() <= 50
        death, *others = [text for text in outcomes.errors if text is not None]
        assert "exited with code 7" in death
        assert all("env 0: env_fn raised FileExistsError" in text for text in others)
        (tmp_path / "0").unlink()
        assert not outcomes_of(pool, of_env_0, range(2)).failed.any()


@pytest.mark.parametrize(("count", "worked"), [(1, True), (4, True), (4, False)])
def test_nothing_rests_if_no_other_env_is_there(count, worked):
    async def conversation(sessions, task):
        await play(sessions, task if task >= 0 else None)

    with PLACES["thread"]([TaskEnv] * count, restart_backoff=1e4) as pool:
        tasks = [*([-1] if worked else []), *range(30)]
        assert outcomes_of(pool, conversation, tasks).failed.sum() == 30


class SlowAgain(TaskEnv):
    """Made a second time, it waits for a file. Its action 1 raises."""

    def __init__(self, number, folder):
        super().__init__()
        made = folder / str(number)
        assert not made.exists() or wait_until((folder / "go on").exists)
        made.touch()

    def step(self, action):
        if action:
            raise ConnectionError("refused")
        return super().step(action)


async def test_a_timeout_while_the_process_of_the_env_is_replaced(tmp_path):
    fns = [functools.partial(SlowAgain, 0, tmp_path)]
    with PLACES["subproc-fork"](fns, recycle=1, fresh_process=True) as pool:
        async with pool.sessions() as sessions:
            await play(sessions)
            text = "env 0: did not end its reset within timeout=0.3 seconds"
            with pytest.raises(EnvTimeoutError, match=text):  # it is recycled in a new process
                await sessions.open(timeout=0.3)
            (tmp_path / "go on").touch()
            await play(sessions)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ShmemVectorEnv, ThreadVectorEnv])
def test_the_timeout_of_a_request_that_failed_is_over(kind, tmp_path):
    """It ended the process in which its env was recreated, and so the other env there."""

    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(EnvError, match="refused"):
                async with sessions.open(env_ids=[0]) as env:
                    await env.step(1, timeout=0.2)
            asyncio.get_running_loop().call_later(0.6, (tmp_path / "go on").touch)
            for i in (1, 0):
                async with sessions.open(env_ids=[i]) as env:
                    assert (await env.step(0))[2]

    fns = [functools.partial(SlowAgain, i, tmp_path) for i in range(2)]
    number = {"num_processes" if kind is ShmemVectorEnv else "num_threads": 1}
    with kind(fns, on_error="restart", **number) as pool:
        asyncio.run(run(pool))
        assert pool.restarts.tolist() == [1, 0]
