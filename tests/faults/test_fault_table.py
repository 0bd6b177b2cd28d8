"""The table of faults: where and how an env fails, what the caller gets, and the others go on."""

import asyncio
import functools
import os
import re
import signal
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.env.heartbeat import HEARTBEAT, Heartbeat
from envpool_py.env.request import ASK, pack_token
from envpool_py.errors import PACKAGE_FOLDER
from envpool_py.worker import process_host, watchdog
from envpool_py.worker.watchdog import Watchdog
from tests.faults import helpers
from tests.faults.helpers import (
    BROKEN,
    EACH,
    FNS,
    GOOD,
    NEW,
    await_hang,
    expire,
    goes_on,
    kill,
    reset_pool,
)
from tests.sessions.helpers import time_passes
from tests.support import broken, envs
from tests.support.helpers import wait_until
from tests.support.places import PLACES, paired, slow

# The exceptions of whose classes the error is an instance too, and those that arrive as text only.
ORDINARY = ("value", "empty", "slot", "memory", "recursion", "os")
TEXT_ALONE = ("unpicklable", "two-argument")

RAISES = [
    *(("shmem-fork-packed", "step", name) for name in envs.RAISE),
    *(("dummy", "step", name) for name in ("value", "exit", "stop")),
    *paired(EACH, ["reset", "call"], ["value"]),
    ("thread", "step", "value"),
    *((place, "step", "os") for place in ("shmem-fork", "shmem-fork-caller")),
    *slow(*((place, "step", "unpicklable") for place in NEW)),
]


@pytest.mark.parametrize(("place", "where", "name"), RAISES)
def test_an_env_raises(place, where, name):
    original = envs.RAISE[name]()
    text = f"env 1: {where} raised {type(original).__name__}: {original}"
    with reset_pool(place) as pool:
        pids = pool.call("pid")
        with pytest.raises(EnvError, match=re.escape(text)) as caught:
            helpers.WHERE[where](pool, name)
        error, cause = caught.value, caught.value.__cause__
        assert not isinstance(error, WorkerDiedError)
        assert (error.env_ids, error.env_id, error.request) == ((1,), 1, where)
        assert "in _fault" in error.text, "the worker's traceback is in the text"
        shown = "".join(traceback.format_exception(error))
        assert shown.count("in _fault") == 1
        assert shown.count(f'File "{PACKAGE_FOLDER}') == 1, (
            "the call, and no other frame of the package"
        )
        assert len(shown.splitlines()) < 40
        assert re.search(r"\(envs.py:\d+\)$", error.message.partition("\n")[0])
        assert isinstance(error, type(original)) == (name in ORDINARY)
        if name in TEXT_ALONE:
            assert cause is None
        else:
            assert (type(cause), str(cause)) == (type(original), str(original))
            assert getattr(cause, "code", None) == getattr(original, "code", None)
        if where == "step":
            for ask in (pool.step, pool.send):
                with pytest.raises(ResetNeeded, match="env 1"):
                    ask([""], [1])
            assert sorted(pool.recv()[0].tolist()) == [[0, 0, 1], [2, 0, 1]]
            assert pool.reset([1])[0].tolist() == [[1, 1, 0]]
            assert pool.step(GOOD)[0].tolist() == [[0, 0, 2], [1, 1, 1], [2, 0, 2]]
        goes_on(pool, [0, 1, 2])
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", EACH)
def test_several_raise_at_once_or_one_after_the_other(place):
    with reset_pool(place) as pool:
        with pytest.raises(EnvError, match="\nalso: env ") as caught:
            pool.step(["value", "", "os"])
        assert sorted(caught.value.env_ids) == [0, 2]
        for text in ("env 0: step raised ValueError: boom", "env 2: step raised FileNotFoundError"):
            assert text in str(caught.value)
        assert pool.recv()[0].tolist() == [[1, 0, 1]]
        pool.reset()
        pool.send(["", "value", ""])
        assert pool.step(None, id=[2])[0].tolist() == [[2, 1, 1]]
        with pytest.raises(EnvError, match="env 1: step raised ValueError"):
            pool.step(None, id=[1])
        assert pool.step(None, id=[0])[0].tolist() == [[0, 1, 1]]
        pool.send_reset([2], options={"fault": "value"})
        with pytest.raises(EnvError, match="env 2: reset raised ValueError: boom"):
            pool.recv()
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("place", ["shmem-fork-packed", *slow(NEW[1])])
def test_pools_inside_envs(place):
    with reset_pool(place) as pool:
        for kind in ("shmem", "dummy"):
            assert pool.apply(broken.inner_rows, kind, "", id=1) == [[[0, 0, 1], [0, 0, 1]]]
        with pytest.raises(EnvError, match=r"env 2: apply raised .*env 1: step raised") as caught:
            pool.apply(broken.inner_rows, "dummy", "value", id=2)
        assert caught.value.env_ids == (2,)


