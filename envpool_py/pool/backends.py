"""The pool classes, one per backend, and ``make``, which chooses a backend for an env."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from envpool_py.env.pool_options import RecoveryOptions
from envpool_py.pool import choose
from envpool_py.pool.arguments import check_env_fns, check_num_envs, check_wait_num, got
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.option_signatures import (
    OF_PROCESSES,
    PoolOptions,
    ProcessPoolOptions,
    check_options,
    spell_out,
)
from envpool_py.record import env_name
from envpool_py.worker.builtin_workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker
from envpool_py.worker.process_group import missing

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


@spell_out(PoolOptions)
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
        **options: Unpack[PoolOptions],
    ) -> None:
        check_options(DummyVectorEnv.__init__, type(self).__name__, options)
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout, **options)


@spell_out(ProcessPoolOptions)
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
        **options: Unpack[ProcessPoolOptions],
    ) -> None:
        env_fns = check_env_fns(env_fns)
        check_options(SubprocVectorEnv.__init__, type(self).__name__, options)
        count = _count(env_fns, num_processes, context)
        worker_fn = functools.partial(SubprocEnvWorker, share_memory=share_memory, context=context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=count, **options)


@spell_out(ProcessPoolOptions)
class ShmemVectorEnv(BaseVectorEnv):
    """A pool of worker processes; observations, rewards, flags and actions are in shared memory.

    Infos with more than numbers and small arrays are pickled, and values without a fixed shape.

    Args:
        env_fns: one callable per env; pickled by cloudpickle, but only under spawn and forkserver.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's default.
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
        **options: Unpack[ProcessPoolOptions],
    ) -> None:
        env_fns = check_env_fns(env_fns)
        check_options(ShmemVectorEnv.__init__, type(self).__name__, options)
        count = _count(env_fns, num_processes, context)
        worker_fn = functools.partial(ShmemEnvWorker, context=context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=count, **options)


def _count(
    env_fns: Sequence[Callable[[], Any]], num_processes: int | str | None, context: Any
) -> int | None:
    """Return ``num_processes``; for ``"auto"``, time one env and choose."""
    if not isinstance(num_processes, str):
        return num_processes
    if num_processes != "auto":
        raise ValueError(f"num_processes must be an int, None or 'auto', got {num_processes!r}")
    return choose.choose_processes(choose.probe(env_fns[0], context), len(env_fns))


def _over_ray(
    env_fns: Sequence[Callable[[], Any]],
    *args: Any,
    num_processes: int | str | None = None,
    context: Any = None,
    **options: Any,
) -> Any:
    if isinstance(num_processes, int):  # else ``RayVectorEnv`` chooses
        options["envs_per_actor"] = -(-len(env_fns) // num_processes)
    if context is not None:
        options["context"] = context
    return importlib.import_module("envpool_py.ray").RayVectorEnv(env_fns, *args, **options)


#: From each name of a ``backend`` to the class or function that makes the pool.
BACKENDS: dict[str, Callable[..., BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem": ShmemVectorEnv,
    "ray": _over_ray,
}

# The defaults of `make` that differ from those of the pools.
_DEFAULTS: dict[str, Any] = {"autoreset_mode": "same_step", "columns": True}


@spell_out(ProcessPoolOptions, **_DEFAULTS, caller_steps=None)
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
    **options: Unpack[ProcessPoolOptions],
) -> BaseVectorEnv:
    """Make a pool of ``num_envs`` copies of one env.

    ``autoreset_mode`` and ``columns`` have other defaults than in the pool classes.

    Args:
        env: an id of Gymnasium's registry, if needed after the module that registers it
            (``"ale_py:ALE/Pong-v5"``), or a callable that makes the env.
        num_envs: the number of envs.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"``, ``"ray"`` (actors in place of processes),
            or ``"auto"``: shared memory, or no processes if the envs are so few and cheap that this
            is faster and no option needs processes, as ``on_error="restart"`` does, or on Windows.
        num_processes: as in ``ShmemVectorEnv``; ``"auto"`` steps a throw-away env for 0.1 s in a
            separate process: one process per core if a step uses the CPU, one per env if it mostly
            waits. If ``backend`` is ``"auto"`` too, a step takes less than 0.1 ms and batches are
            whole, the caller steps the envs of one process, as with ``caller_steps=True``, unless
            you pass ``caller_steps=False`` or an option for handling faults.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None is all.
        timeout: seconds after which a batch may have fewer rows, but at least one.
        env_kwargs: passed to ``gymnasium.make``, or to the callable.
        wrappers: applied to every env; the first is the innermost.
        context: the start method of the processes.
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
    if backend != "ray":  # it has options of its own, which it checks
        check_options(make, "make", options)
    given: dict[str, Any] = {**_DEFAULTS, **options}
    num_envs = check_num_envs(num_envs)
    wait_num = check_wait_num(wait_num, num_envs)
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        if module:
            importlib.import_module(module)
        gym.spec(name)  # raises for an unknown id before a process starts
        maker: Callable[..., Any] = functools.partial(gym.make, env)
    elif callable(env):
        maker = env
    else:
        raise TypeError(f"env must be an id or a callable, {got(env)}")
    env_kwargs = dict(env_kwargs or {})
    env_fn = functools.partial(_wrapped, maker, env_kwargs, tuple(wrappers))
    env_name.attach(env_fn, env, env_kwargs, wrappers)
    if backend == num_processes == "auto" and missing():
        backend = "dummy"
    elif backend == num_processes == "auto":
        faults = options.get("on_error", "raise") != "raise"
        # A partial batch does not wait for a slow env, which needs processes.
        partial = wait_num < num_envs or timeout is not None
        backend, num_processes, caller_steps = choose.choose(
            choose.probe(env_fn, context),
            num_envs,
            needed=faults or partial or not OF_PROCESSES.isdisjoint(options),
            may_share=RecoveryOptions.__annotations__.keys().isdisjoint(options),
        )
        if caller_steps:
            given["caller_steps"] = True
    elif backend == "auto":
        backend = "shmem"
    if backend != "dummy":
        given.update(context=context, num_processes=num_processes)
    return BACKENDS[backend]([env_fn] * num_envs, wait_num=wait_num, timeout=timeout, **given)


def _wrapped(maker: Callable[..., Any], kwargs: dict[str, Any], wrappers: Sequence[Any]) -> Any:
    env = maker(**kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env
