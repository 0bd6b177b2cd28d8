"""``VectorEnv``: Gymnasium's interface over a pool."""

from __future__ import annotations

import copy as copy_
import functools
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import iterate

from envpool_py.errors import EnvError, WorkerDiedError
from envpool_py.gymnasium import batches, inside
from envpool_py.gymnasium.infos import combine
from envpool_py.ids import IdArray
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import ShmemVectorEnv
from envpool_py.spaces import Array, snapshot

#: (obs, rewards, terminations, truncations, infos)
Step = tuple[Any, Array, Array, Array, dict[str, Any]]

#: Seconds that a wait of no length takes, to look at what is there.
_LOOK = 1e-3


class VectorEnv(gym.vector.VectorEnv[Any, Any, Array]):
    """Gymnasium's ``VectorEnv`` over a pool, with the methods of ``AsyncVectorEnv``.

    After a ``TimeoutError`` of ``reset_wait`` or ``step_wait``, call the same method again to wait
    on, or ``reset``, which cancels the call. An env that has raised, or whose process has ended,
    needs a ``reset``, alone (``options={"reset_mask": ...}``) or with all others; ``reset`` starts
    an ended process again.

    Args:
        env_fns: one callable per env, or a pool that waits for all rows, with the options of
            ``VectorEnv.pool_options({})`` for speed and a step before the first reset.
        shared_memory: False allows spaces that are none of Gymnasium's; no other effect.
        copy: False: observations are views that the next call changes.
        context: start method of the processes; None is multiprocessing's default.
        daemon: no effect. The processes end with this one, and may have children.
        worker: not supported.
        observation_mode: ``"same"``, ``"different"`` (other bounds in each env), or a tuple of the
            batched and the single observation space.
        autoreset_mode: an ``AutoresetMode`` or its value.
        max_concurrency: how many envs may be at work at a time: the number of processes.
        **options: of ``ShmemVectorEnv``: ``num_processes``, ``on_error``, ``step_timeout``, ...

    Attributes:
        pool: the pool; do not use it while a call is pending.

    Raises:
        RuntimeError: the envs have different spaces.
        TypeError, ValueError: an argument is wrong.
        EnvError: an env_fn raised; also an instance of the original exception's class.
    """

    autoreset_mode: AutoresetMode

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | BaseVectorEnv,
        shared_memory: bool = True,
        copy: bool = True,
        context: Any = None,
        daemon: bool = True,  # noqa: ARG002 - Gymnasium's
        worker: None = None,
        observation_mode: str | tuple[gym.Space[Any], gym.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise ValueError("A custom `worker` is not supported; pass a pool of your EnvWorker")
        if max_concurrency is not None:
            if not isinstance(max_concurrency, (int, np.integer)):
                kind = type(max_concurrency)
                raise ValueError(f"`max_concurrency` must be an integer or None, got {kind}.")
            if max_concurrency < 1:
                text = f"`max_concurrency` must be a positive or None, got {max_concurrency}."
                raise ValueError(text)
            options["num_processes"] = max_concurrency
        if not isinstance(env_fns, BaseVectorEnv):
            options = self.pool_options({"autoreset_mode": autoreset_mode, **options})
            try:
                self.pool: BaseVectorEnv = ShmemVectorEnv(env_fns, context=context, **options)
            except ValueError as error:
                if isinstance(error, EnvError) or "shapes and dtypes must agree" not in str(error):
                    raise
                raise RuntimeError(str(error)) from None
        elif options or context is not None or env_fns.is_async:
            raise ValueError("give a pool its options itself, and neither wait_num nor timeout")
        else:
            self.pool = env_fns
        try:
            self._describe(observation_mode, shared_memory=shared_memory)
        except BaseException:
            self.pool.close()
            raise
        self.copy = copy
        self._obs = batches.empty(self.single_observation_space, self.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._state = AsyncState.DEFAULT
        self._late = False  # the pending call has timed out once
        self._call: tuple[Any, ...] = ()  # the pending call of a method
        self._ids = self._all = np.arange(self.num_envs)  # the envs of the pending reset or step
        self._rows: list[Array] = []  # reward, flags and info of those that have answered
        self._failed: set[int] = set()  # the envs whose error was raised

    @staticmethod
    def pool_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a pool for ``VectorEnv``: ``options``, and defaults for others."""
        mode = AutoresetMode(options.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        defaults = {"columns": True, "copy": False, "reset_first": False}
        return {**defaults, **options, "autoreset_mode": mode}

    def _describe(self, observation_mode: Any, *, shared_memory: bool) -> None:
        """Set the public attributes, checked as ``SyncVectorEnv`` does for envs like these."""
        pool = self.pool
        metadata, render_mode = pool.apply(inside.describe, id=0)[0]
        envs: list[Any] = [
            SimpleNamespace(
                metadata=metadata,
                render_mode=render_mode,
                # Copies: resets seed the pool's own.
                observation_space=copy_.deepcopy(observed),
                action_space=copy_.deepcopy(acted),
            )
            for observed, acted in zip(pool.observation_space, pool.action_space, strict=True)
        ]
        model = SyncVectorEnv(
            [functools.partial(_same, env) for env in envs],
            observation_mode=observation_mode,
            autoreset_mode=pool.autoreset_mode or AutoresetMode.DISABLED,
        )
        vars(self).update({k: v for k, v in vars(model).items() if not k.startswith(("_", "env"))})
        for custom in batches.custom_spaces(self.single_observation_space):
            if shared_memory:
                raise ValueError(
                    f"Using `{type(self).__name__}(..., shared_memory=True)` with a space of type"
                    f" `{type(custom)}`: pass `shared_memory=False`, and its values are pickled."
                )

    # --------------------------------------------------------------------------------- reset, step

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset envs; return the observations of all, and the infos of those that were reset.

        Args:
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or a list of one per env.
            options: passed to each env, without ``"reset_mask"``, a bool array ``(num_envs,)``:
                which envs; by default all.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin to reset envs, as ``reset``; ``reset_wait`` returns the results."""
        self._check_idle("reset_async")
        n, ids = self.num_envs, self._all
        if isinstance(seed, (int, np.integer)):
            seed = [seed + i for i in range(n)]
        if seed is not None and len(seed) != n:
            text = f"If seeds are passed as a list the length must match num_envs={n}"
            raise ValueError(f"{text} but got length={len(seed)}.")
        if options is not None and "reset_mask" in options:
            options = dict(options)
            ids = np.flatnonzero(_checked_mask(options.pop("reset_mask"), n))
        if self._late:
            self.pool.cancel()
        self._state, self._late = AsyncState.DEFAULT, False
        seed = None if seed is None else [seed[i] for i in ids.tolist()]
        each = None if options is None else [options] * len(ids)
        while True:
            try:
                self.pool.send_reset(ids, seed=seed, options=each)
                break
            except EnvError as error:
                known = self._failed.issuperset(error.env_ids)
                if not isinstance(error, WorkerDiedError) or not known:
                    self._note_failure(error)
                    raise
                self._failed.difference_update(error.env_ids)
                self.pool.restart(list(error.env_ids))
        self._over[ids] = True  # until their rows are there
        self._ids, self._rows, self._state = ids, [], AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return what ``reset`` returns; ``multiprocessing.TimeoutError`` after ``timeout``."""
        step = self._wait(AsyncState.WAITING_RESET, timeout)
        return step[0], step[4]

    def step(self, actions: Any) -> Step:
        """Step all envs and return the batch."""
        self._check_idle("step_async")
        try:
            obs, reward, terminated, truncated, infos = self.pool.step(self._checked(actions))
        except EnvError as error:
            self._note_failure(error)
            raise
        listed = self._took(self._all, obs, terminated | truncated, infos)
        combined = _combined(self._all.tolist(), listed, self.num_envs)
        return self._returned(), reward.copy(), terminated.copy(), truncated.copy(), combined

    def step_async(self, actions: Any) -> None:
        """Begin to step all envs; ``step_wait`` returns the batch."""
        self._check_idle("step_async")
        try:
            self.pool.send(self._checked(actions))
        except EnvError as error:
            self._note_failure(error)
            raise
        self._ids, self._rows, self._state = self._all, [], AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return what ``step`` returns; ``multiprocessing.TimeoutError`` after ``timeout``."""
        return self._wait(AsyncState.WAITING_STEP, timeout)

    # ---------------------------------------------------------------------------- calls of methods

    call: Any = AsyncVectorEnv.call
    get_attr: Any = AsyncVectorEnv.get_attr
    render: Any = AsyncVectorEnv.render
    np_random: Any = AsyncVectorEnv.np_random
    np_random_seed: Any = AsyncVectorEnv.np_random_seed

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Set the method of the envs that ``call_wait`` calls, or the attribute that it reads."""
        self._check_idle("call_async")
        if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
            text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            raise ValueError(text)
        self._call, self._state = (name, args, kwargs), AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Carry out the call of ``call_async`` and return one result per env.

        Raises:
            multiprocessing.TimeoutError: they took longer than ``timeout`` seconds. The call is
                cancelled; its results are dropped, however late they come.
        """
        self._check_waiting(AsyncState.WAITING_CALL)
        self._state = AsyncState.DEFAULT
        return self._ask(None, inside.call, *self._call, timeout=timeout)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env; a list or tuple has one value per env."""
        self._check_idle("set_attr")
        if not isinstance(values, (list, tuple)):
            self._ask(None, inside.set_attribute, name, values)
            return
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments."
                f" Got `{len(values)}` values for {self.num_envs} environments."
            )
        for i, value in enumerate(values):
            self._ask(i, inside.set_attribute, name, value)

    def _ask(self, i: int | None, *call: Any, timeout: float | None = None) -> tuple[Any, ...]:
        engine = self.pool.engine
        engine.call_timeout = None if timeout is None else max(timeout, _LOOK)
        try:
            return tuple(self.pool.apply(*call, id=i))
        except EnvError as error:
            self._note_failure(error)
            raise
        except TimeoutError:
            text = f"The call to `call_wait` has timed out after {timeout} second(s)."
            raise multiprocessing.TimeoutError(text) from None
        finally:
            engine.call_timeout = None

    # --------------------------------------------------------------------------------------- close

    def close_extras(self, **_: Any) -> None:
        """Close the pool, within a bounded time; Gymnasium's arguments have no effect."""
        self._obs = None  # views of the pool's memory
        try:
            if self._state is not AsyncState.DEFAULT and not self._late:
                call = self._state.value
                logger.warn(
                    f"Calling `close` while waiting for a pending call to `{call}` to complete."
                )
        finally:
            self.pool.close()

    def __del__(self) -> None:
        if hasattr(self, "_failed") and not self.closed and not sys.is_finalizing():
            self.pool.close()

    # ------------------------------------------------------------------------------------ internal

    def _check_idle(self, call: str) -> None:
        """Raise if the env is closed or a call is pending; a reset may follow one that is late."""
        if self._state is AsyncState.DEFAULT and not self.closed:
            return
        self._check_open()
        if self._late and call == "reset_async":
            return
        state = self._state.value
        text = f"Calling `{call}` while waiting for a pending call to `{state}` to complete"
        text += "." if call != "reset_async" else ""
        if self._late:
            text += f" The call has timed out; call `{state}_wait` again, or `reset`."
        raise AlreadyPendingCallError(text, state)

    def _check_waiting(self, state: AsyncState) -> None:
        self._check_open()
        if self._state is not state:
            call = state.value
            text = f"Calling `{call}_wait` without any prior call to `{call}_async`."
            raise NoAsyncCallError(text, call)

    def _check_open(self) -> None:
        if self.closed:
            text = f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            raise ClosedEnvironmentError(text)

    def _checked(self, actions: Any) -> Any:
        """The actions for the pool; AssertionError if an env has ended and nobody resets it."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise AssertionError(f"self._autoreset_envs={self._over!r}: reset these first")
        if isinstance(self.action_space, gym.spaces.Tuple):
            return list(iterate(self.action_space, actions))
        return actions

    def _wait(self, state: AsyncState, timeout: float | None) -> Step:
        """The batch of the pending call."""
        self._check_waiting(state)
        pool = self.pool
        try:
            while pool.waiting_id:
                self._take(timeout)
                if timeout is not None and pool.waiting_id:
                    self._late = True
                    raise multiprocessing.TimeoutError(
                        f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
                    )
        except EnvError as error:
            self._note_failure(error)
            raise
        self._state, self._late = AsyncState.DEFAULT, False
        reward, terminated, truncated, infos = self._rows
        combined = _combined(self._ids.tolist(), infos[self._ids].tolist(), self.num_envs)
        return self._returned(), reward, terminated, truncated, combined

    def _take(self, timeout: float | None) -> None:
        """Take the rows of the pending call that are there, within ``timeout``."""
        pool, strict = self.pool, self.pool.strict_timeout
        if timeout is not None:
            pool.timeout, pool.strict_timeout = max(timeout, _LOOK), True
        try:
            obs, *row = pool.recv()
        finally:
            if timeout is not None:
                pool.timeout, pool.strict_timeout = None, strict
        ids = pool.batch_ids
        self._took(ids, obs, row[1] | row[2], row[3])
        if not self._rows:
            self._rows = [np.zeros((self.num_envs, *part.shape[1:]), part.dtype) for part in row]
        for whole, part in zip(self._rows, row, strict=True):
            whole[ids] = part

    def _took(self, ids: IdArray, obs: Any, over: Array, infos: Array) -> list[dict[str, Any]]:
        """Keep what later calls need of these rows; return the infos without the pool's own key."""
        listed: list[dict[str, Any]] = infos.tolist()
        for k in self._over[ids].nonzero()[0].tolist():  # the rows of resets
            listed[k].pop("is_reset", None)
        self._over[ids] = over
        space = self.single_observation_space
        obs = batches.from_pool(space, obs)
        self._obs = obs if ids is self._all else batches.put(space, self._obs, ids, obs)
        return listed

    def _returned(self) -> Any:
        if not self.copy:
            return self._obs
        return self._obs.copy() if type(self._obs) is np.ndarray else snapshot(self._obs)

    def _note_failure(self, error: EnvError) -> None:
        """Note whose error is raised; take the other envs' rows, and cancel what is to come."""
        self._failed.update(error.env_ids)
        self._state, self._late = AsyncState.DEFAULT, False
        while not self.pool.is_closed and self.pool.waiting_id:
            try:
                self._take(_LOOK)
                self.pool.cancel()
            except EnvError as other:
                self._failed.update(other.env_ids)


def _same(env: Any) -> Any:
    return env


def _combined(ids: Sequence[int], infos: list[dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """The infos of a batch; a pool's info with nothing but the env's id is an empty one."""
    if max(map(len, infos)) == 1:
        return {}
    for info in infos:
        info.pop("env_id", None)
    return combine(ids, infos, num_envs)


def _checked_mask(mask: Any, n: int) -> Array:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (n,):
        text = f"`options['reset_mask']` must have shape `({n},)`, got {mask.shape}"
        raise ValueError(text)
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        text = "must contain a boolean array with at least one True value"
        raise ValueError(f"`options['reset_mask']` {text}, got reset_mask={mask}")
    return mask
