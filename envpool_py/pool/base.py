"""``BaseVectorEnv``: the methods of all pools."""

from __future__ import annotations

import functools
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray
from typing_extensions import Self, Unpack  # typing has them from Python 3.11 on

from envpool_py import env_by_name, seeding
from envpool_py import env_ids as ids_
from envpool_py.engine.engine import Engine
from envpool_py.env.block import StepResult
from envpool_py.env.common_spec import SpaceList, common_space
from envpool_py.env.request import Request
from envpool_py.env.spaces import Array
from envpool_py.env_ids import IdArray, Ids, Selection
from envpool_py.errors import EnvError, warn
from envpool_py.interrupts import deferred, suppressed
from envpool_py.options import AllOptions, EnvOptions, check_timeout, split
from envpool_py.pool import arguments, call_guard, engine_for_sessions, frame_grid
from envpool_py.pool.arguments import Options
from envpool_py.pool.call_guard import one_at_a_time
from envpool_py.pool.engine_for_interfaces import EngineForInterfaces
from envpool_py.pool.keywords import ProcessPoolOptions, check_options, spell_out
from envpool_py.pool.recv_async import recv_async
from envpool_py.pool.requests_of_workers import join_workers
from envpool_py.pool.stats import Meter, Stats
from envpool_py.pool.tianshou_isinstance import class_of
from envpool_py.seeding import Seed
from envpool_py.worker import supervisor
from envpool_py.worker.cores_and_threads import warn_of_torch
from envpool_py.worker.env_worker import EnvWorker
from envpool_py.worker.host_group import HostGroup

#: The options that rows depend on, for records.
RECORDED = ("autoreset_mode", "columns", "validate", "reset_first", "episode_seeds", "recycle")


