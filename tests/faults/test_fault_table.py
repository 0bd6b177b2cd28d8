"""The table of faults: where and how an env fails, what the caller gets, and the others go on."""

import functools
import os
import re
import time

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from envpool_py.worker import process
from tests.faults.helpers import (
    BROKEN,
    EACH,
    FNS,
    GOOD,
    NEW,
    SPACE,
    WHERE,
    goes_on,
    kill,
    mates_of,
    reset_pool,
    running,
)
from tests.support import broken, envs
from tests.support.helpers import wait_until
from tests.support.places import PLACES, slow
from tests.support.reference import HandStepped, check, check_reset

# ------------------------------------------------------------------------------- env raises

ORDINARY = ("value", "slot", "memory", "recursion", "os")
"""The exceptions of whose classes the error is an instance too."""

TEXT_ALONE = ("unpicklable", "two-argument")
"""Those that cannot reach another process as objects."""

RAISES = [
    *(("shmem-fork-packed", "step", name) for name in envs.RAISE),
    *(("dummy", "step", name) for name in ("value", "exit", "stop")),
    *((place, where, "value") for where in ("reset", "call") for place in EACH),
    *((place, "step", "os") for place in ("shmem-fork", "shmem-fork-caller")),
    *slow(*((place, "step", "unpicklable") for place in NEW)),
]


@pytest.mark.parametrize(("place", "where", "name"), RAISES)
def test_an_env_raises(place, where, name):
    original = envs.RAISE[name]()
    text = f"env 1: {where} raised {type(original).__name__}: {original}"
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        pids = pool.call("pid")
        with pytest.raises(EnvError, match=re.escape(text)) as caught:
            WHERE[where](pool, name)
        error, cause = caught.value, caught.value.__cause__
        assert not isinstance(error, WorkerDiedError)
        assert (error.env_ids, error.env_id, error.request) == ((1,), 1, where)
        assert "in _fault" in str(error), "the worker's traceback is in the text"
        assert isinstance(error, type(original)) == (name in ORDINARY)
        if name in TEXT_ALONE:
            assert "in _fault" in str(cause)
        else:
            assert (type(cause), str(cause)) == (type(original), str(original))
            assert getattr(cause, "code", None) == getattr(original, "code", None)
        if where == "step":
            for ask in (pool.step, pool.send):
                with pytest.raises(ResetNeeded, match="env 1"):
                    ask([""], [1])
            rows = {row.env_id: row for row in hand.step(["", ""], [0, 2])}
            batch = pool.recv()
            check(batch, [rows.pop(info["env_id"]) for info in batch[4]], SPACE)
            assert not rows
            check_reset(pool.reset([1]), hand.reset([1]), SPACE)
            check(pool.step(GOOD), hand.step(GOOD), SPACE)
        goes_on(pool, [0, 1, 2])
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", EACH)
def test_several_raise_at_once(place):
    with reset_pool(place) as pool:
        with pytest.raises(EnvError) as caught:
            pool.step(["value", "", "os"])
        assert sorted(caught.value.env_ids) == [0, 2]
        for text in ("env 0: step raised ValueError: boom", "env 2: step raised FileNotFoundError"):
            assert text in str(caught.value)
        assert "\nalso: env " in str(caught.value)
        assert pool.recv()[0].tolist() == [[1, 0, 1]]
        for i in (0, 2):
            with pytest.raises(ResetNeeded, match=f"env {i}"):
                pool.step([""], [i])
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("place", EACH)
def test_an_error_of_named_ids_leaves_the_others_alone(place):
    with reset_pool(place, wait_num=1) as pool:
        pool.send(["", "value", ""])
        assert pool.step(None, id=[2])[0].tolist() == [[2, 0, 1]]
        with pytest.raises(EnvError, match="env 1: step raised ValueError"):
            pool.step(None, id=[1])
        assert pool.step(None, id=[0])[0].tolist() == [[0, 0, 1]]
        pool.send_reset([2], options={"fault": "value"})
        with pytest.raises(EnvError, match="env 2: reset raised ValueError: boom"):
            pool.recv()
        pool.wait_num = 3
        goes_on(pool, [0, 1, 2])


