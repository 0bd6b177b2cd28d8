"""A fault in one env: its error, the rows of the others, and what the env does after a reset."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError, envpool
from tests.envpool_face.by_hand import SeededFaultEnv, SeededGateEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import envs

FAULTS = {"exception": (1, LookupError), "killed": (2, WorkerDiedError)}
FAULTS["hangs"] = (3, EnvTimeoutError)
SIZES = {"sync": None, "partial": 2}


@pytest.fixture(params=SIZES)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a pool of four envs, each in a process of its own."""
    made = []

    def make(env_fn: Any = SeededFaultEnv, **options: Any) -> Any:
        size = SIZES[request.param]
        given = {"num_envs": 4, "batch_size": size, "num_threads": 4, "seed": 0}
        made.append(envpool.make(env_fn, pool_options={"context": "fork", **options}, **given))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def collect(pool: Any) -> tuple[dict[int, tuple], list[EnvError]]:
    """Fetch until nothing is in flight: one row per env, and what was raised."""
    rows: dict[int, tuple] = {}
    errors: list[EnvError] = []
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
            elapsed = info["elapsed_step"][k]
            rows[i] = elapsed, reward[k], terminated[k], truncated[k], told[k]
    return rows, errors


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_raised_once_and_a_reset_makes_all_good(make: Any, fault: str) -> None:
    action, kind = FAULTS[fault]
    pool = make(step_timeout=0.2) if fault == "hangs" else make()
    pool.reset(range(4))
    pool.send(np.array([0, action, 0, 0]))
    rows, errors = collect(pool)
    assert [error.env_ids for error in errors] == [(1,)]
    assert isinstance(errors[0], kind)
    assert {i: row[0] for i, row in rows.items()} == {0: 1, 2: 1, 3: 1}
    if fault != "exception":
        with pytest.raises(WorkerDiedError):
            pool.reset([1])
        pool.pool.restart([1])
    with pytest.raises(ResetNeeded):
        pool.send(np.zeros(1), [1])
    _, info = pool.reset([1])
    assert (info["env_id"].tolist(), info["elapsed_step"].tolist()) == ([1], [0])
    if fault != "exception":  # a new env, which knows no tag: the seed of make was for the first
        pool.pool.set_env_attr("tag", 1, id=[1])
    pool.send(np.zeros(4))
    rows, errors = collect(pool)
    assert errors == []
    assert {i: row[0] for i, row in rows.items()} == {0: 2, 1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restarted_env_is_a_truncated_row_and_then_a_reset(make: Any, fault: str) -> None:
    pool = make(on_error="restart", restart_backoff=0, step_timeout=0.2, reset_fn=seeded)
    pool.reset(range(4))
    pool.send(np.array([0, FAULTS[fault][0], 0, 0]))
    rows, errors = collect(pool)
    assert rows[1] == (1, 0, False, True, True)
    assert rows[2] == (1, 2001, False, False, False)
    pool.send(np.zeros(4))
    rows, errors = collect(pool)
    assert rows[1] == (0, 0, False, False, False)
    assert rows[2] == (2, 2002, False, False, False)
    assert errors == []


def seeded(env_id: int, _: int) -> tuple[int, None]:
    return env_id, None


def test_after_a_timeout_a_batch_is_smaller(make: Any, gates: list[envs.Gate]) -> None:
    pool = make(functools.partial(SeededGateEnv, gates), timeout=0.1)
    pool.reset(range(4))
    pool.send(np.array([0, 1]), [0, 1])
    assert pool.recv()[4]["env_id"].tolist() == [0]
    gates[1].release()
    assert pool.recv()[4]["env_id"].tolist() == [1]
    pool.send(np.array([0, 1]), [0, 1])
    assert pool.recv()[4]["env_id"].tolist() == [0]
    gates[1].release()
    obs, info = pool.reset([1])  # its late row is dropped
    assert info["elapsed_step"].tolist() == [0]
    assert obs.tolist() == [[1, 1, 0]]
    with pytest.raises(ValueError, match="no env is in flight"):
        pool.recv()


def test_the_constructor_closes_the_pool_if_envs_differ() -> None:
    made: list[int] = []

    def make_env() -> Any:
        made.append(1)
        env = SeededFaultEnv()
        env.action_space.n = len(made)
        return env

    with pytest.raises(ValueError, match="env 1: action_space is .*, but that of env 0 is"):
        envpool.make(make_env, num_envs=2, pool_options={"backend": "dummy"})
