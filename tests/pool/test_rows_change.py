"""Rows that change their form in the middle of a run: the quick way to keep one, and the long way.

An env gives plain rows first, so that they go the quick way, then one of another form, then plain
ones again. What comes must be what the raw env gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from envpool_py import BaseVectorEnv, EnvError
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, check, check_reset

DIMS = (3,)
SPACE = spaces.Box(-1e6, 1e6, DIMS, np.float32)
ODD_AT = 4

OBS, REWARD, TERMINATED, TRUNCATED, INFO = range(5)
WHOLE = None


class Form(NamedTuple):
    """What is made of which part of the plain row, or of all of it."""

    part: int | None
    make: Callable[[Any], Any]

    def __call__(self, row: tuple) -> Any:
        if self.part is WHOLE:
            return self.make(row)
        changed = list(row)
        changed[self.part] = self.make(row[self.part])
        return tuple(changed)


def always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


class Info(dict):
    """An info that is more than a dict."""


FORMS = {
    "np.float64": Form(REWARD, np.float64),
    "ends by np.bool_": Form(TERMINATED, always(np.True_)),
    "truncated": Form(TRUNCATED, always(True)),
    "list": Form(WHOLE, list),
    "big endian": Form(OBS, lambda obs: obs.astype(">f4")),
    "strided": Form(OBS, lambda obs: np.repeat(obs, 2)[::2]),
    "read-only": Form(OBS, read_only),
    "numbers in the info": Form(INFO, always({"a": 1, "b": np.float32(2)})),
    "text in the info": Form(INFO, always({"a": "b"})),
    "an array in the info": Form(INFO, always({"a": np.arange(3)})),
    "a subclass of dict": Form(INFO, always(Info(a=1))),
}

# ... and rows of which the pool says what is wrong with them
WRONG = {
    "longer": (Form(OBS, lambda obs: np.append(obs, obs)), r"obs has shape \(6,\)"),
    "lossy": (Form(OBS, lambda obs: obs + 1j), "can't hold without loss"),
    "broadcastable": (Form(OBS, lambda obs: obs[:1]), r"obs has shape \(1,\)"),
    "scalar": (Form(OBS, always(np.float32(3))), r"obs has shape \(\)"),
    "no obs": (Form(OBS, always(None)), "obs is None"),
    "four": (Form(WHOLE, lambda row: row[:4]), "got 4 values"),
    "none": (Form(WHOLE, always(None)), "got NoneType"),
    "generator": (Form(WHOLE, iter), "got tuple_iterator"),
    "reward": (Form(REWARD, str), "reward must be a number"),
    "flags": (Form(TRUNCATED, always([True, False])), "truncated must be a bool, got list"),
    "word": (Form(TERMINATED, always("yes")), "terminated must be a bool, got str 'yes'"),
    "info": (Form(INFO, always(None)), "info dict, got NoneType"),
    "list of infos": (Form(INFO, always([])), "info dict, got a list"),
}


class ChangingEnv(gym.Env):
    """Counts; the row of step ODD_AT of each episode is what `form` makes of the plain one."""

    observation_space = SPACE
    action_space = spaces.Discrete(2)

    def __init__(self, tag: int, form: Form | None, length: int = 99) -> None:
        self.tag, self.form, self.length = tag, form, length
        self.resets = self.steps = 0

    def _obs(self) -> np.ndarray:
        return np.array([self.tag, self.resets, self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        self.resets += 1
        self.steps = 0
        return self._obs(), {}

    def step(self, _: Any) -> Any:
        self.steps += 1
        row = self._obs(), 0.5 * self.steps, self.steps >= self.length, False, {}
        odd = self.form is not None and self.steps == ODD_AT
        return self.form(row) if odd else row


def fns(form: Form) -> list[Callable[[], Any]]:
    makers = [None, form, None]
    return [functools.partial(ChangingEnv, tag, make) for tag, make in enumerate(makers)]


def warm(pool: BaseVectorEnv, hand: HandStepped) -> None:
    """Reset, and step up to the row before the odd one."""
    check_reset(pool.reset(), hand.reset(), SPACE)
    for _ in range(ODD_AT - 1):
        check(pool.step([0, 1, 0]), hand.step([0, 1, 0]), SPACE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_row_of_another_form_among_plain_ones(place: str, form: str) -> None:
    with PLACES[place](fns(FORMS[form]), autoreset_mode="same_step") as pool:
        hand = HandStepped(fns(FORMS[form]), "same_step")
        warm(pool, hand)
        for _ in range(3 * ODD_AT):
            check(pool.step([1, 0, 1]), hand.step([1, 0, 1]), SPACE)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_row_that_is_wrong_among_plain_ones(place: str, name: str) -> None:
    form, text = WRONG[name]
    with PLACES[place](fns(form)) as pool:
        hand = HandStepped(fns(form))
        warm(pool, hand)
        with pytest.raises(EnvError, match=rf"env 1: step raised (.|\n)*{text}") as caught:
            pool.step([0, 0, 0])
        assert caught.value.env_ids == (1,)
        assert caught.value.request == "step"
        kept = pool.drain()
        rows = {row.env_id: row for row in hand.step([0, 0], [0, 2])}
        check(kept, [rows.pop(info["env_id"]) for info in kept[4]], SPACE)
        assert not rows
        assert pool.get_env_attr("steps", [1]) == [ODD_AT]  # it was asked once
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0, 0, 0])
        check_reset(pool.reset(1), hand.reset([1]), SPACE)
        for _ in range(ODD_AT - 1):
            check(pool.step([1, 1, 1]), hand.step([1, 1, 1]), SPACE)


class RebindsEnv(ChangingEnv):
    """At its third step it takes another method as its `step`."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, None)

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            self.step = self.step_twice  # type: ignore[method-assign]
        return super().step(action)

    def step_twice(self, action: Any) -> Any:
        self.steps += 1
        return super().step(action)


@pytest.mark.parametrize("place", QUICK)
def test_an_env_that_rebinds_its_step(place: str) -> None:
    makers = [functools.partial(RebindsEnv, tag) for tag in range(3)]
    with PLACES[place](makers) as pool:
        hand = HandStepped(makers)
        check_reset(pool.reset(), hand.reset(), SPACE)
        for _ in range(6):
            check(pool.step([0, 0, 0]), hand.step([0, 0, 0]), SPACE)


@pytest.mark.parametrize("place", QUICK)
def test_an_env_made_anew_is_stepped_in_place_of_the_old(place: str) -> None:
    makers = fns(FORMS["np.float64"])
    with PLACES[place](makers) as pool:
        hand = HandStepped(makers)
        warm(pool, hand)
        pool.restart(1)
        hand.envs[1] = makers[1]()
        check_reset(pool.reset(1), hand.reset([1]), SPACE)
        for _ in range(2 * ODD_AT):
            check(pool.step([0, 0, 0]), hand.step([0, 0, 0]), SPACE)
