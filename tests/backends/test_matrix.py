"""The contract of a backend: every pool method, row by row equal to hand-stepped raw envs.

A cell is a place of `places.PLACES` (backend, start method, one env per process or several) and one
of `SUBJECTS` (every kind of space, undeclared ones, vector rewards). A cell drives one pool through
all its methods, synchronously and then asynchronously; `HandStepped` says what must come back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK, Place
from tests.support.reference import (
    HandStepped,
    Pending,
    check,
    check_empty,
    check_reset,
    in_columns,
    same,
    spread,
)

# --------------------------------------------------------------------------------- the subjects

SUBJECTS: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(envs.SpaceEnv, name=name) for name in envs.SPACES},
    **{
        f"undeclared-{kind}": functools.partial(envs.UndeclaredEnv, kind=kind)
        for kind in envs.UNDECLARED
    },
    "no-gymnasium-env": envs.DuckEnv,
    "reused-buffers": envs.BufferEnv,
    "reused-trees": envs.TreeBufferEnv,
    "own-randomness": envs.RandomEnv,
    "vector-rewards": envs.VectorRewardEnv,
    "vector-rewards-as-lists": functools.partial(envs.VectorRewardEnv, as_list=True),
}

# A start method changes how an env gets into its process, and not what is done there: under each of
# the others a few subjects are enough.
FEW = ("nested", "mixed", "undeclared-object", "own-randomness")
CELLS = [
    *(pytest.param(place, name, id=f"{place}-{name}") for place in QUICK for name in SUBJECTS),
    *(
        pytest.param(place, name, id=f"{place}-{name}", marks=pytest.mark.slow)
        for place in PLACES
        if place not in QUICK
        for name in FEW
    ),
]


def make_fns(subject: str, count: int) -> list[Callable[[], Any]]:
    return [functools.partial(SUBJECTS[subject], tag) for tag in range(count)]


# --------------------------------------------------------------------------------- one cell


class Cell:
    """One pool, its oracle, and a source of actions that both are given."""

    def __init__(self, place: Place, fns: Sequence[Callable[[], Any]], **options: Any) -> None:
        self.pool = place(fns, **options)
        self.hand = HandStepped(fns)
        raw = self.hand.envs[0]
        self.space = getattr(raw, "observation_space", None)
        self.action_space = getattr(raw, "action_space", None)
        self.rng = np.random.default_rng(7)
        self.all = list(range(len(fns)))
        self.seeded = not isinstance(raw, envs.DuckEnv)

    def actions(self, count: int) -> list[Any]:
        if self.action_space is None:
            return list(range(count))
        return [envs.draw(self.action_space, self.rng) for _ in range(count)]

    def reset(self, ids: Any, listed: Sequence[int], **kwargs: Any) -> None:
        """Reset envs in the pool and by hand; `ids` is how the ids are written."""
        seeds = spread(kwargs["seed"], listed) if "seed" in kwargs else None
        options = [kwargs["options"]] * len(listed) if "options" in kwargs else None
        rows = self.hand.reset(listed, seeds, options)
        check_reset(self.pool.reset(ids, **kwargs), rows, self.space)

    def step(self, ids: Any, listed: Sequence[int]) -> None:
        actions = self.actions(len(listed))
        batch = self.pool.step(actions, ids)
        check(batch, self.hand.step(actions, listed), self.space)


def drive_synchronously(cell: Cell) -> None:
    pool, hand, every = cell.pool, cell.hand, cell.all
    last = every[-1]
    cell.reset(None, every, seed=11)
    for _ in range(5):  # past the end of an episode: the env's own step answers
        cell.step(None, every)
    cell.reset(None, every)
    cell.reset([last, 0], [last, 0], options={"level": 3})
    cell.reset(np.array([last]), [last], seed=5)
    seeds = [None if i == 0 else 40 - i for i in every]
    options = [{"level": i} if i else None for i in every]
    rows = hand.reset(every, seeds, options)
    check_reset(pool.reset(seed=seeds, options=options), rows, cell.space)

    cell.step([last, 0], [last, 0])
    cell.step(last, [last])
    cell.step(np.int64(0), [0])
    cell.step((0, last), [0, last])
    cell.step(np.array(every[::-1], np.uint8), every[::-1])
    cell.step(np.arange(len(every)) > 0, every[1:])
    cell.step(slice(None, -1), every[:-1])
    if cell.space is not None:
        check_empty(pool.step([], []), cell.space)

    actions = cell.actions(2)
    pool.send(actions, [0, last])
    check(pool.recv(), hand.step(actions, [0, last]), cell.space)

    assert pool.seed(3) == [[3 + i] for i in every]
    hand.reset(every, spread(3, every))
    cell.step(None, every)

    assert pool.seed() == [[None] for _ in every]
    hand.reset(every)
    cell.reset(None, every, seed=12)


def read_and_set(cell: Cell) -> None:
    pool, hand = cell.pool, cell.hand
    last = cell.all[-1]
    assert pool.get_env_attr("tag") == [env.tag for env in hand.envs]
    assert pool.get_env_attr("tag", [last, 0]) == [last, 0]
    pool.set_env_attr("tag", 55, id=last)
    hand.envs[last].tag = 55
    assert pool.get_env_attr("tag") == [env.tag for env in hand.envs]
    cell.step(None, cell.all)
    if isinstance(hand.envs[0], envs.CountEnv):
        assert pool.call("counts") == [env.counts() for env in hand.envs]
        assert pool.call("add", 2, id=[last], times=3) == [55 + 6]
        frames = [env.render() for env in hand.envs]
        assert all(map(same, pool.render(), frames))


def drive_asynchronously(cell: Cell) -> None:
    pool, hand, every = cell.pool, cell.hand, cell.all
    cell.reset(None, every, seed=21)
    pool.wait_num = 1
    assert pool.is_async
    pending = Pending(cell.space)

    def send(ids: list[int]) -> list[Any]:
        actions = cell.actions(len(ids))
        pending.add(hand.step(actions, ids))
        return actions

    ready = every
    for _ in range(6):
        batch = pool.step(send(ready), ready)
        ready = pending.take(batch)
        assert len(ready) >= 1
        assert sorted(pool.waiting_id) == sorted(pending.rows)
        assert sorted(pool.ready_id) == [i for i in every if i not in pending.rows]
    pool.send(send(ready), ready)
    while len(pending) > 1:
        pending.take(pool.step(None))
    if left := list(pending.rows):
        check(pool.step(None, id=left), [pending.rows.pop(i) for i in left], cell.space)

    pool.send_reset([every[-1]], seed=9)
    pending.add(row.marked() for row in hand.reset([every[-1]], spread(9, [every[-1]])))
    pool.send(send([0]), [0])
    pending.take(pool.drain())
    assert not pending
    if cell.space is not None:
        check_empty(pool.drain(), cell.space)

    pool.send_reset()
    pending.add(row.marked() for row in hand.reset())
    assert sorted(pending.take(pool.drain())) == every
    pool.wait_num = len(every)
    assert not pool.is_async
    cell.step(None, every)


@pytest.mark.parametrize(("place", "subject"), CELLS)
def test_every_method_gives_what_raw_envs_give(place: str, subject: str) -> None:
    where = PLACES[place]
    cell = Cell(where, make_fns(subject, where.num_envs))
    with cell.pool:
        drive_synchronously(cell)
        drive_asynchronously(cell)
        read_and_set(cell)


@pytest.mark.parametrize("subject", ["dict", "tuple", "nested", "mixed", "every-dtype"])
@pytest.mark.parametrize("place", BACKENDS)
def test_columns_are_the_same_rows_leaf_by_leaf(place: str, subject: str) -> None:
    fns = make_fns(subject, 3)
    hand = HandStepped(fns)
    space = hand.envs[0].observation_space
    rng = np.random.default_rng(0)
    with PLACES[place](fns, columns=True) as pool:
        rows = hand.reset(seeds=[4, 5, 6])
        check_reset(pool.reset(seed=4), rows, space, columns=True)
        for ids in ([0, 1, 2], [2, 0], [1]):
            actions = [envs.draw(space, rng) for _ in ids]
            check(pool.step(actions, ids), hand.step(actions, ids), space, columns=True)
        check_empty(pool.step([], []), space, columns=True)


@pytest.mark.parametrize("subject", ["nested", "tuple"])
@pytest.mark.parametrize("place", BACKENDS)
def test_actions_in_columns_are_the_same_actions(place: str, subject: str) -> None:
    fns = make_fns(subject, 3)
    hand = HandStepped(fns)
    space = hand.envs[0].action_space
    rng = np.random.default_rng(1)
    with PLACES[place](fns) as pool:
        check_reset(pool.reset(seed=1), hand.reset(seeds=[1, 2, 3]), space)
        for ids in ([0, 1, 2], [2, 0]):
            actions = [envs.draw(space, rng) for _ in ids]
            batch = pool.step(in_columns(space, actions), ids)
            check(batch, hand.step(actions, ids), space)


@pytest.mark.parametrize("place", BACKENDS)
def test_envs_of_different_spaces_where_rows_are_objects(place: str) -> None:
    names = ["text", "graph", "one-of", "custom"]
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag, name in enumerate(names)]
    hand = HandStepped(fns)
    rng = np.random.default_rng(2)
    with PLACES[place](fns) as pool:
        assert pool.observation_space == [env.observation_space for env in hand.envs]
        rows = hand.reset(seeds=spread(0, range(4)))
        obs, _ = pool.reset(seed=0)
        for _ in range(3):
            assert obs.dtype == object
            assert obs.shape == (4,)
            assert [same(o, row.obs) for o, row in zip(obs, rows, strict=True)] == [True] * 4
            actions = [envs.draw(env.action_space, rng) for env in hand.envs]
            obs, *_ = pool.step(actions)
            rows = hand.step(actions)


@pytest.mark.parametrize("place", BACKENDS)
def test_none_in_a_sequence_of_actions_is_that_envs_action(place: str) -> None:
    fns = make_fns("discrete", 3)
    hand = HandStepped(fns)
    space = hand.envs[0].observation_space
    with PLACES[place](fns) as pool:
        check_reset(pool.reset(seed=1), hand.reset(seeds=[1, 2, 3]), space)
        actions = [np.int64(1), None, np.int64(2)]
        batch = pool.step(actions)
        check(batch, hand.step(actions), space)
        assert batch[4][1]["action"] is None
        actions = [None, None, None]
        check(pool.step(actions), hand.step(actions), space)


@pytest.mark.parametrize("place", BACKENDS)
def test_keywords_of_reset_reach_the_env(place: str) -> None:
    fns = [functools.partial(envs.OldSeedEnv, tag) for tag in range(2)]
    with PLACES[place](fns) as pool:
        _, info = pool.reset(level=4)
        assert [i["extra"] for i in info] == [{"level": 4}] * 2


@pytest.mark.parametrize("place", QUICK)
def test_spaces_spec_and_metadata_are_those_of_the_envs(place: str) -> None:
    where = PLACES[place]
    fns = [functools.partial(gym.make, "CartPole-v1") for _ in range(where.num_envs)]
    raw = fns[0]()
    with where(fns) as pool:
        assert pool.observation_space == [raw.observation_space] * len(fns)
        assert pool.action_space == [raw.action_space] * len(fns)
        assert [spec.id for spec in pool.spec] == ["CartPole-v1"] * len(fns)
        assert pool.metadata == [raw.metadata] * len(fns)
        assert len(pool) == pool.env_num == pool.num_envs == len(fns)
        assert all(a is b for a, b in zip(pool.action_space, pool.action_space, strict=True))
        first, second = pool.observation_space, pool.observation_space
        assert all(a is b for a, b in zip(first, second, strict=True))
        assert len({id(space) for space in pool.action_space}) == len(fns)


def test_undeclared_spaces_are_none() -> None:
    with PLACES["shmem-fork"](make_fns("undeclared-alike", 2)) as pool:
        assert pool.observation_space == [None, None]
        assert pool.action_space == [None, None]