@spell_out(ProcessPoolOptions)
class BaseVectorEnv:
    """A pool of envs, each with an id, stepped in whole or partial batches.

    Ids (``id``, or ``env_id``, the same) are an int, a sequence, an integer array, a boolean mask
    or a slice; None: all envs. Results are in the order of the ids. An env is in flight until its
    row is returned, and accepts no other request meanwhile. A pool takes one call at a time;
    ``close`` may be called at any time.

    All requests raise ``ClosedEnvironmentError`` if the pool is closed, ``AlreadyPendingCallError``
    if one of their envs is in flight or another call is under way, and ``IndexError``,
    ``TypeError`` or ``ValueError``, before anything is sent, for wrong ids, actions, seeds or
    options. If an env raises, they raise ``EnvError``, which names it; the rows of the other envs
    are kept for the next ``recv``. An interrupted call (Ctrl-C, a signal handler that raises)
    cancels its requests: those envs then need a reset before the next step.

    Args:
        env_fns: one callable per env; ``env_fns[i]()`` makes env ``i``.
        worker_fn: makes the ``EnvWorker`` for one ``env_fn``.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None: all.
        timeout: seconds after which a batch may have fewer rows, but at least one.

    Raises:
        TypeError, ValueError: an argument is wrong, or an env_fn did not return an env.
        EnvError: an env_fn raised; ``WorkerDiedError``: a process ended before its envs were made.
        FileExistsError, OSError: the record file exists, or cannot be created.

    Warns:
        UserWarning: in a later call: a row is wrong, see ``validate``.
        RuntimeWarning: in a later call: the record cannot be continued.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        worker_fn: Callable[[Callable[[], Any]], EnvWorker],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        num_processes: int | None = None,
        **options: Unpack[ProcessPoolOptions],
    ) -> None:
        self.is_closed = self._is_freed = True  # until construction has succeeded
        self._closing: FrameType | None = None  # of the last call of ``close``
        self._pid = os.getpid()
        self._under_way: dict[str, object] = {}
        env_fns = arguments.check_env_fns(env_fns)
        self.env_num = len(env_fns)
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self._timeout = check_timeout("timeout", timeout)
        check_options(BaseVectorEnv.__init__, type(self).__name__, options)
        self._options = split({**options, "num_processes": num_processes})
        self.strict_timeout = self._options.pool.strict_timeout
        self.workers: list[EnvWorker] = []
        hosts: HostGroup | None = None
        try:
            arguments.make_workers(worker_fn, env_fns, self.workers)
            hosts = HostGroup(self.workers, self._options.process, publish_early=self.is_async)
            self.engine = Engine(hosts, self._options, publish_early=self.is_async)
            _set_up(self, self._options, env_by_name.names_of(env_fns))
            self._inner, self.worker_class = EngineForInterfaces(self.engine), type(self.workers[0])
            made = self.engine.env_spaces
            self.observation_space: list[Any] = SpaceList(each.observation_space for each in made)
            self.action_space: list[Any] = SpaceList(each.action_space for each in made)
            self._meter = Meter(self.engine) if self._options.pool.measure else None
            if hosts.supervisor is not None:
                warn_of_torch(len(hosts.supervisor.hosts))
                # At exit, just before the supervisor's own finalizer, which ends the processes.
                with deferred():  # one that is half made prints a traceback when the pool is freed
                    Finalize(self, _note_exit, [weakref.ref(self)], exitpriority=11)
            self.is_closed = self._is_freed = False
        except BaseException:
            self.is_closed = self._is_freed = True
            opened = getattr(self, "engine", hosts)
            if opened is not None:
                opened.close()
            for worker in self.workers:
                with suppressed():  # the first error is the one to report
                    worker.close()
            raise

    @one_at_a_time
    def reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> tuple[Any, Array]:
        """Reset envs and wait for all of them.

        Args:
            env_id: the envs to reset.
            id: the same as ``env_id``.
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or one entry per id.
            options: one dict for all, or a sequence of one per id.
            **kwargs: passed to every env's ``reset``.

        Returns:
            The observations, as ``step`` returns them, and an object array ``(k,)`` of fresh info
            dicts with ``env_id``.
        """
        batch = self.engine.reset(*self._reset_requests(env_id, id, seed, options, kwargs))
        return batch[0], batch[4]

    @one_at_a_time
    def step(self, action: Any, id: Ids = None, *, env_id: Ids = None) -> StepResult:
        """Step envs and wait for all of them, or in async mode for the next partial batch.

        Args:
            action: one action per id: an array ``(k, *shape)`` or a sequence; for Dict and Tuple
                spaces also a dict or tuple of arrays. None: send no actions; return the next
                batch, or the batch of the envs ``id``.
            id: the envs to step.
            env_id: the same as ``id``.

        Returns:
            Five aligned arrays of ``k`` rows: the observations ``(k, *shape)`` in the dtype of
            their space (an object array if they are not arrays, or if they are dicts or tuples and
            ``columns`` is off), rewards float64 ``(k,)`` (vector rewards ``(k, m)``),
            ``terminated`` and ``truncated`` bool ``(k,)``, and an object array ``(k,)`` of fresh
            info dicts, each with ``env_id``. In async mode, in the order in which envs finished.

        Raises:
            ResetNeeded: an env was never reset, or has raised since its last reset.
            ValueError: ``action`` is None, and nothing is in flight.
        """
        if action is None:
            return self._fetch("step(None)", ids_.one_of(id, env_id))
        engine, ids = self.engine, id if env_id is None else ids_.one_of(id, env_id)
        envs = engine.all if ids is None else Selection(ids_.resolve(ids, self.env_num))
        if not engine.flight.publish_early:
            return engine.step(envs, action)
        engine.send_steps(envs, action)
        return engine.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)

    @one_at_a_time
    def send(self, action: Any, id: Ids = None, *, env_id: Ids = None) -> None:
        """Send envs their actions, as for ``step``, and return at once; ``recv`` returns the rows.

        The errors are those of ``step``; None in place of the actions is a TypeError.
        """
        if action is None:
            raise TypeError("send: expected actions, got None; to fetch rows, call recv()")
        self.engine.send_steps(self._select(id, env_id), action)

    @one_at_a_time
    def send_reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> None:
        """Reset envs and return at once; their rows come with later batches.

        The arguments and errors are those of ``reset``. A row has the first observation, reward 0,
        both flags False, and the reset's info with ``info["is_reset"]`` True.
        """
        self.engine.send_resets(*self._reset_requests(env_id, id, seed, options, kwargs))

    @one_at_a_time
    def recv(self) -> StepResult:
        """Return the next batch of steps and resets in flight, in the form of ``step``.

        In async mode the batch has at least ``wait_num`` rows: more if more envs have finished,
        fewer if fewer are in flight or after ``timeout``. In sync mode it has the rows of all envs
        in flight, in the order in which the requests were sent. ValueError: nothing is in flight.
        """
        return self._fetch("recv")

    @one_at_a_time
    def drain(self) -> StepResult:
        """Wait for all envs in flight and return one batch of them, empty if there are none."""
        if self.is_async:
            return self.engine.fetch_next(self.env_num, None, strict=False)
        return self.engine.fetch(Selection(self.engine.states.waiting()))

    @one_at_a_time
    def cancel(self, id: Ids = None, *, env_id: Ids = None) -> None:
        """Cancel the requests that these envs have in flight; their results are dropped.

        Those envs then need a reset before the next step. Envs not in flight do not change.
        """
        self.engine.flight.cancel(self._select(id, env_id).ids)

    @one_at_a_time
    def seed(self, seed: Seed = None) -> list[list[int | None]]:
        """Seed all envs, each by one reset whose observation is dropped, and their action spaces.

        The next ``reset()`` goes on with the seeded stream: it is the second reset of that seed.
        ``seed`` is as for ``reset``; return ``[[seed of env 0], [seed of env 1], ...]``.
        """
        engine = self.engine
        seeds = seeding.per_env(seed, engine.all.ids.tolist())
        engine.claim_reset(engine.all.ids)
        requests = [Request("seed", kwargs={"seed": one}) for one in seeds]
        try:
            engine.reset(engine.all, requests)
        except EnvError:
            if engine.states.unread:  # rows of the other envs, which are dropped as well
                engine.fetch(Selection(np.array(sorted(engine.states.unread))))
            raise
        self._seed_action_spaces(engine.all, requests)
        return [[one] for one in seeds]

    @one_at_a_time
    def restart(
        self,
        id: Ids = None,
        env_fns: Sequence[Callable[[], Any]] | None = None,
        *,
        env_id: Ids = None,
    ) -> None:
        """Recreate envs; they must then be reset.

        If the process of an env has ended, a new process is started, with all envs of the old one.
        Otherwise the env is closed and recreated in its process. A process that still runs a
        cancelled request after a few seconds is killed.

        Args:
            id: the envs to recreate.
            env_id: the same as ``id``.
            env_fns: one callable per id, which makes another env in the same place, now and at
                later restarts; its spaces must be the same. None: as before.

        Raises:
            EnvError: an env_fn raised, or a process ended while it started. If a new env has other
                spaces, it is a ValueError too; that env fails until it gets an env_fn that fits.
        """
        ids = self._select(id, env_id).ids
        if env_fns is None:
            self.engine.requested_restarts.restart(ids)
            return
        env_fns = arguments.check_env_fns(env_fns)
        if len(env_fns) != len(ids):
            raise ValueError(f"got {len(env_fns)} env_fns for {len(ids)} envs; pass one per env")
        self.engine.requested_restarts.replace(ids, env_fns)
        for i, env_fn in zip(ids.tolist(), env_fns, strict=True):
            self.workers[i].env_fn = env_fn

    @one_at_a_time
    def get_env_attr(self, key: str, id: Ids = None, *, env_id: Ids = None) -> list[Any]:
        """Return the attribute ``key`` of each env, from the outermost wrapper that has it.

        If it is missing, the ``EnvError`` is an AttributeError too. No reset is needed.
        """
        return self._ask(ids_.one_of(id, env_id), Request("get_attr", (key,)))

    @one_at_a_time
    def set_env_attr(self, key: str, value: Any, id: Ids = None, *, env_id: Ids = None) -> None:
        """Set the attribute ``key`` of each env, on the wrapper that has it or on the base env."""
        self._ask(ids_.one_of(id, env_id), Request("set_attr", (key, value)))
        for name in ("spec", "metadata"):
            vars(self).pop(name, None)

    @one_at_a_time
    def call(
        self, method: str, *args: Any, id: Ids = None, env_id: Ids = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, on the outermost wrapper that has it; return the results.

        A missing method is an ``EnvError``; ``reset``, ``step`` and ``close`` are a ValueError.
        """
        if method in ("reset", "step", "close"):
            raise ValueError(f"call: {method!r} is a call of the pool; use pool.{method}()")
        return self._ask(ids_.one_of(id, env_id), Request("call", (method, *args), kwargs))

    @one_at_a_time
    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        id: Ids = None,
        env_id: Ids = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function(env, *args, **kwargs)`` for each env, in the env's process.

        ``env`` includes its wrappers. The function is pickled by cloudpickle. Return the results;
        one that cannot be pickled is an ``EnvError``.
        """
        return self._ask(ids_.one_of(id, env_id), Request("apply", (function, *args), kwargs))

    @one_at_a_time
    def render(self, id: Ids = None, *, env_id: Ids = None, **kwargs: Any) -> list[Any]:
        """Return the result of ``env.render(**kwargs)`` of each env."""
        return self._ask(ids_.one_of(id, env_id), Request("render", kwargs=kwargs))

    recv_async = recv_async
    sessions = engine_for_sessions.sessions
    render_grid = frame_grid.render_grid
    __class__ = property(class_of)

    def __len__(self) -> int:
        return self.env_num

    @property
    def closed(self) -> bool:
        """Whether the pool is closed, as ``is_closed``."""
        return self.is_closed

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self.env_num

    @property
    def wait_num(self) -> int:
        """The number of rows that a batch waits for; it may be set between calls."""
        return self._wait_num

    @wait_num.setter
    def wait_num(self, wait_num: int | None) -> None:
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self.engine.flight.publish_early = self.is_async

    @property
    def timeout(self) -> float | None:
        """Seconds after which a batch may have fewer rows; it may be set between calls."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        self._timeout = check_timeout("timeout", timeout)
        self.engine.flight.publish_early = self.is_async

    @property
    def is_async(self) -> bool:
        """Whether a batch may have fewer rows than envs: ``wait_num`` or ``timeout`` is set."""
        return self._wait_num != self.env_num or self._timeout is not None

    @property
    def autoreset_mode(self) -> gym.vector.AutoresetMode | None:
        """How envs are reset at the end of their episodes; None: call ``reset`` yourself."""
        mode: Any = self._options.env.autoreset_mode
        return None if mode is None else gym.vector.AutoresetMode[mode.upper()]

    @property
    def waiting_id(self) -> list[int]:
        """The envs in flight, the oldest request first."""
        return call_guard.settle(self).waiting().tolist()  # type: ignore[no-any-return]

    @property
    def waiting_conn(self) -> list[EnvWorker]:
        """The workers of the envs in flight, the oldest request first."""
        return [self.workers[i] for i in self.waiting_id]

    @property
    def ready_id(self) -> list[int]:
        """The envs that accept a request, in the order in which their rows were returned."""
        return call_guard.settle(self).ready().tolist()  # type: ignore[no-any-return]

    @property
    def batch_ids(self) -> IdArray:
        """The envs of the batch that was returned last, in its order: shape ``(k,)``."""
        return self.engine.batch_ids.copy()

    @property
    def restarts(self) -> NDArray[np.int64]:
        """How often each env was recreated: int64 ``(num_envs,)``."""
        return self.engine.hosts.restarts.copy()

    @property
    def single_observation_space(self) -> gym.Space[Any]:
        """The observation space of every env; ValueError if two envs have different ones."""
        return common_space("observation_space", self.observation_space)

    @property
    def single_action_space(self) -> gym.Space[Any]:
        """The action space of every env; ValueError if two envs have different ones."""
        return common_space("action_space", self.action_space)

    @functools.cached_property
    def spec(self) -> list[Any]:
        """The ``EnvSpec`` of every env, or None."""
        return self.get_env_attr("spec")

    @functools.cached_property
    def metadata(self) -> list[Any]:
        """The metadata of every env."""
        return self.get_env_attr("metadata")

    @property
    def unwrapped(self) -> BaseVectorEnv:
        """The pool itself."""
        return self

    @one_at_a_time
    def stats(self, *, clear: bool = False) -> Stats:
        """Return counts and times of steps, resets and batches; ``clear`` sets them to zero.

        Raises:
            RuntimeError: the pool was made without ``measure=True``.
            NotImplementedError: the worker class does not measure.
        """
        if self._meter is None:
            raise RuntimeError("stats: nothing was measured; make the pool with measure=True")
        if not all(host.can_measure for host in self.engine.hosts.local):
            raise NotImplementedError(f"{self.worker_class.__name__} does not measure its envs")
        found = self._meter.stats()
        if clear:
            self._meter = Meter(self.engine)
        return found

    def __repr__(self) -> str:
        text = f"{type(self).__name__}(num_envs={self.env_num}"
        if self._wait_num != self.env_num:
            text += f", wait_num={self._wait_num}"
        if self._timeout is not None:
            text += f", timeout={self._timeout}"
        if self._options.env.autoreset_mode is not None:
            text += f", autoreset_mode={self._options.env.autoreset_mode!r}"
        if self._options.recovery.on_error != "raise":
            text += f", on_error={self._options.recovery.on_error!r}"
        if hasattr(self, "engine"):
            text += self.engine.hosts.describe()
            if self.engine.hosts.restarts.any():
                text += f", {self.engine.hosts.restarts.sum()} restarts"
        return text + (", closed)" if self.is_closed else ")")

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        Warns:
            RuntimeWarning: closing an env raised. The other envs are closed nevertheless.
        """
        frame = sys._getframe()  # noqa: SLF001 - there is no public way
        if self._is_freed or os.getpid() != self._pid or call_guard.is_running(self._closing):
            return
        self._closing, self.is_closed = frame, True
        del frame
        self.engine.flight.mark_closed()
        call_guard.await_end(self, supervisor.GRACE)
        errors = self.engine.close()
        self._closing, self._is_freed = None, True  # else it was interrupted: the next call goes on
        for error in errors:
            warn(str(error), RuntimeWarning)

    def __reduce__(self) -> Any:
        text = "cannot be copied or pickled; make another from its env_fns"
        raise TypeError(f"{type(self).__name__} {text}")

    def __enter__(self) -> Self:
        self._assert_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_freed", True) or sys.is_finalizing() or os.getpid() != self._pid:
            return
        text = f"unclosed {type(self).__name__}"
        try:
            if not self.is_closed:  # else ``close`` was interrupted
                warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
        finally:  # a filter may turn the warning into an error
            self.close()

    def _assert_open(self) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"{type(self).__name__} is closed; make a new pool")
        if self._pid != os.getpid() and self.engine.hosts.supervisor is not None:
            raise RuntimeError(
                f"{type(self).__name__} was made in process {self._pid}, and a fork of it cannot"
                " use its workers; make another pool in the fork"
            )

    def _select(self, ids: Ids, other: Ids = None) -> Selection:
        if other is not None:
            ids = ids_.one_of(ids, other)
        return self.engine.all if ids is None else Selection(ids_.resolve(ids, self.env_num))

    # The next two are not used here; subclasses of Tianshou's pools call them.
    def _wrap_id(self, id: Ids = None) -> list[int]:
        return self._select(id).ids.tolist()  # type: ignore[no-any-return]

    def _assert_id(self, id: Ids) -> None:
        self.engine.states.check_free(self._select(id).ids)

    def _fetch(self, call: str, ids: Ids = None) -> StepResult:
        engine = self.engine
        if not engine.states.num_in_flight:
            raise ValueError(f"{call} fetches results, but no env is in flight; send actions first")
        if ids is not None:
            envs = self._select(ids)
            engine.states.check_fetch(envs.ids)
            return engine.fetch(envs)
        if self.is_async:
            return engine.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)
        return engine.fetch(Selection(engine.states.waiting()))

    def _reset_requests(
        self, env_id: Ids, other: Ids, seed: Seed, options: Options, kwargs: Mapping[str, Any]
    ) -> tuple[Selection, list[Request]]:
        """Return the envs, which must accept a reset now, and one request for each."""
        envs = self._select(env_id, other)
        requests = arguments.reset_requests(envs.ids.tolist(), seed, options, kwargs)
        self.engine.requested_restarts.revive(envs.ids)
        self.engine.claim_reset(envs.ids)
        if seed is not None:
            self._seed_action_spaces(envs, requests)
        return envs, requests

    def _seed_action_spaces(self, envs: Selection, requests: Sequence[Request]) -> None:
        for i, request in zip(envs.ids.tolist(), requests, strict=True):
            space, seed = self.action_space[i], request.kwargs.get("seed")
            if space is not None and seed is not None:
                space.seed(seed)

    def _ask(self, ids: Ids, request: Request) -> list[Any]:
        selected = self._select(ids).ids
        self.engine.states.check_free(selected)
        return self.engine.ask(selected, [request] * len(selected))


def _set_up(pool: Any, options: AllOptions, env: dict[str, Any] | None) -> None:
    """Configure workers and executors, and add recording to the engine."""
    engine = pool.engine
    join_workers(pool, BaseVectorEnv)
    if options.env.episode_seeds or options.env.recycle:
        positions = engine.flight.positions
        positions.root_seeds = {i: positions.root_seed_of(i) for i in positions.root_seeds}
    if options.env != EnvOptions():
        engine.recovery.recreation.send_options(engine.all.ids.tolist())
    if options.pool.record is not None:
        every = {name: value for part in options for name, value in vars(part).items()}
        facts = {name: every[name] for name in (*RECORDED, "on_error")}
        facts |= {"env": env, "pool": type(pool).__name__, "num_envs": pool.env_num}
        facts["roots"] = list(engine.flight.positions.root_seeds.values())
        engine.record(Path(options.pool.record), facts)
    if not options.pool.reset_first:
        engine.states.mark_as_reset()


def _note_exit(pool_ref: weakref.ref[BaseVectorEnv]) -> None:
    if (pool := pool_ref()) is not None:
        pool.is_closed = True
        pool.engine.flight.mark_closed()  # a call in a daemon thread leaves the processes alone
