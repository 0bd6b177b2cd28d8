"""Tests for each fault that was found in the first version from outside.

The numbers in the headings are those of the list of findings. The tests use the public interface
alone; they kill real processes, and an env that must be at a certain point waits there at a gate.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.utils.env_checker import data_equivalence

import envpool_py
from envpool_py import (
    DummyVectorEnv,
    EnvError,
    EnvTimeoutError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    WorkerDiedError,
)
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from envpool_py.seeding import of_episode
from tests.pettingzoo.envs import FaultyMeadowEnv, PlainMeadowEnv, TableEnv
from tests.support import envs
from tests.support.helpers import wait_until, wait_until_blocked
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envpool_py import BaseVectorEnv

ROOT = Path(envpool_py.__file__).parent.parent
MAIN = os.getpid()
FAULTY = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
RESTART: dict[str, Any] = {"on_error": "restart", "restart_backoff": 0.0}
MODES = (None, "next_step", "same_step")
IN_CALLER = ("dummy", "shmem-fork-caller")
PACKED = ("subproc-fork-packed", "shmem-fork-packed")


def signalled(thread: int, handled: bool) -> bool:
    """Signal a thread unless it has handled that; one signal may come just before a call blocks."""
    if not handled:
        signal.pthread_kill(thread, signal.SIGUSR1)
    return handled


@contextlib.contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    """Handle a signal by ``handler`` within the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def kill(pool: BaseVectorEnv, i: int) -> None:
    """Kill the worker process of env ``i`` and wait until it has ended."""
    process = pool.workers[i].process
    process.kill()
    process.join()


# ------------------------------------------------------------- 1: every env has its own copy

ARRAYS = spaces.Sequence(spaces.Box(-np.inf, np.inf, (2,), np.float64))
ACTION_SPACES: dict[str, gym.Space | None] = {
    "sequence": ARRAYS,
    "mixed": spaces.Dict({"fixed": spaces.Box(-9, 9, (2,), np.float64), "many": ARRAYS}),
    "undeclared": None,
}


def given_action(kind: str) -> tuple[Any, np.ndarray]:
    """Return an action without a fixed shape, and the array that lies deep inside it."""
    inner = np.zeros(2)
    if kind == "sequence":
        return (inner,), inner
    if kind == "mixed":
        return {"fixed": np.zeros(2), "many": (inner,)}, inner
    return {"list": [inner]}, inner


def inner_array(action: Any) -> np.ndarray:
    """Return the array that lies deep inside an action."""
    if isinstance(action, np.ndarray):
        return action
    if isinstance(action, dict):
        return inner_array(action["many"] if "many" in action else action["list"])
    return inner_array(action[0])


class GreedyEnv(envs.CountEnv):
    """Changes whatever it is given in place; the reward of a step is the sum of its action."""

    def __init__(self, tag: int, kind: str = "undeclared") -> None:
        super().__init__(tag, length=100)
        self.bag: dict[str, list] | None = None
        del self.action_space
        if ACTION_SPACES[kind] is not None:
            self.action_space = ACTION_SPACES[kind]

    def reset(self, *, seed: int | None = None, options: dict | None = None, **extra: Any) -> tuple:
        obs, info = super().reset(seed=seed, options=options)
        for given in (options, extra.get("extra")):
            if given is not None:
                info["found"] = self.take(given)
        return obs, info

    def step(self, action: Any) -> tuple:
        obs, _, *rest = super().step(None)
        inner = inner_array(action)
        inner += 1
        return obs, float(inner.sum()), *rest

    def take(self, bag: dict[str, list]) -> list:
        bag["items"].append(self.tag)
        return list(bag["items"])

    def take_own(self) -> list:
        return self.take(self.bag)


def take(env: GreedyEnv, bag: dict[str, list]) -> list:
    return env.take(bag)


@pytest.mark.parametrize("wait_num", [None, 1])
@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("place", [*QUICK, "subproc-spawn-packed"])
def test_an_env_that_changes_its_action_changes_nobody_elses(
    place: str, kind: str, wait_num: int | None
) -> None:
    action, inner = given_action(kind)
    fns = [functools.partial(GreedyEnv, tag, kind) for tag in range(3)]
    with PLACES[place](fns, wait_num=wait_num) as pool:
        pool.reset()
        for _ in range(2):
            pool.send([action] * 3)
            assert pool.drain()[1].tolist() == [2.0] * 3
        assert inner.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("place", QUICK)
def test_actions_that_share_a_part_are_told_apart(place: str) -> None:
    shared = np.zeros(2)
    actions = [{"list": [shared], "own": tag} for tag in range(3)]
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        pool.reset()
        assert pool.step(actions)[1].tolist() == [2.0] * 3
    assert shared.tolist() == [0.0, 0.0]
    assert actions == [{"list": [shared], "own": tag} for tag in range(3)]


def reset_with_options(pool: BaseVectorEnv, how: str, bag: dict[str, list]) -> tuple:
    if how == "one":
        return pool.reset(options=bag)[1]
    if how == "each":
        return pool.reset(options=[dict(bag) for _ in range(3)])[1]
    if how == "keyword":
        return pool.reset(extra=bag)[1]
    pool.send_reset(options=bag)
    bag["items"].append("late")
    infos = pool.drain()[4]
    assert bag["items"].pop() == "late"
    return infos


