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
from tests.backends.test_worker_contract import PromptThreadWorker
from tests.sessions.helpers import GO, MODES, count_fns, fine, open_sessions, play, turns, until
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES, QUICK, paired
from tests.support.reference import same

# ------------------------------------------------------------------------------- conversations


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, MODES))
def test_rows_are_those_of_a_hand_stepped_env(place, mode):
    async def run(pool):
        seen = []

        async def conversation(seed):
            by_hand = envs.RandomEnv()
            options = {"scale": 1.0 + seed}
            obs, info = by_hand.reset(seed=seed, options=options)
            total = 0.0
            async with sessions.open(seed=seed, options=options) as env:
                assert same(env.obs, obs)
                assert env.info == {**info, "env_id": env.env_id}
                while not env.done:
                    row = by_hand.step(seed % 4)
                    got = await env.step(seed % 4)
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

    with PLACES[place]([envs.RandomEnv] * 3, on_error=mode) as pool:
        asyncio.run(run(pool))
        asyncio.run(run(pool))  # another event loop, once the first sessions have ended


class SpaceEnv(gym.Env):
    """Observes elements of any space; `options` names those of the next steps."""

    def __init__(self, space):
        if space is not None:
            self.observation_space, self.action_space = space, space

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        if options.get("fail"):
            raise ValueError("fail")
        return options["first"], {}

    def step(self, action):
        return action, 1.0, True, False, {"text": "hello"}


SPACES = {
    "text": gym.spaces.Text(20),
    "discrete": gym.spaces.Discrete(5),
    "dict": gym.spaces.Dict({"a": gym.spaces.Text(5), "b": gym.spaces.Box(0, 1, (2,))}),
    "sequence": gym.spaces.Sequence(gym.spaces.Discrete(3)),
    "none": None,
}


@pytest.mark.parametrize(
    ("place", "name", "columns"), paired([*LOCAL, *LOCAL[::-1]], [*SPACES], [False, True])
)
async def test_any_space(place, name, columns):
    space = SPACES[name] or SPACES["text"]
    space.seed(1)
    fns = [functools.partial(SpaceEnv, SPACES[name])] * 2
    pool = PLACES[place](fns, columns=columns, on_error="restart", max_restarts=None)
    with pool:
        async with pool.sessions() as sessions:
            for k in range(4):  # a reset that fails comes first: the env has no observation yet
                with contextlib.suppress(ValueError):
                    async with sessions.open(options={"first": space.sample(), "fail": k < 2}):
                        pass
                first, then = space.sample(), space.sample()
                async with sessions.open(options={"first": first}) as env:
                    assert same(env.obs, first)
                    assert same((await env.step(then))[0], then)
                    assert env.info["text"] == "hello"


async def test_custom_workers():
    async with open_sessions(BaseVectorEnv(count_fns(), PromptThreadWorker)) as sessions:
        for one in await sessions.map(lambda _: play(sessions), range(6)):
            assert one.value[2] == 4


async def test_vector_rewards_add_up():
    class Env(envs.CountEnv):
        reward_space = gym.spaces.Box(-9, 9, (2,))

        def step(self, action):
            row = super().step(action)
            return row[0], np.array([1.0, 2.0]), *row[2:]

    async with open_sessions(DummyVectorEnv([Env])) as sessions, sessions.open() as env:
        while not env.done:
            await env.step(GO)
        assert same(env.episode_return, np.array([4.0, 8.0]))


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
                    async with sessions.open(options={"fail": True}):
                        raise AssertionError
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
        outcomes = await sessions.map(conversation, range(20), on_failure="record")
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


async def test_a_process_that_ends_between_two_steps():
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


class BadSecondEnv(envs.CountEnv):
    """Ends its process at action 2; can be made once only."""

    def __init__(self, tag, path):
        super().__init__(tag)
        path.touch(exist_ok=False)

    def step(self, action):
        if action == 2:
            os._exit(7)
        return super().step(action)


async def test_an_env_that_cannot_be_recreated_is_no_hang(tmp_path):
    pool = PLACES["subproc-fork"]([lambda: BadSecondEnv(0, tmp_path / "made")])
    async with open_sessions(pool) as sessions:
        with pytest.raises(WorkerDiedError, match="exited with code 7"):
            async with sessions.open() as env:
                await env.step(2)
        for _ in range(3):  # each tries again
            with pytest.raises(FileExistsError, match="env 0: env_fn raised FileExistsError"):
                async with sessions.open():
                    raise AssertionError
        (tmp_path / "made").unlink()
        async with sessions.open() as env:
            await env.step(GO)


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
                try:
                    if task == 1:
                        await until(lambda: found and waiting)
                        raise ArithmeticError("of the policy")
                    if task > 1:
                        waiting.append(task)
                        await asyncio.Event().wait()
                    await env.step(GO)
                except asyncio.CancelledError:
                    cancelled.append(task)
                    raise
                else:
                    found.append(task)
                    return task

        async with pool.sessions() as sessions:
            with pytest.raises(ArithmeticError, match="of the policy") as caught:
                await sessions.map(conversation, range(100))
            assert [(one.task, one.value) for one in caught.value.finished] == [(0, 0)]
            assert getattr(caught.value, "__notes__", ["its task was 1"]) == ["its task was 1"]
            async with sessions.open() as env:
                await env.step(GO)
    assert cancelled
    assert 1 not in cancelled
