"""`on_error="replay"`: a lost env is restored to its step; the run equals an undisturbed one."""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import BaseVectorEnv, EnvError, WorkerDiedError
from envpool_py.worker import DummyEnvWorker
from tests import envs
from tests.faults.helpers import EACH, MODES, PROCESSES, kill, mates_of
from tests.places import PLACES
from tests.reference import same

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REPLAY: dict[str, Any] = {"on_error": "replay", "restart_backoff": 0.0}
FAULTY = [functools.partial(envs.FaultEnv, tag, 4) for tag in range(3)]


class Once(gym.Wrapper):
    """Fails in step `at` since it was made, or in reset `-at`, but only once in all.

    What it has left in a file says that it has; so a new process knows as well.
    """

    def __init__(self, env: gym.Env, path: str, at: int, fault: str) -> None:
        super().__init__(env)
        self.path, self.at, self.fault = path, at, fault
        self.steps = self.resets = 0

    def _fail(self) -> None:
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.fault in envs.DIE:
            envs.DIE[self.fault]()
        while self.fault == "hang":
            signal.pause()
        message = "once"
        raise ValueError(message)

    def reset(self, **kwargs: Any) -> tuple:
        self.resets += 1
        if -self.resets == self.at:
            self._fail()
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple:
        self.steps += 1
        if self.steps == self.at:
            self._fail()
        return super().step(action)


def make(tag: int, name: str, path: str, at: int, fault: str) -> gym.Env:
    env = envs.RandomEnv(tag) if name == "random" else envs.SpaceEnv(tag, name)
    return Once(env, path, at, fault) if fault else env


def fns_of(path: Path, faults: dict[int, tuple[int, str]], name: str = "random") -> list[Any]:
    return [
        functools.partial(make, tag, name, str(path / f"{tag}"), *faults.get(tag, (0, "")))
        for tag in range(3)
    ]


def episodes(
    pool: BaseVectorEnv, steps: int, seed: int | None = 5
) -> tuple[list[list[Any]], dict[int, list[str]]]:
    """Step every env so often, sync or async; return their rows, and what was told of replays."""
    rows: list[list[Any]] = [[] for _ in range(3)]
    told: dict[int, list[str]] = {}

    def keep(batch: Sequence[Any]) -> list[int]:
        ids = []
        for k, info in enumerate(batch[-1]):
            i = info["env_id"]
            assert "env_error" not in info
            if "env_replayed" in info:
                told.setdefault(i, []).append(info.pop("env_replayed").splitlines()[0])
            ids.append(i)
            rows[i].append((*(part[k] for part in batch[:-1]), info))
        return ids

    rng = np.random.default_rng(2)
    space = pool.action_space[0]
    actions = [[envs.draw(space, rng) for _ in range(steps)] for _ in range(3)]
    keep(pool.reset(seed=seed))
    count = [0, 0, 0]
    ids = [0, 1, 2]
    while min(count) < steps:
        ids = [i for i in ids if count[i] < steps]
        batch = pool.step([actions[i][count[i]] for i in ids], ids) if ids else pool.recv()
        for i in ids:
            count[i] += 1
        ids = keep(batch)
        if pool.autoreset_mode is None and len(ended := np.array(ids)[batch[2] | batch[3]]):
            keep(pool.reset(ended))
    if pool.waiting_id:
        keep(pool.drain())
    return rows, told


def undisturbed(path: Path, steps: int, name: str = "random", **options: Any) -> list[list[Any]]:
    with PLACES["dummy"](fns_of(path, {}, name), **options) as pool:
        return episodes(pool, steps)[0]


FAULTS = {
    "dummy": {1: (9, "raise"), 2: (4, "raise")},
    "subproc-fork": {0: (6, "SIGKILL"), 1: (9, "raise"), 2: (12, "SIGSEGV")},
    "shmem-fork": {0: (6, "os._exit"), 1: (9, "raise"), 2: (12, "SIGSEGV")},
    "shmem-fork-packed": {0: (6, "SIGKILL"), 2: (9, "raise")},
    "shmem-fork-caller": {0: (6, "SIGKILL"), 2: (9, "raise")},
}


RUNS = [
    *((place, mode, num, num is not None) for place in EACH for mode in MODES for num in (None, 2)),
    *(("shmem-fork-packed", mode, None, True) for mode in MODES),
    *(("shmem-fork-packed", mode, 2, False) for mode in MODES),
    ("subproc-fork", "same_step", 2, False),
]


