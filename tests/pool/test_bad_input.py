"""Bad input: a clear exception, before anything is stepped, and the pool goes on working."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv, SubprocVectorEnv
from tests.support import envs
from tests.support.helpers import ROOT, no_process_left
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, check, check_reset, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from envpool_py import BaseVectorEnv

NUM = 3
FNS = [functools.partial(envs.CountEnv, tag, 50) for tag in range(NUM)]
BOX_FNS = [functools.partial(envs.SpaceEnv, tag, "box-float32", 50) for tag in range(NUM)]
SPACE = envs.CountEnv().observation_space


def unharmed(pool: BaseVectorEnv, counts: list[tuple[int, int]]) -> None:
    """Assert that nothing has been stepped or reset since `counts`, and that the pool works."""
    assert list(pool.waiting_id) == []
    assert pool.call("counts") == counts
    obs, info = pool.reset()
    assert obs[:, 0].tolist() == [0, 1, 2]
    assert [row["env_id"] for row in info] == [0, 1, 2]
    obs = pool.step([2, 2, 2])[0]
    assert obs[:, 2].tolist() == [1, 1, 1]


@pytest.fixture(params=QUICK)
def pool(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    with PLACES[request.param](FNS) as pool:
        pool.reset()
        yield pool


# --------------------------------------------------------------------------------------- ids

BAD_IDS = {
    "too high": (3, IndexError, r"env id 3 is out of range: this pool has envs 0 to 2"),
    "too high in a list": ([0, 7], IndexError, r"env id 7 is out of range"),
    "too high in an array": (np.array([5]), IndexError, r"env id 5 is out of range"),
    "negative": (-1, IndexError, r"-1"),
    "negative in a list": ([1, -2], IndexError, r"-2"),
    "negative in an array": (np.array([-3, 0]), IndexError, r"-3"),
    "twice": ([1, 1], ValueError, r"1"),
    "twice in an array": (np.array([2, 0, 2]), ValueError, r"2"),
    "twice as other types": ([1, np.int64(1)], ValueError, r"1"),
    "float": (1.0, TypeError, r"1\.0"),
    "floats": ([0.0, 1.0], TypeError, r"0\.0|float"),
    "float array": (np.array([0.5]), TypeError, r"0\.5|float"),
    "text": ("1", TypeError, r"'1'"),
    "texts": (["a"], TypeError, r"a"),
    "bool": (True, TypeError, r"True"),
    "None in a list": ([None], TypeError, r"None"),
    "nested": ([[0], [1]], TypeError, r"\[\[0\]|shape \(2, 1\)"),
    "dict": ({0: 1}, TypeError, r"dict|\{0: 1\}"),
    "object": (object(), TypeError, r"object"),
    "short mask": (np.array([True, False]), IndexError, r"2.*3"),
    "long mask": (np.ones(4, bool), IndexError, r"4.*3"),
}

ID_CALLS: dict[str, Callable[[BaseVectorEnv, Any, int], Any]] = {
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
    counts = pool.call("counts")
    for ids, kind, text in BAD_IDS.values():
        count = len(ids) if hasattr(ids, "__len__") else 1
        for call in ID_CALLS.values():
            with pytest.raises(kind, match=text) as caught:
                call(pool, ids, count)
            assert not isinstance(caught.value, EnvError)
    assert pool.get_env_attr("tag") == [0, 1, 2]
    unharmed(pool, counts)


def test_wrong_ids_are_refused_when_waiting_for_rows(pool: BaseVectorEnv) -> None:
    pool.send([2, 2, 2])
    for ids, kind, text in BAD_IDS.values():
        with pytest.raises(kind, match=text):
            pool.step(None, id=ids)
    assert len(pool.step(None, id=[2, 1, 0])[1]) == 3


# ----------------------------------------------------------------------------------- actions


@pytest.mark.parametrize(
    ("actions", "ids", "text"),
    [
        ([1, 2], None, r"got 2 actions for 3 envs"),
        ([1, 2, 3, 4], None, r"got 4 actions for 3 envs"),
        ([], None, r"got 0 actions for 3 envs"),
        (np.zeros(2, np.int64), None, r"got 2 actions for 3 envs"),
        ([1, 2], [0], r"got 2 actions for 1 env"),
        ([1], [0, 2], r"got 1 actions? for 2 envs"),
        ([1], [], r"got 1 actions? for 0 envs"),
        ([None, None], None, r"got 2 actions for 3 envs"),
    ],
)
def test_a_wrong_number_of_actions(pool: BaseVectorEnv, actions: Any, ids: Any, text: str) -> None:
    counts = pool.call("counts")
    for call in (pool.step, pool.send):
        with pytest.raises(ValueError, match=text):
            call(actions, ids)
    unharmed(pool, counts)


@pytest.mark.parametrize("actions", [5, np.int64(5), np.array(5), "abc", {1: 2}, 2.5])
def test_what_is_no_sequence_of_actions(pool: BaseVectorEnv, actions: Any) -> None:
    counts = pool.call("counts")
    with pytest.raises((TypeError, ValueError), match="action"):
        pool.step(actions)
    unharmed(pool, counts)


@pytest.mark.parametrize(
    "actions",
    [
        [1, 2.5, 1],
        [1, "left", 1],
        np.array([1.0, np.nan, 2.0]),
        [1, [1, 2], 1],
        np.zeros((3, 2), np.int64),
        [1, 2**70, 1],
        [object(), 1, 1],
    ],
)
def test_actions_that_a_discrete_space_cannot_hold(pool: BaseVectorEnv, actions: Any) -> None:
    counts = pool.call("counts")
    with pytest.raises((TypeError, ValueError), match="action"):
        pool.step(actions)
    unharmed(pool, counts)


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (np.zeros((3, 2, 2), np.float32), r"\(2, 2\).*\(2, 3\)|\(3, 2, 2\).*\(3, 2, 3\)"),
        (np.zeros((3, 3), np.float32), r"\(3,\).*\(2, 3\)|\(3, 3\).*\(3, 2, 3\)"),
        (np.zeros((3, 6), np.float32), r"\(6,\).*\(2, 3\)|\(3, 6\).*\(3, 2, 3\)"),
        ([np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 2))], r"\(3, 2\).*\(2, 3\)"),
        (np.zeros((3, 1, 1), np.float32), r"\(1, 1\).*\(2, 3\)|\(3, 1, 1\).*\(3, 2, 3\)"),
        (np.zeros((3, 2, 3), np.complex64) + 1j, r"complex"),
        (np.full((3, 2, 3), "x"), r"action"),
    ],
    ids=["narrow", "flat", "raveled", "one transposed", "broadcastable", "complex", "text"],
)
@pytest.mark.parametrize("place", QUICK)
def test_actions_of_another_shape_or_dtype(place: str, actions: Any, text: str) -> None:
    with PLACES[place](BOX_FNS) as pool:
        pool.reset()
        with pytest.raises((ValueError, TypeError), match=text):
            pool.step(actions)
        assert pool.call("counts") == [(0, 1)] * 3
        assert len(pool.step(np.zeros((3, 2, 3), np.float32))[1]) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: {**good, "more": 1},
        lambda good: {key: value for key, value in good.items() if key != "a"},
        lambda good: {**good, "a": np.zeros(3, np.int64)},
        lambda good: {**good, "b": 5},
        lambda good: {**good, "b": (*good["b"], 1)},
        lambda good: 7,  # noqa: ARG005
    ],
    ids=["a key more", "a key less", "a leaf's shape", "a leaf for a tuple", "longer", "no dict"],
)
@pytest.mark.parametrize("place", QUICK)
def test_actions_of_another_structure_than_their_space(
    place: str, spoil: Callable[[dict], Any]
) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, "nested", 50) for tag in range(2)]
    space = fns[0]().action_space
    good = [envs.draw(space, np.random.default_rng(i)) for i in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises((ValueError, TypeError), match=r"env 1: action|action"):
            pool.step([good[0], spoil(good[1])])
        assert pool.call("counts") == [(0, 1)] * 2
        assert len(pool.step(good)[1]) == 2


def test_no_actions_in_a_synchronous_pool(pool: BaseVectorEnv) -> None:
    counts = pool.call("counts")
    with pytest.raises(ValueError, match="no env is in flight"):
        pool.step(None)
    unharmed(pool, counts)


# --------------------------------------------------------------------------- seeds, options


@pytest.mark.parametrize(
    ("seed", "ids", "kind", "text"),
    [
        ([1, 2], None, ValueError, r"got 2 seeds for 3 envs"),
        ([1, 2, 3, 4], None, ValueError, r"got 4 seeds for 3 envs"),
        (np.array([1, 2]), None, ValueError, r"got 2 seeds for 3 envs"),
        ([], None, ValueError, r"got 0 seeds for 3 envs"),
        ([1, 2, 3], [0, 1], ValueError, r"got 3 seeds for 2 envs"),
        (1.5, None, TypeError, r"1\.5"),
        ("1", None, TypeError, r"'1'"),
        ([1, 2, "c"], None, TypeError, r"'c'"),
        ([1, 2.5, 3], None, TypeError, r"env 1.*2\.5"),
        (-1, None, ValueError, r"-1"),
        ([0, 1, -5], None, ValueError, r"env 2.*-5"),
        (np.array([0.5, 1.0, 2.0]), None, TypeError, r"0\.5"),
    ],
)
def test_wrong_seeds(pool: BaseVectorEnv, seed: Any, ids: Any, kind: Any, text: str) -> None:
    counts = pool.call("counts")
    with pytest.raises(kind, match=text):
        pool.reset(ids, seed=seed)
    with pytest.raises(kind, match=text):
        pool.send_reset(ids, seed=seed)
    if ids is None:
        with pytest.raises(kind, match=text):
            pool.seed(seed)
    unharmed(pool, counts)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ([{}, {}], ValueError, r"2.*3"),
        ([{}, {}, {}, {}], ValueError, r"4.*3"),
        (5, TypeError, r"int|5"),
        ("fast", TypeError, r"str|'fast'"),
        ([{}, 3, {}], TypeError, r"env 1|3"),
    ],
)
def test_wrong_options(pool: BaseVectorEnv, options: Any, kind: Any, text: str) -> None:
    counts = pool.call("counts")
    with pytest.raises(kind, match=text):
        pool.reset(options=options)
    unharmed(pool, counts)


# ------------------------------------------------------------------------- construction

BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "wait_num 0": ({"wait_num": 0}, ValueError, r"wait_num.*0"),
    "wait_num negative": ({"wait_num": -1}, ValueError, r"wait_num.*-1"),
    "wait_num too high": ({"wait_num": 4}, ValueError, r"wait_num.*4"),
    "wait_num float": ({"wait_num": 1.5}, TypeError, r"wait_num.*1\.5"),
    "wait_num text": ({"wait_num": "2"}, TypeError, r"wait_num.*'2'"),
    "timeout 0": ({"timeout": 0}, ValueError, r"timeout.*0"),
    "timeout negative": ({"timeout": -1.0}, ValueError, r"timeout.*-1"),
    "timeout NaN": ({"timeout": float("nan")}, ValueError, r"timeout.*nan"),
    "timeout text": ({"timeout": "1"}, TypeError, r"timeout.*'1'"),
    "unknown": ({"colour": "red"}, TypeError, r"colour"),
    "autoreset_mode": ({"autoreset_mode": "sometimes"}, ValueError, r"sometimes"),
    "reset_fn": ({"reset_fn": 5}, TypeError, r"reset_fn"),
}
BAD_PROCESSES: dict[str, tuple[dict[str, Any], Any, str]] = {
    "context": ({"context": "thread"}, ValueError, r"thread"),
    "context type": ({"context": 5}, TypeError, r"context.*5|5"),
    "num_processes 0": ({"num_processes": 0}, ValueError, r"num_processes.*0"),
    "num_processes negative": ({"num_processes": -2}, ValueError, r"num_processes.*-2"),
    "num_processes float": ({"num_processes": 1.5}, TypeError, r"num_processes.*1\.5"),
}
POOLS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("name", [*BAD_ARGUMENTS, *BAD_PROCESSES])
def test_wrong_arguments_of_the_constructor(kind: str, name: str) -> None:
    options, error, text = {**BAD_ARGUMENTS, **BAD_PROCESSES}[name]
    if kind == "dummy" and name in BAD_PROCESSES:
        error, text = TypeError, next(iter(options))
    built: list[int] = []
    with no_process_left(), pytest.raises(error, match=text):
        POOLS[kind]([functools.partial(built.append, 1)] * 3, **options)
    assert built == []


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize(
    ("env_fns", "error", "text"),
    [
        ([], ValueError, r"env_fns|at least one"),
        ((), ValueError, r"env_fns|at least one"),
        (5, TypeError, r"env_fns|int"),
        (None, TypeError, r"env_fns|None"),
        (envs.CountEnv, TypeError, r"env_fns|list|sequence"),
        ([envs.CountEnv()], TypeError, r"env 0|callable"),
        ([envs.CountEnv, envs.CountEnv()], TypeError, r"env 1|env_fns\[1\]"),
        ([envs.CountEnv, "CartPole-v1"], TypeError, r"env 1|env_fns\[1\]"),
        ([envs.CountEnv, None], TypeError, r"env 1|env_fns\[1\]"),
    ],
    ids=["empty", "empty tuple", "int", "None", "class", "env", "later env", "text", "none in"],
)
def test_wrong_env_fns(kind: str, env_fns: Any, error: Any, text: str) -> None:
    with no_process_left(), pytest.raises(error, match=text):
        POOLS[kind](env_fns)


def test_an_iterable_of_env_fns_is_taken() -> None:
    with DummyVectorEnv(tuple(FNS)) as pool:
        assert len(pool) == 3


@pytest.mark.parametrize("place", ["dummy", "subproc-fork-packed", "shmem-fork-packed"])
def test_two_env_fns_that_return_one_instance(place: str) -> None:
    env = envs.CountEnv()

    def shared() -> gym.Env:
        return env

    # Under fork, envs 0 and 1 are the same instance only where they share a process.
    options = {} if place == "dummy" else {"num_processes": 1}
    place_options = {**PLACES[place].options, **options}
    text = r"env 1.*env 0|envs 0.*1"
    with no_process_left(), pytest.raises((ValueError, EnvError), match=text):
        PLACES[place].pool([shared, shared, envs.CountEnv], **place_options)


DIFFERENT = {
    "shape": lambda: envs.box("float32", (2,)),
    "dtype": lambda: envs.box("float64", (2, 3)),
    "kind": lambda: gym.spaces.Discrete(3),
    "object": lambda: gym.spaces.Text(3),
    "dict": envs.dict_space,
}


class OtherSpaceEnv(envs.CountEnv):
    """Its observation space, or its action space, is of choice."""

    def __init__(self, tag: int, which: str, name: str) -> None:
        super().__init__(tag)
        self.observation_space = envs.box("float32")
        self.action_space = envs.box("float32")
        if name:
            setattr(self, which, DIFFERENT[name]())


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("place", BACKENDS)
def test_envs_whose_spaces_differ(place: str, name: str, which: str) -> None:
    fns = [functools.partial(OtherSpaceEnv, tag, which, name * (tag == 2)) for tag in range(3)]
    text = rf"env 2.*{which}|{which}.*env 2"
    with no_process_left(), pytest.raises((ValueError, EnvError), match=text):
        PLACES[place](fns)


class LowerBoundEnv(envs.CountEnv):
    """Its observation space has the shape and dtype of the others, and bounds of its own."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.observation_space = gym.spaces.Box(-1 - tag, 10**6, (3,), np.int64)
        self.action_space = gym.spaces.Discrete(100 + tag)


