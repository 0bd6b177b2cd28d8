"""A wrapper forwards all that a pool has, and each observation passes `observations` once."""

import copy
import gc
import inspect
import pickle
from functools import partial

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv
from envpool_py.wrappers import VectorEnvWrapper
from tests.support import envs
from tests.support.places import LOCAL, PLACES, paired
from tests.support.reference import same
from tests.support.session import Session, script

OBSERVING = {"reset", "step", "recv", "drain"}


def halved(obs):
    """Halve each float of an observation, or of a batch of them in any form."""
    if isinstance(obs, dict):
        return {key: halved(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map(halved, obs))
    if obs.dtype == object:
        return np.fromiter(map(halved, obs), object, len(obs))
    return np.asarray(obs / 2, obs.dtype) if obs.dtype.kind == "f" else obs


class Halved(VectorEnvWrapper):
    """Halves observations, and keeps a copy of each batch of them."""

    def __init__(self, venv):
        super().__init__(venv)
        self.seen = []

    def observations(self, obs):
        self.seen.append(copy.deepcopy(obs))
        return halved(obs)


@pytest.fixture
def pool():
    with DummyVectorEnv([envs.CountEnv] * 4) as venv:
        yield venv


def test_every_name_of_the_pool_is_forwarded(pool):
    wrapper = VectorEnvWrapper(VectorEnvWrapper(pool))
    names = {name for name in dir(BaseVectorEnv) if not name.startswith("__")} | vars(pool).keys()
    for name in names - OBSERVING - {"recv_async", "sessions"}:
        assert same(getattr(wrapper, name), getattr(pool, name)), name
    with pytest.raises(TypeError, match="wrap each env .* or use the sessions of wrapper.venv"):
        wrapper.sessions()
    assert VectorEnvWrapper.recv_async is BaseVectorEnv.recv_async  # which calls ``recv``
    for name in OBSERVING:
        ours, theirs = getattr(VectorEnvWrapper, name), getattr(BaseVectorEnv, name)
        assert ours is not theirs
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__


class Later(DummyVectorEnv):
    """A pool with names that the wrapper does not know."""

    budget = 5

    def rewind(self, ids):
        return ids[::-1]


def test_attributes_of_the_pool_are_read_and_set_there(pool):
    with Later([envs.CountEnv] * 4) as venv:
        wrapper = VectorEnvWrapper(VectorEnvWrapper(venv))
        assert wrapper.rewind([1, 2]) == [2, 1]
        wrapper.budget, wrapper.wait_num, wrapper.timeout = 8, 2, 0.5
        for each in (wrapper, venv):
            assert (each.budget, each.wait_num, each.timeout, each.is_async) == (8, 2, 0.5, True)
        with pytest.raises(ValueError, match="wait_num"):
            wrapper.wait_num = 9
        assert set(vars(wrapper)) == {"venv"}
    with pytest.raises(AttributeError, match="'DummyVectorEnv' object has no attribute 'rewind'"):
        VectorEnvWrapper(pool).rewind  # noqa: B018


def test_attributes_of_a_wrapper_are_its_own(pool):
    inner, outer = Halved(pool), Halved(Halved(pool))
    around = VectorEnvWrapper(outer)
    inner.seen, outer.seen = [1], [2]
    assert around.seen == [2]
    around.seen = [3]
    assert (inner.seen, outer.seen, around.seen) == ([1], [2], [3])
    assert "seen" not in vars(pool)
    before = pool.observation_space, pool.action_space
    assert (around.observation_space, around.action_space) == before
    around.observation_space = around.action_space = [None] * 4
    assert around.observation_space == around.action_space == [None] * 4
    assert (pool.observation_space, pool.action_space) == before


def test_a_wrapper_is_a_pool_and_closes_the_one_it_holds(pool):
    wrapper = VectorEnvWrapper(pool)
    assert isinstance(wrapper, BaseVectorEnv)
    assert repr(wrapper) == f"VectorEnvWrapper({pool!r})"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(wrapper)
    twin = copy.copy(Halved(wrapper))
    assert (type(twin), twin.venv, twin.seen) == (Halved, wrapper, [])
    del twin
    gc.collect()
    assert not pool.is_closed, "a wrapper that is dropped leaves its pool open"
    with Halved(wrapper) as entered:
        assert type(entered) is Halved
    assert pool.is_closed
    assert entered.is_closed
    entered.close()


def test_a_wrapper_needs_a_pool():
    for venv in (None, DummyVectorEnv, "CartPole-v1"):
        with pytest.raises(TypeError, match=r"venv: got .*, but a wrapper needs a pool"):
            VectorEnvWrapper(venv)


class QuarterEnv(envs.SpaceEnv):
    """Halves its own observations twice."""

    def observe(self):
        return halved(halved(super().observe()))


ROWS = [(place, "box-float32", False) for place in LOCAL]
ROWS += [("dummy", space, columns) for space in ("dict", "nested") for columns in (False, True)]


@pytest.mark.parametrize(("case", "mode"), paired(ROWS, [None, "same_step", "next_step"]))
def test_rows_are_those_of_envs_that_change_them(case, mode):
    place, space, columns = case

    def make(_, **options):
        fns = [partial(envs.SpaceEnv, tag, space, 2) for tag in range(3)]
        return Halved(VectorEnvWrapper(Halved(PLACES[place](fns, **options))))

    fns = [partial(QuarterEnv, tag, space, 2) for tag in range(3)]
    Session(make, fns, mode, columns=columns).run(script(1))


def test_final_observations_come_first_and_in_a_batch_of_their_own():
    fns = [partial(envs.SpaceEnv, tag, "box-float32", 1 + tag % 2) for tag in range(3)]
    with DummyVectorEnv(fns, autoreset_mode="same_step") as venv:
        wrapper = Halved(venv)
        action = wrapper.reset(seed=0)[0]
        obs, *_, infos = wrapper.step(action)  # envs 0 and 2 end
        finals, rows = wrapper.seen[-2:]
        assert same([infos[i]["final_obs"] for i in (0, 2)], list(halved(finals)))
        assert same(obs, halved(rows))
