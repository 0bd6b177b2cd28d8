"""The package's own workers, and where the envs of a pool of workers are to live."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from envpool_py.errors import EnvError, env_error
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.channel import GENERATION, ID_MASK
from envpool_py.worker.executor import Executor
from envpool_py.worker.hosts import InlineHost, LocalHost, WorkerHost
from envpool_py.worker.placement import Hosts
from envpool_py.worker.processes import Processes

_OPTIONS = {"num_processes", "caller_steps", "num_threads", "affinity", "step_timeout"}


class DummyEnvWorker(EnvWorker):
    """The env lives here; a request is carried out in ``recv``.

    Args:
        env_fn: makes the env; called at once.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
        self.executor = Executor(env_fn)
        self._request: Request | None = None

    @property
    def env(self) -> Any:
        """The env itself."""
        return self.executor.env

    def send(self, request: Request) -> None:
        """Note the request down."""
        self._request = request

    def recv(self) -> Any:
        """Carry the request out and return the reply."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("recv: no request was sent")
        return self.executor(request)

    def cancel(self) -> None:
        """Drop the request."""
        self._request = None

    def close(self) -> None:
        """Close the env."""
        self.executor.close()


class SubprocEnvWorker(EnvWorker):
    """The env lives in a process of its own.

    Nothing starts before the first request, or before a pool takes the worker: a pool starts all of
    its processes at once, and may put several envs into one. Outside a pool messages are pickled;
    in a pool rows and actions go through shared memory.

    Args:
        env_fn: makes the env; called once, in the process.
        share_memory: has no effect; in a pool memory is always shared.
        context: the start method, its name or a multiprocessing context; None is multiprocessing's
            own choice.
    """

    def __init__(
        self,
        env_fn: Callable[[], Any],
        share_memory: bool = False,
        context: str | BaseContext | None = None,
    ) -> None:
        super().__init__(env_fn)
        self.share_memory = share_memory
        self.context = context
        self._request: Request | None = None
        # In a pool, see ``join``.
        self._ask: Callable[[Request], Any] | None = None
        self._host: Callable[[], Any] | None = None
        # Outside a pool.
        self._processes: Processes | None = None
        self._token = 0

    def join(self, ask: Callable[[Request], Any], host: Callable[[], Any]) -> None:
        """Belong to a pool: ``ask`` carries out a request on the env, ``host`` tells its host."""
        self._ask, self._host = ask, host

    def send(self, request: Request) -> None:
        """Send the request to the process."""
        if self._ask is None:
            host = self._started().hosts[0]
            host.write(host.pack([(self._token, request)]))
        self._request = request

    def recv(self) -> Any:
        """Wait for the reply."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("recv: no request was sent")
        if self._ask is not None:
            return self._ask(request)
        processes = self._started()
        host = processes.hosts[0]
        chunks: list[bytes] = []
        while self._token not in memoryview(b"".join(chunks)).cast("q"):
            if processes.ended():
                host.reap()
            if host.exit is not None:
                raise host.death_of(0)
            processes.channel.fetch(chunks, 0, None)
        result = host.take_item(self._token, request.kind)
        if isinstance(result, EnvError):
            raise result
        return result["reply"]

    def cancel(self) -> None:
        """Cancel the request; its reply is dropped when it comes."""
        self._request = None
        self._token += GENERATION

    def close(self) -> None:
        """End the process; in a pool, the pool does."""
        if self._processes is not None:
            self._processes.close()

    def _started(self) -> Processes:
        if self._processes is None:
            processes = Processes([self.env_fn], self.context, 1)
            try:
                processes.start()
                processes.await_started([], lambda: None)
            except BaseException:
                processes.close()
                raise
            self._processes = processes
        return self._processes

    @property
    def process(self) -> Any:
        """The ``multiprocessing`` process in which the env lives.

        Raises:
            AttributeError: the caller steps the env itself.
        """
        host = self._started().hosts[0] if self._host is None else self._host()
        if not hasattr(host, "process"):
            raise AttributeError("the env has no process: the caller steps it itself")
        return host.process


class ShmemEnvWorker(SubprocEnvWorker):
    """The env lives in a process; observations, rewards, flags and actions lie in shared memory.

    Args:
        env_fn: makes the env; called once, in the process.
        context: the start method, its name or a multiprocessing context; None is multiprocessing's
            own choice.
    """

    def __init__(self, env_fn: Callable[[], Any], context: str | BaseContext | None = None) -> None:
        super().__init__(env_fn, share_memory=True, context=context)


