"""`pool.sessions()`: one coroutine, one env, on every backend."""

import asyncio
import contextlib
import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import BaseVectorEnv, DummyVectorEnv, EnvError, WorkerDiedError
from envpool_py.pool.engine_for_sessions import EngineForSessions
from tests.backends.test_worker_contract import PromptThreadWorker
from tests.sessions.helpers import GO, MODES, count_fns, fine, open_sessions, play, turns, until
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES, QUICK, paired
from tests.support.reference import same

# ------------------------------------------------------------------------------- conversations


SUBJECTS = {
    "random": envs.RandomEnv,
    "undeclared": functools.partial(envs.UndeclaredEnv, 0, "object"),
    **{
        name: functools.partial(envs.SpaceEnv, 0, name)
        for name in ("mixed", "text", "discrete", "nested", "sequence")
    },
}


@pytest.mark.parametrize(
    ("place", "subject", "options"),
    paired([*QUICK, *LOCAL], [*SUBJECTS], [{}, {"on_error": "restart"}, {"columns": True}]),
)
def test_rows_are_those_of_a_hand_stepped_env(place, subject, options):
    async def run(pool):
        seen = []

        async def conversation(seed):
            by_hand, rng = SUBJECTS[subject](), np.random.default_rng(seed)
            given = {"scale": 1.0 + seed}
            space = getattr(by_hand, "action_space", gym.spaces.Discrete(4))
            total = 0.0
            async with sessions.open(seed=seed, options=given) as env:
                by_hand.episode = env.info.get("episode", 0) - 1  # the env had other tasks before
                obs, info = by_hand.reset(seed=seed, options=given)
                assert same(env.obs, obs)
                assert env.info == {**info, "env_id": env.env_id}
                while not env.done:
                    action = envs.draw(space, rng)
                    row, got = by_hand.step(action), await env.step(action)
                    assert same(got[0], row[0])
                    assert got[1:4] == row[1:4]
                    assert same(got[4], {**row[4], "env_id": env.env_id})
                    assert same(env.obs, row[0])
                    total += row[1]
                assert env.episode_return == total
                seen.append(env.env_id)
            return total

        async with pool.sessions() as sessions:
            outcomes = await sessions.map(conversation, range(12))
        assert [one.task for one in outcomes] == list(range(12))
        assert all(one.value is not None for one in outcomes)
        assert not outcomes.failed.any()
        assert outcomes.errors == [None] * 12
        assert set(seen) <= {0, 1, 2}

    with PLACES[place]([SUBJECTS[subject]] * 3, **options) as pool:
        asyncio.run(run(pool))
        asyncio.run(run(pool))  # another event loop, once the first sessions have ended


async def test_custom_workers():
    async with open_sessions(BaseVectorEnv(count_fns(), PromptThreadWorker)) as sessions:
        for one in await sessions.map(lambda _: play(sessions), range(6)):
            assert one.value[2] == 4


async def test_vector_rewards_add_up():
    pool = DummyVectorEnv([functools.partial(envs.VectorRewardEnv, 0)])
    async with open_sessions(pool) as sessions, sessions.open() as env:
        while not env.done:
            await env.step(GO)
        assert same(env.episode_return, np.array([10.0, -10.0, 2.0]))


@pytest.mark.parametrize("place", BACKENDS)
async def test_the_first_free_env_goes_to_the_one_who_waits_longest(place):
    with PLACES[place](count_fns(1)) as pool:
        order = []

        async def wait(k):
            async with sessions.open():
                order.append(k)
                await turns(2)

        async with pool.sessions() as sessions:
            tasks = [asyncio.create_task(wait(k)) for k in range(9)]
            await turns()
            tasks[5].cancel()  # it leaves the queue
            await asyncio.wait(tasks)
            assert order == [0, 1, 2, 3, 4, 6, 7, 8]


class KillingEnv(envs.RandomEnv):
    def reset(self, *, seed=None, options=None):
        if seed == 1:
            self.step(3)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class EndlessEnv(envs.RandomEnv):
    async def reset(self, **kwargs):
        return super().reset(**kwargs)

    async def step(self, action):
        if action == 3:
            await asyncio.Event().wait()
        return super().step(action)