# How the process of env 1 ends, and what the error says of it.
UNREADABLE = "was killed: it sent what cannot be read"
DEATHS = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "os._exit": "exited with code 37",
    "orphan": "exited with code 37",  # a child of the env still holds all descriptors
    "closefds": "exited with code 1",
    "idle": "was killed by SIGKILL",  # between two calls
    # Somebody writes into the pool's end of the connection.
    "corrupt": "ended by an exception between requests: ValueError: no message has kind",
    "disconnect": "was killed: it closed its connection",  # ... and hangs
    "rubbish": UNREADABLE,
    "unreadable": UNREADABLE,
    "cut": "was killed by SIGKILL",
}
DIES = [
    *(("shmem-fork", "step", name) for name in list(DEATHS)[:7]),
    *slow(*(("shmem-fork", "step", name) for name in list(DEATHS)[7:])),
    *(("shmem-fork", where, "SIGKILL") for where in ("reset", "call")),
    ("shmem-fork", "call", "idle"),
    *(("shmem-fork-packed", where, "idle") for where in ("step", "call")),
    *((place, "step", "SIGKILL") for place in ("shmem-fork-packed", "shmem-fork-caller")),
    *slow(*((place, "step", "orphan") for place in NEW)),
]


@pytest.mark.parametrize(("place", "where", "name"), DIES)
def test_a_process_ends(place, where, name, tmp_path):
    path = tmp_path / "pid"
    text = f"the worker process {DEATHS[name]}"
    with reset_pool(place, BROKEN) as pool:
        mates = helpers.mates_of(pool, 1)
        any_mate = "|".join(map(str, mates))
        if name == "idle":
            kill(pool, 1)
        if name == "corrupt":
            os.write(pool.engine.hosts.of(1).stream.fd, b"what no pool would write, and more\n")
        began = time.process_time()
        with pytest.raises(WorkerDiedError, match=f"env ({any_mate}): {text}") as caught:
            helpers.WHERE[where](pool, f"orphan:{path}" if name == "orphan" else name)
        if name == "disconnect":  # it is waited for without spinning
            assert time.process_time() - began < process_host.ENDS_WITHIN / 2
        assert set(caught.value.env_ids) == set(mates)
        assert name != "orphan" or wait_until(lambda: not helpers.running(int(path.read_text())))
        pool.cancel()
        for i in mates:
            asks = [("step", [""], [i]), ("set_env_attr", "tag", 3, [i])]
            for ask, *arguments in [*asks, ("get_env_attr", "tag", [i])]:
                with pytest.raises(WorkerDiedError, match=f"env {i}: {text}"):
                    getattr(pool, ask)(*arguments)
        goes_on(pool, [i for i in range(3) if i not in mates])
        assert pool.restarts.tolist() == [0, 0, 0]
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]], "it starts the process again"
        assert pool.restarts.tolist() == [int(i in mates) for i in range(3)]
        goes_on(pool, [0, 1, 2])


def test_what_is_written_into_the_pipe_loses_no_row_of_this_process():
    with reset_pool("shmem-fork-caller", autoreset_mode="same_step", wait_num=1) as pool:
        here = pool.engine.hosts.local[0].ids[0]
        pool.send([0], [here])
        flight, poller = pool.engine.flight, pool.engine.hosts.supervisor.poller
        flight.advance(1, 0.0, None)  # its row has arrived
        os.write(poller.write_end, b"no token")
        assert poller.collect(flight.arrivals.token_chunks)
        batch = pool.recv()
        assert [info["env_id"] for info in batch[4]] == [here]


def test_a_reply_that_nobody_waits_for_any_more_is_dropped():
    with reset_pool("shmem-fork") as pool:
        pids = pool.call("pid")
        token = int(pool.engine.states.tokens[1]) | ASK
        os.write(pool.engine.hosts.supervisor.poller.write_end, pack_token(token))
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
        assert pool.call("pid") == pids


@pytest.mark.slow
def test_the_pipe_that_all_processes_share_is_corrupt():
    """Nobody can tell who wrote, or whose row was lost: every env in flight gets the error."""
    text = "was killed: something wrote into the pipe of the results"
    with reset_pool("shmem-fork", BROKEN) as pool:
        with pytest.raises(WorkerDiedError, match=text):
            pool.step(["", "results"], [0, 1])
        for i in (0, 1):
            with pytest.raises(WorkerDiedError, match=f"env {i}: the worker process {text}"):
                pool.step([""], [i])
        goes_on(pool, [2])
        pool.restart([0, 1])
        goes_on(pool, [0, 1, 2])


