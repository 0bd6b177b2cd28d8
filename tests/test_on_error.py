"""`on_error="restart"`: an env that fails is made anew, told once, and nobody else notices."""

from __future__ import annotations

import functools
import os
import select
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from envpool_py import EnvError, WorkerDiedError
from tests.support import envs
from tests.support.places import PLACES, PROCESSES, QUICK
from tests.test_faults import FNS, RAISED, running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from envpool_py import BaseVectorEnv

RESTART: dict[str, Any] = {"on_error": "restart", "restart_backoff": 0.0}
PACKED = ("subproc-fork-packed", "shmem-fork-packed")
EACH_ITS_PROCESS = ("subproc-fork", "shmem-fork")
EACH_METHOD = ("subproc-spawn", "shmem-spawn", "subproc-forkserver", "shmem-forkserver")


def row(batch: tuple, k: int) -> tuple:
    """Return row `k` of a batch: observation, reward, flags, info."""
    return batch[0][k].tolist(), *(part[k] for part in batch[1:])


def lost(batch: tuple, k: int, obs: list[int], text: str) -> bool:
    """Assert that row `k` is that of a lost episode whose last observation was `obs`."""
    got, reward, terminated, truncated, info = row(batch, k)
    assert (got, reward, bool(terminated), bool(truncated)) == (obs, 0.0, False, True)
    assert text in info["env_error"]
    return True


# ------------------------------------------------------------------- the caller resets (None)


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("place", QUICK)
def test_an_exception_becomes_a_truncated_row(place: str, name: str) -> None:
    told: list[tuple[int, EnvError]] = []
    with PLACES[place](FNS, **RESTART, on_restart=lambda i, e: told.append((i, e))) as pool:
        pool.reset()
        pool.step(["", "", ""])
        pids = pool.call("pid")
        batch = pool.step(["", name, ""])
        assert lost(batch, 1, [1, 0, 1], f"env 1: step raised {RAISED[name][1].split(':')[0]}")
        assert batch[4][1]["env_id"] == 1
        assert [row(batch, k)[0] for k in (0, 2)] == [[0, 0, 2], [2, 0, 2]]
        assert not batch[3][[0, 2]].any()
        assert "env_error" not in batch[4][0]
        with pytest.raises(ResetNeeded, match="env 1: it was restarted; reset before step"):
            pool.step(["", "", ""])
        obs, infos = pool.reset([1])
        # A new env: this is its first episode. Its process is the same.
        assert obs.tolist() == [[1, 0, 0]]
        assert "env_error" not in infos[0]
        assert pool.call("pid") == pids
        assert [i for i, _ in told] == [1]
        assert isinstance(told[0][1], EnvError)
        assert pool.step(["", "", ""])[0][:, 2].tolist() == [3, 1, 3]


@pytest.mark.parametrize("death", envs.DIE)
@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_death_becomes_a_truncated_row(place: str, death: str) -> None:
    with PLACES[place](FNS, **RESTART) as pool:
        pool.reset()
        batch = pool.step(["", death, ""])
        assert lost(batch, 1, [1, 0, 0], "env 1: the worker process ")
        assert [row(batch, k)[0] for k in (0, 2)] == [[0, 0, 1], [2, 0, 1]]
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        assert pool.step(["", "", ""])[0][:, 2].tolist() == [2, 1, 2]


@pytest.mark.parametrize("place", EACH_METHOD)
def test_under_every_start_method(place: str) -> None:
    with PLACES[place](FNS[:2], **RESTART) as pool:
        pool.reset()
        batch = pool.step(["", "SIGKILL"])
        assert lost(batch, 1, [1, 0, 0], "killed by SIGKILL")
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        assert pool.step(["", ""])[0][:, 2].tolist() == [2, 1]


