"""PettingZoo's own tests, on ``PettingZooEnv`` and on views of a pool."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.by_hand import pick
from tests.pettingzoo.places import KAZ, make_aec, make_parallel

with warnings.catch_warnings():
    # They import an env in the way of old, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

AECS = [
    "classic/tictactoe-v3",
    "classic/connect_four-v3",
    "classic/rps-v2",
    "simple_spread",
    "simple_adversary",
    "sisl/multiwalker-v9",
    KAZ,
    "table",
]
PARALLELS = ["simple_spread", "simple_adversary", "sisl/multiwalker-v9", KAZ, "classic/rps-v2"]


@pytest.mark.parametrize("name", AECS)
def test_a_wrapped_env_is_a_pettingzoo_env(name: str) -> None:
    env = PettingZooEnv(make_aec(name), heterogeneous=True)
    api_test(env, num_cycles=30)
    env.close()
    seed_test(lambda: PettingZooEnv(make_aec(name), heterogeneous=True), num_cycles=30)


class View(ParallelEnv):
    """Env 0 of a pool, as a parallel env."""

    def __init__(self, pool: ParallelVectorEnv) -> None:
        self.pool = pool
        self.possible_agents = pool.possible_agents
        self.metadata = pool.metadata
        self.render_mode = None

    def observation_space(self, agent: str) -> Any:
        return self.pool.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.pool.action_space(agent)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, info = self.pool.reset([0], seed=None if seed is None else [seed], options=options)
        self.agents = [a for a in self.possible_agents if info["alive"][a][0]]
        return {a: pick(obs[a], 0) for a in self.agents}, self.infos(info, self.agents)

    def infos(self, info: dict, agents: list[str]) -> dict:
        infos = {a: dict(info["agent_infos"][0].get(a, {})) for a in agents}
        for agent in agents:
            # Where the env itself gives no mask, all is legal, and sampling needs no mask.
            masks = info.get("action_mask", {})
            if agent in masks and not masks[agent][0].all():
                infos[agent]["action_mask"] = masks[agent][0].astype("int8")
        return infos

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        before = self.agents
        obs, rewards, terminated, truncated, info = self.pool.step([actions], [0])
        self.agents = [a for a in self.possible_agents if info["alive"][a][0]]
        there = [a for a in self.possible_agents if a in before or a in self.agents]
        return (
            {a: pick(obs[a], 0) for a in there},
            {a: float(rewards[a][0]) for a in there},
            {a: bool(terminated[a][0]) for a in there},
            {a: bool(truncated[a][0]) for a in there},
            self.infos(info, there),
        )

    def state(self) -> Any:
        return self.pool.state([0])[0]

    def render(self) -> None:
        return None

    def close(self) -> None:
        self.pool.close()


@pytest.mark.parametrize("name", PARALLELS)
def test_an_env_of_the_pool_is_a_pettingzoo_env(name: str) -> None:
    with contextlib.ExitStack() as stack:

        def view() -> View:
            pool = ParallelVectorEnv([lambda: make_parallel(name)] * 2, "dummy")
            return View(stack.enter_context(pool))

        parallel_api_test(view(), num_cycles=30)
        parallel_seed_test(view, num_cycles=10)
        api_test(parallel_to_aec(view()), num_cycles=15)
