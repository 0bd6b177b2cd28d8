"""A wrapper hands on all that a pool has, and every observation passes one method, once."""

import copy
import gc
import inspect
import pickle

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv
from envpool_py.wrappers import VectorEnvWrapper
from tests.support.envs import ChangedEnv
from tests.support.reference import same
from tests.wrappers.envs import POOLS, env_fns, twins

#: What of an object is about its class or how it is made, not about what it can do.
OF_THE_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
    *("__init__", "__static_attributes__", "__firstlineno__", "__slots__", "__annotate_func__"),
}
OBSERVING = {"reset", "step", "recv", "drain"}


class Shifted(VectorEnvWrapper):
    """Adds a constant to observations, and keeps what it was given."""

    def __init__(self, venv, by=1000.0):
        super().__init__(venv)
        self.by = by
        self.seen = []

    def observations(self, obs):
        self.seen.append(copy.deepcopy(obs))
        return shift(obs, self.by)


def shift(obs, by):
    if isinstance(obs, dict):
        return {key: shift(part, by) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(shift(part, by) for part in obs)
    if isinstance(obs, np.ndarray) and obs.dtype == object:
        return np.fromiter((shift(row, by) for row in obs), object, len(obs))
    return np.asarray(obs, np.float64) + by


@pytest.fixture
def pool():
    with DummyVectorEnv(env_fns("float32")) as venv:
        yield venv


# ------------------------------------------------------------------------ nothing is forgotten


def test_every_name_of_the_pool_is_handed_on(pool):
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
    """A pool with names that the wrapper does not know; its copy is itself."""

    step_timeout = 5.0

    @property
    def budget(self):
        return self._budget

    @budget.setter
    def budget(self, value):
        self._budget = 2 * value

    def rewind(self, ids):
        return ids[::-1]

    def __deepcopy__(self, memo):
        return self


def test_attributes_of_the_pool_are_read_and_set_there(pool):
    with Later(env_fns("float32")) as venv:
        wrapper = VectorEnvWrapper(VectorEnvWrapper(venv))
        assert wrapper.rewind([1, 2]) == [2, 1]
        wrapper.budget, wrapper.step_timeout = 4, 1.0
        wrapper.wait_num, wrapper.timeout = 2, 0.5
        for each in (wrapper, venv):
            assert (each.budget, each.step_timeout) == (8, 1.0)
            assert (each.wait_num, each.timeout, each.is_async) == (2, 0.5, True)
        with pytest.raises(ValueError, match="wait_num"):
            wrapper.wait_num = 9
        assert set(vars(wrapper)) == {"venv"}
    with pytest.raises(AttributeError, match="'DummyVectorEnv' object has no attribute 'rewind'"):
        VectorEnvWrapper(pool).rewind  # noqa: B018


def test_attributes_of_a_wrapper_are_its_own(pool):
    inner = Shifted(pool, by=1.0)
    outer = Shifted(inner, by=2.0)
    around = VectorEnvWrapper(outer)
    assert (inner.by, outer.by, around.by) == (1.0, 2.0, 2.0)
    around.by = 3.0
    assert (inner.by, outer.by, around.by) == (1.0, 2.0, 3.0)
    assert "by" not in vars(pool)
    before = pool.observation_space, pool.action_space
    assert (around.observation_space, around.action_space) == before
    around.observation_space = around.action_space = [None] * 4
    assert around.observation_space == around.action_space == [None] * 4
    assert pool.observation_space is before[0]
    assert pool.action_space is before[1]


class Seeded(VectorEnvWrapper):
    """Overrides a method and a property."""

    def seed(self, seed=None):
        return super().seed(7 if seed is None else seed)

    @property
    def num_envs(self):
        return super().num_envs * 10


def test_a_subclass_overrides_what_it_changes(pool):
    wrapper = VectorEnvWrapper(Seeded(pool))
    assert wrapper.seed() == [[7], [8], [9], [10]]
    assert (wrapper.num_envs, wrapper.env_num, len(wrapper)) == (40, 4, 4)


def test_a_wrapper_is_a_pool_and_closes_the_one_it_holds(pool):
    wrapper = VectorEnvWrapper(pool)
    assert isinstance(wrapper, BaseVectorEnv)
    assert repr(wrapper) == f"VectorEnvWrapper({pool!r})"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(wrapper)
    Shifted(wrapper).reset()
    gc.collect()
    assert not pool.is_closed, "a wrapper that is dropped leaves its pool open"
    with Shifted(wrapper) as entered:
        assert type(entered) is Shifted
    assert pool.is_closed
    assert entered.is_closed
    entered.close()


def test_without_a_pool_attributes_are_missing_and_nothing_recurses():
    for venv in (None, DummyVectorEnv, "CartPole-v1"):
        with pytest.raises(TypeError, match=r"venv: got .*, but a wrapper needs a pool"):
            VectorEnvWrapper(venv)
    empty = VectorEnvWrapper.__new__(VectorEnvWrapper)
    for name in ("venv", "num_envs", "anything", "__deepcopy__"):
        assert not hasattr(empty, name)
    with pytest.raises(AttributeError, match="'VectorEnvWrapper' object has no attribute 'venv'"):
        empty.step([0])


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_holds_the_same_pool(duplicate):
    with Later(env_fns("float32")) as venv:
        wrapper = Shifted(venv, by=2.0)
        twin = duplicate(wrapper)
        assert type(twin) is Shifted  # special methods are not borrowed from the pool
        assert twin is not wrapper
        assert (twin.venv, twin.by) == (venv, 2.0)


# ------------------------------------------------------------- every row passes, and only once


def assert_shifted(batch, plain):
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


def row_of(obs, k):
    if isinstance(obs, dict):
        return {key: part[k] for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(part[k] for part in obs)
    return obs[k]


def wrapped(venv):
    return Shifted(VectorEnvWrapper(venv))


@pytest.mark.parametrize(
    ("space", "columns"),
    [("float32", False), *((tree, columns) for tree in ("dict", "tuple") for columns in (0, 1))],
)
@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
def test_synchronous_rows(space, mode, columns):
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
def test_rows_that_are_fetched(kind):
    options = {"autoreset_mode": "same_step", "wait_num": 2}
    with twins(kind, "float32", wrapped, **options) as (plain, shifted):
        assert_shifted(shifted.reset(seed=1), plain.reset(seed=1))
        for fetch in (
            shifted.recv,
            lambda: shifted.step(None),
            lambda: shifted.step(None, id=shifted.waiting_id[-1:]),
            shifted.drain,
        ):
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


def test_two_wrappers_change_rows_twice_and_the_base_class_never(pool):
    raw, infos = pool.reset(seed=3)
    assert same(Shifted(Shifted(pool, by=2.0), by=5.0).reset(seed=3)[0], shift(raw, 7.0))
    pool.reset = lambda: (raw, infos)
    obs, others = VectorEnvWrapper(pool).reset()
    assert obs is raw
    assert others is infos


def test_final_observations_come_first_and_in_a_batch_of_their_own():
    with DummyVectorEnv(env_fns("float32"), autoreset_mode="same_step") as venv:
        shifted = Shifted(venv)
        shifted.reset(seed=0)
        shifted.step([0] * 4)
        obs, _, _, _, infos = shifted.step([0] * 4)  # envs 0 and 3 end
        finals, rows = shifted.seen[-2:]
        assert (finals.shape, finals.dtype) == ((2, 2, 3), np.float32)
        assert same([infos[i]["final_obs"] for i in (0, 3)], list(shift(finals, 1000.0)))
        assert same(obs, shift(rows, 1000.0))


def test_an_env_with_a_final_obs_of_its_own_keeps_it():
    def own_final(_, __, row):
        return *row[:4], {"final_obs": 5.0}

    with DummyVectorEnv([lambda: ChangedEnv(length=1, step=own_final)]) as venv:
        shifted = Shifted(venv)
        shifted.reset()
        assert shifted.step([0])[-1][0]["final_obs"] == 5.0
