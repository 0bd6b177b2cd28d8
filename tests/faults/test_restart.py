"""Envs and processes that are recreated: by `restart`, or with `on_error="restart"`."""

import contextlib
import functools
import os
import signal
import threading
import time
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError
from envpool_py.engine import requested_restarts
from envpool_py.engine.failed import WhyRecreated
from envpool_py.engine.flight import Flight
from envpool_py.engine.recreation import Recreation
from envpool_py.seeding import of_episode
from envpool_py.worker.host import Life
from tests.faults import helpers
from tests.faults.helpers import EACH, FNS, GOOD, MODES, NEW, PROCESSES, RESTART, kill, reset_pool
from tests.record.runs import failing
from tests.support import broken, envs
from tests.support.helpers import wait_until
from tests.support.places import BACKENDS, PLACES, paired, slow
from tests.support.reference import same


@pytest.mark.parametrize(
    ("place", "how", "on_error"),
    [
        ("shmem-fork-packed", "dies", "raise"),
        *slow(*((place, "dies", "raise") for place in NEW)),
        ("shmem-fork", "unseen", "raise"),
        *slow(("shmem-fork-packed", "its mate hangs", "raise")),
        *slow(("shmem-fork-packed", "hangs", "restart")),
    ],
)
def test_a_process_is_started_again_with_all_its_envs(place, how, on_error, monkeypatch):
    """One that has ended, which a call may have seen or not, or one that a cancelled step fills."""
    monkeypatch.setattr(requested_restarts, "GRACE", 0.1)
    with reset_pool(place, on_error=on_error) as pool:
        pids = pool.call("pid")
        mates = helpers.mates_of(pool, 1)
        if "hangs" in how:
            hung = 1 if how == "hangs" else next(i for i in mates if i != 1)
            pool.send(["hang"], [hung])
            pool.cancel([hung])
        else:
            kill(pool, 1)
        if how == "dies":
            with pytest.raises(WorkerDiedError):
                pool.step(GOOD)
        kept = pool.waiting_id
        pool.restart(1)
        if kept:  # rows that were finished survive a restart
            rows = pool.drain()
            assert [info["env_id"] for info in rows[4]] == kept
            assert rows[0][:, 2].tolist() == [1] * len(kept)
        after = pool.call("pid")
        assert [i for i in range(3) if after[i] != pids[i]] == mates
        for i in mates if how == "dies" else ():
            with pytest.raises(ResetNeeded):
                pool.step([""], [i])
        assert pool.reset(seed=3)[0][1].tolist() == [1, 0, 0]
        assert pool.step(GOOD)[0][:, 2].tolist() == [1, 1, 1]


def test_rows_and_errors_that_had_arrived_survive_a_restart():
    with reset_pool("shmem-fork", num_processes=1, wait_num=1) as pool:
        pool.send(["", "SIGKILL", ""])
        with pytest.raises(WorkerDiedError, match="env 1: the worker process was killed"):
            pool.step(None, [1])
        pool.restart([1])
        obs, *_, infos = pool.step(None, [0])
        assert obs.tolist() == [[0, 0, 1]]
        assert infos[0]["action"] == "", "a text is pickled beside the row"
        with pytest.raises(WorkerDiedError, match="env 2: the worker process was killed"):
            pool.recv()
        with pytest.raises(ResetNeeded, match="env 0: reset before step"):
            pool.step([""], [0])
        assert pool.reset()[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]


def test_a_process_that_ends_after_the_row_that_reports_its_first_end():
    """That row is returned; the second end is reported by the next one."""
    with reset_pool("shmem-fork", **RESTART, wait_num=1, autoreset_mode="same_step") as pool:
        pool.send(["SIGKILL"], [0])
        while 0 not in pool.engine.arrivals.ids():
            pool.send([""], [1])
            pool.step(None, [1])
        assert pool.engine.recovery.error_of(0) is None, "it is alive, though its row is unread"
        helpers.kill(pool, 0)
        while 0 not in pool.engine.recovery.recreating:
            pool.send([""], [1])
            pool.step(None, [1])
        assert "SIGKILL" in str(pool.engine.recovery.error_of(0))
        assert "SIGKILL" in pool.step(None, [0])[4][0]["env_error"]
        assert "SIGKILL" in pool.step([""], [0])[4][0]["env_error"]
        assert "env_error" not in pool.step([""], [0])[4][0]
        assert pool.restarts.tolist() == [2, 0, 0]


def test_a_later_error_of_a_dead_env_names_no_other():
    with reset_pool("shmem-fork") as pool:
        with pytest.raises(WorkerDiedError) as first:
            pool.step(["SIGKILL", "SIGKILL", ""])
        pool.reset([1])
        with pytest.raises(WorkerDiedError) as later:
            pool.step([""], [0])
        assert (first.value.env_ids, later.value.env_ids) == ((0, 1), (0,))


