"""Random sequences of everything a caller may do, against the oracle (Hypothesis).

Hypothesis draws the calls, each with a number from which its details follow: which envs are
ready when a call is made is for the operating system to say, and what is drawn must not hang on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envpool_py import BaseVectorEnv
from tests.support import envs
from tests.support.places import PLACES, QUICK, slow
from tests.support.reference import HandStepped, Pending, check, check_empty, check_reset, spread

NUM = 3
SUBJECTS: dict[str, Callable[..., Any]] = {
    "random": envs.RandomEnv,
    "counting": functools.partial(envs.CountEnv, length=2),
    "box": functools.partial(envs.SpaceEnv, name="box-float16", length=2),
    "nested": functools.partial(envs.SpaceEnv, name="nested", length=2),
    "mixed": functools.partial(envs.SpaceEnv, name="mixed", length=2),
    "ragged": functools.partial(envs.UndeclaredEnv, kind="ragged", length=2),
    "buffers": functools.partial(envs.BufferEnv, length=2),
    "rewards": functools.partial(envs.VectorRewardEnv, length=2),
}
EXAMPLES = {"dummy": 200, "subproc-fork": 40, "shmem-fork-packed": 60, "shmem-fork-caller": 60}


class Session:
    """One pool and its oracle; each method is a call that a caller may make."""

    def __init__(self, place: str, fns: Sequence[Callable[[], Any]], mode: str | None) -> None:
        self.hand = HandStepped(fns, mode)
        raw = self.hand.envs[0]
        self.space = getattr(raw, "observation_space", None)
        self.action_space = getattr(raw, "action_space", None)
        self.pending = Pending(self.space)
        self.rng = np.random.default_rng(0)
        self.pool: BaseVectorEnv = PLACES[place](fns, autoreset_mode=mode)

    def run(self, calls: list[tuple[str, int]]) -> None:
        check_reset(self.pool.reset(seed=0), self.hand.reset(seeds=[0, 1, 2]), self.space)
        for name, number in calls:
            self.rng = np.random.default_rng(number)
            getattr(self, name)()
            self.invariants()
        self.drain()
        self.invariants()
        if self.space is not None:
            check_empty(self.pool.drain(), self.space)
        check_reset(self.pool.reset(), self.hand.reset(), self.space)

    def invariants(self) -> None:
        waiting = sorted(self.pending.rows)
        assert sorted(self.pool.waiting_id) == waiting
        assert sorted(self.pool.ready_id) == [i for i in range(NUM) if i not in waiting]
        assert self.pool.is_async == (self.pool.wait_num != NUM)

    # What the details of a call are made of.

    def some(self, among: Sequence[int]) -> list[int]:
        """Choose some of these, in any order."""
        order = self.rng.permutation(among).tolist() if len(among) else []
        return [int(i) for i in order[: self.rng.integers(len(among) + 1)]]

    def ids(self) -> list[int]:
        return self.some([i for i in range(NUM) if i not in self.pending.rows])

    def written(self, ids: list[int]) -> Any:
        """Write ids in one of the ways there are."""
        forms: list[Any] = [ids, tuple(ids), np.array(ids, np.int64)]
        if len(ids) == 1:
            forms += [ids[0], np.int32(ids[0])]
        if ids == sorted(ids):
            forms.append(np.isin(np.arange(NUM), ids))
        if ids == list(range(NUM)):
            forms += [None, slice(None)]
        return forms[self.rng.integers(len(forms))]

    def actions(self, count: int) -> list[Any]:
        if self.action_space is None:
            return self.rng.integers(9, size=count).tolist()
        return [envs.draw(self.action_space, self.rng) for _ in range(count)]

    def seeds(self, ids: list[int]) -> tuple[Any, list[int | None] | None]:
        """Choose seeds; return them as written and as meant."""
        one, *many = self.rng.integers(2**31, size=1 + len(ids)).tolist()
        if self.rng.random() < 0.4:
            return None, None
        if self.rng.random() < 0.4:
            return one, spread(one, ids)
        mixed = [None if self.rng.random() < 0.3 else seed for seed in many]
        return mixed, mixed

    # The calls.

    def reset(self) -> None:
        ids = self.ids()
        given_, meant = self.seeds(ids)
        rows = self.hand.reset(ids, meant)
        if ids or self.space is not None:
            check_reset(self.pool.reset(self.written(ids), seed=given_), rows, self.space)

    def step(self) -> None:
        ids = self.ids()
        actions = self.actions(len(ids))
        if not ids and (self.space is None or self.pending):
            return
        rows = self.hand.step(actions, ids)
        if self.pool.is_async:
            self.pending.add(rows)
            in_flight = len(self.pending)
            self.took(self.pool.step(actions, self.written(ids)), in_flight)
        else:
            check(self.pool.step(actions, self.written(ids)), rows, self.space)

    def send(self) -> None:
        ids = self.ids()
        actions = self.actions(len(ids))
        self.pool.send(actions, self.written(ids))
        self.pending.add(self.hand.step(actions, ids))

    def send_reset(self) -> None:
        ids = self.ids()
        given_, meant = self.seeds(ids)
        self.pool.send_reset(self.written(ids), seed=given_)
        self.pending.add(row.marked() for row in self.hand.reset(ids, meant))

    def took(self, batch: Any, in_flight: int) -> None:
        ids = self.pending.take(batch)
        assert min(self.pool.wait_num, in_flight) <= len(ids) <= in_flight

    def recv(self) -> None:
        if self.pending:
            self.took(self.pool.recv(), len(self.pending))
        else:
            with pytest.raises(ValueError, match="in flight"):
                self.pool.recv()

    def wait(self) -> None:
        if ids := self.some(list(self.pending.rows)):
            rows = [self.pending.rows.pop(i) for i in ids]
            check(self.pool.step(None, id=ids), rows, self.space)

    def drain(self) -> None:
        if self.pending or self.space is not None:
            self.pending.take(self.pool.drain())
        assert not self.pending

    def seed(self) -> None:
        if not self.pending:
            seed = int(self.rng.integers(2**31))
            assert self.pool.seed(seed) == [[seed + i] for i in range(NUM)]
            self.hand.reset(seeds=spread(seed, range(NUM)))

    def attributes(self) -> None:
        ids = self.ids()
        assert self.pool.get_env_attr("tag", self.written(ids)) == ids

    def wait_num(self) -> None:
        self.pool.wait_num = int(self.rng.integers(1, NUM + 1))


CALLS = (
    *("step", "step", "step", "send", "recv", "reset", "send_reset", "wait"),
    *("drain", "seed", "attributes", "wait_num"),
)
NUMBERS = st.integers(0, 2**16)


@pytest.mark.parametrize("place", ["dummy", *slow(*QUICK[1:])])
def test_any_sequence_of_calls_gives_what_raw_envs_give(place: str) -> None:
    @settings(
        max_examples=EXAMPLES[place],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,  # the same search on every run
    )
    @given(
        subject=st.sampled_from(sorted(SUBJECTS)),
        mode=st.sampled_from([None, "same_step", "next_step"]),
        calls=st.lists(st.tuples(st.sampled_from(CALLS), NUMBERS), max_size=25),
    )
    def run(subject: str, mode: str | None, calls: list[tuple[str, int]]) -> None:
        fns = [functools.partial(SUBJECTS[subject], tag) for tag in range(NUM)]
        session = Session(place, fns, mode)
        with session.pool:
            session.run(calls)

    run()
