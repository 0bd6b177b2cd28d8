"""`pool.sessions()`: one coroutine, one env, on every backend."""

import asyncio
import contextlib
import functools
import os
import signal
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import (
    BaseVectorEnv,
    DummyVectorEnv,
    EnvError,
    EnvTimeoutError,
    ThreadVectorEnv,
    VectorEnvWrapper,
    WorkerDiedError,
)
from envpool_py.worker import supervisor
from tests.backends.test_worker_contract import PromptThreadWorker
from tests.support import envs
from tests.support.envs import BLOCK
from tests.support.helpers import Helper, wait_until
from tests.support.places import PLACES, PROCESSES, QUICK
from tests.support.reference import same

GO = 0
CONCURRENT = ("thread", "subproc-fork")
MODES = ("raise", "restart")


def count_fns(num_envs=3, length=4):
    return [functools.partial(envs.CountEnv, tag, length) for tag in range(num_envs)]


def fine(pool):
    """Assert that the pool takes calls again and that every env works."""
    obs, _ = pool.reset()
    assert [row[2] for row in obs.tolist()] == [0] * len(pool)
    assert [row[2] for row in pool.step([GO] * len(pool))[0].tolist()] == [1] * len(pool)


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


# ------------------------------------------------------------------------------- conversations


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", QUICK)
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


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("place", QUICK)
def test_any_space(place, name, columns):
    space = SPACES[name] or SPACES["text"]
    space.seed(1)

    async def run(pool):
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

    fns = [functools.partial(SpaceEnv, SPACES[name])] * 2
    with PLACES[place](fns, columns=columns, on_error="restart", max_restarts=None) as pool:
        asyncio.run(run(pool))


def test_custom_workers():
    async def run(pool):
        async def conversation(_):
            async with sessions.open() as env:
                while not env.done:
                    await env.step(GO)
                return env.obs.tolist()

        async with pool.sessions() as sessions:
            for one in await sessions.map(conversation, range(6)):
                assert one.value[2] == 4

    with BaseVectorEnv(count_fns(), PromptThreadWorker) as pool:
        asyncio.run(run(pool))
        fine(pool)


def test_vector_rewards_add_up():
    class Env(envs.CountEnv):
        reward_space = gym.spaces.Box(-9, 9, (2,))

        def step(self, action):
            row = super().step(action)
            return row[0], np.array([1.0, 2.0]), *row[2:]

    async def run(pool):
        async with pool.sessions() as sessions, sessions.open() as env:
            while not env.done:
                await env.step(GO)
            assert same(env.episode_return, np.array([4.0, 8.0]))

    with DummyVectorEnv([Env]) as pool:
        asyncio.run(run(pool))


@pytest.mark.parametrize("place", QUICK)
def test_the_first_free_env_goes_to_the_one_who_waits_longest(place):
    async def run(pool):
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
            assert order[:3] == [0, 1, 2]
            assert sorted(order[3:], key=order.index) == sorted(order[3:])
            assert order == [0, 1, 2, 3, 4, 6, 7, 8]

    with PLACES[place](count_fns(1)) as pool:
        asyncio.run(run(pool))


def test_a_record_with_sessions_is_replayed(tmp_path):
    from envpool_py import replay  # noqa: PLC0415 - its module imports what others need not

    async def run(pool):
        async def conversation(seed):
            async with sessions.open(seed=seed) as env:
                while not env.done:
                    await env.step(seed % 4)

        async with pool.sessions() as sessions:
            await sessions.map(conversation, range(5))

    fns = [envs.RandomEnv] * 2
    with PLACES["thread"](fns, record=tmp_path / "record") as pool:
        asyncio.run(run(pool))
    with replay(tmp_path / "record", fns) as again:
        assert sum(len(batch[1]) for batch in again) > 10


# ------------------------------------------------------------------------------------- failures


