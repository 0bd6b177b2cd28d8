"""`on_error="restart"`: an env that fails is recreated and reported once; the others go on."""

import contextlib
import functools
import os
import select
import signal
import time

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from envpool_py import EnvError, EnvTimeoutError, WorkerDiedError
from tests.faults import helpers
from tests.faults.helpers import EACH, FNS, GOOD, MODES, NEW, PROCESSES, RESTART, kill, reset_pool
from tests.record.runs import failing
from tests.support import envs
from tests.support.places import PLACES, slow


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


# ---------------------------------------------------------------------------- lost episodes

LOSSES = [
    *((place, mode, "value") for place in EACH for mode in MODES),
    *((place, mode, how) for place in PROCESSES for mode in MODES for how in ("SIGKILL", "idle")),
    *slow(*((place, None, "SIGKILL") for place in NEW)),
]


@pytest.mark.parametrize(("place", "mode", "how"), LOSSES)
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
                with pytest.raises(ResetNeeded, match="env.* 0.*: it was restarted; reset"):
                    pool.step(GOOD)
                obs, infos = pool.reset(lost)
                assert obs.tolist() == [[k, 0, 0] for k in lost]
                assert not any("env_error" in info for info in infos)
            if mode == "next_step":  # the action is ignored
                batch = pool.step(["value", "", ""])
                for k in lost:
                    check_begun(batch, k, [k, 0, 0])
            batch = pool.step(GOOD)
            assert batch[0][lost].tolist() == [[k, 0, 1] for k in lost]
            assert not any("env_error" in info for info in batch[4])
            after = pool.call("pid")
            assert [after[k] != pids[k] for k in lost] == [how != "value"] * len(lost)
            assert [after[k] for k in kept] == [pids[k] for k in kept]
            assert [i for i, _ in calls] == lost * (n + 1)
            assert isinstance(calls[n][1], EnvError)


def test_every_env_of_a_dead_process_is_reported_once():
    text = "the worker process was killed by SIGKILL"
    with reset_pool("shmem-fork", num_processes=1, **RESTART) as pool:
        check_lost(pool.step(["SIGKILL"], [1]), 0, [1, 0, 0], f"env 1: {text}")
        # Idle ones: with their next step, which is not carried out, or with their next reset.
        check_lost(pool.step([""], [0]), 0, [0, 0, 0], f"env 0: {text}")
        obs, infos = pool.reset([2])
        assert obs.tolist() == [[2, 0, 0]]
        assert f"env 2: {text}" in infos[0]["env_error"]
        with pytest.raises(ResetNeeded, match="env 0: it was restarted; reset before step"):
            pool.step([""], [0])
        obs, infos = pool.reset([0, 1])
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0]]
        batch = pool.step(GOOD)
        assert batch[0][:, 2].tolist() == [1, 1, 1]
        assert not any("env_error" in info for info in [*infos, *batch[4]])
        assert len(set(pool.call("pid"))) == 1


def test_an_idle_env_of_a_dead_process_is_reported_with_its_own_next_step():
    options = {"num_processes": 1, "autoreset_mode": "next_step", **RESTART}
    with reset_pool("shmem-fork", **options) as pool:
        pool.step(GOOD)
        check_lost(pool.step(["SIGKILL"], [1]), 0, [1, 0, 1], "SIGKILL")
        batch = pool.step(GOOD)
        check_lost(batch, 0, [0, 0, 1], "SIGKILL")
        check_begun(batch, 1, [1, 0, 0])
        # A reset by the caller replaces the automatic one.
        assert pool.reset([0])[0].tolist() == [[0, 0, 0]]
        batch = pool.step(GOOD)
        assert batch[0][:, 2].tolist() == [1, 1, 0]
        assert [info.get("is_reset", False) for info in batch[4]] == [False, False, True]


def test_a_cancelled_reset_does_not_lose_the_report():
    with reset_pool("shmem-fork", **RESTART) as pool:
        kill(pool, 1)
        pool.step(["", ""], [0, 2])
        pool.send_reset([1])
        pool.cancel([1])
        assert "SIGKILL" in pool.reset([1])[1][0]["env_error"]


@pytest.mark.parametrize("place", EACH)
def test_what_the_caller_does_to_a_batch_does_not_reach_the_last_observation(place):
    with PLACES[place](FNS, copy=False, **RESTART) as pool:
        obs, _ = pool.reset()
        if place != "dummy":  # there it is the very memory, as copy=False says
            obs[:] = -1
        check_lost(pool.step(["", "value", ""]), 1, [1, 0, 0], "boom")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("space", ["mixed", "nested", "text", "discrete"])