@pytest.mark.parametrize(("reads", "when"), [(True, "in"), (False, "in"), (False, "before")])
def test_a_reset_restarts_a_process_that_ends_beside_another(reads, when):
    def make_after(pid):
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{pid}").exists())  # the pool has noticed it
        return envs.FaultEnv()

    with reset_pool("shmem-fork") as pool:
        (pid,) = pool.apply(lambda _: os.getpid(), id=[1])
        with pytest.raises(WorkerDiedError):
            pool.step(["SIGKILL", "", ""])
        if reads:  # else the rows of the others are unread
            pool.recv()
        if when == "in":
            pool.engine.hosts.supervisor.set_env_fn(0, functools.partial(make_after, pid))
        else:
            pool.engine.flight.wait(2, None, None)  # the rows have arrived
            kill(pool, 1)
        assert pool.reset()[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0]]


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_an_env_pays_for_no_crash_of_its_neighbour(timeout):
    """Env 0 completes episodes between its crashes; env 1 has one long episode, and no budget."""
    fns = [functools.partial(envs.FaultEnv, 0, 3), functools.partial(envs.FaultEnv, 1)]
    options = {**RESTART, "max_restarts": 1, "step_timeout": timeout, "num_processes": 1}
    with reset_pool("shmem-fork", fns, autoreset_mode="same_step", **options) as pool:
        for _ in range(4):
            infos = pool.step(["SIGKILL", ""])[4]
            assert "it ran env 0" in infos[1]["env_error"]
            assert "it ran env" not in infos[0]["env_error"]
            for _ in range(4):
                pool.step(["", ""])
        assert pool.restarts.tolist() == [4, 4]


@pytest.mark.parametrize(("place", "mode"), paired(BACKENDS, MODES))
def test_an_env_that_was_never_reset_is_recreated_if_its_step_fails(place, mode):
    options = {**RESTART, "reset_first": False, "autoreset_mode": mode}
    with PLACES[place](helpers.FNS, **options) as pool:
        infos = pool.step(["", "value", ""])[4]
        assert ["env_error" in info for info in infos] == [False, True, False]


def test_an_env_is_counted_and_reported_when_its_process_dies_again_and_again():
    """It is in flight the first time, then idle: its rows report the first end, and the others."""
    with reset_pool("shmem-fork", FNS[:2], num_processes=1, wait_num=1, **RESTART) as pool:
        for n, actions in enumerate((["SIGKILL", ""], ["SIGKILL"], ["SIGKILL"]), 1):
            pool.send(actions, range(len(actions)))
            pool._inner.wait(2, None)  # the row of env 1 is there, and is not fetched
            assert "env_error" in pool.step(None, [0])[4][0]
            assert pool.restarts.tolist() == [n, n]
            pool.reset([0])
        for actions in (None, [""]):
            assert "env_error" in pool.step(actions, [1])[4][0]
            assert pool._inner.failed(pool.batch_ids).all(), "what a collector and evaluate count"
        assert "env_error" not in pool.reset([1])[1][0]
        assert pool.restarts.tolist() == [3, 3]


@pytest.mark.parametrize("place", ["dummy", "shmem-fork", *slow("shmem-spawn-packed")])
def test_a_restart_counts_although_another_env_fn_of_it_fails(place, tmp_path):
    fns = [functools.partial(helpers.made_once, 0, tmp_path / "made"), *FNS[1:]]
    with reset_pool(place, fns) as pool:
        with pytest.raises(OSError, match="env 0: env_fn raised OSError: made 2 times"):
            pool.restart()
        assert pool.restarts.tolist() == [0, 1, 1]
        assert pool.reset([1, 2])[0].tolist() == [[1, 0, 0], [2, 0, 0]]


@pytest.mark.slow
def test_an_exit_code_that_is_lost_with_the_fork_server():
    with reset_pool("shmem-forkserver") as pool:
        (server,) = pool.engine.hosts.supervisor._servers
        server.stop()
        kill(pool, 1)
        with pytest.raises(WorkerDiedError, match="code 255, or has ended with its fork server"):
            pool.step([""], [1])


def test_an_env_whose_cancelled_step_ends_keeps_its_process():
    with reset_pool("shmem-fork-packed") as pool:
        pids = pool.call("pid")
        for ids in ([0, 1, 2], [1]):
            pool.send([""] * len(ids), ids)
            pool.cancel(ids)
            pool.restart(ids)
            assert pool.call("pid") == pids
            pool.reset()


def test_an_env_fn_that_fails_in_a_new_process_is_named(tmp_path):
    fns = [functools.partial(helpers.made_once, 0, tmp_path / "made"), *FNS[1:]]
    with reset_pool("shmem-fork-packed", fns) as pool:
        pool.send(GOOD)
        pool.cancel()  # a late row is not taken for the answer
        lost = helpers.mates_of(pool, 0)
        kill(pool, 0)
        with pytest.raises(OSError, match=r"env 0: .*OSError: made 2 times"):
            pool.restart([0])
        fact = "env 0: the worker process exited with code 0 while starting"
        cause = r"; env 0: env_fn raised OSError: made 2 times \(helpers.py:\d+\)"
        with pytest.raises(WorkerDiedError, match=fact + cause):
            pool.step([""], [0])
        with pytest.raises(OSError, match=r"env 0: .*OSError: made 3 times"):
            pool.reset([0])
        helpers.goes_on(pool, [i for i in range(3) if i not in lost])