class FailingEnv(envs.CountEnv):
    """Action 1 raises, 2 kills the process; the option "fail" makes a reset raise."""

    asked = 0

    def reset(self, *, seed=None, options=None):
        self.asked += 1
        if options and options.get("fail"):
            raise LookupError("no such task")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == 1:
            raise KeyError("boom")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", QUICK)
def test_an_exception_is_raised_at_once(place, mode):
    async def run(pool):
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

    fns = [functools.partial(FailingEnv, tag) for tag in range(2)]
    with PLACES[place](fns, on_error=mode) as pool:
        asyncio.run(run(pool))
        fine(pool)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PROCESSES)
def test_a_process_that_ends_is_always_replaced(place, mode):
    async def run(pool):
        async def conversation(k):
            async with sessions.open() as env:
                while not env.done:
                    await env.step(2 if k % 5 == 3 and env.obs[2] == 2 else GO)
            return k

        async with pool.sessions() as sessions:
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
        return len(killed)

    fns = [functools.partial(FailingEnv, tag) for tag in range(3)]
    options = {"max_restarts": None, "restart_backoff": 1e-3}
    with PLACES[place](fns, on_error=mode, **options) as pool:
        killed = asyncio.run(run(pool))
        fine(pool)
        assert pool.restarts.sum() >= killed


@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_ends_between_two_steps(mode):
    async def run(pool):
        async with pool.sessions() as sessions:
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

    with PLACES["subproc-fork"](count_fns(2), on_error=mode) as pool:
        pids = pool.call("pid")
        asyncio.run(run(pool))
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


def test_an_env_that_cannot_be_recreated_is_no_hang(tmp_path):
    async def run(pool):
        async with pool.sessions() as sessions:
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

    with PLACES["subproc-fork"]([lambda: BadSecondEnv(0, tmp_path / "made")]) as pool:
        asyncio.run(run(pool))


def test_the_error_of_a_callback_reaches_those_who_wait():
    def refuse(*_):
        raise ZeroDivisionError("of on_restart")

    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(KeyError, match="boom"):
                async with sessions.open() as env:
                    await env.step(1)
            with pytest.raises(ZeroDivisionError, match="of on_restart"):
                async with sessions.open() as env:
                    await env.step(GO)

    with PLACES["thread"]([FailingEnv], on_error="restart", on_restart=refuse) as pool:
        asyncio.run(run(pool))
        fine(pool)


# ------------------------------------------------------------------------- time-outs and cancels


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", CONCURRENT)
def test_a_timeout_replaces_what_blocks(place, mode, tmp_path):
    async def run(pool):
        async with pool.sessions() as sessions:
            async with sessions.open() as env, sessions.open() as other:
                text = r"env 0: did not end its step within timeout=0.1 seconds \(test_sessions.py:"
                with pytest.raises(EnvTimeoutError, match=text):
                    await env.step(BLOCK, timeout=0.1)
                assert (await other.step(GO, timeout=60))[0].tolist()[2] == 1
            async with sessions.open(timeout=60), sessions.open(timeout=60) as env:
                assert env.obs.tolist()[2] == 0
        assert pool.restarts.tolist() == [1, 0]

    with blocking(place, tmp_path, on_error=mode) as pool:
        asyncio.run(run(pool))
        fine(pool)


@pytest.mark.parametrize("place", CONCURRENT)
def test_a_reset_may_time_out(place, tmp_path):
    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(EnvTimeoutError, match="env 0: did not end its reset within"):
                async with sessions.open(options={"block": True}, timeout=0.05):
                    raise AssertionError
            async with sessions.open() as env:
                assert env.info["options"] is None

    with blocking(place, tmp_path, 1) as pool:
        asyncio.run(run(pool))


