"""Faults, the basic ones: env raises, worker dies. Nothing hangs, and the others go on."""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, WorkerDiedError
from tests.support import envs
from tests.support.helpers import wait_until
from tests.support.places import PLACES, PROCESSES, QUICK
from tests.support.reference import HandStepped, check, check_reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from envpool_py import BaseVectorEnv

SPACE = envs.CountEnv().observation_space
FNS = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
GOOD = [""] * 3

# what an env raises: the class that the error is an instance of as well, the text, whether the
# original can come home, as an object, from another process
RAISED: dict[str, tuple[type[BaseException] | None, str, bool]] = {
    "value": (ValueError, r"ValueError: boom", True),
    "slot": (envs.SlotError, r"SlotError: boom", True),
    "unpicklable": (None, r"UnpicklableError: boom", False),
    "two-argument": (None, r"TwoArgumentError: 1 and 2", False),
    "exit": (None, r"SystemExit: 37", True),
    "stop": (None, r"StopIteration: boom", True),
    "generator-exit": (None, r"GeneratorExit: boom", True),
    "memory": (MemoryError, r"MemoryError: boom", True),
    "recursion": (RecursionError, r"RecursionError: boom", True),
    "os": (FileNotFoundError, r"FileNotFoundError: .*boom\.txt", True),
}
if sys.version_info >= (3, 11):
    RAISED["group"] = (None, r"ExceptionGroup: boom \(1 sub-exception\)", True)

REQUESTS: dict[str, tuple[str, Callable[[BaseVectorEnv, str], Any]]] = {
    "step": ("step", lambda pool, name: pool.step(["", name, ""])),
    "reset": ("reset", lambda pool, name: pool.reset(options=[None, {"fault": name}, None])),
    "call": ("call", lambda pool, name: pool.call("fault", name, id=[1])),
}


def goes_on(pool: BaseVectorEnv, ids: list[int]) -> None:
    """Assert that these envs reset and step as they should."""
    if pool.waiting_id:
        pool.drain()
    obs, _ = pool.reset(ids)
    assert obs[:, 0].tolist() == ids
    assert obs[:, 2].tolist() == [0] * len(ids)
    assert pool.step([""] * len(ids), ids)[0][:, 2].tolist() == [1] * len(ids)


