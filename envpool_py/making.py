"""``make``: a pool of one kind of env, set up for this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from envpool_py import auto
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

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
        env: an id of Gymnasium's registry, or a callable that makes the env.
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
        ValueError: an unknown backend, or ``num_envs`` below 1.
        EnvError: making or stepping the env raised.
        gymnasium.error.Error: no such id.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be 1 or more, got {num_envs}")
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
    if isinstance(env, str):
        gym.spec(env)  # an unknown id is told here, without a process around it
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