@pytest.mark.parametrize("place", BACKENDS)
def test_spaces_may_differ_in_their_bounds(place: str) -> None:
    fns = [functools.partial(LowerBoundEnv, tag) for tag in range(3)]
    hand = HandStepped(fns)
    with PLACES[place](fns) as pool:
        assert pool.observation_space == [env.observation_space for env in hand.envs]
        assert pool.action_space == [env.action_space for env in hand.envs]
        check_reset(pool.reset(), hand.reset(), SPACE)


@pytest.mark.parametrize("make", [envs.NoResetEnv, envs.NoStepEnv, envs.return_none, int])
@pytest.mark.parametrize("place", BACKENDS)
def test_what_is_no_env(place: str, make: Callable[[], Any]) -> None:
    text = r"env 1: env_fn .*(reset|step)"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        PLACES[place]([envs.CountEnv, make])
    assert isinstance(caught.value, TypeError)
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("name", ["wait_num", "timeout"])
@pytest.mark.parametrize("value", [0, -1, "2"])
def test_wrong_values_may_not_be_set_later(pool: BaseVectorEnv, name: str, value: Any) -> None:
    before = getattr(pool, name)
    with pytest.raises((ValueError, TypeError), match=name):
        setattr(pool, name, value)
    if name == "wait_num":
        with pytest.raises(ValueError, match=r"wait_num.*4"):
            pool.wait_num = 4
    assert getattr(pool, name) == before
    unharmed(pool, pool.call("counts"))


