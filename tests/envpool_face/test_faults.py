"""A fault in one env: its error, the rows of the others, and what the env does after a reset."""

import functools

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError, envpool
from tests.envpool_face.by_hand import DIE, HANG, RAISE, WAIT, SeededEnv

FAULTS = {RAISE: LookupError, DIE: WorkerDiedError, HANG: EnvTimeoutError}


@pytest.fixture(params=[None, 2], ids=["sync", "partial"])
def make(request, gates):
    """Make a pool of four envs, each in a process of its own; with `action`, env 1 takes it."""
    made = []

    def make(action, **options):
        if action == HANG:
            options["step_timeout"] = 0.2
        pool = envpool.make(
            functools.partial(SeededEnv, gates),
            num_envs=4,
            batch_size=request.param,
            num_threads=4,
            seed=0,
            pool_options={"context": "fork", **options},
        )
        made.append(pool)
        pool.reset(range(4))
        pool.send(np.array([0, action, 0, 0]))
        return pool

    yield make
    for pool in made:
        pool.close()


def collect(pool):
    """Fetch until nothing is in flight: one row per env, and what was raised."""
    rows = {}
    errors = []
    while pool.pool.waiting_id or pool._kept is not None:
        try:
            obs, reward, terminated, truncated, info = pool.recv()
        except EnvError as error:
            errors.append(error)
            continue
        told = info.get("_env_error", np.zeros(len(obs), bool))
        for k, i in enumerate(info["env_id"].tolist()):
            assert i not in rows
            assert obs[k][0] == i
            rows[i] = info["elapsed_step"][k], reward[k], terminated[k], truncated[k], told[k]
    return rows, errors


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_raised_once_and_a_reset_makes_all_good(make, fault):
    pool = make(fault)
    rows, errors = collect(pool)
    assert [error.env_ids for error in errors] == [(1,)]
    assert isinstance(errors[0], FAULTS[fault])
    assert {i: row[0] for i, row in rows.items()} == {0: 1, 2: 1, 3: 1}
    if fault != RAISE:
        with pytest.raises(WorkerDiedError):
            pool.reset([1])
        pool.pool.restart([1])
    with pytest.raises(ResetNeeded):
        pool.send(np.zeros(1), [1])
    _, info = pool.reset([1])
    assert (info["env_id"].tolist(), info["elapsed_step"].tolist()) == ([1], [0])
    if fault != RAISE:  # a new env, which knows no tag: the seed of make was for the first
        pool.pool.set_env_attr("tag", 1, id=[1])
    pool.send(np.zeros(4))
    rows, errors = collect(pool)
    assert errors == []
    assert {i: row[0] for i, row in rows.items()} == {0: 2, 1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restarted_env_is_a_truncated_row_and_then_a_reset(make, fault):
    pool = make(fault, on_error="restart", restart_backoff=0, reset_fn=lambda i, _: (i, None))
    for mine, other in (
        ((1, 0, False, True, True), (1, 2001, False, False, False)),
        ((0, 0, False, False, False), (2, 2002, False, False, False)),
    ):
        rows, errors = collect(pool)
        assert (rows[1], rows[2], errors) == (mine, other, [])
        pool.send(np.zeros(4))


def test_after_a_timeout_a_batch_is_smaller(make, gates):
    pool = make(0, timeout=0.1)
    collect(pool)
    for again in (True, False):
        pool.send(np.array([0, WAIT]), [0, 1])
        assert pool.recv()[4]["env_id"].tolist() == [0]
        gates[1].release()
        if again:
            assert pool.recv()[4]["env_id"].tolist() == [1]
    obs, info = pool.reset([1])  # its late row is dropped
    assert info["elapsed_step"].tolist() == [0]
    assert obs.tolist() == [[1, 1, 0]]
    with pytest.raises(ValueError, match="no env is in flight"):
        pool.recv()
