"""The envs of these tests: births, double deaths, masks in the info, reused buffers; by name."""

import functools
import importlib
from typing import ClassVar

import numpy as np
import pettingzoo
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import conversions, wrappers

BURNS = 2
"""The level at which a step of a `MeadowEnv` or a `TableEnv` raises."""


def draw_mask(rng, n):
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
        "hunter": spaces.Box(0, 2000, (3,), np.float32),
        "fawn": spaces.Dict(  # the zeros of one that is absent are not in it
            observation=spaces.Box(1, 99, (2, 2), np.int16),
            action_mask=spaces.Box(0, 1, (3,), np.int8),
        ),
    }
    acts: ClassVar = {"hunter": spaces.Discrete(4), "fawn": spaces.Discrete(3)}

    def __init__(self, **changes):
        self.rng = np.random.default_rng(0)
        self.level = 1
        self.buffer = np.zeros(3, np.float32)
        vars(self).update(changes)

    def observation_space(self, agent):
        return self.seen[agent if agent in self.seen else agent[:-2]]

    def action_space(self, agent):
        return self.acts[agent if agent in self.acts else agent[:-2]]

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.total = 0, int((options or {}).get("total", 0))
        self.agents = ["hunter_0", "fawn_0", "hunter_1"]
        self.first_death, self.end = 3 + int(self.rng.integers(2)), 8 + int(self.rng.integers(2))
        return {a: self.see(a) for a in self.agents}, {a: self.tell(a) for a in self.agents}

    def see(self, agent):
        if agent.startswith("hunter"):
            self.buffer[:] = [self.t, self.total, self.rng.random()]
            # One buffer for both hunters would be no observation: it is theirs until they act.
            return self.buffer if agent == self.agents[0] else self.buffer.copy()
        seen = self.rng.integers(1, 99, (2, 2)).astype(np.int16)
        return {"observation": seen, "action_mask": draw_mask(self.rng, 3)}

    def tell(self, agent):
        hunts = agent.startswith("hunter")
        return {"action_mask": draw_mask(self.rng, 4), "t": self.t} if hunts else {}

    def state(self):
        return np.array([self.t, self.total, self.end], np.float64)

    def step(self, actions):
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

    def render(self):
        return np.full((4, 6, 3), self.t, np.uint8)


class PlainMeadowEnv(MeadowEnv):
    """The same, with equal spaces for all, so that it goes into a VecEnv; masks in the infos."""

    seen: ClassVar = dict.fromkeys(("hunter", "fawn"), MeadowEnv.seen["hunter"])
    acts: ClassVar = dict.fromkeys(("hunter", "fawn"), MeadowEnv.acts["hunter"])

    def see(self, agent):  # noqa: ARG002
        return np.array([self.t, self.total, self.rng.random()], np.float32)

    def tell(self, agent):  # noqa: ARG002
        return super().tell("hunter")


class GhostsEnv(PlainMeadowEnv):
    """Observes texts; lists the dead for one more step, and returns values for all the absent."""

    seen: ClassVar = dict.fromkeys(("hunter", "fawn"), spaces.Text(9))

    def see(self, agent):
        return f"{agent[:4]}{self.t}"

    def step(self, actions):
        self.agents = list(actions)
        obs, rewards, *rest = super().step(actions)
        self.agents = list(obs)
        absent = dict.fromkeys(self.possible_agents, "ghost")
        return absent | obs, dict.fromkeys(absent, 1.0) | rewards, *rest


class TableEnv(conversions.parallel_to_aec_wrapper):
    """A plain meadow in turns: one buffer for what all agents see; dead agents' moves pay too."""

    def __init__(self):
        super().__init__(PlainMeadowEnv())
        self.metadata, self.level = {"name": "table_v0"}, 1
        self.buffer = np.zeros(3, np.float32)
        self.seeds = []

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        super().reset(seed, options)

    def observe(self, agent):
        self.buffer[:] = super().observe(agent)
        return self.buffer

    def step(self, action):
        if self.level == BURNS:
            raise ValueError("the table burns")
        earlier = {**self._cumulative_rewards, self.agent_selection: 0.0}
        super().step(action)
        self.buffer[:] = -1  # over what everybody has seen
        self._cumulative_rewards = {agent: earlier.get(agent, 0.0) for agent in self.agents}
        self.rewards = {agent: float(self.env.rng.normal()) for agent in self.agents}
        self._accumulate_rewards()


class Own(wrappers.BaseWrapper):
    """A custom wrapper: changes all that a row is made of."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return {a: {**found[a], "told": 1} for a in found} if name == "infos" else found

    def step(self, action):
        super().step(action)
        self.rewards = dict.fromkeys(self.env.agents, 7)

    def observe(self, agent):
        return 2 * super().observe(agent)

    def last(self, observe=True):
        seen, reward, *rest = super().last(observe)
        return seen, reward - 1, *rest


def in_theirs(env):
    """Wrap an env as the envs of PettingZoo are."""
    return wrappers.OrderEnforcingWrapper(wrappers.AssertOutOfBoundsWrapper(env))


KAZ = "butterfly/knights_archers_zombies-v11"
OWN = {
    "meadow": MeadowEnv,
    "plain_meadow": PlainMeadowEnv,
    "ghosts": GhostsEnv,
    "table": TableEnv,
    "own_outside": lambda: Own(in_theirs(TableEnv())),
    "own_inside": lambda: in_theirs(Own(TableEnv())),
    "own_converted": lambda: conversions.aec_to_parallel(
        Own(in_theirs(conversions.parallel_to_aec(PlainMeadowEnv())))
    ),
}
KWARGS = {
    KAZ: {"line_death": True, "spawn_delay": 4, "max_cycles": 60},
    "sisl/multiwalker-v9": {"max_cycles": 30},
    "classic/rps-v2": {"max_cycles": 7},
}
ACTS = {KAZ: [1, 0, 1, 1, 4], "classic/tictactoe-v3": range(9)}
"""What to draw from. An agent that mostly walks back crosses the line soon, and dies before the
others; moves that are not legal end a game."""


def make_env(kind, name):
    """Make an env; ``kind``, of those that are not our own, is "aec" or "parallel"."""
    if name in OWN:
        return OWN[name]()
    if name.startswith("simple_"):  # the quick tests have no mpe2
        module = importlib.import_module(f"mpe2.{name}_v3")
        return {"aec": module.env, "parallel": module.parallel_env}[kind](max_cycles=8)
    return pettingzoo.make(kind, name, **KWARGS.get(name, {}))


make_aec = functools.partial(make_env, "aec")
make_parallel = functools.partial(make_env, "parallel")
