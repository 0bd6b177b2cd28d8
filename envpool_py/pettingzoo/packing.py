"""Batches of rows as batches by agent, and actions by agent as the columns of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.block import StepResult
from envpool_py.ids import IdArray
from envpool_py.pettingzoo.agent_spaces import unknown_agent
from envpool_py.pettingzoo.groups import (
    ALIVE,
    FLAGS,
    STATE,
    TRUNCATED,
    VALID,
    Group,
    action_field,
    group_masks,
    group_obs,
)
from envpool_py.pettingzoo.packed_env import INFOS
from envpool_py.spaces import Array

#: One batch for each agent: ``{agent: (k, ...)}``.
ByAgent: TypeAlias = "dict[str, Any]"


class Rows(NamedTuple):
    """A batch of rows of ``PackedEnv``, what belongs to the ended step told from what came after.

    ``fields`` are what the agents see now, after an automatic reset the next episode; ``flags`` and
    ``reward`` are those of the step, but for ``flags[:, ALIVE]``, which is of now. ``finals`` has
    what the agents of row ``k`` saw at the end of their episode, where the env was reset in the
    step that ended it: the same fields, without the dimension of the batch. ``errors`` has
    the text of the error of the env of row ``k``, if the pool has recreated that env.
    """

    env_id: NDArray[np.intp]
    fields: dict[str, Any]
    reward: NDArray[np.float64]
    flags: NDArray[np.bool_]
    env_done: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    infos: list[dict[str, Any]]
    finals: dict[int, dict[str, Any]]
    final_infos: dict[int, dict[str, Any]]
    errors: dict[int, str]


def rows_of(batch: StepResult) -> Rows:
    """Read a batch of a pool of ``PackedEnv``."""
    fields, reward, terminated, truncated, rows = batch
    flags = fields[FLAGS]
    finals: dict[int, dict[str, Any]] = {}
    final_infos: dict[int, dict[str, Any]] = {}
    errors: dict[int, str] = {}
    is_reset = np.zeros(len(rows), dtype=np.bool_)
    env_id = np.empty(len(rows), dtype=np.intp)
    infos = []
    for k, info in enumerate(rows):
        env_id[k] = info["env_id"]
        infos.append(info.get(INFOS, {}))
        if "final_obs" in info:
            finals[k] = info["final_obs"]
            final_infos[k] = info.get("final_info", {}).get(INFOS, {})
        elif "is_reset" in info:
            is_reset[k] = True
        if "env_error" in info:
            errors[k] = info["env_error"]
    if finals or errors:
        flags = flags.copy()
        for k, final in finals.items():
            flags[k, VALID:] = final[FLAGS][VALID:]
        for k in errors:
            if truncated[k]:
                _cut_off(flags[k], finals[k][FLAGS] if k in finals else None)
    over = terminated | truncated
    return Rows(env_id, fields, reward, flags, over, is_reset, infos, finals, final_infos, errors)


def _cut_off(flags: NDArray[np.bool_], final: NDArray[np.bool_] | None) -> None:
    """Write the flags of a row in which the pool gives an episode up: of all who were alive.

    Args:
        flags: of the row; ``(4, len(agents))``.
        final: those that were known last; None: they are ``flags``, as the env was not reset.
    """
    acted = (flags if final is None else final)[ALIVE].copy()
    flags[VALID] = acted
    flags[TRUNCATED] |= acted
    if final is None:
        flags[ALIVE] = False


class Side(NamedTuple):
    """A batch by agent, and the arrays in which agents stand side by side that it views.

    ``views`` are those that were handed out, in dicts and tuples of their own.
    """

    by_group: list[Any]
    views: dict[str, Any]
    matrix: Array | None = None


class AgentDict(dict[str, Any]):
    """``{agent: (k, ...)}``, each a view of an array in which agents stand side by side."""

    side: Side


def side_of(values: Mapping[str, Any], agents: Sequence[str]) -> Side | None:
    """The arrays that the values of these agents view; None where they are other values.

    A user may have put others into an ``AgentDict``: those count, and not what was there before.
    """
    side: Side | None = getattr(values, "side", None)
    if side is None:
        return None
    kept = all(_identical(values.get(agent), side.views.get(agent)) for agent in agents)
    return side if kept else None


def _identical(tree: Any, other: Any) -> bool:
    """Whether two trees of dicts and tuples have the same objects as leaves."""
    if isinstance(other, dict):
        return (
            isinstance(tree, dict)
            and tree.keys() == other.keys()
            and all(_identical(tree[key], part) for key, part in other.items())
        )
    if isinstance(other, tuple):
        return (
            isinstance(tree, tuple)
            and len(tree) == len(other)
            and all(map(_identical, tree, other))
        )
    return tree is other


def matrix_by_agent(matrix: Array, agents: Sequence[str]) -> AgentDict:
    """The columns of ``(k, len(agents))``."""
    found = AgentDict(zip(agents, matrix.T, strict=True))
    found.side = Side([], dict(found), matrix)
    return found


def obs_by_agent(
    groups: Sequence[Group], agents: Sequence[str], fields: Mapping[str, Any]
) -> AgentDict:
    """What each agent sees, in the order of ``possible_agents``."""
    found: dict[str, Any] = {}
    views: dict[str, Any] = {}
    blocks = []
    for group in groups:
        parts = group_obs(group, fields)
        blocks.append(spaces.join(group.obs, parts))
        for n, agent in enumerate(group.agents):
            own = [part[:, n] for part in parts]
            found[agent] = spaces.join(group.obs, own)
            views[agent] = spaces.join(group.obs, own)  # not the same dicts, which may change
    ordered = AgentDict((agent, found[agent]) for agent in agents)
    ordered.side = Side(blocks, views)
    return ordered


def masks_by_agent(
    groups: Sequence[Group], agents: Sequence[str], fields: Mapping[str, Any]
) -> AgentDict:
    """The masks of those agents that have any, bool."""
    found: dict[str, Any] = {}
    blocks = []
    for group in groups:
        masks = group_masks(group, fields)
        blocks.append(masks)
        if masks is not None:
            for n, agent in enumerate(group.agents):
                found[agent] = masks[:, n]
    ordered = AgentDict((agent, found[agent]) for agent in agents if agent in found)
    ordered.side = Side(blocks, found)
    return ordered


def final_obs_by_agent(
    groups: Sequence[Group], agents: Sequence[str], fields: Mapping[str, Any]
) -> ByAgent:
    """What each agent saw at the end of one env's episode."""
    found: dict[str, Any] = {}
    for group in groups:
        parts = group_obs(group, {key: [value] for key, value in fields.items()})
        for n, agent in enumerate(group.agents):
            found[agent] = spaces.join(group.obs, [part[0][n] for part in parts])
    return {agent: found[agent] for agent in agents}