@pytest.mark.parametrize(("place", "mode", "wait_num", "schedule"), RUNS)
def test_the_run_is_as_if_nothing_had_happened(
    place: str, mode: str | None, wait_num: int | None, schedule: bool, tmp_path: Path
) -> None:
    options = {"autoreset_mode": mode, "episode_seeds": schedule}
    with PLACES[place](
        fns_of(tmp_path, FAULTS[place]), wait_num=wait_num, **options, **REPLAY
    ) as pool:
        rows, told = episodes(pool, 24)
    assert same(rows, undisturbed(tmp_path, 24, **options))
    assert told.keys() >= FAULTS[place].keys()
    for i in FAULTS[place]:
        assert told[i][0].startswith(f"env {i}: ")


def odd_resets(env_id: int, episode: int) -> tuple:
    """Seed every other episode alone."""
    return (env_id + episode if episode % 2 else None), {"scale": 1.0 + episode}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_with_a_reset_fn(place: str, mode: str | None, tmp_path: Path) -> None:
    options = {"autoreset_mode": mode, "reset_fn": odd_resets}
    fault = "raise" if place == "dummy" else "SIGKILL"
    with PLACES[place](fns_of(tmp_path, {1: (20, fault)}), **options, **REPLAY) as pool:
        rows, told = episodes(pool, 30)
        assert not any("reset_fn" in key for own in rows for row in own for key in row[-1])
    assert same(rows, undisturbed(tmp_path, 30, **options))
    assert 1 in told


@pytest.mark.parametrize("fault", ["raise", "SIGKILL"])
@pytest.mark.parametrize("mode", MODES)
def test_a_reset_that_fails_once(mode: str | None, fault: str, tmp_path: Path) -> None:
    with PLACES["shmem-fork"](
        fns_of(tmp_path, {1: (-3, fault)}), autoreset_mode=mode, **REPLAY
    ) as pool:
        if mode == "same_step" and fault == "raise":
            # The row of the ended step was handed out already, without the next episode's.
            with pytest.raises(AssertionError):
                episodes(pool, 24)
            return
        rows, told = episodes(pool, 24)
    assert same(rows, undisturbed(tmp_path, 24, autoreset_mode=mode))
    assert list(told) == [1]


@pytest.mark.parametrize("name", ["dict", "nested", "text", "every-dtype", "sequence", "custom"])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_every_kind_of_action(place: str, name: str, tmp_path: Path) -> None:
    fault = "raise" if place == "dummy" else "SIGKILL"
    with PLACES[place](fns_of(tmp_path, {1: (3, fault)}, name), **REPLAY) as pool:
        rows, told = episodes(pool, 4)
        obs = pool.step([None], [1])[0]  # None is an action as well
        assert len(obs) == 1
    assert same(rows, undisturbed(tmp_path, 4, name))
    assert 1 in told


@pytest.mark.slow
def test_an_env_that_hangs_once(tmp_path: Path) -> None:
    with PLACES["shmem-fork-packed"](
        fns_of(tmp_path, {1: (5, "hang")}), step_timeout=0.6, autoreset_mode="next_step", **REPLAY
    ) as pool:
        rows, told = episodes(pool, 10)
    assert same(rows, undisturbed(tmp_path, 10, autoreset_mode="next_step"))
    assert told[1][0].startswith("env 1: did not end its request within step_timeout")


@pytest.mark.parametrize("place", PROCESSES)
def test_idle_envs_of_a_dead_process_are_restored(place: str, tmp_path: Path) -> None:
    hand = [make(tag, "random", "", 0, "") for tag in range(3)]
    with PLACES[place](fns_of(tmp_path, {}), **REPLAY) as pool:
        pool.set_env_attr("mark", 3)
        pool.reset(seed=5)
        for i, env in enumerate(hand):
            env.reset(seed=5 + i)
        pool.step([1, 2, 3])
        for i, env in enumerate(hand):
            env.step(1 + i)
        mates = mates_of(pool, 1)
        kill(pool, 1)
        with pytest.raises(WorkerDiedError):  # as under "restart": it died in this very call
            pool.get_env_attr("mark", mates[-1:])
        assert pool.get_env_attr("mark", mates[-1:]) == [3]
        batch = pool.step([0, 0, 0])
        for k, env in enumerate(hand):
            obs, reward, *_ = env.step(0)
            assert (batch[0][k].tolist(), batch[1][k]) == (obs.tolist(), reward)
            assert ("env_replayed" in batch[4][k]) == (k in mates)
        assert pool.get_env_attr("mark") == [3, 3, 3]
        kill(pool, 1)
        obs, infos = pool.reset([1])  # goes on with its stream
        assert obs[0].tolist() == hand[1].reset()[0].tolist()
        assert "killed by SIGKILL" in infos[0]["env_replayed"]