def test_a_restart_by_hand_renews_the_budget_of_the_whole_process():
    """The envs that share the process are recreated too."""
    with reset_pool("shmem-fork", num_processes=1, max_restarts=1, **RESTART) as pool:
        for _ in range(2):
            kill(pool, 0)
            assert pool.step(GOOD)[3].tolist() == [True] * 3
            assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]
            kill(pool, 0)
            with pytest.raises(WorkerDiedError):  # all budgets are spent
                pool.step(GOOD)
            pool.restart([0])
            assert pool.reset()[0].tolist() == [[i, 0, 0] for i in range(3)]


def test_a_dead_env_keeps_the_cause_when_its_process_runs_again():
    """The envs that share the process have it restarted."""
    with reset_pool("shmem-fork", num_processes=1, max_restarts=1, **RESTART) as pool:
        pool.step(["", "SIGKILL", ""])
        pool.reset()
        texts = set()
        for ids in ([0, 1, 2], [1], [1]):
            with pytest.raises(WorkerDiedError, match="was killed by SIGKILL") as caught:
                pool.step([["", "SIGKILL", ""][i] for i in ids], ids)
            texts.add(str(caught.value))
            pool.drain()  # the others are recreated
        assert len(texts) == 1


def check_lost(batch, k, obs, text):
    """Assert that row `k` is that of a lost episode whose last observation was `obs`."""
    values = batch[0][k].tolist(), *(part[k] for part in batch[1:4])
    assert values == (obs, 0.0, False, True)
    assert text in batch[4][k]["env_error"]


def check_begun(batch, k, obs):
    """Assert that row `k` is that of an automatic reset with this observation."""
    values = batch[0][k].tolist(), *(part[k] for part in batch[1:4])
    assert values == (obs, 0.0, False, False)
    assert batch[4][k]["is_reset"] is True


@pytest.mark.parametrize(
    ("place", "mode", "how"),
    [
        *((place, mode, "value") for place, mode in paired(EACH, MODES)),
        *paired(PROCESSES, MODES, ["SIGKILL"]),
        *paired(PROCESSES[::-1], MODES, ["idle"]),
        *slow(*((place, None, "SIGKILL") for place in NEW)),
    ],
)
def test_a_lost_step_is_a_truncated_row(place, mode, how):
    """With all envs of its process, if env 0 kills that or somebody else does."""
    calls = []
    options = {"autoreset_mode": mode, "on_restart": lambda i, e: calls.append((i, e)), **RESTART}
    with reset_pool(place, **options) as pool:
        lost = [0] if how == "value" else helpers.mates_of(pool, 0)
        kept = [i for i in range(3) if i not in lost]
        for n in range(2):
            pids = pool.call("pid")
            pool.step(GOOD)
            steps = pool.get_env_attr("t", kept)
            if how == "idle":
                kill(pool, 0)
            batch = pool.step(["" if how == "idle" else how, "", ""])
            for k in lost:
                check_lost(batch, k, [k, 0, 0 if mode == "same_step" else 1 + n], f"env {k}: ")
                if mode == "same_step":
                    assert batch[4][k]["final_obs"].tolist() == [k, 0, 1 + n]
                    assert f"env {k}: " in batch[4][k]["final_info"]["env_error"]
                    assert batch[4][k]["episode"] == 0
            assert batch[0][kept].tolist() == [[k, 0, steps[0] + 1] for k in kept]
            assert not batch[3][kept].any()
            assert not any("env_error" in info or "final_obs" in info for info in batch[4][kept])
            if mode is None:
                with pytest.raises(ResetNeeded, match="env.* 0.*: restarted; reset"):
                    pool.step(GOOD)
                assert pool.reset(lost)[0].tolist() == [[k, 0, 0] for k in lost]
            if mode == "next_step":  # the action is ignored
                batch = pool.step(["value", "", ""])
                for k in lost:
                    check_begun(batch, k, [k, 0, 0])
            batch = pool.step(GOOD)
            assert batch[0][lost].tolist() == [[k, 0, 1] for k in lost]
            assert not any("env_error" in info for info in batch[4])
            new = [i for i, pid in enumerate(pool.call("pid")) if pid != pids[i]]
            assert new == ([] if how == "value" else lost)
            assert [i for i, _ in calls] == lost * (n + 1)
            assert isinstance(calls[n][1], EnvError)


def test_an_idle_env_of_a_dead_process_is_reported_with_its_own_next_request():
    options = {"num_processes": 1, "autoreset_mode": "next_step", **RESTART}
    with reset_pool("shmem-fork", **options) as pool:
        pool.step(GOOD)
        check_lost(
            pool.step(["SIGKILL"], [1]), 0, [1, 0, 1], "env 1: the worker process was killed"
        )
        pool.send_reset([2])
        pool.cancel([2])  # does not lose the report
        obs, infos = pool.reset([2])
        assert obs.tolist() == [[2, 0, 0]]  # the cancelled one was not sent yet
        assert "env 2: the worker process was killed by SIGKILL" in infos[0]["env_error"]
        batch = pool.step(GOOD)
        check_lost(batch, 0, [0, 0, 1], "env 0: the worker process was killed by SIGKILL")
        check_begun(batch, 1, [1, 0, 0])
        # A reset by the caller replaces the automatic one.
        assert pool.reset([0])[0].tolist() == [[0, 0, 0]]
        batch = pool.step(GOOD)
        assert batch[0][:, 2].tolist() == [1, 1, 2]
        assert not any("is_reset" in info or "env_error" in info for info in batch[4])


