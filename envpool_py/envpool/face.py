"""EnvPool's methods over a pool."""

from __future__ import annotations

import functools
import importlib
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env_ids import IdArray, Ids, one_of, resolve
from envpool_py.gymnasium.infos import combine_rows
from envpool_py.gymnasium.vector_env import split_mask
from envpool_py.pool.adapter_base import PoolAdapter
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.seeding import Seed, per_env

#: (obs, reward, terminated, truncated, info)
Flags = NDArray[np.bool_]
Step = tuple[Any, NDArray[np.float32], Flags, Flags, dict[str, Any]]

if TYPE_CHECKING:

    class TimeStep(NamedTuple):
        """``dm_env.TimeStep``, whose fields have no types."""

        step_type: NDArray[np.int32]
        reward: NDArray[np.float32]
        discount: NDArray[np.float32]
        observation: Any

        def first(self) -> Flags: ...  # noqa: D102 - dm_env's
        def mid(self) -> Flags: ...  # noqa: D102
        def last(self) -> Flags: ...  # noqa: D102


class EnvPool(PoolAdapter):
    """Many envs with EnvPool's methods; ``make`` makes them.

    An env resets itself: the action after the end of an episode is ignored, and the row is the
    first of the next episode, with reward 0. With ``batch_size < num_envs`` a batch is the first
    ``batch_size`` rows that are ready, in the order in which envs finished; otherwise all envs, in
    the order sent. A batch is smaller only if fewer envs are in flight.

    A call raises the error of an env; ``recv()`` then returns the rows of the other envs, and the
    failed env accepts ``reset(env_id)``.

    Attributes:
        pool: the pool underneath, for ``restart``, ``call``, ``render`` and ``stats``.
        config: a dict of the arguments of ``make``, completed.
        spec: ``config`` as a named tuple, ``id``, ``reward_threshold`` and the spaces of one env;
            ``spec.observation_spec()`` and ``spec.action_spec()`` are those of ``dm_env``.
    """

    def __init__(self, pool: BaseVectorEnv, config: Mapping[str, Any], task_id: Any) -> None:
        self.pool = pool
        self.config = dict(config)
        self.num_envs = pool.num_envs
        self.all_env_ids = np.arange(pool.num_envs, dtype=np.int32)
        self.is_async = pool.is_async
        pool._inner.cap_batch_size()
        self._elapsed = np.zeros_like(self.all_env_ids)
        seed = config["env_seed"] or config["seed"]  # for the first resets
        self._seeds = np.array(per_env(seed, range(pool.num_envs)), object)
        record = namedtuple("Config", self.config)(**self.config)  # noqa: PYI024
        self.spec: Any = SimpleNamespace(id=task_id, config=record)
        self.spec.reward_threshold = config["reward_threshold"]
        for name in ("observation", "action"):
            space = getattr(pool, f"single_{name}_space")
            spec = functools.partial(_spec, f"{name}_spec", space)
            fields = {f"{name}_space": space, f"gymnasium_{name}_space": space}
            vars(self.spec).update({**fields, f"{name}_spec": spec})

    def _result(self, batch: tuple[Any, ...], info: dict[str, Any], *, reset: bool) -> Any:
        """Return a batch in the form of ``recv``, or with ``reset`` in the form of ``reset``."""
        obs, reward, *flags = batch
        return (obs, info) if reset else (obs, reward.astype(np.float32), *flags, info)

    def async_reset(self) -> None:
        """Cancel what is in flight, and begin a reset of all envs; ``recv`` returns the rows."""
        self._reset(None, None, None, self.pool.send_reset)

    def send(self, action: Any, env_id: Ids = None, *, id: Ids = None) -> None:
        """Send one action per id and return at once; ``recv`` returns the rows.

        ``action`` ``(k, *shape)`` may also be a dict with the keys ``action`` and ``env_id``; no
        ids: all envs. IndexError, TypeError, ValueError: wrong ids or actions; nothing was sent.
        AlreadyPendingCallError: an env is in flight; ResetNeeded: it was not reset.
        """
        self.pool.send(*self._actions(action, one_of(env_id, id)))

    def recv(self, reset: bool = False, return_info: bool = True) -> TimeStep:  # noqa: ARG002
        """The next batch, with ``reset`` in its form; ValueError: nothing is in flight."""
        return self._convert(self.pool.recv(), self.pool.batch_ids, reset=reset)

    def step(self, action: Any, env_id: Ids = None, *, id: Ids = None) -> TimeStep:
        """``send``, then ``recv``: their values and errors."""
        batch = self.pool.step(*self._actions(action, one_of(env_id, id)))
        return self._convert(batch, self.pool.batch_ids)

    def reset(
        self, env_id: Ids = None, *, id: Ids = None, seed: Seed = None, options: Any = None
    ) -> TimeStep:
        """Reset envs; their requests in flight are cancelled.

        Args:
            env_id: the envs. Their rows are returned in this order. None: all envs; the first
                ``batch_size`` rows are returned, ``recv`` returns the others.
            id: the same as ``env_id``.
            seed: as in the pool. By default the first reset of an env takes the seed of ``make``.
            options: for the envs' ``reset``; ``reset_mask``, a bool array, replaces ``env_id``.
        """
        masked, options = split_mask(options, self.num_envs)
        env_id = one_of(env_id, id) if masked is None else masked
        if env_id is None and self.pool.is_async:
            self._reset(None, seed, options, self.pool.send_reset)
            return self.recv(reset=True)
        obs, infos = self._reset(env_id, seed, options, self.pool.reset)
        ids, no = self.pool.batch_ids, np.zeros(len(infos), dtype=bool)
        self._elapsed[ids], self._seeds[ids] = -1, None
        return self._convert((obs, no, no, no, infos), ids, reset=True)

    def close(self, **_: Any) -> None:
        """Close the pool."""
        self.pool.close()

    def render(self, env_ids: Ids = None, *, env_id: Ids = None, id: Ids = None) -> Any:
        """Return the images of these envs, uint8 ``(k, height, width, 3)``; of env 0 by default.

        ``env_id`` and ``id`` are the same as ``env_ids``. None with another ``render_mode`` than
        ``"rgb_array"``; RuntimeError without one.
        """
        mode = self.config.get("render_mode")
        if mode is None:
            raise RuntimeError("render: the envs have no render_mode; pass render_mode='rgb_array'")
        ids = one_of(one_of(env_ids, env_id), id)
        images = self.pool.render(0 if ids is None else ids)
        return np.stack(images) if mode == "rgb_array" else None

    def _reset(self, env_id: Ids, seed: Seed, options: Any, call: Callable[..., Any]) -> Any:
        ids = resolve(env_id, self.num_envs)
        self.pool.cancel(ids)
        if seed is None and any(one is not None for one in self._seeds[ids]):
            seed = self._seeds[ids]  # None in a list would reach the env
        return call(ids, seed=seed, options=options)

    def _actions(self, action: Any, env_id: Ids) -> tuple[Any, Ids]:
        if isinstance(action, dict) and "env_id" in action:
            env_id, action = action["env_id"], action["action"]
        if action is None:
            raise TypeError("action: expected one per env, got None; recv() returns rows")
        return action, env_id

    def _convert(self, batch: Sequence[Any], ids: IdArray, *, reset: bool = False) -> TimeStep:
        env_id, infos = ids.astype(np.int32), batch[4]
        elapsed = self._elapsed[ids] + np.int32(1)
        info: dict[str, Any] = {"env_id": env_id, "players": {"env_id": env_id}}
        begun = [k for k, one in enumerate(infos) if one.get("is_reset") is True]
        elapsed[begun], self._seeds[ids[begun]] = 0, None  # only now: a reset may be cancelled
        info |= combine_rows(range(len(infos)), infos, len(infos))
        self._elapsed[ids] = info["elapsed_step"] = elapsed
        result: TimeStep = self._result(tuple(batch[:4]), info, reset=reset)
        return result