def test_the_last_observation_of_any_space(space, columns, tmp_path):
    fns = failing(tmp_path, {1: (1, "raise")}, space)
    want, _ = fns[1]().reset(seed=5)
    with PLACES["shmem-fork-packed"](fns, columns=columns, **RESTART) as pool:
        pool.reset(seed=4)
        batch = pool.step([own.sample() for own in pool.action_space])
        assert batch[3].tolist() == [False, True, False]
        assert "once" in batch[4][1]["env_error"]
        if not isinstance(batch[0], (dict, tuple)):
            got = np.int64(batch[0][1]) if space == "discrete" else batch[0][1]
            assert data_equivalence(got, want)
        pool.reset([1])
        assert not pool.step([own.sample() for own in pool.action_space])[3].any()


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork"])
def test_an_automatic_reset_that_fails_is_tried_again(place, mode):
    """Nothing is lost: the ended row comes whole, and then comes that of the reset."""
    with reset_pool(place, [envs.FailsToResetEnv], autoreset_mode=mode, **RESTART) as pool:
        for ends in (False, False, False, True):
            assert pool.step([0])[2].tolist() == [ends]
        batch = pool.step([0])
        check_begun(batch, 0, [0, 0, 0])
        assert "env 0: reset raised ValueError: no second" in batch[4][0]["env_error"]
        assert pool.step([0])[0][:, 2].tolist() == [1]


# ------------------------------------------------------------- resets, env_fns, starts that fail


def fail(how):
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionAbortedError("not yet")


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(
    ("place", "how"), [("dummy", "raise"), *((PROCESSES[1], how) for how in ("raise", "die"))]
)
def test_a_failed_reset_is_tried_again_within_the_budget(place, how, times, tmp_path):
    def reset(_, row):
        if helpers.count_call(tmp_path / "resets") <= times:
            fail(how)
        return row

    fns = [envs.CountEnv, functools.partial(envs.ChangedEnv, reset=reset)]
    with PLACES[place](fns, **RESTART, max_restarts=2) as pool:
        if times == 3:
            error = ConnectionAbortedError if how == "raise" else WorkerDiedError
            with pytest.raises(EnvError, match="env 1: ") as caught:
                pool.reset()
            assert isinstance(caught.value, error)
            if how == "die":
                with pytest.raises(WorkerDiedError, match="env 1: "):
                    pool.reset([1])
                pool.restart([1])
        obs, infos = pool.reset(seed=4, options={"x": 1})
        assert obs[:, 2].tolist() == [0, 0]
        assert (infos[1]["seed"], infos[1]["options"]) == (5, {"x": 1})
        assert ("env_error" in infos[1]) == (times == 2)
        assert pool.step([0, 0])[0][:, 2].tolist() == [1, 1]


def fails_twice(path, how):
    """Return two env_fns, of which the second fails the second and third time it is called."""

    def act(times):
        if 1 < times < 4:
            fail(how)

    return [envs.FaultEnv, functools.partial(helpers.made, 0, path / "made", act)]


@pytest.mark.parametrize("budget", [1, 2, 3])
@pytest.mark.parametrize("fault", ["SIGKILL", "value"])
@pytest.mark.parametrize("how", ["raise", "die"])
def test_making_the_env_may_fail_too(how, fault, budget, tmp_path):
    """Each recreation that fails counts once."""
    fns = fails_twice(tmp_path, how)
    with reset_pool("shmem-fork", fns, **RESTART, max_restarts=budget) as pool:
        assert pool.step(["", fault])[3].tolist() == [False, True]
        if budget < 3:
            with pytest.raises(EnvError, match="env 1: "):
                pool.reset([1])
            assert pool.step([""], [0])[0][:, 2].tolist() == [2]
        if budget < 2:
            with pytest.raises(EnvError, match="env 1: "):
                pool.restart([1])
        if budget < 3:
            pool.restart([1])
        obs, infos = pool.reset()
        assert obs[:, 2].tolist() == [0, 0]
        assert infos[1]["episode"] == 0
        assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1]


def test_an_error_of_the_callback_passes():
    def refuse(i, error):
        raise RuntimeError(f"{i}: not mine") from error

    with reset_pool("shmem-fork-packed", **RESTART, on_restart=refuse) as pool:
        pool.step(["", "value", ""])
        with pytest.raises(RuntimeError, match="1: not mine"):
            pool.reset([1])
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]


# ------------------------------------------------------------------------------- back-off


def test_each_back_off_is_twice_the_last_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("envpool_py.recovery.LONGEST_BACKOFF", 0.05)
    with reset_pool("dummy", on_error="restart", restart_backoff=0.02) as pool:
        for delay in (0.0, 0.02, 0.04, 0.05, 0.05):
            before = time.monotonic()
            pool.step(["", "value", ""])
            assert before + delay <= pool.engine.recovery.failed[1].due <= time.monotonic() + delay
            pool.reset([1])


@pytest.mark.parametrize("place", EACH)
def test_a_back_off_blocks_only_its_own_env(place):
    options = {"on_error": "restart", "restart_backoff": 60.0, "autoreset_mode": "same_step"}
    with reset_pool(place, wait_num=1, **options) as pool:
        pool.send(["value"], [1])
        assert pool.step(None, id=[1])[3].tolist() == [True]  # the first restart is at once
        step = 0
        for ends in (True, False):
            pool.send(["value"], [1])
            pool.timeout, pool.strict_timeout = 0.01, True
            while 1 not in pool.engine.recovery.failed:
                assert len(pool.recv()[1]) == 0
            pool.timeout, pool.strict_timeout = None, False
            for _ in range(5):
                step += 1
                pool.send(["", ""], [0, 2])
                assert pool.step(None, id=[0, 2])[0][:, 2].tolist() == [step, step]
            assert pool.waiting_id == [1]
            if not ends:  # then the row of the next reset is no more than that
                pool.cancel([1])
                pool.send_reset([1])
            pool.engine.recovery.failed[1].due = 0.0
            obs, _, _, truncated, infos = pool.recv()
            assert obs.tolist() == [[1, 0, 0]]
            assert truncated.tolist() == [ends]
            assert ("is_reset" in infos[0]) == (not ends)
            assert "boom" in infos[0]["env_error"]