@pytest.mark.parametrize(
    ("place", "kind"), [("shmem-fork-packed", KillingEnv), ("thread", EndlessEnv)]
)
async def test_a_record_with_sessions_is_replayed(place, kind, tmp_path):
    from envpool_py import replay  # noqa: PLC0415 - its module imports what others need not

    fns = [kind] * 3
    with PLACES[place](fns, record=tmp_path / "record") as pool:
        pool.restart([0])  # before its first reset
        pool.reset(seed=5)

        async def conversation(task):
            async with sessions.open(seed=task if task < 6 else None) as env:
                while not env.done:
                    step = asyncio.ensure_future(env.step(task % 4))
                    if kind is EndlessEnv and task % 4 == 3:
                        await turns()
                        step.cancel()
                    await step

        async with pool.sessions() as sessions:
            outcomes = await sessions.map(conversation, range(16), on_failure="record")
        assert outcomes.failed[3::4].all()
    rows = 0
    with replay(tmp_path / "record", fns) as again:
        while not again.complete:
            with contextlib.suppress(EnvError, StopIteration):
                rows += len(next(again)[1])
    assert rows > 12


# ------------------------------------------------------------------------------------- failures


class FailingEnv(envs.RaisingEnv):
    """The option "fail" makes a reset raise."""

    asked = 0

    def reset(self, *, seed=None, options=None):
        self.asked += 1
        if options and options.get("fail"):
            raise LookupError("no such task")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, MODES))
async def test_an_exception_is_raised_at_once(place, mode):
    fns = [functools.partial(FailingEnv, tag) for tag in range(2)]
    with PLACES[place](fns, on_error=mode) as pool:
        async with pool.sessions() as sessions:
            async with sessions.open() as other, sessions.open() as env:
                with pytest.raises(KeyError, match="env 1: step raised KeyError: 'boom'") as caught:
                    await env.step(1)
                assert isinstance(caught.value, EnvError)
                assert caught.value.env_ids == (1,)
                with pytest.raises(ResetNeeded, match="its last step"):
                    await env.step(GO)
                assert (await other.step(GO))[0].tolist()[2] == 1
            for _ in range(4):
                with pytest.raises(LookupError, match="reset raised LookupError: no such task"):
                    await sessions.open(options={"fail": True})
            async with sessions.open() as env:
                assert env.obs.tolist()[2] == 0
                assert "env_error" not in env.info
        assert (pool.restarts.sum() > 0) == (mode == "restart")
        # A reset that failed is not sent again.
        if mode == "raise":
            assert sum(pool.get_env_attr("asked")) == 7
        fine(pool)


@pytest.mark.parametrize(("place", "mode"), paired(PROCESSES, MODES))
async def test_a_process_that_ends_is_always_replaced(place, mode):
    async def conversation(k):
        async with sessions.open() as env:
            while not env.done:
                await env.step(2 if k % 5 == 3 and env.obs[2] == 2 else GO)
        return k

    fns = [functools.partial(FailingEnv, tag) for tag in range(3)]
    unlimited = {"max_restarts": None} if mode == "restart" else {}
    pool = PLACES[place](fns, on_error=mode, restart_backoff=1e-3, **unlimited)
    async with open_sessions(pool) as sessions:
        outcomes = await sessions.map(conversation, range(10), on_failure="record")
        killed = [one for one in outcomes if one.task % 5 == 3]
        for one in killed:
            assert isinstance(one.error, WorkerDiedError)
            assert one.value is None
        # Others shared the process.
        assert all(isinstance(o.error, (WorkerDiedError, type(None))) for o in outcomes)
        if place not in {"shmem-fork-packed", "ray"}:
            assert outcomes.failed.sum() == len(killed)
        for one, text, failed in zip(outcomes, outcomes.errors, outcomes.failed, strict=True):
            assert failed == (text is not None) == (one.error is not None)
            assert text is None or "env " in text
    assert pool.restarts.sum() >= len(killed)


async def test_a_process_that_ends_between_two_steps(monkeypatch):
    poll = EngineForSessions.poll

    def poll_all(self):
        found = poll(self)
        late = [one for one in pool.engine.flight.asked.values() if one.is_answered]
        assert not late, "an env that is recreated would wait for the next poll"
        return found

    monkeypatch.setattr(EngineForSessions, "poll", poll_all)
    pool = PLACES["subproc-fork"](count_fns(2))
    pids = pool.call("pid")
    async with open_sessions(pool) as sessions:
        async with sessions.open() as env:
            await env.step(GO)
            os.kill(pids[env.env_id], signal.SIGKILL)
            await until(lambda: pool.engine.hosts.of(env.env_id).life.name == "ENDED")
            with pytest.raises(WorkerDiedError, match="SIGKILL"):
                await env.step(GO)
        os.kill(pids[1], signal.SIGKILL)  # that of an env without a session
        await until(lambda: pool.engine.hosts.of(1).life.name == "ENDED")
        async with sessions.open() as one, sessions.open() as two:
            await one.step(GO)
            await two.step(GO)
    assert pool.restarts.tolist() == [1, 1]


