"""``VectorEnv``: Gymnasium's interface over a pool."""

from __future__ import annotations

import contextlib
import copy as copy_
import functools
import inspect
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.env.common_spec import UnequalSpacesError, missing_space
from envpool_py.env.request import Request
from envpool_py.env.spaces import Array, as_columns, layout_of, map_tree, objects, snapshot
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError, closed_on_error, name_ids
from envpool_py.gymnasium.infos import combine_rows
from envpool_py.interrupts import is_interrupt
from envpool_py.options import NEXT_STEP, Autoreset, Context, NumProcesses, autoreset_mode_of
from envpool_py.pool.adapter_base import PoolAdapter
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.call_guard import one_at_a_time
from envpool_py.pool.keywords import (
    WHOLE,
    CommonOptions,
    Fixed,
    WorkerOptions,
    check_options,
    one_of,
    spell_out,
)
from envpool_py.pool.pool_classes import ShmemVectorEnv
from envpool_py.worker.builtin_env_workers import DummyEnvWorker

ObservationMode: TypeAlias = Literal["same", "different"] | tuple[gym.Space[Any], gym.Space[Any]]
Flags = NDArray[np.bool_]
Step = tuple[Any, NDArray[np.float64], Flags, Flags, dict[str, Any]]
_End = Callable[[float | None], list[Any]]
_LOOK = 1e-3  # seconds that a wait of no length takes, to look at what is there


class _Options(CommonOptions, WorkerOptions, total=False):
    """The keywords of ``VectorEnv``, after its own."""


class VectorOptions(_Options, total=False):
    """The options in ``vector_kwargs`` of ``make_vec``: all arguments of ``VectorEnv``."""

    shared_memory: bool
    copy: bool
    context: Context
    daemon: bool
    observation_mode: ObservationMode
    autoreset_mode: Autoreset
    max_concurrency: int | None
    num_processes: NumProcesses
    start_method: Context


