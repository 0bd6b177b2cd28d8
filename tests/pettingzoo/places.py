"""The envs of these tests by name, and where they run."""

from __future__ import annotations

from typing import Any

import pettingzoo
from mpe2 import simple_adversary_v3, simple_spread_v3

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from tests.pettingzoo.envs import MeadowEnv, QuietMeadowEnv, TableEnv

POOLS = {"dummy": DummyVectorEnv, "shmem": ShmemVectorEnv}
BACKENDS = list(POOLS)
PLACES = [("dummy", None), ("shmem", 2)]
"""A backend, and the rows that a batch waits for."""


def make_aec(name: str) -> Any:
    """Make an AEC env."""
    if name == "table":
        return TableEnv()
    if name == "meadow":
        return MeadowEnv()
    if name in MPE:
        return MPE[name].env(max_cycles=8)
    return pettingzoo.make("aec", name, **KWARGS.get(name, {}))


def make_parallel(name: str) -> Any:
    """Make a parallel env."""
    if name in ("meadow", "quiet_meadow"):
        return MeadowEnv() if name == "meadow" else QuietMeadowEnv()
    if name in MPE:
        return MPE[name].parallel_env(max_cycles=8)
    return pettingzoo.make("parallel", name, **KWARGS.get(name, {}))


MPE = {"simple_spread": simple_spread_v3, "simple_adversary": simple_adversary_v3}
KAZ = "butterfly/knights_archers_zombies-v11"
KWARGS: dict[str, dict[str, Any]] = {
    KAZ: {"line_death": True, "spawn_delay": 4, "max_cycles": 60},
    "butterfly/pistonball-v6": {"n_pistons": 5, "max_cycles": 6},
    "butterfly/cooperative_pong-v6": {"max_cycles": 8},
    "sisl/multiwalker-v9": {"max_cycles": 30},
    "classic/rps-v2": {"max_cycles": 7},
}
# An agent that mostly walks back crosses the line soon, and dies before the others.
ACTS = {KAZ: [1, 0, 1, 1, 4]}
