"""Ids in every method of a pool; `tests/unit/test_ids.py` has every form of them.

`tests/backends/test_matrix.py` has calls of every method with ids of every form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from envpool_py import BaseVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES
from tests.support.reference import HandStepped, check, check_reset

NUM = 4
FORMS: list[tuple[Any, list[int]]] = [
    (None, [0, 1, 2, 3]),
    (np.int32(3), [3]),
    ([3, 0, 2], [3, 0, 2]),
    (np.array([True, False, False, True]), [0, 3]),
    (slice(None, None, -1), [3, 2, 1, 0]),
]
WRONG: list[tuple[Any, type[Exception], str]] = [
    (4, IndexError, "env id 4 is out of range: this pool has envs 0 to 3"),
    ([1, -2], IndexError, "-2"),
    ([1, 1], ValueError, "1"),
    ([0.0, 1.0], TypeError, "float|0.0"),
    (np.array([True, False]), IndexError, "2.*4"),
]
FNS = [functools.partial(envs.CountEnv, tag, 3) for tag in range(NUM)]


@pytest.fixture(params=BACKENDS)
def pool(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    with PLACES[request.param](FNS) as pool:
        yield pool


@pytest.fixture
def hand() -> HandStepped:
    return HandStepped(FNS)


def test_ids_in_words_of_gymnasium_and_tianshou(pool: BaseVectorEnv, hand: HandStepped) -> None:
    space = hand.envs[0].observation_space
    check_reset(pool.reset(), hand.reset(), space)
    for form, listed in FORMS:
        actions = [np.int64(10 + i) for i in listed]
        check(pool.step(np.array(actions), id=form), hand.step(actions, listed), space)
        check_reset(pool.reset(id=form), hand.reset(listed), space)
        check_reset(pool.reset(env_id=form), hand.reset(listed), space)
        # What subclasses of Tianshou's pools use.
        wrapped = pool._wrap_id(form)
        assert [int(i) for i in wrapped] == listed
        pool._assert_id(wrapped)


CALLS: dict[str, Callable[[BaseVectorEnv, Any, int], Any]] = {
    "step": lambda pool, ids, k: pool.step([2] * k, ids),
    "send": lambda pool, ids, k: pool.send([2] * k, ids),
    "reset": lambda pool, ids, k: pool.reset(ids),  # noqa: ARG005
    "reset by keyword": lambda pool, ids, k: pool.reset(env_id=ids),  # noqa: ARG005
    "send_reset": lambda pool, ids, k: pool.send_reset(ids),  # noqa: ARG005
    "get_env_attr": lambda pool, ids, k: pool.get_env_attr("tag", ids),  # noqa: ARG005
    "set_env_attr": lambda pool, ids, k: pool.set_env_attr("tag", 9, ids),  # noqa: ARG005
    "call": lambda pool, ids, k: pool.call("counts", id=ids),  # noqa: ARG005
}


def test_wrong_ids_are_refused_by_every_method(pool: BaseVectorEnv) -> None:
    pool.reset()
    for ids, kind, text in WRONG:
        count = len(ids) if hasattr(ids, "__len__") else 1
        for call in CALLS.values():
            with pytest.raises(kind, match=text) as caught:
                call(pool, ids, count)
            assert not isinstance(caught.value, EnvError)
    assert pool.get_env_attr("tag") == [0, 1, 2, 3]
    assert pool.call("counts") == [(0, 1)] * NUM
    pool.send([2] * NUM)
    for ids, kind, text in WRONG:
        with pytest.raises(kind, match=text):
            pool.step(None, id=ids)
    assert len(pool.step(None, id=[2, 1, 0, 3])[1]) == NUM


def test_what_subclasses_of_tianshous_pools_see_of_envs_in_flight(pool: BaseVectorEnv) -> None:
    pool.reset()
    pool.wait_num = 1
    pool.send([0, 0], [2, 1])
    assert set(map(id, pool.waiting_conn)) == {id(pool.workers[i]) for i in (1, 2)}
    pool._assert_id([0, 3])
    with pytest.raises(AlreadyPendingCallError, match="env 2"):
        pool._assert_id([0, 2])
    pool.drain()
    assert list(pool.waiting_conn) == []
