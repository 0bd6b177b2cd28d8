"""What only actors have, and actors that die, hang or are slow; nothing is left behind.

The tests of every backend run on Ray too, by `tests/ray/plugin.py`.
"""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import ray
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, EnvTimeoutError, RayEnvWorker, RayVectorEnv, WorkerDiedError
from envpool_py.env import heartbeat
from envpool_py.ray.actor_supervisor import ActorHost
from envpool_py.seeding import of_episode
from envpool_py.testing import EnvWorkerContract
from tests.faults.helpers import signalling
from tests.ray.cluster import actors
from tests.ray.plugin import PLACE
from tests.support import broken, envs
from tests.support.helpers import ROOT, wait_until

FNS = [partial(envs.FaultEnv, tag) for tag in range(4)]


def kill(pool, number):
    """Kill the process of an actor, and wait for its end."""
    (pid,) = pool.apply(lambda _: os.getpid(), id=2 * number)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: pid not in actors())


def let_it_start(pool):
    """Give new actors more time than ``step_timeout``, however busy the machine is."""
    for host in pool.engine.hosts.all:
        host.makes_within = host.step_timeout = 60.0


def exit_actor(_, action, row):
    """End the actor in Ray's way: Ray says at first that it is not available, while it runs."""
    if action:
        ray.actor.exit_actor()
    return row


def test_an_actor_that_is_not_available_does_not_run_on():
    env_fns = [partial(envs.ChangedEnv, tag, step=exit_actor) for tag in range(2)]
    options = {"on_error": "restart", "step_timeout": 20.0, "num_cpus": 0.01, "envs_per_actor": 1}
    with RayVectorEnv(env_fns, **options) as pool:
        pool.reset()
        old = pool.apply(lambda _: os.getpid())[1]
        assert "env_error" in pool.step([0, 1])[4][1]
        assert pool.apply(lambda _: os.getpid())[1] != old
        assert wait_until(lambda: old not in actors())


class TestContract(EnvWorkerContract):
    """What every worker promises, outside a pool."""

    make_worker = staticmethod(partial(RayEnvWorker, num_cpus=0.01))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_pool_in_a_fork_is_refused_with_the_reason():
    def make():
        with pytest.raises(RuntimeError, match="in a fork of a program that uses Ray; .*'spawn'"):
            RayVectorEnv([envs.CountEnv], num_cpus=0.01)

    process = multiprocessing.get_context("fork").Process(target=make)
    process.start()
    process.join(20)
    process.kill()
    assert process.exitcode == 0


def test_large_observations_go_through_the_object_store():
    large = partial(
        envs.ChangedEnv,
        step=lambda _, action, row: (np.full((200, 300, 3), action, np.uint8), *row[1:]),
        reset=lambda _, row: (np.zeros((200, 300, 3), np.uint8), row[1]),
        space=gym.spaces.Box(0, 255, (200, 300, 3), np.uint8),
    )
    with PLACE([large] * 4) as pool:
        pool.reset()
        for n in range(3):
            obs = pool.step([n, n + 1, n + 2, n + 3])[0]
            assert (obs == np.arange(n, n + 4).reshape(4, 1, 1, 1)).all()


@pytest.mark.parametrize("count", [1, 2])
def test_an_env_fn_that_raises_is_named_and_no_actor_is_left(count, tmp_path):
    def make():
        (tmp_path / "made").touch()
        return envs.CountEnv()

    def fail():
        assert wait_until((tmp_path / "made").exists)
        raise ValueError("no env")

    with pytest.raises(ValueError, match="env 1: env_fn raised ValueError: no env"):
        RayVectorEnv([make, fail], envs_per_actor=count, num_cpus=0.01)
    assert wait_until(lambda: not actors())


@pytest.mark.filterwarnings("ignore:Ray has room for")
@pytest.mark.parametrize(
    ("env_fns", "options", "error", "text"),
    [
        ([envs.CountEnv], {}, KeyboardInterrupt, None),
        ([broken.sleep_indefinitely], {"num_cpus": 0.01}, KeyboardInterrupt, None),
        ([envs.CountEnv], {"step_timeout": 0.1}, EnvTimeoutError, "env 0: .* within 1 seconds"),
        ([envs.raise_in_constructor] * 2, {"num_cpus": 0.3}, EnvError, "env 0: env_fn raised"),
    ],
)
def test_a_pool_that_waits_in_a_full_cluster(env_fns, options, error, text, beside, monkeypatch):
    """After Ctrl-C, the limit or an error no actor of it is left, and none starts later."""

    def note(self, *, known):
        await_event(self, known=known)
        if error is KeyboardInterrupt and not known:
            beside(signalling(signal.SIGINT))

    await_event, whole = ActorHost._ask_for_event, {"num_cpus": 3.5, "step_timeout": 60.0}
    monkeypatch.setattr("envpool_py.worker.supervisor.MAKES_WITHIN", 1.0)
    with RayVectorEnv([envs.CountEnv], **whole) as first:
        monkeypatch.setattr(ActorHost, "_ask_for_event", note)
        with pytest.raises(error, match=text):
            RayVectorEnv(env_fns, envs_per_actor=1, **{**whole, **options})
        monkeypatch.undo()
        assert first.reset()[0].tolist() == [[0, 0, 0]]
        assert wait_until(lambda: len(actors()) == 1)
    with RayVectorEnv([envs.CountEnv], **whole) as pool:
        assert pool.reset()[0].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("then", ["reset", "close"])
