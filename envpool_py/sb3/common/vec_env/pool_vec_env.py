"""``PoolVecEnv``: a VecEnv over any pool.

What holds for every backend:

* one request a step: envs are reset where they live, in the very step that ends their episode;
* observations, rewards (float32), dones (bool) and infos are the caller's own, and never change;
* a step that was begun is ended by ``step_wait``, or given up by ``reset``;
* after an error of one env, attributes can be read and ``reset`` goes on.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.block import StepResult
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

# A method of an env may have arguments of the same names.
_NAMES_OF_CALL = frozenset({"id", "method"})


class PoolVecEnv(OverPool):
    """A pool, seen as a VecEnv.

    Args:
        pool: made with ``autoreset_mode="same_step"``, and best with ``columns=True``, which saves
            work where observations are dicts or tuples. With ``reset_first=False`` a step before
            the first reset reaches the env. It may be a partial one (``wait_num``): a VecEnv waits
            for all envs.

    Attributes:
        pool: as given.
        spec: the ``EnvSpec`` of env 0, or None.

    Raises:
        TypeError: ``pool`` is no pool.
        ValueError: the pool does not reset its envs in the step that ends their episode.
        UnsuitableEnvError: the spaces or render modes of its envs differ.
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
        self.pool = pool
        # Their own, so that sampling from them, or reseeding them, is the caller's business alone.
        super().__init__(
            pool.num_envs,
            copy.deepcopy(_common(pool.observation_space, "observation_space")),
            copy.deepcopy(_common(pool.action_space, "action_space")),
        )
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
        """Reset all envs, with the seeds and options set for it; a step under way is given up.

        Returns:
            The first observations ``(num_envs, *shape)``; the infos are in ``reset_infos``.

        Raises:
            EnvError: an env raised; the seeds and options are kept.
            ClosedEnvironmentError: this was closed.
        """
        seeds = None if self._seeds.count(None) == self.num_envs else self._seeds
        obs, rows = self._reset_pool(seeds)
        self.reset_infos = rows.tolist()
        for info in self.reset_infos:
            del info["env_id"]
        return self._as_columns(obs)

    def step(self, actions: NDArray[Any]) -> VecEnvStepReturn:
        """Step all envs: what ``step_async`` and ``step_wait`` do, in one call of the pool.

        Args:
            actions: as ``step_async`` takes them.

        Returns:
            As ``step_wait``.

        Raises:
            AlreadyPendingCallError, ClosedEnvironmentError, EnvError, ResetNeeded, TypeError,
                ValueError: as those two.
        """
        halves = (self.step_async, PoolVecEnv.step_async), (self.step_wait, PoolVecEnv.step_wait)
        if self.pool.is_async or any(getattr(a, "__func__", a) is not b for a, b in halves):
            return super().step(actions)
        self._assert_no_step("step_async: ")
        actions = self._checked_actions(actions, 3)
        try:
            batch = self.pool.step(actions)
        except EnvError:
            self._drop_rows()
            raise
        return self._as_sb3(batch)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs.

        Args:
            actions: ``(num_envs, *shape)``, an array or a sequence.

        Raises:
            AlreadyPendingCallError: a step is under way.
            ResetNeeded: an env has raised, and was not reset since.
            TypeError, ValueError: the actions are wrong, or fewer than envs; nothing was sent.
            ClosedEnvironmentError: this was closed.

        Warns:
            UserWarning: there are more actions than envs; those left over are not used.
        """
        self._assert_no_step("step_async: ")
        self._send(self._checked_actions(actions, 4))

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that ``step_async`` has begun.

        Returns:
            ``obs`` ``(num_envs, *shape)``, of the next episode where an env is done; ``rewards``
            float32 ``(num_envs,)``; ``dones`` bool ``(num_envs,)``, terminated or truncated;
            ``infos``, a list of one dict per env, each with ``TimeLimit.truncated`` (truncated and
            not terminated) and, where done, ``terminal_observation``.

        Raises:
            NoAsyncCallError: no step was begun.
            EnvError: an env raised. The other envs have made the step, but its results are dropped;
                ``reset`` goes on.
            ClosedEnvironmentError: this was closed.
        """
        return self._as_sb3(self._received())

    def _as_sb3(self, batch: StepResult) -> VecEnvStepReturn:
        """A batch of the pool, all envs in order, as ``step_wait`` returns it."""
        obs, rewards, terminated, truncated, rows = batch
        dones = terminated | truncated
        infos: list[dict[str, Any]] = rows.tolist()
        for info in infos:
            del info["env_id"]
            info["TimeLimit.truncated"] = False
        for i in dones.nonzero()[0].tolist():
            infos[i] = self._end_episode(i, infos[i], truncated[i] and not terminated[i])
        return self._as_columns(obs), rewards.astype(np.float32), dones, infos

    def _end_episode(self, i: int, row: dict[str, Any], timeout: Any) -> dict[str, Any]:
        """Tell the info of an ended episode from that of the reset that followed it.

        Args:
            i: the env.
            row: the reset's info, with ``final_info`` and ``final_obs``.
            timeout: whether the episode was truncated and not terminated.

        Returns:
            The info of the ended episode.
        """
        info: dict[str, Any] = row.pop("final_info")
        info["terminal_observation"] = row.pop("final_obs")
        del row["TimeLimit.truncated"]
        info["TimeLimit.truncated"] = bool(timeout)
        self.reset_infos[i] = row
        return info

    def _checked_actions(self, actions: Any, stacklevel: int) -> Any:
        try:
            count = len(actions)
        except TypeError:
            raise TypeError(
                f"actions: got {type(actions).__name__}, but one action per env is needed"
            ) from None
        structured = isinstance(self.action_space, (gym.spaces.Dict, gym.spaces.Tuple))
        if count > self.num_envs and not structured:
            warnings.warn(
                f"got {count} actions for {self.num_envs} envs; those left over are not used",
                stacklevel=stacklevel,
            )
            return actions[: self.num_envs]
        return actions

    def _as_columns(self, obs: Any) -> VecEnvObs:
        """Observations of Dict and Tuple spaces as arrays, where the pool gives them as rows."""
        space = self.observation_space
        if (
            isinstance(obs, np.ndarray)
            and obs.dtype == object
            and isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
        ):
            return _stacked(space, obs.tolist())
        return obs

    # ----------------------------------------------------------------------- into the envs

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute; its value stays where it is.

        Args:
            attr_name: its name.

        Raises:
            AlreadyPendingCallError: a step is under way.
        """
        return all(self._ask(None, lambda ids: self.pool.apply(has_attribute, attr_name, id=ids)))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, that of the outermost wrapper that has it.

        Args:
            method_name: its name. ``"reset"`` resets these envs alone, through the pool; ``"step"``
                and ``"close"`` can't be called.
            *method_args: its arguments.
            indices: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each returned.

        Raises:
            EnvError: the method raised, there is none, or its result can't be sent. No reset is
                needed.
            ValueError: ``method_name`` is ``"step"`` or ``"close"``.
            AlreadyPendingCallError: a step is under way.
        """
        if method_name == "reset" and not method_args:
            return self._ask(indices, lambda ids: self._reset_some(ids, kwargs))
        if kwargs.keys() & _NAMES_OF_CALL:
            return self._ask(
                indices,
                lambda ids: self.pool.apply(call_method, method_name, method_args, kwargs, id=ids),
            )
        return self._ask(
            indices, lambda ids: self.pool.call(method_name, *method_args, id=ids, **kwargs)
        )

    def _reset_some(self, ids: list[int], kwargs: dict[str, Any]) -> list[Any]:
        seed = kwargs.get("seed")
        given = {**kwargs, "seed": None if seed is None else [seed] * len(ids)}
        try:
            obs, rows = self.pool.reset(ids, **given)
        except EnvError:
            self._drop_rows()
            raise
        obs = self._as_columns(obs)
        results = []
        for k, i in enumerate(ids):
            info = rows[k]
            del info["env_id"]
            self.reset_infos[i] = info
            results.append((_row(obs, k), info))
        return results

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env has a wrapper of this class, or of a subclass, around it.

        Classes are told by their module and name, so that a worker need not import them. Of
        Stable-Baselines3's ``Monitor`` and the one here either stands for both.

        Args:
            wrapper_class: the class.
            indices: which envs; None is all.

        Raises:
            AlreadyPendingCallError: a step is under way.
        """
        names = class_names(wrapper_class)
        return self._ask(indices, lambda ids: self.pool.apply(is_wrapped_by, names, id=ids))

    def _asked(self, ids: Sequence[int], ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        if len(set(ids)) == len(ids):
            return ask(list(ids))
        return [ask([i])[0] for i in ids]

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """What ``render`` of each env returns; None each where they have another render mode.

        Raises:
            AlreadyPendingCallError: a step is under way.

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
    """The options of a pool under a VecEnv: what was asked for, and what a VecEnv needs.

    Raises:
        TypeError: what a VecEnv decides itself was asked for.
    """
    own = {"autoreset_mode": "same_step", "reset_first": False, "columns": True}
    for name, value in own.items():
        if name in options:
            raise TypeError(f"{name} can't be given: a VecEnv needs {value!r}")
    # Checking values is VecCheckNan's business here, as with Stable-Baselines3.
    return {"validate": "off", **options, **own}


def _common(spaces: Sequence[Any], name: str) -> Any:
    """The space that all envs have."""
    first = spaces[0]
    if not isinstance(first, gym.Space):
        raise UnsuitableEnvError(f"env 0: {name} is {first!r}, but a Gymnasium space is needed")
    for i, space in enumerate(spaces):
        # A space class that can't compare is compared by its class.
        comparable = type(first).__eq__ is not object.__eq__
        if type(space) is not type(first) or (comparable and space != first):
            raise UnsuitableEnvError(f"env {i}: {name} is {space}, but that of env 0 is {first}")
    return first


def _stacked(space: gym.Space[Any], rows: Sequence[Any]) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: _stacked(part, [row[key] for row in rows]) for key, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_stacked(part, [row[n] for row in rows]) for n, part in enumerate(space))
    if space.shape is None or space.dtype is None:
        return np.fromiter(rows, dtype=object, count=len(rows))
    return np.asarray(rows, dtype=space.dtype)


def _row(obs: Any, k: int) -> Any:
    if isinstance(obs, dict):
        return {key: _row(part, k) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_row(part, k) for part in obs)
    return obs[k]