# --------------------------------------------------------------------- what envs return


@pytest.mark.parametrize("name", envs.ROWS)
@pytest.mark.parametrize("place", QUICK)
def test_a_spoilt_row_is_the_error_of_its_env(place: str, name: str) -> None:
    fns = [functools.partial(envs.BadRowEnv, tag, name) for tag in range(3)]
    hand = HandStepped(fns)
    with PLACES[place](fns) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        good = [np.int64(2)] * 3
        check(pool.step(good), hand.step(good), SPACE)
        if place == "dummy" and name in ("info unpicklable", "info explodes"):
            pool.step([2, 1, 2])  # nothing is pickled here
            return
        with pytest.raises(EnvError, match=r"env 1: step raised ") as caught:
            pool.step([2, 1, 2])
        assert caught.value.env_ids == (1,)
        assert caught.value.request == "step"
        wanted = {row.env_id: row for row in hand.step([np.int64(2)] * 2, [0, 2])}
        kept = pool.drain()
        check(kept, [wanted.pop(info["env_id"]) for info in kept[4]], SPACE)
        assert not wanted
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step(good)
        hand.envs[1].steps += 1
        check_reset(pool.reset([1]), hand.reset([1]), SPACE)
        check(pool.step(good), hand.step(good), SPACE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("four", r"step\(\) must return \(obs, reward, terminated, truncated, info\), got 4"),
        ("not a tuple", r"step\(\) must return .* got int"),
        ("info None", r"info.*None"),
        ("obs short", r"shape \(2,\).*\(3,\)"),
        ("obs broadcastable", r"shape \(1,\).*\(3,\)"),
        ("obs with an axis more", r"shape \(1, 3\).*\(3,\)"),
        ("obs fraction", r"float64.*int64"),
        ("obs too large", r"float64.*int64"),
        ("obs None", r"None"),
        ("reward None", r"reward.*None"),
        ("reward text", r"reward.*'much'"),
        ("terminated text", r"terminated.*'yes'"),
    ],
)
@pytest.mark.parametrize("place", BACKENDS)
def test_the_message_says_what_is_wrong_with_a_row(place: str, name: str, text: str) -> None:
    fns = [functools.partial(envs.BadRowEnv, tag, name) for tag in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=text):
            pool.step([2, 1])