@pytest.mark.parametrize("how", ["one", "each", "keyword", "sent"])
@pytest.mark.parametrize("place", QUICK)
def test_every_env_has_its_own_copy_of_reset_options(place: str, how: str) -> None:
    bag: dict[str, list] = {"items": []}
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        for _ in range(2):
            infos = reset_with_options(pool, how, bag)
            assert {info["env_id"]: info["found"] for info in infos} == {0: [0], 1: [1], 2: [2]}
    assert bag == {"items": []}


REQUESTS: dict[str, Callable[[BaseVectorEnv, Any], list]] = {
    "call": lambda pool, bag: pool.call("take", bag),
    "call by keyword": lambda pool, bag: pool.call("take", bag=bag),
    "apply": lambda pool, bag: pool.apply(take, bag),
    "apply by keyword": lambda pool, bag: pool.apply(take, bag=bag),
    "set_env_attr": lambda pool, bag: pool.set_env_attr("bag", bag) or pool.call("take_own"),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("place", QUICK)
def test_every_env_has_its_own_copy_of_an_argument(place: str, name: str) -> None:
    bag: dict[str, list] = {"items": []}
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        for _ in range(2):
            assert REQUESTS[name](pool, bag) == [[0], [1], [2]]
    assert bag == {"items": []}


@pytest.mark.parametrize("place", QUICK)
def test_an_attribute_does_not_change_with_the_callers_object(place: str) -> None:
    bag: dict[str, list] = {"items": []}
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        pool.set_env_attr("bag", bag)
        bag["items"].append("late")
        assert pool.get_env_attr("bag") == [{"items": []}] * 3


# -------------------------------------------------- 2: the schedule of seeds after a new process

SEED = 11
SCHEDULED = [SEED + i for i in range(4)]
POLICIES: dict[str, dict[str, Any]] = {"by hand": {}, "restart": RESTART}


def episode_of(i: int, seed: int | None) -> int:
    """Return the number of the episode of env ``i`` that has this seed."""
    return [of_episode(SCHEDULED[i], number) for number in range(50)].index(seed)


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


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PROCESSES)
def test_a_cancelled_reset_counts(place: str, policy: str, gates: list[envs.Gate]) -> None:
    with PLACES[place](scheduled(gates), episode_seeds=True, **POLICIES[policy]) as pool:
        pool.reset(seed=SEED)
        pool.set_env_attr("waits", True, [1])
        pool.send_reset([1])
        with gates[1].held():
            pool.cancel([1])
        reached = pool.get_env_attr("seeds", [1])[0]
        assert [episode_of(1, seed) for seed in reached] == [0, 1]
        assert recreated(pool, policy) == [1, 2, 1]
        assert recreated(pool, policy) == [2, 3, 2]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PROCESSES)
def test_a_cancelled_step_that_began_an_episode_counts(
    place: str, policy: str, mode: str, gates: list[envs.Gate]
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES[place](scheduled(gates), **options) as pool:
        pool.reset(seed=SEED)
        if mode == "next_step":
            assert pool.step([0], [1])[2].tolist() == [True]
        pool.set_env_attr("waits", True, [1])
        pool.send([0], [1])
        with gates[1].held():  # in the automatic reset
            pool.cancel([1])
        reached = pool.get_env_attr("seeds", [1])[0]
        assert [episode_of(1, seed) for seed in reached] == [0, 1]
        assert recreated(pool, policy) == [1, 2, 1]
        assert recreated(pool, policy) == [2, 3, 2]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PROCESSES)