def test_a_seed_that_an_env_refuses():
    def reset(_, row):
        return row if row[1]["seed"] is None else envs.raise_in_constructor("no seeds here")

    refuses = functools.partial(envs.ChangedEnv, 1, reset=reset)
    with PLACES["shmem-fork-packed"]([envs.CountEnv, refuses]) as pool:
        with pytest.raises(ValueError, match="env 1: seed raised ValueError: no seeds"):
            pool.seed(3)
        pool.reset()
        assert len(pool.step([0, 0])[1]) == 2


@pytest.mark.parametrize("place", ["shmem-fork-packed", *slow(NEW[1])])
def test_pools_inside_envs(place):
    with reset_pool(place) as pool:
        for kind in ("shmem", "dummy"):
            assert pool.apply(broken.inner_rows, kind, "", id=1) == [[[0, 0, 1], [0, 0, 1]]]
        with pytest.raises(EnvError, match=r"env 2: apply raised .*env 1: step raised") as caught:
            pool.apply(broken.inner_rows, "dummy", "value", id=2)
        assert caught.value.env_ids == (2,)


# ---------------------------------------------------------------------------- a process ends

# How the process of env 1 ends, and what the error says of it.
UNREADABLE = "was killed: it sent what cannot be read"
DEATHS = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "os._exit": "exited with code 37",
    "orphan": "exited with code 37",  # a child of the env still holds all descriptors
    "closefds": "exited with code 1",
    "idle": "was killed by SIGKILL",  # between two calls
    "corrupt": "exited with code 1",  # somebody writes into the pool's end of the connection
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
        mates = mates_of(pool, 1)
        any_mate = "|".join(map(str, mates))
        if name == "idle":
            kill(pool, 1)
        if name == "corrupt":
            os.write(pool.engine.hosts.of(1).stream.fd, b"what no pool would write, and more\n")
        began = time.process_time()
        with pytest.raises(WorkerDiedError, match=f"env ({any_mate}): {text}") as caught:
            WHERE[where](pool, f"orphan:{path}" if name == "orphan" else name)
        if name == "disconnect":  # it is waited for without spinning
            assert time.process_time() - began < process.DISCONNECTED_FOR / 2
        assert set(caught.value.env_ids) == set(mates)
        assert name != "orphan" or wait_until(lambda: not running(int(path.read_text())))
        pool.cancel()
        for i in mates:
            for ask in (
                lambda i: pool.step([""], [i]),
                lambda i: pool.reset([i]),
                lambda i: pool.get_env_attr("tag", [i]),
                lambda i: pool.set_env_attr("tag", 3, [i]),
                lambda i: pool.call("counts", id=[i]),
            ):
                with pytest.raises(WorkerDiedError, match=f"env {i}: {text}"):
                    ask(i)
        goes_on(pool, [i for i in range(3) if i not in mates])
        pool.restart([1])
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
def test_the_pipe_that_all_processes_share_is_corrupt():
    """Nobody can tell who wrote, or whose row was lost: every env in flight gets the error."""
    text = "was killed: something wrote into the pipe of the results"
    with reset_pool("shmem-fork", BROKEN) as pool:
        with pytest.raises(WorkerDiedError, match=text):
            pool.step(["", "results"], [0, 1])
        for i in (0, 1):
            with pytest.raises(WorkerDiedError, match=f"env {i}: the worker process {text}"):
                pool.reset([i])
        goes_on(pool, [2])
        pool.restart([0, 1])
        goes_on(pool, [0, 1, 2])


# --------------------------------------------------------------------------- what passes


def test_large_actions_and_infos_at_once():
    megabytes = [np.full(8 << 20, tag, np.uint8) for tag in range(3)]
    with reset_pool("shmem-fork-packed", BROKEN) as pool:
        for _ in range(2):
            info = pool.step(megabytes)[4]
            for tag in range(3):
                assert np.array_equal(info[tag]["array"], megabytes[tag] + tag)
