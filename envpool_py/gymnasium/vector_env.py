"""``VectorEnv``: Gymnasium's interface over a pool."""

from __future__ import annotations

import copy as copy_
import functools
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import create_empty_array, iterate

from envpool_py.errors import EnvError, WorkerDiedError
from envpool_py.gymnasium import batches
from envpool_py.gymnasium.infos import combine
from envpool_py.ids import IdArray
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import ShmemVectorEnv
from envpool_py.spaces import Array, snapshot

Step = tuple[Any, Array, Array, Array, dict[str, Any]]
_LOOK = 1e-3  # seconds that a wait of no length takes, to look at what is there


class VectorEnv(AsyncVectorEnv[Any, Any]):
    """Gymnasium's ``VectorEnv`` over a pool, with the methods of ``AsyncVectorEnv``.

    After a ``TimeoutError`` of ``reset_wait`` or ``step_wait``, call the same method again to wait
    on, or ``reset``, which cancels the call. An env that has raised, or whose process has ended,
    needs a ``reset``, alone (``options={"reset_mask": ...}``) or with all others; ``reset`` starts
    an ended process again.

    Args:
        env_fns: one callable per env, or a pool that waits for all rows; see ``pool_options``.
        shared_memory: False allows spaces that are none of Gymnasium's; no other effect.
        copy: False: observations are views that the next call changes.
        daemon: no effect. The processes end with this one, and may have children.
        worker: not supported.
        max_concurrency: how many envs may be at work at a time: the number of processes.
        **options: of ``ShmemVectorEnv``: ``num_processes``, ``on_error``, ``step_timeout``, ... The
            other arguments are Gymnasium's.

    Attributes:
        pool: the pool; do not use it while a call is pending.

    Raises:
        RuntimeError: the envs have different spaces. EnvError: an env_fn raised.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | BaseVectorEnv,
        shared_memory: bool = True,
        copy: bool = True,
        context: Any = None,
        daemon: bool = True,  # noqa: ARG002 - Gymnasium's
        worker: None = None,
        observation_mode: str | tuple[gym.Space[Any], gym.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode | None = None,
        max_concurrency: int | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise ValueError("A custom `worker` is not supported; pass a pool of your EnvWorker")
        if max_concurrency is not None:
            text, given = "`max_concurrency` must be", max_concurrency
            if not isinstance(given, (int, np.integer)):
                raise ValueError(f"{text} an integer or None, got {type(given)}.")
            if given < 1:
                raise ValueError(f"{text} a positive or None, got {given}.")
            options["num_processes"] = given
        if not isinstance(env_fns, BaseVectorEnv):
            mode = AutoresetMode.NEXT_STEP if autoreset_mode is None else autoreset_mode
            options = self.pool_options({"autoreset_mode": mode, **options})
            try:
                self.pool: BaseVectorEnv = ShmemVectorEnv(env_fns, context=context, **options)
            except ValueError as error:
                if isinstance(error, EnvError) or "shapes and dtypes must agree" not in str(error):
                    raise
                raise RuntimeError(str(error)) from None
        elif options or context is not None or autoreset_mode is not None:
            raise ValueError("env_fns is a pool: give the options to the pool")
        else:
            self.pool = env_fns
        try:
            if self.pool.is_async:
                raise ValueError("wait_num and timeout: a VectorEnv waits for all envs")  # noqa: TRY301
            self._describe(observation_mode, shared_memory=shared_memory)
        except BaseException:
            if self.pool is not env_fns:
                self.pool.close()
            raise
        self.copy = copy
        self._obs = create_empty_array(self.single_observation_space, self.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._state = AsyncState.DEFAULT
        self._late = False  # the pending call has timed out once
        self._sent: list[Any] = []  # what AsyncVectorEnv has sent last
        pipe: Any = SimpleNamespace(send=self._sent.append, recv=lambda: (None, True))
        self.parent_pipes = [pipe] * self.num_envs
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
        first = {key: pool.get_env_attr(key, 0)[0] for key in ("metadata", "render_mode")}
        names = ("observation_space", "action_space")
        # Copies: resets seed the pool's own.
        spaces = zip(*(copy_.deepcopy(getattr(pool, name)) for name in names), strict=True)
        envs: Any = (
            SimpleNamespace(**first, **dict(zip(names, own, strict=True))) for own in spaces
        )
        model = SyncVectorEnv(
            [functools.partial(next, envs)] * pool.num_envs,
            observation_mode=observation_mode,
            autoreset_mode=pool.autoreset_mode or AutoresetMode.DISABLED,
        )
        vars(self).update({k: v for k, v in vars(model).items() if not k.startswith(("_", "env"))})
        custom = next(batches.custom_spaces(self.single_observation_space), None)
        if shared_memory and custom is not None:
            text = "Using `shared_memory=True` caused an error, pass `shared_memory=False`"
            raise ValueError(f"{text}: space of type {type(custom)}")

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin to reset all envs, or those in the bool array ``options["reset_mask"]``."""
        if self._late:
            self.pool.cancel()
            self._state, self._late = AsyncState.DEFAULT, False
        seed = int(seed) if isinstance(seed, np.integer) else seed
        asked = self._asked(super().reset_async, seed, options and dict(options))
        requests = {i: data for i, data in enumerate(asked) if data is not None}
        self._ids, self._rows = np.array(list(requests)), []
        given: Any = {k: [data[k] for data in requests.values()] for k in ("seed", "options")}
        while True:
            reported, dead = frozenset(self._failed), tuple[int, ...]()
            try:
                self._noting(self.pool.send_reset, self._ids, **given)
                break
            except WorkerDiedError as error:
                if not reported.issuperset(dead := error.env_ids):
                    raise
            # Here, so that a forked process does not inherit the error that is being handled.
            self._failed.difference_update(dead)
            self.pool.restart(list(dead))
        self._over[self._ids] = True  # until their rows are there
        self._state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the observations of all envs, and the infos of those that were reset."""
        return self._wait(AsyncState.WAITING_RESET, timeout)[::4]

    def step(self, actions: Any) -> Step:
        """Step all envs and return the batch."""
        self._check(AsyncState.DEFAULT, "step_async", actions)
        obs, *row, infos = self._noting(self.pool.step, self._checked(actions))
        reward, terminated, truncated = (part.copy() for part in row)
        listed = self._took(self._all, obs, terminated | truncated, infos)
        return self._returned(), reward, terminated, truncated, self._combined(self._all, listed)

    def step_async(self, actions: Any) -> None:
        """Begin to step all envs; ``step_wait`` returns the batch."""
        self._check(AsyncState.DEFAULT, "step_async", actions)
        self._noting(self.pool.send, self._checked(actions))
        self._ids, self._rows, self._state = self._all, [], AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return what ``step`` returns; ``multiprocessing.TimeoutError`` after ``timeout``."""
        return self._wait(AsyncState.WAITING_STEP, timeout)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Carry out the call of ``call_async``; one result per env. A timeout cancels the call."""
        self._check(AsyncState.WAITING_CALL, "call_wait")
        self._state, engine = AsyncState.DEFAULT, self.pool.engine
        call = self._sent[-1][1]
        self._sent.clear()
        engine.call_timeout = None if timeout is None else max(timeout, _LOOK)
        try:
            return tuple(self._noting(self.pool.apply, _call, *call))
        except TimeoutError as error:
            if isinstance(error, EnvError):
                raise
            text = f"The call to `call_wait` has timed out after {timeout} second(s)."
            raise multiprocessing.TimeoutError(text) from None
        finally:
            engine.call_timeout = None

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env; a list or tuple has one value per env."""
        for i, (_, value) in enumerate(self._asked(super().set_attr, name, values)):
            self._noting(self.pool.call, "set_wrapper_attr", name, value, id=i)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the pool, within a bounded time; the arguments have no effect."""
        del timeout, terminate
        self._obs = None  # views of the pool's memory
        self.pool.close()
        if self._state is not AsyncState.DEFAULT and not self._late:
            text = f"while waiting for a pending call to `{self._state.value}` to complete."
            logger.warn(f"Calling `close` {text}")

    def _asked(self, method: Callable[..., Any], *args: Any) -> list[Any]:
        """What a method of ``AsyncVectorEnv`` sends to its processes."""
        self._sent.clear()
        method(*args)
        return [data for _, data in self._sent]

    def _check(self, state: AsyncState, call: str, *args: Any) -> None:
        if self.closed or self._state is not state:
            getattr(super(), call)(*args)  # raises

    def _checked(self, actions: Any) -> Any:
        """The actions for the pool; AssertionError if an env has ended and nobody resets it."""
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise AssertionError(f"self._autoreset_envs={self._over!r}: reset these first")
        if isinstance(self.action_space, gym.spaces.Tuple):
            return list(iterate(self.action_space, actions))
        return actions

    def _wait(self, state: AsyncState, timeout: float | None) -> Step:
        """The batch of the pending call."""
        self._check(state, f"{state.value}_wait")
        while self.pool.waiting_id:
            self._noting(self._take, timeout)
            if timeout is not None and self.pool.waiting_id:
                self._late = True
                text = f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
                raise multiprocessing.TimeoutError(text)
        self._state, self._late = AsyncState.DEFAULT, False
        reward, terminated, truncated, infos = self._rows
        combined = self._combined(self._ids, infos[self._ids].tolist())
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
        return snapshot(self._obs) if self.copy else self._obs

    def _noting(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the pool; after an error of an env nothing is pending."""
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            failed: BaseException | None = error
            while isinstance(failed, EnvError):
                self._failed.update(failed.env_ids)
                failed = None
                try:  # take the rows of the other envs, and cancel those that are to come
                    if self.pool.waiting_id:
                        self._take(_LOOK)
                        self.pool.cancel()
                except EnvError as another:
                    failed = another
            if not self.pool.waiting_id:  # an interrupt may have cancelled all, too
                self._state, self._late = AsyncState.DEFAULT, False
            raise

    def _combined(self, ids: IdArray, infos: list[dict[str, Any]]) -> dict[str, Any]:
        """The infos of a batch; a pool's info with nothing but the env's id is an empty one."""
        if max(map(len, infos)) == 1:
            return {}
        for info in infos:
            info.pop("env_id", None)
        return combine(ids.tolist(), infos, self.num_envs)


def _call(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
        text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
        raise ValueError(text)
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found