def test_the_schedule_goes_on_after_an_automatic_reset_that_raised(
    place: str, policy: str, mode: str
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES[place](scheduled(), **options) as pool:
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
@pytest.mark.parametrize("place", QUICK)
def test_an_interrupted_reset_counts_where_it_reached_the_env(
    place: str, gates: list[envs.Gate], beside: Callable
) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        with gates[2].held():
            assert wait_until(lambda: signalled(main, handled.is_set()))

    def handler(*_: object) -> None:
        handled.set()
        raise InterruptedError("mine")

    handled = threading.Event()
    with PLACES[place](scheduled(gates), episode_seeds=True) as pool:
        pool.reset(seed=SEED)
        pool.set_env_attr("waits", True, [2])
        with handling(signal.SIGUSR1, handler):
            beside(interrupt)
            with pytest.raises(InterruptedError, match="mine"):
                pool.reset()
        reached = [len(seeds) for seeds in pool.get_env_attr("seeds")]
        assert reached[2] == 2
        pool.restart([1]) if place in IN_CALLER else kill(pool, 1)
        if place not in IN_CALLER:
            pool.restart([1])
        infos = pool.reset()[1]
        assert [episode_of(info["env_id"], info["seed"]) for info in infos] == reached


class SeedsTableEnv(TableEnv):
    """Remembers the seeds of its resets."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.seeds.append(seed)
        super().reset(seed=seed, options=options)


def make_table() -> PettingZooEnv:
    return PettingZooEnv(SeedsTableEnv())


def legal(obs: dict, info: dict, ended: Any) -> int | None:
    """Return an action of the agent to act, None if it is dead."""
    dead = ended and not info["env_done"] and "final_obs" not in info
    return None if dead else int(np.flatnonzero(obs["mask"])[0])


def play(pool: BaseVectorEnv, actions: list, steps: int) -> tuple[list, int]:
    """Step all envs of a pool of tables so often.

    Returns:
        The next actions, and the number of rows in which one agent alone was terminated.
    """
    one_alone = 0
    for _ in range(steps):
        obs, _, terminated, truncated, infos = pool.step(actions)
        ended = terminated | truncated
        actions = [legal(*row) for row in zip(obs, infos, ended, strict=True)]
        done = [info["env_done"] or "final_obs" in info for info in infos]
        one_alone += sum(ended[k] and not done[k] for k in range(len(done)))
        if pool.autoreset_mode is None and any(done):
            obs, infos = pool.reset(np.flatnonzero(done))
            for first, info in zip(obs, infos, strict=True):
                actions[info["env_id"]] = legal(first, info, False)
    return actions, one_alone


def table_episodes(pool: BaseVectorEnv) -> list[list[int]]:
    """Return the episodes that the env objects of a pool of tables have begun."""
    seeds = pool.get_env_attr("seeds")
    return [[episode_of(i, seed) for seed in own] for i, own in enumerate(seeds)]


@pytest.mark.parametrize("begin", ["reset", "seed"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", ["subproc-fork-packed", "shmem-fork"])
def test_an_agent_that_is_terminated_begins_no_episode_of_the_schedule(
    place: str, policy: str, mode: str | None, begin: str
) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, **POLICIES[policy]}
    with PLACES[place]([make_table] * 3, **options) as pool:
        if begin == "reset":
            obs, infos = pool.reset(seed=SEED)
            actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
        else:
            pool.seed(SEED)
            actions = [int(np.flatnonzero(bits)[0]) for bits in pool.apply(mask_of)]
        _, one_alone = play(pool, actions, 47)
        assert one_alone > 3
        begun = table_episodes(pool)
        for own in begun:
            assert own == list(range(len(own)))
            assert len(own) > 2
        expected = [len(own) for own in begun]
        for _ in range(2):
            kill(pool, 1)
            if policy == "by hand":
                pool.restart([1])
            obs, infos = pool.reset()
            assert [own[-1] for own in table_episodes(pool)] == expected
            expected = [number + 1 for number in expected]
            # On to where an agent has been terminated, and the episode is not over.
            actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
            assert play(pool, actions, 9)[1] > 0


def mask_of(env: PettingZooEnv) -> np.ndarray:
    return np.asarray(env.infos[env.agent_selection]["action_mask"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_a_row_of_a_terminated_agent_that_is_not_returned_yet_ends_no_episode(
    kind: str, mode: str | None
) -> None:
    hand = make_table()
    obs, info = hand.reset(seed=SCHEDULED[0])
    options = {"episode_seeds": True, "autoreset_mode": mode, **RESTART}
    with PLACES[kind]([make_table] * 2, num_processes=1, **options) as pool:
        both, infos = pool.reset(seed=SEED)
        others = legal(both[1], infos[1], False)
        while True:
            action = legal(obs, info, False)
            obs, _, terminated, truncated, info = hand.step(action)
            if terminated or truncated:
                break
            pool.step([action], [0])
        assert not info["env_done"]
        pool.send([action, others])
        both, _, terminated, truncated, infos = pool.step(None, id=[1])
        others = legal(both[0], infos[0], terminated[0] or truncated[0])
        kill(pool, 1)  # env 0's row is there
        assert pool.step([others], [1])[3].tolist() == [True]
        if mode is None:
            pool.reset([1])
        elif mode == "next_step":
            assert pool.step([0], [1])[4][0]["is_reset"]
        _, _, terminated, truncated, infos = pool.step(None, id=[0])
        assert "env_error" not in infos[0]
        assert terminated[0] or truncated[0]
        assert pool.step([None], [0])[3].tolist() == [True]
        if mode is None:
            pool.reset([0])
        elif mode == "next_step":
            assert pool.step([0], [0])[4][0]["is_reset"]
        assert table_episodes(pool) == [[1], [1]]


# --------------------------------------------------------- 4: observations that hold nothing


class EmptyEnv(envs.CountEnv):
    """Observes an element of a Dict or Tuple space without parts."""

    def __init__(self, tag: int, empty: Any, nested: bool = False) -> None:
        super().__init__(tag, length=2)
        space = spaces.Dict({}) if isinstance(empty, dict) else spaces.Tuple(())
        self.empty, self.nested = empty, nested
        counts = self.observation_space
        self.observation_space = spaces.Dict({"counts": counts, "e": space}) if nested else space

    def observe(self) -> Any:
        return {"counts": super().observe(), "e": self.empty} if self.nested else self.empty


@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("empty", [{}, ()])
@pytest.mark.parametrize("place", QUICK)
def test_empty_observations_are_rows(place: str, empty: Any, wait_num: int | None) -> None:
    fns = [functools.partial(EmptyEnv, tag, empty) for tag in range(3)]
    with PLACES[place](fns, wait_num=wait_num, autoreset_mode="same_step") as pool:
        batches = [pool.reset()]
        pool.send([0] * 3)
        batches.append(pool.drain())
        pool.send([0] * 3)  # the end of the episodes
        batches.append(pool.drain())
        pool.send_reset()
        batches.append(pool.drain())
        for obs, *_, infos in batches:
            assert isinstance(obs, np.ndarray)
            assert (obs.dtype, obs.shape) == (object, (3,))
            assert list(obs) == [empty] * 3
            assert sorted(info["env_id"] for info in infos) == [0, 1, 2]
        assert [info["final_obs"] for info in batches[2][-1]] == [empty] * 3
        rows = batches[0][0]
        if isinstance(empty, dict):
            assert rows[0] is not rows[1]


@pytest.mark.parametrize("empty", [{}, ()])
@pytest.mark.parametrize("place", QUICK)
def test_empty_observations_as_columns(place: str, empty: Any) -> None:
    fns = [functools.partial(EmptyEnv, tag, empty) for tag in range(3)]
    with PLACES[place](fns, columns=True) as pool:
        obs, infos = pool.reset()
        assert obs == empty
        assert len(infos) == 3
        obs, rewards, *_ = pool.step([0] * 3)
        assert obs == empty
        assert rewards.shape == (3,)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("empty", [{}, ()])
@pytest.mark.parametrize("place", QUICK)
def test_empty_parts_of_observations(place: str, empty: Any, columns: bool) -> None:
    fns = [functools.partial(EmptyEnv, tag, empty, True) for tag in range(3)]
    with PLACES[place](fns, columns=columns) as pool:
        pool.reset()
        obs = pool.step([0] * 3)[0]
        counts = [[tag, 0, 1] for tag in range(3)]
        if columns:
            assert obs["e"] == empty
            assert obs["counts"].tolist() == counts
        else:
            assert [row["e"] for row in obs] == [empty] * 3
            assert [row["counts"].tolist() for row in obs] == counts


# ------------------------------------------------- 5: a PettingZooEnv is restored and replayed


class OnceTableEnv(TableEnv):
    """Kills its process in one step, once in all: a file says that it has."""

    def __init__(self, path: str, at: int) -> None:
        super().__init__()
        self.path, self.at, self.steps = path, at, 0

    def step(self, action: int | None) -> None:
        self.steps += 1
        if self.steps == self.at:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        super().step(action)


def make_once(path: str, at: int) -> PettingZooEnv:
    return PettingZooEnv(OnceTableEnv(path, at))


def once_tables(path: Path, at: int) -> list[Callable[[], Any]]:
    """Return two env_fns, the second of an env that kills its process in that step."""
    return [make_table, functools.partial(make_once, str(path), at)]


def table_rows(pool: BaseVectorEnv, steps: int) -> tuple[list[tuple], int]:
    """Play a pool of tables.

    Returns:
        All rows, and how often an env was restored.
    """
    obs, infos = pool.reset(seed=3)
    actions = [legal(*row, False) for row in zip(obs, infos, strict=True)]
    rows: list[tuple] = [(obs[k], infos[k]) for k in range(len(infos))]
    restored = 0
    for _ in range(steps):
        obs, rewards, terminated, truncated, infos = pool.step(actions)
        ended = terminated | truncated
        actions = [legal(*row) for row in zip(obs, infos, ended, strict=True)]
        for info in infos:
            assert "env_error" not in info
            restored += info.pop("env_replayed", None) is not None
        rows += zip(obs, rewards, terminated, truncated, infos, strict=True)
        if pool.autoreset_mode is None:
            over = [k for k, info in enumerate(infos) if info["env_done"]]
            if over:
                obs, infos = pool.reset(over)
                rows += zip(obs, infos, strict=True)
                for first, info in zip(obs, infos, strict=True):
                    actions[info["env_id"]] = legal(first, info, False)
    return rows, restored


@pytest.mark.parametrize("at", [2, 9, 30])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PROCESSES)
def test_a_pettingzoo_env_is_restored(
    place: str, mode: str | None, at: int, tmp_path: Path
) -> None:
    with PLACES["dummy"]([make_table] * 2, autoreset_mode=mode) as pool:
        expected, _ = table_rows(pool, 40)
    fns = once_tables(tmp_path / "killed", at)
    options = {"on_error": "replay", "restart_backoff": 0.0, "autoreset_mode": mode}
    with PLACES[place](fns, **options) as pool:
        rows, restored = table_rows(pool, 40)
    assert (tmp_path / "killed").exists()
    assert restored == 1
    assert data_equivalence(rows, expected, exact=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_record_of_a_pettingzoo_env_is_replayed(
    place: str, mode: str | None, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    with PLACES[place]([make_table] * 2, autoreset_mode=mode, record=record) as pool:
        rows, _ = table_rows(pool, 40)
    again: list[tuple] = []
    with envpool_py.replay(record, [make_table] * 2) as batches:
        for batch in batches:
            again += zip(*batch, strict=True)
    assert len(again) == len(rows)
    for row, other in zip(rows, again, strict=True):
        if len(row) == 2:  # of a reset
            assert data_equivalence(row, (other[0], other[4]), exact=True)
        else:
            assert data_equivalence(row, other, exact=True)


# ------------------------------------------------- 6: a lost row of parallel envs has its error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["restart", "replay"])
@pytest.mark.parametrize("backend", ["dummy", "subproc", "shmem"])
def test_a_lost_row_of_a_parallel_env_tells_its_error(
    backend: str, on_error: str, mode: str | None
) -> None:
    fns = [PlainMeadowEnv, FaultyMeadowEnv]
    with ParallelVectorEnv(fns, backend, autoreset_mode=mode, on_error=on_error) as pool:
        pool.reset(seed=1)
        pool.set_env_attr("level", 2, [1])  # it will raise again when it is restored
        acts = {agent: [0, 0] for agent in PlainMeadowEnv.possible_agents}
        for _ in range(2):
            assert pool.step(acts)[4]["env_error"].tolist() == [None, None]
        _, rewards, terminated, truncated, info = pool.step(acts)
        assert info["env_error"][0] is None
        assert "env 1: " in info["env_error"][1]
        assert "the meadow burns" in info["env_error"][1]
        assert info["env_done"].tolist() == [False, True]
        for agent in PlainMeadowEnv.possible_agents:
            assert rewards[agent][1] == 0
            assert not terminated[agent][1]
            assert truncated[agent][1]
            assert info["valid"][agent][1]


# -------------------------------------- 10: the flags alone say that an ordinary episode is over


class DoneInfoEnv(envs.FaultEnv):
    """Has a key ``env_done`` of its own in every info."""

    def __init__(self, tag: int, value: Any) -> None:
        super().__init__(tag, length=3)
        self.value = value

    def told(self, info: dict) -> dict:
        return info if self.value is None else {**info, "env_done": self.value}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        obs, info = super().reset(seed=seed, options=options)
        return obs, self.told(info)

    def step(self, action: Any) -> tuple:
        *row, info = super().step(action)
        return *row, self.told(info)


def done_rows(place: str, mode: str, value: Any, options: dict[str, Any]) -> list[tuple]:
    """Return the rows of 8 steps, the fifth of which raises in env 1 if ``options`` allow it."""
    fns = [functools.partial(DoneInfoEnv, tag, value) for tag in range(3)]
    rows: list[tuple] = []
    with PLACES[place](fns, autoreset_mode=mode, **options) as pool:
        rows += zip(*pool.reset(), strict=True)
        for step in range(8):
            fault = "value" if options and step == 4 else ""
            rows += zip(*pool.step(["", fault, ""]), strict=True)
    for *_, info in rows:
        lost = [told for told in (info, info.get("final_info", {})) if "env_error" in told]
        if lost:
            for told in lost:
                told["env_error"] = told["env_error"].splitlines()[0]
                told.pop("env_done", None)  # the package may add its own to a lost row, or not
        for told in (info, info.get("final_info")):
            if told is not None and not lost:
                found = told.pop("env_done", None)
                assert np.array_equal(found, value) or (found is None and value is None)
    return rows


@pytest.mark.parametrize("options", [{}, RESTART], ids=["raise", "restart"])
@pytest.mark.parametrize(
    "value", [True, False, np.array([True, False]), "no"], ids=["True", "False", "array", "text"]
)
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", BACKENDS)
def test_an_env_done_of_an_ordinary_env_means_nothing(
    place: str, mode: str, value: Any, options: dict[str, Any]
) -> None:
    rows = done_rows(place, mode, value, options)
    expected = done_rows(place, mode, None, options)
    assert data_equivalence([row[:-1] for row in rows], [row[:-1] for row in expected], exact=True)
    for row, other in zip(rows, expected, strict=True):
        assert data_equivalence(row[-1], other[-1], exact=True)


# ----------------------------------- 11: what a signal handler raises while the caller steps envs


class Alarm:
    """Sends SIGUSR1 to the calling process once, when it is set off."""

    armed = False

    @classmethod
    def ring(cls) -> None:
        if cls.armed and os.getpid() == MAIN:
            cls.armed = False
            signal.raise_signal(signal.SIGUSR1)


class AlarmingArray:
    """An observation that becomes an array in ``__array__``, where it sends the signal."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        Alarm.ring()
        return np.array(self.values, dtype=dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: Any) -> Any:
        Alarm.ring()
        return self.values[place]


class AlarmingInfo(dict):
    """An info dict that sends the signal when it is read."""

    def __iter__(self) -> Any:
        Alarm.ring()
        return super().__iter__()

    def __getitem__(self, key: str) -> Any:
        Alarm.ring()
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Alarm.ring()
        return super().__contains__(key)

    def __len__(self) -> int:
        Alarm.ring()
        return super().__len__()

    def keys(self) -> Any:
        Alarm.ring()
        return super().keys()

    def values(self) -> Any:
        Alarm.ring()
        return super().values()

    def items(self) -> Any:
        Alarm.ring()
        return super().items()

    def get(self, key: str, default: Any = None) -> Any:
        Alarm.ring()
        return super().get(key, default)


class AlarmingValue:
    """A value of an info that sends the signal when it is copied."""

    def __reduce__(self) -> Any:
        Alarm.ring()
        return AlarmingValue, ()


CARRIERS: dict[str, Callable[[np.ndarray, dict], tuple]] = {
    "observation": lambda obs, info: (AlarmingArray(obs), {}),  # noqa: ARG005
    "observation beside info": lambda obs, info: (AlarmingArray(obs), info),
    "part of observation": lambda obs, info: ({"counts": AlarmingArray(obs), "text": "a"}, info),
    "info": lambda obs, info: (obs, AlarmingInfo(info)),
    "value in info": lambda obs, info: (obs, {**info, "value": AlarmingValue()}),
}


class AlarmingEnv(envs.CountEnv):
    """Returns rows that send the signal while the package stores them."""

    def __init__(self, tag: int, carrier: str) -> None:
        super().__init__(tag, length=3)
        self.carrier = carrier
        if carrier == "part of observation":
            parts = {"counts": self.observation_space, "text": spaces.Text(3)}
            self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        return CARRIERS[self.carrier](*super().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        del info["action"]
        obs, info = CARRIERS[self.carrier](obs, info)
        return obs, reward, terminated, truncated, info


def counts_of(obs: Any) -> list[int]:
    """Return the step of each row."""
    return [int((row["counts"] if isinstance(row, dict) else row)[2]) for row in obs]


@pytest.mark.parametrize("kind", [TypeError, ValueError, NotImplementedError])
@pytest.mark.parametrize("at", ["reset", "step", "end of the episode"])
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("place", IN_CALLER)
def test_what_a_signal_handler_raises_while_a_row_is_kept_passes_through(
    place: str, carrier: str, at: str, kind: type[Exception]
) -> None:
    def handler(*_: object) -> None:
        raise kind("of the handler")

    fns = [functools.partial(AlarmingEnv, tag, carrier) for tag in range(3)]
    with (
        PLACES[place](fns, autoreset_mode="same_step") as pool,
        handling(signal.SIGUSR1, handler),
    ):
        pool.reset()
        for _ in range(4 if at == "step" else 5):  # an episode has 3 steps
            pool.step([0] * 3)
        Alarm.armed = True
        try:
            with pytest.raises(kind, match="^of the handler$") as caught:
                pool.reset() if at == "reset" else pool.step([0] * 3)
        finally:
            Alarm.armed = False
        assert not isinstance(caught.value, EnvError)
        assert counts_of(pool.reset()[0]) == [0] * 3
        assert counts_of(pool.step([0] * 3)[0]) == [1] * 3


# ------------------------------------------------------ 23: the end of a wait for a restart

BACKOFF = 20.0
WAITING: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "reset": lambda pool: pool.reset([1]),
    "recv": lambda pool: pool.send_reset([1]) or pool.recv(),
    "get_env_attr": lambda pool: pool.get_env_attr("tag", [1]),
}


@contextlib.contextmanager
def pool_in_back_off(place: str) -> Iterator[BaseVectorEnv]:
    """Make a pool whose env 1 is to be restarted a second time, in 20 seconds."""
    with PLACES[place](FAULTY, on_error="restart", restart_backoff=BACKOFF) as pool:
        pool.reset()
        assert pool.step(["", "value", ""])[3].tolist() == [False, True, False]
        pool.reset([1])
        assert pool.step(["", "value", ""])[3].tolist() == [False, True, False]
        begun = time.monotonic()
        yield pool
        assert time.monotonic() - begun < BACKOFF / 2, "it has waited for the back-off to end"


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("place", QUICK)
def test_close_by_another_thread_ends_a_back_off(place: str, name: str, beside: Callable) -> None:
    main = threading.current_thread()
    with pool_in_back_off(place) as pool:

        def close() -> None:
            wait_until_blocked(main)
            pool.close()

        beside(close)
        with pytest.raises(ClosedEnvironmentError):
            WAITING[name](pool)


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("place", QUICK)
def test_close_by_a_signal_handler_ends_a_back_off(place: str, name: str, beside: Callable) -> None:
    main = threading.current_thread()

    def send_signal() -> None:
        wait_until_blocked(main)
        signal.pthread_kill(main.ident, signal.SIGUSR1)

    with (
        pool_in_back_off(place) as pool,
        handling(signal.SIGUSR1, lambda *_: pool.close()),
    ):
        beside(send_signal)
        with pytest.raises(ClosedEnvironmentError):
            WAITING[name](pool)


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("place", QUICK)
def test_ctrl_c_ends_a_back_off(place: str, name: str, beside: Callable) -> None:
    main = threading.current_thread()

    def press() -> None:
        wait_until_blocked(main)
        signal.pthread_kill(main.ident, signal.SIGINT)

    with (
        pool_in_back_off(place) as pool,
        handling(signal.SIGINT, signal.default_int_handler),
    ):
        beside(press)
        with pytest.raises(KeyboardInterrupt):
            WAITING[name](pool)
        assert pool.step(["", ""], [0, 2])[0][:, 2].tolist() == [3, 3]


# ------------------------------------------------- 24: a restart by hand renews the budget


@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_a_restart_by_hand_renews_the_budget_of_the_whole_process(kind: str) -> None:
    with PLACES[kind](FAULTY, num_processes=1, max_restarts=1, **RESTART) as pool:
        pool.reset()
        kill(pool, 0)
        assert pool.step([""] * 3)[3].tolist() == [True] * 3
        pool.reset()
        kill(pool, 0)
        with pytest.raises(WorkerDiedError):  # all budgets are spent
            pool.step([""] * 3)
        if pool.waiting_id:
            with contextlib.suppress(WorkerDiedError):
                pool.drain()
        pool.restart([0])
        assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
        kill(pool, 0)
        assert pool.step([""] * 3)[3].tolist() == [True] * 3
        assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1] * 3


