"""A fault in one env: its error, the rows of the others, and elapsed steps after a reset."""

import contextlib

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, WorkerDiedError, envpool
from tests.envpool_face.envs import FAULTS, SeededEnv

ERRORS = {"value": (ValueError, ResetNeeded), "SIGKILL": (WorkerDiedError, WorkerDiedError)}
EACH = [(fault, size) for fault in FAULTS for size in (None, 2)]


@contextlib.contextmanager
def make(fault, size, **options):
    """Make a pool of four envs, each in its own process, that step; env 1 has a fault."""
    sizes = {"num_envs": 4, "batch_size": size, "num_threads": 4}
    pool = envpool.make(SeededEnv, **sizes, seed=0, options={"context": "fork", **options})
    with contextlib.closing(pool):
        pool.reset(range(4))
        pool.send(np.array([0, fault, 0, 0]))
        yield pool


def collect(pool):
    """Fetch until nothing is in flight; return what was raised, and one row per env."""
    raised, rows = [], {}
    while pool.pool.waiting_id:
        try:
            obs, reward, terminated, truncated, info = pool.recv()
        except EnvError as error:
            raised.append(error)
            continue
        told = info.get("_env_error", np.zeros(len(obs), bool))
        for k, i in enumerate(info["env_id"].tolist()):
            assert i not in rows
            assert obs[k][0] == i
            rows[i] = info["elapsed_step"][k], reward[k], terminated[k], truncated[k], told[k]
    return raised, rows


@pytest.mark.parametrize(("fault", "size"), EACH)
def test_the_fault_is_raised_once_and_a_reset_makes_all_good(fault, size):
    with make(fault, size) as pool:
        [error], rows = collect(pool)
        first, later = ERRORS[FAULTS[fault]]
        assert (error.env_ids, isinstance(error, first)) == ((1,), True)
        assert {i: row[0] for i, row in rows.items()} == {0: 1, 2: 1, 3: 1}
        with pytest.raises(later):
            pool.send(np.zeros(1), [1])
        _, info = pool.reset([1], seed=[1])
        assert (info["env_id"].tolist(), info["elapsed_step"].tolist()) == ([1], [0])
        pool.send(np.zeros(4))
        raised, rows = collect(pool)
        assert raised == []
        assert {i: row[0] for i, row in rows.items()} == {0: 2, 1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize("size", [None, 2])
def test_a_restarted_env_is_a_truncated_row_and_then_a_reset(size):
    options = {"on_error": "restart", "restart_backoff": 0, "reset_fn": lambda i, _: (i, None)}
    with make(3, size, **options) as pool:
        for mine, other in (
            ((1, 0, False, True, True), (1, 2001, False, False, False)),
            ((0, 0, False, False, False), (2, 2002, False, False, False)),
        ):
            raised, rows = collect(pool)
            assert (raised, rows[1], rows[2]) == ([], mine, other)
            pool.send(np.zeros(4))