def test_a_mate_that_is_reset_first_does_not_take_the_report_with_it():
    calls = []
    options = {"num_processes": 1, "wait_num": 1, "on_restart": lambda i, _: calls.append(i)}
    with reset_pool("shmem-fork", **options, **RESTART) as pool:
        process = pool.workers[0].process
        pool.send(["SIGKILL"], [0])
        process.join()
        # Before any call has noticed the end of the process.
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        check_lost(pool.step(None, [0]), 0, [0, 0, 0], "env 0: the worker process was killed")
        assert pool.reset([0])[0].tolist() == [[0, 0, 0]]
        assert sorted(calls) == [0, 1]
        check_lost(pool.step([""], [2]), 0, [2, 0, 0], "env 2: the worker process was killed")
        assert calls[2:] == [2]


def test_an_env_without_budget_is_reset_in_the_process_that_its_mate_has_restarted():
    options = {"num_processes": 1, "on_error": "restart", "restart_backoff": 0.0}
    with reset_pool("shmem-fork", FNS[:2], max_restarts=1, **options) as pool:
        pool.step(["", "value"])
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        with pytest.raises(WorkerDiedError, match=r"env 1 failed again after 1 restart"):
            pool.step(["SIGKILL", ""], [1, 0])  # env 1 first
        check_lost(pool.recv(), 0, [0, 0, 1], "env 0: the worker process was killed by SIGKILL")
        with pytest.raises(WorkerDiedError):
            pool.step([""], [1])
        assert pool.reset()[0].tolist() == [[0, 0, 0], [1, 0, 0]]
        assert pool.step(GOOD[:2])[0][:, 2].tolist() == [1, 1]


def test_a_call_of_an_idle_env_of_a_dead_process_recreates_it():
    with reset_pool("shmem-fork-packed", **RESTART) as pool:
        mates = helpers.mates_of(pool, 1)
        pool.step(GOOD)
        kill(pool, 1)
        for _ in range(2):  # the second time, the first end is not reported yet
            with pytest.raises(WorkerDiedError):
                pool.apply(lambda _: os._exit(3), id=mates)
            assert pool.get_env_attr("t", mates) == [0] * len(mates)
        batch = pool.step(GOOD)
        for k in mates:
            check_lost(batch, k, [k, 0, 1], f"env {k}: the worker process exited with code 3")


@pytest.mark.parametrize(
    ("space", "columns"), paired(["mixed", "nested", "text", "nested"], [False, True])
)
def test_the_last_observation_of_any_space(space, columns, tmp_path):
    fns = failing(tmp_path, {1: (1, "raise")}, space)[1:2]
    with PLACES["shmem-fork"](fns, columns=columns, **RESTART) as pool:
        last, _ = pool.reset()
        action = pool.action_space[0].sample()
        obs, _, _, truncated, infos = pool.step([action])
        assert same(obs, last)
        assert truncated.all()
        assert "once" in infos[0]["env_error"]
        pool.reset()
        assert not pool.step([action])[3].any()


def fail(how):
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionAbortedError("not yet")


@pytest.mark.parametrize(
    ("place", "how", "times", "is_first"),
    [
        *(("dummy", "raise", *each) for each in ((3, False), (2, True))),
        *((PROCESSES[1], "raise", *each) for each in ((2, False), (3, True))),
        *((PROCESSES[1], "die", n, False) for n in (2, 3)),
    ],
)
def test_a_failed_reset_is_tried_again_within_the_budget(place, how, times, is_first, tmp_path):
    """The first one too, while that of another env succeeds."""

    def reset(_, row):
        if 0 < envs.count_call(tmp_path / "resets") - (not is_first) <= times:
            fail(how)
        return row

    fns = [envs.CountEnv, functools.partial(envs.ChangedEnv, 1, reset=reset)]
    with PLACES[place](fns, **RESTART, max_restarts=2) as pool:
        if not is_first:
            pool.reset()
        if times == 3:
            error = ConnectionAbortedError if how == "raise" else WorkerDiedError
            with pytest.raises(error, match="env 1 failed again after 2 restarts"):
                pool.reset()
            assert pool.restarts.tolist() == [0, 2]
            if how == "die":
                with pytest.raises(WorkerDiedError, match="env 1 failed again"):
                    pool.step([0], [1])
            if is_first:
                assert pool.step(None, [0])[0].tolist() == [[0, 0, 0]], "it is kept"
        obs, infos = pool.reset(seed=4, options={"x": 1})
        assert obs[:, [0, 2]].tolist() == [[0, 0], [1, 0]]
        assert (infos[1]["seed"], infos[1]["options"]) == (5, {"x": 1})
        assert ["env_error" in info for info in infos] == [False, times == 2]
        assert times == 3 or pool.restarts.tolist() == [0, 2]
        assert pool.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("place", "how", "fault", "budget"),
    [
        *paired(["shmem-fork"], ["raise", "die"], ["SIGKILL"], [1, 2, 3]),
        *paired(["shmem-fork"], ["die", "raise"], ["value"], [1, 3]),
        *paired(["dummy", "shmem-fork-packed"], ["raise"], ["value"], [2]),
    ],
)
def test_making_the_env_may_fail_too(place, how, fault, budget, tmp_path):
    """The second and third time. Each recreation that fails counts once."""

    def act(times):
        if 1 < times < 4:
            fail(how)

    fns = [envs.FaultEnv, functools.partial(helpers.made, 0, tmp_path / "made", act)]
    with reset_pool(place, fns, **RESTART, max_restarts=budget) as pool:
        if budget < 3:
            text = rf"env 1 failed again after {budget} restarts? \(max_restarts={budget}\): "
            with pytest.raises(EnvError, match=text):
                pool.step(["", fault])
            assert pool.recv()[0][:, 2].tolist() == [1]
            if budget == 1:
                with pytest.raises(EnvError, match="env 1: "):
                    pool.restart([1])
            assert pool.get_env_attr("t", [0]) == [1]
            pool.restart([1])
        else:
            assert pool.step(["", fault])[3].tolist() == [False, True]
        obs, infos = pool.reset()
        assert obs[:, 2].tolist() == [0, 0]
        assert infos[1]["episode"] == 0
        assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1]