def test_ctrl_c_in_a_restart_that_waits_in_a_full_cluster(then, beside, monkeypatch):
    """The env is recreated when there is room, or, if its pool is closed, never."""

    def note(self, *, known):
        await_event(self, known=known)
        if not known:
            beside(signalling(signal.SIGINT))

    await_event, whole = ActorHost._ask_for_event, {"num_cpus": 3.5, "step_timeout": 60.0}
    with RayVectorEnv([envs.CountEnv], **whole) as pool:
        pool.reset()
        kill(pool, 0)
        with RayVectorEnv([envs.CountEnv], **whole) as other:
            monkeypatch.setattr(ActorHost, "_ask_for_event", note)
            with pytest.raises(KeyboardInterrupt):
                pool.restart([0])
            monkeypatch.undo()
            assert other.reset()[0].tolist() == [[0, 0, 0]]
            if then == "close":
                pool.close()
            assert len(actors()) == 1
        with pool if then == "reset" else RayVectorEnv([envs.CountEnv], **whole) as after:
            assert after.reset()[0].tolist() == [[0, 0, 0]]
            assert after.step([0])[0].tolist() == [[0, 0, 1]]
            assert len(actors()) == 1


def test_an_event_of_an_env_that_is_closed_before_the_pool_is_made(monkeypatch):
    """As of the others if an env_fn has raised, or the construction is interrupted."""
    take_name = ActorHost._take_name

    def note(self, name):
        return take_name(self, name) + self._take_event((self.ids[0], heartbeat.CLOSING, []))

    monkeypatch.setattr(ActorHost, "_take_name", note)
    with RayVectorEnv([envs.CountEnv], num_cpus=0.01) as pool:
        assert pool.reset()[0].tolist() == [[0, 0, 0]]


def test_a_death_names_the_envs_and_the_node_and_the_others_go_on():
    node = ray.get_runtime_context().get_node_id()[:8]
    with PLACE(FNS) as pool:
        pool.reset()
        text = rf"env 2: the actor on node .*\({node}\) died"
        with pytest.raises(WorkerDiedError, match=text) as caught:
            pool.step(["", "", "SIGKILL", ""])
        assert set(caught.value.env_ids) == {2, 3}
        assert pool.recv()[0][:, 0].tolist() == [0, 1]
        assert len(pool.step([""] * 2, [0, 1])[0]) == 2
        with pytest.raises(WorkerDiedError, match="env 3"):
            pool.step([""], [3])
        pool.restart([2])  # and env 3, which shared the actor
        assert pool.reset()[0][:, 0].tolist() == [0, 1, 2, 3]
        kill(pool, 0)  # idle, and Ray tells it after a while
        assert wait_until(lambda: bool(pool.engine.hosts.supervisor.poller._arrived))
        pool.restart([0, 1])
        pool.reset([0, 1])
        assert pool.step([""] * 4)[0][:, 2].tolist() == [1, 1, 1, 1]


def test_a_death_is_not_said_to_be_that_of_an_env_that_was_recreated_before():
    with PLACE(FNS, on_error="restart") as pool:
        pool.reset()
        assert "env_error" in pool.step(["", "value", "", ""])[4][1]
        pool.reset([1])
        infos = pool.step(["SIGKILL", "", "", ""])[4]
        assert not any("it ran env" in info["env_error"] for info in infos[:2])


def test_episode_seeds_hold_over_the_death_of_an_actor():
    options = {"episode_seeds": True, "autoreset_mode": "next_step", "on_error": "restart"}
    with PLACE([envs.CountEnv] * 4, **options) as pool:
        infos = list(pool.reset(seed=3)[1])
        for n in range(24):
            if n == 7:
                ray.kill(pool.workers[2].process)
            infos.extend(info for info in pool.step([0] * 4)[4] if "seed" in info)
    for i in range(4):
        seeds = [info["seed"] for info in infos if info["env_id"] == i]
        assert len(seeds) > 3
        assert seeds == [of_episode(3 + i, number) for number in range(len(seeds))]


