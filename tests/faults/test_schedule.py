"""Finding 2: the schedule of seeds (`episode_seeds`) goes on where it was after a new process."""

from __future__ import annotations

import functools
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from envpool_py.seeding import of_episode
from tests import envs
from tests.conftest import wait_until
from tests.faults.helpers import EACH, GOOD, IN_CALLER, MODES, PROCESSES, RESTART, handling, kill
from tests.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from envpool_py import BaseVectorEnv

SEED = 11
POLICIES: dict[str, dict[str, Any]] = {"by hand": {}, "restart": RESTART}


def episode_of(i: int, seed: int | None) -> int:
    """Return the number of the episode of env ``i`` that has this seed."""
    return [of_episode(SEED + i, number) for number in range(50)].index(seed)


class ScheduleEnv(envs.CountEnv):
    """Remembers the seeds of its resets; its next reset waits at the gate, or raises, if asked."""

    def __init__(self, tag: int, gate: envs.Gate | None = None) -> None:
        super().__init__(tag, length=1)
        self.gate = gate
        self.seeds: list[int | None] = []
        self.waits = self.raises = False

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        self.seeds.append(seed)
        waits, raises, self.waits, self.raises = self.waits, self.raises, False, False
        if waits:
            self.gate.wait()
        if raises:
            raise ValueError("no such episode")
        return super().reset(seed=seed, options=options)


def scheduled(gates: list[envs.Gate] | None = None) -> list[Callable[[], Any]]:
    return [functools.partial(ScheduleEnv, i, gates and gates[i]) for i in range(3)]


def recreated(pool: BaseVectorEnv, policy: str, i: int = 1) -> list[int]:
    """Kill the process of env ``i``, have it recreated, reset; return each env's episode."""
    kill(pool, i)
    if policy == "by hand":
        pool.restart([i])
    infos = pool.reset()[1]
    return [episode_of(info["env_id"], info["seed"]) for info in infos]


@pytest.mark.parametrize("request_kind", ["reset", "next_step", "same_step"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PROCESSES)
def test_a_cancelled_request_that_began_an_episode_counts(
    place: str, policy: str, request_kind: str, gates: list[envs.Gate]
) -> None:
    mode = None if request_kind == "reset" else request_kind
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES[place](scheduled(gates), **options) as pool:
        pool.reset(seed=SEED)
        if mode == "next_step":
            assert pool.step([0], [1])[2].tolist() == [True]
        pool.set_env_attr("waits", True, [1])
        pool.send_reset([1]) if mode is None else pool.send([0], [1])
        with gates[1].held():  # in the reset
            pool.cancel([1])
        reached = pool.get_env_attr("seeds", [1])[0]
        assert [episode_of(1, seed) for seed in reached] == [0, 1]
        assert recreated(pool, policy) == [1, 2, 1]
        assert recreated(pool, policy) == [2, 3, 2]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_schedule_goes_on_after_an_automatic_reset_that_raised(policy: str, mode: str) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES["shmem-fork-packed"](scheduled(), **options) as pool:
        pool.reset(seed=SEED)
        pool.set_env_attr("raises", True, [1])
        assert pool.step([0], [1])[2].tolist() == [True]
        if policy == "by hand":
            with pytest.raises(ValueError, match="env 1: reset raised ValueError: no such episode"):
                pool.step([0], [1])
            info = pool.reset([1])[1][0]
        else:
            info = pool.step([0], [1])[4][0]
            assert "no such episode" in info["env_error"]
        number = episode_of(1, info["seed"])
        assert number in (1, 2), "the seed of the reset that raised, or the one after it"
        assert recreated(pool, policy) == [1, number + 1, 1]
        assert recreated(pool, policy) == [2, number + 2, 2]


# The handler may raise while the env opens the file of its gate: Python can only warn of that file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", EACH)
def test_an_interrupted_reset_counts_if_it_reached_the_env(
    place: str, gates: list[envs.Gate], beside: Callable
) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        with gates[2].held():
            while not handled.is_set():  # one signal may come just before the call blocks
                signal.pthread_kill(main, signal.SIGUSR1)
                wait_until(handled.is_set, 0.05)

    def handler(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise InterruptedError("mine")

    handled = threading.Event()
    with PLACES[place](scheduled(gates), episode_seeds=True) as pool:
        pool.reset(seed=SEED)
        pool.set_env_attr("waits", True, [2])
        with handling(signal.SIGUSR1, handler):
            helper = beside(interrupt)
            with pytest.raises(InterruptedError, match="mine"):
                pool.reset()
            helper.finish()
        reached = [len(seeds) for seeds in pool.get_env_attr("seeds")]
        assert reached[2] == 2
        if place not in IN_CALLER:
            kill(pool, 1)
        pool.restart([1])
        infos = pool.reset()[1]
        assert [episode_of(info["env_id"], info["seed"]) for info in infos] == reached


def reset_fn(env_id: int, episode: int) -> tuple[int, dict]:
    return 1000 * env_id + episode, {"episode": episode}


@pytest.mark.parametrize("schedule", ["episode_seeds", "reset_fn"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_no_episode_comes_twice_or_is_skipped(place: str, mode: str | None, schedule: str) -> None:
    def keep(infos: Any) -> None:
        for info in infos:
            if "seed" in info:  # of a reset
                seeds[info["env_id"]].append(info["seed"])

    die = "value" if place == "dummy" else "SIGKILL"
    faults = {3: ["", "value", ""], 6: ["", die, ""], 7: ["", "", die], 12: [die, "", "value"]}
    seeds: list[list[int]] = [[], [], []]
    fns = [functools.partial(envs.FaultEnv, tag, 2 + tag) for tag in range(3)]
    options = {schedule: reset_fn if schedule == "reset_fn" else True, "autoreset_mode": mode}
    with PLACES[place](fns, **options, **RESTART) as pool:
        keep(pool.reset(seed=None if schedule == "reset_fn" else SEED)[1])
        for n in range(24):
            _, _, terminated, truncated, infos = pool.step(faults.get(n, GOOD))
            keep(infos)
            if mode is None and (terminated | truncated).any():
                keep(pool.reset(np.flatnonzero(terminated | truncated))[1])
    for i in range(3):
        assert len(seeds[i]) > 4
        numbers = range(len(seeds[i]))
        if schedule == "reset_fn":
            assert seeds[i] == [reset_fn(i, number)[0] for number in numbers]
        else:
            assert seeds[i] == [of_episode(SEED + i, number) for number in numbers]