def test_each_back_off_is_twice_the_last_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("envpool_py.engine.failed.LONGEST_BACKOFF", 0.05)
    with reset_pool("dummy", on_error="restart", restart_backoff=0.02) as pool:
        for delay in (0.0, 0.02, 0.04, 0.05, 0.05):
            before = time.monotonic()
            assert pool.step(["", "value", ""])[3].tolist() == [False, True, False]
            assert time.monotonic() >= before + delay
            pool.reset([1])


@pytest.mark.parametrize("place", BACKENDS)
def test_a_back_off_blocks_only_its_own_env(place):
    def fail_again():
        pool.send(["value"], [1])
        helpers.await_back_off(pool, 1)

    with reset_pool(place, **helpers.BACK_OFF) as pool:
        pool.send(["value"], [1])
        assert pool.step(None, id=[1])[3].tolist() == [True]  # the first restart is at once
        fail_again()
        for step in range(1, 6):
            pool.send(["", ""], [0, 2])
            assert pool.step(None, id=[0, 2])[0][:, 2].tolist() == [step, step]
        assert pool.waiting_id == [1]
        pool.engine.recovery.recreating[1].due = 0.0
        obs, _, _, truncated, infos = pool.step(None, id=[1])
        assert obs.tolist() == [[1, 0, 0]]
        assert truncated.tolist() == [True]
        assert "boom" in infos[0]["env_error"]
        fail_again()
        pool.cancel([1])
        pool.restart([1])  # spares its process
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        pool.send(["", ""], [0, 2])
        assert pool.step(None, id=[0, 2])[0][:, 2].tolist() == [6, 6]


@pytest.mark.parametrize(("place", "mode"), paired(["shmem-fork"], ["same_step", None]))
def test_a_process_that_is_slow_to_start_holds_up_only_its_own_envs(place, mode, gates, tmp_path):
    def act(times):
        if times > 1:
            gate.wait()

    gate, calls = gates[0], []
    fns = [functools.partial(helpers.made, 0, tmp_path / "made", act), FNS[1]]
    options = {"autoreset_mode": mode, "wait_num": 1, "on_restart": lambda i, _: calls.append(i)}
    with reset_pool(place, fns, **RESTART, **options) as pool:
        process = pool.workers[0].process
        pool.send(["SIGKILL"], [0])
        process.join()
        for step in range(1, 6):  # ... while the other env goes on
            assert pool.step([""], [1])[0].tolist() == [[1, 0, step]]
        assert calls == []
        gate.release()
        if mode != "same_step":  # where the lost row is also the reset's
            check_lost(pool.step(None, [0]), 0, [0, 0, 0], "env 0: the worker process was killed")
            pool.send_reset(0) if mode is None else pool.send([""], [0])
        obs, _, _, truncated, infos = pool.step(None, [0])
        assert calls == [0]
        assert obs.tolist() == [[0, 0, 0]]
        assert truncated.tolist() == [mode == "same_step"]
        assert ("is_reset" in infos[0]) is (mode != "same_step")
        assert pool.step([""], [0])[0].tolist() == [[0, 0, 1]]


@pytest.mark.slow
def test_an_env_fn_that_hangs_in_a_restart_spends_the_budget_of_its_env(tmp_path):
    """The other env of the process returns a row or an error, and does not block."""

    def act(times):
        while times > 1:
            signal.pause()

    fns = [FNS[0], functools.partial(helpers.made, 1, tmp_path / "made", act), FNS[2]]
    options = {"step_timeout": 0.6, "max_restarts": 1, **RESTART}
    with reset_pool("shmem-fork-packed", fns, **options) as pool:
        kill(pool, 1)
        with pytest.raises(EnvTimeoutError, match=r"env 1 failed again(.|\n)*in act") as caught:
            pool.step(GOOD)
        assert caught.value.env_ids == (1, 0), "its mate was lost, too"
        with contextlib.suppress(EnvError):
            pool.drain()
        assert pool.step([""], [2])[0].tolist() == [[2, 0, 2]]