def objects(values: Sequence[Any]) -> Array:
    """An object array ``(k,)``."""
    return np.fromiter(values, dtype=object, count=len(values))


def state_of(fields: Mapping[str, Any]) -> Any:
    """The states of a batch of rows, ``(k, ...)``; None where rows don't hold them."""
    return fields.get(STATE)


# ---------------------------------------------------------------------------------------- actions


def action_columns(
    groups: Sequence[Group],
    agents: Sequence[str],
    actions: Any,
    ids: IdArray,
    alive: NDArray[np.bool_],
) -> dict[str, Any]:
    """The actions of a batch as the columns of the pool.

    Args:
        groups: the agents by their spaces.
        agents: ``possible_agents``.
        actions: ``{agent: k actions}``, or a sequence of ``k`` dicts ``{agent: action}``.
        ids: ``(k,)``, for messages.
        alive: ``(k, len(agents))``: who must act.

    Raises:
        TypeError: not of these forms, or not numbers where the space has numbers.
        ValueError: an agent unknown, an action missing or in excess, another count or shape.
    """
    if isinstance(actions, Mapping):
        return _from_batches(groups, agents, actions, ids, alive)
    return _from_dicts(groups, agents, actions, ids, alive)


def _from_batches(
    groups: Sequence[Group],
    agents: Sequence[str],
    actions: Mapping[str, Any],
    ids: IdArray,
    alive: NDArray[np.bool_],
) -> dict[str, Any]:
    for agent in actions:
        if agent not in agents:
            raise ValueError(f"actions: {unknown_agent(agent, agents)}")
    listed = ids.tolist()
    columns = empty_columns(groups, len(ids))
    for group in groups:
        for n, (agent, place) in enumerate(zip(group.agents, group.places, strict=True)):
            acts = alive[:, place]
            if agent not in actions:
                if acts.any():
                    raise ValueError(_missing(int(ids[acts.argmax()]), agent))
                continue
            try:
                parts = _leaves_of_batch(group, actions[agent], listed, acts)
            except (TypeError, ValueError) as error:
                raise type(error)(f"agent {agent!r}: {error}") from None
            for m, part in enumerate(parts):
                _put(columns[action_field(group, m)], n, part)
    return columns


