"""Start, watch, restart and abandon the threads of a pool, in place of worker processes."""

from __future__ import annotations

from functools import partial
from typing import Any

from envpool_py import interrupts
from envpool_py.env.block import Block, Spec
from envpool_py.threads.thread_host import ThreadHost
from envpool_py.worker.builtin_env_workers import RemoteEnvWorker
from envpool_py.worker.poller import QueuePoller
from envpool_py.worker.supervisor import Supervisor


class ThreadSupervisor(Supervisor):
    """Starts, watches and abandons the threads of these envs."""

    counted, make_poller = "num_threads", QueuePoller

    def starting(self, **_: Any) -> Any:
        return interrupts.deferred()

    def _adopt_context(self, context: Any) -> Any:
        return context

    def _open(self) -> None:
        if self._options.fresh_process:
            raise ValueError("fresh_process: threads are in one process; use ShmemVectorEnv")
        self._add_hosts(partial(ThreadHost, claimed={}))

    def _new_block(self, spec: Spec) -> Block:
        return Block(spec._replace(local=True))


class ThreadEnvWorker(RemoteEnvWorker):
    """A worker whose env is in a thread of this process, which starts with the first request.

    Args:
        env_fn: makes the env; called once, in the thread.
    """

    make_supervisor = ThreadSupervisor