# -------------------------------------------------------------- 25: a pool cannot be copied


class OwnVectorEnv(ShmemVectorEnv):
    """A subclass, to be named in its place."""


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("kind", [DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv, OwnVectorEnv])
def test_a_pool_cannot_be_copied(kind: type[BaseVectorEnv], name: str) -> None:
    with kind([functools.partial(envs.CountEnv, tag) for tag in range(2)]) as pool:
        pool.reset()
        with pytest.raises(TypeError, match=rf"{kind.__name__}\b.*; \w+"):
            COPIES[name](pool)
        assert not pool.is_closed
        assert pool.step([0, 0])[0].tolist() == [[0, 0, 1], [1, 0, 1]]


# ------------------------------------------- 26: an env_fn that hangs while its process restarts


def make_or_hang(tag: int, made: Path, hangs: int) -> envs.FaultEnv:
    """Make an env; the calls 2 to ``1 + hangs`` of all processes together hang."""
    with made.open("ab") as file:
        file.write(b"x")
        calls = file.tell()
    while 1 < calls <= 1 + hangs:
        signal.pause()
    return envs.FaultEnv(tag)


def some_hang(made: Path, hangs: int) -> list[Callable[[], Any]]:
    return [FAULTY[0], functools.partial(make_or_hang, 1, made, hangs), FAULTY[2]]


