"""Random sequences of everything a caller may do, against the oracle (Hypothesis)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import envs
from tests.places import PLACES, QUICK
from tests.reference import HandStepped, Pending, check, check_empty, check_reset, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from envpool_py import BaseVectorEnv

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
EXAMPLES = {"dummy": 60, "subproc-fork": 10, "subproc-fork-packed": 12}
EXAMPLES |= {"shmem-fork": 10, "shmem-fork-packed": 12}


class Session:
    """One pool and its oracle, driven by what Hypothesis draws."""

    def __init__(self, data: st.DataObject, place: str, subject: str, mode: str | None) -> None:
        fns = [functools.partial(SUBJECTS[subject], tag) for tag in range(NUM)]
        self.data, self.fns = data, fns
        self.hand = HandStepped(fns, mode)
        raw = self.hand.envs[0]
        self.space = getattr(raw, "observation_space", None)
        self.action_space = getattr(raw, "action_space", None)
        self.pending = Pending(self.space)
        self.rng = np.random.default_rng(data.draw(st.integers(0, 99), "actions from"))
        self.pool: BaseVectorEnv = PLACES[place](fns, autoreset_mode=mode)

    def draw(self, strategy: st.SearchStrategy, label: str) -> Any:
        return self.data.draw(strategy, label)

    def ids(self, label: str, least: int = 0) -> list[int]:
        """Draw some of the envs that are not in flight, in any order."""
        ready = [i for i in range(NUM) if i not in self.pending.rows]
        order = self.draw(st.permutations(range(NUM)), label)
        count = self.draw(st.integers(least, NUM), f"how many to {label}")
        return [i for i in order if i in ready][: max(count, least)]

    def written(self, ids: list[int]) -> Any:
        """Write ids in one of the ways there are."""
        forms: list[Any] = [ids, tuple(ids), np.array(ids, np.int64)]
        if len(ids) == 1:
            forms += [ids[0], np.int32(ids[0])]
        if ids == sorted(ids):
            forms.append(np.isin(np.arange(NUM), ids))
        if ids == list(range(NUM)):
            forms.append(None)
        return forms[self.draw(st.integers(0, len(forms) - 1), "form of ids")]

    def actions(self, count: int) -> list[Any]:
        if self.action_space is None:
            return self.rng.integers(9, size=count).tolist()
        return [envs.draw(self.action_space, self.rng) for _ in range(count)]

    def seeds(self, ids: list[int]) -> tuple[Any, list[int | None] | None]:
        form = self.draw(st.sampled_from(["none", "int", "list"]), "seeds")
        if form == "none":
            return None, None
        if form == "int":
            seed = self.draw(st.integers(0, 2**31), "seed")
            return seed, spread(seed, ids)
        seeds = self.draw(
            st.lists(
                st.none() | st.integers(0, 2**31), min_size=len(ids), max_size=len(ids)
            ),
            "seeds",
        )
        return seeds, seeds

    def reset(self) -> None:
        ids = self.ids("reset")
        given_, meant = self.seeds(ids)
        rows = self.hand.reset(ids, meant)
        if ids or self.space is not None:
            check_reset(self.pool.reset(self.written(ids), seed=given_), rows, self.space)

    def step(self) -> None:
        ids = self.ids("step")
        actions = self.actions(len(ids))
        if self.pool.is_async:
            self.pending.add(self.hand.step(actions, ids))
            in_flight = len(self.pending)
            if in_flight:
                batch = self.pool.step(actions, self.written(ids))
                self.took(batch, in_flight)
        elif ids or self.space is not None:
            batch = self.pool.step(actions, self.written(ids))
            check(batch, self.hand.step(actions, ids), self.space)

    def send(self) -> None:
        ids = self.ids("send")
        actions = self.actions(len(ids))
        self.pool.send(actions, self.written(ids))
        self.pending.add(self.hand.step(actions, ids))

    def send_reset(self) -> None:
        ids = self.ids("send_reset")
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
        waiting = self.draw(st.permutations(sorted(self.pending.rows)), "wait for")
        count = self.draw(st.integers(0, len(waiting)), "how many")
        ids = waiting[:count]
        if ids:
            rows = [self.pending.rows.pop(i) for i in ids]
            check(self.pool.step(None, id=ids), rows, self.space)

    def drain(self) -> None:
        if self.pending or self.space is not None:
            self.pending.take(self.pool.drain())
        assert not self.pending

    def seed(self) -> None:
        if not self.pending:
            seed = self.draw(st.integers(0, 2**31), "seed")
            assert self.pool.seed(seed) == [[seed + i] for i in range(NUM)]
            self.hand.reset(seeds=spread(seed, range(NUM)))

    def attributes(self) -> None:
        ids = self.ids("ask")
        assert self.pool.get_env_attr("tag", self.written(ids)) == ids

    def wait_num(self) -> None:
        self.pool.wait_num = self.draw(st.integers(1, NUM), "wait_num")

    def invariants(self) -> None:
        waiting = sorted(self.pending.rows)
        assert sorted(self.pool.waiting_id) == waiting
        assert sorted(self.pool.ready_id) == [i for i in range(NUM) if i not in waiting]
        assert self.pool.is_async == (self.pool.wait_num != NUM)


OPERATIONS = (
    *("step", "step", "step", "send", "recv", "reset", "send_reset", "wait"),
    *("drain", "seed", "attributes", "wait_num"),
)


@pytest.mark.parametrize("place", QUICK)
def test_any_sequence_of_calls_gives_what_raw_envs_give(place: str) -> None:
    @settings(
        max_examples=EXAMPLES[place],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(sorted(SUBJECTS)), "subject")
        mode = data.draw(st.sampled_from([None, "same_step", "next_step"]), "autoreset_mode")
        session = Session(data, place, subject, mode)
        with session.pool as pool:
            every = range(NUM)
            check_reset(pool.reset(seed=0), session.hand.reset(seeds=[0, 1, 2]), session.space)
            for name in data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=25), "calls"):
                getattr(session, name)()
                session.invariants()
            session.drain()
            session.invariants()
            if session.space is not None:
                check_empty(pool.drain(), session.space)
            check_reset(pool.reset(), session.hand.reset(every), session.space)

    run()