# ------------------------------------------ the schedule of seeds goes on in a new process

SEED = 11


def episode_of(i, seed):
    """Return the number of the episode of env ``i`` that has this seed."""
    return [of_episode(SEED + i, number) for number in range(50)].index(seed)


class ScheduleEnv(envs.CountEnv):
    """Remembers the seeds of its resets, and calls `fault` in the next one."""

    def __init__(self, tag):
        super().__init__(tag, length=1)
        self.seeds, self.fault = [], None

    def reset(self, **kwargs):
        self.seeds.append(kwargs["seed"])
        fault, self.fault = self.fault, None
        if fault:
            fault()
        return super().reset(**kwargs)


@contextlib.contextmanager
def scheduled(place, by_hand, **options):
    """Make a pool of ScheduleEnvs, whose first episodes have begun."""
    fns = [functools.partial(ScheduleEnv, i) for i in range(3)]
    options |= {} if by_hand else RESTART
    with PLACES[place](fns, episode_seeds=True, **options) as pool:
        pool.reset(seed=SEED)
        yield pool


def begun(pool):
    """Reset all envs; return the number of the episode that each of them begins."""
    return [episode_of(info["env_id"], info["seed"]) for info in pool.reset()[1]]


def recreated(pool, by_hand):
    """Kill the process of env 1 and have it recreated; then as `begun`."""
    kill(pool, 1)
    if by_hand:
        pool.restart([1])
    return begun(pool)


@pytest.mark.parametrize(
    ("place", "by_hand", "mode"), paired(PROCESSES, [True, False, False, True], MODES)
)
def test_a_cancelled_request_that_began_an_episode_counts(place, by_hand, mode, gates):
    with scheduled(place, by_hand, autoreset_mode=mode) as pool:
        if mode == "next_step":
            assert pool.step([0], [1])[2].tolist() == [True]
        pool.set_env_attr("fault", gates[1].wait, [1])
        pool.send_reset([1]) if mode is None else pool.send([0], [1])
        with gates[1].held():  # in the reset
            pool.cancel([1])
        reached = pool.get_env_attr("seeds", [1])[0]
        assert [episode_of(1, seed) for seed in reached] == [0, 1]
        assert recreated(pool, by_hand) == [1, 2, 1]
        assert recreated(pool, by_hand) == [2, 3, 2]


@pytest.mark.parametrize(
    ("place", "how"), [*paired(BACKENDS, ["raise"]), *paired(PROCESSES, ["die"])]
)
def test_the_seed_of_a_reset_that_failed_counts(place, how):
    fns = [functools.partial(ScheduleEnv, i) for i in range(3)]
    with PLACES[place](fns, episode_seeds=True) as pool:
        for seed in (1, None):
            pool.reset(seed=seed)
        pool.set_env_attr("fault", functools.partial(fail, how), [2])
        with pytest.raises(EnvError, match="env 2: "):
            pool.reset(seed=SEED)
        assert begun(pool) == [1, 1, 0]
        assert pool._inner.episode_of(2) == (SEED + 2, 0), "what a collector stores"
        assert begun(pool) == [2, 2, 1]


@pytest.mark.parametrize("place", BACKENDS)
def test_a_reset_with_a_new_seed_is_no_first_one(place):
    with PLACES[place]([functools.partial(ScheduleEnv, 0)], episode_seeds=True, **RESTART) as pool:
        pool.reset(seed=1)
        pool.set_env_attr("fault", functools.partial(fail, "raise"))
        assert "env_error" in pool.reset(seed=SEED)[1][0]
        assert begun(pool) == [1]


@pytest.mark.parametrize("place", PROCESSES)
def test_a_reset_that_cannot_be_sent_changes_nothing(place):
    with scheduled(place, by_hand=False, autoreset_mode="same_step") as pool:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pool.reset(seed=1, options={"lock": threading.Lock()})
        pool.set_env_attr("length", "raises TypeError")
        assert "env_error" in pool.step([0] * 3)[4][0]
        assert pool._inner.episode_of(2) == (SEED + 2, 1)


@pytest.mark.parametrize("call", ["reset", "send_reset"])
def test_the_seed_of_a_recorded_reset_that_is_interrupted_counts(call, tmp_path, monkeypatch):
    """With a record, Ctrl-C comes after all requests are sent: the envs carry them out."""
    fns = [functools.partial(ScheduleEnv, i) for i in range(3)]
    with PLACES["shmem-fork"](fns, episode_seeds=True, record=tmp_path / "record") as pool:
        pool.reset(seed=1)
        recorder = pool.engine.flight.recorder
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "requests", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                getattr(pool, call)(seed=SEED)
        reached = [seeds[-1] for seeds in pool.get_env_attr("seeds")]
        assert [episode_of(i, seed) for i, seed in enumerate(reached)] == [0, 0, 0]
        assert pool._inner.episode_of(2) == (SEED + 2, 0), "what a collector stores"
        assert recreated(pool, by_hand=True) == [1, 1, 1]