@pytest.mark.parametrize("mode", [None, "next_step"])
@pytest.mark.parametrize("place", PROCESSES)
def test_a_restart_that_hangs_is_tried_again(place: str, mode: str | None, tmp_path: Path) -> None:
    fns = some_hang(tmp_path / "made", 1)
    options = {"step_timeout": 0.5, "max_restarts": 2, "autoreset_mode": mode, **RESTART}
    with PLACES[place](fns, **options) as pool:
        pool.reset()
        mates = [i for i in range(3) if pool.workers[i].process is pool.workers[1].process]
        kill(pool, 1)
        truncated = pool.step([""] * 3)[3]
        assert np.flatnonzero(truncated).tolist() == mates
        # The death was the first, the env_fn that hung the second restart of two.
        if mode is None:
            assert pool.reset()[0].tolist()[1] == [1, 0, 0]
        else:
            obs, _, _, _, infos = pool.step([""] * 3)
            assert [info.get("is_reset", False) for info in infos] == truncated.tolist()
            assert obs[1].tolist() == [1, 0, 0]
        assert (tmp_path / "made").stat().st_size == 3
        assert not pool.step([""] * 3)[3].any()


@pytest.mark.parametrize("place", PACKED)
def test_a_restart_that_hangs_spends_the_budget_of_that_env(place: str, tmp_path: Path) -> None:
    fns = some_hang(tmp_path / "made", 99)
    with PLACES[place](fns, step_timeout=0.5, max_restarts=1, **RESTART) as pool:
        pool.reset()
        kill(pool, 1)
        assert pool.step([""] * 3)[3].tolist() == [True, True, False]
        with pytest.raises(EnvTimeoutError, match=r"env 1: ") as caught:
            pool.reset([0, 1])
        assert caught.value.env_ids == (1,)
        assert "make_or_hang" in str(caught.value)
        # Env 0 shares the process: it returns a row or an error, and does not block.
        with contextlib.suppress(EnvError):
            pool.drain()
        assert pool.step([""], [2])[0].tolist() == [[2, 0, 2]]


