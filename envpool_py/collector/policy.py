"""The protocol of a policy, and a random policy."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envpool_py.env import spaces
from envpool_py.env.common_spec import missing_space
from envpool_py.pool.base import BaseVectorEnv

#: How many actions of an env the random policy draws at a time.
_DRAWN = 128


class Policy(Protocol):
    """Chooses a batch of actions for a batch of observations.

    Any callable of this form is a policy; one with a parameter ``infos`` is a
    ``PolicyWithInfos``. A policy that has a state for each env may have a method
    ``start_episodes(env_ids)``; it is called with the ids of envs that have just been reset, before
    the first observations of those episodes are passed.
    """

    def __call__(self, obs: Any, env_ids: NDArray[np.intp], /) -> Any:
        """Choose an action for each row.

        Args:
            obs: ``k`` observations as the pool returns them: an array ``(k, *shape)``; for Dict
                and Tuple spaces an object array of dicts or tuples, or with the pool's
                ``columns=True`` a dict or tuple of arrays ``(k, ...)``.
            env_ids: ``(k,)``, the env of each row. Their order and number differ from call to call.

        Returns:
            ``k`` actions in any form that the pool's ``send`` takes; or a pair ``(actions,
            extras)`` with a dict of arrays ``(k, ...)`` of numbers that are stored with the
            actions, for instance ``{"log_prob": ..., "value": ...}``. A tuple of two whose second
            is a dict is always taken as such a pair.
        """


class PolicyWithInfos(Protocol):
    """A policy that is passed the infos of the rows too, for instance for action masks."""

    def __call__(
        self, obs: Any, env_ids: NDArray[np.intp], /, *, infos: NDArray[np.object_]
    ) -> Any:
        """Choose an action for each row, as a ``Policy`` does; ``infos`` ``(k,)`` are its dicts."""


def check_pool_and_policy(pool: Any, policy: Any) -> None:
    """Raise TypeError unless this is a pool of this package and the policy can be called."""
    if not isinstance(pool, BaseVectorEnv):
        text = f"pool must be a pool such as ShmemVectorEnv, got a {type(pool).__name__}"
        if isinstance(getattr(pool, "pool", None), BaseVectorEnv):
            text += "; pass the pool that it has in its attribute pool"
        raise TypeError(text)
    if not callable(policy):
        raise TypeError(f"policy must be callable, got a {type(policy).__name__}")
    more = {"infos": None} if takes_infos(policy) else {}
    try:
        inspect.signature(policy, follow_wrapped=False).bind(None, None, **more)
    except ValueError:  # a callable without a readable signature
        pass
    except TypeError as error:
        raise TypeError(f"policy is called as policy(obs, env_ids): {error}") from None


def takes_infos(policy: Callable[..., Any]) -> bool:
    """Whether ``policy`` (for a torch module its ``forward``) has a parameter ``infos``."""
    function = getattr(policy, "forward", policy)
    try:
        return "infos" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a readable signature
        return False


def split_extras(returned: Any, env_ids: NDArray[np.intp]) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Split the result of a policy for ``env_ids`` into actions and extras.

    TypeError if an extra is not made of numbers, ValueError if it has not one row per env.
    """
    is_pair = type(returned) is tuple and len(returned) == 2 and isinstance(returned[1], Mapping)
    if not is_pair:
        return returned, {}
    actions, extras = returned
    found: dict[str, NDArray[Any]] = {}
    for name, given in extras.items():
        what = f"policy: extras[{name!r}]"
        try:
            values = found[str(name)] = np.asarray(given)
        except Exception as error:  # a tensor may say that it needs a gradient, or is elsewhere
            raise TypeError(f"{what}: can't be made into an array: {error}") from error
        if values.dtype.kind not in "biufc":
            raise TypeError(f"{what}: expected numbers, got an array of dtype {values.dtype}")
        if values.shape[:1] != (len(env_ids),):
            text = f"each of {len(env_ids)} envs, got an array of shape {values.shape}"
            raise ValueError(f"{what}: expected one row for {text}")
    return actions, found


class RandomPolicy:
    """Draws random actions by ``space.sample()``, with one random stream per env.

    The ``n``-th action of env ``i`` depends on ``seed``, ``i`` and ``n`` alone, not on the other
    envs of the batch and not on timing. For a ``PettingZooEnv`` the actions are legal: those of an
    agent depend on the masks too.

    Args:
        pool: the pool whose action spaces are sampled.
        seed: 0 or more; None: from the operating system.

    Raises:
        ValueError: an env declares no action space.
    """

    def __init__(self, pool: BaseVectorEnv, seed: int | None = None) -> None:
        self._actions = []
        for i, space in enumerate(pool.action_space):
            if space is None:
                raise ValueError(missing_space(i, "action_space"))
            # A stream of its own: with the env's seed it would repeat what the env itself draws.
            state = np.random.SeedSequence(seed, spawn_key=(i,)).generate_state(1, np.uint64)
            draw = _LegalActions if callable(space) else _Actions  # it is one of PettingZooEnv
            self._actions.append(draw(space, int(state[0])))

    def __call__(self, obs: Any, env_ids: NDArray[np.intp], /) -> list[Any]:
        """Draw an action for each of ``env_ids`` ``(k,)``; ``obs`` has the masks, if any."""
        return [self._actions[i].take(obs, k) for k, i in enumerate(env_ids)]


class _Actions:
    """The actions of an env, drawn many at a time, which is faster."""

    def __init__(self, space: gym.Space[Any], seed: int) -> None:
        self._space = batch_space(space, _DRAWN)
        self._space.seed(seed)
        self._left: list[Any] = []  # the next one last

    def take(self, _obs: Any, _k: int) -> Any:
        if not self._left:
            self._left = [*iterate(self._space, self._space.sample())][::-1]
        return self._left.pop()


class _LegalActions:
    """The actions of the agents of a ``PettingZooEnv``, each with its own random stream."""

    def __init__(self, space: Any, seed: int) -> None:
        self._space, self._seed = space, seed
        self._own: dict[str, gym.Space[Any]] = {}

    def take(self, obs: Any, k: int) -> Any:
        row = spaces.take(obs, k)
        agent, mask = str(row["agent_id"]), row.get("mask")
        if agent not in self._own:
            self._own[agent] = copy.deepcopy(self._space(agent))
            state = np.random.SeedSequence([self._seed, *agent.encode()]).generate_state(1)
            self._own[agent].seed(int(state[0]))
        own = self._own[agent]
        is_masked = mask is not None and isinstance(own, gym.spaces.Discrete)
        return own.sample(np.asarray(mask, np.int8) if is_masked else None)
