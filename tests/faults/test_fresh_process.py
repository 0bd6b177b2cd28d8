"""``fresh_process=True``: an env is recreated in a new process; and what a new process inherits."""

import functools
import os
import sys
import threading
import time
import types

import numpy as np
import pytest

from envpool_py import EnvError, ShmemVectorEnv
from envpool_py.worker import supervisor
from tests.faults.helpers import FNS, GOOD, MODES, RESTART, goes_on, raising
from tests.support import envs
from tests.support.helpers import children, wait_until
from tests.support.places import paired

pytestmark = pytest.mark.slow
FRESH = {"context": "fork", "fresh_process": True}
SHORT = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]


@pytest.mark.parametrize("by", [*MODES, "hand", "hand, restart"])
def test_after_an_exception_and_by_hand(by):
    by_hand = str(by).startswith("hand")
    options = {"autoreset_mode": None if by_hand else by, **({} if by == "hand" else RESTART)}
    with ShmemVectorEnv(FNS, **FRESH, **options) as pool:
        pool.reset()
        pids = pool.call("pid")
        if by_hand:
            pool.restart([0, 2])
        else:
            assert pool.step(["value", "", "value"])[3].tolist() == [True, False, True]
        found = pool.call("pid")
        assert [new == old for new, old in zip(found, pids, strict=True)] == [False, True, False]
        assert not {pids[0], pids[2]} & children()
        assert pool.restarts.tolist() == [1, 0, 1]
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize(("mode", "on_error"), paired([None, "next_step"], ["raise", "restart"]))
def test_recycled_envs_give_the_rows_of_those_that_are_recycled_in_their_process(mode, on_error):
    rows, pids = {}, {}
    for fresh in (False, True):
        options = {"autoreset_mode": mode, "recycle": 2, "on_error": on_error}
        with ShmemVectorEnv(SHORT, **{**FRESH, "fresh_process": fresh}, **options) as pool:
            rows[fresh] = [pool.reset(seed=3)[0].tolist()]
            pids[fresh] = {*pool.apply(lambda _: os.getpid())}
            for k in range(9):
                obs, reward, terminated, truncated, infos = pool.step(np.full(3, k))
                rows[fresh].append([obs.tolist(), reward.tolist(), terminated.tolist()])
                rows[fresh].append([truncated.tolist(), repr(infos.tolist())])
                if mode is None and (terminated | truncated).any():
                    rows[fresh].append(pool.reset()[0].tolist())
                pids[fresh] |= {*pool.apply(lambda _: os.getpid())}
            assert pool.restarts.tolist() == [0, 0, 0]
    assert rows[True] == rows[False]
    assert len(pids[False]) == 3
    assert len(pids[True]) > 3


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_reset_that_is_cancelled_while_its_env_is_recycled(on_error):
    slowly = functools.partial(time.sleep, 0.5)
    fns = [functools.partial(envs.ClosingEnv, tag, slowly) for tag in range(3)]
    with ShmemVectorEnv(fns, recycle=1, on_error=on_error, **FRESH) as pool:
        pool.reset(seed=3)
        pids = pool.apply(lambda _: os.getpid())
        pool.timeout, pool.strict_timeout = 1e-3, True
        pool.send_reset([1])
        while 1 not in pool.engine.recovery.recreating:
            assert len(pool.recv()[1]) == 0
        pool.cancel([1])
        pool.timeout = None
        obs, infos = pool.reset([1])
        assert obs[0, ::2].tolist() == [1, 0]
        assert "env_error" not in infos[0]
        assert pool.apply(lambda _: os.getpid())[1] != pids[1]
        assert pool.step(GOOD)[0][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", [None, "next_step"])
def test_a_request_that_is_cancelled_after_its_env_was_found_due(mode):
    def arrived():
        chunks = pool.engine.arrivals.token_chunks
        pool.engine.hosts.supervisor.poller.collect(chunks)
        return bool(chunks)

    with ShmemVectorEnv(SHORT, autoreset_mode=mode, recycle=1, **FRESH, **RESTART) as pool:
        pool.reset()
        pids = pool.apply(lambda _: os.getpid())
        pool.step([0, 0, 0])
        pool.step([0], [0])
        if mode is None:
            pool.send_reset([0])
        else:
            pool.send([0], [0])
        wait_until(arrived)
        pool.cancel([0])
        obs, infos = pool.reset([0], seed=5)
        assert obs[0, ::2].tolist() == [0, 0]
        assert infos[0]["seed"] == 5
        assert not infos[0].keys() & {"env_error", "final_obs", "final_info"}
        assert pool.apply(lambda _: os.getpid())[0] != pids[0]
        assert pool.step([0], [0])[0][0, ::2].tolist() == [0, 1]
        assert pool.restarts.tolist() == [0, 0, 0]


hang = functools.partial(time.sleep, 1000)
NOT_CLOSED = "could not be closed: the worker process "


@pytest.mark.parametrize(
    ("close", "text", "by"),
    [
        (hang, f"{NOT_CLOSED}was killed: close has not ended in time", "recycle"),
        (
            raising(ValueError("not closed")),
            r"close raised ValueError: not closed \(helpers.py:\d+\)",
            "hand",
        ),
        (functools.partial(os._exit, 3), f"{NOT_CLOSED}exited with code 3", "exception"),
        (os.abort, r"could not .* was killed by SIGABRT \(envs.py:\d+\)", "hand"),
    ],
)
def test_a_close_that_fails_is_named(close, text, by, tmp_path):
    def make():
        is_first = envs.count_call(tmp_path / "made") == 1
        return envs.ClosingEnv(0, *[close] * is_first)

    options = {**FRESH, **RESTART, "recycle": 1 if by == "recycle" else None, "step_timeout": 1}
    with ShmemVectorEnv([make], **options) as pool:

        def recreate():
            if by == "exception":
                pool.step(["value"])
            elif by == "hand":
                pool.restart([0])
            pool.reset()

        pool.reset()
        (pid,) = pool.call("pid")
        with pytest.raises(RuntimeWarning, match=f"env 0: {text}.*; the env is recreated"):
            recreate()
        pool.reset()
        assert pool.call("pid") != [pid]
        assert pool.step([""])[0].tolist() == [[0, 0, 1]]


def test_a_pool_that_is_closed_while_a_recycled_env_closes(monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE", 0.3)
    fns, options = [functools.partial(envs.ClosingEnv, 0, hang)], {"timeout": 0.01, **FRESH}
    with ShmemVectorEnv(fns, recycle=1, strict_timeout=True, **options) as pool:
        pool.reset()
        pool.send_reset()
        while pool.engine.hosts.supervisor.hosts[0].exit is None:  # not asked to close yet
            assert len(pool.recv()[1]) == 0
        with pytest.warns(RuntimeWarning, match="was killed: it has not ended after 0.3 seconds"):
            pool.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_processes": 2}, "one env per process"),
        ({"caller_steps": True}, "fresh_process: .*; pass caller_steps=False"),
        (
            {"autoreset_mode": "same_step", "recycle": 9},
            "recycle: not possible .* pass autoreset_mode='next_step'",
        ),
    ],
)
def test_where_it_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        ShmemVectorEnv(FNS, **options, **FRESH)