def test_large_actions_and_infos_at_once():
    megabytes = [np.full(8 << 20, tag, np.uint8) for tag in range(3)]
    with reset_pool("shmem-fork-packed", BROKEN) as pool:
        for _ in range(2):
            info = pool.step(megabytes)[4]
            for tag in range(3):
                assert np.array_equal(info[tag]["array"], megabytes[tag] + tag)


# ------------------------------------------------------------------------------ step_timeout

# How an env hangs, and what its stack has in it.
HANGS = {
    "hang": ("end", "in _fault"),
    "gil": ("end", "in do_gil"),
    "stop": ("end", "in do_stop"),
    "frozen": ("begin", ""),  # its process, before the request comes: no code of the env runs
}


@pytest.mark.parametrize(
    ("place", "where", "name"),
    [
        ("shmem-fork", "step", "hang"),
        *slow(*(("shmem-fork", "step", name) for name in HANGS if name != "hang")),
        *slow(("shmem-fork", "reset", "hang")),
        *slow(*((place, "step", "hang") for place in NEW)),
    ],
)
def test_an_env_that_hangs_is_named_with_its_stack(place, where, name):
    did, stack = HANGS[name]
    with reset_pool(place, BROKEN, step_timeout=60.0) as pool:
        mates = helpers.mates_of(pool, 1)
        pid = pool.call("pid", id=[1])[0]
        if name == "frozen":
            os.kill(pid, signal.SIGSTOP)
        if where == "step":
            pool.send(["", name, ""])
        else:
            pool.send_reset(options=[None, {"fault": name}, None])
        if name == "frozen":
            assert pool.step(None, [0, 2])[0].shape == (2, 3)
        else:
            await_hang(pool, 1, {0, 2} - {*mates})
        expire(pool)
        text = f"env 1: did not {did} its request within step_timeout=60.0 seconds"
        with pytest.raises(EnvTimeoutError, match=text) as got:
            pool.recv()
        error = got.value
        assert error.env_id == 1
        assert {*error.env_ids} <= {*mates}
        assert isinstance(error, EnvError)
        assert ("ost recent call first" in str(error)) == bool(stack)
        assert stack in str(error)
        assert not helpers.running(pid)
        others = [i for i in range(3) if i not in mates]
        if where == "step" and name != "frozen":  # the rows of the others are kept
            assert error.request == "step"
            assert {*others} <= {info["env_id"] for info in pool.drain()[4]} <= {0, 2}
        with pytest.raises(WorkerDiedError, match=f"env 1: .* did not {did} its request"):
            pool.step([""], [1])
        goes_on(pool, others)
        pool.reset([1])  # starts the process again
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("by", ["step_timeout", "session"])
def test_envs_that_hang_together_are_read_and_ended_together(by, monkeypatch):
    """One grace period for all of them."""
    periods, request = [], watchdog.Stacks.request

    def note(requested, quiet):
        periods.append(len(requested))
        return request(requested, quiet)

    async def in_sessions():
        async with pool.sessions() as sessions:
            opened = [await sessions.open() for _ in range(3)]
            steps = [asyncio.create_task(one.step("hang", timeout=60)) for one in opened]
            await time_passes(hang)
            return await asyncio.gather(*steps, return_exceptions=True)

    def hang():
        pids = [worker.process.pid for worker in pool.workers]
        begun = pool.engine.block.heartbeats["env"].tolist() == [1, 2, 3]
        return begun and [*map(helpers.state_of, pids)] == ["S"] * 3

    with PLACES["shmem-fork"](FNS, step_timeout=60.0) as pool:
        monkeypatch.setattr(watchdog.Stacks, "request", staticmethod(note))
        if by == "session":
            errors = asyncio.run(in_sessions())
        else:
            pool.reset()
            pool.send(["hang"] * 3)
            assert wait_until(hang)
            expire(pool)
            with pytest.raises(EnvTimeoutError) as caught:
                pool.recv()
            errors = [caught.value]
        assert periods == [3]
        assert all("in _fault" in str(error) for error in errors)


@pytest.mark.slow
async def test_close_does_not_warn_of_a_process_that_is_being_killed(monkeypatch):
    """The error of its env was raised before."""
    monkeypatch.setattr("envpool_py.worker.supervisor.GRACE", 2.0)
    with PLACES["shmem-fork"](BROKEN) as pool, monkeypatch.context() as patch:
        patch.setattr(pool.engine.hosts.of(0), "_kill", lambda: None)  # it takes a while
        async with pool.sessions() as sessions, sessions.open() as env:
            with pytest.raises(EnvTimeoutError):
                await env.step("hang", timeout=0.1)


