"""Of what has a fixed shape nothing is pickled: the sides of rows are what is."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py import ShmemVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv, SB3MultiAgentVecEnv
from envpool_py.worker.channel import ASK
from envpool_py.worker.process import ProcessHost
from tests.pettingzoo.envs import MeadowEnv
from tests.pettingzoo.places import ACTS, KAZ, make_aec, make_parallel


class QuietMeadowEnv(MeadowEnv):
    """Its infos are masks, of agents with different spaces that are born and die."""

    def tell(self, agent: str) -> dict:
        return {"action_mask": self.bits(4)} if agent.startswith("hunter") else {}


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that comes by pickle beside the rows of the block."""
    found: list[Any] = []
    take = ProcessHost.take_item

    def record(host: ProcessHost, token: int, kind: str) -> Any:
        item = take(host, token, kind)
        if not token & ASK:
            assert item.keys() <= {"objects", "info", "reward"}
            found.append(tuple(item.get(key) for key in ("objects", "info", "reward")))
        return item

    monkeypatch.setattr(ProcessHost, "take_item", record)
    return found


def actions_of(pool: ParallelVectorEnv, name: str, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Legal actions of whoever is alive."""
    masks = info.get("action_mask", {})
    rows = []
    for k in range(len(info["env_id"])):
        acts = {}
        for agent in pool.possible_agents:
            if not info["alive"][agent][k]:
                continue
            if name in ACTS:
                acts[agent] = ACTS[name][k % len(ACTS[name])]
            elif agent in masks:
                acts[agent] = int(np.flatnonzero(masks[agent][k])[0])
            else:
                acts[agent] = pool.action_space(agent).sample()
        rows.append(acts)
    return rows


@pytest.mark.parametrize(
    "name",
    [
        "quiet meadow",
        "simple_spread",
        "simple_adversary",
        "butterfly/pistonball-v6",
        "sisl/multiwalker-v9",
        KAZ,
    ],
)
def test_nothing_of_a_parallel_env(name: str, sides: list[Any]) -> None:
    make = QuietMeadowEnv if name == "quiet meadow" else functools.partial(make_parallel, name)
    with ParallelVectorEnv([make] * 2, num_processes=1, autoreset_mode="same_step") as pool:
        _, info = pool.reset(seed=2)
        ended = 0
        for _ in range(70):
            info = pool.step(actions_of(pool, name, info))[4]
            ended += int(info["env_done"].sum())
            if ended >= 2:
                break
        assert ended, "no episode came to its end"
    assert sides == []


def test_infos_that_are_not_empty_are(sides: list[Any]) -> None:
    with ParallelVectorEnv([MeadowEnv], num_processes=1) as pool:
        pool.reset(seed=2)
    assert [info["agents"].keys() for _, info, _ in sides] == [{"hunter_0", "hunter_1"}]
    assert all(objects is None for objects, _, _ in sides)


def test_nothing_of_rows_for_stable_baselines3(sides: list[Any]) -> None:
    make = functools.partial(make_parallel, "simple_spread")
    venv = SB3MultiAgentVecEnv([make] * 2, num_processes=1)
    venv.reset()
    dones = [venv.step(np.zeros(6, np.int64))[2].any() for _ in range(9)]
    venv.close()
    assert any(dones)
    assert sides == []


def play(env_fn: Any) -> int:
    """Play an episode; return the number of its rows."""
    with ShmemVectorEnv([env_fn], autoreset_mode="same_step") as pool:
        obs, _ = pool.reset(seed=2)
        rng = np.random.default_rng(0)
        dead, rows = False, 1
        while True:
            action = None
            if not dead:
                action = pool.action_space[0](obs[0]["agent_id"]).sample()
                mask = obs[0].get("mask")
                if mask is not None:
                    action = int(rng.choice(np.flatnonzero(mask)))
            obs, _, terminated, truncated, info = pool.step([action])
            rows += 1
            if "final_obs" in info[0]:
                return rows
            dead = bool(terminated[0] or truncated[0])


@pytest.mark.parametrize(
    "name", ["classic/tictactoe-v3", "classic/rps-v2", "table", "sisl/multiwalker-v9"]
)
def test_nothing_of_an_env_with_turns_but_its_last_row(name: str, sides: list[Any]) -> None:
    assert play(lambda: PettingZooEnv(make_aec(name))) > 3
    # The infos of the end of an episode lie in that of the row.
    assert [objects for objects, _, _ in sides] == [None]
    assert sides[0][1]["final_info"]["env_done"]
