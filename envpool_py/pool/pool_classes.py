"""The pool classes, one per backend."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.options import Context, NumProcesses, check_count
from envpool_py.pool import arguments, backend_choice
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import (
    InProcessOptions,
    ProcessPoolOptions,
    check_options,
    one_of,
    spell_out,
)
from envpool_py.threads.thread_host import ThreadEnvWorker
from envpool_py.worker.builtin_env_workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker


@spell_out(InProcessOptions)
class DummyVectorEnv(BaseVectorEnv):
    """A pool that steps all envs in this process; for cheap envs and for debugging.

    Envs are stepped one after another, the oldest request first, so partial batches are fair.
    ``timeout`` does not interrupt a step that has begun. Options: ``on_error``, ``record``, ...
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Unpack[InProcessOptions],
    ) -> None:
        check_options(DummyVectorEnv.__init__, type(self).__name__, options)
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout, **options)


@spell_out(ProcessPoolOptions)
class ShmemVectorEnv(BaseVectorEnv):
    """A pool of worker processes. Options: ``on_error``, ``step_timeout``, ``record``, ...

    Rows, actions and infos of numbers and small arrays are in shared memory; the rest is pickled.

    Args:
        env_fns: one callable per env; pickled by cloudpickle, but only under spawn and forkserver.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's default.
        num_processes: the number of worker processes, each with an equal share of the envs. None:
            one per env. ``"auto"``: chosen by timing a throw-away env in a separate process.
        start_method: the same as ``context``.
    """

    _worker_class: type[ShmemEnvWorker] = ShmemEnvWorker

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        context: Context = None,
        num_processes: NumProcesses = None,
        *,
        start_method: Context = None,
        **options: Unpack[ProcessPoolOptions],
    ) -> None:
        context = one_of("context", context, "start_method", start_method)
        check_options(ShmemVectorEnv.__init__, type(self).__name__, options)
        env_fns = arguments.check_env_fns(env_fns)
        count: Any = arguments.check_num_processes(num_processes)
        if count == "auto":
            measured = backend_choice.probe(env_fns[0], context, num_envs=len(env_fns))
            count = backend_choice.choose_processes(measured, len(env_fns))
        worker_fn = functools.partial(self._worker_class, context=context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=count, **options)


@spell_out(ProcessPoolOptions)
class SubprocVectorEnv(ShmemVectorEnv):
    """``ShmemVectorEnv`` with Tianshou's name. Options: ``on_error``, ``step_timeout``, ...

    Args:
        share_memory: ignored; rows and actions always go through shared memory.
    """

    _worker_class = SubprocEnvWorker

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,  # noqa: ARG002 - Tianshou's
        context: Context = None,
        num_processes: NumProcesses = None,
        *,
        start_method: Context = None,
        **options: Unpack[ProcessPoolOptions],
    ) -> None:
        check_options(SubprocVectorEnv.__init__, type(self).__name__, options)
        own: Any = {"start_method": start_method, **options}
        super().__init__(env_fns, wait_num, timeout, context, num_processes, **own)


@spell_out(InProcessOptions)
class ThreadVectorEnv(BaseVectorEnv):
    """A pool of envs in threads of this process; for envs that wait rather than compute.

    Nothing is pickled, and the pool starts in milliseconds, on any platform. An env stays in its
    thread: ``env_fn`` is called there. Envs that compute wait for each other, unless Python runs
    without the GIL. A thread cannot be killed: an env that takes longer than ``step_timeout`` is
    reported with its stack, its thread is abandoned, and it is recreated in a new one. An env that
    kills its process kills the program. Options: ``on_error``, ``record``, ...

    Args:
        num_threads: the number of threads, each with an equal share of the envs. None: one per env.
        step_timeout: seconds that a request to an env may take before its thread is abandoned;
            None: no timeout.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        num_threads: int | None = None,
        *,
        step_timeout: float | None = None,
        **options: Unpack[InProcessOptions],
    ) -> None:
        check_options(ThreadVectorEnv.__init__, type(self).__name__, options)
        own: Any = {"num_processes": check_count("num_threads", num_threads)}
        own["step_timeout"] = step_timeout
        super().__init__(env_fns, ThreadEnvWorker, wait_num, timeout, **own, **options)


#: From each name of a ``backend`` to its class; that of Ray is imported when it is used.
_CLASSES: dict[str, type[BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem": ShmemVectorEnv,
    "thread": ThreadVectorEnv,
}
BACKENDS = (*_CLASSES, "ray")


def pool_class(backend: str, *others: str) -> Callable[..., BaseVectorEnv]:
    """Return the class of the pools of this name; ValueError, which also lists ``others``: none."""
    if backend not in BACKENDS:
        names = [*BACKENDS, *others]
        like = "".join(difflib.get_close_matches(str(backend), names, 1))
        text = f"backend must be one of {', '.join(names)}, got {backend!r}"
        raise ValueError(text + (f"; did you mean {like}?" if like else ""))
    if backend in _CLASSES:
        return _CLASSES[backend]
    of_ray: Callable[..., BaseVectorEnv] = importlib.import_module("envpool_py.ray").RayVectorEnv
    return of_ray
