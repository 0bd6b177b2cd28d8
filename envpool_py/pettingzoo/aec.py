"""``PettingZooEnv``: a turn-based multi-agent env as an env of any pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from envpool_py.env.spaces import snapshot
from envpool_py.pettingzoo import agent_spaces
from envpool_py.pettingzoo.agent_spaces import ACTION_MASK, OBSERVATION, AgentSpaces, common
from envpool_py.pettingzoo.convert import Direct, as_aec, set_inside

if TYPE_CHECKING:  # a BaseWrapper has any attribute for type checkers
    from pettingzoo import AECEnv as _Base
else:
    from pettingzoo.utils.wrappers import BaseWrapper as _Base

#: (obs, rewards, terminated, truncated, info)
Row = tuple[dict[str, Any], NDArray[np.float64], bool, bool, dict[str, Any]]

CALLER, SKIP = "caller", "skip"


class PettingZooEnv(_Base):  # type: ignore[misc]
    """A PettingZoo AEC env whose ``reset`` and ``step`` return the row of the agent to act.

    These two methods are as in Gymnasium, so the env works in every pool and with Tianshou's
    multi-agent policies. All else is PettingZoo's: ``last``, ``observe``, ``rewards``, ...

    Args:
        env: an ``AECEnv``; a ``ParallelEnv`` is converted.
        dead_steps: ``"caller"``: an agent that has died gets its row, and its action is None, as
            in PettingZoo. ``"skip"``: the env makes that step itself, and rows belong to live
            agents only, except for the last row of an episode.
        heterogeneous: accept agents whose spaces differ; such a space is a ``SpaceOfSomeAgent``,
            and its values are pickled.

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

    #: Whether an illegal action is taken as a legal one, see ``make_for_random_actions``.
    _envpool_py_takes_any_action = False
    _mask: Any = None

    def __init__(
        self,
        env: Any,
        *,
        dead_steps: Literal["caller", "skip"] = "caller",
        heterogeneous: bool = False,
    ) -> None:
        if dead_steps not in (CALLER, SKIP):
            raise ValueError(f"dead_steps must be 'caller' or 'skip', got {dead_steps!r}")
        aec = as_aec(env)
        agents = list(aec.possible_agents)
        own = {agent: (aec.observation_space(agent), aec.action_space(agent)) for agent in agents}
        if not heterogeneous:
            hint = "pass heterogeneous=True, or put SuperSuit's pad_* wrappers around"
            agent_spaces.assert_alike(own, hint)
        self.__dict__["_direct"] = None  # reads the env, once it was reset
        super().__init__(aec)
        self._skips = dead_steps == SKIP
        self._seed: int | None = None
        self._iterated = False
        self.agent_idx = {agent: n for n, agent in enumerate(agents)}
        self._masks = agent_spaces.masks_of(own)
        self.observation_space = self._row_space(own)
        actions = {agent: action for agent, (_, action) in own.items()}
        self.action_space = agent_spaces.callable_space(common(actions), actions)
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (len(agents),), np.float64)
        self._terminated = np.zeros(len(agents), dtype=np.bool_)
        self._truncated = np.zeros(len(agents), dtype=np.bool_)
        # The row of the agent to act, if it is dead; the last attribute: see __setattr__.
        self._dead_row: Row | None = None

    def _row_space(self, own: AgentSpaces) -> Any:
        seen: dict[str, Any] = {agent: observation for agent, (observation, _) in own.items()}
        rest, masks = dict(seen), dict.fromkeys(own)
        for agent, mask in self._masks.items():
            masks[agent] = agent_spaces.bools(mask.shape)
            if mask.in_obs:
                part = agent_spaces.rest_of(seen[agent].spaces)
                rest[agent] = gym.spaces.Dict(part) if isinstance(part, dict) else part
        parts = {"agent_id": agent_spaces.AgentName(list(own)), "obs": common(rest)}
        if self._masks:
            parts["mask"] = common(masks)
        space = gym.spaces.Dict(parts)
        space.spaces = _RowSpaces(space.spaces)
        return agent_spaces.callable_space(space, seen)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self) and "_dead_row" in vars(self) and name not in vars(type(self)):
            set_inside(self.env, name, value)
        else:
            object.__setattr__(self, name, value)

    @property
    def agents(self) -> list[str]:
        """PettingZoo's list of the current agents; before the first reset all possible agents."""
        agents: list[str] = list(self.agent_idx) if self._direct is None else self._direct.agents
        return agents

    @property
    def _envpool_py_episode_over(self) -> bool:
        """Whether the episode is over for all agents; pools read it, see ``env.wrapper_layers``."""
        return not self.agents

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; return ``(obs, info)`` of the agent to act, as of ``step``.

        Without a seed it uses the seed of ``seed``, if that was called since the last reset.
        RuntimeError if the env has no agents.
        """
        self.env.reset(seed=self._seed if seed is None else seed, options=options)
        self._seed = None
        self._direct = Direct(self.env)
        self._iterated = False
        self._dead_row = None
        self._terminated[:] = False
        self._truncated[:] = False
        obs, _, _, _, info = self._settled()
        return obs, info

    def step(self, action: Any) -> Row:
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

            None in a loop over ``agent_iter``, where PettingZoo's ``last`` returns these values.

        Raises:
            ResetNeeded: no agent is left.
            ValueError: an action for a dead agent, or None for a live one.
        """
        if self._direct is None:
            raise ResetNeeded("the env was never reset; reset before step")
        if not self._direct.agents:
            raise ResetNeeded("all agents are done; reset before step")
        agent, dead = self._direct.agent_selection, self._is_dead()
        if self._envpool_py_takes_any_action and (dead or self._mask is not None):
            legal = np.flatnonzero(self._mask)
            action = None if dead else legal[action % len(legal)]
        if dead and action is not None:
            text = 'its action must be None, or pass dead_steps="skip"'
            raise ValueError(f"agent {agent!r} is dead; {text}; got {action}")
        if action is None and not dead:
            raise ValueError(f"agent {agent!r} is alive; None is the action of a dead agent alone")
        self.env.step(action)
        return cast("Row", None) if self._iterated else self._settled()

    def seed(self, seed: int | None = None) -> None:
        """Set the seed of the next ``reset``."""
        self._seed = seed

    def agent_iter(self, max_iter: int = 2**63) -> Any:
        """Iterate as PettingZoo does: ``last`` returns the values, and ``step`` returns None."""
        self._iterated = True
        return super().agent_iter(max_iter)

    def _settled(self) -> Row:
        """Return the row after a reset or a step; with ``"skip"`` make the dead steps first."""
        env = self._direct
        rewards, final_rewards = self._noted(), {}
        row = self._row(rewards)
        while self._skips and env.agents and self._is_dead():
            final_rewards[env.agent_selection] = float(env.last(observe=False)[1])
            env.step(None)
            rewards += self._noted()
        if final_rewards:
            row = self._row(rewards)
            row[4]["final_rewards"] = final_rewards
        return row

    def _is_dead(self) -> bool:
        env = self._direct
        agent = env.agent_selection
        return bool(env.terminations[agent] or env.truncations[agent])

    def _row(self, rewards: NDArray[np.float64]) -> Row:
        """The row of the agent to act; if nobody is left, of who was the last to be seen dead."""
        if not self._direct.agents:
            if self._dead_row is None:
                raise RuntimeError("the env has no agents, though none was seen to die")
            obs, _, terminated, truncated, info = self._dead_row
            last_reward = info["last_reward"] if self._skips else 0.0  # else the row before told it
            return obs, rewards, terminated, truncated, self._info(info, last_reward, env_done=True)
        agent = self._direct.agent_selection
        observation, reward, terminated, truncated, own_info = self._direct.last()
        obs = self._observed(agent, observation, own_info)
        info = self._info(own_info, float(reward), env_done=False)
        row = obs, rewards, bool(terminated), bool(truncated), info
        # If this agent is the last one, its observation now is the last of the episode; the env may
        # overwrite it later, so it is copied.
        self._dead_row = snapshot(row) if terminated or truncated else None
        return row

    def _info(self, own: dict[str, Any], last_reward: float, *, env_done: bool) -> dict[str, Any]:
        return {
            **own,
            "env_done": env_done,
            "terminations": self._terminated.copy(),
            "truncations": self._truncated.copy(),
            "last_reward": last_reward,
        }

    def _observed(self, agent: str, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        obs = {"agent_id": agent, "obs": observation}
        if masks := self._masks.get(agent):
            mask = masks.read(observation, info)
            obs["mask"] = np.ones(masks.shape, np.bool_) if mask is None else mask
            if masks.in_obs:
                obs["obs"] = agent_spaces.rest_of(observation)
        elif self._masks:
            obs["mask"] = None
        self._mask = obs.get("mask")
        return obs

    def _noted(self) -> NDArray[np.float64]:
        """The rewards of a step, whose flags are noted."""
        env, place = self._direct, self.agent_idx
        flags = (env.terminations, self._terminated), (env.truncations, self._truncated)
        for own, noted in flags:
            if any(own.values()):
                noted[[place[agent] for agent, flag in own.items() if flag]] = True
        rewards = np.zeros(len(place))
        for agent, reward in env.rewards.items():
            rewards[place[agent]] = reward
        return rewards


class _RowSpaces(dict[str, Any]):
    """The parts of a row's observation; PettingZoo's names of them are understood, too."""

    def __missing__(self, key: str) -> Any:
        return self[{OBSERVATION: "obs", ACTION_MASK: "mask"}[key]]
