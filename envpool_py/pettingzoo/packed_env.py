"""``PackedEnv``: a parallel env as an env of a pool; all agents of an env are one row.

Everything of a fixed shape is a field of the row's observation, so that it travels in shared
memory; what is left to be pickled are the infos of those agents that have any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.pettingzoo.agent_spaces import ACTION_MASK, unknown_agent
from envpool_py.pettingzoo.convert import agents_of, as_parallel, get_inside, layers_of, set_inside
from envpool_py.pettingzoo.groups import (
    ALIVE,
    FLAGS,
    STATE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Facts,
    Group,
    action_field,
    groups_of,
    mask_field,
    obs_field,
    row_action_space,
    row_space,
)
from envpool_py.pettingzoo.inside import ParallelStep, quick_step
from envpool_py.spaces import Array

#: The key of a row's info that holds the agents' infos.
INFOS = "agents"


class PackedEnv:
    """A parallel env with rows in place of dicts by agent.

    Args:
        env: a ``ParallelEnv``, or an ``AECEnv`` that ``aec_to_parallel`` takes.
        with_state: whether rows hold ``env.state()``.

    Attributes:
        facts: what the parent must know.

    Raises:
        TypeError: ``env`` is not PettingZoo's, or turn-based.
        ValueError: it does not name its possible agents.
    """

    def __init__(self, env: Any, *, with_state: bool = False) -> None:
        env = as_parallel(env)
        self.__dict__["env"] = env
        agents = agents_of(env)
        self.facts = Facts(
            tuple(agents),
            _interned({agent: env.observation_space(agent) for agent in agents}),
            _interned({agent: env.action_space(agent) for agent in agents}),
            getattr(env, "state_space", None),
            getattr(env, "metadata", None),
        )
        self._with_state = with_state
        self._groups = groups_of(self.facts)
        self.observation_space = row_space(self._groups, self.facts, with_state=with_state)
        self.action_space = row_action_space(self._groups, self.facts)
        self.reward_space = gym.spaces.Box(-np.inf, np.inf, (len(agents),), np.float64)
        self._names = agents
        self._place = {agent: n for n, agent in enumerate(agents)}
        self._flags = np.zeros((4, len(agents)), dtype=np.bool_)
        self._fields: dict[str, Any] = {
            key: np.zeros(space.shape or (), space.dtype)
            for key, space in self.observation_space.spaces.items()
            if space.shape is not None
        }
        self._fields[FLAGS] = self._flags
        self._writers = {
            agent: _Writer(group, n, self._fields)
            for group in self._groups
            for n, agent in enumerate(group.agents)
        }
        # The leaves that no array can hold: a field's name, and what writes a row of it.
        self._objects = [
            (obs_field(group, m), m, [self._writers[agent] for agent in group.agents])
            for group in self._groups
            for m, leaf in enumerate(spaces.leaves(group.obs))
            if leaf.dtype is None
        ]
        self._present: list[str] = []
        self._readers = {
            agent: _action_reader(group, n)
            for group in self._groups
            for n, agent in enumerate(group.agents)
        }
        self._quick_step: ParallelStep | None = None
        # Whether the agents that are there are all there may be, and nobody's flag is set.
        self._all_alive = False

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which agents must act next, in the order of ``possible_agents``."""
        alive: NDArray[np.bool_] = self._flags[ALIVE].copy()
        return alive

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; return the row's observation and info."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"reset() must return (observations, infos), got {result!r:.80}")
        obs, infos = result
        self._quick_step = quick_step(self.env)
        self._flags[:] = False
        self._note_who_is_there()
        return self._row(obs, infos)

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], NDArray[np.float64], bool, bool, dict[str, Any]]:
        """Carry out the actions of those agents that are alive; return the row.

        Its reward is a vector, and it is terminated when no agent is left.
        """
        step = self._quick_step or self.env.step
        result = step(self._actions(action))
        if not isinstance(result, tuple) or len(result) != 5:
            got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(
                "step() must return (observations, rewards, terminations, truncations, infos),"
                f" got {got}"
            )
        obs, rewards, terminations, truncations, infos = result
        flags = self._flags
        flags[VALID] = flags[ALIVE]
        for ended, row in ((terminations, TERMINATED), (truncations, TRUNCATED)):
            if any(ended.values()):
                self._note_flags(ended, row)
        self._note_who_is_there()
        if not self._all_alive:
            rewards = self._of_the_present(rewards)
        vector = np.array([float(rewards.get(agent, 0.0)) for agent in self._place])
        fields, info = self._row(obs, infos)
        over = not self._all_alive and not flags[ALIVE].any()
        return fields, vector, over, False, info

    def render(self) -> Any:
        """What the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def wrapper_names(self) -> list[list[str]]:
        """The classes of each wrapper, and of the base env, by their full names."""
        return [
            [f"{cls.__module__}.{cls.__qualname__}" for cls in type(layer).__mro__]
            for layer in layers_of(self.env)
        ]

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # it is not there yet
            raise AttributeError(name)
        return get_inside(self.env, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_all_alive" in vars(self) and name not in vars(self):
            set_inside(self.env, name, value)
        else:
            object.__setattr__(self, name, value)

    # ------------------------------------------------------------------------------ the inside

    def _note_flags(self, ended: Mapping[str, Any], row: int) -> None:
        for agent, place in self._place.items():
            if ended.get(agent, False):
                self._flags[row, place] = True

    def _note_who_is_there(self) -> None:
        flags = self._flags
        there = self.env.agents
        self._all_alive = there == self._names and not flags[TERMINATED:].any()
        flags[ALIVE] = self._all_alive
        if not self._all_alive:
            for agent in there:
                if agent not in self._place:
                    raise ValueError(unknown_agent(agent, self._place))
                flags[ALIVE, self._place[agent]] = True
            flags[ALIVE] &= ~(flags[TERMINATED] | flags[TRUNCATED])

    def _actions(self, packed: Mapping[str, Any]) -> dict[str, Any]:
        readers = self._readers
        there = self.env.agents
        if self._all_alive:
            return {agent: readers[agent](packed) for agent in there}
        alive = self._flags[ALIVE]
        return {agent: readers[agent](packed) for agent in there if alive[self._place[agent]]}

    def _of_the_present(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of those agents that are alive or have just acted.

        Some envs go on to return values for the dead, too.
        """
        present = (self._flags[ALIVE] | self._flags[VALID]).tolist()
        return {
            agent: values[agent]
            for agent, place in self._place.items()
            if present[place] and agent in values
        }

    def _row(
        self, obs: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._all_alive:
            obs = self._of_the_present(obs)
        if len(obs) != len(self._present) or any(agent not in obs for agent in self._present):
            for agent in self._present:
                if agent not in obs:
                    self._writers[agent].clear()
            self._present = [agent for agent in self._place if agent in obs]
        alive = self._all_alive or self._flags[ALIVE].tolist()
        for agent in self._present:
            info = infos.get(agent)
            self._writers[agent].write(
                obs[agent],
                info.get(ACTION_MASK) if info else None,
                alive=alive is True or alive[self._place[agent]],
            )
        kept = {}
        for agent, info in infos.items():
            if info:
                writer = self._writers.get(agent)
                if ACTION_MASK in info and writer is not None and writer.takes_mask:
                    info = {key: part for key, part in info.items() if key != ACTION_MASK}  # noqa: PLW2901
                if info:
                    kept[agent] = info
        if self._with_state:
            self._fields[STATE] = self.env.state()
        fields = dict(self._fields)
        for name, m, writers in self._objects:
            fields[name] = [writer.objects[m] for writer in writers]
        return fields, {INFOS: kept} if kept else {}


class _Writer:
    """Writes what one agent sees into its place in the fields of its group."""

    def __init__(self, group: Group, n: int, fields: Mapping[str, Array]) -> None:
        self._agent = group.agents[n]
        self._layout = group.obs
        self._leaves = spaces.leaves(group.obs)
        self._arrays: list[Array | None] = [
            None if leaf.dtype is None else fields[obs_field(group, m)][n, ...]
            for m, leaf in enumerate(self._leaves)
        ]
        self._mask: Array | None = fields[mask_field(group)][n] if group.mask_field else None
        self.takes_mask = self._mask is not None
        # What all of the mask is, where it is all one: it is not written again then.
        self._plain_mask: bool | None = None
        # The array of an observation that is one array.
        self._whole = self._arrays[0] if spaces.is_leaf(group.obs) else None
        self._dtype = self._leaves[0].dtype if self._leaves else None
        self.objects: dict[int, Any] = {
            m: None for m, leaf in enumerate(self._leaves) if leaf.dtype is None
        }

    def write(self, obs: Any, mask: Any, *, alive: bool) -> None:
        if self._whole is None:
            self._write_parts(obs)
        elif (
            type(obs) is np.ndarray and obs.dtype == self._dtype and obs.shape == self._whole.shape
        ):
            self._whole[...] = obs
        else:
            self._fit(self._whole, self._leaves[0], obs)
        if self._mask is not None:
            if mask is not None:
                where = f"action_mask in the info of {self._agent!r}"
                bits = np.asarray(mask) != 0
                self._mask[...] = spaces.fit(
                    bits, self._mask.shape, bits.dtype, where, "its action_space"
                )
                self._plain_mask = None
            elif self._plain_mask is not alive:
                self._mask[...] = alive
                self._plain_mask = alive

    def _write_parts(self, obs: Any) -> None:
        parts = spaces.split(self._layout, obs, f"obs of {self._agent!r}")
        for m, (leaf, array, part) in enumerate(
            zip(self._leaves, self._arrays, parts, strict=True)
        ):
            if array is None:
                self.objects[m] = part
            elif type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape:
                array[...] = part
            else:
                self._fit(array, leaf, part)

    def _fit(self, array: Array, leaf: spaces.Leaf, part: Any) -> None:
        name = f"obs of {self._agent!r}" + "".join(f"[{key!r}]" for key in leaf.path)
        array[...] = spaces.fit(part, leaf.shape, array.dtype, name, "its space")

    def clear(self) -> None:
        for array in self._arrays:
            if array is not None:
                array[...] = 0
        if self._mask is not None:
            self._mask[...] = False
            self._plain_mask = False
        for m in self.objects:
            self.objects[m] = None


def _action_reader(group: Group, n: int) -> Callable[[Mapping[str, Any]], Any]:
    """What finds the action of agent ``n`` of a group among those of all."""
    layout = group.action
    pairs = [(action_field(group, m), leaf) for m, leaf in enumerate(spaces.leaves(layout))]
    if spaces.is_leaf(layout):
        name, leaf = pairs[0]
        # A single number is a scalar, as its space samples it; an object is what lies in a list.
        place: Any = n if leaf.scalar or leaf.dtype is None else (n, ...)
        return lambda packed: packed[name][place]
    return lambda packed: spaces.join(
        layout,
        [
            packed[name][n] if leaf.dtype is None else leaf.one(packed[name], n)
            for name, leaf in pairs
        ],
    )


class MakePacked:
    """An env_fn that makes a ``PackedEnv`` of what another env_fn makes.

    Args:
        env_fn: makes the parallel env.
        with_state: as in ``PackedEnv``.
    """

    def __init__(self, env_fn: Callable[[], Any], *, with_state: bool) -> None:
        self.env_fn = env_fn
        self.with_state = with_state

    def __call__(self) -> PackedEnv:
        """Make it; runs where the env is to live."""
        return PackedEnv(self.env_fn(), with_state=self.with_state)


def _interned(own: dict[str, gym.Space[Any]]) -> dict[str, gym.Space[Any]]:
    """Equal spaces as one object: less to send, and quick to compare."""
    distinct: list[gym.Space[Any]] = []
    found = {}
    for agent, space in own.items():
        same = next((other for other in distinct if other is space or other == space), None)
        if same is None:
            distinct.append(space)
            same = space
        found[agent] = same
    return found