# ------------------------------------------------------------------- 28: one call at a time

SECOND: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "step": lambda pool: pool.step([0], [0]),
    "step(None)": lambda pool: pool.step(None),
    "send": lambda pool: pool.send([0], [0]),
    "recv": lambda pool: pool.recv(),
    "drain": lambda pool: pool.drain(),
    "reset": lambda pool: pool.reset([0]),
    "send_reset": lambda pool: pool.send_reset([0]),
    "cancel": lambda pool: pool.cancel(),
    "get_env_attr": lambda pool: pool.get_env_attr("tag", [0]),
    "call": lambda pool: pool.call("counts", id=[0]),
    "restart": lambda pool: pool.restart([0]),
}


def gated(gates: list[envs.Gate]) -> list[Callable[[], Any]]:
    return [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]


def went_on(pool: BaseVectorEnv, batch: tuple) -> None:
    """Assert that the step of env 1 has returned its row, and that nothing else has happened."""
    assert batch[0].tolist() == [[1, 0, 1]]
    assert [info["env_id"] for info in batch[4]] == [1]
    assert pool.call("counts") == [(0, 1), (1, 1), (0, 1)]
    assert pool.step([0] * 3)[0][:, 2].tolist() == [1, 2, 1]


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_call_of_a_second_thread_is_refused(
    place: str, name: str, gates: list[envs.Gate], beside: Callable
) -> None:
    batches = []
    with PLACES[place](gated(gates)) as pool:
        pool.reset()
        first = beside(lambda: batches.append(pool.step([envs.BLOCK], [1])))
        with gates[1].held(), pytest.raises(AlreadyPendingCallError):
            SECOND[name](pool)
        first.finish()
        went_on(pool, batches[0])


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_call_of_a_signal_handler_is_refused(
    place: str, name: str, gates: list[envs.Gate], beside: Callable
) -> None:
    main = threading.get_ident()
    errors: list[BaseException | None] = []

    def handler(*_: object) -> None:
        try:
            SECOND[name](pool)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)
        else:
            errors.append(None)

    def interrupt() -> None:
        with gates[1].held():
            assert wait_until(lambda: signalled(main, bool(errors)))

    with PLACES[place](gated(gates)) as pool, handling(signal.SIGUSR1, handler):
        pool.reset()
        beside(interrupt)
        batch = pool.step([envs.BLOCK], [1])
        assert isinstance(errors[0], AlreadyPendingCallError)
        went_on(pool, batch)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_second_thread_may_close_the_pool(
    place: str, gates: list[envs.Gate], beside: Callable
) -> None:
    def close() -> None:
        with gates[1].held():
            closing = beside(pool.close)
            wait_until(lambda: pool.is_closed)
        closing.finish()

    with PLACES[place](gated(gates)) as pool:
        pool.reset()
        closer = beside(close)
        with pytest.raises(ClosedEnvironmentError):
            pool.step([envs.BLOCK], [1])
        closer.finish()
        assert pool.is_closed


