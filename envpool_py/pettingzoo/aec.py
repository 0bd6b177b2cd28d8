"""``PettingZooEnv``: a turn-based multi-agent env as an env of any pool."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from pettingzoo.utils.wrappers import BaseWrapper

from envpool_py.pettingzoo import agent_spaces
from envpool_py.pettingzoo.agent_spaces import ACTION_MASK, SpaceOfSomeAgent, callable_space
from envpool_py.pettingzoo.convert import agents_of, as_aec, set_inside
from envpool_py.pettingzoo.inside import Inside
from envpool_py.spaces import snapshot

#: (obs, rewards, terminated, truncated, info)
Row = tuple[dict[str, Any], NDArray[np.float64], bool, bool, dict[str, Any]]

CALLER, SKIP = "caller", "skip"


class PettingZooEnv(BaseWrapper):  # type: ignore[misc]
    """A PettingZoo AEC env whose ``reset`` and ``step`` return the row of the agent to act.

    ``reset`` and ``step`` are those of a Gymnasium env, so that it works in every pool, and
    Tianshou's multi-agent policies on it; everything else is PettingZoo's: ``last``, ``observe``,
    ``agents``, ``rewards``, ``terminations``, ``state``, ...

    Args:
        env: an ``AECEnv``; a ``ParallelEnv`` is converted.
        dead_steps: ``"caller"``: an agent that has died gets its row, and its action is None, as
            in PettingZoo. ``"skip"``: that step is taken here, and rows are of live agents alone,
            but for the last row of an episode.
        heterogeneous: take agents whose spaces differ; what differs is then a
            ``SpaceOfSomeAgent``. Such actions go by pickle; so does what agents see, where it has
            no fixed shape.

    Attributes:
        agent_idx: the place of each agent in ``possible_agents``, and so in the reward vector.
        observation_space: the space of a row's observation, a Dict of ``"agent_id"``, ``"obs"``
            and, where actions are discrete or the env gives masks, ``"mask"``. Called with an
            agent's name: that agent's own space, PettingZoo's.
        action_space: the space of an action; it can be called likewise.
        reward_space: of the reward vector, ``(len(possible_agents),)``.

    Raises:
        TypeError: ``env`` is not PettingZoo's.
        ValueError: the agents' spaces differ, or the env does not name its possible agents.
    """

    def __init__(self, env: Any, *, dead_steps: str = CALLER, heterogeneous: bool = False) -> None:
        if dead_steps not in (CALLER, SKIP):
            raise ValueError(f"dead_steps must be 'caller' or 'skip', got {dead_steps!r}")
        aec = as_aec(env)
        agents = agents_of(aec)
        self.__dict__.update(_started=False, _iterated=False)  # before there is an inside to set
        super().__init__(aec)
        self._skips = dead_steps == SKIP
        self._seed: int | None = None
        self.agent_idx = {agent: n for n, agent in enumerate(agents)}
        observations = {agent: aec.observation_space(agent) for agent in agents}
        actions = {agent: aec.action_space(agent) for agent in agents}
        self._mask_shapes = {
            agent: agent_spaces.mask_shape(observations[agent], actions[agent]) for agent in agents
        }
        self._own_masks = {a: agent_spaces.has_own_mask(space) for a, space in observations.items()}
        self._has_masks = any(shape is not None for shape in self._mask_shapes.values())
        if not heterogeneous:
            _assert_alike("observation_space", observations)
            _assert_alike("action_space", actions)
        self.observation_space = self._row_space(observations)
        self.action_space = callable_space(_common(actions), actions)
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (len(agents),), np.float64)
        self._terminated = np.zeros(len(agents), dtype=np.bool_)
        self._truncated = np.zeros(len(agents), dtype=np.bool_)
        self._inside = Inside(aec)
        self._stand = _Stand()

    def _row_space(self, observations: dict[str, Any]) -> Any:
        parts = {
            "agent_id": agent_spaces.AgentName(list(observations)),
            "obs": _common({a: agent_spaces.without_mask(s) for a, s in observations.items()}),
        }
        if self._has_masks:
            parts["mask"] = _common(
                {
                    agent: None if shape is None else gym.spaces.Box(0, 1, shape, np.bool_)
                    for agent, shape in self._mask_shapes.items()
                }
            )
        space = gym.spaces.Dict(parts)
        space.spaces = _RowSpaces(space.spaces)
        return callable_space(space, observations)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self) and "_stand" in vars(self) and name not in vars(type(self)):
            set_inside(self.env, name, value)
        else:
            object.__setattr__(self, name, value)

    @property
    def agents(self) -> list[str]:
        """PettingZoo's list of the agents that are there; before the first reset all of them."""
        agents: list[str] = self._inside.now().agents if self._started else list(self.agent_idx)
        return agents

    @property
    def _envpool_py_episode_over(self) -> bool:
        """Whether the episode is over for all agents; pools read it, see ``worker.executor``."""
        return self._started and (self._stand.turn or self._whose_turn())[0] is None

    # ---------------------------------------------------------------------------- reset and step

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: passed on; None: that of ``seed``, if it was called since the last reset.
            options: passed on.

        Returns:
            ``(obs, info)`` of the agent to act, as ``step`` returns them.
        """
        if seed is None:
            seed = self._seed
        self._seed = None
        self._stand.turn = None
        self.env.reset(seed=seed, options=options)
        self._inside = Inside(self.env)
        self._started = True
        self._iterated = False
        self._terminated[:] = False
        self._truncated[:] = False
        obs, _, _, _, info = self._settled()
        return obs, info

    def step(self, action: Any) -> Row | None:
        """Carry out the action of the agent to act, ``agent_selection``.

        Args:
            action: that agent's; None if it is dead.

        Returns:
            The row of the agent to act next, ``(obs, rewards, terminated, truncated, info)``:

            * ``obs``: ``{"agent_id": name, "obs": its observation}`` and ``"mask"``, bool, of its
              legal actions;
            * ``rewards``: float64 ``(len(possible_agents),)`` of this step alone, 0 for the absent;
            * ``terminated``, ``truncated``: that agent's;
            * ``info``: that agent's, and ``env_done`` (nobody is left), ``terminations`` and
              ``truncations`` (bool ``(len(possible_agents),)``, sticky until the reset),
              ``last_reward`` (of that agent since its own last action); with
              ``dead_steps="skip"`` also ``final_rewards``, where dead steps were taken: the
              ``last_reward`` of each of those agents.

            None in a loop over ``agent_iter``, where PettingZoo's ``last`` says it all.

        Raises:
            ResetNeeded: nobody is left.
            ValueError: an action for a dead agent, or None for a live one.
        """
        stand = self._stand
        agent, dead = stand.turn or self._whose_turn()
        if agent is None:
            raise ResetNeeded("all agents are done; reset before step")
        if dead and action is not None:
            raise ValueError(f"agent {agent!r} is dead; its action must be None, got {action}")
        if action is None and not dead:
            raise ValueError(f"agent {agent!r} is alive; None is the action of a dead agent alone")
        stand.turn = None
        self.env.step(action)
        if self._iterated:
            return None
        return self._settled()

    def seed(self, seed: int | None = None) -> None:
        """Set the seed of the next ``reset``."""
        self._seed = seed

    def agent_iter(self, max_iter: int = 2**63) -> Any:
        """PettingZoo's loop: ``last`` tells what the agent sees, and ``step`` returns None.

        Args:
            max_iter: of the loop.
        """
        self._iterated = True
        self._stand.turn = None
        return super().agent_iter(max_iter)

    # ------------------------------------------------------------------------------------- a row

    def _settled(self) -> Row:
        """The row after a reset or a step, dead steps taken if that is wanted."""
        now = self._inside.now()
        rewards = self._rewards(now)
        self._note_flags(now)
        if not now.agents:
            return self._row_of_nobody(rewards)
        row = self._row(now, rewards)
        if not self._skips or not (row[2] or row[3]):
            return row
        env = self.env
        final_rewards = {}
        agent, dead = self._whose_turn()
        while agent is not None and dead:
            final_rewards[agent] = float(self._inside.last_reward(now))
            env.step(None)
            now = self._inside.now()
            rewards += self._rewards(now)
            self._note_flags(now)
            agent, dead = self._whose_turn()
        if agent is None:
            row = self._row_of_nobody(rewards, row[4]["last_reward"])
        else:
            row = self._row(now, rewards)
        row[4]["final_rewards"] = final_rewards
        return row

    def _whose_turn(self) -> tuple[str | None, bool]:
        """Who is to act, None for nobody, and whether it is dead."""
        now = self._inside.now() if self._started else self.env
        if not now.agents:
            return None, True
        agent: str = now.agent_selection
        return agent, bool(now.terminations[agent] or now.truncations[agent])

    def _row(self, now: Any, rewards: NDArray[np.float64]) -> Row:
        agent = now.agent_selection
        observation, last_reward, terminated, truncated, own_info = self._inside.last(now)
        terminated, truncated = bool(terminated), bool(truncated)
        dead = terminated or truncated
        stand = self._stand
        stand.turn = agent, dead
        obs = self._observed(agent, observation, own_info)
        info = self._info(own_info, float(last_reward), env_done=False)
        row = obs, rewards, terminated, truncated, info
        # Should this agent turn out to be the last one, what it sees now is what the episode ends
        # with; by then the env may have written over it.
        stand.last_row = snapshot(row) if dead else None
        return row

    def _row_of_nobody(self, rewards: NDArray[np.float64], last_reward: float = 0.0) -> Row:
        """The row when nobody is left: that of the agent who was the last to be seen dead."""
        stand = self._stand
        if stand.last_row is None:
            raise RuntimeError("the env has no agents, though none was seen to die")
        obs, _, terminated, truncated, own_info = stand.last_row
        stand.turn, stand.last_row = (None, True), None
        info = self._info(own_info, last_reward, env_done=True)
        return obs, rewards, terminated, truncated, info

    def _info(self, own: dict[str, Any], last_reward: float, *, env_done: bool) -> dict[str, Any]:
        return {
            **own,
            "env_done": env_done,
            "terminations": self._terminated.copy(),
            "truncations": self._truncated.copy(),
            "last_reward": last_reward,
        }

    def _observed(self, agent: str, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        if self._own_masks[agent]:
            mask = observation[ACTION_MASK]
            rest = {key: part for key, part in observation.items() if key != ACTION_MASK}
            alone = len(rest) == 1 and agent_spaces.OBSERVATION in rest
            observation = rest[agent_spaces.OBSERVATION] if alone else rest
        obs = {"agent_id": agent, "obs": observation}
        shape = self._mask_shapes[agent]
        if shape is not None:
            obs["mask"] = np.ones(shape, np.bool_) if mask is None else np.asarray(mask) != 0
        elif self._has_masks:
            obs["mask"] = None
        return obs

    def _rewards(self, now: Any) -> NDArray[np.float64]:
        place = self.agent_idx
        rewards = [0.0] * len(place)
        for agent, reward in now.rewards.items():
            rewards[place[agent]] = float(reward)
        return np.array(rewards)

    def _note_flags(self, now: Any) -> None:
        for flags, noted in (
            (now.terminations, self._terminated),
            (now.truncations, self._truncated),
        ):
            if any(flags.values()):
                for agent, flag in flags.items():
                    if flag:
                        noted[self.agent_idx[agent]] = True


class _Stand:
    """Where the game stands.

    ``turn``: who is to act, None for nobody, and whether it is dead; None where that is to be
    looked up. ``last_row``: that of the agent to act, if it is dead.
    """

    __slots__ = ("last_row", "turn")

    def __init__(self) -> None:
        self.turn: tuple[str | None, bool] | None = None
        self.last_row: Row | None = None


class _RowSpaces(dict[str, Any]):
    """The parts of a row's observation; PettingZoo's names of them are understood, too."""

    def __missing__(self, key: str) -> Any:
        ours = {agent_spaces.OBSERVATION: "obs", ACTION_MASK: "mask"}.get(key, key)
        if ours == key or ours not in self:
            raise KeyError(key)
        return self[ours]


def _common(own: dict[str, Any]) -> gym.Space[Any]:
    """The space of any agent's value."""
    spaces = list(own.values())
    first: gym.Space[Any] = spaces[0]
    return first if agent_spaces.all_equal(spaces) else SpaceOfSomeAgent(own)


def _assert_alike(name: str, own: dict[str, Any]) -> None:
    first = next(iter(own))
    for agent, space in own.items():
        if space != own[first]:
            raise ValueError(
                f"agent {agent!r}: {name} is {space}, but that of {first!r} is {own[first]};"
                " heterogeneous=True takes agents whose spaces differ, and SuperSuit's pad_*"
                " wrappers make them alike"
            )