CUDA = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
"""In place of torch, in a program that has initialised CUDA."""


def test_a_restart_does_not_inherit_cuda(monkeypatch, caplog):
    with ShmemVectorEnv(FNS[:2], context="fork", **RESTART) as pool:
        pool.reset()
        monkeypatch.setitem(sys.modules, "torch", CUDA)
        for _ in range(2):
            assert pool.step(["os._exit", ""])[3].tolist() == [True, False]
            assert pool.apply(lambda _: "torch" in sys.modules, id=[0]) == [False]
            pool.reset([0])
        goes_on(pool, [0, 1])
    texts = [record.getMessage() for record in caplog.records]
    assert sum("forkserver" in text and "CUDA" in text for text in texts) == 1


def test_an_env_fn_that_cannot_be_pickled_then_says_what_to_do(monkeypatch):
    lock = threading.Lock()
    fns = [lambda: (lock, envs.FaultEnv(0))[1], FNS[1]]
    with ShmemVectorEnv(fns, context="fork", max_restarts=1, **RESTART) as pool:
        pool.reset()
        monkeypatch.setitem(sys.modules, "torch", CUDA)
        with pytest.raises(EnvError, match="env 0.* cannot be pickled: .*inside env_fn"):
            pool.step(["os._exit", ""])
        goes_on(pool, [1])
