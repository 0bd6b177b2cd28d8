"""`restart`: envs, and processes that have ended, are made anew."""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK

if TYPE_CHECKING:
    from pathlib import Path

FNS = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]


class NthTimeEnv(envs.CountEnv):
    """Can be made so often only: each time a file grows by a byte."""

    def __init__(self, path: str, limit: int) -> None:
        with open(path, "ab") as file:  # noqa: PTH123 - picklable as a string
            file.write(b"x")
            made = file.tell()
        if made > limit:
            message = f"made {made} times"
            raise OSError(message)
        super().__init__(0)


@pytest.mark.parametrize("place", QUICK)
def test_a_restarted_env_is_new_and_the_others_are_not(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        pool.step([""] * 3)
        pool.set_env_attr("mark", 7)
        pids = pool.call("pid")
        pool.restart(1)
        with pytest.raises(ResetNeeded, match="env 1: reset before step"):
            pool.step([""] * 3)
        assert pool.get_env_attr("mark", [0, 2]) == [7, 7]
        with pytest.raises(AttributeError):
            pool.get_env_attr("mark", 1)
        assert pool.step([""] * 2, [0, 2])[0][:, 2].tolist() == [2, 2]
        assert pool.reset(1)[0].tolist() == [[1, 0, 0]]  # its episode 0 again
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", [*PROCESSES, "shmem-spawn-packed", "subproc-forkserver-packed"])
def test_an_ended_process_is_started_anew_with_all_its_envs(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset(seed=3)
        pids = pool.call("pid")
        mates = [i for i in range(3) if pids[i] == pids[1]]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            pool.step([""] * 3)
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
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PROCESSES)
def test_options_of_the_pool_hold_after_a_restart(place: str) -> None:
    fns = [functools.partial(envs.FaultEnv, tag, 2) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="next_step") as pool:
        pool.reset()
        os.kill(pool.call("pid")[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            pool.step([""] * 2)
        if pool.waiting_id:
            pool.drain()
        pool.restart()
        pool.reset()
        pool.step([""] * 2)
        assert pool.step([""] * 2)[2].tolist() == [True, True]
        assert all(info["is_reset"] for info in pool.step([""] * 2)[4])


@pytest.mark.parametrize("place", PROCESSES)
def test_rows_that_were_finished_survive_a_restart(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        with pytest.raises(WorkerDiedError, match="env 2"):
            pool.step(["", "", "SIGKILL"])
        kept = pool.waiting_id
        pool.restart(2)
        rows = pool.drain()
        assert [info["env_id"] for info in rows[4]] == kept
        assert rows[0][:, 2].tolist() == [1] * len(kept)
        pool.reset()
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", BACKENDS)
def test_an_env_in_flight_is_not_restarted(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        pool.send([""], [1])
        with pytest.raises(AlreadyPendingCallError, match="env 1"):
            pool.restart()
        assert pool.recv()[0].tolist() == [[1, 0, 1]]


@pytest.mark.parametrize("place", BACKENDS)
def test_an_env_fn_that_fails_the_second_time_is_named(place: str, tmp_path: Any) -> None:
    def counted(limit: int, name: str) -> Any:
        return functools.partial(NthTimeEnv, str(tmp_path / name), limit)

    with PLACES[place]([counted(9, "a"), counted(1, "b")]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 1: .*OSError: made 2 times") as caught:
            pool.restart()
        assert isinstance(caught.value, OSError)
        assert pool.reset(0)[0].shape == (1, 3)


def test_restart_after_close() -> None:
    pool = PLACES["dummy"](FNS)
    pool.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        pool.restart()


@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_a_process_is_started_anew_before_all_its_errors_were_raised(kind: str) -> None:
    with PLACES[kind](FNS, num_processes=1) as pool:
        pool.reset()
        pool.send(["SIGKILL", "", ""])
        with pytest.raises(WorkerDiedError, match="env 0: the worker process was killed"):
            pool.step(None, [0])
        pool.restart([0])
        with pytest.raises(WorkerDiedError, match="env 1: the worker process was killed"):
            pool.recv()
        obs, infos = pool.reset()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert [info["step"] for info in infos] == [0, 0, 0]
        assert pool.step(["", "", ""])[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("on_error", ["raise", "restart", "replay"])
@pytest.mark.parametrize("place", PROCESSES)
def test_an_env_that_hangs_is_ended_and_made_anew(
    place: str, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.3)
    with PLACES[place](FNS, on_error=on_error) as pool:
        pool.reset()
        pids = pool.call("pid")
        pool.send(["hang"], [1])
        pool.cancel([1])
        pool.restart(1)
        assert pool.reset()[0][1].tolist() == [1, 0, 0]
        after = pool.call("pid")
        assert [new != old for new, old in zip(after, pids, strict=True)] == [
            pid == pids[1] for pid in pids
        ]
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", PROCESSES)
def test_an_env_whose_given_up_step_ends_keeps_its_process(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        pids = pool.call("pid")
        pool.send([""] * 3)
        pool.cancel()
        pool.reset()
        pool.restart()
        assert pool.call("pid") == pids


def fails_later(tag: int, notes: Path) -> envs.FaultEnv:
    """Make an env the first time, and raise each other time."""
    if notes.exists():
        raise OSError("no licence")
    notes.touch()
    return envs.FaultEnv(tag)


@pytest.mark.parametrize("place", PROCESSES)
def test_what_an_env_fn_raises_is_told_also_after_requests_were_given_up(
    place: str, tmp_path: Path
) -> None:
    with PLACES[place]([*FNS[:2], functools.partial(fails_later, 2, tmp_path / "made")]) as pool:
        pool.reset()
        pool.send([""] * 3)
        pool.cancel()
        pool.reset()
        pool.send(["SIGKILL"], [2])
        with pytest.raises(WorkerDiedError, match="env 2"):
            pool.recv()
        with pytest.raises(OSError, match=r"env 2: env_fn raised OSError: no licence"):
            pool.restart(2)


@pytest.mark.parametrize("on_error", ["raise", "restart"])
@pytest.mark.parametrize("place", PROCESSES)
def test_a_restart_sees_a_death_that_nobody_has_met(place: str, on_error: str) -> None:
    with PLACES[place](FNS, on_error=on_error) as pool:
        pool.reset()
        process = pool.workers[2].process
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        pool.restart(2)
        assert pool.reset()[0][:, 0].tolist() == [0, 1, 2]
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]