def _spec(name: str, space: gym.Space[Any]) -> Any:
    return getattr(importlib.import_module("envpool_py.envpool.dm"), name)(space)  # needs dm_env


class GymnasiumEnvPool(EnvPool, gym.vector.VectorEnv, gym.Env):  # type: ignore[misc]
    """``env_type="gymnasium"`` and ``"gym"``.

    The spaces are those of one env. ``reset`` returns ``obs, info``; ``step`` and ``recv`` return
    ``obs, reward, terminated, truncated, info``: observations in the dtype of their space (dicts
    and tuples of arrays for Dict and Tuple spaces), float32 rewards, bool flags, and a dict of
    arrays with ``env_id``, ``elapsed_step`` and the envs' own infos.
    """

    if TYPE_CHECKING:
        recv: Callable[..., Step]  # type: ignore[assignment]
        step: Callable[..., Step]  # type: ignore[assignment]
        reset: Callable[..., tuple[Any, dict[str, Any]]]  # type: ignore[assignment]
    is_vector_env = True
    _mode = gym.vector.AutoresetMode.NEXT_STEP
    metadata: Any = {"render_modes": ["rgb_array"], "autoreset_mode": _mode}  # noqa: RUF012

    def __init__(self, pool: BaseVectorEnv, config: Mapping[str, Any], task_id: Any) -> None:
        super().__init__(pool, config, task_id)
        self.observation_space = self.single_observation_space = self.spec.observation_space
        self.action_space = self.single_action_space = self.spec.action_space
        self.render_mode = config.get("render_mode")