@pytest.mark.slow
def test_a_request_that_was_cancelled_may_still_be_the_one_that_hangs():
    with reset_pool("shmem-fork", BROKEN, step_timeout=60.0) as pool:
        pool.send(["", "hang", ""])
        await_hang(pool, 1, [0, 2])
        pool.cancel()
        pool.send_reset([1])
        expire(pool)
        with pytest.raises(EnvTimeoutError, match="env 1: did not end"):
            pool.recv()
        goes_on(pool, [0, 2])


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 2])
def test_the_env_that_hangs_comes_before_those_that_die_with_it(stuck, gates):
    """The actions go through the shared memory: the rows of a process come all at once."""
    fns = [functools.partial(envs.GateEnv, tag, gates[tag], 100) for tag in range(3)]
    with reset_pool("shmem-fork", fns, num_processes=1, step_timeout=60.0) as pool:
        pool.send([envs.BLOCK if i == stuck else 0 for i in range(3)])
        await_hang(pool, stuck)
        expire(pool)
        with pytest.raises(EnvTimeoutError, match=f"env {stuck}: did not end(.|\n)*in wait") as got:
            pool.recv()
        assert got.value.env_id == stuck
        assert set(got.value.env_ids) == {0, 1, 2}
        pool.restart()
        assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]


@pytest.mark.slow
def test_a_row_that_is_there_is_kept():
    options = {"step_timeout": 60.0, "num_processes": 1, "wait_num": 1}
    with reset_pool("shmem-fork", BROKEN, **options) as pool:
        pool.send(["", "gil", ""])
        assert [info["env_id"] for info in pool.recv()[4]] == [0]
        await_hang(pool, 1)
        expire(pool)
        with pytest.raises(EnvTimeoutError, match="env 1: "):
            pool.drain()
        for i in (0, 2):  # they have died with their process
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*env 1 did not end its request"):
                pool.step([""], [i])


@pytest.mark.parametrize("mode", helpers.MODES)
def test_the_time_until_an_env_has_its_turn_does_not_count(mode, gates):
    """Four envs of one process: the heartbeat names each in its turn, with when that began.

    In a step, or in the automatic reset after it.
    """
    fns = [functools.partial(envs.GateEnv, tag, gates[tag], 1) for tag in range(4)]
    options = {"step_timeout": 60.0, "num_processes": 1, "autoreset_mode": mode}
    options["reset_fn"] = lambda _, episode: (None, {"block": episode == 1})
    with reset_pool("shmem-fork", fns, **options) as pool:
        heartbeat = pool.engine.block.heartbeats[0]
        if mode == "next_step":
            pool.step([0] * 4)
        released = time.monotonic()
        pool.send([envs.BLOCK if mode is None else 0] * 4)
        for i, gate in enumerate(gates):
            with gate.held():
                assert heartbeat["env"] == i + 1
                assert released < heartbeat["since"] < time.monotonic()
                released = time.monotonic()
        assert pool.drain()[0][:, 2].tolist() == [int(mode is None)] * 4


def test_when_a_process_is_overdue(monkeypatch):
    """By a clock and heartbeats of the test's own; every look comes 1.1 limits after the last."""

    def look():
        nonlocal now
        now += 1.1
        return [tuple(overdue) for overdue in dog.find_overdue(lambda: sent)]

    now, sent = 100.0, {0: 1, 1: 1}
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("envpool_py.worker.watchdog.time", clock)
    monkeypatch.setattr("envpool_py.env.heartbeat.time", clock)
    heartbeats = np.zeros(2, HEARTBEAT)
    dog = Watchdog(1.0, heartbeats)
    beats = [Heartbeat(row, limited=True) for row in heartbeats[:, None]]
    for beat in beats:
        beat.count(1)
    assert look() == []  # both are idle, with nothing to read
    beats[0].begin(4)
    now += 0.5
    assert dog.find_overdue(lambda: sent) == []
    assert look() == [(0, 4)]
    dog.forget(0)  # its process is started again
    assert look() == []
    beats[0].begin(4, sets_up=True)
    assert look() == look() == []
    for done in (1, 2):
        beats[1].count(done)
        sent[1] = 3  # a message that process 1 does not read at first
        assert look() == []
        assert look() == [(1, None)]
    del sent[1]  # it has ended
    assert look() == look() == []
