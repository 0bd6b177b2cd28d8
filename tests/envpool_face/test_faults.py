"""A fault in one env: its error, the rows of the others, and what the env does after a reset."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError, envpool
from tests.envpool_face.by_hand import SeededFaultEnv, SeededGateEnv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import envs

RAISES, DIES, HANGS = 1, 2, 3
FAULTS = {
    "exception": (RAISES, LookupError),
    "killed": (DIES, WorkerDiedError),
    "hangs": (HANGS, EnvTimeoutError),
}
SIZES = {"sync": None, "partial": 2}


@pytest.fixture(params=SIZES)
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a pool of four envs, each in a process of its own."""
    made = []

    def make(**options: Any) -> Any:
        pool = envpool.make(
            SeededFaultEnv,
            num_envs=4,
            batch_size=SIZES[request.param],
            num_threads=4,
            seed=0,
            pool_options={"context": "fork", **options},
        )
        made.append(pool)
        return pool

    yield make
    for pool in made:
        begun = time.monotonic()
        pool.close()
        assert time.monotonic() - begun < 10


def collect(pool: Any, elapsed: dict[int, int], errors: list[EnvError]) -> None:
    """Fetch until nothing is in flight: ``elapsed[i]`` steps of env ``i``, and what was raised."""
    while pool.pool.waiting_id or pool._kept is not None:
        try:
            obs, _, _, _, info = pool.recv()
        except EnvError as error:
            errors.append(error)
            continue
        for k, i in enumerate(info["env_id"].tolist()):
            assert i not in elapsed
            elapsed[i] = info["elapsed_step"][k]
            assert obs[k].tolist() == [i, obs[k][1], elapsed[i]]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_raised_once_and_a_reset_makes_all_good(make: Any, fault: str) -> None:
    action, kind = FAULTS[fault]
    pool = make(step_timeout=0.5) if fault == "hangs" else make()
    pool.reset(range(4))
    pool.send(np.array([0, action, 0, 0]))
    elapsed: dict[int, int] = {}
    errors: list[EnvError] = []
    collect(pool, elapsed, errors)
    assert [error.env_ids for error in errors] == [(1,)]
    assert isinstance(errors[0], kind)
    assert elapsed == {0: 1, 2: 1, 3: 1}
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
    elapsed.clear()
    collect(pool, elapsed, errors)
    assert len(errors) == 1
    assert elapsed == {0: 2, 1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restarted_env_is_a_truncated_row_and_then_a_reset(make: Any, fault: str) -> None:
    action, _ = FAULTS[fault]
    pool = make(on_error="restart", restart_backoff=0, step_timeout=0.5)
    pool.reset(range(4))
    rows: dict[int, tuple] = {}

    def told(info: dict, k: int) -> bool:
        return "env_error" in info and info["env_error"][k] is not None

    def collect_rows() -> None:
        rows.clear()
        while len(rows) < 4:
            _, reward, terminated, truncated, info = pool.recv()
            for k, i in enumerate(info["env_id"].tolist()):
                row = reward[k], terminated[k], truncated[k], info["elapsed_step"][k]
                rows[i] = *row, told(info, k)

    pool.send(np.array([0, action, 0, 0]))
    collect_rows()
    assert rows[1] == (0, False, True, 1, True)
    assert rows[2] == (2001, False, False, 1, False)
    pool.send(np.zeros(4))
    collect_rows()
    assert rows[1] == (0, False, False, 0, False)
    assert rows[2] == (2002, False, False, 2, False)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_after_a_timeout_a_batch_is_smaller(size: int | None, gates: list[envs.Gate]) -> None:
    pool = envpool.make(
        functools.partial(SeededGateEnv, gates[:2]),
        num_envs=2,
        batch_size=size,
        num_threads=2,
        seed=0,
        pool_options={"timeout": 0.1},
    )
    try:
        pool.reset(range(2))
        pool.send(np.array([0, 1]))
        assert pool.recv()[4]["env_id"].tolist() == [0]
        gates[1].release()
        assert pool.recv()[4]["env_id"].tolist() == [1]
        pool.send(np.array([0, 1]))
        assert pool.recv()[4]["env_id"].tolist() == [0]
        gates[1].release()
        obs, info = pool.reset([1])  # its late row is dropped
        assert info["elapsed_step"].tolist() == [0]
        assert obs.tolist() == [[1, 1, 0]]
        with pytest.raises(ValueError, match="no env is in flight"):
            pool.recv()
    finally:
        pool.close()


def test_the_constructor_closes_the_pool_if_envs_differ() -> None:
    made: list[int] = []

    def make_env() -> Any:
        env = SeededFaultEnv()
        made.append(1)
        env.action_space.n = len(made)
        return env

    with pytest.raises(ValueError, match="env 1: action_space is .*, but that of env 0 is"):
        envpool.make(make_env, num_envs=2, pool_options={"backend": "dummy"})