@pytest.mark.parametrize("name", envs.RESETS)
@pytest.mark.parametrize("place", QUICK)
def test_a_spoilt_reset_is_the_error_of_its_env(place: str, name: str) -> None:
    fns = [functools.partial(envs.BadResetEnv, tag, name) for tag in range(3)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 1: reset raised ") as caught:
            pool.reset([0, 1], options=[None, {"spoil": True}])
        assert caught.value.env_ids == (1,)
        assert caught.value.request == "reset"
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([2], [1])
        pool.drain()
        obs, _ = pool.reset()
        assert obs[:, 0].tolist() == [0, 1, 2]
        assert pool.step([2, 2, 2])[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("place", QUICK)
def test_numbers_out_of_bounds_and_nan_pass(place: str) -> None:
    # Bounds, NaN and `contains` cost more: they are another option's business.
    fns = [functools.partial(envs.CountEnv, 2 * 10**6)]
    with PLACES[place](fns, validate="off") as pool:
        obs, _ = pool.reset()
        assert obs[0, 0] == 2 * 10**6


# ---------------------------------------------------------------------------------- order


@pytest.mark.parametrize("place", QUICK)
def test_a_step_before_the_first_reset(place: str) -> None:
    with PLACES[place](FNS) as pool:
        with pytest.raises(ResetNeeded, match=r"env.* 0"):
            pool.step([2, 2, 2])
        pool.reset([1])
        with pytest.raises(ResetNeeded, match=r"env.* 2"):
            pool.step([2, 2], [1, 2])
        with pytest.raises(ResetNeeded, match=r"env.* 0"):
            pool.send([2], [0])
        assert pool.call("counts") == [(0, 0), (0, 1), (0, 0)]
        assert pool.step([2], [1])[0].tolist() == [[1, 0, 1]]
        pool.seed(4)  # counts as a reset
        assert pool.step([2, 2, 2])[0][:, 2].tolist() == [1, 1, 1]


USES: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "reset": lambda pool: pool.reset(),
    "step": lambda pool: pool.step([2, 2, 2]),
    "fetch": lambda pool: pool.step(None),
    "send": lambda pool: pool.send([2, 2, 2]),
    "recv": lambda pool: pool.recv(),
    "send_reset": lambda pool: pool.send_reset(),
    "drain": lambda pool: pool.drain(),
    "seed": lambda pool: pool.seed(3),
    "get_env_attr": lambda pool: pool.get_env_attr("tag"),
    "set_env_attr": lambda pool: pool.set_env_attr("tag", 3),
    "call": lambda pool: pool.call("counts"),
    "render": lambda pool: pool.render(),
    "enter": lambda pool: pool.__enter__(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", BACKENDS)
def test_use_after_close(place: str, use: str) -> None:
    pool = PLACES[place](FNS)
    pool.reset()
    pool.close()
    with pytest.raises(ClosedEnvironmentError, match=rf"{type(pool).__name__}.*closed"):
        USES[use](pool)


@pytest.mark.parametrize("place", BACKENDS)
def test_what_a_closed_pool_still_tells(place: str) -> None:
    pool = PLACES[place](FNS)
    pool.close()
    assert pool.is_closed
    assert len(pool) == pool.env_num == 3
    assert pool.observation_space[0] == SPACE
    assert "closed" in repr(pool)


# ----------------------------------------------------------------------- start methods


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["subproc", "shmem"])
def test_an_env_fn_that_cannot_be_pickled(kind: str, context: str) -> None:
    lock = threading.Lock()

    def make() -> gym.Env:
        with lock:
            return envs.CountEnv()

    text = r"env 1: env_fn cannot be pickled: .*lock"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        POOLS[kind]([envs.CountEnv, make], context=context)
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("kind", ["subproc", "shmem"])
def test_under_fork_env_fns_are_not_pickled(kind: str) -> None:
    lock = threading.Lock()

    def make() -> gym.Env:
        with lock:
            return envs.CountEnv(7)

    with POOLS[kind]([make, make], context="fork") as pool:
        assert pool.reset()[0][:, 0].tolist() == [7, 7]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["subproc", "shmem"])
def test_closures_and_lambdas_reach_every_start_method(kind: str, context: str) -> None:
    level = 3

    class LocalEnv(envs.CountEnv):
        def observe(self) -> np.ndarray:
            return np.array([level, self.episode, self.t])

    with POOLS[kind]([lambda: LocalEnv(0)], context=context) as pool:
        assert pool.reset()[0].tolist() == [[3, 0, 0]]


UNGUARDED = """
    from gymnasium.envs.classic_control import CartPoleEnv

    import envpool_py

    pool = envpool_py.{pool}([CartPoleEnv] * 2, context="{context}")
    print(pool.reset()[0].shape)
    pool.close()
"""
GUARDED = """
    from gymnasium.envs.classic_control import CartPoleEnv

    import envpool_py

    if __name__ == "__main__":
        with envpool_py.{pool}([CartPoleEnv] * 2, context="{context}") as pool:
            print(pool.reset()[0].shape)
"""


def run_script(path: Path, text: str, **names: str) -> subprocess.CompletedProcess:
    path.write_text(textwrap.dedent(text).format(**names))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("pool", ["SubprocVectorEnv", "ShmemVectorEnv"])
def test_no_main_guard(tmp_path: Path, pool: str, context: str) -> None:
    names = {"pool": pool, "context": context}
    done = run_script(tmp_path / "unguarded.py", UNGUARDED, **names)
    assert done.returncode == 1
    text = r"WorkerDiedError: env [01]: the worker process exited with code 1"  # both do
    assert re.search(text, done.stderr)
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_a_main_guard(tmp_path: Path, context: str) -> None:
    names = {"pool": "SubprocVectorEnv", "context": context}
    done = run_script(tmp_path / "guarded.py", GUARDED, **names)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(2, 4)\n", "")


# ------------------------------------------------------------------------ ids in flight


@pytest.mark.parametrize("place", QUICK)
def test_ids_in_flight(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        pool.send([2], [1])
        for ask in (
            lambda: pool.step([2, 2, 2]),
            pool.reset,
            lambda: pool.get_env_attr("tag", 1),
        ):
            with pytest.raises(AlreadyPendingCallError, match="env 1"):
                ask()
        assert same(pool.recv()[0], np.array([[1, 0, 1]]))
        unharmed(pool, [(0, 1), (1, 1), (0, 1)])
