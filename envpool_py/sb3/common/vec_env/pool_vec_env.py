"""``PoolVecEnv``: a VecEnv over any pool.

What holds for every backend:

* one request a step: envs are reset where they live, in the very step that ends their episode;
* observations, rewards (float32), dones (bool) and infos are the caller's own, and never change;
* a step that was begun is ended by ``step_wait``, or given up by ``reset``; nothing else comes in
  between, and no answer is taken for that of another request;
* after an error of one env, attributes can be read and ``reset`` goes on.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from numpy.typing import NDArray

from envpool_py.errors import EnvError
from envpool_py.life import StepResult
from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnv,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)
from envpool_py.sb3.inside import class_names, has_attribute, is_wrapped_by
from envpool_py.vector_env import BaseVectorEnv
from envpool_py.worker.dummy import DummyEnvWorker


class PoolVecEnv(VecEnv):
    """A pool, seen as a VecEnv.

    Args:
        pool: made with ``autoreset_mode="same_step"``, and best with ``columns=True``, which saves
            work where observations are dicts or tuples. It may be a partial one (``wait_num``): a
            VecEnv waits for all envs.

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
        self._everything = np.arange(pool.num_envs)
        self._stepping = False
        # In this process nothing is gained by beginning early, and what has not begun can be undone.
        self._begins_late = issubclass(pool.worker_class, DummyEnvWorker)
        self._actions: Any = None
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
        self._assert_open()
        self._give_up()
        seeds = None if self._seeds.count(None) == self.num_envs else self._seeds
        options = [one or None for one in self._options] if any(self._options) else None
        try:
            obs, rows = self.pool.reset(seed=seeds, options=options)
        except EnvError:
            self._give_up()
            raise
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = rows.tolist()
        for info in self.reset_infos:
            del info["env_id"]
        return self._as_columns(obs)

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
        self._assert_open()
        if self._stepping:
            raise AlreadyPendingCallError(
                "step_async: a step is under way; step_wait() brings what comes of it", "step_async"
            )
        actions = self._checked_actions(actions)
        if self._begins_late:
            self._actions = actions
        else:
            self.pool.send(actions)
        self._stepping = True

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
        self._assert_open()
        if not self._stepping:
            raise NoAsyncCallError(
                "step_wait: no step is under way; step_async(actions) begins one", "step_wait"
            )
        try:
            batch = self._fetch()
        except EnvError:
            self._give_up()
            raise
        except Exception:
            self._stepping = False
            raise
        self._stepping = False
        obs, rewards, terminated, truncated, rows = batch
        dones = terminated | truncated
        infos: list[dict[str, Any]] = rows.tolist()
        timeouts = (False,) * self.num_envs
        if dones.any():
            self._end_episodes(infos, dones)
            timeouts = (truncated & ~terminated).tolist()
        for info, timeout in zip(infos, timeouts, strict=True):
            info.pop("env_id", None)
            info["TimeLimit.truncated"] = timeout
        return self._as_columns(obs), rewards.astype(np.float32), dones, infos

    def _fetch(self) -> StepResult:
        pool = self.pool
        if self._begins_late and not pool.is_async:
            return pool.step(self._actions)
        if self._begins_late:
            pool.send(self._actions)
        return pool.step(None, self._everything) if pool.is_async else pool.recv()

    def _end_episodes(self, infos: list[dict[str, Any]], dones: NDArray[np.bool_]) -> None:
        """Tell the infos of the ended episodes from those of the resets that followed."""
        for i in np.flatnonzero(dones).tolist():
            row = infos[i]
            info = dict(row.pop("final_info"))
            info["terminal_observation"] = row.pop("final_obs")
            del row["env_id"]
            self.reset_infos[i] = row
            infos[i] = info

    def _checked_actions(self, actions: Any) -> Any:
        try:
            count = len(actions)
        except TypeError:
            raise TypeError(
                f"actions: got {type(actions).__name__}, but one action per env is needed"
            ) from None
        if isinstance(actions, dict):  # of a Dict space: the pool counts their rows
            return actions
        if count > self.num_envs:
            warnings.warn(
                f"got {count} actions for {self.num_envs} envs; those left over are not used",
                stacklevel=4,
            )
            return actions[: self.num_envs]
        return actions

    def _give_up(self) -> None:
        """Drop the step under way, and whatever is left of requests that failed."""
        self._stepping = False
        self._actions = None
        while self.pool.waiting_id:
            with contextlib.suppress(EnvError):
                self.pool.drain()

    def _assert_open(self) -> None:
        if self.pool.is_closed:
            raise ClosedEnvironmentError(f"{type(self).__name__} is closed")

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

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        Warns:
            RuntimeWarning: closing an env raised.
        """
        self.pool.close()

    # ----------------------------------------------------------------------- into the envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each env, from the outermost wrapper that has it.

        Args:
            attr_name: its name.
            indices: which envs; None is all.

        Raises:
            EnvError: an env has no such attribute (an AttributeError too), reading it raised, or
                its value can't be sent. No reset is needed.
            AlreadyPendingCallError: a step is under way.
        """
        return self._ask(indices, lambda ids: self.pool.get_env_attr(attr_name, id=ids))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute of each env: where it is, else on the base env.

        Args:
            attr_name: its name.
            value: its value, the same for all.
            indices: which envs; None is all.

        Raises:
            EnvError: setting it raised.
            AlreadyPendingCallError: a step is under way.
        """
        ids = list(dict.fromkeys(self._get_indices(indices)))
        self._assert_idle()
        self.pool.set_env_attr(attr_name, value, id=ids)

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
        return self._ask(
            indices, lambda ids: self.pool.call(method_name, *method_args, id=ids, **kwargs)
        )

    def _reset_some(self, ids: list[int], kwargs: dict[str, Any]) -> list[Any]:
        seed = kwargs.get("seed")
        given = {**kwargs, "seed": None if seed is None else [seed] * len(ids)}
        obs, rows = self.pool.reset(ids, **given)
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

    def _ask(self, indices: VecEnvIndices, ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        ids = self._get_indices(indices)
        self._assert_idle()
        if len(set(ids)) == len(ids):
            return ask(ids)
        return [ask([i])[0] for i in ids]

    def _assert_idle(self) -> None:
        self._assert_open()
        if self._stepping:
            raise AlreadyPendingCallError(
                "a step is under way; step_wait() brings what comes of it", "step_async"
            )

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """What ``render`` of each env returns; None each where they have another render mode.

        Raises:
            AlreadyPendingCallError: a step is under way.

        Warns:
            UserWarning: the render mode is not ``"rgb_array"``.
        """
        self._assert_idle()
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"get_images: render_mode is {self.render_mode!r}, but images need 'rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.pool.render()


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