@pytest.mark.parametrize("place", ["thread", "subproc-fork"])
def test_the_step_timeout_of_the_pool(place, tmp_path):
    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(EnvTimeoutError, match="step_timeout=0.2"):
                async with sessions.open() as env:
                    await env.step(BLOCK)
            async with sessions.open() as env:
                await env.step(GO)

    with blocking(place, tmp_path, 1, step_timeout=0.2) as pool:
        asyncio.run(run(pool))


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-caller"])
def test_envs_of_this_thread_have_no_timeouts(place):
    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(ValueError, match="cannot stop them; use ThreadVectorEnv"):
                async with sessions.open(timeout=3):
                    pass
            async with sessions.open() as env:
                with pytest.raises(ValueError, match="timeout"):
                    await env.step(GO, timeout=3)
                assert (await env.step(GO))[0].tolist()[2] == 1  # nothing was sent

    with PLACES[place](count_fns()) as pool:
        asyncio.run(run(pool))


class SlowEnv(envs.CountEnv):
    """Takes a second to be made again."""

    def __init__(self, tag, path):
        super().__init__(tag)
        if path.exists():
            time.sleep(1)
        path.touch()


def test_a_timeout_while_the_process_of_the_env_is_replaced(tmp_path):
    async def run(pool):
        async with pool.sessions() as sessions:
            async with sessions.open() as env:
                while not env.done:
                    await env.step(GO)
            text = "env 0: did not end its reset within timeout=0.3 seconds"
            with pytest.raises(EnvTimeoutError, match=text):  # it is recycled in a new process
                async with sessions.open(timeout=0.3):
                    raise AssertionError
            async with sessions.open() as env:
                assert env.obs.tolist() == [0, 0, 0]

    fns = [functools.partial(SlowEnv, 0, tmp_path / "made")]
    with PLACES["subproc-fork"](fns, recycle=1, fresh_process=True) as pool:
        asyncio.run(run(pool))


class PatientEnv(envs.CountEnv):
    """A coroutine: action 1 waits without end, 2 also when it is cancelled, until `may_end`."""

    def __init__(self, tag, length=1000):
        super().__init__(tag, length)
        self.threads, self.waiting, self.may_end = set(), threading.Event(), threading.Event()

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


def patient(num_envs=2, **options):
    made = [PatientEnv(tag) for tag in range(num_envs)]
    return made, ThreadVectorEnv([lambda env=env: env for env in made], **options)


def test_a_coroutine_that_times_out_keeps_its_env():
    async def run(pool):
        async with pool.sessions() as sessions:
            text = r"timeout=0.05 seconds \(test_sessions.py:\d+\); its coroutine was cancelled"
            with pytest.raises(EnvTimeoutError, match=text):
                async with sessions.open() as env:
                    await env.step(1, timeout=0.05)
            async with sessions.open() as env:
                assert (await env.step(GO, timeout=60))[0].tolist() == [0, 1, 1]

    made, pool = patient(1)
    before = threading.active_count()
    with pool:
        asyncio.run(run(pool))
        assert pool.restarts.tolist() == [0]
        assert made[0].resets == 2
        assert threading.active_count() == before


@pytest.mark.parametrize("late", [False, True])
def test_an_env_is_free_only_when_its_request_has_ended(late):
    async def run(pool):
        async with pool.sessions() as sessions:
            async with sessions.open() as env:
                if late:
                    with pytest.raises(EnvTimeoutError):
                        await env.step(2, timeout=0.05)
                else:
                    task = asyncio.create_task(env.step(2))
                    await until(made[0].waiting.is_set)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            waiter = asyncio.create_task(sessions.open().__aenter__())
            await turns(20)
            assert not waiter.done()
            made[0].may_end.set()
            env = await waiter
            assert env.obs.tolist()[2] == 0
        assert pool.restarts.tolist() == [0]

    made, pool = patient(1)
    with pool:
        asyncio.run(run(pool))


def test_a_coroutine_that_is_cancelled_and_goes_on_loses_its_thread(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.1)

    async def run(pool):
        async with pool.sessions() as sessions:
            with pytest.raises(asyncio.TimeoutError):
                async with sessions.open() as env:
                    await asyncio.wait_for(env.step(2), 0.05)
            async with sessions.open() as env:
                assert env.env_id == 0
                await env.step(GO)
        assert pool.restarts.tolist() == [1]

    made = []

    def make():
        made.append(PatientEnv(0))
        return made[-1]

    with ThreadVectorEnv([make]) as pool:
        asyncio.run(run(pool))
        made[0].may_end.set()
    assert len(made) == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", CONCURRENT)