@pytest.mark.parametrize("place", BACKENDS)
def test_a_signal_handler_may_close_the_pool(
    place: str, gates: list[envs.Gate], beside: Callable
) -> None:
    main = threading.get_ident()

    def interrupt() -> None:
        with gates[1].held():
            signal.pthread_kill(main, signal.SIGUSR1)
            wait_until(lambda: pool.is_closed)

    with (
        PLACES[place](gated(gates)) as pool,
        handling(signal.SIGUSR1, lambda *_: pool.close()),
    ):
        pool.reset()
        beside(interrupt)
        with pytest.raises(ClosedEnvironmentError):
            pool.step([envs.BLOCK], [1])
        assert pool.is_closed


# --------------------------------------------- 30: Ctrl-C while the processes of a pool are forked

CTRL_C = """
    import gc, os, random, signal, sys, threading, time
    from pathlib import Path

    import envpool_py
    from envpool_py.testing import CountingEnv

    ROUNDS = 40
    kind = getattr(envpool_py, sys.argv[1])

    def children():
        tasks = Path("/proc/self/task").iterdir()
        return [pid for task in tasks for pid in (task / "children").read_text().split()]

    def busy():
        while not over.is_set():
            sum(range(1000))

    def press(seconds):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    def make():
        return kind([CountingEnv] * 4, context="fork")

    sys.setswitchinterval(1e-4)  # or the busy thread would have most of the time
    over = threading.Event()
    threading.Thread(target=busy, daemon=True).start()
    swallowed = []
    sys.unraisablehook = lambda unraisable: swallowed.append(repr(unraisable.exc_value))
    rng = random.Random(int(sys.argv[2]))
    begun = time.perf_counter()
    for _ in range(3):
        make().close()
    seconds = (time.perf_counter() - begun) / 3

    within = 0
    for n in range(ROUNDS):
        pool = None
        thread = threading.Thread(target=press, args=(rng.random() * seconds,))
        try:
            thread.start()
            pool = make()
            for _ in range(1000):
                time.sleep(0.005)
            outcome = "swallowed"
        except KeyboardInterrupt:
            outcome = "KeyboardInterrupt"
        except BaseException as error:
            outcome = repr(error)
        thread.join()
        if pool is None:
            within += 1
        else:
            pool.close()
        del pool
        gc.collect()
        limit = time.monotonic() + 5
        while children() and time.monotonic() < limit:
            time.sleep(0.005)
        if outcome != "KeyboardInterrupt" or swallowed or children():
            print(f"round {n}: {outcome}, unraisable {swallowed}, left {children()}", flush=True)
            over.set()
            os._exit(1)
    over.set()
    print(f"{within} within the constructor")
    sys.exit(0 if within >= 5 else 2)
"""


