"""Find envs by their names, and draw random legal actions, for the command line."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
from numpy.typing import NDArray

from envpool_py.env_by_name import make_env
from envpool_py.pettingzoo.aec import PettingZooEnv
from envpool_py.pool.base import BaseVectorEnv


def find_env(name: str) -> Callable[..., Any] | None:
    """Return the function that makes the env of this name; None if PettingZoo has no such env.

    A name is an id of PettingZoo's registry (``classic/tictactoe-v3``), after ``module:`` also of
    one that importing the module fills; or a module with an ``env`` or a ``parallel_env``, as
    ``mpe2.simple_spread_v3`` or ``mpe2:simple_spread_v3``.
    """
    module, _, rest = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError:
            return None
    for kind in ("aec", "parallel"):
        if rest in getattr(pettingzoo, f"{kind}_registry", ()):
            return functools.partial(pettingzoo.make, kind, rest)
    try:
        path = f"{module}.{rest}" if module else rest
        found = importlib.import_module(path) if importlib.util.find_spec(path) else None
    except (ImportError, ValueError):  # a name that is none of a module's
        return None
    return getattr(found, "env", getattr(found, "parallel_env", None))


def make_by_name(
    name: str, kwargs: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()
) -> PettingZooEnv:
    """Make the env of this name, with rows of live agents alone, the first wrapper innermost."""
    make = find_env(name)
    if make is None:
        raise ValueError(f"PettingZoo knows no env {name!r}")
    env = make_env(make, dict(kwargs), wrappers)
    return PettingZooEnv(env, dead_steps="skip", heterogeneous=True)


class RandomLegalPolicy:
    """Draws random legal actions for a pool of ``PettingZooEnv`` with ``columns=True``.

    The ``n``-th action of an agent of env ``i`` depends on ``seed`` (0 or more; None: from the
    operating system), ``i``, ``n`` and the masks alone: not on which other envs are in a batch.
    """

    def __init__(self, pool: BaseVectorEnv, seed: int | None = None) -> None:
        entropy = np.random.SeedSequence(seed).entropy
        self._spaces: list[dict[str, Any]] = []
        spaces: list[Any] = pool.action_space
        for i, agents in enumerate(pool.get_env_attr("possible_agents")):
            self._spaces.append({agent: spaces[i](agent) for agent in agents})
            for n, space in enumerate(self._spaces[i].values()):
                state = np.random.SeedSequence(entropy, spawn_key=(i, n)).generate_state(1)
                space.seed(int(state[0]))

    def __call__(self, obs: Any, env_ids: NDArray[np.intp], /) -> list[Any]:
        """Draw an action for each of ``env_ids`` ``(k,)``, whose rows are columns in ``obs``."""
        masks = obs.get("mask", [None] * len(env_ids))
        actions = []
        for i, agent, mask in zip(env_ids.tolist(), obs["agent_id"], masks, strict=True):
            space = self._spaces[i][agent]
            is_masked = mask is not None and isinstance(space, gym.spaces.Discrete)
            actions.append(space.sample(np.asarray(mask, np.int8) if is_masked else None))
        return actions
