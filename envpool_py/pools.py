"""The pools: one for each backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from envpool_py import auto
from envpool_py.arguments import check_env_fns
from envpool_py.pool import BaseVectorEnv
from envpool_py.worker.workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker


class DummyVectorEnv(BaseVectorEnv):
    """All envs in this process, one after another; for cheap envs and for debugging.

    Partial batches are supported, and fair: the oldest request is carried out first.

    Args:
        env_fns: one callable per env.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``; a step under way is not interrupted.
        **options: the other arguments of ``BaseVectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        # Checked before the workers, which make the envs.
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
    """Envs in worker processes, as ``ShmemVectorEnv``; the name is Tianshou's.

    Args:
        env_fns: as in ``ShmemVectorEnv``.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``.
        share_memory: has no effect: rows and actions go through shared memory in any case.
        context: as in ``ShmemVectorEnv``.
        num_processes: as in ``ShmemVectorEnv``.
        **options: as in ``ShmemVectorEnv``.
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