@pytest.mark.parametrize("kind", ["SubprocVectorEnv", "ShmemVectorEnv"])
def test_ctrl_c_while_a_pool_is_constructed_is_never_swallowed(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "press.py"
    script.write_text(textwrap.dedent(CTRL_C))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, kind, "7"],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


# ---------------------------------------------------- 31: one warning per pool of fork and threads


@pytest.fixture
def python_warns_of_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``os.fork`` warn of threads as it does from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        return
    fork = os.fork

    def warning_fork() -> int:
        if threading.active_count() > 1:
            warnings.warn(
                f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to"
                " deadlocks in the child.",
                DeprecationWarning,
                stacklevel=2,
            )
        return fork()

    monkeypatch.setattr(os, "fork", warning_fork)


@pytest.fixture
def second_thread() -> Iterator[None]:
    """Have a second thread run."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def warned(act: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return caught


@pytest.mark.usefixtures("python_warns_of_forks", "second_thread")
@pytest.mark.parametrize("place", ["subproc-fork", "shmem-fork", "shmem-fork-packed"])
def test_one_warning_for_each_pool_that_is_forked_beside_threads(place: str) -> None:
    pools: list[BaseVectorEnv] = []
    with contextlib.ExitStack() as stack:

        def make() -> None:
            pools.append(stack.enter_context(PLACES[place](FAULTY)))

        for _ in range(2):
            caught = warned(make)
            assert len(caught) == 1, [str(one.message) for one in caught]
            assert issubclass(caught[0].category, DeprecationWarning)
            assert 'context="forkserver"' in str(caught[0].message)
        for pool in pools:
            pool.reset()
            kill(pool, 0)
            assert warned(functools.partial(pool.restart, [0])) == []
            assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]


@pytest.mark.usefixtures("python_warns_of_forks", "second_thread")
@pytest.mark.parametrize("place", ["dummy", "shmem-forkserver", "subproc-spawn"])
def test_no_warning_of_a_pool_that_is_not_forked(place: str) -> None:
    assert warned(lambda: PLACES[place](FAULTY[:2]).close()) == []


def test_no_warning_where_there_is_no_second_thread() -> None:
    script = """
        import warnings
        import envpool_py
        from envpool_py.testing import CountingEnv

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envpool_py.ShmemVectorEnv([CountingEnv] * 2, context="fork").close()
        print([str(one.message) for one in caught])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[]\n"


# -------------------------------- 13 and 14: one way for what is measured, one message for all


@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_a_measured_pool_takes_the_same_way(kind: type[BaseVectorEnv]) -> None:
    called: dict[bool, list[str]] = {}
    for measure in (False, True):
        with kind([envs.CountEnv] * 4, measure=measure) as pool:
            pool.reset()
            for _ in range(3):
                pool.step([0] * 4)
            names: list[str] = []

            def note(frame: Any, event: str, arg: Any, names: list[str] = names) -> None:  # noqa: ARG001
                if event == "call" and "envpool_py" in frame.f_code.co_filename:
                    names.append(frame.f_code.co_name)

            sys.setprofile(note)
            try:
                pool.step([0] * 4)
            finally:
                sys.setprofile(None)
            called[measure] = [name for name in names if name not in POLLING | MEASURING]
    assert called[True] == called[False]


POLLING = {"advance", "fetch", "collect", "_wait"}  # as often as there is something to wait for
MEASURING = {"note_step", "note_reset", "now", "step", "_bin"}


@pytest.mark.parametrize("seed", [None, 7])
def test_resets_are_one_message_for_each_process(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShmemVectorEnv([envs.CountEnv] * 64, num_processes=2) as pool:
        written = []
        write = os.write

        def count(fd: int, data: bytes) -> int:
            written.append(len(data))
            return write(fd, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", count)
            pool.reset(seed=seed)
        assert len(written) == 2