@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_every_env_of_a_dead_process_is_reported_once(kind: str) -> None:
    with PLACES[kind](FNS, num_processes=1, **RESTART) as pool:
        pool.reset()
        assert lost(pool.step(["SIGKILL"], [1]), 0, [1, 0, 0], "env 1: ")
        # Idle ones: with their next step, which is not carried out, or with their next reset.
        batch = pool.step([""], [0])
        assert lost(batch, 0, [0, 0, 0], "env 0: the worker process was killed by SIGKILL")
        obs, infos = pool.reset([2])
        assert obs.tolist() == [[2, 0, 0]]
        assert "env 2: the worker process was killed" in infos[0]["env_error"]
        with pytest.raises(ResetNeeded):
            pool.step([""], [0])
        obs, infos = pool.reset([0, 1])
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0]]
        assert not any("env_error" in info for info in infos)
        batch = pool.step(["", "", ""])
        assert batch[0][:, 2].tolist() == [1, 1, 1]
        assert not any("env_error" in info for info in batch[4])
        assert len(set(pool.call("pid"))) == 1


@pytest.mark.parametrize("place", PACKED)
def test_an_exception_does_not_disturb_the_envs_beside_it(place: str) -> None:
    with PLACES[place](FNS, **RESTART) as pool:
        pool.reset()
        pids = pool.call("pid")
        assert pids[0] == pids[1]
        for n in range(1, 6):
            batch = pool.step(["", "value", ""])
            assert lost(batch, 1, [1, 0, 0], "env 1: step raised ValueError: boom")
            assert batch[0][[0, 2], 2].tolist() == [n, n]
            pool.reset([1])
        assert pool.call("pid") == pids


