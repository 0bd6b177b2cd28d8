"""The pool classes, one per backend, and ``make``, which chooses a backend for an env."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envpool_py.env.options import RecoveryOptions, check_count
from envpool_py.env_by_name import Env, env_fn_of
from envpool_py.pool import choose
from envpool_py.pool.arguments import (
    check_env_fns,
    check_num_envs,
    check_num_processes,
    check_wait_num,
)
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import (
    OF_PROCESSES,
    PoolKeywords,
    ProcessPoolKeywords,
    check_options,
    one_of,
    spell_out,
)
from envpool_py.threads.thread_group import ThreadEnvWorker
from envpool_py.worker.builtin_workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker
from envpool_py.worker.cores_and_threads import usable_cores
from envpool_py.worker.worker_group import missing

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


@spell_out(PoolKeywords)
class DummyVectorEnv(BaseVectorEnv):
    """A pool that steps all envs in this process; for cheap envs and for debugging.

    Envs are stepped one after another, the oldest request first, so partial batches are fair.
    ``timeout`` does not interrupt a step that has begun.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Unpack[PoolKeywords],
    ) -> None:
        check_options(DummyVectorEnv.__init__, type(self).__name__, options)
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout, **options)


@spell_out(ProcessPoolKeywords)
class SubprocVectorEnv(BaseVectorEnv):
    """A pool of worker processes: ``ShmemVectorEnv`` under the name that Tianshou uses.

    Args:
        share_memory: ignored; rows and actions always go through shared memory.
        context: as in ``ShmemVectorEnv``.
        num_processes: as in ``ShmemVectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: Any = None,
        num_processes: int | str | None = None,
        **options: Unpack[ProcessPoolKeywords],
    ) -> None:
        own = _of_processes(self, SubprocVectorEnv, env_fns, context, num_processes, options)
        worker_fn = functools.partial(SubprocEnvWorker, share_memory=share_memory, context=own[0])
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=own[1], **options)


@spell_out(ProcessPoolKeywords)
class ShmemVectorEnv(BaseVectorEnv):
    """A pool of worker processes; observations, rewards, flags and actions are in shared memory.

    Infos with more than numbers and small arrays are pickled, and values without a fixed shape.

    Args:
        env_fns: one callable per env; pickled by cloudpickle, but only under spawn and forkserver.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's default. ``start_method`` is another name for it.
        num_processes: the number of worker processes, each with an equal share of the envs. None:
            one per env. ``"auto"``: chosen by timing a throw-away env in a separate process.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        context: Any = None,
        num_processes: int | str | None = None,
        **options: Unpack[ProcessPoolKeywords],
    ) -> None:
        own = _of_processes(self, ShmemVectorEnv, env_fns, context, num_processes, options)
        worker_fn = functools.partial(ShmemEnvWorker, context=own[0])
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=own[1], **options)


def _of_processes(
    pool: object, cls: Any, env_fns: Any, context: Any, num_processes: Any, options: Any
) -> tuple[Any, int | None]:
    """Check the arguments of a pool of processes; return its start method and their number.

    ``"auto"``: time one env and choose.
    """
    context = one_of("context", context, options, "start_method")
    check_options(cls.__init__, type(pool).__name__, options)
    env_fns, count = check_env_fns(env_fns), check_num_processes(num_processes)
    if not isinstance(count, str):
        return context, count
    if options.get("concurrent"):
        return context, min(len(env_fns), len(usable_cores()))
    return context, choose.choose_processes(choose.probe(env_fns[0], context), len(env_fns))


@spell_out(PoolKeywords)
class ThreadVectorEnv(BaseVectorEnv):
    """A pool of envs in threads of this process; for envs that wait rather than compute.

    Nothing is pickled, and the pool starts in milliseconds, on any platform. An env stays in its
    thread: ``env_fn`` is called there. Envs that compute wait for each other, unless Python runs
    without the GIL. A thread cannot be killed: an env that takes longer than ``step_timeout`` is
    reported with its stack, its thread is abandoned, and it is recreated in a new one. An env that
    ends its process ends the program.

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
        **options: Unpack[PoolKeywords],
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


def pool_class(backend: str) -> Callable[..., BaseVectorEnv]:
    """Return the class of the pools with this name; ValueError: there is none."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend in _CLASSES:
        return _CLASSES[backend]
    of_ray: Callable[..., BaseVectorEnv] = importlib.import_module("envpool_py.ray").RayVectorEnv
    return of_ray