@pytest.mark.usefixtures("short_grace")
def test_a_restart_after_a_cancelled_back_off_spares_the_other_envs():
    with reset_pool("shmem-fork-packed", on_error="restart", restart_backoff=20.0) as pool:
        pool.step(["", "value", ""])
        pool.reset([1])  # the first restart is at once
        pool.step(["", "value", ""])
        pool.send_reset([1])
        pool.cancel([1])
        pool.restart([1])
        assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
        assert pool.step(GOOD)[0][:, 2].tolist() == [3, 1, 3]


# --------------------------------------------------------------- processes that are slow to start


def made_at_the_gate(gate, path):
    """Return an env_fn that waits at the gate, but for the first time it is called."""
    act = lambda times: times > 1 and gate.wait()  # noqa: E731
    return functools.partial(helpers.made, 0, path / "made", act)


@pytest.mark.parametrize(
    ("place", "mode"), [*(("shmem-fork", mode) for mode in MODES), *slow(("shmem-spawn", None))]
)
def test_a_process_that_is_slow_to_start_holds_up_only_its_own_envs(place, mode, gates, tmp_path):
    calls = []
    fns = [made_at_the_gate(gates[0], tmp_path), FNS[1]]
    options = {"autoreset_mode": mode, "wait_num": 1, "on_restart": lambda i, _: calls.append(i)}
    with reset_pool(place, fns, **RESTART, **options) as pool:
        process = pool.workers[0].process
        pool.send(["SIGKILL"], [0])
        process.join()
        if mode != "same_step":  # where that row is also the reset's
            check_lost(pool.recv(), 0, [0, 0, 0], "env 0: the worker process was killed")
            pool.send_reset(0) if mode is None else pool.send([""], [0])
        for step in range(1, 6):  # ... while the other env goes on
            assert pool.step([""], [1])[0].tolist() == [[1, 0, step]]
        assert calls == []
        gates[0].release()
        obs, _, _, truncated, infos = pool.step(None, [0])
        assert calls == [0]
        assert obs.tolist() == [[0, 0, 0]]
        assert truncated.tolist() == [mode == "same_step"]
        assert ("is_reset" in infos[0]) is (mode != "same_step")
        assert pool.step([""], [0])[0].tolist() == [[0, 0, 1]]


def test_a_process_that_starts_while_another_is_handled_is_not_forgotten(
    gates, tmp_path, monkeypatch
):
    fns = [made_at_the_gate(gates[0], tmp_path), *FNS[1:]]
    with reset_pool("shmem-fork", fns, **RESTART, autoreset_mode="same_step") as pool:
        engine = pool.engine
        forget_forms = engine.batches.forget_forms

        def handled(ids):
            if ids == [1]:  # the first of the quick ones is there, and is handled
                gates[0].release()
                for i in (0, 2):
                    if engine.hosts.is_restarting(i):
                        select.select([engine.hosts.of(i).stream.fd], [], [])
            forget_forms(ids)

        monkeypatch.setattr(engine.batches, "forget_forms", handled)
        for i in range(3):  # in this order
            process = pool.workers[i].process
            pool.send(["SIGKILL"], [i])
            process.join()
        obs, _, _, truncated, _ = pool.recv()
        assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert truncated.all()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 99])
def test_an_env_fn_that_hangs_in_a_restart_spends_the_budget_of_its_env(times, tmp_path):
    """Finding 26, with the other env of the process."""

    def act(called):
        while 1 < called <= 1 + times:
            signal.pause()

    fns = [FNS[0], functools.partial(helpers.made, 1, tmp_path / "made", act), FNS[2]]
    # The death is the first restart, the env_fn that hung the second.
    options = {"step_timeout": 0.6, "max_restarts": 2 if times == 1 else 1, **RESTART}
    with reset_pool("shmem-fork-packed", fns, **options) as pool:
        kill(pool, 1)
        assert pool.step(GOOD)[3].tolist() == [True, True, False]
        if times == 1:
            assert pool.reset()[0].tolist()[1] == [1, 0, 0]
            assert (tmp_path / "made").stat().st_size == 3
            assert not pool.step(GOOD)[3].any()
            return
        with pytest.raises(EnvTimeoutError, match=r"env 1: ") as caught:
            pool.reset([0, 1])
        assert caught.value.env_ids == (1,)
        assert "in act" in str(caught.value)
        # Env 0 shares the process: it returns a row or an error, and does not block.
        with contextlib.suppress(EnvError):
            pool.drain()
        assert pool.step([""], [2])[0].tolist() == [[2, 0, 2]]