def _leaves_of_batch(
    group: Group, actions: Any, ids: list[int], acts: NDArray[np.bool_]
) -> list[Any]:
    """The leaves of one agent's actions, each ``(k, *shape)``; the dead ones' are made up."""
    if spaces.is_fixed(group.action):
        if not acts.all() and isinstance(actions, (list, tuple)) and len(actions) == len(ids):
            actions = [
                _filler(group) if action is None and not act else action
                for action, act in zip(actions, acts, strict=True)
            ]
        parts = spaces.batch_actions(group.action, actions, ids)
        if parts is not None:
            return parts
    rows = spaces.list_actions(group.action, actions, ids)
    for i, row, act in zip(ids, rows, acts, strict=True):
        if row is None and act:
            raise ValueError(f"env {i}: the action is None, but the agent is alive")
    split = [
        spaces.split(group.action, _filler(group) if row is None else row, "action") for row in rows
    ]
    return [[row[m] for row in split] for m, _ in enumerate(spaces.leaves(group.action))]


def _from_dicts(
    groups: Sequence[Group],
    agents: Sequence[str],
    actions: Any,
    ids: IdArray,
    alive: NDArray[np.bool_],
) -> dict[str, Any]:
    if isinstance(actions, (str, bytes)) or not hasattr(actions, "__len__"):
        raise TypeError(
            f"actions: got a {type(actions).__name__};"
            " pass a dict {agent: k actions} or a sequence of k dicts {agent: action}"
        )
    if len(actions) != len(ids):
        raise ValueError(f"got {len(actions)} actions for {len(ids)} envs")
    for i, row, acts in zip(ids.tolist(), actions, alive, strict=True):
        _check_dict(i, row, agents, acts)
    columns = empty_columns(groups, len(ids))
    for group in groups:
        for n, agent in enumerate(group.agents):
            for k, (i, row) in enumerate(zip(ids.tolist(), actions, strict=True)):
                if row.get(agent) is not None:
                    what = f"env {i}: action of agent {agent!r}"
                    action = spaces.fit_tree(group.action, row[agent], what, "its action_space")
                    for m, part in enumerate(spaces.split(group.action, action, what)):
                        column = columns[action_field(group, m)]
                        if isinstance(column, np.ndarray):
                            column[k, n] = part
                        else:
                            column[k][n] = part
    return columns


def _check_dict(i: int, row: Any, agents: Sequence[str], acts: NDArray[np.bool_]) -> None:
    """Raise unless there is an action for each agent of env ``i`` who acts, and for nobody else."""
    if not isinstance(row, Mapping):
        raise TypeError(
            f"env {i}: actions must be a dict {{agent: action}}, got {type(row).__name__}"
        )
    for agent in row:
        if agent not in agents:
            raise ValueError(f"env {i}: {unknown_agent(agent, agents)}")
    for agent, act in zip(agents, acts, strict=True):
        if not act and row.get(agent) is not None:
            raise ValueError(
                f"env {i}: an action for agent {agent!r}, which is not alive; leave it out, or"
                " pass None"
            )
        if act and agent not in row:
            raise ValueError(_missing(i, agent))
        if act and row[agent] is None:
            raise ValueError(f"env {i}: the action of agent {agent!r} is None, but it is alive")


def empty_columns(groups: Sequence[Group], count: int) -> dict[str, Any]:
    """Columns for the actions of ``count`` envs: arrays of zeros, lists of lists for objects."""
    return {
        action_field(group, m): [[None] * len(group.agents) for _ in range(count)]
        if leaf.dtype is None
        else np.zeros((count, len(group.agents), *leaf.shape), leaf.dtype)
        for group in groups
        for m, leaf in enumerate(spaces.leaves(group.action))
    }


def _put(column: Any, n: int, part: Any) -> None:
    if isinstance(column, np.ndarray):
        column[:, n] = part
    else:
        for row, value in zip(column, part, strict=True):
            row[n] = value


def _filler(group: Group) -> Any:
    """An action that nobody looks at."""
    return spaces.join(
        group.action,
        [
            None if leaf.dtype is None else np.zeros(leaf.shape, leaf.dtype)[()]
            for leaf in spaces.leaves(group.action)
        ],
    )


def _missing(env_id: int, agent: str) -> str:
    return f"env {env_id}: no action for agent {agent!r}, which is alive"
