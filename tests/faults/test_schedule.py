"""Finding 2: the schedule of seeds (`episode_seeds`) goes on where it was after a new process."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.seeding import of_episode
from tests import envs
from tests.conftest import wait_until
from tests.faults.helpers import EACH, IN_CALLER, MODES, PROCESSES, RESTART, handling, kill
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


# ----------------------------------------------------------------- as an undisturbed run


class ScheduledEnv(gym.Env):
    """All that happens in an episode comes from its seed; its actions are faults."""

    OK, RAISE, DIE = range(3)

    def __init__(self, tag: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(3)
        self.tag, self.t, self.length = tag, 0, 0

    def observe(self) -> np.ndarray:
        return np.array([self.tag, self.t, self.np_random.random()])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 5))
        return self.observe(), {"seed": seed, "options": options}

    def step(self, action: Any) -> tuple:
        if action == self.RAISE:
            raise ArithmeticError("as asked")
        if action == self.DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        self.t += 1
        return self.observe(), float(self.t), self.t >= self.length, False, {}


def episodes(pool: BaseVectorEnv, mode: str | None, faults: dict[int, list[int]]) -> list[list]:
    """Run 24 steps with these actions at some of them; return each env's episodes, as rows."""
    num = len(pool)
    obs, infos = pool.reset(seed=SEED)
    found: list[list] = [[[(infos[i]["seed"], obs[i].tolist())]] for i in range(num)]
    for n in range(24):
        actions = np.array(faults.get(n, [0] * num))
        obs, _, terminated, truncated, infos = pool.step(actions)
        for i in range(num):
            info, own = infos[i], found[i]
            if info.get("is_reset"):
                own.append([(info["seed"], obs[i].tolist())])
            elif mode == "same_step" and (terminated[i] or truncated[i]):
                if terminated[i]:
                    own[-1].append(info["final_obs"].tolist())
                own.append([(info["seed"], obs[i].tolist())])
            elif not truncated[i]:
                own[-1].append(obs[i].tolist())
        if mode is None and (terminated | truncated).any():
            ended = np.flatnonzero(terminated | truncated)
            firsts, infos = pool.reset(ended)
            for k, i in enumerate(ended.tolist()):
                found[i].append([(infos[k]["seed"], firsts[k].tolist())])
    return found


def reset_fn(env_id: int, episode: int) -> tuple[int, dict]:
    return 1000 * env_id + episode, {"episode": episode}


@pytest.mark.parametrize("schedule", ["episode_seeds", "reset_fn"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_a_restarted_env_goes_on_as_an_undisturbed_run(
    place: str, mode: str | None, schedule: str
) -> None:
    fns = [functools.partial(ScheduledEnv, tag) for tag in range(3)]
    options: dict[str, Any] = {"autoreset_mode": mode}
    options.update({schedule: True if schedule == "episode_seeds" else reset_fn})
    die = ScheduledEnv.RAISE if place == "dummy" else ScheduledEnv.DIE
    faults = {3: [0, 1, 0], 6: [0, die, 0], 7: [0, 0, die], 12: [die, 0, 1], 13: [1, 1, 1]}
    with PLACES["dummy"](fns, **options) as pool:
        want = episodes(pool, mode, {})
    with PLACES[place](fns, **options, **RESTART) as pool:
        got = episodes(pool, mode, faults)
    for i in range(3):
        assert len(got[i]) > 5
        for k in range(min(len(got[i]), len(want[i]))):
            # The same episodes in the same order, each up to its fault or the end of the run.
            length = min(len(got[i][k]), len(want[i][k]))
            assert got[i][k][:length] == want[i][k][:length]
        assert any(len(got[i][k]) < len(want[i][k]) for k in range(len(got[i]) - 1))