@pytest.mark.parametrize(("by_hand", "mode"), [(True, "next_step"), (False, "same_step")])
def test_the_schedule_goes_on_after_an_automatic_reset_that_raised(by_hand, mode):
    with scheduled("shmem-fork-packed", by_hand, autoreset_mode=mode) as pool:
        pool.set_env_attr("fault", functools.partial(fail, "raise"), [1])
        assert pool.step([0], [1])[2].tolist() == [True]
        if by_hand:
            with pytest.raises(EnvError, match="env 1: reset raised .*: not yet"):
                pool.step([0], [1])
            info = pool.reset([1])[1][0]
        else:
            info = pool.step([0], [1])[4][0]
            assert "not yet" in info["env_error"]
        number = episode_of(1, info["seed"])
        assert number in (1, 2), "the seed of the reset that raised, or the one after it"
        assert recreated(pool, by_hand) == [1, number + 1, 1]
        assert recreated(pool, by_hand) == [2, number + 2, 2]


@pytest.mark.parametrize("by_hand", [True, False])
def test_episodes_whose_resets_were_not_answered_come_again(by_hand):
    """Env 2 ends the process, in which the other two have carried out their resets."""
    with scheduled("shmem-fork", by_hand, num_processes=1) as pool:
        pool.set_env_attr("fault", functools.partial(fail, "die"), [2])
        if by_hand:
            with pytest.raises(WorkerDiedError, match="was also that of"):
                pool.reset()
            pool.restart()
        assert begun(pool) == [1, 1, 1]
        assert recreated(pool, by_hand) == [2, 2, 2]


def test_an_interrupted_reset_counts_if_it_reached_the_env():
    with scheduled("dummy", True) as pool:
        pool.set_env_attr("fault", functools.partial(signal.default_int_handler, 2, None), [1])
        with pytest.raises(KeyboardInterrupt):
            pool.reset()
        reached = [len(seeds) for seeds in pool.get_env_attr("seeds")]
        assert reached == [2, 2, 1]
        pool.restart([1])
        assert begun(pool) == reached


@pytest.mark.parametrize("num_processes", [1, 3])
def test_an_env_that_is_lost_between_two_episodes_loses_no_step(num_processes):
    """In next_step mode its next row is that of the reset, also if a mate was recreated first."""
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]
    options = {"num_processes": num_processes, "autoreset_mode": "next_step", **RESTART}
    with reset_pool("shmem-fork", fns, **options) as pool:
        assert [pool.step([0], [1])[2].tolist() for _ in range(2)] == [[False], [True]]
        kill(pool, 1)
        if num_processes == 1:
            assert pool.step([0], [0])[3].tolist() == [True]
        batch = pool.step([0], [1])
        assert "was killed by SIGKILL" in batch[4][0]["env_error"]
        assert batch[4][0]["is_reset"] is True
        assert batch[3].tolist() == [False]
        assert pool.step([0], [1])[0][:, 2].tolist() == [1]


def test_the_end_of_a_process_is_no_second_failure_of_an_env_that_waits(monkeypatch):
    monkeypatch.setattr("envpool_py.engine.failed.LONGEST_BACKOFF", 60.0)
    with reset_pool("shmem-fork", num_processes=1, max_restarts=2, **helpers.BACK_OFF) as pool:
        pool.send(["value"], [1])
        assert pool.step(None, id=[1])[3].tolist() == [True]  # the first restart is at once
        pool.send(["value"], [1])
        helpers.await_back_off(pool, 1)
        kill(pool, 1)
        assert len(pool.recv()[1]) == 0
        pool.engine.recovery.recreating[1].due = 0.0
        batch = pool.step(None, id=[1])
        assert batch[3].tolist() == [True]
        assert "boom" in batch[4][0]["env_error"]
        assert pool.restarts.tolist() == [1, 2, 1]  # the others with their process


# ----------------------------------------------------------------- failures that meet each other


@pytest.mark.parametrize("wait_num", [None, 1])
def test_an_error_whose_process_dies_before_it_is_taken(wait_num):
    with reset_pool("shmem-fork-packed", wait_num=wait_num, **RESTART) as pool:
        pool.send(["value", "SIGKILL", ""])
        errors = {}
        while pool.waiting_id:
            for info in pool.recv()[4]:
                errors[info["env_id"]] = info.get("env_error", "")
        assert "ValueError: boom" in errors[0] or "SIGKILL" in errors[0]
        assert "SIGKILL" in errors[1]
        assert errors[2] == ""
        # Env 0 may have been recreated in its process before that ended.
        assert pool.restarts.tolist() in ([1, 1, 0], [2, 1, 0])


