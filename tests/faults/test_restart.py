"""`restart`: envs, and processes that have ended, are recreated."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from tests import envs
from tests.faults.helpers import (
    EACH,
    FNS,
    GOOD,
    NEW,
    PROCESSES,
    RESTART,
    goes_on,
    kill,
    mates_of,
    reset_pool,
    slow,
)
from tests.places import PLACES

if TYPE_CHECKING:
    from pathlib import Path


class NthTimeEnv(envs.FaultEnv):
    """Can be made only so often: each time a file grows by a byte."""

    def __init__(self, tag: int, path: str, limit: int) -> None:
        with open(path, "ab") as file:  # noqa: PTH123 - picklable as a string
            file.write(b"x")
            made = file.tell()
        if made > limit:
            message = f"made {made} times"
            raise OSError(message)
        super().__init__(tag)


@pytest.mark.parametrize("place", EACH)
def test_a_restarted_env_is_new_and_the_others_are_not(place: str) -> None:
    with reset_pool(place) as pool:
        pool.step(GOOD)
        pool.set_env_attr("mark", 7)
        pids = pool.call("pid")
        pool.restart(1)
        with pytest.raises(ResetNeeded, match="env 1: reset before step"):
            pool.step(GOOD)
        assert pool.get_env_attr("mark", [0, 2]) == [7, 7]
        with pytest.raises(AttributeError):
            pool.get_env_attr("mark", 1)
        assert pool.step([""] * 2, [0, 2])[0][:, 2].tolist() == [2, 2]
        assert pool.reset(1)[0].tolist() == [[1, 0, 0]]  # its episode 0 again
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", [*PROCESSES, *slow(*NEW)])
def test_an_ended_process_is_started_again_with_all_its_envs(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset(seed=3)
        pids = pool.call("pid")
        mates = mates_of(pool, 1)
        kill(pool, 1)
        with pytest.raises(WorkerDiedError):
            pool.step(GOOD)
        if pool.waiting_id:
            pool.drain()
        pool.restart([1])
        after = pool.call("pid")
        assert [i for i in range(3) if after[i] != pids[i]] == mates
        for i in mates:
            with pytest.raises(ResetNeeded):
                pool.step([""], [i])
        obs, infos = pool.reset(seed=3)
        assert obs[:, 2].tolist() == [0, 0, 0]
        assert [info["env_id"] for info in infos] == [0, 1, 2]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("on_error", ["raise", "restart"])
@pytest.mark.parametrize("place", PROCESSES)
def test_a_restart_sees_a_death_that_no_call_has_seen(place: str, on_error: str) -> None:
    with reset_pool(place, on_error=on_error) as pool:
        kill(pool, 2)
        pool.restart(2)
        assert pool.reset()[0][:, 0].tolist() == [0, 1, 2]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PROCESSES)
def test_rows_that_were_finished_survive_a_restart(place: str) -> None:
    with reset_pool(place) as pool:
        with pytest.raises(WorkerDiedError, match="env 2"):
            pool.step(["", "", "SIGKILL"])
        kept = pool.waiting_id
        pool.restart(2)
        rows = pool.drain()
        assert [info["env_id"] for info in rows[4]] == kept
        assert rows[0][:, 2].tolist() == [1] * len(kept)
        goes_on(pool, [0, 1, 2])


def test_a_process_is_started_again_before_all_its_errors_were_raised() -> None:
    with reset_pool("shmem-fork", num_processes=1) as pool:
        pool.send(["SIGKILL", "", ""])
        with pytest.raises(WorkerDiedError, match="env 0: the worker process was killed"):
            pool.step(None, [0])
        pool.restart([0])
        with pytest.raises(WorkerDiedError, match="env 1: the worker process was killed"):
            pool.recv()
        obs, infos = pool.reset()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert [info["step"] for info in infos] == [0, 0, 0]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_env_in_flight_is_not_restarted(place: str) -> None:
    with reset_pool(place) as pool:
        pool.send([""], [1])
        with pytest.raises(AlreadyPendingCallError, match="env 1"):
            pool.restart()
        assert pool.recv()[0].tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("place", "on_error"),
    [
        ("shmem-fork-packed", "raise"),
        ("shmem-fork-packed", "restart"),
        ("shmem-fork-packed", "replay"),
        *slow(("shmem-fork", "raise")),
    ],
)
def test_an_env_that_hangs_is_ended_and_recreated(
    place: str, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
    with reset_pool(place, on_error=on_error) as pool:
        pids = pool.call("pid")
        mates = mates_of(pool, 1)
        pool.send(["hang"], [1])
        pool.cancel([1])
        pool.restart(1)
        assert pool.reset()[0][1].tolist() == [1, 0, 0]
        after = pool.call("pid")
        assert [i for i in range(3) if after[i] != pids[i]] == mates
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


def test_an_env_whose_cancelled_step_ends_keeps_its_process() -> None:
    with reset_pool("shmem-fork-packed") as pool:
        pids = pool.call("pid")
        pool.send(GOOD)
        pool.cancel()
        pool.reset()
        pool.restart()
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", EACH)
def test_an_env_fn_that_fails_the_second_time_is_named(place: str, tmp_path: Path) -> None:
    fns: list[Any] = [functools.partial(NthTimeEnv, 0, str(tmp_path / "a"), 9)]
    fns.append(functools.partial(NthTimeEnv, 1, str(tmp_path / "b"), 1))
    with reset_pool(place, fns) as pool:
        pool.send([""] * 2)
        pool.cancel()  # a late row is not taken for the answer
        with pytest.raises(EnvError, match=r"env 1: .*OSError: made 2 times") as caught:
            pool.restart()
        assert isinstance(caught.value, OSError)
        assert pool.reset(0)[0].shape == (1, 3)


def test_an_env_fn_that_fails_in_a_new_process_is_named(tmp_path: Path) -> None:
    fns = [*FNS[:2], functools.partial(NthTimeEnv, 2, str(tmp_path / "made"), 1)]
    with reset_pool("shmem-fork-packed", fns) as pool:
        pool.send(GOOD)
        pool.cancel()
        pool.reset()
        kill(pool, 2)
        with pytest.raises(OSError, match=r"env 2: env_fn raised OSError: made 2 times"):
            pool.restart(2)
        goes_on(pool, [0, 1])


def test_restart_after_close() -> None:
    pool = PLACES["dummy"](FNS)
    pool.close()
    with pytest.raises(ClosedEnvironmentError):
        pool.restart()


def test_a_restart_by_hand_renews_the_budget_of_the_whole_process() -> None:
    """Finding 24: the envs that share the process are recreated too."""
    with reset_pool("shmem-fork", num_processes=1, max_restarts=1, **RESTART) as pool:
        kill(pool, 0)
        assert pool.step(GOOD)[3].tolist() == [True] * 3
        pool.reset()
        kill(pool, 0)
        with pytest.raises(WorkerDiedError):  # all budgets are spent
            pool.step(GOOD)
        if pool.waiting_id:
            with contextlib.suppress(WorkerDiedError):
                pool.drain()
        pool.restart([0])
        assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
        kill(pool, 0)
        assert pool.step(GOOD)[3].tolist() == [True] * 3
        assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1] * 3
