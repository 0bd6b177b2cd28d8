"""``VectorEnv``: Gymnasium's interface over a pool."""

from __future__ import annotations

import contextlib
import copy as copy_
import functools
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from envpool_py.asking import Call
from envpool_py.block import StepResult
from envpool_py.calls import one_at_a_time
from envpool_py.errors import EnvError, name_ids
from envpool_py.gymnasium import batches
from envpool_py.gymnasium.infos import combine_rows
from envpool_py.ids import IdArray
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import ShmemVectorEnv
from envpool_py.spaces import Array, layout_of, map_tree, snapshot
from envpool_py.worker.base import Request

Step = tuple[Any, Array, Array, Array, dict[str, Any]]
_LOOK = 1e-3  # seconds that a wait of no length takes, to look at what is there


class VectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
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
        max_concurrency: how many envs may step at the same time: the number of processes.
        **options: of ``ShmemVectorEnv``: ``num_processes``, ``on_error``, ``step_timeout``, ... The
            other arguments are Gymnasium's.

    Attributes:
        pool: the pool; do not use it while a call is pending.

    Raises:
        RuntimeError: the envs have different spaces. EnvError: an env_fn raised.
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
        autoreset_mode: str | AutoresetMode | None = None,
        max_concurrency: int | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise ValueError("A custom `worker` is not supported; pass a pool of your EnvWorker")
        given = {"autoreset_mode": autoreset_mode, "max_concurrency": max_concurrency, **options}
        if not isinstance(env_fns, BaseVectorEnv):
            options = self.pool_options(given)
            try:
                self.pool: BaseVectorEnv = ShmemVectorEnv(env_fns, context=context, **options)
            except ValueError as error:
                if isinstance(error, EnvError) or "shapes and dtypes must agree" not in str(error):
                    raise
                raise RuntimeError(str(error)) from None
        elif options or context is not None or set(given.values()) != {None}:
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
        self._pending: str | None = None  # "reset", "step" or "call"
        self._late = False  # the pending reset or step has timed out once
        self._call: Any = None  # the pending call
        self._ids = self._all = np.arange(self.num_envs)  # the envs of the pending reset or step
        self._layout = layout_of(self.single_observation_space)
        #: The latest row of every env, in the form of a batch of the pool.
        self._rows = batches.blank(self._layout, self.num_envs)

    @staticmethod
    def pool_options(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a pool for ``VectorEnv``: ``options``, and defaults for others."""
        own = {"columns": True, "copy": False, "reset_first": False, **options}
        own["autoreset_mode"] = AutoresetMode(own.get("autoreset_mode") or AutoresetMode.NEXT_STEP)
        limit = own.pop("max_concurrency", None)
        if limit is not None:
            text = "`max_concurrency` must be"
            if not isinstance(limit, (int, np.integer)):
                raise ValueError(f"{text} an integer or None, got {type(limit)}.")
            if limit < 1:
                raise ValueError(f"{text} a positive or None, got {limit}.")
            own["num_processes"] = limit
        return own

    def _describe(self, observation_mode: Any, *, shared_memory: bool) -> None:
        """Set the public attributes, checked as ``SyncVectorEnv`` does for envs like these."""
        pool = self.pool
        first = {name: pool.get_env_attr(name, 0)[0] for name in ("metadata", "render_mode")}
        # Copies: resets seed the pool's own.
        spaces = copy_.deepcopy((pool.observation_space, pool.action_space))
        envs: Any = (
            SimpleNamespace(**first, observation_space=obs, action_space=action, close=bool)
            for obs, action in zip(*spaces, strict=True)
        )
        try:
            model = SyncVectorEnv(
                [functools.partial(next, envs)] * pool.num_envs,
                observation_mode=observation_mode,
                autoreset_mode=pool.autoreset_mode or AutoresetMode.DISABLED,
            )
        except AssertionError as error:  # of Gymnasium 1.2
            raise RuntimeError(str(error)) from None
        hidden = ("_", "env")  # what is not public, and the envs
        vars(self).update({k: v for k, v in vars(model).items() if not k.startswith(hidden)})
        if shared_memory and batches.has_custom_space(self.single_observation_space):
            text = "Using `shared_memory=True` caused an error, pass `shared_memory=False`"
            raise ValueError(f"{text}: {self.single_observation_space} has a custom space")

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those in ``options["reset_mask"]``; see ``reset_wait``."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin to reset all envs, or those in the bool array ``options["reset_mask"]``."""
        self._assert_open()
        if self._late:
            self.pool.cancel()
            self._pending, self._late = None, False
        is_list = seed is not None and np.ndim(seed) > 0
        if is_list and len(seed) != self.num_envs:
            text = "If seeds are passed as a list the length must match"
            raise ValueError(f"{text} num_envs={self.num_envs} but got length={len(seed)}.")
        self._assert_idle("reset_async")
        ids, options = batches.split_mask(options, self.num_envs)
        ids = self._all if ids is None else ids
        if is_list:
            seed = [seed[i] for i in ids.tolist()]
        if dead := self.pool.engine.states.deaths:
            self.pool.restart(sorted(dead))
        self._guarded(self.pool.send_reset, ids, seed=seed, options=options)
        self._ids, self._pending = ids, "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the observations of all envs, and the infos of those that were reset."""
        return self._wait("reset", timeout)[::4]

    def step(self, actions: Any) -> Step:
        """Step all envs and return the batch."""
        self._keep(self._all, self._guarded(self.pool.step, self._checked(actions)))
        return self._batch(self._all)

    def step_async(self, actions: Any) -> None:
        """Begin to step all envs; ``step_wait`` returns the batch."""
        self._guarded(self.pool.send, self._checked(actions))
        self._ids, self._pending = self._all, "step"

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return what ``step`` returns; ``multiprocessing.TimeoutError`` after ``timeout``."""
        return self._wait("step", timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; one result per env."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin a call in each env; envs of this process carry it out in ``call_wait``."""
        self._assert_idle("call_async")
        if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
            text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            raise ValueError(text)
        self._begin([Request("apply", (_call, name, args, kwargs))] * self.num_envs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return one result per env. A timeout cancels the call: its results are dropped."""
        self._assert_pending("call")
        call, self._call, self._pending = self._call, None, None
        limit = None if timeout is None else max(timeout, _LOOK)
        try:
            return tuple(self._guarded(_end, self.pool, call, limit))
        except TimeoutError as error:
            if timeout is None or isinstance(error, EnvError):
                raise
            raise self._timed_out("call", timeout) from None

    def _begin(self, requests: Sequence[Request]) -> None:
        self._call = self._guarded(_send, self.pool, requests)
        self._pending = "call"

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env; a list or tuple has one value per env."""
        self._assert_open()
        values = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(values) != self.num_envs:
            text = "Values must be a list or tuple with length equal to the number of environments."
            raise ValueError(f"{text} Got `{len(values)}` values for {self.num_envs} environments.")
        self._assert_idle("set_attr")
        self._begin([Request("call", ("set_wrapper_attr", name, value)) for value in values])
        self.call_wait()

    def render(self) -> tuple[Any, ...]:
        """Return what each env renders."""
        return self.call("render")

    @property  # type: ignore[misc] # no setter, as in AsyncVectorEnv
    def np_random(self) -> Any:
        """The random generator of each env: copies."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seed of the generator of each env."""
        return self.get_attr("np_random_seed")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the pool, within a bounded time; the arguments have no effect."""
        del timeout, terminate
        self._rows = None  # views of the pool's memory
        self.pool.close()
        if self._pending is not None and not self._late:
            text = f"while waiting for a pending call to `{self._pending}` to complete."
            logger.warn(f"Calling `close` {text}")

    def __del__(self) -> None:
        if "_rows" in vars(self):  # else it was never made
            self.close()

    def _assert_open(self) -> None:
        if self.closed or self.pool.is_closed:
            text = f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            raise ClosedEnvironmentError(text)

    def _assert_idle(self, call: str) -> None:
        self._assert_open()
        if self._pending is not None:
            text = f"while waiting for a pending call to `{self._pending}` to complete."
            raise AlreadyPendingCallError(f"Calling `{call}` {text}", self._pending)

    def _assert_pending(self, call: str) -> None:
        self._assert_open()
        if self._pending != call:
            text = f"Calling `{call}_wait` without any prior call to `{call}_async`."
            raise NoAsyncCallError(text, call)

    def _checked(self, actions: Any) -> Any:
        """Return the actions for the pool; AssertionError if an ended env was not reset."""
        self._assert_idle("step_async")
        if actions is None:
            raise TypeError(f"actions: expected {self.num_envs} actions, one per env; got None")
        over = self._rows[2] | self._rows[3]
        if self.autoreset_mode is AutoresetMode.DISABLED and over.any():
            text = "the episode has ended, and autoreset_mode is DISABLED; call"
            mask = "reset(options={'reset_mask': terminated | truncated}) first"
            raise AssertionError(f"{name_ids(over.nonzero()[0].tolist())}: {text} {mask}")
        if isinstance(self.action_space, gym.spaces.Tuple):
            return list(iterate(self.action_space, actions))
        return actions

    def _wait(self, call: str, timeout: float | None) -> Step:
        """The batch of the pending call."""
        self._assert_pending(call)
        while self.pool.waiting_id:
            self._guarded(self._take, timeout)
            if timeout is not None and self.pool.waiting_id:
                self._late = True
                raise self._timed_out(call, timeout)
        self._pending, self._late = None, False
        return self._batch(self._ids)

    def _timed_out(self, call: str, timeout: float) -> Exception:
        text = f"The call to `{call}_wait` has timed out after {timeout} second(s)."
        return multiprocessing.TimeoutError(text)

    def _take(self, timeout: float | None) -> None:
        """Take the rows of the pending call that are there, within ``timeout``."""
        pool, strict = self.pool, self.pool.strict_timeout
        if timeout is not None:
            pool.timeout, pool.strict_timeout = max(timeout, _LOOK), True
        try:
            batch = pool.recv()
        finally:
            if timeout is not None:
                pool.timeout, pool.strict_timeout = None, strict
        self._keep(pool.batch_ids, batch)

    def _keep(self, ids: IdArray, batch: StepResult) -> None:
        """Keep these rows, with the latest of all other envs."""
        obs, *others = batch
        rows = (batches.columns(self._layout, obs), *others)
        if ids is self._all:
            self._rows = rows
        elif len(ids):
            self._rows = map_tree(functools.partial(batches.put, ids), self._rows, rows)

    def _batch(self, ids: IdArray) -> Step:
        """What ``step`` returns, with the infos of these envs."""
        obs, reward, terminated, truncated, infos = self._rows
        obs = map_tree(lambda part: tuple(part) if part.dtype == object else part, obs)
        obs = snapshot(obs) if self.copy else obs
        combined = combine_rows(ids.tolist(), infos[ids], self.num_envs)
        return obs, reward.copy(), terminated.copy(), truncated.copy(), combined

    def _guarded(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the pool; after an error of an env nothing is pending."""
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, EnvError) and self.pool.waiting_id:
                with contextlib.suppress(EnvError):  # take the rows of other envs
                    self._guarded(self._take, _LOOK)
                self.pool.cancel()  # those to come
            if not self.pool.waiting_id:  # an interrupt may have cancelled all, too
                self._pending, self._late = None, False
            raise


@one_at_a_time
def _send(pool: BaseVectorEnv, requests: Sequence[Request]) -> Call:
    call = Call(pool.engine, pool.engine.all_ids, requests, hold=True)
    try:
        call.send()
    except BaseException:
        call.cancel()
        raise
    return call


@one_at_a_time
def _end(pool: BaseVectorEnv, call: Call, timeout: float | None) -> list[Any]:  # noqa: ARG001
    try:
        return call.wait(timeout)
    finally:
        call.cancel()


def _call(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found