def test_a_cancelled_step_is_no_failure(place, mode, tmp_path):
    told = []

    async def run(pool):
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

    limit = {"max_restarts": 1, "on_restart": lambda *args: told.append(args)}
    options = {"on_error": mode, **(limit if mode == "restart" else {})}
    with blocking(place, tmp_path, 1, **options) as pool:
        asyncio.run(run(pool))
        assert not told


@pytest.mark.parametrize("place", QUICK)
def test_a_step_that_is_cancelled_in_the_turn_in_which_it_is_sent(place):
    async def run(pool):
        async with pool.sessions() as sessions:
            for k in range(20):
                async with sessions.open() as env:
                    task = asyncio.create_task(env.step(GO))
                    for _ in range(k % 4):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])

            async def conversation(_):
                async with sessions.open() as env:
                    while not env.done:
                        await env.step(GO)
                    return env.obs.tolist()[2]

            assert [one.value for one in await sessions.map(conversation, range(6))] == [4] * 6

    with PLACES[place](count_fns(2)) as pool:
        asyncio.run(run(pool))
        fine(pool)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("place", QUICK)
def test_other_calls_of_the_pool_are_refused(place):
    async def run(pool):
        async with pool.sessions() as sessions, sessions.open() as env:
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
            assert (await env.step(GO))[0].tolist()[2] == 1

    with PLACES[place](count_fns()) as pool:
        other = pool.sessions()
        asyncio.run(run(pool))
        fine(pool)


def test_envs_in_flight_are_refused(gates):
    async def run(pool):
        with pytest.raises(AlreadyPendingCallError, match=r"envs \[0\] are in flight"):
            await pool.sessions().__aenter__()
        gates[0].release()
        assert pool.recv()[0].tolist() == [[0, 0, 1]]
        async with pool.sessions():
            pass

    fns = [functools.partial(envs.GateEnv, i, gates[i], 1000) for i in range(2)]
    with PLACES["thread"](fns, wait_num=1) as pool:
        pool.reset()
        pool.send([BLOCK], [0])
        asyncio.run(run(pool))
        assert pool.is_async


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_autoreset_mode_is_refused(mode):
    text = "make the pool with autoreset_mode=None"
    with (
        DummyVectorEnv(count_fns(), autoreset_mode=mode) as pool,
        pytest.raises(ValueError, match=text),
    ):
        pool.sessions()


def test_a_wrapped_pool_is_refused():
    with DummyVectorEnv(count_fns()) as pool, pytest.raises(TypeError, match="wrap each env"):
        VectorEnvWrapper(pool).sessions()


def test_another_event_loop_is_refused():
    async def run(pool):
        async with pool.sessions() as sessions, sessions.open() as env:

            async def elsewhere():
                with pytest.raises(RuntimeError, match="another event loop"):
                    await env.step(GO)
                with pytest.raises(RuntimeError, match="another event loop"):
                    async with sessions.open():
                        pass

            await asyncio.to_thread(asyncio.run, elsewhere())
            await env.step(GO)

    with PLACES["thread"](count_fns()) as pool:
        asyncio.run(run(pool))


def test_a_second_async_with_is_refused():
    async def run(pool):
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
            async with sessions.open() as one, sessions.open() as two, sessions.open() as three:
                assert len({one.env_id, two.env_id, three.env_id}) == 3
        with pytest.raises(RuntimeError, match="call pool.sessions"):
            async with sessions:
                pass
        assert pool.reset()[0].shape[0] == 3

    with PLACES["thread"](count_fns()) as pool:
        asyncio.run(run(pool))