def hosts_of(
    workers: Sequence[Any],
    *,
    prompt: bool,
    num_processes: int | None = None,
    caller_steps: bool = False,
    **options: Any,
) -> Hosts:
    """Where the envs of these workers, all of one class, are to live.

    With ``caller_steps`` this process steps the last envs while the others step theirs: as many as
    a process has, or half as many with ``prompt``, where results are wanted as they come. For the
    other options, and their errors, see the pools.
    """
    count = len(workers)
    base = _check_options(workers[0], num_processes, caller_steps, options)
    if base is None:
        return Hosts(count, None, lambda: [WorkerHost(workers)])
    if base is DummyEnvWorker:
        executors = [worker.executor for worker in workers]
        return Hosts(count, None, lambda: [_inline(range(count), executors)])
    if count > ID_MASK:
        raise ValueError(f"got {count} envs; a pool takes {ID_MASK} at the most")
    spread = min(_check_count("num_processes", num_processes) or count, count)
    if caller_steps and num_processes is None:
        raise ValueError("caller_steps: the caller has a share like a process; say num_processes")
    if caller_steps and options.get("step_timeout") is not None:
        raise ValueError(
            "step_timeout: an env that the caller steps can't be ended; leave caller_steps"
        )
    first = count
    if caller_steps and spread < count:  # else there is none left for the caller
        first -= max(count // ((2 if prompt else 1) * spread + 1), 1)
    env_fns = [worker.env_fn for worker in workers]
    processes = Processes(
        env_fns[:first],
        workers[0].context,
        min(spread, first),
        num_threads=_check_count("num_threads", options.get("num_threads", 1)),
        affinity=options.get("affinity", False),
        step_timeout=_check_step_timeout(options.get("step_timeout")),
    )
    return Hosts(count, processes, lambda: _make_inline(range(first, count), env_fns[first:]))


def _check_options(
    worker: Any, num_processes: int | None, caller_steps: bool, options: dict[str, Any]
) -> type[EnvWorker] | None:
    """The class whose ``send`` and ``recv`` the worker has; None if it has its own."""
    kind = type(worker)
    given = {**options, "num_processes": num_processes, "caller_steps": caller_steps}
    takes = _OPTIONS if isinstance(worker, SubprocEnvWorker) else set()
    unknown = {name for name in given if given[name] or (name in options and not takes)} - takes
    if unknown:
        raise TypeError(f"{kind.__name__} does not take {', '.join(sorted(unknown))}")
    for base in (DummyEnvWorker, SubprocEnvWorker):
        if issubclass(kind, base) and kind.send is base.send and kind.recv is base.recv:
            return base
    if takes and (num_processes is not None or caller_steps):
        raise TypeError(f"{kind.__name__} has a send or recv of its own: one env a process")
    return None


def _check_step_timeout(step_timeout: float | None) -> float | None:
    """``step_timeout`` in seconds, positive, or None."""
    if step_timeout is None:
        return None
    if isinstance(step_timeout, bool) or not isinstance(step_timeout, (int, float, np.number)):
        raise TypeError(f"step_timeout must be seconds or None, got {step_timeout!r}")
    if not step_timeout > 0:
        raise ValueError(f"step_timeout must be positive, got {step_timeout}")
    return float(step_timeout)


def _check_count(name: str, value: object) -> int | None:
    """An int from 1 on, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int or None, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    return int(value)


def _make_inline(ids: Sequence[int], env_fns: Sequence[Callable[[], Any]]) -> list[LocalHost]:
    """The host of the envs that the caller steps beside processes; none without envs."""
    made: list[Executor] = []
    try:
        for i, env_fn in zip(ids, env_fns, strict=True):
            try:
                made.append(Executor(env_fn))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise env_error(error, i, "env_fn") from error
        return [_inline(ids, made)] if made else []
    except BaseException:
        for executor in made:
            with contextlib.suppress(Exception):  # the error on its way out says more
                executor.close()
        raise


def _inline(ids: Sequence[int], executors: Sequence[Executor]) -> InlineHost:
    seen: dict[int, int] = {}
    for i, executor in zip(ids, executors, strict=True):
        first = seen.setdefault(id(getattr(executor.env, "unwrapped", executor.env)), i)
        if first != i:
            raise ValueError(
                f"env {i}: env_fn returned the instance that env {first} has;"
                " every env_fn must make its own"
            )
    return InlineHost(ids, executors)