@spell_out(_Options, columns=True, reset_first=False)
class VectorEnv(PoolAdapter, gym.vector.VectorEnv[Any, Any, Any]):
    """Gymnasium's ``VectorEnv`` over a pool, with the methods of ``AsyncVectorEnv``.

    ``pool`` is the pool; do not use it while a call is pending: AlreadyPendingCallError, and
    NoAsyncCallError if none is. After a ``TimeoutError`` of ``reset_wait`` or ``step_wait``, call
    the same method again to wait on, or ``reset``, which cancels the call. EnvError if an env
    raises or its process ends: it needs a ``reset``, alone (``options={"reset_mask": ...}``) or
    with all others; ``reset`` starts an ended process again.

    Args:
        env_fns: one callable per env, or a pool that waits for all rows; see ``options``.
        shared_memory: False allows spaces that are none of Gymnasium's; no other effect.
        copy: False: observations are views that the next call changes.
        context: how processes are started, as in ``ShmemVectorEnv``.
        daemon: no effect; the processes end with this one.
        worker: not supported.
        observation_mode: as in Gymnasium.
        autoreset_mode: in any spelling; None: Gymnasium's ``Disabled``. A pool has its own.
        max_concurrency: Gymnasium's name for ``num_processes``; pass one of them.
        num_processes: as in ``ShmemVectorEnv``.
        start_method: the same as ``context``.
        options: ``on_error``, ``step_timeout``, ``record``, ...: see ``PoolOptions``.

    Raises:
        RuntimeError: the envs have different spaces. EnvError: an env_fn raised.
    """

    autoreset_mode: AutoresetMode
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]] | BaseVectorEnv,
        shared_memory: bool = True,
        copy: bool = True,
        context: Context = None,
        daemon: bool = True,  # noqa: ARG002 - Gymnasium's
        worker: None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: Autoreset = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_processes: NumProcesses = None,
        start_method: Context = None,
        **options: Unpack[_Options],
    ) -> None:
        if worker is not None:
            raise ValueError("A custom `worker` is not supported; pass a pool of your EnvWorker")
        mode = autoreset_mode_of(autoreset_mode)
        given = {"max_concurrency": max_concurrency, "context": context, **options}
        given |= {"num_processes": num_processes, "start_method": start_method}
        if not isinstance(env_fns, BaseVectorEnv):
            own = self.options({"autoreset_mode": mode, **given})
            try:
                self.pool = ShmemVectorEnv(env_fns, **own)
            except UnequalSpacesError as error:
                raise RuntimeError(str(error)) from None  # as Gymnasium does
        elif set(given.values()) != {None} or mode not in (
            NEXT_STEP,  # the default
            autoreset_mode_of(env_fns.autoreset_mode),
        ):
            raise ValueError("env_fns is a pool: give the options to the pool")
        else:
            self.pool = env_fns
        with closed_on_error(None if self.pool is env_fns else self.pool):
            if self.pool.is_async:
                raise ValueError("wait_num and timeout: a VectorEnv waits for all envs")
            self._describe(observation_mode, shared_memory=shared_memory)
        self.copy = copy
        self._pending: str | None = None  # "reset", "step" or "call"
        self._late = False  # the pending reset or step has timed out, or was interrupted
        self._call: Any = None  # ends the pending call
        self._frames: tuple[Any, ...] = ()  # of the last render
        self._ids = self._all = np.arange(self.num_envs)  # the envs of the pending reset or step
        self._layout = layout_of(self.single_observation_space)
        #: The latest row of every env, in the form of a batch of the pool; no rows yet.
        self._rows = map_tree(lambda _: np.zeros(self.num_envs, bool), (self._layout, *range(4)))

    @staticmethod
    def options(options: Mapping[str, Any], fixed: Mapping[str, Fixed] = WHOLE) -> dict[str, Any]:
        """The options of a pool for ``VectorEnv``: ``options``, and defaults for others."""
        own = {"columns": True, "copy": False, "reset_first": False, "autoreset_mode": NEXT_STEP}
        known = {*inspect.signature(ShmemVectorEnv).parameters, "max_concurrency"}
        own |= check_options(known - {"env_fns", *WHOLE}, "VectorEnv", options, fixed)
        limit: Any = own.pop("max_concurrency", None)
        if limit is not None:
            text = "`max_concurrency` must be"
            if not isinstance(limit, (int, np.integer)):
                raise ValueError(f"{text} an integer or None, got {type(limit)}.")
            if limit < 1:
                raise ValueError(f"{text} a positive or None, got {limit}.")
            own["num_processes"] = one_of(
                "max_concurrency", limit, "num_processes", own.get("num_processes")
            )
        return own

    def _describe(self, observation_mode: Any, *, shared_memory: bool) -> None:
        """Set the public attributes, checked as ``SyncVectorEnv`` does for envs like these."""
        first = {name: self.pool.get_env_attr(name, 0)[0] for name in ("metadata", "render_mode")}
        # Copies: resets seed the pool's own.
        spaces: Any = copy_.deepcopy((self.pool.observation_space, self.pool.action_space))
        for name, found in zip(("observation", "action"), spaces, strict=True):
            if None in found:
                raise TypeError(missing_space(found.index(None), f"{name}_space"))
        envs: Any = (
            SimpleNamespace(**first, observation_space=obs, action_space=action, close=bool)
            for obs, action in zip(*spaces, strict=True)
        )
        try:
            if shared_memory:  # this function refuses custom spaces
                is_space_dtype_shape_equiv(spaces[0][0], spaces[0][0])
        except NotImplementedError:
            text = "Using `shared_memory=True` caused an error, pass `shared_memory=False`"
            raise ValueError(f"{text}: {spaces[0][0]} has a custom space") from None
        try:
            model = SyncVectorEnv(
                [functools.partial(next, envs)] * self.pool.num_envs,
                observation_mode=observation_mode,
                autoreset_mode=self.pool.autoreset_mode or AutoresetMode.DISABLED,
            )
        except AssertionError as error:  # of Gymnasium 1.2
            raise RuntimeError(str(error)) from None
        vars(self).update({k: v for k, v in vars(model).items() if not k.startswith(("_", "env"))})

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, if all are in this process; else AttributeError."""
        workers: list[Any] = self.pool.workers
        if self.pool.worker_class is not DummyEnvWorker:
            text = "envs: the envs are in worker processes; use call(), get_attr() or set_attr()"
            raise AttributeError(text)
        return [worker.env for worker in workers]

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those in ``options["reset_mask"]``; see ``reset_wait``."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def __repr__(self) -> str:
        text, count = gym.vector.VectorEnv.__repr__(self), self.restarts.sum()
        return f"{text[:-1]}, {count} restarts)" if count else text

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin to reset all envs, or those in the bool array ``options["reset_mask"]``."""
        self._check("reset_async", self._pending if self._late else None)
        ids, options = split_mask(options, self.num_envs)
        ids = self._all if ids is None else ids
        if np.ndim(seed) > 0:
            if len(seed) != self.num_envs:
                text = "If seeds are passed as a list the length must match"
                raise ValueError(f"{text} num_envs={self.num_envs} but got length={len(seed)}.")
            seed = [seed[i] for i in ids.tolist()]
        if self._late:
            self.pool.cancel()
            self._pending, self._late = None, False
        # Lists, whose entries reach the envs' reset also if they are None, as in Gymnasium.
        seed, options = ([None] * len(ids) if one is None else one for one in (seed, options))
        self.pool.send_reset(ids, seed=seed, options=options)
        self._ids, self._pending = ids, "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the observations ``(num_envs, *shape)`` of all envs, and the infos of this reset.

        ``multiprocessing.TimeoutError`` after ``timeout`` seconds.
        """
        self._wait("reset", timeout, self._take)
        return self._batch(self._ids)[::4]

    def step(self, actions: Any) -> Step:
        """Step all envs with actions ``(num_envs, *shape)``; return five values.

        Observations ``(num_envs, *shape)``, rewards float64 ``(num_envs,)``, ``terminated`` and
        ``truncated`` bool ``(num_envs,)``, and a dict of arrays, as of Gymnasium. TypeError or
        ValueError for wrong actions, AssertionError if an ended env was not reset.
        """
        self._keep(self._all, self._guarded(self.pool.step, self._checked(actions)))
        return self._batch(self._all)

    def step_async(self, actions: Any) -> None:
        """Begin to step all envs; ``step_wait`` returns the batch."""
        self.pool.send(self._checked(actions))
        self._ids, self._pending = self._all, "step"

    def step_wait(self, timeout: float | None = None) -> Step:
        """Return what ``step`` returns; ``multiprocessing.TimeoutError`` after ``timeout``."""
        self._wait("step", timeout, self._take)
        return self._batch(self._ids)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; one result per env, else EnvError."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def render(self) -> tuple[Any, ...]:
        """What each env renders; of a recreated one, until its reset, its last frame, or zeros."""
        self._check("render")
        rows = [info if isinstance(info, dict) else {} for info in self._rows[4]]
        lost = ["env_error" in info and "final_obs" not in info for info in rows]
        ids = np.flatnonzero(~(lost & self._rows[3])).tolist()  # an env may have such an info
        frames = dict(zip(ids, self.pool.render(ids), strict=True))
        for i in set(range(self.num_envs)).difference(ids):
            blank = np.zeros_like(next(iter(frames.values()), None))
            frames[i] = self._frames[i] if self._frames else blank
        self._frames = tuple(frames[i] for i in range(self.num_envs))
        return self._frames

    get_attr = call
    np_random: Any = property(lambda self: self.call("np_random"), doc="The envs' generators.")
    np_random_seed: Any = property(lambda self: self.call("np_random_seed"), doc="The envs' seeds.")

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin a call in each env; ValueError for ``reset``, ``step`` and ``close``."""
        self._check("call_async")
        if name in ("reset", "step", "close", "_setattr", "_check_spaces"):
            text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            raise ValueError(text)
        requests = [Request("apply", (_call, name, args, kwargs))] * self.num_envs
        self._call, self._pending = _begin(self.pool, requests), "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return one result per env. A timeout cancels the call: its results are dropped."""
        return tuple(self._wait("call", timeout, functools.partial(_end, self.pool, self._call)))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env; a list or tuple has one value per env, else ValueError."""
        self._check("set_attr")
        values = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(values) != self.num_envs:
            text = "Values must be a list or tuple with length equal to the number of environments."
            raise ValueError(f"{text} Got `{len(values)}` values for {self.num_envs} environments.")
        requests = [Request("call", ("set_wrapper_attr", name, value)) for value in values]
        self._call, self._pending = _begin(self.pool, requests), "call"
        self.call_wait()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:  # noqa: ARG002
        """Close the pool, within a bounded time; the arguments have no effect."""
        self._rows = None  # views of the pool's memory
        self.pool.close()
        if self._pending is not None and not self._late:
            text = f"while waiting for a pending call to `{self._pending}` to complete."
            logger.warn(f"Calling `close` {text}")

    def __del__(self) -> None:
        # At the exit of the interpreter modules may be gone, and the processes end by themselves.
        if "_rows" in vars(self) and not sys.is_finalizing():  # else it was never made
            self.close()

    def _check(self, method: str, pending: str | None = None) -> None:
        """Raise an error if ``method``, for which ``pending`` must be pending, cannot run now."""
        if self.closed:
            text = f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            raise ClosedEnvironmentError(text)
        if self._pending == pending:
            return
        if pending is not None:
            text = f"Calling `{method}` without any prior call to `{pending}_async`."
            raise NoAsyncCallError(text, pending)
        text = f"while waiting for a pending call to `{self._pending}` to complete."
        raise AlreadyPendingCallError(f"Calling `{method}` {text}", str(self._pending))

    def _checked(self, actions: Any) -> Any:
        """Return the actions for the pool; AssertionError if an ended env was not reset."""
        self._check("step_async")
        if actions is None:
            raise TypeError(f"actions: expected {self.num_envs} actions, one per env; got None")
        over = self._rows[2] | self._rows[3]
        if self.autoreset_mode is AutoresetMode.DISABLED and over.any():
            text = "the episode has ended, and autoreset_mode is DISABLED; call"
            mask = "reset(options={'reset_mask': terminated | truncated}) first"
            raise AssertionError(f"{name_ids(over.nonzero()[0].tolist())}: {text} {mask}")
        is_tuple = isinstance(self.action_space, gym.spaces.Tuple)
        return list(iterate(self.action_space, actions)) if is_tuple else actions

    def _wait(self, call: str, timeout: float | None, take: Callable[[float | None], Any]) -> Any:
        """End the pending call: return the result of ``take(timeout)``."""
        self._check(f"{call}_wait", call)
        try:
            result = self._guarded(take, None if timeout is None else max(timeout, _LOOK))
        except TimeoutError as error:
            if timeout is None or isinstance(error, EnvError) or is_interrupt(error):
                raise
            text = f"The call to `{call}_wait` has timed out after {timeout} second(s)."
            raise multiprocessing.TimeoutError(text) from None
        self._pending, self._late = None, False
        return result

    def _take(self, timeout: float | None) -> None:
        """Take the rows of the pending call; TimeoutError if some are missing after ``timeout``."""
        pool, strict = self.pool, self.pool.strict_timeout
        pool.timeout, pool.strict_timeout = timeout, True
        try:
            batch = pool.recv()
        finally:
            pool.timeout, pool.strict_timeout = None, strict
        self._keep(pool.batch_ids, batch)
        if pool.waiting_id:
            raise TimeoutError
        pool._inner.check_not_cancelled(self._ids)  # a signal handler may have raised

    def _keep(self, ids: Array, batch: Sequence[Any]) -> None:
        rows = (_columns(self._layout, batch[0]), *batch[1:])
        if ids is self._all:
            self._rows = rows
        elif len(ids):
            self._rows = map_tree(functools.partial(_put, ids), self._rows, rows)

    def _batch(self, ids: Array) -> Step:
        obs, reward, terminated, truncated, infos = self._rows
        obs = map_tree(lambda part: tuple(part) if part.dtype == object else part, obs)
        obs = snapshot(obs) if self.copy else obs
        combined = combine_rows(ids.tolist(), infos[ids], self.num_envs)
        return obs, reward.copy(), terminated.copy(), truncated.copy(), combined

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a function; after an error of an env nothing is pending."""
        try:
            return call(*args)
        except BaseException as error:
            if isinstance(error, EnvError) and self.pool.waiting_id:
                with contextlib.suppress(EnvError, TimeoutError, gym.error.ResetNeeded):
                    self._guarded(self._take, _LOOK)  # takes the rows of other envs
                self.pool.cancel()  # those to come
            if not self.pool.waiting_id:  # an interrupt may have cancelled all, too
                self._pending = None
            self._late = self._pending is not None
            raise


