"""A wrapper hands on all that a pool has, and every observation passes one method, once."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv
from envpool_py.wrappers import VectorEnvWrapper
from tests.support.reference import same
from tests.wrappers.envs import POOLS, SampleEnv, env_fns, twins

#: What of an object is about its class or its life, not about what it can do.
OF_THE_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
    *("__init__", "__static_attributes__", "__firstlineno__", "__slots__", "__annotate_func__"),
}
OBSERVING = {"reset", "step", "recv", "drain"}


class Shifted(VectorEnvWrapper):
    """Adds a constant to observations, and keeps what it was given."""

    def __init__(self, venv: BaseVectorEnv, by: float = 1000.0) -> None:
        super().__init__(venv)
        self.by = by
        self.seen: list[Any] = []

    def observations(self, obs: Any) -> Any:
        self.seen.append(copy.deepcopy(obs))
        return shift(obs, self.by)


def shift(obs: Any, by: float) -> Any:
    if isinstance(obs, dict):
        return {key: shift(part, by) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(shift(part, by) for part in obs)
    if isinstance(obs, np.ndarray) and obs.dtype == object:
        return np.fromiter((shift(row, by) for row in obs), object, len(obs))
    return obs if isinstance(obs, str) else np.asarray(obs, np.float64) + by


@pytest.fixture
def pool() -> Iterator[DummyVectorEnv]:
    with DummyVectorEnv(env_fns("float32")) as venv:
        yield venv


# ------------------------------------------------------------------------ nothing is forgotten


def test_every_name_of_the_pool_is_handed_on(pool: DummyVectorEnv) -> None:
    wrapper = VectorEnvWrapper(VectorEnvWrapper(pool))
    for name in dir(BaseVectorEnv):
        if name.startswith("__") or name in OBSERVING:
            continue
        attribute = getattr(wrapper, name)
        if inspect.ismethod(attribute):
            assert attribute == getattr(pool, name)
            assert attribute.__self__ is pool
        else:
            assert attribute is getattr(pool, name) or same(attribute, getattr(pool, name))
    for name, value in vars(pool).items():
        assert getattr(wrapper, name) is value
    for name in OBSERVING:
        ours, theirs = getattr(VectorEnvWrapper, name), getattr(BaseVectorEnv, name)
        assert ours is not theirs
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__
    bases = BaseVectorEnv.__mro__[:-1]
    special = {name for base in bases for name in vars(base) if name.startswith("__")}
    assert special - OF_THE_CLASS <= vars(VectorEnvWrapper).keys()


class Later(DummyVectorEnv):
    """A pool with names that the wrapper has never heard of."""

    step_timeout = 5.0

    @property
    def budget(self) -> int:
        return self._budget

    @budget.setter
    def budget(self, value: int) -> None:
        self._budget = 2 * value

    def rewind(self, ids: list[int]) -> list[int]:
        return ids[::-1]


def test_names_that_only_some_pools_have(pool: DummyVectorEnv) -> None:
    with Later(env_fns("float32")) as venv:
        wrapper = VectorEnvWrapper(Shifted(venv))
        assert wrapper.rewind([1, 2]) == [2, 1]
        wrapper.budget = 4
        assert wrapper.budget == venv.budget == 8
        wrapper.step_timeout = 1.0
        assert venv.step_timeout == 1.0
        assert set(vars(wrapper)) == {"venv"}
    with pytest.raises(AttributeError, match="'DummyVectorEnv' object has no attribute 'rewind'"):
        VectorEnvWrapper(pool).rewind  # noqa: B018


def test_where_attributes_are_set(pool: DummyVectorEnv) -> None:
    wrapper = VectorEnvWrapper(VectorEnvWrapper(pool))
    wrapper.wait_num, wrapper.timeout = 2, 0.5
    assert (pool.wait_num, pool.timeout, pool.is_async) == (2, 0.5, True)
    assert (wrapper.wait_num, wrapper.timeout, wrapper.is_async) == (2, 0.5, True)
    with pytest.raises(ValueError, match="wait_num"):
        wrapper.wait_num = 9
    assert set(vars(wrapper)) == {"venv"}
    # What a wrapper sets on itself is its own.
    inner = Shifted(pool, by=1.0)
    outer = Shifted(inner, by=2.0)
    around = VectorEnvWrapper(outer)
    assert (inner.by, outer.by, around.by) == (1.0, 2.0, 2.0)
    around.by = 3.0
    assert (inner.by, outer.by, around.by) == (1.0, 2.0, 3.0)
    assert "by" not in vars(pool)
    # So are its spaces.
    before = pool.observation_space, pool.action_space
    assert (around.observation_space, around.action_space) == before
    around.observation_space = around.action_space = [None] * 4
    assert around.observation_space == around.action_space == [None] * 4
    assert pool.observation_space is before[0]
    assert pool.action_space is before[1]


class Seeded(VectorEnvWrapper):
    """Overrides a method and a property."""

    def seed(self, seed: Any = None) -> Any:
        return super().seed(7 if seed is None else seed)

    @property
    def num_envs(self) -> int:
        return super().num_envs * 10


def test_a_subclass_overrides_what_it_changes(pool: DummyVectorEnv) -> None:
    wrapper = VectorEnvWrapper(Seeded(pool))
    assert wrapper.seed() == [[7], [8], [9], [10]]
    assert wrapper.num_envs == 40
    assert wrapper.env_num == len(wrapper) == 4


# ------------------------------------------------------------------------------- its own life


def test_a_wrapper_is_a_pool_and_closes_the_one_it_holds(pool: DummyVectorEnv) -> None:
    wrapper = VectorEnvWrapper(pool)
    assert isinstance(wrapper, BaseVectorEnv)
    assert wrapper.venv is pool
    assert repr(wrapper) == f"VectorEnvWrapper({pool!r})"
    for venv in (pool, wrapper):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(venv)
    Shifted(wrapper).reset()
    gc.collect()
    assert not pool.is_closed, "a wrapper that is dropped leaves its pool open"
    with Shifted(wrapper) as entered:
        assert type(entered) is Shifted
        assert not entered.is_closed
    assert pool.is_closed
    assert entered.is_closed
    entered.close()


def test_without_a_pool_attributes_are_missing_and_nothing_recurses() -> None:
    for venv in (None, DummyVectorEnv, "CartPole-v1"):
        with pytest.raises(TypeError, match=r"venv: got .*, but a wrapper needs a pool"):
            VectorEnvWrapper(venv)
    empty = VectorEnvWrapper.__new__(VectorEnvWrapper)
    for name in ("venv", "num_envs", "anything", "__deepcopy__"):
        assert not hasattr(empty, name)
    with pytest.raises(AttributeError, match="'VectorEnvWrapper' object has no attribute 'venv'"):
        empty.step([0])


class Single(DummyVectorEnv):
    """A pool whose copy is itself."""

    def __deepcopy__(self, memo: dict) -> Any:
        return self


def test_copies_hold_the_same_pool() -> None:
    with Single(env_fns("float32")) as venv:
        wrapper = Shifted(venv, by=2.0)
        for twin in (copy.copy(wrapper), copy.deepcopy(wrapper)):
            assert type(twin) is Shifted  # special methods are not borrowed from the pool
            assert twin is not wrapper
            assert twin.venv is venv
            assert twin.by == 2.0


# ------------------------------------------------------------- every row passes, and only once


def wrapped(venv: BaseVectorEnv) -> Shifted:
    return Shifted(VectorEnvWrapper(venv))


def assert_shifted(batch: Any, plain: Any) -> None:
    """Assert that a batch is another one of the same rows, shifted once, and nothing else."""
    order = {info["env_id"]: k for k, info in enumerate(plain[-1])}
    rows = [order[info["env_id"]] for info in batch[-1]]
    assert len(rows) == len(plain[-1])
    for got, want in zip(batch[1:-1], plain[1:-1], strict=True):
        np.testing.assert_array_equal(got, want[rows])
    for k, row in enumerate(rows):
        assert same(row_of(batch[0], k), shift(row_of(plain[0], row), 1000.0))
        want = dict(plain[-1][row])
        if "final_obs" in want:
            want["final_obs"] = shift(want["final_obs"], 1000.0)
        assert same(dict(batch[-1][k]), want)


def row_of(obs: Any, k: int) -> Any:
    if isinstance(obs, dict):
        return {key: part[k] for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(part[k] for part in obs)
    return obs[k]


@pytest.mark.parametrize(
    ("space", "columns"),
    [("float32", False), *((tree, columns) for tree in ("dict", "tuple") for columns in (0, 1))],
)
@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
def test_synchronous_rows(space: str, mode: str | None, columns: bool) -> None:
    options = {"autoreset_mode": mode, "columns": bool(columns)}
    with twins("dummy", space, wrapped, **options) as (plain, shifted):
        assert_shifted(shifted.reset(seed=1), plain.reset(seed=1))
        ended = 0
        for _ in range(5):
            batch = shifted.step([0, 1, 0, 1])
            assert_shifted(batch, plain.step([0, 1, 0, 1]))
            ended += sum("final_obs" in info for info in batch[-1])
        assert ended == (6 if mode == "same_step" else 0)  # after 2, 3, 4 and 2 steps
        assert_shifted(shifted.step([1, 0], [2, 0]), plain.step([1, 0], [2, 0]))
        assert_shifted(shifted.reset([3, 1]), plain.reset([3, 1]))
        assert_shifted(shifted.step([], []), plain.step([], []))


@pytest.mark.parametrize("kind", POOLS)
def test_rows_that_are_fetched(kind: str) -> None:
    options = {"autoreset_mode": "same_step", "wait_num": 2}
    with twins(kind, "float32", wrapped, **options) as (plain, shifted):
        assert_shifted(shifted.reset(seed=1), plain.reset(seed=1))
        fetches = {
            "recv": shifted.recv,
            "step(None)": lambda: shifted.step(None),
            "step(None, id)": lambda: shifted.step(None, id=shifted.waiting_id[-1:]),
            "drain": shifted.drain,
        }
        for fetch in fetches.values():
            plain.send([0, 1, 0, 1])
            shifted.send([0, 1, 0, 1])
            batches = []
            while shifted.waiting_id:
                batches.append(fetch())
            together = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
            assert_shifted(together, plain.drain())
        for venv in (plain, shifted):
            venv.send_reset([0, 2], seed=5)
            venv.send([1, 1], [1, 3])
        batch = shifted.drain()
        assert_shifted(batch, plain.drain())
        assert sum("is_reset" in info for info in batch[-1]) == 2


def test_one_wrapper_around_another_changes_rows_twice(pool: DummyVectorEnv) -> None:
    raw, _ = pool.reset(seed=3)
    assert same(Shifted(Shifted(pool, by=2.0), by=5.0).reset(seed=3)[0], shift(raw, 7.0))


def test_a_wrapper_that_changes_nothing_gives_the_pools_own_objects(pool: DummyVectorEnv) -> None:
    given = []
    step = pool.step
    pool.step = lambda *args: given.append(step(*args)) or given[-1]
    wrapper = VectorEnvWrapper(pool)
    wrapper.reset(seed=0)
    for got, want in zip(wrapper.step([0] * 4), given[0], strict=True):
        assert got is want


def test_final_observations_come_first_and_in_a_batch_of_their_own() -> None:
    with DummyVectorEnv(env_fns("float32"), autoreset_mode="same_step") as venv:
        shifted = Shifted(venv)
        shifted.reset(seed=0)
        shifted.step([0] * 4)
        obs, _, terminated, _, infos = shifted.step([0] * 4)  # envs 0 and 3 end
        assert terminated.tolist() == [True, False, False, True]
        finals, rows = shifted.seen[-2:]
        assert (finals.shape, finals.dtype) == ((2, 3), np.float32)
        np.testing.assert_array_equal(infos[0]["final_obs"], shift(finals[0], 1000.0))
        np.testing.assert_array_equal(infos[3]["final_obs"], shift(finals[1], 1000.0))
        np.testing.assert_array_equal(obs, shift(rows, 1000.0))


def test_an_env_with_a_final_obs_of_its_own_keeps_it() -> None:
    class OwnFinal(SampleEnv):
        def step(self, action: Any) -> tuple:
            return (*super().step(action)[:4], {"final_obs": 5.0})

    with DummyVectorEnv([lambda: OwnFinal("float32", length=1)]) as venv:
        shifted = Shifted(venv)
        shifted.reset()
        assert shifted.step([0])[-1][0]["final_obs"] == 5.0
