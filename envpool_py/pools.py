"""The pools, one for each backend, and ``make``, which chooses one for an env and this machine."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from envpool_py import auto
from envpool_py.arguments import check_env_fns, check_foreign, check_num_envs
from envpool_py.pool import BaseVectorEnv
from envpool_py.worker.workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker


class DummyVectorEnv(BaseVectorEnv):
    """All envs in this process, one after another; for cheap envs and for debugging.

    The arguments are those of ``BaseVectorEnv``, without ``worker_fn``. Partial batches are fair:
    the oldest request is carried out first. ``timeout`` does not interrupt a step under way.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        # Checked before the workers, which make the envs.
        check_foreign(options)
        unknown = options.keys() - (BaseVectorEnv.__init__.__kwdefaults__ or {}).keys()
        if unknown:
            text = f"{type(self).__name__} does not take {', '.join(sorted(unknown))}"
            if "step_timeout" in unknown:
                text += (
                    "; an env that hangs can only be ended with its process: ShmemVectorEnv and"
                    " SubprocVectorEnv take it"
                )
            raise TypeError(text)
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout, **options)


class SubprocVectorEnv(BaseVectorEnv):
    """Envs in worker processes, as ``ShmemVectorEnv``, with the same arguments; Tianshou's name.

    ``share_memory`` has no effect: rows and actions go through shared memory in any case.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: Any = None,
        num_processes: int | str | None = None,
        **options: Any,
    ) -> None:
        env_fns = check_env_fns(env_fns)
        options["num_processes"] = _count(env_fns, num_processes, context)
        worker_fn = functools.partial(SubprocEnvWorker, share_memory=share_memory, context=context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, **options)


class ShmemVectorEnv(BaseVectorEnv):
    """Envs in worker processes; observations, rewards, flags and actions in shared memory.

    Only infos other than numbers or small arrays of them, and leaves without a fixed shape, are
    pickled.

    Args:
        env_fns: one callable per env; sent by cloudpickle, but only under spawn and forkserver.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's default.
        num_processes: the number of processes over which the envs are spread; None is one per env,
            ``"auto"`` depends on a throw-away env that is timed in a process of its own.
        **options: ``num_threads=1``: threads that each process may compute with, None is without
            limit; ``affinity=False``: whether each process stays on one core;
            ``step_timeout=None``: seconds that a request to an env may take before its process is
            killed; ``caller_steps=False``: whether this process steps the last envs while the
            others step theirs, as many as a process has (half of that with ``wait_num`` or
            ``timeout``), without isolation; and the other arguments of ``BaseVectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        context: Any = None,
        num_processes: int | str | None = None,
        **options: Any,
    ) -> None:
        env_fns = check_env_fns(env_fns)
        options["num_processes"] = _count(env_fns, num_processes, context)
        worker_fn = functools.partial(ShmemEnvWorker, context=context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, **options)


def _count(
    env_fns: Sequence[Callable[[], Any]], num_processes: int | str | None, context: Any
) -> int | None:
    """``num_processes``, measured if it is ``"auto"``."""
    if not isinstance(num_processes, str):
        return num_processes
    if num_processes != "auto":
        raise ValueError(f"num_processes must be an int, None or 'auto', got {num_processes!r}")
    return auto.choose_processes(auto.probe(env_fns[0], context), len(env_fns))


#: The pool classes by the names that ``backend`` takes.
BACKENDS: dict[str, type[BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem": ShmemVectorEnv,
}

# Options that only processes have.
_OF_PROCESSES = frozenset({"num_threads", "affinity", "step_timeout", "caller_steps"})
# Options that keep all envs out of the caller's process.
_OF_ISOLATION = frozenset({*_OF_PROCESSES, "on_error", "max_restarts", "restart_backoff"})


def make(
    env: str | Callable[[], Any],
    num_envs: int = 1,
    *,
    backend: str = "auto",
    num_processes: int | str | None = "auto",
    wait_num: int | None = None,
    timeout: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (),
    context: Any = None,
    **options: Any,
) -> BaseVectorEnv:
    """Make a pool of ``num_envs`` copies of one env.

    Args:
        env: an id of Gymnasium's registry, maybe with the module that registers it
            (``"ale_py:ALE/Pong-v5"``), or a callable that makes the env.
        num_envs: how many.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"``, or ``"auto"``: shared memory, or no
            processes if the envs are so few and cheap that this is faster, and no option is given
            that only processes have.
        num_processes: as in ``ShmemVectorEnv``; ``"auto"`` steps a throw-away env for 0.1 s in a
            process of its own, and takes one process per core if a step burns CPU, one per env if
            it mostly waits. If ``backend`` is ``"auto"`` too, a step takes less than 0.1 ms and all
            rows are waited for, the caller replaces one of the processes, as with
            ``caller_steps=True``; to prevent this, pass ``caller_steps=False`` or an option for
            handling faults.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``.
        env_kwargs: passed to ``gymnasium.make``, or to the callable.
        wrappers: applied to every env, the first innermost.
        context: the start method of the processes.
        **options: the other arguments of the pool.

    Raises:
        TypeError, ValueError: an argument is wrong.
        EnvError: making or stepping the env raised.
        gymnasium.error.Error: no such id.
    """
    check_foreign(options)
    num_envs = check_num_envs(num_envs)
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        if module:
            importlib.import_module(module)
        gym.spec(name)  # an unknown id is told here, without a process around it
        maker: Callable[..., Any] = functools.partial(gym.make, env)
    elif callable(env):
        maker = env
    else:
        raise TypeError(f"env must be an id or a callable, got {type(env).__name__}")
    env_fn = functools.partial(_wrapped, maker, dict(env_kwargs or {}), tuple(wrappers))
    if backend == "auto":
        measured = auto.probe(env_fn, context)
        is_free = num_processes == "auto"
        # A partial batch does not wait for a slow env, which needs processes.
        partial = timeout is not None or (wait_num is not None and wait_num != num_envs)
        shared = (
            is_free
            and not partial
            and _OF_ISOLATION.isdisjoint(options)
            and auto.caller_pays(measured, num_envs)
        )
        overhead = auto.SHARED_OVERHEAD if shared else auto.OVERHEAD
        required = partial or not is_free or not _OF_PROCESSES.isdisjoint(options)
        worth = auto.worth_processes(measured, num_envs, overhead)
        backend = "shmem" if required or worth else "dummy"
        if is_free:
            num_processes = auto.choose_processes(measured, num_envs)
            if shared and worth:
                num_processes -= 1
                options["caller_steps"] = True
    if backend != "dummy":
        options.update(context=context, num_processes=num_processes)
    return BACKENDS[backend]([env_fn] * num_envs, wait_num=wait_num, timeout=timeout, **options)


def _wrapped(
    maker: Callable[..., Any],
    env_kwargs: dict[str, Any],
    wrappers: tuple[Callable[[Any], Any], ...],
) -> Any:
    env = maker(**env_kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