@one_at_a_time
def _begin(pool: BaseVectorEnv, requests: Sequence[Request]) -> _End:
    return pool._inner.begin_call(requests)


@one_at_a_time
def _end(pool: BaseVectorEnv, end: _End, timeout: float | None) -> list[Any]:  # noqa: ARG001
    return end(timeout)


def _call(env: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found


def _columns(layout: Any, obs: Any) -> Any:
    """A pool's observations, columns or rows, as an array for each leaf, also of objects."""

    def column(leaf: Any, values: Any) -> Any:
        return objects(values) if leaf.dtype is None else values

    return map_tree(column, layout, as_columns(layout, obs))


def _put(ids: IdArray, whole: Array, rows: Array) -> Array:
    """``whole``, an array of all envs, with ``rows`` in the places ``ids``."""
    if whole.dtype != rows.dtype or whole.shape[1:] != rows.shape[1:]:  # the first rows
        whole = np.zeros((len(whole), *rows.shape[1:]), rows.dtype)
    whole[ids] = rows
    return whole


def split_mask(options: Any, num_envs: int) -> tuple[IdArray | None, Any]:
    """The envs in ``options["reset_mask"]``, or None, and the options without it.

    TypeError or ValueError unless it is a bool array ``(n,)`` with a True.
    """
    if not isinstance(options, Mapping) or "reset_mask" not in options:
        return None, options
    text, mask = "`options['reset_mask']` must", options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{text} be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{text} have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{text} have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        what = "contain a boolean array with at least one True value"
        raise ValueError(f"{text} {what}, got reset_mask={mask}")
    rest = {key: value for key, value in options.items() if key != "reset_mask"}
    return mask.nonzero()[0], rest
