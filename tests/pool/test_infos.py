"""Infos that are numbers travel in the block: equal in value and type, each in its own row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import envpool_py
from envpool_py.worker.process import ProcessHost
from tests.support import envs
from tests.support.places import BACKENDS, PLACES
from tests.support.session import Session, script


class InfoEnv(envs.CountEnv):
    """Its infos are of several forms, in a random order."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, length=2)
        self.rng, self.count = np.random.default_rng(tag), 0

    def info(self) -> dict[str, Any]:
        self.count += 1
        x = float(self.rng.normal())
        kinds: list[dict[str, Any]] = [
            {"x": x, "n": self.count, "alive": x > 0},
            {"x": np.float64(x), "speed": np.float32(x), "at": np.array([x, -x])},
            {},
            {"x": self.count, "n": x},
            {"x": x, "name": "a name"},
            {"x": x, "huge": 10**30, "n": self.count},
        ]
        return kinds[int(self.rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, 5]))]

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], self.info()

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], self.info()


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
def test_forms_that_change_from_row_to_row(mode: str | None) -> None:
    fns = [functools.partial(InfoEnv, tag) for tag in range(4)]
    Session(PLACES["shmem-fork-packed"], fns, mode).run(script(1, rounds=8))


def numbers(count: int) -> dict[str, Any]:
    return {f"number {n}": count * 10.0 + n for n in range(10)}


SCALARS = functools.partial(
    envs.ChangedEnv,
    step=lambda env, action, row: (*row[:4], numbers(env.steps)),  # noqa: ARG005
    reset=lambda env, row: (row[0], {"first": env.steps}),
)
"""Makes an env with ten numbers in each info."""


def test_nothing_is_pickled_once_the_form_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    read = ProcessHost.read

    def counting(self: Any) -> bool:
        found = read(self)
        taken.extend(self.items)
        return found

    with envpool_py.ShmemVectorEnv([SCALARS] * 4, num_processes=2) as pool:
        monkeypatch.setattr(ProcessHost, "read", counting)
        assert [info["first"] for info in pool.reset()[1]] == [0] * 4
        for count in range(1, 20):
            infos = pool.step(np.zeros(4, dtype=int))[4]
            assert [dict(info) for info in infos] == [
                {**numbers(count), "env_id": i} for i in range(4)
            ]
    assert taken == []


def test_a_new_process_writes_its_forms_again() -> None:
    with envpool_py.ShmemVectorEnv([SCALARS] * 2, num_processes=1) as pool:
        pool.reset()
        first = pool.step([0, 0])[4]
        pool.step([0, 0])
        assert first[1] == {**numbers(1), "env_id": 1}  # it does not change later
        pool.workers[0].process.kill()  # type: ignore[attr-defined]
        with pytest.raises(envpool_py.WorkerDiedError):
            pool.step([0, 0])
        pool.restart()
        # The forms come in another order now: a step's before that of a second reset.
        pool.reset()
        infos = pool.step([0, 0])[4]
        assert infos[1] == {**numbers(1), "env_id": 1}


def test_cancelled_rows_take_no_form_with_them() -> None:
    """The row that brought a form is dropped; the next of that form is read all the same."""
    with envpool_py.ShmemVectorEnv([SCALARS] * 2, num_processes=1, wait_num=1) as pool:
        pool.reset()
        for round_ in range(1, 4):
            pool.send([0, 0])
            pool.cancel()
            pool.reset()
            pool.send([0, 0])
            infos = pool.drain()[4]
            assert {info["env_id"]: info["number 3"] for info in infos} == dict.fromkeys(
                range(2), round_ * 20.0 + 3
            )
            pool.reset()


@pytest.mark.parametrize("place", BACKENDS)
def test_final_info_is_that_of_the_ended_step(place: str) -> None:
    """Also where the reset's info has a key of this name."""
    make = functools.partial(
        envs.ChangedEnv,
        length=1,
        step=lambda env, action, row: (*row[:4], {}),  # noqa: ARG005
        reset=lambda env, row: (row[0], {"final_info": 2.5, "own": 1.0}),  # noqa: ARG005
    )
    with PLACES[place]([make] * 3, autoreset_mode="same_step") as pool:
        assert pool.reset()[1][0]["final_info"] == 2.5
        for _ in range(3):  # the first rows take another way than those that follow
            for info in pool.step(np.zeros(3, dtype=int))[4]:
                assert info["final_info"] == {}
                assert info["own"] == 1.0


def info_is_observation() -> envs.ChangedEnv:
    def both(env: Any, *_: Any) -> dict[str, str]:
        env.both = {"text": str(env.t)}
        return env.both

    env = envs.ChangedEnv(
        step=lambda env, action, row: (both(env), *row[1:4], env.both),  # noqa: ARG005
        reset=lambda env, row: (both(env), env.both),  # noqa: ARG005
    )
    del env.observation_space
    return env


@pytest.mark.parametrize("place", BACKENDS)
def test_an_observation_that_is_the_info_as_well_is_left_as_it_is(place: str) -> None:
    with PLACES[place]([info_is_observation] * 3) as pool:
        obs, infos = pool.reset()
        for t in range(1, 3):
            assert list(obs) == [{"text": str(t - 1)}] * 3
            assert list(infos) == [{"text": str(t - 1), "env_id": i} for i in range(3)]
            obs, *_, infos = pool.step([0, 0, 0])


@pytest.mark.parametrize("place", BACKENDS)
def test_the_envs_own_info_is_left_alone(place: str) -> None:
    for mode in (None, "same_step", "next_step"):
        with PLACES[place]([functools.partial(envs.BufferEnv, 0, 2)], autoreset_mode=mode) as pool:
            pool.reset()
            for _ in range(5):
                pool.step([0])
            assert pool.call("told_keys") == [["array", "list", "step"]]
