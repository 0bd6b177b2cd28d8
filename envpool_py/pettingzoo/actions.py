"""Convert actions by agent to the columns of a pool, which checks their values. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env import spaces
from envpool_py.pettingzoo.agent_spaces import AgentSpaces, blank
from envpool_py.pettingzoo.convert import unknown_agent


def action_columns(
    own: AgentSpaces, actions: Any, ids: list[int], alive: NDArray[np.bool_]
) -> dict[str, Any]:
    """The actions of a batch as a column per agent, with zeros for agents not ``alive`` ``(k, n)``.

    ``actions`` are as in ``ParallelVectorEnv.step``, of the ``k`` envs ``ids``. TypeError for
    another form, ValueError for an unknown agent, an action missing or in excess, or another count.
    """
    if not isinstance(actions, Mapping):
        actions = _by_agent(own, actions, ids, alive)
    for agent in actions:
        if agent not in own:
            raise ValueError(f"actions: {unknown_agent(agent, own)}")
    columns = {}
    for (agent, (_, space)), acts in zip(own.items(), alive.T.tolist(), strict=True):
        column = actions.get(agent, [None] * len(ids))
        if isinstance(column, np.ndarray) and column.ndim and column.dtype.hasobject:
            column = list(column)
        if not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            raise TypeError(f"agent {agent!r}: got a scalar, not {len(ids)} actions")
        counted = isinstance(column, list) or hasattr(column, "ndim")
        if counted and len(column) != len(ids):
            raise ValueError(f"agent {agent!r}: got {len(column)} actions for {len(ids)} envs")
        if isinstance(column, (list, tuple)):
            for i, action, act in zip(ids, column, acts, strict=False):
                if act and action is None:
                    raise ValueError(f"env {i}: no action for agent {agent!r}, which is alive")
            column = _filled(space, column)
        columns[agent] = column
    return columns


def _filled(space: gym.Space[Any], actions: Any) -> Any:
    """Return actions with zeros for None; for a Dict or Tuple space as a tree of columns."""
    layout = spaces.layout_of(space)
    if any(action is None for action in actions):
        zeros = blank(space)
        actions = [zeros if action is None else action for action in actions]
    if spaces.is_leaf(layout) or (isinstance(layout, tuple) and isinstance(actions, tuple)):
        return actions  # one leaf, or a tuple of columns already
    rows = [spaces.split(layout, action, "action") for action in actions]
    leaves = range(len(spaces.leaves(layout)))
    return spaces.join(layout, [[row[m] for row in rows] for m in leaves])


def _by_agent(
    own: AgentSpaces, actions: Any, ids: list[int], alive: NDArray[np.bool_]
) -> dict[str, list[Any]]:
    """Convert a dict of actions per env, of live agents only, to a list of actions per agent."""
    if isinstance(actions, (str, bytes)) or not hasattr(actions, "__len__"):
        forms = "a dict {agent: k actions} or a sequence of k dicts {agent: action}"
        raise TypeError(f"actions: got a {type(actions).__name__}; pass {forms}")
    if len(actions) != len(ids):
        raise ValueError(f"got {len(actions)} actions for {len(ids)} envs")
    for i, row, acts in zip(ids, actions, alive.tolist(), strict=True):
        if not isinstance(row, Mapping):
            text = f"actions must be a dict {{agent: action}}, got {type(row).__name__}"
            raise TypeError(f"env {i}: {text}")
        for agent in row:
            if agent not in own:
                raise ValueError(f"env {i}: {unknown_agent(agent, own)}")
        for agent, act in zip(own, acts, strict=True):
            if not act and row.get(agent) is not None:
                text = f"an action for agent {agent!r}, which is not alive; leave it out"
                raise ValueError(f"env {i}: {text}, or pass None")
    return {agent: [row.get(agent) for row in actions] for agent in own}