def test_a_stuck_env_is_named_with_its_stack_and_its_actor_is_killed():
    text = r"env 3: did not end its request within step_timeout=2.0 seconds \(.*py:\d+\)"
    with PLACE(FNS, step_timeout=2.0) as pool:
        pool.reset()
        with pytest.raises(EnvTimeoutError, match=text) as caught:
            pool.step(["", "", "", "hang"])
        assert caught.value.env_id == 3
        let_it_start(pool)
        pool.recv()
        with pytest.raises(WorkerDiedError, match="env 2"):
            pool.step([""], [2])
        pool.restart([2, 3])
        pool.reset()
        assert len(pool.step([""] * 4)[0]) == 4


def test_an_env_that_holds_the_gil_is_ended_too():
    with PLACE([broken.BrokenEnv], step_timeout=1.0) as pool:
        pool.reset()
        with pytest.raises(WorkerDiedError):
            pool.step(["gil"])


def test_an_actor_that_is_stopped_is_found_by_the_driver(monkeypatch):
    monkeypatch.setattr("envpool_py.ray.actor_supervisor.SILENT_FOR", 1.0)
    text = (
        r"envs 2 to 3: has not answered for 2.5 seconds, with step_timeout=0.5; its actor on node"
    )
    with PLACE(FNS, step_timeout=0.5) as pool:
        pool.reset()
        for _ in range(2):
            stopped = pool.call("pid")[2]
            os.kill(stopped, signal.SIGSTOP)
            with pytest.raises(EnvTimeoutError, match=text) as caught:
                pool.step([""] * 4)
            assert caught.value.env_ids == (2, 3)
            assert pool.recv()[0][:, 0].tolist() == [0, 1]
            with pytest.raises(WorkerDiedError, match="env 3: .*was killed: envs 2 to 3 has not"):
                pool.step([""], [3])
            assert wait_until(lambda pid=stopped: pid not in actors())
            let_it_start(pool)
            pool.restart([2, 3])
            assert pool.reset()[0][:, 0].tolist() == [0, 1, 2, 3]
            assert len(pool.step([""] * 4)[0]) == 4


def test_a_silent_actor_is_logged_without_a_limit(monkeypatch, caplog, beside):
    def is_logged():  # others may be slow as well
        return any("envs 0 to 1: no result for " in text for text in caplog.messages)

    monkeypatch.setattr("envpool_py.engine.flight.HANGS_AFTER", 0.3)
    with PLACE(FNS) as pool:
        pool.reset()
        pid = pool.call("pid")[0]
        os.kill(pid, signal.SIGSTOP)
        beside(lambda: wait_until(is_logged) and os.kill(pid, signal.SIGCONT))
        assert len(pool.step([""] * 4)[0]) == 4
        assert is_logged()


def test_close_ends_actors_that_hang_within_a_bounded_time(monkeypatch):
    monkeypatch.setattr("envpool_py.worker.supervisor.GRACE", 0.3)
    pool = PLACE(FNS, wait_num=1)
    pool.reset()
    pool.send(["hang", "", "", ""])
    killed = (
        r"env 0: could not be closed: the actor .* was killed: it has not ended after 0.3 seconds"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.close()
    # On a busy machine other actors may be late, too.
    assert any(re.match(killed, str(one.message)) for one in caught)
    pool.close()


def test_an_interrupted_call_asks_for_a_reset_and_its_late_rows_are_dropped(gates):
    with PLACE([partial(envs.GateEnv, i, gates[i]) for i in range(4)]) as pool:
        pool.reset()
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.step([0, envs.BLOCK, 0, 0])
        timer.join()
        with pytest.raises(ResetNeeded):
            pool.step([0] * 4)
        gates[1].release()
        pool.reset()
        assert pool.step([0] * 4)[0][:, 2].tolist() == [1] * 4


DRIVER = """
import os, signal, sys
import ray
from envpool_py import RayVectorEnv, WorkerDiedError
from tests.support.envs import CountEnv
if sys.argv[2] != "exit":  # else the pool does it, and Ray finds the cluster by RAY_ADDRESS
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
pool = RayVectorEnv([CountEnv] * 2, envs_per_actor=1, num_cpus=0.01)
pool.reset()
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "shutdown":
    ray.shutdown()
    try:
        pool.step([0, 0])
    except WorkerDiedError:
        pool.close()
    else:
        sys.exit("no error")
"""


def test_no_actor_outlives_its_driver():
    address = ray.get_runtime_context().gcs_address
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": address}
    before = actors()
    codes = {"kill": -signal.SIGKILL, "exit": 0, "shutdown": 0}
    runs = [
        subprocess.Popen([sys.executable, "-c", DRIVER, address, how], env=environ) for how in codes
    ]
    assert [run.wait() for run in runs] == list(codes.values())
    assert wait_until(lambda: actors() <= before)
