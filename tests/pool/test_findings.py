"""Faults that were found in the first version from outside, in what a pool passes on and returns.

The numbers are those of the list of findings. Other findings have their tests beside those of
their subject: 2, 5, 6, 11, 23, 24, 26, 28, 30 and 31 in ``tests/faults``.
"""

from __future__ import annotations

import copy
import functools
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from tests.faults.helpers import EACH, RESTART, reset_pool, slow
from tests.support import envs
from tests.support.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    from envpool_py import BaseVectorEnv

# ------------------------------------------------------------- 1: every env has its own copy

ARRAYS = spaces.Sequence(spaces.Box(-np.inf, np.inf, (2,), np.float64))
ACTION_SPACES: dict[str, gym.Space | None] = {
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
        del self.action_space
        if ACTION_SPACES[kind] is not None:
            self.action_space = ACTION_SPACES[kind]

    def reset(self, *, seed: int | None = None, options: dict | None = None, **extra: Any) -> tuple:
        obs, info = super().reset(seed=seed, options=options)
        for given in (options, extra.get("extra")):
            if given is not None:
                info["found"] = self.take(given)
        return obs, info

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


GREEDY = [functools.partial(GreedyEnv, tag) for tag in range(3)]


@pytest.mark.parametrize("wait_num", [None, 1])
@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("place", [*EACH, *slow("shmem-spawn-packed")])
def test_an_env_that_changes_its_action_changes_no_other(
    place: str, kind: str, wait_num: int | None
) -> None:
    inner = np.zeros(2)
    shared = given_action(kind, inner)
    fns = [functools.partial(GreedyEnv, tag, kind) for tag in range(3)]
    with reset_pool(place, fns, wait_num=wait_num) as pool:
        for actions in ([shared] * 3, [given_action(kind, inner) for _ in range(3)]):
            pool.send(actions)
            assert pool.drain()[1].tolist() == [2.0] * 3
        assert inner.tolist() == [0.0, 0.0]


def sent_reset(pool: BaseVectorEnv, bag: dict[str, list]) -> list:
    pool.send_reset(options=bag)
    bag["items"].append("late")
    infos = pool.drain()[4]
    assert bag["items"].pop() == "late"
    return sorted(info["found"] for info in infos)


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


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("place", EACH)
def test_every_env_has_its_own_copy_of_an_argument(place: str, name: str) -> None:
    bag: dict[str, list] = {"items": []}
    with PLACES[place](GREEDY) as pool:
        for _ in range(2):
            assert REQUESTS[name](pool, bag) == [[0], [1], [2]]
    assert bag == {"items": []}


# --------------------------------------------------------- 4: observations that hold nothing


class EmptyEnv(envs.CountEnv):
    """Observes an element of a Dict or Tuple space without parts, maybe as part of a Dict."""

    def __init__(self, tag: int, empty: Any, nested: bool = False) -> None:
        super().__init__(tag, length=2)
        space = spaces.Dict({}) if isinstance(empty, dict) else spaces.Tuple(())
        self.empty, self.nested = empty, nested
        counts = self.observation_space
        self.observation_space = spaces.Dict({"counts": counts, "e": space}) if nested else space

    def observe(self) -> Any:
        return {"counts": super().observe(), "e": self.empty} if self.nested else self.empty


def empty_fns(empty: Any, nested: bool = False) -> list[Callable[[], Any]]:
    return [functools.partial(EmptyEnv, tag, empty, nested) for tag in range(3)]


@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("empty", [{}, ()])
@pytest.mark.parametrize("place", EACH)
def test_empty_observations_are_rows(place: str, empty: Any, wait_num: int | None) -> None:
    with PLACES[place](empty_fns(empty), wait_num=wait_num, autoreset_mode="same_step") as pool:
        batches = [pool.reset()]
        for send in (lambda: pool.send([0] * 3), lambda: pool.send([0] * 3), pool.send_reset):
            send()  # the second time the episodes end
            batches.append(pool.drain())
        for obs, *_, infos in batches:
            assert (type(obs), obs.dtype, obs.shape) == (np.ndarray, object, (3,))
            assert list(obs) == [empty] * 3
            assert sorted(info["env_id"] for info in infos) == [0, 1, 2]
        assert [info["final_obs"] for info in batches[2][-1]] == [empty] * 3
        if isinstance(empty, dict):
            assert batches[0][0][0] is not batches[0][0][1]


@pytest.mark.parametrize("empty", [{}, ()])
@pytest.mark.parametrize("place", EACH)
def test_empty_observations_as_columns_and_as_parts(place: str, empty: Any) -> None:
    with PLACES[place](empty_fns(empty), columns=True) as pool:
        obs, infos = pool.reset()
        assert (obs, len(infos)) == (empty, 3)
        obs, rewards, *_ = pool.step([0] * 3)
        assert (obs, rewards.shape) == (empty, (3,))
    counts = [[tag, 0, 1] for tag in range(3)]
    with reset_pool(place, empty_fns(empty, True), columns=True) as pool:
        obs = pool.step([0] * 3)[0]
        assert obs["e"] == empty
        assert obs["counts"].tolist() == counts
    with reset_pool(place, empty_fns(empty, True)) as pool:
        obs = pool.step([0] * 3)[0]
        assert [row["e"] for row in obs] == [empty] * 3
        assert [row["counts"].tolist() for row in obs] == counts


# -------------------------------------- 10: the flags alone say that an ordinary episode is over


class DoneInfoEnv(envs.FaultEnv):
    """Has a key ``env_done`` of its own in every info, unless the value is None."""

    def __init__(self, tag: int, value: Any) -> None:
        super().__init__(tag, length=3)
        self.extra = {} if value is None else {"env_done": value}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        obs, info = super().reset(seed=seed, options=options)
        return obs, {**info, **self.extra}

    def step(self, action: Any) -> tuple:
        *row, info = super().step(action)
        return *row, {**info, **self.extra}


def done_rows(place: str, mode: str, value: Any, options: dict[str, Any]) -> list[tuple]:
    """Return the rows of 8 steps, the fifth of which raises in env 1 if ``options`` allow it."""
    fns = [functools.partial(DoneInfoEnv, tag, value) for tag in range(3)]
    rows: list[tuple] = []
    with PLACES[place](fns, autoreset_mode=mode, **options) as pool:
        rows += zip(*pool.reset(), strict=True)
        for step in range(8):
            fault = "value" if options and step == 4 else ""
            rows += zip(*pool.step(["", fault, ""]), strict=True)
    for *_, info in rows:
        own = [part for part in (info, info.get("final_info")) if part is not None]
        is_lost = any("env_error" in part for part in own)
        for part in own:
            got = part.pop("env_done", None)
            # To a lost row the package may add its own.
            assert is_lost or np.array_equal(got, value) or got is value is None
            if "env_error" in part:
                part["env_error"] = part["env_error"].splitlines()[0]
    return rows


@pytest.mark.parametrize("options", [{}, RESTART], ids=["raise", "restart"])
@pytest.mark.parametrize("value", [True, np.array([True, False])], ids=["True", "array"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_env_done_of_an_ordinary_env_means_nothing(
    place: str, mode: str, value: Any, options: dict[str, Any]
) -> None:
    rows = done_rows(place, mode, value, options)
    expected = done_rows(place, mode, None, options)
    assert data_equivalence(rows, expected, exact=True)


# -------------------------------- 13 and 14: one way for what is measured, one message for all

POLLING = {"advance", "fetch", "collect", "_wait"}  # as often as there is something to wait for
MEASURING = {"note_step", "note_reset", "now", "step", "_bin"}


@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_a_measured_pool_takes_the_same_way(kind: type[BaseVectorEnv]) -> None:
    called: dict[bool, list[str]] = {}
    for measure in (False, True):
        with kind([envs.CountEnv] * 4, measure=measure) as pool:
            pool.reset()
            for _ in range(3):
                pool.step([0] * 4)
            names: list[str] = []

            def note(frame: Any, event: str, arg: Any, names: list[str] = names) -> None:  # noqa: ARG001
                if event == "call" and "envpool_py" in frame.f_code.co_filename:
                    names.append(frame.f_code.co_name)

            sys.setprofile(note)
            try:
                pool.step([0] * 4)
            finally:
                sys.setprofile(None)
            called[measure] = [name for name in names if name not in POLLING | MEASURING]
    assert called[True] == called[False]


@pytest.mark.parametrize("seed", [None, 7])
def test_resets_are_one_message_for_each_process(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = os.write

    def count(fd: int, data: bytes) -> int:
        written.append(len(data))
        return write(fd, data)

    with ShmemVectorEnv([envs.CountEnv] * 64, num_processes=2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", count)
            pool.reset(seed=seed)
        assert len(written) == 2


# -------------------------------------------------------------- 25: a pool cannot be copied


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
