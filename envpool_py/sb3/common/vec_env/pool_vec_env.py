"""``PoolVecEnv``: a VecEnv over any pool."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Dict, Tuple
from numpy.typing import NDArray

from envpool_py.env import spaces
from envpool_py.env.common_spec import missing_space
from envpool_py.errors import EnvError, closed_on_error
from envpool_py.pool.adapter_base import PoolAdapter
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.engine_for_interfaces import drained_rows
from envpool_py.pool.keywords import WHOLE, Fixed, check_options
from envpool_py.sb3.called_in_workers import call_method, class_names, has_attribute, is_wrapped_by
from envpool_py.sb3.common.vec_env.base_vec_env import (
    VecEnv,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
    require,
)

#: The options of the pool that the classes with ``env_fns`` decide.
DECIDED = {
    **WHOLE,
    "autoreset_mode": Fixed("same_step", "a VecEnv resets its envs itself"),
    "columns": Fixed(True, "a VecEnv returns arrays"),
    "copy": Fixed(True, "algorithms keep the arrays that a VecEnv returns"),
    "reset_first": Fixed(False, "a step before the first reset reaches the env"),
}


class OverPool(PoolAdapter, VecEnv):
    """The base class of VecEnvs over a pool.

    ``step_wait`` ends a pending step and ``reset`` cancels it; until then every other request
    raises ``AlreadyPendingCallError``. After ``close`` all raise ``ClosedEnvironmentError``.
    The attribute ``pool`` steps the envs.
    """

    _stepping = False
    in_rollout = False  # whether ``AsyncRollouts`` sends steps of some envs
    _is_wrapped_by: Callable[..., bool] = staticmethod(is_wrapped_by)

    def _assert_no_step(self, prefix: str = "") -> None:
        self._assert_no_rollout()
        if self._stepping:
            text = f"{prefix}a step is pending; call step_wait(), or reset()"
            raise AlreadyPendingCallError(text, "step_async")

    def _assert_no_rollout(self) -> None:
        if self.in_rollout and self.pool.waiting_id:
            text = "other envs make their steps already, by AsyncRollouts; a callback must not use"
            where = "the envs here: call it in _on_rollout_start or _on_rollout_end"
            raise AlreadyPendingCallError(f"{text} {where}", "step_async")

    def _send(self, actions: Any) -> None:
        self.pool.send(actions)
        self._stepping = True

    def _received(self) -> Any:
        if not self._stepping and not self.pool.is_closed:
            text = "step_wait: no step is pending; step_async(actions) begins one"
            raise NoAsyncCallError(text, "step_wait")
        self._stepping = False
        return self._rows(self.pool.step, None, np.arange(len(self.pool)))

    def _reset_pool(self, seeds: Any) -> Any:
        """Reset all envs, with these seeds and the options set; cancel a pending step."""
        self._assert_no_rollout()
        self._stepping = False
        self.pool.cancel()
        # None in a list would reach the env, and not every env takes seed and options.
        seeds = seeds if any(one is not None for one in seeds) else None
        options = [one or None for one in self._options] if any(self._options) else None
        batch = self._rows(self.pool.reset, seed=seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        return batch

    def _rows(self, request: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a method of the pool returns; if it raises, nothing is left in flight."""
        try:
            return request(*args, **kwargs)
        except EnvError:  # the other envs have made their step
            for _ in drained_rows(self.pool):
                pass
            raise
        except BaseException:  # Ctrl-C, or an exception of a signal handler
            self.pool.cancel()
            raise

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        An env that raises then is a RuntimeWarning.
        """
        self._stepping = False
        self.pool.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._ask(indices, lambda ids: self.pool.get_env_attr(attr_name, id=ids))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        ids = list(dict.fromkeys(map(self._env_of, self._get_indices(indices))))
        self._assert_no_step()
        found = np.array(self.pool.apply(has_attribute, attr_name, id=ids), dtype=np.bool_)
        self.pool.set_env_attr(attr_name, value, id=np.array(ids)[found])
        self.pool.apply(setattr, attr_name, value, id=np.array(ids)[~found])

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """For each row what a method of its env returns, which is called once for each env.

        The method is that of the outermost wrapper that has it. ``"reset"``, ``"step"`` and
        ``"close"`` are a ValueError. EnvError if the method raises, there is none, or its result
        can't be sent; then no reset is needed.
        """
        pool, args = self.pool, (method_name, *method_args)
        if kwargs.keys() & {"id", "env_id", "method"}:  # pool.call has parameters of these names
            call = (call_method, method_name, method_args, kwargs)
            return self._ask(indices, lambda ids: pool.apply(*call, id=ids))
        return self._ask(indices, lambda ids: pool.call(*args, id=ids, **kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether the env of each row has a wrapper of this class, found by module and name.

        Our ``Monitor`` and Stable-Baselines3's count as the same class.
        """
        asked = self._is_wrapped_by, class_names(wrapper_class)
        return self._ask(indices, lambda ids: self.pool.apply(*asked, id=ids))

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """The image ``(height, width, 3)`` of each env; None and a UserWarning if there is none."""
        self._assert_no_step()
        if self.render_mode != "rgb_array":
            text = f"render_mode is {self.render_mode!r}, but images need 'rgb_array'"
            warnings.warn(f"get_images: {text}", stacklevel=2)
            return [None] * len(self.pool)
        return self.pool.render()

    def _ask(self, indices: VecEnvIndices, ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        ids = [self._env_of(row) for row in self._get_indices(indices)]
        self._assert_no_step()
        distinct = list(dict.fromkeys(ids))
        answers = dict(zip(distinct, ask(distinct), strict=True))
        return [answers[i] for i in ids]

    def _env_of(self, row: int) -> int:
        return row


class PoolVecEnv(OverPool):
    """A VecEnv over a pool. Arrays and infos that it returns never change later.

    The pool is made with ``autoreset_mode="same_step"``, and best with ``columns=True``, which
    saves work where observations are dicts or tuples. With ``reset_first=False`` a step before the
    first reset reaches the env. A VecEnv waits for all envs, whatever ``wait_num`` is. Rewards are
    float64, as of Stable-Baselines3's ``SubprocVecEnv``; float32 in ``DummyVecEnv``, as there.

    Raises:
        TypeError, ValueError: not a pool, another autoreset mode, or envs with different spaces.
        UnsuitableEnvError: an env has no space, or the render modes differ.
        ClosedEnvironmentError: the pool is closed.
    """

    _reward_dtype: type[np.floating[Any]] = np.float64

    def __init__(self, pool: BaseVectorEnv) -> None:
        if not isinstance(pool, BaseVectorEnv):
            raise TypeError(f"pool: got {type(pool).__name__}, but a pool is needed")
        if pool.autoreset_mode is not gym.vector.AutoresetMode.SAME_STEP:
            text = "a VecEnv resets its envs itself; make the pool with autoreset_mode='same_step'"
            raise ValueError(f"pool: autoreset_mode is {pool.autoreset_mode!r}, but {text}")
        own: list[Any] = [pool.single_observation_space, pool.single_action_space]
        for name, space in zip(("observation_space", "action_space"), own, strict=True):
            text = f"env 0: {name} is {space!r}, but a Gymnasium space is needed"
            text = missing_space(0, name) if space is None else text
            require(isinstance(space, gym.Space), text)
        self.pool = pool
        self._layout = spaces.layout_of(own[0])
        # Copies, because a seeded reset of the pool seeds the pool's spaces.
        super().__init__(pool.num_envs, *map(copy.deepcopy, own))
        with contextlib.suppress(EnvError):
            metadata = pool.get_env_attr("metadata", id=0)[0]
            if isinstance(metadata, dict) and metadata:
                self.metadata = copy.deepcopy(metadata)

    def _make_pool(self, pool_class: type[BaseVectorEnv], env_fns: Any, options: Any) -> None:
        """Make the pool of this VecEnv; it is closed if the VecEnv can't be constructed."""
        rest = check_options(pool_class, type(self).__name__, options, DECIDED)
        own = {name: each.value for name, each in DECIDED.items() if name not in WHOLE}
        # As with Stable-Baselines3, VecCheckNan checks values.
        pool = pool_class(env_fns, **own, **{"validate": "off", **rest})
        with closed_on_error(pool):
            PoolVecEnv.__init__(self, pool)

    @property
    def spec(self) -> Any:
        """The ``EnvSpec`` of env 0; None where it has none, or none that can be sent."""
        try:
            return self.pool.get_env_attr("spec", id=0)[0]
        except EnvError:
            return None

    def reset(self) -> VecEnvObs:
        obs, infos = self._reset_pool(self._seeds)
        self.reset_infos = infos.tolist()
        for info in self.reset_infos:
            del info["env_id"]
        return spaces.as_columns(self._layout, obs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs; ``actions`` are an array or a sequence, one for each env.

        More actions than envs are a UserWarning, and the last ones are not used.

        Raises:
            ResetNeeded: an env has raised, and was not reset since.
            TypeError, ValueError: the actions are wrong, or fewer than envs; nothing was sent.
        """
        self._assert_no_step("step_async: ")
        n, in_parts = self.num_envs, isinstance(self.action_space, (Dict, Tuple))
        if not in_parts and np.shape(actions)[:1] > (n,):
            text = f"got {len(actions)} actions for {n} envs; the last ones are not used"
            warnings.warn(text, stacklevel=3)  # the caller of step()
            actions = actions[:n]
        self._send(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the pending step; return ``obs, rewards, dones, infos`` as ``VecEnv`` does.

        Raises:
            NoAsyncCallError: no step is pending.
            EnvError: an env raised. The other envs have made the step, but its results are dropped;
                then attributes can be read, and ``reset`` continues.
        """
        return self._results(*self._received())

    def _results(
        self, obs: Any, rewards: Any, terminated: Any, truncated: Any, rows: Any
    ) -> VecEnvStepReturn:
        """What ``step_wait`` returns, of rows of any envs."""
        dones = terminated | truncated
        infos: list[dict[str, Any]] = rows.tolist()
        timeouts = (truncated & ~terminated).tolist()
        for i, (info, done) in enumerate(zip(rows, dones.tolist(), strict=True)):
            env_id = info.pop("env_id")
            if done:
                infos[i] = info.pop("final_info")
                infos[i]["terminal_observation"] = info.pop("final_obs")
                self.reset_infos[env_id] = info
            infos[i]["TimeLimit.truncated"] = timeouts[i]
        rewards = rewards.astype(self._reward_dtype, copy=False)
        return spaces.as_columns(self._layout, obs), rewards, dones, infos

    def has_attr(self, attr_name: str) -> bool:
        return all(self._ask(None, lambda ids: self.pool.apply(has_attribute, attr_name, id=ids)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the envs; ``"reset"`` returns ``(obs, info)`` of these alone.

        ``"step"`` and ``"close"`` are a ValueError, errors of the method an EnvError.
        """
        if method_name == "reset" and not method_args:
            return self._ask(indices, lambda ids: self._reset_some(ids, **kwargs))
        return super().env_method(method_name, *method_args, indices=indices, **kwargs)

    def _reset_some(self, ids: list[int], seed: int | None = None, **kwargs: Any) -> list[Any]:
        obs, infos = self._rows(self.pool.reset, ids, seed=[seed] * len(ids), **kwargs)
        obs = spaces.as_columns(self._layout, obs)
        for i, info in zip(ids, infos, strict=True):
            del info["env_id"]
            self.reset_infos[i] = info
        return [(spaces.take(obs, k), info) for k, info in enumerate(infos)]