# The defaults of `make` that differ from those of the pools.
_DEFAULTS: dict[str, Any] = {"autoreset_mode": "same_step", "columns": True}


@spell_out(ProcessPoolKeywords, **_DEFAULTS, caller_steps=None)
def make(
    env: Env,
    num_envs: int = 1,
    *,
    backend: str = "auto",
    num_processes: int | str | None = "auto",
    num_threads: int | None = None,
    wait_num: int | None = None,
    timeout: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (),
    context: Any = None,
    **options: Unpack[ProcessPoolKeywords],
) -> BaseVectorEnv:
    """Make a pool of ``num_envs`` copies of one env.

    ``autoreset_mode`` and ``columns`` have other defaults than in the pool classes.

    Args:
        env: an id of Gymnasium's registry, if needed after the module that registers it
            (``"module:Id-v0"``; not for ``"ALE/Pong-v5"``), ``"module:callable"``, an ``EnvSpec``,
            or a callable that makes the env.
        num_envs: the number of envs.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"``, ``"thread"`` (never chosen for you),
            ``"ray"`` (actors in place of processes), or ``"auto"``: shared memory, or no processes
            if the envs are so few and cheap that this is faster and no option needs processes, as
            ``on_error="restart"`` does, or on Windows.
        num_processes: as in ``ShmemVectorEnv``; ``"auto"`` steps a throw-away env for 0.1 s in a
            separate process: one process per core if a step uses the CPU, one per env if it mostly
            waits. If ``backend`` is ``"auto"`` too, a step takes less than 0.1 ms and batches are
            whole, the caller steps the envs of one process, as with ``caller_steps=True``, unless
            you pass ``caller_steps=False`` or an option for handling faults.
        num_threads: as in ``ThreadVectorEnv``, with ``backend="thread"``.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None is all.
        timeout: seconds after which a batch may have fewer rows, but at least one.
        env_kwargs: passed to ``gymnasium.make``, or to the callable.
        wrappers: applied to every env; the first is the innermost.
        context: the start method of the processes, if there are any; ``start_method`` is another
            name for it.
        autoreset_mode: ``"same_step"``: the row that ends an episode has the first observation of
            the next episode; the last observation is ``info["final_obs"]``. ``"next_step"`` or a
            ``gymnasium.vector.AutoresetMode``: as in Gymnasium. None: call ``reset`` yourself.
        caller_steps: step the last envs in this process, without isolation. None: chosen, see
            ``num_processes``.

    Returns:
        A ``DummyVectorEnv`` if no process is needed, else a pool of the ``backend``.

    Raises:
        TypeError, ValueError: an argument is wrong, or the pool does not take an option.
        EnvError: making or stepping the env raised.
        NotImplementedError: worker processes are needed, and the platform has none.
        gymnasium.error.Error: the id is not registered.
    """
    cls = pool_class("shmem" if backend == "auto" else backend)
    given: dict[str, Any] = {**_DEFAULTS, **options}
    given |= {} if context is None else {"context": context}
    given |= {} if num_threads is None else {"num_threads": num_threads}
    num_envs = check_num_envs(num_envs)
    wait_num = check_wait_num(wait_num, num_envs)
    if (num_processes := check_num_processes(num_processes)) != "auto":
        given["num_processes"] = num_processes
    if backend != "ray":  # it has options of its own
        check_options(make, "make", given)
    name = "make" if backend == "auto" else f"make(backend={backend!r})"
    check_options(cls, name, given)
    context = one_of("context", given.pop("context", None), given, "start_method")
    env_fn = env_fn_of(env, dict(env_kwargs or {}), wrappers)
    if backend == num_processes == "auto" and missing():
        cls = DummyVectorEnv
    elif backend == num_processes == "auto" and not options.get("concurrent"):
        faults = options.get("on_error", "raise") != "raise"
        # A partial batch does not wait for a slow env, which needs processes.
        partial = wait_num < num_envs or timeout is not None
        backend, num_processes, caller_steps = choose.choose(
            choose.probe(env_fn, context),
            num_envs,
            needed=faults or partial or not OF_PROCESSES.isdisjoint(given),
            may_share=RecoveryOptions.__annotations__.keys().isdisjoint(options),
        )
        cls = pool_class(backend)
        if caller_steps:
            given["caller_steps"] = True
    if cls is not DummyVectorEnv and cls is not ThreadVectorEnv:
        given["num_processes"] = num_processes
        given |= {} if context is None else {"context": context}
    return cls([env_fn] * num_envs, wait_num=wait_num, timeout=timeout, **given)