def test_other_envs_in_the_places_of_a_process_that_cannot_be_restarted():
    with reset_pool("shmem-fork-packed", FNS[:2]) as pool:
        kill(pool, 0)
        pool.restart([0, 1], env_fns=[FNS[1], FNS[0]])
        assert pool.reset()[0][:, 0].tolist() == [1, 0]
        kill(pool, 0)
        with pytest.raises(ValueError, match="spaces"):
            pool.restart([0], env_fns=[functools.partial(gym.make, "CartPole-v1")])
        assert pool.reset([1])[0][:, 0].tolist() == [0], "the process of the other env goes on"
        with pytest.raises(ValueError, match="spaces"):
            pool.reset([0])
        pool.restart([0], env_fns=[FNS[1]])
        assert pool.reset()[0][:, 0].tolist() == [1, 0]


def test_an_env_fn_raises_and_the_close_of_its_mate_hangs(tmp_path):
    fns = [functools.partial(envs.ClosingEnv, 0, broken.sleep_indefinitely)]
    fns += [functools.partial(helpers.made_once, 1, tmp_path / "made")]
    with reset_pool("shmem-fork", fns, num_processes=1) as pool:
        kill(pool, 0)
        with pytest.raises(OSError, match="env 1: env_fn raised OSError: made 2 times"):
            pool.restart([1])


def test_new_envs_whose_process_is_killed_say_why():
    """The system was not out of memory: the pool has killed the process."""
    spaceless = functools.partial(gym.make, "CartPole-v1")
    with reset_pool("shmem-fork", FNS[:2], fresh_process=True) as pool:
        with pytest.raises(ValueError, match="its spaces are"):
            pool.restart([1], env_fns=[spaceless])
        with pytest.raises(WorkerDiedError, match=r"; env 1: env_fn .*its spaces are") as caught:
            pool.step([""], [1])
        assert "memory" not in str(caught.value)


def test_a_close_that_hangs_in_a_thread_is_said_to_be_in_a_thread():
    """It hangs the first time, until its thread is abandoned."""

    def close():
        if not hung:
            hung.append(1)
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    time.sleep(0.01)

    fns, hung = [functools.partial(envs.ClosingEnv, 0, close)], []
    with reset_pool("thread", fns, step_timeout=1.0) as pool:
        text = r"close: .*; its thread was abandoned; the env is recreated$"
        with pytest.warns(RuntimeWarning, match=text):
            pool.restart([0])
        assert pool.reset()[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("other", [False, True])
def test_an_env_in_flight_is_not_restarted_by_hand_while_it_waits_for_its_back_off(other):
    with reset_pool("shmem-fork", FNS[:2], **helpers.BACK_OFF) as pool:
        kill(pool, 0)
        pool.send([""], [0])
        assert "env_error" in pool.step(None, id=[0])[4][0]  # the first restart is at once
        kill(pool, 0)
        pool.send([""], [0])
        helpers.await_back_off(pool, 0)
        with pytest.raises(AlreadyPendingCallError, match="env 0: still stepping"):
            pool.restart([0], [FNS[0]] if other else None)
        pool.engine.recovery.recreating[0].due = 0.0
        assert "env_error" in pool.step(None, id=[0])[4][0]
        assert pool.restarts.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("place", "at"), paired(["subproc-fork", "shmem-fork-packed"], [Life.ENDED, Life.STARTING])
)
def test_a_restart_by_hand_that_was_interrupted_goes_on_at_the_next_step(place, at, monkeypatch):
    """Else the step goes to a process that has ended, or to an env that was never reset."""
    advance = Flight.advance

    def interrupted(self, *arguments):
        advance(self, *arguments)
        one = pool.engine.recovery.recreating.get(1)
        if one and one.why is WhyRecreated.REQUESTED and pool.engine.hosts.of(1).life is at:
            monkeypatch.undo()
            raise KeyboardInterrupt

    with reset_pool(place, **RESTART) as pool:
        mates = helpers.mates_of(pool, 1)
        kill(pool, 1)
        monkeypatch.setattr(Flight, "advance", interrupted)
        if at is Life.ENDED:
            monkeypatch.setattr(Recreation, "_next_phase", lambda *_: 0.0)
        with pytest.raises(KeyboardInterrupt):
            pool.restart([1])
        pool.send(GOOD)
        assert [*pool.engine.recovery.reports] == mates, "else it waits until a limit ends it"
        assert pool.step(None, id=range(3))[3].tolist() == [i in mates for i in range(3)]
        assert pool.restarts.tolist() == [int(i in mates) for i in range(3)]
        with pytest.raises(ResetNeeded, match="restarted; reset before step"):
            pool.step(GOOD)


def test_on_restart_is_called_after_an_interrupt_of_the_restart(monkeypatch):
    """The handler of the signal runs when the env was recreated, and before ``on_restart``."""
    calls = []
    again = Recreation._finish_recreation

    def interrupted(self, *arguments):
        again(self, *arguments)
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Recreation, "_finish_recreation", interrupted)
    told = {"on_restart": lambda i, _: calls.append(i), **RESTART}
    with reset_pool("dummy", **told) as pool:
        pool.send(["", "value", ""])
        with (
            helpers.handling(signal.SIGUSR1, helpers.raising(InterruptedError())),
            pytest.raises(InterruptedError),
        ):
            pool.recv()
        assert len(pool.recv()[1]) == 3
        assert calls == [1]
