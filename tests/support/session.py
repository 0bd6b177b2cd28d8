"""A pool and its oracle, asked for the same: whatever a caller may do, in any order."""

import copy
import functools

import numpy as np
import pytest
from gymnasium import spaces

from tests.support import envs
from tests.support.reference import (
    HandStepped,
    Pending,
    check,
    check_reset,
    in_columns,
    same,
    spread,
)
from tests.support.watched import spoil

CALLS = (
    *("step", "step", "step", "send", "recv", "reset", "send_reset", "wait"),
    *("drain", "seed", "read", "write", "wait_num"),
)
FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


ROUNDS = 3


def script(seed, rounds=None):
    """Return a list of calls that has each of them so often."""
    rounds = rounds or ROUNDS
    rng = np.random.default_rng(seed)
    return [(str(name), int(rng.integers(2**16))) for name in rng.permutation(CALLS * rounds)]


def is_fixed(space):
    """Whether a batch of elements can be written as arrays."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return all(map(is_fixed, parts))
    return isinstance(space, FIXED)


class Session:
    """One pool and its oracle; each name of CALLS is a call that a caller may make.

    `rng` decides on its details. Results are verified at once, and those that the caller has not
    changed meanwhile once more at the end: what was returned never changes.
    """

    def __init__(self, make, fns, mode=None, **options):
        self.hand = HandStepped(fns, mode)
        self.all = list(range(len(fns)))
        raw = self.hand.envs[0]
        self.space = getattr(raw, "observation_space", None)
        self.action_space = getattr(raw, "action_space", None)
        self.columns = options.get("columns", False)
        self.pending = Pending(self.space, columns=self.columns)
        self.rng = np.random.default_rng(0)
        self.held = []
        self.pool = make(fns, autoreset_mode=mode, **options)

    def run(self, calls):
        """Make these calls, each with the number from which its details follow; close the pool."""
        with self.pool:
            rows = self.hand.reset(seeds=self.all)
            self.keep(check_reset, self.pool.reset(seed=0), rows)
            for name, number in calls:
                self.rng = np.random.default_rng(number)
                getattr(self, name)()
                self.invariants()
            self.drain()
            self.pool.wait_num = len(self.all)
            self.invariants()
            for _ in range(3):  # whole batches, one after another
                given, listed = self.actions(len(self.all))
                self.keep(check, self.pool.step(given), self.hand.step(listed))
            if self.space is not None:
                check(self.pool.drain(), [], self.space, columns=self.columns)
            self.keep(check_reset, self.pool.reset(), self.hand.reset())
            self.verify()
        self.verify()  # nor does closing the pool take it away

    def invariants(self):
        waiting = sorted(self.pending.rows)
        assert sorted(self.pool.waiting_id) == waiting
        assert sorted(self.pool.ready_id) == [i for i in self.all if i not in waiting]
        assert self.pool.is_async == (self.pool.wait_num != len(self.all))

    def keep(self, verify, result, rows):
        """Verify a result; keep it, or change it as its owner may."""
        verify(result, rows, self.space, columns=self.columns)
        if self.rng.random() < 0.7:
            held = functools.partial(verify, result, rows, self.space, columns=self.columns)
            self.held.append(held)
        else:
            spoil(result)

    def verify(self):
        for verify in self.held:
            verify()

    # What the details of a call are made of.

    def some(self, among):
        """Choose all of these, or some in any order."""
        if self.rng.random() < 0.4:
            return list(among)
        order = self.rng.permutation(among).tolist() if len(among) else []
        return [int(i) for i in order[: self.rng.integers(len(among) + 1)]]

    def ids(self):
        return self.some([i for i in self.all if i not in self.pending.rows])

    def written(self, ids):
        """Write ids in one of the ways there are."""
        if ids == self.all and self.rng.random() < 0.5:
            return None
        forms = [ids, tuple(ids), np.array(ids, np.int64), np.array(ids, np.uint8)]
        if len(ids) == 1:
            forms += [ids[0], np.int32(ids[0])]
        if ids == sorted(ids):
            forms.append(np.isin(self.all, ids))
        if ids == self.all:
            forms.append(slice(None))
        if ids == self.all[::-1]:
            forms.append(slice(None, None, -1))
        return forms[self.rng.integers(len(forms))]

    def actions(self, count):
        """Draw actions; return them as written, and a list of them."""
        if self.action_space is None:
            listed = self.rng.integers(9, size=count).tolist()
        else:
            listed = [envs.draw(self.action_space, self.rng) for _ in range(count)]
            if self.rng.random() < 0.2:  # one object for all
                listed = listed[:1] * count
        forms = [list(listed), tuple(listed)]
        if count and is_fixed(self.action_space):
            forms.append(in_columns(self.action_space, listed))
        return forms[self.rng.integers(len(forms))], copy.deepcopy(listed)

    def seeds(self, ids):
        """Choose seeds; return them as written and as meant."""
        one, *many = self.rng.integers(2**31, size=1 + len(ids)).tolist()
        if self.rng.random() < 0.4:
            return None, None
        if self.rng.random() < 0.4:
            return one, spread(one, ids)
        mixed = [None if self.rng.random() < 0.3 else seed for seed in many]
        return mixed, mixed

    def resets(self):
        """Choose a reset; return its ids, the arguments as written, and the rows meant."""
        ids = self.ids()
        seed, seeds = self.seeds(ids)
        options = [None, {"level": 3}, [{"level": i} if i else None for i in ids]]
        chosen = options[self.rng.integers(3)]
        meant = [chosen] * len(ids) if isinstance(chosen, dict) else chosen
        return ids, {"seed": seed, "options": chosen}, self.hand.reset(ids, seeds, meant)

    # The calls.

    def reset(self):
        ids, kwargs, rows = self.resets()
        if ids or self.space is not None:
            self.keep(check_reset, self.pool.reset(self.written(ids), **kwargs), rows)

    def send_reset(self):
        ids, kwargs, rows = self.resets()
        self.pool.send_reset(self.written(ids), **kwargs)
        self.pending.add(row.marked() for row in rows)

    def step(self):
        ids = self.ids()
        given, listed = self.actions(len(ids))
        before = copy.deepcopy(given)
        if not ids and (self.space is None or self.pending):
            return
        rows = self.hand.step(listed, ids)
        if self.pool.is_async:
            self.pending.add(rows)
            in_flight = len(self.pending)
            self.took(self.pool.step(given, self.written(ids)), in_flight)
        else:
            self.keep(check, self.pool.step(given, self.written(ids)), rows)
        assert same(given, before)

    def send(self):
        ids = self.ids()
        given, listed = self.actions(len(ids))
        self.pool.send(given, self.written(ids))
        self.pending.add(self.hand.step(listed, ids))
        spoil(given)  # the caller may use that memory again

    def took(self, batch, in_flight):
        ids = [info["env_id"] for info in batch[4]]
        assert len(set(ids)) == len(ids)
        self.keep(check, batch, [self.pending.rows.pop(i) for i in ids])
        assert min(self.pool.wait_num, in_flight) <= len(ids) <= in_flight

    def recv(self):
        take = [self.pool.recv, functools.partial(self.pool.step, None)][self.rng.integers(2)]
        if self.pending:
            self.took(take(), len(self.pending))
        else:
            with pytest.raises(ValueError, match="no env is in flight"):
                take()

    def wait(self):
        if ids := self.some(list(self.pending.rows)):
            rows = [self.pending.rows.pop(i) for i in ids]
            form = [list, tuple, np.array][self.rng.integers(3)]
            self.keep(check, self.pool.step(None, id=form(ids)), rows)

    def drain(self):
        if self.pending or self.space is not None:
            self.pending.take(self.pool.drain())
        assert not self.pending

    def seed(self):
        if not self.pending:
            seed, seeds = self.seeds(self.all)
            seeds = seeds or [None for _ in self.all]
            assert self.pool.seed(seed) == [[seed] for seed in seeds]
            self.hand.reset(seeds=seeds)

    def read(self):
        ids = self.ids()
        own = [self.hand.envs[i] for i in ids]
        assert self.pool.get_env_attr("tag", self.written(ids)) == [env.tag for env in own]
        if isinstance(self.hand.envs[0], envs.CountEnv):
            assert self.pool.call("counts", id=self.written(ids)) == [env.counts() for env in own]
            sums = [env.add(2, times=3) for env in own]
            assert self.pool.call("add", 2, id=self.written(ids), times=3) == sums
        if isinstance(self.hand.envs[0], envs.CountEnv) and not self.pending:
            assert all(map(same, self.pool.render(), [env.render() for env in self.hand.envs]))

    def write(self):
        ids, tag = self.ids(), int(self.rng.integers(99))
        self.pool.set_env_attr("tag", tag, self.written(ids))
        for i in ids:
            self.hand.envs[i].tag = tag

    def wait_num(self):
        self.pool.wait_num = int(self.rng.integers(1, len(self.all) + 1))
