"""The envs of these tests: births, double deaths, masks in the info, reused buffers; by name."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import pettingzoo
from gymnasium import spaces
from mpe2 import simple_adversary_v3, simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv

BURNS = 2
"""The level at which a step of a `MeadowEnv` or a `TableEnv` raises."""


def draw_mask(rng: np.random.Generator, n: int) -> np.ndarray:
    mask = rng.random(n) < 0.6
    mask[rng.integers(n)] = True
    return mask.astype(np.int8)


class MeadowEnv(ParallelEnv):
    """Two kinds of agents with spaces of their own.

    A fawn is born at step 2; hunter_0 dies at step 3 or 4; at step 6 a hunter is terminated and a
    fawn truncated in one step; the last fawn is truncated at step 8 or 9. Hunters have their masks
    in their infos and see one buffer that is written over; fawns have theirs in a Dict observation.
    """

    metadata: ClassVar = {"name": "meadow_v0", "render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    possible_agents: ClassVar = ["hunter_0", "fawn_0", "hunter_1", "fawn_1"]
    state_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    seen: ClassVar = {
        "hunter": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "fawn": spaces.Dict(
            observation=spaces.Box(-999, 999, (2, 2), np.int16),
            action_mask=spaces.Box(0, 1, (3,), np.int8),
        ),
    }
    acts: ClassVar = {"hunter": spaces.Discrete(4), "fawn": spaces.Discrete(3)}

    def __init__(self, **changes: Any) -> None:
        self.rng = np.random.default_rng(0)
        self.level = 1
        self.buffer = np.zeros(3, np.float32)
        vars(self).update(changes)

    def observation_space(self, agent: str) -> spaces.Space:
        return self.seen[agent if agent in self.seen else agent[:-2]]

    def action_space(self, agent: str) -> spaces.Space:
        return self.acts[agent if agent in self.acts else agent[:-2]]

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.total = 0, int((options or {}).get("total", 0))
        self.agents = ["hunter_0", "fawn_0", "hunter_1"]
        self.first_death, self.end = 3 + int(self.rng.integers(2)), 8 + int(self.rng.integers(2))
        return {a: self.see(a) for a in self.agents}, {a: self.tell(a) for a in self.agents}

    def see(self, agent: str) -> Any:
        if agent.startswith("hunter"):
            self.buffer[:] = [self.t, self.total, self.rng.random()]
            # One buffer for both hunters would be no observation: it is theirs until they act.
            return self.buffer if agent == self.agents[0] else self.buffer.copy()
        seen = self.rng.integers(-9, 9, (2, 2)).astype(np.int16)
        return {"observation": seen, "action_mask": draw_mask(self.rng, 3)}

    def tell(self, agent: str) -> dict:
        if agent.startswith("hunter"):
            return {"action_mask": draw_mask(self.rng, 4), "t": self.t}
        return {}

    def state(self) -> np.ndarray:
        return np.array([self.t, self.total, self.end], np.float64)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents), "actions must be those of the live agents"
        if self.level == BURNS:
            raise ValueError("the meadow burns")
        self.t += 1
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), f"{agent} can't do {action}"
            self.total = self.total * 7 % 1001 + int(action)
        if self.t == 2:
            self.agents.append("fawn_1")
        death = {"hunter_0": self.first_death, "hunter_1": 6, "fawn_0": 6, "fawn_1": self.end}
        over = {agent: self.t == death[agent] for agent in self.agents}
        terminated = {agent: end and agent.startswith("hunter") for agent, end in over.items()}
        truncated = {agent: end and agent.startswith("fawn") for agent, end in over.items()}
        obs = {a: self.see(a) for a in self.agents}
        rewards = {a: float(self.rng.normal()) for a in self.agents}
        infos = {a: self.tell(a) for a in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return obs, rewards, terminated, truncated, infos

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.t, np.uint8)


class QuietMeadowEnv(MeadowEnv):
    """Its infos are masks, of agents with different spaces that are born and die."""

    def tell(self, agent: str) -> dict:
        return {"action_mask": draw_mask(self.rng, 4)} if agent.startswith("hunter") else {}


class PlainMeadowEnv(MeadowEnv):
    """The same, with equal spaces for all, so that it goes into a VecEnv; masks in the infos."""

    seen: ClassVar = dict.fromkeys(("hunter", "fawn"), MeadowEnv.seen["hunter"])
    acts: ClassVar = dict.fromkeys(("hunter", "fawn"), MeadowEnv.acts["hunter"])

    def see(self, agent: str) -> np.ndarray:  # noqa: ARG002
        return np.array([self.t, self.total, self.rng.random()], np.float32)

    def tell(self, agent: str) -> dict:  # noqa: ARG002
        return {"action_mask": draw_mask(self.rng, 4), "t": self.t}


class TableEnv(AECEnv):
    """A game in turns, masks in the infos, one buffer for what everybody sees.

    player_3 joins after 5 moves; player_1 dies in move 9, its third; player_0 and player_2 in one
    move some time later; player_3 is truncated at the end. The move of a dead player pays those
    who are left.
    """

    metadata: ClassVar = {"name": "table_v0", "render_modes": []}
    render_mode = None
    possible_agents: ClassVar = ["player_0", "player_1", "player_2", "player_3"]

    def __init__(self) -> None:
        self.seen = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.acts = spaces.Discrete(5)
        self.rng = np.random.default_rng(0)
        self.buffer = np.zeros(2, np.float32)
        self.level = 1
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.seen

    def action_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.acts

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        del options
        self.seeds.append(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:3]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": draw_mask(self.rng, 5)} for agent in self.agents}
        self.agent_selection = "player_0"
        self.t = self.total = 0
        self.double = 12 + int(self.rng.integers(3))
        self._skip_agent_selection = None

    def observe(self, agent: str) -> Any:
        self.buffer[:] = self.total, self.possible_agents.index(agent)
        return self.buffer

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.level == BURNS:
            raise ValueError("the table burns")
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            self.buffer[:] = -1  # over what everybody has seen
            self.rewards = dict.fromkeys(self.agents, 0.5)
            self._accumulate_rewards()
            return
        assert self.acts.contains(action), f"{agent} can't do {action}"
        self._cumulative_rewards[agent] = 0
        self.t += 1
        self.total = self.total * 3 % 101 + int(action)
        if self.t == 5:
            self.agents.append("player_3")
            self._cumulative_rewards["player_3"] = 0
            self.terminations["player_3"] = self.truncations["player_3"] = False
        for one in self.agents:
            self.rewards[one] = float(self.rng.normal())
            self.infos[one] = {"action_mask": draw_mask(self.rng, 5), "t": self.t}
        for one, death in (("player_1", 9), ("player_0", self.double), ("player_2", self.double)):
            if one in self.agents:
                self.terminations[one] = self.t == death
        if self.t == self.double + 2:
            self.truncations["player_3"] = True
        self._accumulate_rewards()
        place = self.agents.index(agent)
        order = self.agents[place + 1 :] + self.agents[: place + 1]
        alive = [a for a in order if not (self.terminations[a] or self.truncations[a])]
        self.agent_selection = (alive or order)[0]
        self._deads_step_first()


class EchoEnv(ParallelEnv):
    """Each agent hears the other: texts of any length.

    The first dies in the second step, and is still listed, hears, and is paid.
    """

    metadata: ClassVar = {"name": "echo_v0"}
    possible_agents: ClassVar = ["echo_0", "echo_1"]
    space = spaces.Text(8, min_length=0)

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.space

    action_space = observation_space

    def of_all(self, value: Any) -> dict:
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        del seed, options
        self.agents, self.t = list(self.possible_agents), 0
        return self.of_all(""), self.of_all({})

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert ("echo_0" in actions) == (self.t < 2)
        self.t += 1
        heard = {"echo_0": actions["echo_1"], "echo_1": actions.get("echo_0", "")}
        dead = {"echo_0": self.t >= 2, "echo_1": False}
        return heard, self.of_all(1.0), dead, self.of_all(False), self.of_all({})


# --------------------------------------------------------------------------------- by their names

KAZ = "butterfly/knights_archers_zombies-v11"
OWN = {
    "meadow": MeadowEnv,
    "quiet_meadow": QuietMeadowEnv,
    "plain_meadow": PlainMeadowEnv,
    "table": TableEnv,
}
MPE = {"simple_spread": simple_spread_v3, "simple_adversary": simple_adversary_v3}
KWARGS: dict[str, dict[str, Any]] = {
    KAZ: {"line_death": True, "spawn_delay": 4, "max_cycles": 60},
    "butterfly/pistonball-v6": {"n_pistons": 5, "max_cycles": 6},
    "sisl/multiwalker-v9": {"max_cycles": 30},
    "classic/rps-v2": {"max_cycles": 7},
}
ACTS = {KAZ: [1, 0, 1, 1, 4], "classic/tictactoe-v3": range(9)}
"""What to draw from. An agent that mostly walks back crosses the line soon, and dies before the
others; moves that are not legal end a game."""


def make_env(kind: str, name: str) -> Any:
    """Make an env; ``kind``, of those that are not our own, is "aec" or "parallel"."""
    if name in OWN:
        return OWN[name]()
    if name in MPE:
        make = {"aec": MPE[name].env, "parallel": MPE[name].parallel_env}[kind]
        return make(max_cycles=8)
    return pettingzoo.make(kind, name, **KWARGS.get(name, {}))


make_aec = functools.partial(make_env, "aec")
make_parallel = functools.partial(make_env, "parallel")
