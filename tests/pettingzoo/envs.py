"""Environments of the tests' own: births, double deaths, masks in the info, reused buffers."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class SmallEnv(ParallelEnv):
    """Agents with the spaces ``seen`` and ``acts``, all there from the first step on."""

    metadata: ClassVar = {"name": "small_v0", "is_parallelizable": True}
    render_mode = None
    seen: ClassVar[spaces.Space]
    acts: ClassVar[spaces.Space]

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.seen

    def action_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.acts

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        del seed, options
        self.agents, self.t = list(self.possible_agents), 0
        return self.look(), self.of_all({})

    def look(self) -> dict:
        return self.of_all(np.full(self.seen.shape, self.t, self.seen.dtype))

    def of_all(self, value: Any) -> dict:
        return dict.fromkeys(self.possible_agents, value)

    def close(self) -> None:
        pass


class MeadowEnv(ParallelEnv):
    """Two kinds of agents with spaces of their own.

    A fawn is born at step 2; hunter_0 dies at step 3 or 4; at step 6 a hunter is terminated and a
    fawn truncated in one step; the last fawn is truncated at step 8 or 9. Hunters have their masks
    in their infos and see one buffer that is written over; fawns have theirs in a Dict observation.
    """

    metadata: ClassVar = {
        "name": "meadow_v0",
        "render_modes": ["rgb_array"],
        "is_parallelizable": True,
    }
    render_mode = "rgb_array"
    possible_agents: ClassVar = ["hunter_0", "fawn_0", "hunter_1", "fawn_1"]
    state_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.level = 1
        self.buffer = np.zeros(3, np.float32)

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> spaces.Space:
        if agent.startswith("hunter"):
            return spaces.Box(-np.inf, np.inf, (3,), np.float32)
        return spaces.Dict(
            {
                "observation": spaces.Box(-999, 999, (2, 2), np.int16),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(4 if agent.startswith("hunter") else 3)

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
        return {
            "observation": self.rng.integers(-9, 9, (2, 2)).astype(np.int16),
            "action_mask": self.bits(3).astype(np.int8),
        }

    def bits(self, n: int) -> np.ndarray:
        bits = self.rng.random(n) < 0.6
        bits[self.rng.integers(n)] = True
        return bits

    def tell(self, agent: str) -> dict:
        if agent.startswith("hunter"):
            return {"action_mask": self.bits(4), "t": self.t}
        return {}

    def state(self) -> np.ndarray:
        return np.array([self.t, self.total, self.end], np.float64)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents), "actions must be those of the live agents"
        self.t += 1
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), f"{agent} can't do {action}"
            self.total = self.total * 7 % 1001 + int(action)
        if self.t == 2:
            self.agents.append("fawn_1")
        terminated = dict.fromkeys(self.agents, False)
        truncated = dict.fromkeys(self.agents, False)
        for agent in self.agents:
            if agent == "hunter_0":
                terminated[agent] = self.t == self.first_death
            elif agent == "hunter_1":
                terminated[agent] = self.t == 6
            elif agent == "fawn_0":
                truncated[agent] = self.t == 6
            else:
                truncated[agent] = self.t == self.end
        obs = {a: self.see(a) for a in self.agents}
        rewards = {a: float(self.rng.normal()) for a in self.agents}
        infos = {a: self.tell(a) for a in self.agents}
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return obs, rewards, terminated, truncated, infos

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.t, np.uint8)

    def close(self) -> None:
        pass


class QuietMeadowEnv(MeadowEnv):
    """Its infos are masks, of agents with different spaces that are born and die."""

    def tell(self, agent: str) -> dict:
        return {"action_mask": self.bits(4)} if agent.startswith("hunter") else {}


class PlainMeadowEnv(MeadowEnv):
    """The same, with equal spaces for all, so that it goes into a VecEnv; masks in the infos."""

    seen = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    acts = spaces.Discrete(4)
    observation_space = SmallEnv.observation_space
    action_space = SmallEnv.action_space

    def see(self, agent: str) -> np.ndarray:  # noqa: ARG002
        return np.array([self.t, self.total, self.rng.random()], np.float32)

    def tell(self, agent: str) -> dict:  # noqa: ARG002
        return {"action_mask": self.bits(4), "t": self.t}


class TableEnv(AECEnv):
    """A game in turns, masks in the infos, one buffer for what everybody sees.

    player_3 joins after 5 moves; player_1 dies in its third move; player_0 and player_2 in one
    move some time later; player_3 is truncated at the end.
    """

    metadata: ClassVar = {"name": "table_v0", "render_modes": [], "is_parallelizable": False}
    render_mode = None
    possible_agents: ClassVar = ["player_0", "player_1", "player_2", "player_3"]

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.buffer = np.zeros(2, np.float32)
        self.seen = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.acts = spaces.Discrete(5)
        self.level = 1

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        return self.seen

    def action_space(self, agent: str) -> spaces.Space:
        del agent
        return self.acts

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        del options
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:3]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": self.bits()} for agent in self.agents}
        self.moves = dict.fromkeys(self.possible_agents, 0)
        self.agent_selection = "player_0"
        self.t = self.total = 0
        self.double = 12 + int(self.rng.integers(3))
        self._skip_agent_selection = None

    def bits(self) -> np.ndarray:
        bits = (self.rng.random(5) < 0.5).astype(np.int8)
        bits[self.rng.integers(5)] = 1
        return bits

    def observe(self, agent: str) -> np.ndarray:
        self.buffer[:] = self.total, self.possible_agents.index(agent)
        return self.buffer

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            self.buffer[:] = -1  # over what everybody has seen
            return
        assert self.acts.contains(action), f"{agent} can't do {action}"
        self._cumulative_rewards[agent] = 0
        self.t += 1
        self.moves[agent] += 1
        self.total = self.total * 3 % 101 + int(action)
        if self.t == 5:
            self.agents.append("player_3")
            for table in (self.rewards, self._cumulative_rewards):
                table["player_3"] = 0
            self.terminations["player_3"] = self.truncations["player_3"] = False
            self.infos["player_3"] = {"action_mask": self.bits()}
        for one in self.agents:
            self.rewards[one] = float(self.rng.normal())
            self.infos[one] = {"action_mask": self.bits(), "t": self.t}
        if agent == "player_1" and self.moves[agent] == 3:
            self.terminations[agent] = True
        if self.t == self.double:
            for one in ("player_0", "player_2"):
                if one in self.agents:
                    self.terminations[one] = True
        if self.t == self.double + 2:
            self.truncations["player_3"] = True
        self._accumulate_rewards()
        place = self.agents.index(agent)
        order = self.agents[place + 1 :] + self.agents[: place + 1]
        alive = [a for a in order if not (self.terminations[a] or self.truncations[a])]
        self.agent_selection = (alive or order)[0]
        self._deads_step_first()

    def close(self) -> None:
        pass


class FaultyMeadowEnv(PlainMeadowEnv):
    """Raises in step 3 of an episode if ``level`` is 2; sees too little if it is 3."""

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        if self.level == 2 and self.t == 2:
            raise ValueError("the meadow burns")
        return super().step(actions)

    def see(self, agent: str) -> np.ndarray:
        seen = super().see(agent)
        return seen[:2] if self.level == 3 else seen


class MatchEnv(SmallEnv):
    """10 steps; a point for doing what one sees; one of the two wrong actions is masked."""

    possible_agents: ClassVar = ["scout_0", "scout_1", "scout_2"]
    seen = spaces.Box(0, 1, (3,), np.float32)
    acts = spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed, options)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return self.draw()

    def draw(self) -> tuple[dict, dict]:
        self.wanted = {a: int(self.rng.integers(3)) for a in self.possible_agents}
        eye = np.eye(3, dtype=np.float32)
        masks = {a: {"action_mask": eye[(w + 1) % 3] == 0} for a, w in self.wanted.items()}
        return {a: eye[w] for a, w in self.wanted.items()}, masks

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        rewards = {a: float(actions[a] == w) for a, w in self.wanted.items()}
        over = self.t == 10
        obs, infos = self.draw()
        self.agents = [] if over else self.agents
        return obs, rewards, self.of_all(False), self.of_all(over), infos


class GhostEnv(SmallEnv):
    """Two agents; the first dies in the second step, and still sees, and is still paid."""

    possible_agents: ClassVar = ["ghost_0", "ghost_1"]
    seen = spaces.Box(0, 9, (1,), np.float32)
    acts = spaces.Discrete(2)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        assert list(actions) == self.agents
        self.t += 1
        dead = {"ghost_0": self.t >= 2, "ghost_1": self.t >= 4}
        self.agents = [agent for agent in self.agents if not dead[agent]]
        return self.look(), self.of_all(1.0), dead, self.of_all(False), self.of_all({})


class TalkEnv(SmallEnv):
    """Two agents, each hearing what the other has said: texts of any length."""

    possible_agents: ClassVar = ["talker_0", "talker_1"]
    seen = acts = spaces.Text(8, min_length=0)

    def look(self) -> dict:
        return self.of_all("")

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        heard = dict(zip(self.agents, reversed(actions.values()), strict=True))
        no = self.of_all(False)
        return heard, self.of_all(0.0), no, no, self.of_all({})