@pytest.mark.parametrize("place", PROCESSES)
def test_killed_while_idle(place: str) -> None:
    with PLACES[place](FNS, **RESTART) as pool:
        pool.reset()
        for pid in set(pool.call("pid")):
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: not running(pid))
        batch = pool.step(["", "", ""])
        for i in range(3):
            assert lost(batch, i, [i, 0, 0], "SIGKILL")
        assert pool.reset()[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


@pytest.mark.parametrize("place", PROCESSES)
def test_a_request_without_a_row_finds_the_env_made_anew(place: str) -> None:
    with PLACES[place](FNS, **RESTART) as pool:
        pool.reset()
        with pytest.raises(WorkerDiedError, match="env 1: "):
            pool.call("fault", "SIGKILL", id=[1])
        assert pool.get_env_attr("tag") == [0, 1, 2]
        batch = pool.step([""], [1])
        assert lost(batch, 0, [1, 0, 0], "SIGKILL")
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        assert pool.seed(3) == [[3], [4], [5]]


@pytest.mark.parametrize("place", QUICK)
def test_what_the_caller_does_to_a_batch_does_not_reach_the_last_observation(place: str) -> None:
    with PLACES[place](FNS, copy=False, **RESTART) as pool:
        obs, _ = pool.reset()
        if place != "dummy":  # there it is the very memory, as copy=False says
            obs[:] = -1
        batch = pool.step(["", "value", ""])
        assert lost(batch, 1, [1, 0, 0], "boom")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("space", ["mixed", "nested", "text", "sequence", "discrete"])
@pytest.mark.parametrize("place", QUICK)
def test_the_last_observation_of_any_space(place: str, space: str, columns: bool) -> None:
    fns = [functools.partial(Breaks, tag, space) for tag in range(3)]
    hand = fns[1]()
    want, _ = hand.reset(seed=5)
    with PLACES[place](fns, columns=columns, **RESTART) as pool:
        pool.reset(seed=4)
        batch = pool.call("break_next", id=[1]) and pool.step(_actions(pool))
        assert batch[3].tolist() == [False, True, False]
        assert "broken" in batch[4][1]["env_error"]
        if not columns or not isinstance(batch[0], (dict, tuple)):
            assert data_equivalence(_plain(batch[0][1], hand.observation_space), want)
        pool.reset([1])
        assert not pool.step(_actions(pool))[3].any()


def _plain(value: Any, space: gym.Space) -> Any:
    return np.int64(value) if isinstance(space, gym.spaces.Discrete) else value


def _actions(pool: BaseVectorEnv) -> list[Any]:
    return [space.sample() for space in pool.action_space]


class Breaks(envs.SpaceEnv):
    """A SpaceEnv whose next step raises when it has been told so."""

    breaks = False

    def break_next(self) -> bool:
        self.breaks = True
        return True

    def step(self, action: Any) -> tuple:
        if self.breaks:
            raise OSError("broken")
        return super().step(action)


# -------------------------------------------------------------------------- automatic resets


@pytest.mark.parametrize("fault", ["value", "SIGKILL"])
@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_next_step_mode(place: str, fault: str) -> None:
    with PLACES[place](FNS, autoreset_mode="next_step", **RESTART) as pool:
        pool.reset()
        pool.step(["", "", ""])
        batch = pool.step(["", fault, ""])
        assert lost(batch, 1, [1, 0, 1], "env 1: ")
        batch = pool.step(["", "value", ""])  # of a reset: the action is ignored
        obs, reward, terminated, truncated, info = row(batch, 1)
        assert (obs, reward, bool(terminated), bool(truncated)) == ([1, 0, 0], 0.0, False, False)
        assert info["is_reset"] is True
        assert "env_error" not in info
        assert batch[0][[0, 2], 2].tolist() == [3, 3]
        assert pool.step(["", "", ""])[0][:, 2].tolist() == [4, 1, 4]


@pytest.mark.parametrize("fault", ["value", "SIGKILL"])
@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_same_step_mode(place: str, fault: str) -> None:
    with PLACES[place](FNS, autoreset_mode="same_step", **RESTART) as pool:
        pool.reset()
        pool.step(["", "", ""])
        batch = pool.step(["", fault, ""])
        assert lost(batch, 1, [1, 0, 0], "env 1: ")
        assert batch[4][1]["final_obs"].tolist() == [1, 0, 1]
        assert "env 1: " in batch[4][1]["final_info"]["env_error"]
        assert batch[4][1]["episode"] == 0
        assert "final_obs" not in batch[4][0]
        batch = pool.step(["", "", ""])
        assert batch[0][:, 2].tolist() == [3, 1, 3]
        assert "env_error" not in batch[4][1]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("kind", ["subproc-fork", "shmem-fork"])
def test_idle_envs_of_a_dead_process_with_automatic_resets(kind: str, mode: str) -> None:
    with PLACES[kind](FNS, num_processes=1, autoreset_mode=mode, **RESTART) as pool:
        pool.reset()
        pool.step(["", "", ""])
        pool.step(["SIGKILL"], [1])
        batch = pool.step(["", "", ""])
        if mode == "next_step":
            for k in (0, 2):
                assert lost(batch, k, [k, 0, 1], "SIGKILL")
            assert batch[4][1]["is_reset"] is True
            batch = pool.step(["", "", ""])
            assert batch[0][:, 2].tolist() == [0, 1, 0]
            assert [info.get("is_reset", False) for info in batch[4]] == [True, False, True]
        else:
            for k in (0, 2):
                assert lost(batch, k, [k, 0, 0], "SIGKILL")
                assert batch[4][k]["final_obs"].tolist() == [k, 0, 1]
            assert batch[0][1].tolist() == [1, 0, 1]
        assert not any("env_error" in info for info in pool.step(["", "", ""])[4])


# ---------------------------------------------------------------------------- seeds go on


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
    obs, infos = pool.reset(seed=11)
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
            firsts, told = pool.reset(ended)
            for k, i in enumerate(ended.tolist()):
                found[i].append([(told[k]["seed"], firsts[k].tolist())])
    return found


def reset_fn(env_id: int, episode: int) -> tuple[int, dict]:
    return 1000 * env_id + episode, {"episode": episode}


@pytest.mark.parametrize("schedule", ["episode_seeds", "reset_fn"])
@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_a_restarted_env_goes_on_as_an_undisturbed_run(
    place: str, mode: str | None, schedule: str
) -> None:
    fns = [functools.partial(ScheduledEnv, tag) for tag in range(3)]
    options: dict[str, Any] = {"autoreset_mode": mode}
    options.update({schedule: True if schedule == "episode_seeds" else reset_fn})
    die = ScheduledEnv.DIE if place in PROCESSES else ScheduledEnv.RAISE
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


# ---------------------------------------------------------------------- failed resets, budgets


class FailsFor(envs.CountEnv):
    """Its first `times` resets fail, counted in a file over all processes; so may its making."""

    def __init__(self, path: str, times: int, how: str, where: str = "reset") -> None:
        super().__init__(0)
        self.path, self.times, self.how, self.where = Path(path), times, how, where
        if where == "make" and self.path.stat().st_size:
            self._fail()

    def _fail(self) -> None:
        with self.path.open("a") as file:
            file.write("x")
        if self.path.stat().st_size <= self.times + (self.where == "make"):
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionAbortedError("not yet")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if self.where == "reset":
            self._fail()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple:
        if action == 9:
            self.path.write_text("x")
            raise ValueError("step")
        if action == 8:
            self.path.write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def fails(tmp_path: Path, times: int, how: str, where: str = "reset") -> Callable[[], Any]:
    path = tmp_path / "failed"
    path.touch()
    return functools.partial(FailsFor, str(path), times, how, where)


# where, and how an env fails: only a process can die
FAILS = [
    (place, how)
    for place in QUICK
    for how in ("raise", "die")
    if how == "raise" or place in PROCESSES
]


@pytest.mark.parametrize(("place", "how"), FAILS)
def test_a_failed_reset_is_tried_again(place: str, how: str, tmp_path: Path) -> None:
    fns = [envs.CountEnv, fails(tmp_path, 2, how)]
    with PLACES[place](fns, **RESTART, max_restarts=2) as pool:
        obs, infos = pool.reset(seed=4, options={"x": 1})
        assert obs.tolist() == [[0, 0, 0], [0, 0, 0]]
        assert infos[1]["seed"] == 5
        assert infos[1]["options"] == {"x": 1}
        assert "env 1: " in infos[1]["env_error"]
        assert len(pool.step([0, 0])[1]) == 2


@pytest.mark.parametrize(("place", "how"), FAILS)
def test_when_the_budget_is_spent_the_error_is_raised(place: str, how: str, tmp_path: Path) -> None:
    fns = [envs.CountEnv, fails(tmp_path, 3, how)]
    with PLACES[place](fns, **RESTART, max_restarts=2) as pool:
        error = ConnectionAbortedError if how == "raise" else WorkerDiedError
        with pytest.raises(EnvError, match="env 1: ") as caught:
            pool.reset()
        assert isinstance(caught.value, error)
        if how == "die":
            with pytest.raises(WorkerDiedError, match="env 1: "):
                pool.reset([1])
            pool.restart([1])
        assert pool.reset()[0][:, 2].tolist() == [0, 0]
        assert len(pool.step([0, 0])[1]) == 2


# a process that dies (8) and then dies again as its env is made: see the next one
@pytest.mark.parametrize(("how", "action"), [("raise", 8), ("raise", 9), ("die", 9)])
@pytest.mark.parametrize("place", PROCESSES)
def test_making_the_env_may_fail_too(place: str, how: str, action: int, tmp_path: Path) -> None:
    fns = [envs.CountEnv, fails(tmp_path, 2, how, "make")]
    with PLACES[place](fns, **RESTART) as pool:
        pool.reset()
        batch = pool.step([0, action])
        assert batch[3].tolist()[1]
        obs, infos = pool.reset()
        assert obs[:, 2].tolist() == [0, 0]
        assert infos[1]["episode"] == 0
        assert pool.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_process_may_die_while_it_starts_anew(place: str, tmp_path: Path) -> None:
    fns = [envs.CountEnv, fails(tmp_path, 2, "die", "make")]
    with PLACES[place](fns, **RESTART, max_restarts=2) as pool:
        pool.reset()
        assert pool.step([0, 8])[3].tolist() == [False, True]
        with pytest.raises(WorkerDiedError, match="env 1: .* while starting"):
            pool.reset([1])
        assert pool.step([0], [0])[0][:, 2].tolist() == [2]
        pool.restart([1])
        assert pool.reset([1])[0][:, 2].tolist() == [0]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_an_automatic_reset_that_fails_is_tried_again(place: str, mode: str) -> None:
    """Nothing is lost: the ended row came whole, and then comes that of the reset."""
    with PLACES[place]([envs.FailsToResetEnv], autoreset_mode=mode, **RESTART) as pool:
        pool.reset()
        for _ in range(3):
            assert not pool.step([0])[2].any()
        batch = pool.step([0])
        assert batch[2].tolist() == [True]
        batch = pool.step([0])
        obs, reward, terminated, truncated, info = row(batch, 0)
        assert (obs, reward, bool(terminated), bool(truncated)) == ([0, 0, 0], 0.0, False, False)
        assert info["is_reset"] is True
        assert "env 0: reset raised ValueError: no second episode" in info["env_error"]
        assert pool.step([0])[0][:, 2].tolist() == [1]


# ------------------------------------------------------------------------------- back-off


@pytest.mark.parametrize("place", QUICK)
def test_a_back_off_blocks_only_its_own_env(place: str) -> None:
    with PLACES[place](
        FNS, wait_num=1, on_error="restart", restart_backoff=0.5, autoreset_mode="same_step"
    ) as pool:
        pool.reset()
        for _ in range(2):
            pool.send(["value"], [1])
            if _ == 0:  # the first restart is at once
                assert pool.step(None, id=[1])[3].tolist() == [True]
        for n in range(1, 21):
            pool.send(["", ""], [0, 2])
            batch = pool.step(None, id=[0, 2])
            assert batch[0][:, 2].tolist() == [n, n]
        assert pool.waiting_id == [1]
        batch = pool.recv()
        assert lost(batch, 0, [1, 0, 0], "boom")


def made_at_the_gate(tag: int, gate: envs.Gate, notes: Path) -> envs.FaultEnv:
    """Make a FaultEnv at once the first time; wait at the gate each other time."""
    if notes.exists():
        gate.wait()
    notes.touch()
    return envs.FaultEnv(tag)


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", [*EACH_ITS_PROCESS, *EACH_METHOD])
def test_a_process_that_is_slow_to_start_holds_up_only_its_own_envs(
    place: str, mode: str | None, gates: list[envs.Gate], tmp_path: Path
) -> None:
    slow = functools.partial(made_at_the_gate, 0, gates[0], tmp_path / "made")
    told: list[int] = []
    with PLACES[place](
        [slow, *FNS[1:2]],
        **RESTART,
        autoreset_mode=mode,
        wait_num=1,
        on_restart=lambda i, _: told.append(i),
    ) as pool:
        pool.reset()
        process = pool.workers[0].process
        pool.send(["SIGKILL"], [0])
        process.join()
        if mode != "same_step":  # where that row is also the reset's
            assert lost(pool.recv(), 0, [0, 0, 0], "env 0: the worker process was killed")
            pool.send_reset(0) if mode is None else pool.send([""], [0])
        for step in range(1, 6):  # ... while the other env goes on
            obs, *_, infos = pool.step([""], [1])
            assert [info["env_id"] for info in infos] == [1]
            assert obs.tolist() == [[1, 0, step]]
        assert told == []
        gates[0].release()
        obs, _, _, truncated, infos = pool.step(None, [0])
        assert told == [0]
        assert obs.tolist() == [[0, 0, 0]]
        assert truncated.tolist() == [mode == "same_step"]
        assert ("is_reset" in infos[0]) is (mode != "same_step")
        assert pool.step([""], [0])[0].tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("place", EACH_ITS_PROCESS)
def test_a_process_that_comes_while_another_is_served_is_not_forgotten(
    place: str, gates: list[envs.Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = functools.partial(made_at_the_gate, 0, gates[0], tmp_path / "made")
    with PLACES[place]([slow, *FNS[1:]], **RESTART, autoreset_mode="same_step") as pool:
        pool.reset()
        engine: Any = pool.engine
        forget_forms = engine.batches.forget_forms

        def served(ids: list[int]) -> None:
            if ids == [1]:  # the first of the quick ones is there, and is served
                gates[0].release()
                for i in (0, 2):
                    if engine.hosts.is_restarting(i):
                        select.select([engine.hosts.of(i).stream.fd], [], [])
            forget_forms(ids)

        monkeypatch.setattr(engine.batches, "forget_forms", served)
        for i in range(3):  # in this order
            process = pool.workers[i].process
            pool.send(["SIGKILL"], [i])
            process.join()
        obs, _, _, truncated, _ = pool.recv()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert truncated.all()


@pytest.mark.parametrize("place", PROCESSES)
def test_an_env_that_hangs_is_restarted(place: str) -> None:
    with PLACES[place](FNS, step_timeout=0.3, **RESTART) as pool:
        pool.reset()
        batch = pool.step(["", "hang", ""])
        assert lost(batch, 1, [1, 0, 0], "env 1: did not end its request")
        assert "in _fault" in batch[4][1]["env_error"]
        # A neighbour in its process is lost with it, unless its row was there.
        pool.reset([i for i in range(3) if batch[3][i]])
        while (batch := pool.step(["", "", ""]))[3].any():
            pool.reset(np.flatnonzero(batch[3]))
        assert len(batch[1]) == 3


# ------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("place", QUICK)
def test_an_interrupted_call_leaves_the_pool_usable(place: str) -> None:
    def interrupt(*_: Any) -> None:
        raise InterruptedError("mine")

    with PLACES[place](FNS, on_error="restart", restart_backoff=20.0) as pool:
        pool.reset()
        pool.step(["", "value", ""])
        pool.reset([1])
        pool.step(["", "value", ""])
        before = signal.signal(signal.SIGUSR1, interrupt)
        bell = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        bell.start()
        try:
            with pytest.raises(InterruptedError, match="mine"):
                pool.reset([1])  # waits for its back-off
            bell.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert pool.step(["", ""], [0, 2])[0][:, 2].tolist() == [3, 3]
        pool.restart([1])
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("place", QUICK)
def test_an_error_of_the_callback_passes(place: str) -> None:
    def refuse(i: int, error: EnvError) -> None:
        raise RuntimeError(f"{i}: not mine") from error

    with PLACES[place](FNS, **RESTART, on_restart=refuse) as pool:
        pool.reset()
        pool.step(["", "value", ""])
        with pytest.raises(RuntimeError, match="1: not mine"):
            pool.reset([1])
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"on_error": "ignore"},
            ValueError,
            "on_error must be 'raise', 'restart' or 'replay', got 'ignore'",
        ),
        ({"max_restarts": 0}, ValueError, "max_restarts must be 1 or more, got 0"),
        ({"max_restarts": 1.5}, TypeError, "max_restarts must be an int or None, got 1.5"),
        ({"restart_backoff": -1}, ValueError, "restart_backoff must be 0 or more, got -1"),
        ({"restart_backoff": "1"}, TypeError, "restart_backoff must be seconds, got '1'"),
        ({"on_restart": 3}, TypeError, "on_restart must be callable, got int"),
        ({"on_error": "raise", "on_restart": print}, ValueError, "on_restart is never called"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        PLACES["dummy"](FNS, **{"on_error": "restart", **options})
