"""Of what has a fixed shape nothing is pickled: only what lies beside the rows of the block is."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py.pettingzoo import ParallelVectorEnv, SB3MultiAgentVecEnv
from envpool_py.worker.channel import ASK
from envpool_py.worker.process import ProcessHost
from tests.pettingzoo import test_aec_by_hand, test_parallel_by_hand
from tests.pettingzoo.envs import MeadowEnv
from tests.pettingzoo.places import KAZ, make_parallel


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that comes by pickle beside the rows of the block."""
    found: list[Any] = []
    take = ProcessHost.take_item

    def record(host: ProcessHost, token: int, kind: str) -> Any:
        item = take(host, token, kind)
        if not token & ASK:
            found.append(item)
        return item

    monkeypatch.setattr(ProcessHost, "take_item", record)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "quiet_meadow",
        "simple_spread",
        "simple_adversary",
        "butterfly/pistonball-v6",
        "sisl/multiwalker-v9",
        KAZ,
    ],
)
def test_nothing_of_a_parallel_env(name: str, sides: list[Any]) -> None:
    test_parallel_by_hand.run(name, "shmem", None, "same_step")
    assert sides == []


def test_infos_that_are_not_empty_are(sides: list[Any]) -> None:
    with ParallelVectorEnv([MeadowEnv], num_processes=1) as pool:
        pool.reset(seed=2)
    assert [item.keys() for item in sides] == [{"info"}]
    assert sides[0]["info"]["agents"].keys() == {"hunter_0", "hunter_1"}


def test_nothing_of_rows_for_stable_baselines3(sides: list[Any]) -> None:
    make = functools.partial(make_parallel, "simple_spread")
    venv = SB3MultiAgentVecEnv([make] * 2, num_processes=1)
    venv.reset()
    dones = [venv.step(np.zeros(6, np.int64))[2].any() for _ in range(9)]
    venv.close()
    assert any(dones)
    assert sides == []


@pytest.mark.parametrize(
    "name", ["classic/tictactoe-v3", "classic/rps-v2", "table", "sisl/multiwalker-v9"]
)
def test_nothing_of_an_env_with_turns(name: str, sides: list[Any]) -> None:
    test_aec_by_hand.run(name, "shmem", None, "caller")
    assert sides == []
