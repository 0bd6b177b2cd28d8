"""Every env has its own copy of what it is given; a pool itself cannot be copied."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, slow

ARRAYS = spaces.Sequence(spaces.Box(-np.inf, np.inf, (2,), np.float64))
ACTION_SPACES: dict[str, spaces.Space | None] = {
    "sequence": ARRAYS,
    "mixed": spaces.Dict({"fixed": spaces.Box(-9, 9, (2,), np.float64), "many": ARRAYS}),
    "undeclared": None,
}


def given_action(kind: str, inner: np.ndarray) -> Any:
    """Return an action without a fixed shape in which the array lies deep inside."""
    if kind == "mixed":
        return {"fixed": np.zeros(2), "many": (inner,)}
    return (inner,) if kind == "sequence" else {"many": [inner]}


class GreedyEnv(envs.CountEnv):
    """Changes whatever it is given in place; the reward of a step is the sum of its action."""

    def __init__(self, tag: int, kind: str = "undeclared") -> None:
        super().__init__(tag, length=100)
        self.bag: dict[str, list] | None = None
        self.action_space = ACTION_SPACES[kind]

    def reset(self, *, options: dict | None = None, extra: Any = None, **kwargs: Any) -> tuple:
        obs, info = super().reset(options=options, **kwargs)
        given = options or extra
        return obs, info if given is None else {**info, "found": self.take(given)}

    def step(self, action: Any) -> tuple:
        obs, _, *rest = super().step(None)
        inner = (action["many"] if isinstance(action, dict) else action)[0]
        inner += 1
        return obs, float(inner.sum()), *rest

    def take(self, bag: dict[str, list]) -> list:
        bag["items"].append(self.tag)
        return list(bag["items"])

    def take_own(self) -> list:
        return self.take(self.bag)


def take(env: GreedyEnv, bag: dict[str, list]) -> list:
    return env.take(bag)


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("place", [*BACKENDS, *slow("shmem-spawn-packed")])
def test_an_env_that_changes_its_action_changes_no_other(place: str, kind: str) -> None:
    inner = np.zeros(2)
    shared = given_action(kind, inner)
    with PLACES[place]([functools.partial(GreedyEnv, tag, kind) for tag in range(3)]) as pool:
        pool.reset()
        for actions in ([shared] * 3, [given_action(kind, inner) for _ in range(3)]):
            pool.send(actions)
            assert pool.drain()[1].tolist() == [2.0] * 3
        assert inner.tolist() == [0.0, 0.0]


def sent_reset(pool: BaseVectorEnv, bag: dict[str, list]) -> list:
    pool.send_reset(options=bag)
    bag["items"].append("late")
    infos = pool.drain()[4]
    assert bag["items"].pop() == "late"
    return sorted(found(infos))


def set_attribute(pool: BaseVectorEnv, bag: dict[str, list]) -> list:
    pool.set_env_attr("bag", bag)
    bag["items"].append("late")
    assert pool.get_env_attr("bag") == [{"items": []}] * 3
    assert bag["items"].pop() == "late"
    return pool.call("take_own")


def found(infos: Any) -> list:
    return [info["found"] for info in infos]


REQUESTS: dict[str, Callable[[BaseVectorEnv, Any], list]] = {
    "options": lambda pool, bag: found(pool.reset(options=bag)[1]),
    "options of each": lambda pool, bag: found(pool.reset(options=[dict(bag)] * 3)[1]),
    "keyword of reset": lambda pool, bag: found(pool.reset(extra=bag)[1]),
    "options of send_reset": sent_reset,
    "call": lambda pool, bag: pool.call("take", bag),
    "call by keyword": lambda pool, bag: pool.call("take", bag=bag),
    "apply": lambda pool, bag: pool.apply(take, bag),
    "apply by keyword": lambda pool, bag: pool.apply(take, bag=bag),
    "set_env_attr": set_attribute,
}


@pytest.mark.parametrize("place", BACKENDS)
def test_every_env_has_its_own_copy_of_an_argument(place: str) -> None:
    bag: dict[str, list] = {"items": []}
    with PLACES[place]([functools.partial(GreedyEnv, tag) for tag in range(3)]) as pool:
        for name, ask in REQUESTS.items():
            assert ask(pool, bag) == ask(pool, bag) == [[0], [1], [2]], name
    assert bag == {"items": []}


class OwnVectorEnv(ShmemVectorEnv):
    """A subclass, to be named in the error."""


@pytest.mark.parametrize("kind", [DummyVectorEnv, OwnVectorEnv])
def test_a_pool_cannot_be_copied(kind: type[BaseVectorEnv]) -> None:
    with kind([functools.partial(envs.CountEnv, tag) for tag in range(2)]) as pool:
        pool.reset()
        for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=rf"{kind.__name__}\b.*; \w+"):
                make_copy(pool)
            assert not pool.is_closed
        assert pool.step([0, 0])[0].tolist() == [[0, 0, 1], [1, 0, 1]]