async def test_after_the_sessions_a_step_recreates_an_env_whose_process_has_ended():
    with PLACES["subproc-fork"](count_fns(2), on_error="restart") as pool:
        pool.reset()
        async with pool.sessions() as sessions:
            env = await sessions.open(env_ids=0)
            os.kill(pool.workers[0].process.pid, signal.SIGKILL)
            await until(lambda: pool.engine.hosts.of(0).life.name == "ENDED")
        pool.send([GO, GO])
        assert [*pool.engine.recovery.reports] == [0], "else it waits until a limit ends it"
        assert pool.step(None, id=[0, 1])[3].tolist() == [True, False]
        assert pool.restarts.tolist() == [1, 0]
        env.close()


async def test_a_session_that_was_opened_in_a_task_that_has_ended():
    async with open_sessions(PLACES["thread"](count_fns(1))) as sessions:
        async with contextlib.AsyncExitStack() as stack:
            (env,) = await asyncio.gather(stack.enter_async_context(sessions.open()))
            sessions._find_lost()
            with pytest.raises(TimeoutError, match="none of 1 envs was free"):
                await sessions.open(wait=0)
            with pytest.raises(RuntimeError, match="opened before"):
                await asyncio.gather(env)
            for _ in range(2):
                await env.step(GO)
        (await sessions.open(wait=0)).close()


async def test_the_error_of_a_callback_reaches_those_who_wait():
    def refuse(*_):
        raise ZeroDivisionError("of on_restart")

    pool = PLACES["thread"]([FailingEnv], on_error="restart", on_restart=refuse)
    async with open_sessions(pool) as sessions:
        with pytest.raises(KeyError, match="boom"):
            async with sessions.open() as env:
                await env.step(1)
        with pytest.raises(ZeroDivisionError, match="of on_restart"):
            async with sessions.open() as env:
                await env.step(GO)


# ---------------------------------------------------------------------------------------- map


@pytest.mark.parametrize("place", BACKENDS)
async def test_map_records_failures(place):
    fns = [functools.partial(FailingEnv, tag) for tag in range(3)]
    with PLACES[place](fns) as pool:

        async def conversation(task):
            async with sessions.open() as env:
                if task == 4:
                    raise ArithmeticError("of the policy")
                if task == 6:
                    asyncio.current_task().cancel()
                    await asyncio.sleep(0)
                await env.step(int(task == 2))
                return task

        async with pool.sessions() as sessions:
            outcomes = await sessions.map(conversation, iter(range(9)), on_failure="record")
        assert [one.task for one in outcomes] == list(range(9))
        assert outcomes.failed.tolist() == [k in (2, 4, 6) for k in range(9)]
        assert [one.value for one in outcomes] == [None if k in (2, 4, 6) else k for k in range(9)]
        assert isinstance(outcomes[2].error, KeyError)
        assert "step raised KeyError: 'boom'" in outcomes.errors[2]
        assert outcomes.errors[4].startswith("ArithmeticError: of the policy (test_sessions.py:")
        assert isinstance(outcomes[6].error, asyncio.CancelledError)
        fine(pool)


async def test_map_raises_the_first_failure():
    found, waiting, cancelled = [], [], []
    with PLACES["thread"](count_fns(3)) as pool:

        async def conversation(task):
            async with sessions.open() as env:
                await env.step(GO)
                if task == 1:
                    await until(lambda: found and waiting)
                    raise ArithmeticError("of the policy")
                if task > 1:
                    waiting.append(task)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        cancelled.append(task)
                found.append(task)
                return task

        async with pool.sessions() as sessions:
            with pytest.raises(ArithmeticError, match="of the policy") as caught:
                await sessions.map(conversation, range(100))
            assert [(one.task, one.value) for one in caught.value.finished] == [(0, 0)]
            assert getattr(caught.value, "__notes__", ["its task was 1"]) == ["its task was 1"]
            async with sessions.open() as env:
                await env.step(GO)
    assert sorted(waiting) == sorted(cancelled)
