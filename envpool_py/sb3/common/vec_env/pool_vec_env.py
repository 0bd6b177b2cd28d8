"""``PoolVecEnv``: a VecEnv over any pool."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py import spaces
from envpool_py.errors import EnvError
from envpool_py.pool import BaseVectorEnv
from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)
from envpool_py.sb3.common.vec_env.over_pool import OverPool
from envpool_py.sb3.inside import call_method, class_names, has_attribute, is_wrapped_by

#: Parameters of ``pool.call``. A method of an env may have arguments of the same names.
_CALL_PARAMETERS = frozenset({"id", "method"})
#: Options of the pool that a VecEnv sets itself.
_OWN_OPTIONS = {"autoreset_mode": "same_step", "reset_first": False, "columns": True}


class PoolVecEnv(OverPool):
    """A VecEnv over a pool. Arrays and infos that it returns never change later.

    Args:
        pool: made with ``autoreset_mode="same_step"``, and best with ``columns=True``, which saves
            work where observations are dicts or tuples. With ``reset_first=False`` a step before
            the first reset reaches the env. A VecEnv waits for all envs, whatever ``wait_num`` is.

    Attributes:
        pool: the pool.
        spec: the ``EnvSpec`` of env 0, or None.

    Raises:
        TypeError: ``pool`` is no pool.
        ValueError: the pool does not reset its envs in the step that ends their episode, or their
            spaces differ.
        UnsuitableEnvError: an env has no space, or the render modes differ.
        ClosedEnvironmentError: the pool is closed.
    """

    def __init__(self, pool: BaseVectorEnv) -> None:
        if not isinstance(pool, BaseVectorEnv):
            raise TypeError(f"pool: got {type(pool).__name__}, but a pool is needed")
        if pool.autoreset_mode is not gym.vector.AutoresetMode.SAME_STEP:
            raise ValueError(
                f"pool: autoreset_mode is {pool.autoreset_mode!r}, but a VecEnv resets its envs"
                " itself; make the pool with autoreset_mode='same_step'"
            )
        own = []
        for name in ("observation_space", "action_space"):
            space = getattr(pool, f"single_{name}")
            if not isinstance(space, gym.Space):
                raise UnsuitableEnvError(
                    f"env 0: {name} is {space!r}, but a Gymnasium space is needed"
                )
            own.append(copy.deepcopy(space))  # a seeded reset of the pool seeds the pool's space
        self.pool = pool
        self._layout = spaces.layout_of(own[0])
        super().__init__(pool.num_envs, *own)
        with contextlib.suppress(EnvError):
            metadata = pool.get_env_attr("metadata", id=0)[0]
            if isinstance(metadata, dict) and metadata:
                self.metadata = copy.deepcopy(metadata)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool!r})"

    @property
    def spec(self) -> Any:
        """The ``EnvSpec`` of env 0; None where it has none, or none that can be sent."""
        try:
            return self.pool.get_env_attr("spec", id=0)[0]
        except EnvError:
            return None

    # ---------------------------------------------------------------------------- reset and step

    def reset(self) -> VecEnvObs:
        """Reset all envs, with the seeds and options set for this reset; cancel a pending step.

        Returns:
            The first observations ``(num_envs, *shape)``; the infos are in ``reset_infos``.

        Raises:
            EnvError: an env raised; the seeds and options are kept.
        """
        seeds = None if self._seeds.count(None) == self.num_envs else self._seeds
        obs, infos = self._reset_pool(seeds)
        self.reset_infos = infos.tolist()
        for info in self.reset_infos:
            del info["env_id"]
        return self._batch(obs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs.

        Args:
            actions: ``(num_envs, *shape)``, an array or a sequence.

        Raises:
            ResetNeeded: an env has raised, and was not reset since.
            TypeError, ValueError: the actions are wrong, or fewer than envs; nothing was sent.

        Warns:
            UserWarning: there are more actions than envs; the last ones are not used.
        """
        self._assert_no_step("step_async: ")
        try:
            count = len(actions)
        except TypeError:
            raise TypeError(
                f"actions: got {type(actions).__name__}, but one action per env is needed"
            ) from None
        structured = isinstance(self.action_space, (gym.spaces.Dict, gym.spaces.Tuple))
        if count > self.num_envs and not structured:
            warnings.warn(
                f"got {count} actions for {self.num_envs} envs; the last ones are not used",
                stacklevel=3,  # the caller of step()
            )
            actions = actions[: self.num_envs]
        self._send(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the pending step; return ``obs, rewards, dones, infos`` as ``VecEnv`` does.

        Raises:
            NoAsyncCallError: no step is pending.
            EnvError: an env raised. The other envs have made the step, but its results are dropped;
                then attributes can be read, and ``reset`` continues.
        """
        obs, rewards, terminated, truncated, rows = self._received()
        dones = terminated | truncated
        infos: list[dict[str, Any]] = rows.tolist()
        for info in infos:
            del info["env_id"]
            info["TimeLimit.truncated"] = False
        for i in dones.nonzero()[0].tolist():
            begun = infos[i]
            del begun["TimeLimit.truncated"]
            ended: dict[str, Any] = begun.pop("final_info")
            ended["terminal_observation"] = begun.pop("final_obs")
            ended["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            self.reset_infos[i] = begun
            infos[i] = ended
        return self._batch(obs), rewards.astype(np.float32), dones, infos

    def _batch(self, obs: Any) -> VecEnvObs:
        """Observations of Dict and Tuple spaces as arrays, where the pool returns rows."""
        layout = self._layout
        if spaces.is_leaf(layout) or not isinstance(obs, np.ndarray):
            return obs
        columns = zip(*[spaces.split(layout, row, "obs") for row in obs], strict=True)
        pairs = zip(spaces.leaves(layout), columns, strict=True)
        stacked = [
            spaces.stack_objects(list(column), leaf)
            if leaf.dtype is None
            else np.asarray(column, leaf.dtype)
            for leaf, column in pairs
        ]
        return spaces.join(layout, stacked)

    # ----------------------------------------------------------------------- into the envs

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute; its value need not be picklable."""
        return all(self._ask(None, lambda ids: self.pool.apply(has_attribute, attr_name, id=ids)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, that of the outermost wrapper that has it.

        ``"reset"`` resets these envs alone, through the pool.

        Raises:
            EnvError: the method raised, there is none, or its result can't be sent. No reset is
                needed.
            ValueError: ``method_name`` is ``"step"`` or ``"close"``.
        """
        pool = self.pool
        if method_name == "reset" and not method_args:
            return self._ask(indices, lambda ids: self._reset_some(ids, kwargs))
        if kwargs.keys() & _CALL_PARAMETERS:
            return self._ask(
                indices,
                lambda ids: pool.apply(call_method, method_name, method_args, kwargs, id=ids),
            )
        return self._ask(
            indices, lambda ids: pool.call(method_name, *method_args, id=ids, **kwargs)
        )

    def _reset_some(self, ids: list[int], kwargs: dict[str, Any]) -> list[Any]:
        seed = kwargs.get("seed")
        try:
            obs, infos = self.pool.reset(
                ids, **{**kwargs, "seed": None if seed is None else [seed] * len(ids)}
            )
        except EnvError:
            self._drop_rows()
            raise
        parts = spaces.split(self._layout, self._batch(obs), "obs")
        results = []
        for k, (i, info) in enumerate(zip(ids, infos, strict=True)):
            del info["env_id"]
            self.reset_infos[i] = info
            results.append((spaces.join(self._layout, [part[k] for part in parts]), info))
        return results

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env has a wrapper of this class, or of a subclass, around it.

        Classes are found by module and name, so that a worker need not import them. Our
        ``Monitor`` and Stable-Baselines3's count as the same class.
        """
        names = class_names(wrapper_class)
        return self._ask(indices, lambda ids: self.pool.apply(is_wrapped_by, names, id=ids))

    def _asked(self, ids: Sequence[int], ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        if len(set(ids)) == len(ids):
            return ask(list(ids))
        return [ask([i])[0] for i in ids]

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """What ``render`` of each env returns; None each where they have another render mode.

        Warns:
            UserWarning: the render mode is not ``"rgb_array"``.
        """
        self._assert_no_step()
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"get_images: render_mode is {self.render_mode!r}, but images need 'rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.pool.render()


def pool_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a pool under a VecEnv; TypeError for one that a VecEnv sets itself."""
    for name, value in _OWN_OPTIONS.items():
        if name in options:
            raise TypeError(f"{name} can't be given: a VecEnv needs {value!r}")
    # As with Stable-Baselines3, VecCheckNan checks values.
    return {"validate": "off", **options, **_OWN_OPTIONS}
