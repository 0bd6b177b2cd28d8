"""Agents of equal spaces side by side: how an env's agents lie in a row. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.pettingzoo import agent_spaces
from envpool_py.pettingzoo.agent_spaces import AnyArray, AnyObject
from envpool_py.spaces import Array

#: The rows of the field of flags.
ALIVE, VALID, TERMINATED, TRUNCATED = range(4)
FLAGS, STATE = "flags", "state"


class Facts(NamedTuple):
    """What the parent must know of an env: the same for every env of a pool."""

    agents: tuple[str, ...]
    observation_spaces: dict[str, gym.Space[Any]]
    action_spaces: dict[str, gym.Space[Any]]
    state_space: gym.Space[Any] | None
    metadata: Any


class Group(NamedTuple):
    """Agents whose spaces are equal, in the order in which they lie in a block.

    ``places``: where each stands in ``possible_agents``; ``mask``: the shape of a mask of legal
    actions, None where there is none; ``own_mask``: it is a part of the observation.
    """

    name: str
    agents: tuple[str, ...]
    places: NDArray[np.intp]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    obs: Any
    action: Any
    mask: tuple[int, ...] | None
    own_mask: bool

    @property
    def mask_field(self) -> bool:
        """Whether masks have a field of their own."""
        return self.mask is not None and not self.own_mask


def stem(agent: str) -> str:
    """The name without its number: that of the agents of one kind."""
    return re.sub(r"_?\d+$", "", agent) or agent


def groups_of(facts: Facts) -> list[Group]:
    """The agents by their spaces; agents of one kind stand together within a group."""
    stems = [stem(agent) for agent in facts.agents]
    order = sorted(range(len(stems)), key=lambda n: stems.index(stems[n]))
    found: list[list[int]] = []
    for n in order:
        agent = facts.agents[n]
        for members in found:
            first = facts.agents[members[0]]
            if (
                facts.observation_spaces[agent] == facts.observation_spaces[first]
                and facts.action_spaces[agent] == facts.action_spaces[first]
            ):
                members.append(n)
                break
        else:
            found.append([n])
    found.sort(key=min)
    return [_group(facts, members, n) for n, members in enumerate(found)]


def _group(facts: Facts, members: list[int], n: int) -> Group:
    agents = tuple(facts.agents[place] for place in members)
    observation = facts.observation_spaces[agents[0]]
    action = facts.action_spaces[agents[0]]
    return Group(
        f"group{n}",
        agents,
        np.array(members, dtype=np.intp),
        observation,
        action,
        spaces.layout_of(observation),
        spaces.layout_of(action),
        agent_spaces.mask_shape(observation, action),
        agent_spaces.has_own_mask(observation),
    )


def names_of(groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """The agents of one kind and equal spaces, by the name they share but for its number.

    Where agents of one name have different spaces, each such group is called by its first agent.
    """
    kinds: list[list[str]] = []
    for group in groups:
        for agent in group.agents:
            if kinds and kinds[-1][0] in group.agents and stem(kinds[-1][0]) == stem(agent):
                kinds[-1].append(agent)
            else:
                kinds.append([agent])
    stems = [stem(kind[0]) for kind in kinds]
    return {
        name if stems.count(name) == 1 else kind[0]: tuple(kind)
        for name, kind in zip(stems, kinds, strict=True)
    }


def row_space(groups: Sequence[Group], facts: Facts, *, with_state: bool) -> gym.spaces.Dict:
    """The space of an env's row: one field for each leaf of each group, and the flags."""
    fields: dict[str, gym.Space[Any]] = {}
    for group in groups:
        for n, leaf in enumerate(spaces.leaves(group.obs)):
            fields[obs_field(group, n)] = _field(leaf, group.agents)
        if group.mask_field and group.mask is not None:
            fields[mask_field(group)] = AnyArray((len(group.agents), *group.mask), np.bool_)
    fields[FLAGS] = AnyArray((4, len(facts.agents)), np.bool_)
    if with_state:
        leaf = spaces.layout_of(facts.state_space)
        if spaces.is_leaf(leaf) and leaf.dtype is not None:
            fields[STATE] = AnyArray(leaf.shape, leaf.dtype)
        else:
            fields[STATE] = AnyObject()
    return RowSpace(fields, facts.observation_spaces)


def row_action_space(groups: Sequence[Group], facts: Facts) -> gym.spaces.Dict:
    """The space of the actions of all agents of an env."""
    fields = {
        action_field(group, n): _field(leaf, group.agents)
        for group in groups
        for n, leaf in enumerate(spaces.leaves(group.action))
    }
    return RowSpace(fields, facts.action_spaces)


class RowSpace(gym.spaces.Dict):
    """The fields of a row; shown as the spaces of the agents, which is what its user knows.

    Args:
        fields: the space of each field.
        own: the space of each agent.
    """

    def __init__(
        self, fields: dict[str, gym.Space[Any]], own: Mapping[str, gym.Space[Any]]
    ) -> None:
        super().__init__(fields)
        self._text = ", ".join(f"{agent}: {space}" for agent, space in own.items())

    def __repr__(self) -> str:
        return f"{{{self._text}}}"


def _field(leaf: spaces.Leaf, agents: Sequence[str]) -> gym.Space[Any]:
    if leaf.dtype is None:
        return AnyObject()
    return AnyArray((len(agents), *leaf.shape), leaf.dtype)


def obs_field(group: Group, leaf: int) -> str:
    """The key of a leaf of the observations of a group."""
    return f"{group.name}.obs{leaf}"


def action_field(group: Group, leaf: int) -> str:
    """The key of a leaf of the actions of a group."""
    return f"{group.name}.action{leaf}"


def mask_field(group: Group) -> str:
    """The key of the masks of a group."""
    return f"{group.name}.mask"


def group_obs(group: Group, fields: Mapping[str, Any]) -> list[Array]:
    """The observations of a group in a batch of rows: for each leaf ``(k, n, ...)``."""
    return [
        array if leaf.dtype is not None else _objects(array, len(group.agents))
        for leaf, array in (
            (leaf, fields[obs_field(group, n)]) for n, leaf in enumerate(spaces.leaves(group.obs))
        )
    ]


def group_masks(group: Group, fields: Mapping[str, Any]) -> Array | None:
    """The masks of a group in a batch of rows, bool ``(k, n, ...)``; None where there are none."""
    if group.mask is None:
        return None
    if group.mask_field:
        array: Array = fields[mask_field(group)]
        return array
    for n, leaf in enumerate(spaces.leaves(group.obs)):
        if leaf.path == (agent_spaces.ACTION_MASK,):
            return np.asarray(fields[obs_field(group, n)] != 0)
    raise AssertionError(group)


def _objects(rows: Any, width: int) -> Array:
    """Rows of lists of objects as an object array ``(k, n)``."""
    array = np.empty((len(rows), width), dtype=object)
    for k, row in enumerate(rows):
        for n, value in enumerate(row):
            array[k, n] = value
    return array