# ------------------------------------------------------------------------------- where it can't be


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["value", "SIGKILL"])
def test_what_fails_again_is_restarted(fault: str, mode: str | None) -> None:
    told: list[tuple[int, EnvError]] = []
    with PLACES["shmem-fork"](
        FAULTY, autoreset_mode=mode, on_restart=lambda i, e: told.append((i, e)), **REPLAY
    ) as pool:
        pool.reset()
        pool.step(["", "", ""])
        batch = pool.step(["", fault, ""])
        assert batch[3].tolist() == [False, True, False]
        assert "env_error" in batch[4][1]
        assert "env_replayed" not in batch[4][1]
        assert [i for i, _ in told] == [1] if mode is None else [1, 1][: len(told)]
        if mode is None:
            pool.reset([1])
        assert [i for i, _ in told][:2] == [1, 1] if mode != "next_step" else [1]
        batch = pool.step(["", "", ""])
        assert batch[0][1].tolist() == ([1, 0, 0] if mode == "next_step" else [1, 0, 1])
        assert [i for i, _ in told] == [1, 1]  # each of them is counted


def test_the_budget_holds() -> None:
    with PLACES["dummy"](FAULTY, max_restarts=3, **REPLAY) as pool:
        pool.reset()
        assert "env_error" in pool.step(["", "value", ""])[4][1]
        pool.reset([1])
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
            pool.step(["", "value", ""])  # it is restored once, and not recreated once more


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_env_that_is_not_deterministic_is_restarted(place: str, tmp_path: Path) -> None:
    fault = "raise" if place == "dummy" else "SIGKILL"
    with PLACES[place](fns_of(tmp_path, {1: (3, fault)}), **REPLAY) as pool:
        pool.reset()  # nobody knows these seeds
        pool.step([0, 0, 0])
        pool.step([0, 0, 0])
        batch = pool.step([0, 0, 0])
        assert batch[3][1]
        error = batch[4][1]["env_error"]
        assert "replay: the reset since its last reset by the pool gave another row" in error
        assert "the env is not deterministic; it was lost in the first place by" in error


def test_an_env_with_a_cancelled_step_is_not_restored(tmp_path: Path) -> None:
    with PLACES["subproc-fork"](fns_of(tmp_path, {}), **REPLAY) as pool:
        pool.reset(seed=1)
        pool.send([0], [1])
        pool.cancel([1])
        pool.reset([1])  # from where the step has left the stream, or has not
        kill(pool, 1)
        batch = pool.step([0, 0, 0])
        assert "env_error" in batch[4][1]
        assert batch[3][1]


def test_a_past_that_is_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("envpool_py.record.history.MAX_STEPS", 5)
    with PLACES["dummy"](fns_of(tmp_path, {1: (8, "raise"), 2: (4, "raise")}), **REPLAY) as pool:
        pool.reset(seed=1)
        batches = [pool.step([0, 0, 0]) for _ in range(8)]
        assert "env_replayed" in batches[3][4][2]
        assert "env_error" in batches[7][4][1]


def test_a_seeded_reset_begins_a_new_past(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("envpool_py.record.history.MAX_STEPS", 5)
    with PLACES["dummy"](fns_of(tmp_path, {1: (8, "raise")}), **REPLAY) as pool:
        for seed in (1, 2):
            pool.reset(seed=seed)
            batches = [pool.step([0, 0, 0]) for _ in range(4)]
        assert "env_replayed" in batches[3][4][1]


class PlainWorker(DummyEnvWorker):
    """A custom worker: nothing but `send` and `recv`."""

    def recv(self) -> Any:
        return super().recv()


class NoReplayWorker(PlainWorker):
    """Does not know the request that restores an env."""

    def recv(self) -> Any:
        if self._request is not None and self._request.kind == "run":
            message = "run"
            raise NotImplementedError(message)
        return super().recv()


@pytest.mark.parametrize(("worker", "back"), [(PlainWorker, True), (NoReplayWorker, False)])
def test_custom_workers(worker: type, back: bool, tmp_path: Path) -> None:
    with BaseVectorEnv(fns_of(tmp_path, {1: (3, "raise")}), worker, **REPLAY) as pool:
        pool.reset(seed=5)
        batches = [pool.step([0, 0, 0]) for _ in range(3)]
        assert ("env_replayed" in batches[2][4][1]) == back
        assert ("env_error" in batches[2][4][1]) != back


def test_restart_by_hand_makes_new_envs() -> None:
    with PLACES["shmem-fork-packed"](FAULTY, **REPLAY) as pool:
        pool.reset(seed=1)
        pool.step(["", "", ""])
        pool.restart()
        obs, infos = pool.reset()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert not any("env_replayed" in info for info in infos)
