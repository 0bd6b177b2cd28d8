"""Any order of send, reset, recv, kill, restart and timeouts, against a simple model."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import hypothesis.strategies as st
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from envpool_py import EnvError, WorkerDiedError
from tests import envs
from tests.places import PLACES
from tests.test_faults import running, wait_until

NUM = 4
NEVER, READY, FLYING, RESETTING, FAILED, DEAD = [
    "never",
    "ready",
    "flying",
    "resetting",
    "failed",
    "dead",
]
IDS = st.sets(st.integers(0, NUM - 1), min_size=1).map(sorted)


class PoolMachine(RuleBasedStateMachine):
    """The model: for each env its state, its episode and its step, and the fault it was sent."""

    place = ""

    def __init__(self) -> None:
        super().__init__()
        fns = [functools.partial(envs.FaultEnv, tag) for tag in range(NUM)]
        self.pool = PLACES[self.place](fns, wait_num=1)
        self.pids = self.pool.call("pid")
        self.state = [NEVER] * NUM
        self.episode, self.t = [-1] * NUM, [0] * NUM
        self.fault = [""] * NUM

    def those(self, *states: str) -> list[int]:
        return [i for i in range(NUM) if self.state[i] in states]

    # ------------------------------------------------------------------------------ requests

    @rule(ids=IDS, faults=st.lists(st.sampled_from(["", "", "value"]), min_size=NUM, max_size=NUM))
    def send(self, ids: list[int], faults: list[str]) -> None:
        ids = [i for i in ids if self.state[i] == READY]
        self.pool.send([faults[i] for i in ids], ids)
        for i in ids:
            self.state[i], self.fault[i] = FLYING, faults[i]

    @rule(ids=IDS)
    def send_reset(self, ids: list[int]) -> None:
        ids = [i for i in ids if self.state[i] in (NEVER, READY, FAILED)]
        self.pool.send_reset(ids)
        for i in ids:
            self.state[i], self.fault[i] = RESETTING, ""

    @rule(i=st.integers(0, NUM - 1))
    def send_what_is_refused(self, i: int) -> None:
        wrong = {NEVER: ResetNeeded, FAILED: ResetNeeded, DEAD: WorkerDiedError}
        wrong |= {FLYING: AlreadyPendingCallError, RESETTING: AlreadyPendingCallError}
        if self.state[i] in wrong:
            with pytest.raises(wrong[self.state[i]], match=f"env {i}: "):
                self.pool.send([""], [i])

    @rule(ids=IDS)
    def reset(self, ids: list[int]) -> None:
        ids = [i for i in ids if self.state[i] in (NEVER, READY, FAILED)]
        obs, infos = self.pool.reset(ids)
        assert [info["env_id"] for info in infos] == ids
        for k, i in enumerate(ids):
            self.began(i, obs[k].tolist())

    @rule(ids=IDS)
    def call(self, ids: list[int]) -> None:
        ids = [i for i in ids if self.state[i] in (NEVER, READY, FAILED)]
        assert self.pool.get_env_attr("tag", ids) == ids

    # ------------------------------------------------------------------------------- fetching

    @precondition(lambda self: self.those(FLYING, RESETTING))
    @rule(timeout=st.sampled_from([None, 0.001]), wait_num=st.integers(1, NUM))
    def recv(self, timeout: float | None, wait_num: int) -> None:
        self.pool.timeout, self.pool.wait_num = timeout, wait_num
        self.fetch(self.pool.recv)

    @rule()
    def drain(self) -> None:
        while self.those(FLYING, RESETTING):
            self.fetch(self.pool.drain)
        assert len(self.pool.drain()[1]) == 0

    def fetch(self, take: Any) -> None:
        try:
            batch = take()
        except EnvError as error:
            for i in error.env_ids:
                if isinstance(error, WorkerDiedError) and not self.fault[i]:
                    raise
                assert self.fault[i] == "value"
                assert self.state[i] == FLYING
                self.state[i] = FAILED
            return
        assert len(batch[1]) >= 1
        for obs, info in zip(batch[0].tolist(), batch[4], strict=True):
            i = info["env_id"]
            assert not self.fault[i]
            if self.state[i] == RESETTING:
                assert info["is_reset"]
                self.began(i, obs)
            else:
                assert self.state[i] == FLYING
                self.t[i] += 1
                self.state[i] = READY
                assert obs == [i, self.episode[i], self.t[i]]

    def began(self, i: int, obs: list[int]) -> None:
        self.episode[i], self.t[i], self.state[i] = self.episode[i] + 1, 0, READY
        assert obs == [i, self.episode[i], 0]

    # --------------------------------------------------------------------------- life and death

    @rule(i=st.integers(0, NUM - 1))
    def kill(self, i: int) -> None:
        """Kill a process between two requests of its envs."""
        self.drain()
        if self.state[i] == DEAD:
            return
        pid = self.pids[i]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not running(pid))
        with pytest.raises(WorkerDiedError, match=f"env {i}: .*SIGKILL"):
            self.pool.get_env_attr("tag", [i])
        for j in range(NUM):
            if self.pids[j] == pid:
                self.state[j] = DEAD

    @rule(i=st.integers(0, NUM - 1))
    def restart(self, i: int) -> None:
        if self.state[i] in (FLYING, RESETTING):
            with pytest.raises(AlreadyPendingCallError):
                self.pool.restart([i])
            return
        made = [i]
        if self.state[i] == DEAD:
            made = [j for j in range(NUM) if self.pids[j] == self.pids[i]]
        self.pool.restart([i])
        for j in made:
            self.state[j], self.episode[j], self.t[j], self.fault[j] = NEVER, -1, 0, ""
            self.pids[j] = self.pool.call("pid", id=[j])[0]

    def teardown(self) -> None:
        self.pool.close()


@pytest.mark.parametrize("place", ["dummy", "subproc-fork-packed", "shmem-fork-packed"])
def test_any_order_of_requests(place: str) -> None:
    class Machine(PoolMachine):
        pass

    Machine.place = place
    if place == "dummy":  # its envs have no process to kill
        Machine.kill = lambda self, i: None  # noqa: ARG005
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=checks
        ),
    )
