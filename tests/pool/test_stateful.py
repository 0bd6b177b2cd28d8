"""Any order of requests, faults, kills, restarts and closes, against a simple model."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import Any

import hypothesis.strategies as st
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from envpool_py import EnvError, WorkerDiedError
from tests.faults.helpers import running
from tests.support import envs
from tests.support.helpers import wait_until
from tests.support.places import PLACES, slow

NUM = 4
NEVER, READY, FLYING, RESETTING, FAILED, DEAD = range(6)
IDS = st.sets(st.integers(0, NUM - 1), min_size=1).map(sorted)
ONE = st.integers(0, NUM - 1)
LIMIT = 60.0
"""The step_timeout, until a rule has an env hang alone."""


class PoolMachine(RuleBasedStateMachine):
    """The model of a pool that raises: for each env its state, its episode and step, its fault.

    Which env was quicker must not decide which rules apply: each applies to the envs that it can.
    """

    place = ""
    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.open()

    def open(self):
        fns = [functools.partial(envs.FaultEnv, tag) for tag in range(NUM)]
        limit = {} if self.place == "dummy" else {"step_timeout": LIMIT}
        self.pool = PLACES[self.place](fns, wait_num=1, **limit, **self.options)
        self.pids = self.pool.call("pid")
        self.state = [NEVER] * NUM
        self.episode, self.t = [-1] * NUM, [0] * NUM
        self.fault = [""] * NUM
        # Whether its process was killed while it was in flight: its row may have been there.
        self.killed = [False] * NUM

    def those(self, *states):
        return [i for i in range(NUM) if self.state[i] in states]

    def steps(self, i):
        """Tell whether a step of this env would be carried out."""
        return self.state[i] == READY

    def free(self, ids):
        return [i for i in ids if self.state[i] in (NEVER, READY, FAILED)]

    def mates(self, i):
        return [j for j in range(NUM) if self.pids[j] == self.pids[i]]

    @rule(ids=IDS, faults=st.lists(st.sampled_from(["", "", "value"]), min_size=NUM, max_size=NUM))
    def send(self, ids, faults):
        ids = [i for i in ids if self.state[i] == READY]
        self.pool.send([faults[i] for i in ids], ids)
        for i in ids:
            self.state[i], self.fault[i] = FLYING, faults[i]

    @rule(ids=IDS)
    def send_reset(self, ids):
        ids = self.free(ids)
        self.pool.send_reset(ids)
        for i in ids:
            self.state[i], self.fault[i] = RESETTING, ""

    @rule(i=ONE)
    def send_what_is_refused(self, i):
        wrong = {NEVER: ResetNeeded, FAILED: ResetNeeded, DEAD: WorkerDiedError}
        wrong |= {FLYING: AlreadyPendingCallError, RESETTING: AlreadyPendingCallError}
        if self.state[i] in wrong:
            with pytest.raises(wrong[self.state[i]], match=f"env {i}: "):
                self.pool.send([""], [i])

    @rule(ids=IDS)
    def reset(self, ids):
        ids = self.free(ids)
        obs, infos = self.pool.reset(ids)
        assert [info["env_id"] for info in infos] == ids
        for k, i in enumerate(ids):
            self.began(i, obs[k].tolist(), infos[k])

    @rule(ids=IDS)
    def call(self, ids):
        ids = self.free(ids)
        assert self.pool.get_env_attr("tag", ids) == ids

    @rule(ids=IDS)
    def cancel(self, ids):
        """Cancel what is in flight: how far those envs have come is not known."""
        self.pool.cancel(ids)
        for i in ids:
            if self.state[i] in (FLYING, RESETTING):
                self.abandoned(i)

    def abandoned(self, i):
        self.state[i], self.fault[i] = FAILED, ""
        self.episode[i] = int(self.pool.get_env_attr("episode", [i])[0])

    @rule(timeout=st.sampled_from([None, 0.001]), wait_num=st.integers(1, NUM))
    def recv(self, timeout, wait_num):
        self.pool.timeout, self.pool.wait_num = timeout, wait_num
        flying = len(self.those(FLYING, RESETTING))
        if not flying:
            with pytest.raises(ValueError, match="no env is in flight"):
                self.pool.recv()
            return
        self.fetch(self.pool.recv, 1 if timeout else min(wait_num, flying))

    @rule()
    def drain(self):
        while self.pool.waiting_id:
            self.fetch(self.pool.drain, 1)
        assert all(self.killed[i] for i in self.those(FLYING, RESETTING))
        assert len(self.pool.drain()[1]) == 0

    def fetch(self, take, least):
        try:
            batch = take()
        except EnvError as error:
            for i in error.env_ids:
                self.failed(i)
            return
        assert len(batch[1]) >= least
        for obs, _, _, truncated, info in zip(*batch, strict=True):
            self.row(info["env_id"], obs.tolist(), bool(truncated), info)

    def failed(self, i):
        # One of a process that has ended is named whether or not its own row came before.
        if self.state[i] == FLYING and not self.killed[i]:
            assert self.fault[i] == "value"
            self.state[i] = FAILED

    def row(self, i, obs, truncated, info):
        assert not self.fault[i]
        assert not truncated
        if self.state[i] == RESETTING:
            assert info["is_reset"]
            self.began(i, obs, info)
        else:
            assert self.state[i] == FLYING
            self.t[i] += 1
            self.state[i] = READY
            assert obs == [i, self.episode[i], self.t[i]]

    def began(self, i, obs, info):
        assert "env_error" not in info
        self.episode[i], self.t[i], self.state[i] = self.episode[i] + 1, 0, READY
        assert obs == [i, self.episode[i], 0]

    @rule(i=ONE, in_flight=st.booleans())
    def kill(self, i, in_flight):
        """Kill a process, between two requests of its envs or while some are in flight."""
        if self.place == "dummy":  # its envs have no process to kill
            return
        if not in_flight:
            self.drain()
        if self.state[i] == DEAD:
            return
        for j in self.mates(i):
            self.killed[j] = self.state[j] in (FLYING, RESETTING)
        os.kill(self.pids[i], signal.SIGKILL)
        assert wait_until(lambda: not running(self.pids[i]))
        self.drain()
        self.have_died(self.mates(i))

    def have_died(self, mates):
        for j in mates:
            self.killed[j] = False
            self.state[j] = DEAD
            with pytest.raises(WorkerDiedError, match=f"env {j}: "):
                self.pool.get_env_attr("tag", [j])

    @rule(i=ONE)
    def hang(self, i):
        """Let an env hang, alone, and its time run out."""
        self.drain()
        if self.place == "dummy" or not self.steps(i):
            return
        self.pool.send(["hang"], [i])
        self.state[i], self.fault[i], self.killed[i] = FLYING, "hang", True
        watch = self.pool.engine.hosts.processes.watchdog
        number = self.pool.engine.hosts.of(i).number
        assert wait_until(lambda: watch._heartbeats[number, 0] == i + 1)
        watch.limit, watch._next_look = 0.01, 0.0
        mates = self.mates(i)
        self.drain()
        watch.limit = LIMIT
        self.have_died(mates)

    @rule(i=ONE)
    def restart(self, i):
        if self.state[i] in (FLYING, RESETTING):
            with pytest.raises(AlreadyPendingCallError):
                self.pool.restart([i])
            return
        made = self.mates(i) if self.state[i] == DEAD else [i]
        self.pool.restart([i])
        for j in made:
            self.made(j)
            self.pids[j] = self.pool.call("pid", id=[j])[0]

    def made(self, i):
        self.state[i], self.episode[i], self.t[i], self.fault[i] = NEVER, -1, 0, ""

    @rule()
    def close(self):
        """Close whatever is under way, and begin again with a new pool."""
        self.pool.close()
        for ask in (self.pool.recv, self.pool.reset, self.pool.drain):
            with pytest.raises(ClosedEnvironmentError):
                ask()
        assert not any(running(pid) for pid in set(self.pids) - {os.getpid()})
        self.pool.close()
        self.open()

    def teardown(self):
        self.pool.close()


class RestartingMachine(PoolMachine):
    """The model of a pool with `on_error="restart"`: each loss is reported once."""

    options = {"on_error": "restart", "max_restarts": None, "restart_backoff": 0.0}  # noqa: RUF012

    def open(self):
        super().open()
        # Lost while idle: what comes next has to say so. None: the order of things decides.
        self.unreported = [False] * NUM

    def steps(self, i):
        return super().steps(i) and self.unreported[i] is False

    def send(self, ids, faults):
        faults = ["value" if self.unreported[i] else faults[i] for i in range(NUM)]
        super().send(ids, faults)

    def failed(self, i):
        raise AssertionError(f"env {i} raises")

    def abandoned(self, i):
        if self.fault[i] or self.unreported[i]:
            self.unreported[i] = None
        super().abandoned(i)

    def row(self, i, obs, truncated, info):
        killed = self.killed[i]
        if not truncated:
            again = killed and "env_error" in info  # a reset that was lost, and tried again
            if again:
                self.unreported[i] = None
            super().row(i, obs, truncated, info)
            if killed:  # the row came first, and then the env was lost
                self.unreported[i] = None if again else True
            return
        assert self.state[i] == FLYING
        assert self.fault[i] or killed
        assert "env_error" in info
        assert obs == [i, self.episode[i], self.t[i]]
        self.made(i)
        self.state[i] = FAILED
        self.unreported[i] = None if killed else False

    def began(self, i, obs, info):
        if self.unreported[i] is None:
            self.episode[i] = -1 if obs[1] == 0 else self.episode[i]
        else:
            assert ("env_error" in info) == self.unreported[i]
            self.episode[i] = -1 if self.unreported[i] else self.episode[i]
        self.unreported[i] = False
        super().began(i, obs, {})

    def have_died(self, mates):
        with contextlib.suppress(WorkerDiedError):  # unless it has been noticed
            self.pool.get_env_attr("tag", mates)
        self.pids = self.pool.call("pid")
        for j in mates:
            if not self.killed[j]:
                self.unreported[j] = True if self.state[j] == READY else self.unreported[j]
                self.episode[j] = -1 if self.state[j] != READY else self.episode[j]
            self.killed[j] = False


@pytest.mark.parametrize("machine", [PoolMachine, RestartingMachine])
@pytest.mark.parametrize("place", ["dummy", *slow("shmem-fork-packed")])
def test_any_order_of_requests(place, machine):
    chosen = type("Machine", (machine,), {"place": place})
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=30 if place == "dummy" else 12,
            stateful_step_count=25,
            deadline=None,
            database=None,
            # Who was quicker decides what came: an example does not come again to be made smaller.
            phases=[Phase.generate],
            suppress_health_check=checks,
        ),
    )
