"""``BaseVectorEnv``: many envs, indexed by id, stepped in whole or partial batches.

What holds for every backend:

* ids, counts, shapes and seeds are checked before anything is sent;
* in sync mode rows come in the order asked, in async mode in the order in which envs finished;
* an env whose row has not been returned is in flight: it takes no other request;
* an error names its envs; the rows of all other envs of that call are kept for the next ``recv``;
* a call that is interrupted (Ctrl-C, a signal handler that raises) cancels what it asked for: those
  envs then accept only ``reset``;
* a pool takes one call at a time; ``close`` may be called at any time.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import arguments, assembly, calls, checks, seeding, stats
from envpool_py import ids as ids_
from envpool_py.arguments import Options
from envpool_py.block import StepResult
from envpool_py.calls import one_at_a_time
from envpool_py.engine import Engine
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray, Ids
from envpool_py.pool_attributes import PoolAttributes, this_process
from envpool_py.seeding import Seed
from envpool_py.spaces import Array
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.executor import ResetFn
from envpool_py.worker.placement import hosts_of
from envpool_py.worker.workers import SubprocEnvWorker


class BaseVectorEnv(PoolAttributes):
    """Many envs behind one interface.

    Args:
        env_fns: one callable for each env; ``env_fns[i]()`` makes env ``i``.
        worker_fn: makes an ``EnvWorker`` of an ``env_fn``.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None is all.
        timeout: seconds after which a batch comes with fewer rows, but with one at least.
        strict_timeout: let a batch come empty after ``timeout``, of the right shapes and dtypes.
        autoreset_mode: None: the caller resets, and stepping a finished env calls its ``step``
            again. ``"next_step"``, ``"same_step"`` or a ``gymnasium.vector.AutoresetMode``: as in
            Gymnasium.
        episode_seeds: seed every reset from (the env's seed, the number of the episode).
        reset_fn: ``(env_id, episode) -> (seed, options)``, asked for every reset that is not given
            its own, automatic ones included.
        columns: Dict and Tuple observations as a dict or tuple of arrays ``(k, ...)``; by default
            an object array of one dict or tuple per env.
        copy: False: a row holds only until its env is stepped or reset again. A batch of all envs
            in order is views of the memory that the envs write to; the observations of any other
            are gathered into memory that is used again.
        reset_first: False: a step before the first reset reaches the env, whatever it makes of it.
        validate: which rows are looked at for NaN, values out of bounds and whatever
            ``observation_space.contains`` refuses. ``"first"``: the first reset and the first step
            of each env; what is found is warned of. ``"always"``: every row; what is found is an
            error of that env. ``"off"``: none.
        on_error: ``"raise"``: what an env raises reaches the caller. ``"restart"``: the env is made
            anew, its process too where that has ended; its lost step comes as a row that is
            truncated, with the last observation, reward 0 and the error's text in
            ``info["env_error"]``. ``"replay"``: the new env is brought back to its step by what the
            lost one has been through; the row is that of the step, with the error's text in
            ``info["env_replayed"]``; where that can't be, as ``"restart"``.
        max_restarts: how often each env may be recreated before its error is raised after all; None
            is without end.
        restart_backoff: seconds between the first and the second restart of an env, doubled for
            each later one, 30 at the most. Only that env waits.
        on_restart: ``(env_id, error)``, called once an env has been recreated, before its reset; it
            must not use the pool.
        measure: count steps and resets and the time that they take, for ``stats()``; it costs
            about a microsecond for each step.
        record: a file that is to hold all that the envs are asked, and enough to check what comes
            of it, for ``envpool_py.replay``; it must not exist.
        **worker_options: what the worker class takes.

    Raises:
        TypeError, ValueError: an argument is wrong, or an env_fn made no env.
        EnvError: an env_fn raised.
        WorkerDiedError: a process ended before its envs were there.
        FileExistsError, OSError: the record exists, or can't be written there.

    Warns:
        UserWarning: in a later call; see ``validate``.
        RuntimeWarning: in a later call: the record can't be written any further.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        worker_fn: Callable[[Callable[[], Any]], EnvWorker],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        strict_timeout: bool = False,
        autoreset_mode: str | gym.vector.AutoresetMode | None = None,
        episode_seeds: bool = False,
        reset_fn: ResetFn | None = None,
        columns: bool = False,
        copy: bool = True,
        reset_first: bool = True,
        validate: str = checks.FIRST,
        on_error: str = "raise",
        max_restarts: int | None = 10,
        restart_backoff: float = 0.1,
        on_restart: Callable[[int, EnvError], object] | None = None,
        measure: bool = False,
        record: str | os.PathLike[str] | None = None,
        **worker_options: Any,
    ) -> None:
        self.is_closed = True  # until there is something to close
        self._pid = os.getpid()
        self._calls: dict[str, object] = {}
        env_fns = arguments.check_env_fns(env_fns)
        self.env_num = len(env_fns)
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self._timeout = arguments.check_timeout(timeout)
        self.strict_timeout = strict_timeout
        self._autoreset = arguments.check_autoreset_mode(autoreset_mode)
        arguments.check_reset_fn(reset_fn, episode_seeds=episode_seeds)
        validate = arguments.check_validate(validate)
        policy = arguments.check_policy(on_error, max_restarts, restart_backoff, on_restart)
        path = None if record is None else arguments.check_path(record)
        self.workers: list[EnvWorker] = []
        try:
            for i, env_fn in enumerate(env_fns):
                self.workers.append(arguments.make_worker(worker_fn, env_fn, i))
            self.worker_class = arguments.common_class(self.workers)
            hosts = hosts_of(self.workers, prompt=self.is_async, **worker_options)
            self.engine = Engine(
                hosts,
                autoreset=self._autoreset,
                columns=columns,
                copy=copy,
                measure=measure,
                scheduled=bool(policy or episode_seeds or reset_fn or path),
                prompt=self.is_async,
            )
            self._join_workers()
            assembly.assemble(
                self.engine,
                assembly.EpisodeOptions(
                    self._autoreset,
                    bool(episode_seeds),
                    reset_fn,
                    validate,
                    on_error == "replay",
                    path,
                ),
                policy,
                {
                    "pool": type(self).__name__,
                    "on_error": on_error,
                    "columns": columns,
                    "reset_first": reset_first,
                },
            )
            if not reset_first:
                self.engine.states.take_as_reset()
        except BaseException:
            self._abandon_construction()
            raise
        self.observation_space = [own.observation_space for own in self.engine.env_spaces]
        self.action_space = [own.action_space for own in self.engine.env_spaces]
        self._all = self.engine.all_ids
        self._attributes: dict[str, list[Any]] = {}
        self._measured = measure
        self.is_closed = False
        self._begin_counting()

    def _join_workers(self) -> None:
        """Have the workers' own methods go through the pool."""

        def join(i: int, worker: SubprocEnvWorker) -> None:
            one = np.array([i], dtype=np.intp)
            worker.join(
                lambda request: self.engine.asking.ask(one, [request])[0],
                lambda: self.engine.hosts.of(i),
            )

        for i, worker in enumerate(self.workers):
            if isinstance(worker, SubprocEnvWorker):
                join(i, worker)

    def _abandon_construction(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
        for worker in self.workers:
            try:
                worker.close()
            except Exception:  # noqa: BLE001, S112 - the error on its way out says more
                continue

    # ---------------------------------------------------------------------------- reset and step

    @one_at_a_time
    def reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> tuple[Any, Array]:
        """Reset envs and wait for all of them.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or one entry for each id.
            options: one dict for all, or a sequence of one for each id.
            **kwargs: passed to every env's ``reset``.

        Returns:
            The observations, as ``step`` returns them, and an object array ``(k,)`` of fresh info
            dicts with ``env_id``; rows in the order of the ids.

        Raises:
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised.
            IndexError, TypeError, ValueError: ids, seeds or options are wrong; nothing was sent.
        """
        self._assert_open()
        ids = self._resolve(env_id, id)
        batch = self.engine.reset(ids, self._reset_requests(ids, seed, options, kwargs))
        return batch[0], batch[4]

    @one_at_a_time
    def step(self, action: Any, id: Ids = None) -> StepResult:  # noqa: A002 - Tianshou's name
        """Step envs.

        In sync mode: step the envs ``id`` and wait for all of them. In async mode: send them their
        actions, and return the next partial batch, of whichever envs have finished.

        Args:
            action: one action for each id: an array ``(k, *shape)`` or a sequence; for Dict and
                Tuple spaces also a dict or tuple of arrays. None: send nothing and fetch, the next
                batch or that of the envs ``id``.
            id: which envs; None is all.

        Returns:
            Five aligned arrays of ``k`` rows: the observations ``(k, *shape)`` in the dtype of
            their space (an object array where they are no arrays, or where they are dicts or
            tuples and ``columns`` is off), rewards float64 ``(k,)`` (vector rewards ``(k, m)``),
            ``terminated`` and ``truncated`` bool ``(k,)``, and an object array ``(k,)`` of fresh
            info dicts, each with ``env_id``. In sync mode rows are in the order of ``id``, in async
            mode in the order in which the envs finished.

        Raises:
            ResetNeeded: an env was never reset, or has raised since.
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised; the rows of the others are kept for the next ``recv``.
            IndexError, TypeError, ValueError: ids or actions are wrong, nothing was sent; or there
                is nothing to fetch.
        """
        if self.is_closed or self._pid != this_process.pid:
            self._assert_open()
        if action is None:
            return self._fetch(id)
        ids = self._all if id is None else ids_.resolve(id, self.env_num)
        if not self.engine.prompt:
            return self.engine.step(ids, action)
        self.engine.send_steps(ids, action)
        return self.engine.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)

    @one_at_a_time
    def send(self, action: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Send envs their actions and return at once; ``recv`` brings the rows.

        Args:
            action: as for ``step``, but not None.
            id: which envs; None is all.

        Raises:
            ResetNeeded, AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``step``.
        """
        if action is None:
            raise TypeError("send needs actions, got None; recv() and step(None) fetch rows")
        self._assert_open()
        self.engine.send_steps(self._resolve(id), action)

    @one_at_a_time
    def send_reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> None:
        """Reset envs and return at once; their rows come with later batches.

        Such a row has the first observation, reward 0, both flags False, and the reset's info with
        ``info["is_reset"]`` True.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: as for ``reset``.
            options: as for ``reset``.
            **kwargs: passed to every env's ``reset``.

        Raises:
            AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``reset``.
        """
        self._assert_open()
        ids = self._resolve(env_id, id)
        requests = self._reset_requests(ids, seed, options, kwargs)
        self.engine.claim_reset(ids)
        self.engine.send_resets(ids, requests)

    @one_at_a_time
    def recv(self) -> StepResult:
        """The next batch of rows, of steps and resets in flight.

        In async mode at least ``wait_num`` rows, or all in flight if they are fewer; after
        ``timeout`` those that are there, at least one unless ``strict_timeout``. More than
        ``wait_num`` only if they are there already. In sync mode all in flight, in the order sent.

        Returns:
            As ``step``.

        Raises:
            ValueError: nothing is in flight.
            EnvError: an env raised; the other rows are kept for the next ``recv``.
        """
        self._assert_open()
        if not self.engine.states.in_flight:
            raise ValueError("recv fetches results, but no env is in flight")
        return self._next_batch()

    def _next_batch(self) -> StepResult:
        engine = self.engine
        if self.is_async:
            return engine.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)
        return engine.fetch(engine.states.waiting())

    @one_at_a_time
    def drain(self) -> StepResult:
        """Wait for everything in flight and return it as one batch, empty if nothing is.

        Returns:
            As ``step``; in async mode in the order in which envs finished.

        Raises:
            EnvError: as ``recv``.
        """
        self._assert_open()
        if self.is_async:
            return self.engine.fetch_all()
        return self.engine.fetch(self.engine.states.waiting())

    @one_at_a_time
    def cancel(self, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Cancel what these envs have in flight: it is dropped, however late it comes.

        Those envs then accept only a reset; envs that have nothing in flight are left alone.

        Args:
            id: which; None is all.
        """
        self._assert_open()
        self.engine.cancel(self._resolve(id))

    def _fetch(self, id: Ids) -> StepResult:  # noqa: A002 - Tianshou's name
        if not self.engine.states.in_flight:
            raise ValueError("step(None) fetches results, but no env is in flight")
        if id is None:
            return self._next_batch()
        ids = ids_.resolve(id, self.env_num)
        self.engine.states.check_fetch(ids)
        return self.engine.fetch(ids)

    # --------------------------------------------------------------------- requests without rows

    @one_at_a_time
    def seed(self, seed: Seed = None) -> list[list[int | None]]:
        """Seed all envs, each by one reset whose observation is dropped, and their action spaces.

        The next ``reset()`` goes on with the seeded stream: it is the second reset of that seed.

        Args:
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or a list of one for each env.

        Returns:
            ``[[seed of env 0], [seed of env 1], ...]`` on every backend.

        Raises:
            AlreadyPendingCallError: an env is in flight; nothing was sent.
            TypeError, ValueError: seeds are wrong; nothing was sent.
            EnvError: an env raised.
        """
        self._assert_open()
        seeds = seeding.per_env(seed, self._all.tolist())
        self.engine.claim_reset(self._all)
        self.engine.asking.seed(self._all, [Request("seed", (one,)) for one in seeds])
        for i, one in enumerate(seeds):
            self._seed_action_space(i, one)
        return [[one] for one in seeds]

    @one_at_a_time
    def restart(self, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Recreate envs, each by its ``env_fn``; they must then be reset.

        Where the process of an env has ended a new one is started, with all the envs that it had;
        otherwise the env is closed, whatever state it is in, and made again where it is.

        Args:
            id: which; None is all.

        Raises:
            AlreadyPendingCallError: an env is in flight; after ``cancel``, a process in which it
                goes on for more than a few seconds is killed.
            EnvError: an env_fn raised, or a process ended while it started.
        """
        self._assert_open()
        self.engine.recreation.restart(self._resolve(id))

    @one_at_a_time
    def stats(self, *, clear: bool = False) -> stats.Stats:
        """What the envs have done, and how long it took; at any time, steps under way included.

        Args:
            clear: begin to count anew afterwards.

        Raises:
            RuntimeError: the pool was made without ``measure=True``.
            NotImplementedError: its workers are of a class that does not measure.
        """
        self._assert_open()
        if not self._measured:
            raise RuntimeError("nothing was measured: make the pool with measure=True")
        engine = self.engine
        if not engine.hosts.measure:
            raise NotImplementedError(f"{self.worker_class.__name__} does not measure its envs")
        times, restarts, since, batches, rows = self._counted
        found = stats.summarise(
            engine.block.times - times,
            engine.hosts.restarts - restarts,
            engine.hosts.listed(),
            seconds=time.perf_counter() - since,
            batches=engine.counts[0] - batches,
            rows=engine.counts[1] - rows,
        )
        if clear:
            self._begin_counting()
        return found

    def _begin_counting(self) -> None:
        """Note where all counters are: ``stats`` tells what came since."""
        engine = self.engine
        now = time.perf_counter()
        times, restarts = engine.block.times.copy(), engine.hosts.restarts.copy()
        self._counted = times, restarts, now, engine.counts[0], engine.counts[1]

    # --------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        Warns:
            RuntimeWarning: closing an env raised. All others are closed all the same.
        """
        if self.is_closed or os.getpid() != self._pid:
            return
        self.is_closed = True
        self.engine.stop()
        calls.await_end(self, self.engine.hosts.grace())
        for observer in self.engine.observers:
            observer.close()
        for error in self.engine.close():
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied or pickled; make another one of its env_fns")

    def __enter__(self) -> Any:
        self._assert_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "is_closed", True) or sys.is_finalizing() or os.getpid() != self._pid:
            return
        try:
            warnings.warn(
                f"unclosed {type(self).__name__}", ResourceWarning, source=self, stacklevel=2
            )
        finally:  # a warning may be an error
            self.close()

    # -------------------------------------------------------------------------------- the inside

    def _wrap_id(self, id: Ids = None) -> list[int]:  # noqa: A002 - Tianshou's name
        """Ids as a list; None is all."""
        listed: list[int] = ids_.resolve(id, self.env_num).tolist()
        return listed

    def _assert_id(self, id: Ids) -> None:  # noqa: A002 - Tianshou's name
        """Raise unless all of these envs can be asked for something now."""
        self.engine.states.check_free(ids_.resolve(id, self.env_num))

    def _reset_requests(
        self, ids: IdArray, seed: Seed, options: Options, kwargs: Mapping[str, Any]
    ) -> list[Request]:
        """One request for each env, all of which take a reset now."""
        requests = arguments.reset_requests(ids.tolist(), seed, options, kwargs)
        self.engine.claim_reset(ids)
        if seed is not None:
            for i, request in zip(ids.tolist(), requests, strict=True):
                self._seed_action_space(i, request.kwargs.get("seed"))
        return requests

    def _seed_action_space(self, i: int, seed: int | None) -> None:
        space = self.action_space[i]
        if space is not None and seed is not None:
            space.seed(seed)
