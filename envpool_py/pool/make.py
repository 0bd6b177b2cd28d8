"""``make``: a pool of copies of one env, with the backend and the number of processes chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.env_by_name import Env, env_fn_of
from envpool_py.options import Backend, Context, NumProcesses, RecoveryOptions
from envpool_py.pool import arguments, backend_choice
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import (
    PROCESS_OPTIONS,
    ProcessPoolOptions,
    check_options,
    one_of,
    spell_out,
)
from envpool_py.pool.pool_classes import DummyVectorEnv, ThreadVectorEnv, pool_class
from envpool_py.worker.supervisor import obstacle

# The defaults of `make` that differ from those of the pools.
_DEFAULTS: dict[str, Any] = {"autoreset_mode": "same_step", "columns": True}


@spell_out(ProcessPoolOptions, **_DEFAULTS, caller_steps=None)
def make(
    env: Env,
    num_envs: int = 1,
    *,
    backend: Backend | Literal["auto"] = "auto",
    num_processes: NumProcesses = "auto",
    num_threads: int | None = None,
    wait_num: int | None = None,
    timeout: float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (),
    context: Context = None,
    start_method: Context = None,
    **options: Unpack[ProcessPoolOptions],
) -> BaseVectorEnv:
    """Make a pool of ``num_envs`` copies of one env.

    ``autoreset_mode`` and ``columns`` have other defaults than in the pool classes.

    Args:
        env: an id of Gymnasium's registry, if needed after the module that registers it
            (``"module:Id-v0"``; not for ``"ALE/Pong-v5"``), ``"module:callable"``, an ``EnvSpec``,
            or a callable that makes the env.
        num_envs: the number of envs.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"``, ``"thread"``, ``"ray"`` (actors in
            place of processes), or ``"auto"``: shared memory, or no processes if the envs are so
            few and cheap that this is faster and no option needs processes, as ``context`` and
            ``on_error="restart"`` do. On Windows and in a daemonic process, such as a torch
            DataLoader worker: threads if a step mostly waits, else no threads either.
        num_processes: as in ``ShmemVectorEnv``; ``"auto"`` steps a throw-away env for 0.1 s in a
            separate process: one process per core if a step uses the CPU, one per env if it mostly
            waits, or if two envs in one process disturb each other. If ``backend`` is ``"auto"``
            too, a step takes less than 0.1 ms and batches are whole, the caller steps the envs of
            one process, as with ``caller_steps=True``, unless you pass ``caller_steps=False``,
            ``context`` or an option for handling faults.
        num_threads: as in ``ThreadVectorEnv``, with ``backend="thread"``.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None is all.
        timeout: seconds after which a batch may have fewer rows, but at least one.
        env_kwargs: passed to ``gymnasium.make``, or to the callable.
        wrappers: applied to every env; the first is the innermost.
        context: the start method of the processes, as in ``ShmemVectorEnv``.
        start_method: the same as ``context``.
        autoreset_mode: ``"same_step"``: the row that ends an episode has the first observation of
            the next episode; the last observation is ``info["final_obs"]``. ``"next_step"`` or a
            ``gymnasium.vector.AutoresetMode``: as in Gymnasium. None: call ``reset`` yourself.
        caller_steps: step the last envs in this process, without isolation. None: chosen, see
            ``num_processes``.

    Returns:
        A pool of the ``backend``.

    Raises:
        TypeError, ValueError: an argument is wrong, or the pool does not take an option.
        EnvError: making or stepping the env raised.
        NotImplementedError: worker processes are needed, and the platform has none, or this is a
            daemonic process.
        gymnasium.error.Error: the id is not registered.
    """
    cls = pool_class("shmem" if backend == "auto" else backend, "auto")
    given: dict[str, Any] = {**_DEFAULTS, **options}
    if given.get("caller_steps", False) is None:
        del given["caller_steps"]
    own = {"context": context, "start_method": start_method, "num_threads": num_threads}
    given |= {name: value for name, value in own.items() if value is not None}
    num_envs = arguments.check_num_envs(num_envs)
    wait_num = arguments.check_wait_num(wait_num, num_envs)
    count: Any = arguments.check_num_processes(num_processes)
    if count != "auto":
        given["num_processes"] = count
    name = "make" if backend == "auto" else f"make(backend={backend!r})"
    taken = inspect.signature(cls).parameters.keys() - {"env_fns", "share_memory"}
    check_options(taken | {"num_envs", "backend", "env_kwargs", "wrappers"}, name, given)
    context, other = given.pop("context", None), given.pop("start_method", None)
    context = one_of("context", context, "start_method", other)
    env_fn = env_fn_of(env, dict(env_kwargs or {}), wrappers)
    if backend == count == "auto" and obstacle():
        measured = backend_choice.probe(env_fn)
        # The median, because on a busy machine some steps in a thread seem to wait.
        waits = measured.waits and measured.cpu < backend_choice.BUSY_SHARE * measured.step_p50
        cls = ThreadVectorEnv if waits or "step_timeout" in given else DummyVectorEnv
    elif backend == count == "auto":
        faults = options.get("on_error", "raise") != "raise"
        # A partial batch does not wait for a slow env, which needs processes.
        partial = wait_num < num_envs or timeout is not None
        needed = faults or partial or context is not None or not PROCESS_OPTIONS.isdisjoint(given)
        chosen, count, caller_steps = backend_choice.choose(
            backend_choice.probe(env_fn, context, num_envs=num_envs),
            num_envs,
            needed=needed,
            may_share=RecoveryOptions.__annotations__.keys().isdisjoint(options),
        )
        cls = pool_class(chosen)
        if caller_steps:
            given["caller_steps"] = True
    if cls is not DummyVectorEnv and cls is not ThreadVectorEnv:
        given["num_processes"] = count
        given |= {} if context is None else {"context": context}
    return cls([env_fn] * num_envs, wait_num=wait_num, timeout=timeout, **given)
