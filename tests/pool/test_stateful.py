"""Any order of requests, faults, kills, restarts and closes, against a simple model."""

import functools
import os
import signal

import hypothesis.strategies as st
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from hypothesis import Phase
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from envpool_py import EnvError, WorkerDiedError
from tests.faults.helpers import running
from tests.support import envs, examples
from tests.support.helpers import wait_until
from tests.support.places import PLACES, slow

NUM = 4
NEVER, READY, FLYING, RESETTING, FAILED, DEAD = range(6)
IDS = st.sets(st.integers(0, NUM - 1), min_size=1).map(sorted)
ONE = st.integers(0, NUM - 1)


class PoolMachine(RuleBasedStateMachine):
    """The model of a pool that raises: for each env its state, its episode and step, its fault.

    Which env was quicker must not decide which rules apply: each applies to the envs that it can.
    """

    place = ""

    def __init__(self):
        super().__init__()
        self.open()

    def open(self):
        fns = [functools.partial(envs.FaultEnv, tag) for tag in range(NUM)]
        self.pool = PLACES[self.place](fns, wait_num=1)
        self.pids = self.pool.call("pid")
        self.state = [NEVER] * NUM
        self.episode, self.t = [-1] * NUM, [0] * NUM
        self.fault = [""] * NUM
        # Whether its process was killed while it was in flight: its row may have been there.
        self.killed = [False] * NUM

    def flying(self):
        return [i for i in range(NUM) if self.state[i] in (FLYING, RESETTING)]

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
        for i, row in zip(ids, obs.tolist(), strict=True):
            self.began(i, row)

    @rule(ids=IDS)
    def cancel(self, ids):
        """Cancel what is in flight: how far those envs have come is not known."""
        self.pool.cancel(ids)
        for i in ids:
            if self.state[i] in (FLYING, RESETTING):
                self.state[i], self.fault[i] = FAILED, ""
                (self.episode[i],) = self.pool.get_env_attr("episode", [i])

    @rule(timeout=st.sampled_from([None, 0.001]), wait_num=st.integers(1, NUM))
    def recv(self, timeout, wait_num):
        self.pool.timeout, self.pool.wait_num = timeout, wait_num
        if flying := len(self.flying()):
            self.fetch(self.pool.recv, 1 if timeout else min(wait_num, flying))

    @rule()
    def drain(self):
        while self.pool.waiting_id:
            self.fetch(self.pool.drain, 1)
        assert all(self.killed[i] for i in self.flying())
        assert len(self.pool.drain()[1]) == 0

    def fetch(self, take, least):
        try:
            batch = take()
        except EnvError as error:
            for i in error.env_ids:
                # One whose process has ended is named whether or not its own row came before.
                if self.state[i] == FLYING and not self.killed[i]:
                    assert self.fault[i] == "value"
                    self.state[i] = FAILED
            return
        assert len(batch[1]) >= least
        for obs, _, _, truncated, info in zip(*batch, strict=True):
            i = info["env_id"]
            assert (self.fault[i], truncated) == ("", False)
            assert ("is_reset" in info) == (self.state[i] == RESETTING)
            if self.state[i] == RESETTING:
                self.began(i, obs.tolist())
            else:
                assert self.state[i] == FLYING
                self.t[i], self.state[i] = self.t[i] + 1, READY
                assert obs.tolist() == [i, self.episode[i], self.t[i]]

    def began(self, i, obs):
        self.episode[i], self.t[i], self.state[i] = self.episode[i] + 1, 0, READY
        assert obs == [i, self.episode[i], 0]

    @rule(i=ONE, in_flight=st.booleans())
    def kill(self, i, in_flight):
        """Kill a process, between two requests of its envs or while some are in flight."""
        if self.place == "dummy" or self.state[i] == DEAD:
            return  # there is no process to kill
        if not in_flight:
            self.drain()
        for j in self.mates(i):
            self.killed[j] = self.state[j] in (FLYING, RESETTING)
        os.kill(self.pids[i], signal.SIGKILL)
        assert wait_until(lambda: not running(self.pids[i]))
        self.drain()
        for j in self.mates(i):
            self.killed[j], self.state[j] = False, DEAD
            with pytest.raises(WorkerDiedError, match=f"env {j}: "):
                self.pool.get_env_attr("tag", [j])

    @rule(i=ONE)
    def restart(self, i):
        if self.state[i] in (FLYING, RESETTING):
            with pytest.raises(AlreadyPendingCallError):
                self.pool.restart([i])
            return
        made = self.mates(i) if self.state[i] == DEAD else [i]
        self.pool.restart([i])
        for j in made:
            self.state[j], self.episode[j], self.t[j], self.fault[j] = NEVER, -1, 0, ""
            (self.pids[j],) = self.pool.call("pid", id=[j])

    @rule()
    def close(self):
        """Close whatever is under way, and begin again with a new pool."""
        self.pool.close()
        assert not any(running(pid) for pid in set(self.pids) - {os.getpid()})
        self.open()

    def teardown(self):
        self.pool.close()


@pytest.mark.parametrize("place", ["dummy", *slow("shmem-fork-packed")])
def test_any_order_of_requests(place):
    run_state_machine_as_test(
        type("Machine", (PoolMachine,), {"place": place}),
        settings=examples.same(
            max_examples=15,
            stateful_step_count=25,
            # Who was quicker decides what came: an example does not come again to be made smaller.
            phases=[Phase.generate],
        ),
    )
