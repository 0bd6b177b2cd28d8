"""Infos that are numbers travel in the block: equal in value and type, each in its own row.

`tests/unit/test_info_codec.py` has every kind of number.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py import ShmemVectorEnv, WorkerDiedError
from envpool_py.worker.process import ProcessHost
from tests.support import envs
from tests.support.places import PLACES, PROCESSES
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
@pytest.mark.parametrize("place", PROCESSES[-1:])
def test_forms_that_change_from_row_to_row(place: str, mode: str | None) -> None:
    fns = [functools.partial(InfoEnv, tag) for tag in range(4)]
    Session(PLACES[place], fns, mode).run(script(1, rounds=8))


def numbers(count: int) -> dict[str, Any]:
    return {f"number {n}": count * 10.0 + n for n in range(10)}


SCALARS = functools.partial(
    envs.ChangedEnv,
    step=lambda env, action, row: (*row[:4], numbers(env.steps)),  # noqa: ARG005
    reset=lambda env, row: (row[0], {"first": env.steps}),
)
"""Makes an env with ten numbers in each info."""


def check_infos(infos: Any, count: int) -> None:
    assert list(infos) == [{**numbers(count), "env_id": i} for i in range(len(infos))]


def test_nothing_is_pickled_once_the_form_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    read = ProcessHost.read

    def counting(self: Any) -> bool:
        found = read(self)
        taken.extend(self.items)
        return found

    with ShmemVectorEnv([SCALARS] * 4, num_processes=2) as pool:
        monkeypatch.setattr(ProcessHost, "read", counting)
        assert [info["first"] for info in pool.reset()[1]] == [0] * 4
        for count in range(1, 20):
            check_infos(pool.step(np.zeros(4, dtype=int))[4], count)
    assert taken == []


def test_forms_outlive_rows_that_are_cancelled_and_processes_that_end() -> None:
    with ShmemVectorEnv([SCALARS] * 2, num_processes=1, wait_num=1) as pool:
        pool.reset()
        for count in (2, 4, 6):
            pool.send([0, 0])
            pool.cancel()  # the rows that brought a form are dropped
            pool.reset()
            pool.send([0, 0])
            infos = pool.step(None, id=[0, 1])[4]
            check_infos(infos, count)
            pool.reset()
        pool.workers[0].process.kill()
        with pytest.raises(WorkerDiedError):
            pool.step([0, 0])
        pool.restart()
        check_infos(infos, 6)  # what was returned does not change
        # The forms come in another order now: that of a step before that of a second reset.
        pool.reset()
        pool.send([0, 0])
        check_infos(pool.step(None, id=[0, 1])[4], 1)