# ------------------------------------------------------------------------------- env raises


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("place", QUICK)
def test_what_an_env_raises_reaches_the_caller(place: str, request_name: str, name: str) -> None:
    also, text, comes_home = RAISED[name]
    request, ask = REQUESTS[request_name]
    with PLACES[place](FNS) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=f"env 1: {request} raised {text}") as caught:
            ask(pool, name)
        error = caught.value
        assert not isinstance(error, WorkerDiedError)
        assert (error.env_ids, error.env_id, error.request) == ((1,), 1, request)
        assert "in _fault" in str(error), "the worker's traceback is in the text"
        if also is not None:
            assert isinstance(error, also)
        if also is None and (comes_home or place != "dummy"):
            assert type(error) is EnvError
        cause = error.__cause__
        if comes_home or place == "dummy":
            assert type(cause) is type(envs.RAISE[name]())
            assert str(cause) == str(envs.RAISE[name]())
        else:
            assert "in _fault" in str(cause)
        if name == "slot":
            assert cause.code == 9
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("place", PROCESSES)
def test_a_keyboard_interrupt_in_a_worker_is_a_plain_error(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        with pytest.raises(EnvError, match="env 1: step raised KeyboardInterrupt: boom"):
            pool.step(["", "interrupt", ""])
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("place", QUICK)
def test_after_an_error_the_others_rows_are_there_and_the_env_takes_a_reset(place: str) -> None:
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        check(pool.step(GOOD), hand.step(GOOD), SPACE)
        with pytest.raises(EnvError):
            pool.step(["", "value", ""])
        for ask in (pool.step, pool.send):
            with pytest.raises(ResetNeeded, match="env 1"):
                ask([""], [1])
        rows = {row.env_id: row for row in hand.step(["", ""], [0, 2])}
        batch = pool.recv()
        check(batch, [rows[info["env_id"]] for info in batch[4]], SPACE)
        assert len(batch[1]) == 2
        check_reset(pool.reset([1]), hand.reset([1]), SPACE)
        check(pool.step(GOOD), hand.step(GOOD), SPACE)


@pytest.mark.parametrize("place", QUICK)
def test_a_reset_of_all_after_an_error_is_a_fresh_start(place: str) -> None:
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        with pytest.raises(EnvError):
            pool.step(["", "value", ""])
        # The stale rows of 0 and 2 must not pass for the resets' own.
        check_reset(pool.reset(), hand.reset(), SPACE)
        check(pool.step(GOOD), hand.step(GOOD), SPACE)
        assert list(pool.waiting_id) == []


@pytest.mark.parametrize("place", QUICK)
def test_several_raise_at_once(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        with pytest.raises(EnvError) as caught:
            pool.step(["value", "", "os"])
        shown = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
        assert caught.value.env_id in (0, 2)
        assert "ValueError: boom" in shown
        assert "env 0: step raised" in shown
        assert "env 2: step raised FileNotFoundError" in shown
        assert pool.recv()[0].tolist() == [[1, 0, 1]]
        for i in (0, 2):
            with pytest.raises(ResetNeeded, match=f"env {i}"):
                pool.step([""], [i])
        goes_on(pool, [0, 1, 2])


@pytest.mark.parametrize("place", QUICK)
def test_an_env_may_raise_again_and_again(place: str) -> None:
    with PLACES[place](FNS) as pool:
        for _ in range(4):
            pool.reset()
            with pytest.raises(ValueError, match="env 0: "):
                pool.step(["value", "", ""])
            assert sorted(row["env_id"] for row in pool.drain()[4]) == [1, 2]


@pytest.mark.parametrize("place", QUICK)
def test_an_error_of_a_sent_reset(place: str) -> None:
    with PLACES[place](FNS, wait_num=1) as pool:
        pool.reset()
        pool.send_reset([2], options={"fault": "value"})
        with pytest.raises(EnvError, match="env 2: reset raised ValueError: boom"):
            pool.recv()
        goes_on_asynchronously(pool)


def goes_on_asynchronously(pool: BaseVectorEnv) -> None:
    pool.reset()
    pool.send(GOOD)
    obs = pool.drain()[0]
    assert sorted(obs[:, 0].tolist()) == [0, 1, 2]
    assert obs[:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", QUICK)
def test_an_error_of_named_ids_leaves_the_others_alone(place: str) -> None:
    with PLACES[place](FNS, wait_num=1) as pool:
        pool.reset()
        pool.send(["", "value", ""])
        assert pool.step(None, id=[2])[0].tolist() == [[2, 0, 1]]
        with pytest.raises(EnvError, match="env 1: step raised ValueError"):
            pool.step(None, id=[1])
        assert pool.step(None, id=[0])[0].tolist() == [[0, 0, 1]]
        goes_on_asynchronously(pool)


@pytest.mark.parametrize("place", QUICK)
def test_a_seed_that_an_env_refuses(place: str) -> None:
    fns: list[Callable[[], Any]] = [envs.CountEnv, functools.partial(RefusesSeeds, 1)]
    with PLACES[place](fns) as pool:
        with pytest.raises(ValueError, match="env 1: seed raised ValueError: no seeds"):
            pool.seed(3)
        pool.reset()
        assert len(pool.step([0, 0])[1]) == 2


class RefusesSeeds(envs.CountEnv):
    """Raises when it is given a seed."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if seed is not None:
            message = "no seeds here"
            raise ValueError(message)
        return super().reset(options=options)


@pytest.mark.parametrize("place", QUICK)
def test_an_error_of_a_pool_inside_an_env_is_the_outer_envs(place: str) -> None:
    inner = functools.partial(PLACES["dummy"], FNS[:2])
    with PLACES[place]([functools.partial(envs.PoolEnv, tag, inner) for tag in range(3)]) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 2: step raised .*env 1: step raised") as caught:
            pool.step([0, 0, 1])
        assert caught.value.env_ids == (2,)
        assert sorted(row["env_id"] for row in pool.drain()[4]) == [0, 1]


# ------------------------------------------------------------------------------ worker dies

DEATHS = {
    "SIGKILL": r"the worker process was killed by SIGKILL",
    "SIGSEGV": r"the worker process was killed by SIGSEGV",
    "os._exit": r"the worker process exited with code 37",
}
EACH_ITS_PROCESS = ("subproc-fork", "shmem-fork")


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", DEATHS)
@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_worker_that_dies_is_named_and_the_others_go_on(
    place: str, name: str, request_name: str
) -> None:
    _, ask = REQUESTS[request_name]
    with PLACES[place](FNS) as pool:
        pool.reset()
        with pytest.raises(WorkerDiedError, match=f"env 1: {DEATHS[name]}") as caught:
            ask(pool, name)
        assert isinstance(caught.value, EnvError)
        assert caught.value.env_ids == (1,)
        asks: list[Callable[[], Any]] = [
            lambda: pool.step([""], [1]),
            lambda: pool.reset([1]),
            lambda: pool.get_env_attr("tag", [1]),
            lambda: pool.set_env_attr("tag", 3, [1]),
            lambda: pool.call("counts", id=[1]),
        ]
        for again in asks:
            with pytest.raises(WorkerDiedError, match=f"env 1: {DEATHS[name]}"):
                again()
        goes_on(pool, [0, 2])


@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_worker_killed_while_idle(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        victim = pool.call("pid")[1]
        os.kill(victim, signal.SIGKILL)
        assert wait_until(lambda: not running(victim))
        with pytest.raises(WorkerDiedError, match="env 1: .*SIGKILL"):
            pool.step(GOOD)
        goes_on(pool, [0, 2])


@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_worker_killed_while_idle_shows_at_an_attribute_too(place: str) -> None:
    with PLACES[place](FNS) as pool:
        victim = pool.call("pid")[1]
        os.kill(victim, signal.SIGKILL)
        assert wait_until(lambda: not running(victim))
        with pytest.raises(WorkerDiedError, match="env 1: .*SIGKILL"):
            pool.get_env_attr("tag")
        goes_on(pool, [0, 2])


def running(pid: int) -> bool:
    """Tell whether a process still runs: a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_worker_killed_while_its_env_steps(place: str, gates: list[envs.Gate]) -> None:
    fns = [functools.partial(envs.GateEnv, tag, gates[tag], 99) for tag in range(3)]
    with PLACES[place](fns, wait_num=1) as pool:
        pool.reset()
        victim = pool.call("pid")[1]
        pool.send([0, envs.BLOCK, 0])
        with gates[1].held():
            os.kill(victim, signal.SIGKILL)
            rows: list[int] = []
            died = False
            while len(rows) < 2 or not died:
                try:
                    rows += [info["env_id"] for info in pool.recv()[4]]
                except WorkerDiedError as error:
                    died = error.env_ids == (1,)
        assert sorted(rows) == [0, 2]
        assert pool.reset([0, 2])[0][:, 2].tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_every_env_of_a_dead_process_has_died(kind: str) -> None:
    fns = [functools.partial(envs.FaultEnv, tag) for tag in range(4)]
    with PLACES[kind](fns, num_processes=2) as pool:
        pool.reset()
        pids = pool.call("pid")
        mates = [i for i in range(4) if pids[i] == pids[1]]
        others = [i for i in range(4) if pids[i] != pids[1]]
        assert len(mates) == len(others) == 2
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            pool.step(["SIGKILL" if i == 1 else "" for i in range(4)])
        for i in mates:
            with pytest.raises(WorkerDiedError, match=f"env {i}: .*SIGKILL"):
                pool.reset([i])
        goes_on(pool, others)


@pytest.mark.parametrize("place", PROCESSES)
def test_a_pool_whose_every_worker_died_can_be_closed(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        for pid in set(pool.call("pid")):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            pool.step(GOOD)


@pytest.mark.parametrize("place", PROCESSES)
def test_a_worker_that_dies_while_it_starts(place: str) -> None:
    fns: list[Callable[[], Any]] = [envs.CountEnv, functools.partial(os._exit, 37)]
    with pytest.raises(WorkerDiedError, match=r"env 1: .*exited with code 37"):
        PLACES[place](fns)


# --------------------------------------------------------------------------- large messages


class EchoEnv(envs.CountEnv):
    """Returns its action, as an object, in the info."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        del self.action_space

    def step(self, action: Any) -> tuple:
        *row, info = super().step(None)
        return *row, {**info, "echo": action}


@pytest.mark.parametrize("place", QUICK)
def test_large_actions_and_infos_at_once(place: str) -> None:
    megabytes = [np.full(1 << 20, tag, np.float64) for tag in range(3)]
    with PLACES[place]([functools.partial(EchoEnv, tag) for tag in range(3)]) as pool:
        pool.reset()
        for _ in range(2):
            info = pool.step(megabytes)[4]
            for tag in range(3):
                assert np.array_equal(info[tag]["echo"], megabytes[tag])
