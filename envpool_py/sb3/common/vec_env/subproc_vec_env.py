"""``SubprocVecEnv`` and ``ShmemVecEnv``: envs in worker processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.options import Context, NumProcesses
from envpool_py.pool.keywords import InProcessOptions, WorkerOptions, one_of, spell_out
from envpool_py.pool.pool_classes import SubprocVectorEnv
from envpool_py.sb3.common.vec_env.pool_vec_env import DECIDED, PoolVecEnv


class _Options(InProcessOptions, WorkerOptions, total=False):
    """The keywords of ``SubprocVecEnv``."""


@spell_out(_Options, DECIDED, validate="off")
class SubprocVecEnv(PoolVecEnv):
    """A VecEnv of worker processes; observations, rewards and actions are in shared memory.

    A step pickles only infos that are not all numbers and observations without a fixed shape.

    Args:
        env_fns: one callable for each env; cloudpickled, but not under ``"fork"``.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; None is forkserver where there is
            one, else spawn. Under these two the program needs ``if __name__ == "__main__":``.
        num_processes: the number of worker processes; None is one for each env; ``"auto"``: as
            in ``ShmemVectorEnv``.
        context: the same as ``start_method``.
        options: ``on_error``, ``step_timeout``, ``record``, ...: see ``PoolOptions``.

    Raises:
        ValueError: ``env_fns`` is empty, the start method wrong, or spaces or render modes differ.
        EnvError: an env_fn raised, or its process ended.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        start_method: Context = None,
        *,
        num_processes: NumProcesses = None,
        context: Context = None,
        **options: Unpack[_Options],
    ) -> None:
        context = one_of("start_method", start_method, "context", context)
        if context is None:
            known = multiprocessing.get_all_start_methods()
            context = "forkserver" if "forkserver" in known else "spawn"
        own = {"context": context, "num_processes": num_processes, **options}
        self._make_pool(SubprocVectorEnv, env_fns, own)

    @property
    def processes(self) -> list[Any]:
        """The worker process of every env; envs may share one."""
        return [worker.process for worker in self.remotes]

    @property
    def remotes(self) -> list[Any]:
        """The worker of every env, the place of Stable-Baselines3's connection to a process."""
        return list(self.pool.workers)

    @property
    def waiting(self) -> bool:
        """Whether a step is pending."""
        return self._stepping


class ShmemVecEnv(SubprocVecEnv):
    """``SubprocVecEnv`` under another name, with its options ``on_error``, ``step_timeout``, ..."""