def test_what_a_session_refuses():
    async def run(pool):
        closed = pool.sessions()
        with pytest.raises(RuntimeError, match="async with"):
            async with closed.open():
                pass
        async with pool.sessions() as sessions:
            session = sessions.open()
            with pytest.raises(ResetNeeded, match="async with"):
                await session.step(GO)
            async with session as env:
                with pytest.raises(TypeError, match="timeout"):
                    await env.step(GO, timeout="3")
                for _ in range(4):
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
            async with sessions.open() as one, sessions.open() as two, sessions.open() as three:
                assert len({one.env_id, two.env_id, three.env_id}) == 3

    with PLACES["thread"](count_fns()) as pool:
        asyncio.run(run(pool))


# ---------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", CONCURRENT)
def test_at_the_end_all_that_wait_are_told(place, mode, tmp_path):
    async def run(pool):
        async def step():
            async with sessions.open() as env:
                await env.step(BLOCK)

        async with pool.sessions() as sessions:
            tasks = [asyncio.create_task(step()) for _ in range(4)]  # two of them wait for an env
            await until(lambda: blocks(tmp_path, 2))
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ClosedEnvironmentError)
        with pytest.raises(ClosedEnvironmentError):
            async with sessions.open():
                pass

    with blocking(place, tmp_path, on_error=mode) as pool:
        asyncio.run(run(pool))
        fine(pool)


@pytest.mark.parametrize("by_thread", [False, True])
@pytest.mark.parametrize("place", QUICK)
def test_a_pool_closed_meanwhile(place, by_thread):
    async def run(pool):
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

    pool = PLACES[place](count_fns(3, 10**9))
    asyncio.run(run(pool))
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


# ---------------------------------------------------------------------------------------- map


@pytest.mark.parametrize("place", QUICK)
def test_map_records_failures(place):
    async def run(pool):
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
        assert outcomes.errors[4] == "ArithmeticError: of the policy"
        assert isinstance(outcomes[6].error, asyncio.CancelledError)

    fns = [functools.partial(FailingEnv, tag) for tag in range(3)]
    with PLACES[place](fns) as pool:
        asyncio.run(run(pool))
        fine(pool)


def test_map_raises_the_first_failure():
    cancelled = []

    async def run(pool):
        async def conversation(task):
            async with sessions.open() as env:
                try:
                    if task == 1:
                        await until(lambda: len(found) > 0)
                        raise ArithmeticError("of the policy")
                    if task > 1:
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
            async with sessions.open() as env:
                await env.step(GO)

    found = []
    with PLACES["thread"](count_fns(3)) as pool:
        asyncio.run(run(pool))
    assert cancelled
    assert 1 not in cancelled


def test_map_takes_tasks_when_they_can_start():
    taken = []

    def tasks():
        for k in range(50):
            taken.append(k)
            yield k

    async def run(pool):
        async def conversation(task):
            assert len(taken) - len(ended) <= 4  # twice the number of envs
            async with sessions.open() as env:
                await env.step(GO)
            ended.append(task)

        async with pool.sessions() as sessions:
            assert len(await sessions.map(conversation, tasks())) == 50
            assert len(await sessions.map(conversation, [])) == 0
            with pytest.raises(ValueError, match="on_failure"):
                await sessions.map(conversation, [], on_failure="ignore")

    ended = []
    with PLACES["thread"](count_fns(2)) as pool:
        asyncio.run(run(pool))


def test_threads_end_with_the_pool():
    made, pool = patient(2)
    with pool:

        async def run():
            async def conversation(_):
                async with sessions.open() as env:
                    await env.step(1)

            async with pool.sessions() as sessions:
                tasks = [asyncio.create_task(conversation(k)) for k in range(2)]
                await until(lambda: all(env.waiting.is_set() for env in made))
            for one in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(one, ClosedEnvironmentError)

        asyncio.run(run())
        fine(pool)
        assert pool.restarts.tolist() == [0, 0]
    assert wait_until(lambda: not any("envpool_py" in t.name for t in threading.enumerate()))
