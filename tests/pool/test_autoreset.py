"""Autoreset: each mode against envs that are reset by hand where the mode says so."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES, QUICK
from tests.support.reference import HandStepped, Pending, check, check_reset, same, spread

SUBJECTS: dict[str, Callable[..., Any]] = {
    "random": envs.RandomEnv,
    "dict": functools.partial(envs.SpaceEnv, name="dict", length=2),
    "text": functools.partial(envs.SpaceEnv, name="text", length=2),
    "reused buffers": functools.partial(envs.BufferEnv, length=2),
    "vector rewards": functools.partial(envs.VectorRewardEnv, length=2),
    "episodes of one step": functools.partial(envs.CountEnv, length=1),
}


def make_fns(subject: str, num: int = 3) -> list[Callable[[], Any]]:
    return [functools.partial(SUBJECTS[subject], tag) for tag in range(num)]


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_rows_are_those_of_hand_stepped_envs(place: str, mode: str | None, subject: str) -> None:
    fns = make_fns(subject)
    hand = HandStepped(fns, mode)
    space = hand.envs[0].observation_space
    rng = np.random.default_rng(5)
    held: list[tuple[Any, list[Any]]] = []
    with PLACES[place](
        fns, autoreset_mode=AutoresetMode.SAME_STEP if mode == "same_step" else mode
    ) as pool:
        check_reset(pool.reset(seed=3), hand.reset(seeds=spread(3, range(3))), space)
        for step in range(12):
            ids = [[0, 1, 2], [2, 0], [1]][step % 3]
            actions = [envs.draw(hand.envs[0].action_space, rng) for _ in ids]
            held.append((pool.step(actions, ids), hand.step(actions, ids)))
            check(*held[-1], space)
        # An explicit reset in the middle: what comes next is an ordinary step.
        check_reset(pool.reset([1]), hand.reset([1]), space)
        for _ in range(4):
            actions = [envs.draw(hand.envs[0].action_space, rng) for _ in range(3)]
            check(pool.step(actions), hand.step(actions), space)
    for batch, rows in held:  # final observations do not change later
        check(batch, rows, space)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_rows_are_the_same_asynchronously(place: str, mode: str) -> None:
    fns = make_fns("random", 4)
    hand = HandStepped(fns, mode)
    pending = Pending(hand.envs[0].observation_space)
    with PLACES[place](fns, wait_num=2, autoreset_mode=mode) as pool:
        check_reset(pool.reset(seed=8), hand.reset(seeds=spread(8, range(4))), pending.space)
        ready = [0, 1, 2, 3]
        for step in range(40):
            actions = [np.int64((step + i) % 4) for i in ready]
            pending.add(hand.step(actions, ready))
            ready = pending.take(pool.step(actions, ready))
        pending.take(pool.drain())


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", QUICK)
def test_a_reset_of_an_ended_env_ends_the_waiting_for_one(place: str, mode: str) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 3) for tag in range(3)]
    hand = HandStepped(fns, mode)
    space = hand.envs[0].observation_space
    with PLACES[place](fns, autoreset_mode=mode) as pool:
        check_reset(pool.reset(), hand.reset(), space)
        actions = [np.int64(4)] * 3
        for _ in range(3):
            check(pool.step(actions), hand.step(actions), space)
        check_reset(pool.reset([1]), hand.reset([1]), space)
        pool.send_reset([2])
        check(pool.recv(), [row.marked() for row in hand.reset([2])], space)
        for _ in range(3):
            check(pool.step(actions), hand.step(actions), space)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_same_step_row_holds_both_episodes(place: str) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step([5, 5])
        obs, reward, terminated, truncated, info = pool.step([6, 6])
        assert obs.tolist() == [[0, 1, 0], [1, 1, 0]]
        assert reward.tolist() == [2.0, 1002.0]
        assert terminated.tolist() == [True, True]
        assert truncated.tolist() == [False, False]
        for i in range(2):
            assert info[i]["env_id"] == i
            assert info[i]["episode"] == 1
            assert same(info[i]["final_obs"], np.array([i, 0, 2]))
            assert info[i]["final_info"]["action"] == 6
            assert info[i]["final_info"]["step"] == 2


@pytest.mark.parametrize("place", QUICK)
def test_a_same_step_reset_that_raises_comes_after_the_ended_row(place: str) -> None:
    fns: list[Callable[[], Any]] = [
        functools.partial(envs.CountEnv, 0, 2),
        functools.partial(envs.FailsToResetEnv, 1, 2),
        functools.partial(envs.CountEnv, 2, 2),
    ]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step([0, 0, 0])
        obs, reward, terminated, truncated, info = pool.step([4, 5, 6])
        assert obs.tolist() == [[0, 1, 0], [1, 0, 2], [2, 1, 0]]  # env 1: its last observation
        assert reward.tolist() == [2.0, 1002.0, 2002.0]
        assert terminated.all()
        assert not truncated.any()
        assert info[1]["env_id"] == 1
        assert same(info[1]["final_obs"], np.array([1, 0, 2]))
        assert info[1]["final_info"]["action"] == 5
        assert len(pool.step([0, 0], [0, 2])[1]) == 2  # calls that do not name it go on
        with pytest.raises(EnvError, match="env 1: .*ValueError: no second episode") as caught:
            pool.step([0], [1])
        assert caught.value.env_ids == (1,)
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        pool.call("heal", id=[1])
        obs, _ = pool.reset([1])
        assert obs.tolist() == [[1, 1, 0]]
        assert pool.step([3, 3, 3])[0][:, 2].tolist()[1] == 1


@pytest.mark.parametrize("place", BACKENDS)
def test_an_explicit_reset_replaces_the_one_that_raised(place: str) -> None:
    fns = [functools.partial(envs.FailsToResetEnv, tag, 1) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        assert pool.step([0, 0])[2].all()
        pool.call("heal", id=[0])
        obs, _ = pool.reset([0])  # names env 0, and works: nothing to complain of any more
        assert obs.tolist() == [[0, 1, 0]]
        assert pool.step([0], [0])[0].shape == (1, 3)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_next_step_reset_that_raises_is_the_error_of_that_step(place: str) -> None:
    fns = [functools.partial(envs.FailsToResetEnv, tag, 1) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="next_step") as pool:
        pool.reset()
        assert pool.step([0, 0])[2].all()
        with pytest.raises(EnvError, match="env 1: .*no second episode"):
            pool.step([0], [1])
        pool.call("heal")
        assert pool.step([0], [0])[4][0]["is_reset"]
        obs, _ = pool.reset([1])
        assert obs.tolist() == [[1, 1, 0]]


class PlainEnv(gym.Env[Any, Any]):
    """Its rows are all plain, but for what the ``third`` reset brings."""

    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, third: str) -> None:
        self._third, self._resets, self._steps = third, 0, 0

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self._resets, self._steps = self._resets + 1, 0
        obs = np.array([self._resets, 0], dtype=np.float32)
        return obs, {} if self._resets != 3 else THIRD[self._third]()

    def step(self, action: Any) -> Any:
        del action
        self._steps += 1
        obs = np.array([self._resets, self._steps], dtype=np.float32)
        return obs, 1.0, self._steps == 3, False, {}


def raises() -> None:
    raise ValueError("no third episode")


THIRD: dict[str, Callable[[], Any]] = {
    "is well": dict,
    "raises": raises,
    "exits": sys.exit,
    "brings no info": lambda: None,
    "cannot be pickled": lambda: {"generator": (i for i in range(3))},
}


@pytest.mark.parametrize(
    ("place", "third"),
    [
        *itertools.product(QUICK, list(THIRD)[1:-1]),
        *((place, "cannot be pickled") for place in PROCESSES),
    ],
)
def test_the_error_of_a_reset_behind_plain_rows_comes_with_the_next_step(
    place: str, third: str
) -> None:
    fns = [functools.partial(PlainEnv, third if tag == 1 else "is well") for tag in range(3)]
    actions = np.zeros(3, dtype=np.int64)
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        for _ in range(5):
            pool.step(actions)
        obs, _, terminated, _, infos = pool.step(actions)
        assert terminated.all()
        assert obs.tolist() == [[3, 0], [2, 3], [3, 0]]
        assert [info["final_obs"].tolist() for info in infos] == [[2, 3]] * 3
        with pytest.raises(EnvError, match="env 1: reset raised"):
            pool.step(actions)
        assert pool.recv()[0].tolist() == [[3, 1], [3, 1]]
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        assert pool.reset([1])[0].tolist() == [[4, 0]]
        assert pool.step(actions)[0].tolist() == [[3, 2], [4, 1], [3, 2]]


class InterruptedEnv(envs.CountEnv):
    """Its second reset is interrupted, and its third raises."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, 2)
        self._resets = 0

    def reset(self, **kwargs: Any) -> Any:
        self._resets += 1
        if self._resets == 2:
            raise KeyboardInterrupt
        if self._resets == 3:
            raise ValueError("no third reset")
        return super().reset(**kwargs)


@pytest.mark.parametrize("as_list", [False, True])
def test_an_ended_row_that_an_interrupt_swallowed_does_not_answer_a_reset(as_list: bool) -> None:
    fns = [functools.partial(InterruptedEnv, tag) for tag in range(2)]
    actions = np.array([5, 5], dtype=np.int64)
    given: Any = actions.tolist() if as_list else actions
    with DummyVectorEnv(fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step(given)
        with pytest.raises(KeyboardInterrupt):
            pool.step(given)
        with pytest.raises(AttributeError, match="nothing_of_this_name"):
            pool.get_env_attr("nothing_of_this_name", id=[0])
        with pytest.raises(EnvError, match="env 0: reset raised ValueError: no third reset"):
            pool.reset([0])
        assert pool.reset([0])[0].tolist() == [[0, 1, 0]]
