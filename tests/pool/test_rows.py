"""What an env may return, in the midst of plain rows and at a reset; what is wrong is its error.

An env gives plain rows first, so that they go the quick way, then one of another form, then plain
ones again. `tests/unit/test_spaces.py` has every cast of an observation.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK
from tests.support.reference import HandStepped, check, check_reset, same

SPACE = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
PLAIN = "plain"


def obs(change: Callable[[np.ndarray], Any]) -> Callable[[tuple], tuple]:
    return lambda row: (change(row[0]), *row[1:])


def reward(value: Any) -> Callable[[tuple], tuple]:
    return lambda row: (row[0], value, *row[2:])


def flags(terminated: Any, truncated: Any) -> Callable[[tuple], tuple]:
    return lambda row: (*row[:2], terminated, truncated, row[4])


def info(value: Any) -> Callable[[tuple], tuple]:
    return lambda row: (*row[:4], value)


def read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


class Info(dict):
    """An info that is more than a dict."""


FORMS: dict[str, Callable[[tuple], Any]] = {
    "a list": list,
    "big endian": obs(lambda array: array.astype(">f4")),
    "wider": obs(lambda array: array + np.float64(0.1)),
    "ints": obs(lambda array: array.astype(int)),
    "numbers": obs(lambda array: array.tolist()),
    "strided": obs(lambda array: np.repeat(array, 2)[::2]),
    "read-only": obs(read_only),
    "int": reward(1),
    "float32": reward(np.float32(0.1)),
    "float16": reward(np.float16(0.1)),
    "int8": reward(np.int8(-3)),
    "0-d": reward(np.array(2.5)),
    "bool": reward(True),
    "2**53": reward(2**53),
    "-inf": reward(float("-inf")),
    "ended by np.bool_": flags(np.True_, np.False_),
    "truncated": flags(False, True),
    "both": flags(True, True),
    "ints as flags": flags(0, 1),
    "0-d flags": flags(np.array(True), np.array(False)),
    "numbers in the info": info({"a": 1, "b": np.float32(2)}),
    "text in the info": info({"a": "b"}),
    "an array in the info": info({"a": np.arange(3)}),
    "a subclass of dict": info(Info(a=1)),
}
# ... and rows of which the pool says what is wrong with them
WRONG: dict[str, tuple[Callable[[tuple], Any], str]] = {
    "longer": (obs(lambda array: np.append(array, array)), r"obs has shape \(6,\)"),
    "broadcastable": (obs(lambda array: array[:1]), r"obs has shape \(1,\)"),
    "scalar": (obs(lambda _: np.float32(3)), r"obs has shape \(\)"),
    "no obs": (obs(lambda _: None), "obs is None"),
    "complex": (obs(lambda array: array + 1j), "can't hold without loss"),
    "too large": (obs(lambda _: np.array([1e300, 0, 0])), "can't hold without loss"),
    "text": (obs(lambda _: "far"), "obs .*float32"),
    "bytes": (obs(lambda _: b"abc"), "obs .*float32"),
    "four": (lambda row: row[:4], "got 4 values"),
    "none": (lambda _: None, "got NoneType"),
    "generator": (iter, "got tuple_iterator"),
    "reward": (reward("much"), "reward must be a number"),
    "flags": (flags(False, [True, False]), "truncated must be a bool, got list"),
    "word": (flags("yes", False), "terminated must be a bool, got str 'yes'"),
    "info": (info(None), "info dict, got NoneType"),
    "list of infos": (info([]), "info dict, got a list"),
}
LOCKED = {"a lock in the info": (info({"lock": threading.Lock()}), "cannot be pickled")}
"""Wrong where the row leaves its process."""
WRONG_RESETS: dict[str, tuple[Callable[[tuple], Any], str]] = {
    "obs alone": (lambda row: row[0], r"reset\(\) must return \(obs, info\), got ndarray"),
    "info list": (lambda row: (row[0], [row[1]]), "got info a list of 1"),
    "info None": (lambda row: (row[0], None), "got info NoneType"),
    "three": (lambda row: (*row, None), "got a tuple of 3"),
    "nothing": (lambda _: None, "got NoneType"),
    "obs short": (lambda row: (row[0][:2], row[1]), r"obs has shape \(2,\)"),
    "obs too large": (lambda row: (row[0] + 1e300, row[1]), "can't hold without loss"),
}


def changed_step(_: Any, name: str, row: tuple) -> Any:
    plain = row[0].astype(np.float32), row[1], False, False, {}
    change = FORMS.get(name) or {**WRONG, **LOCKED}.get(name, (tuple,))[0]
    return change(plain)


def changed_reset(_: Any, row: tuple) -> Any:
    name = (row[1].pop("options") or {}).get("spoil")
    return WRONG_RESETS[name][0](row) if name else (row[0], {})


def make(tag: int) -> envs.ChangedEnv:
    """Make an env whose actions, and option `spoil` of a reset, are names of the tables above."""
    env = envs.ChangedEnv(tag, step=changed_step, reset=changed_reset, space=SPACE)
    del env.action_space
    return env


FNS = [functools.partial(make, tag) for tag in range(3)]


@pytest.mark.parametrize(
    ("place", "mode"), [*((place, "same_step") for place in QUICK), ("dummy", "next_step")]
)
def test_a_row_of_another_form_among_plain_ones(place: str, mode: str) -> None:
    hand = HandStepped(FNS, mode)
    with PLACES[place](FNS, autoreset_mode=mode) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        for name in FORMS:
            for names in ([PLAIN] * 3, [PLAIN, name, PLAIN], [PLAIN] * 3):
                check(pool.step(names), hand.step(names), SPACE)


@pytest.mark.parametrize("place", QUICK)
def test_a_row_that_is_wrong_among_plain_ones(place: str) -> None:
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        for name, (_, text) in ({**WRONG, **LOCKED} if place in PROCESSES else WRONG).items():
            for _ in range(2):
                check(pool.step([PLAIN] * 3), hand.step([PLAIN] * 3), SPACE)
            (steps, _), *_ = pool.call("counts", id=1)
            with pytest.raises(EnvError, match=rf"env 1: step raised (.|\n)*{text}") as caught:
                pool.step([PLAIN, name, PLAIN])
            assert (caught.value.env_ids, caught.value.request) == ((1,), "step")
            kept = pool.drain()
            rows = {row.env_id: row for row in hand.step([PLAIN] * 2, [0, 2])}
            check(kept, [rows.pop(i) for i in pool.batch_ids.tolist()], SPACE)
            assert not rows
            assert pool.call("counts", id=1)[0][0] == steps + 1  # it was asked once
            with pytest.raises(ResetNeeded, match="env 1"):
                pool.step([PLAIN] * 3)
            check_reset(pool.reset(1), hand.reset([1]), SPACE)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_reset_that_is_wrong(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        for name, (_, text) in WRONG_RESETS.items():
            with pytest.raises(EnvError, match=rf"env 1: reset raised (.|\n)*{text}") as caught:
                pool.reset([0, 1], options=[None, {"spoil": name}])
            assert (caught.value.env_ids, caught.value.request) == ((1,), "reset")
            with pytest.raises(ResetNeeded, match="env 1"):
                pool.step([PLAIN], [1])
            pool.drain()
            assert pool.reset()[0][:, 0].tolist() == [0, 1, 2]
            assert pool.step([PLAIN] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("place", BACKENDS)
def test_final_observations_that_are_objects_in_part_fit_their_space(
    place: str, columns: bool
) -> None:
    vector = gym.spaces.Box(-1, 99, (2,), np.float32)
    env_fn = functools.partial(
        envs.ChangedEnv,
        length=1,
        step=lambda _, a, row: ({"vector": [0.5] * (2 + a), "text": "over"}, *row[1:]),
        reset=lambda _, row: ({"vector": [0, 0], "text": "begun"}, row[1]),
        space=gym.spaces.Dict({"vector": vector, "text": gym.spaces.Text(9)}),
    )
    with PLACES[place]([env_fn], autoreset_mode="same_step", columns=columns) as pool:
        pool.reset()
        final = pool.step([0])[4][0]["final_obs"]
        assert same(final, {"vector": np.full(2, 0.5, np.float32), "text": "over"})
        with pytest.raises(EnvError, match=r"vector.*has shape \(3,\)"):
            pool.step([1])


class RebindsEnv(envs.CountEnv):
    """At its third step it takes another method as its `step`."""

    def step(self, action: Any) -> Any:
        if self.t == 2:
            self.step = self.step_twice  # type: ignore[method-assign]
        return super().step(action)

    def step_twice(self, action: Any) -> Any:
        super().step(action)
        return super().step(action)


@pytest.mark.parametrize("place", QUICK)
def test_an_env_that_rebinds_its_step_and_one_that_is_recreated(place: str) -> None:
    fns = [functools.partial(RebindsEnv, tag, 99) for tag in range(3)]
    hand = HandStepped(fns)
    space = hand.envs[0].observation_space
    with PLACES[place](fns) as pool:
        check_reset(pool.reset(), hand.reset(), space)
        for restarts in (True, False):
            for _ in range(6):
                check(pool.step([0] * 3), hand.step([np.int64(0)] * 3), space)
            if restarts:
                pool.restart(1)
                hand.envs[1] = fns[1]()
                check_reset(pool.reset(1), hand.reset([1]), space)


@pytest.mark.parametrize(
    ("shape", "declared", "row"),
    [((), False, ()), ((1, 1), False, ()), ((1,), True, (1,)), ((3,), True, (3,))],
)
@pytest.mark.parametrize("place", BACKENDS)
def test_one_element_is_a_scalar_reward_unless_a_space_declares_its_shape(
    place: str, shape: tuple[int, ...], declared: bool, row: tuple[int, ...]
) -> None:
    def rewarded() -> envs.ChangedEnv:
        reward = np.full(shape, 2.5, np.float32)
        env = envs.ChangedEnv(step=lambda env, action, row: (row[0], reward, *row[2:]))  # noqa: ARG005
        if declared:
            env.reward_space = gym.spaces.Box(-np.inf, np.inf, shape)
        return env

    with PLACES[place]([rewarded] * 2, validate="off") as pool:
        pool.reset()
        for _ in range(2):
            assert same(pool.step([0, 0])[1], np.full((2, *row), 2.5))
        assert pool.step([], [])[1].shape == (0, *row)
