"""``PackedEnv``: a parallel env as an env of a pool; all agents of an env are one row.

The row's observation is a dict: ``"agents"`` holds the observation of each agent, ``"flags"`` the
flags of all, ``"masks"`` the legal actions of those agents whose masks are known, and ``"state"``,
with ``with_state``, the state of the env. So all these values are in shared memory. The infos that
are not empty are in the row's info.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import space_of
from envpool_py.errors import warn
from envpool_py.pettingzoo.agent_spaces import ACTION_MASK, AgentSpaces, blank, bools, masks_of
from envpool_py.pettingzoo.convert import (
    as_parallel,
    converted_step,
    get_inside,
    set_inside,
    unknown_agent,
)

#: The keys of a row's observation.
AGENTS, FLAGS, MASKS, STATE = "agents", "flags", "masks", "state"
#: The rows of the flags, each of one bool per agent in the order of ``possible_agents``.
ALIVE, VALID, TERMINATED, TRUNCATED = range(4)
#: The flags that a step sets, and an automatic reset after it does not.
OF_STEP = [VALID, TERMINATED, TRUNCATED]
#: The key of a row's info that holds the agents' infos.
INFOS = "agents"


class RowSpace(gym.spaces.Dict):
    """The space of a row, shown as ``own``, the spaces of the agents, which its user knows."""

    def __init__(self, own: AgentSpaces, state: gym.Space[Any] | None) -> None:
        parts: dict[str, gym.Space[Any]] = {
            AGENTS: space_of({agent: observation for agent, (observation, _) in own.items()}),
            FLAGS: bools((4, len(own))),
            MASKS: space_of({agent: bools(mask.shape) for agent, mask in masks_of(own).items()}),
        }
        if state is not None:
            parts[STATE] = state
        super().__init__(parts)
        self.own = own

    def contains(self, x: Any) -> bool:
        """Whether the observations of the agents that are there are in their spaces."""
        there = (x[FLAGS][ALIVE] | x[FLAGS][VALID]).tolist()
        pairs = zip(self.own.items(), there, strict=True)
        return all(x[AGENTS][agent] in space for (agent, (space, _)), here in pairs if here)

    def __eq__(self, other: object) -> bool:
        # A dict's own comparison would not see the order of the agents.
        return isinstance(other, RowSpace) and list(self.own.items()) == list(other.own.items())

    def __hash__(self) -> int:
        return hash(tuple(self.own))

    def __repr__(self) -> str:
        return str(self.own)


class PackedEnv:
    """A parallel env, or one that ``as_parallel`` takes, with rows instead of dicts by agent.

    ``warned``: what was warned of; the envs of a pool that are in one process share it.
    """

    def __init__(
        self, env_fn: Callable[[], Any], warned: set[str], *, with_state: bool = False
    ) -> None:
        env = as_parallel(env_fn())
        self.__dict__["env"] = env
        agents = list(env.possible_agents)
        own = {a: (env.observation_space(a), env.action_space(a)) for a in agents}
        state = getattr(env, "state_space", None) if with_state else None
        if with_state and state is None:
            state = gym.Space()  # of objects
        self.observation_space = RowSpace(own, state)
        # Copies: agents may share a space, and drawing from that of one leaves the others.
        self.action_space = space_of({agent: deepcopy(space) for agent, (_, space) in own.items()})
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (len(agents),), np.float64)
        self._with_state = with_state
        self._place = {agent: n for n, agent in enumerate(agents)}
        self._flags = np.zeros((4, len(agents)), dtype=np.bool_)
        # Who acted in the last step, who is alive, and who is one of them.
        self._acted: list[str] = []
        self._alive: list[str] = []
        self._there: list[str] = []
        self._blanks = {agent: blank(space) for agent, (space, _) in own.items()}
        self._masks = masks_of(own)
        # Of agents that the env gives no mask: all actions are legal if the agent is alive.
        self._usual_masks: dict[str, NDArray[np.bool_]] = {}
        # Agents that have ended and gone in this episode.
        self._gone: set[str] = set()
        self._warned = warned
        # The step of an env that PettingZoo has converted; the last attribute: see __setattr__.
        self._converted_step: Callable[[dict[str, Any]], Any] | None = None

    @property
    def spec(self) -> Any:
        """The env's spec; None where it was not made by name."""
        return getattr(self.env, "spec", None)

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which agents must act next, in the order of ``possible_agents``."""
        alive: NDArray[np.bool_] = self._flags[ALIVE].copy()
        return alive

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; return the row's observation and info."""
        obs, infos = _of_length(2, "reset", self.env.reset(seed=seed, options=options))
        self._converted_step = converted_step(self.env)
        self._flags[:] = False
        self._alive, self._gone = [], set()
        self._note_flags([], {}, {})
        return self._row(obs, infos)

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], NDArray[np.float64], bool, bool, dict[str, Any]]:
        """Carry out the actions of live agents; the row is terminated when none is left."""
        acted = self._alive
        step = self._converted_step or self.env.step
        result = _of_length(5, "step", step({agent: action[agent] for agent in acted}))
        obs, rewards, terminations, truncations, infos = result
        self._note_flags(acted, terminations, truncations)
        vector = np.zeros(len(self._place))
        for agent in self._there:
            vector[self._place[agent]] = rewards.get(agent, 0.0)
        row, info = self._row(obs, infos)
        return row, vector, not self._alive, False, info

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # it is not there yet
            raise AttributeError(name)
        return get_inside(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_converted_step" in vars(self) and name not in vars(self):
            set_inside(self.env, name, value)
        else:
            object.__setattr__(self, name, value)

    def _note_flags(
        self, acted: list[str], terminations: Mapping[str, Any], truncations: Mapping[str, Any]
    ) -> None:
        """Note the flags after a reset, or after a step in which these agents acted."""
        flags, agents = self._flags, self.env.agents
        over = any(terminations.values()) or any(truncations.values())
        if acted == self._acted and agents == self._alive and not over:
            return  # as after the last step
        for agent in agents:
            if agent not in self._place:
                raise ValueError(unknown_agent(agent, self._place))
        for row, ended in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            flags[row] |= [bool(ended.get(agent, False)) for agent in self._place]
        self._warn_of_returned(agents)
        flags[VALID] = [agent in acted for agent in self._place]
        flags[ALIVE] = [agent in agents for agent in self._place]
        flags[ALIVE] &= ~(flags[TERMINATED] | flags[TRUNCATED])
        self._acted, self._alive = acted, [a for a in agents if flags[ALIVE, self._place[a]]]
        # Some envs return values for others, too.
        self._there = [a for a in self._place if a in self._alive or a in acted]
        self._usual_masks = {
            agent: np.full(mask.shape, agent in self._alive) for agent, mask in self._masks.items()
        }

    def _warn_of_returned(self, agents: list[str]) -> None:
        """Warn once of an agent that is listed again after it had ended and gone."""
        ended = self._flags[TERMINATED] | self._flags[TRUNCATED]
        back = [agent for agent in agents if agent in self._gone]
        self._gone |= {a for a, n in self._place.items() if ended[n] and a not in agents}
        if back and "back" not in self._warned:
            self._warned.add("back")
            warn(f"{back[0]} is in env.agents again after its end; it acts from the next reset on")

    def _row(
        self, obs: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        seen = {agent: obs[agent] for agent in self._there if agent in obs}
        if len(seen) < len(self._there) and "seen" not in self._warned:
            unseen = [agent for agent in self._alive if agent not in obs]
            if unseen:
                self._warned.add("seen")
                warn(f"{unseen[0]} is alive, but has no observation; its row has zeros")
        masks = self._usual_masks.copy()
        for agent, place in self._masks.items():
            if agent in seen and (place.in_obs or infos.get(agent)):
                mask = place.read(seen[agent], infos.get(agent, {}))
                masks[agent] = masks[agent] if mask is None else mask
        row = {AGENTS: {**self._blanks, **seen}, FLAGS: self._flags, MASKS: masks}
        if self._with_state:
            row[STATE] = self.env.state()
        kept = {}
        for agent, info in infos.items():
            rest = info
            if info and agent in self._masks and not self._masks[agent].in_obs:
                # Without the mask that the row has.
                rest = {key: part for key, part in info.items() if key != ACTION_MASK}
            if rest:
                kept[agent] = rest
        return row, {INFOS: kept} if kept else {}


def _of_length(count: int, method: str, result: Any) -> tuple[Any, ...]:
    """Check that a method of an env returned a tuple of this many dicts by agent."""
    if not isinstance(result, tuple) or len(result) != count:
        raise TypeError(f"{method}() must return {count} dicts by agent, got {result!r:.80}")
    return result
