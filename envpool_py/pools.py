"""The pools: one for each backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from envpool_py import auto
from envpool_py.arguments import check_env_fns
from envpool_py.pool import BaseVectorEnv
from envpool_py.worker.base import EnvWorker
from envpool_py.worker.workers import DummyEnvWorker, ShmemEnvWorker, SubprocEnvWorker


class DummyVectorEnv(BaseVectorEnv):
    """All envs in this process, one after another; for cheap envs and for debugging.

    A partial batch works here as well, and is fair: the oldest request is carried out first.

    Args:
        env_fns: one callable for each env.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``; what is carried out is not interrupted.
        **options: the other arguments of ``BaseVectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        # Before the envs are made, which here is what making a worker does.
        unknown = options.keys() - (BaseVectorEnv.__init__.__kwdefaults__ or {}).keys()
        if unknown:
            why = (
                "; an env that hangs can only be ended with its process: ShmemVectorEnv and"
                " SubprocVectorEnv take it"
                if "step_timeout" in unknown
                else ""
            )
            names = ", ".join(sorted(unknown))
            raise TypeError(f"{type(self).__name__} does not take {names}{why}")
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout, **options)


class SubprocVectorEnv(BaseVectorEnv):
    """Envs in worker processes, as ``ShmemVectorEnv``; the name is Tianshou's.

    Args:
        env_fns: one callable for each env; cloudpickled, but only under spawn and forkserver.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``.
        share_memory: has no effect: rows and actions go through shared memory in any case.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's own choice.
        num_processes: over how many processes the envs are spread; None is one for each env,
            ``"auto"`` what a throw-away env, measured in a process of its own, is worth.
        **options: ``num_threads=1``: with how many threads each process may compute, None is
            without limit; ``affinity=False``: whether each process stays on one core;
            ``step_timeout=None``: seconds that an env may take over one request before its process
            is killed; ``caller_steps=False``: whether the last envs live in this process, as many
            as a process has (half of that with ``wait_num`` or ``timeout``), which steps them while
            the others step theirs, and which they can take with them; and the other arguments of
            ``BaseVectorEnv``.
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
        def worker_fn(env_fn: Callable[[], Any]) -> EnvWorker:
            return SubprocEnvWorker(env_fn, share_memory=share_memory, context=context)

        env_fns = check_env_fns(env_fns)
        options["num_processes"] = _count(env_fns, num_processes, context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, **options)


class ShmemVectorEnv(BaseVectorEnv):
    """Envs in worker processes; observations, rewards, flags and actions in shared memory.

    Nothing is pickled on the way of a step but infos that are not numbers alone, or small arrays of
    them, and leaves without a fixed shape.

    Args:
        env_fns: one callable for each env; cloudpickled, but only under spawn and forkserver.
        wait_num: as in ``BaseVectorEnv``.
        timeout: as in ``BaseVectorEnv``.
        context: ``"fork"``, ``"spawn"``, ``"forkserver"``, a multiprocessing context, or None for
            multiprocessing's own choice.
        num_processes: over how many processes the envs are spread; None is one for each env,
            ``"auto"`` what a throw-away env, measured in a process of its own, is worth.
        **options: ``num_threads=1``: with how many threads each process may compute, None is
            without limit; ``affinity=False``: whether each process stays on one core;
            ``step_timeout=None``: seconds that an env may take over one request before its process
            is killed; ``caller_steps=False``: whether the last envs live in this process, as many
            as a process has (half of that with ``wait_num`` or ``timeout``), which steps them while
            the others step theirs, and which they can take with them; and the other arguments of
            ``BaseVectorEnv``.
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
        def worker_fn(env_fn: Callable[[], Any]) -> EnvWorker:
            return ShmemEnvWorker(env_fn, context=context)

        env_fns = check_env_fns(env_fns)
        options["num_processes"] = _count(env_fns, num_processes, context)
        super().__init__(env_fns, worker_fn, wait_num, timeout, **options)


def _count(
    env_fns: Sequence[Callable[[], Any]], num_processes: int | str | None, context: Any
) -> int | None:
    """The number of processes where ``"auto"`` asks for it to be measured."""
    if not isinstance(num_processes, str):
        return num_processes
    if num_processes != "auto":
        raise ValueError(f"num_processes must be an int, None or 'auto', got {num_processes!r}")
    return auto.choose_processes(auto.probe(env_fns[0], context), len(env_fns))
