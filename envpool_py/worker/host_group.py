"""Distribute the envs of a pool over hosts, and requests over the hosts of their envs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from envpool_py.env import spaces
from envpool_py.env.block import Block, Spec
from envpool_py.env.executor import EnvSpaces, Executor, claim_instance
from envpool_py.env.failures import naming_env
from envpool_py.env.request import ID_MASK, RESET, Request
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError
from envpool_py.interrupts import suppressed
from envpool_py.options import ProcessOptions
from envpool_py.worker.builtin_env_workers import DummyEnvWorker, RemoteEnvWorker
from envpool_py.worker.cores_and_threads import usable_cores
from envpool_py.worker.custom_worker_host import CustomWorkerHost
from envpool_py.worker.env_worker import EnvWorker
from envpool_py.worker.host import Host, RemoteHost, Send
from envpool_py.worker.inline_host import InlineHost
from envpool_py.worker.supervisor import Supervisor

#: Seconds for which the caller spins for results before it sleeps, if it has its own core.
SPIN_FOR = 300e-6


class HostGroup:
    """The hosts for the envs of these workers, which are all of one class.

    With ``caller_steps`` this process steps the last envs while the worker processes step theirs:
    as many as a process has, or half as many with ``publish_early`` (partial batches).

    Attributes:
        supervisor: has the hosts in worker processes, threads or actors; None if there are none.
        all: all hosts, the local ones last.
        local: the hosts that the engine runs itself.
        spin_for: seconds for which the caller spins for results before it sleeps.
        open_lock: a lock that is held until the pool is closed. It is taken in C: an interrupt in
            ``threading.Event`` would leave the lock of its condition held.
        restarts: how often each env was recreated.
    """

    def __init__(
        self, workers: Sequence[Any], options: ProcessOptions, *, publish_early: bool
    ) -> None:
        self.num_envs = count = len(workers)
        self.supervisor: Supervisor | None = None
        self.local: list[InlineHost] = []
        self.spin_for = 0.0
        self.open_lock = threading.Lock()
        self.open_lock.acquire()
        self.restarts = np.zeros(count, dtype=np.int64)
        # The last messages for steps of all envs, and what they were made from.
        self._last_messages: tuple[Any, list[Send]] = None, []
        self.all: list[Host] = []
        self._host_numbers = np.empty(count, dtype=np.intp)
        base, first = _base_class_of(workers[0], options), 0
        if base is RemoteEnvWorker:
            if count > ID_MASK:
                raise ValueError(f"got {count} envs; a pool takes {ID_MASK} at the most")
            if options.caller_steps and options.num_processes is None:
                raise ValueError("caller_steps: every env has its own process; pass num_processes")
            spread, first = min(options.num_processes or count, count), count
            if options.fresh_process and spread < count:
                raise ValueError("fresh_process: needs one env per process; drop num_processes")
            if options.caller_steps and spread < count:  # else every env has its own process
                first -= max(count // ((2 if publish_early else 1) * spread + 1), 1)
            env_fns = [worker.env_fn for worker in workers[:first]]
            make, context = workers[0].make_supervisor, workers[0].context
            self.supervisor = make(env_fns, context, min(spread, first), options)
        self._make_local = partial(_make_local, base, first, workers)

    def start(self, token_chunks: list[bytes], check: Callable[[], object]) -> list[EnvSpaces]:
        """Make all envs and return their spaces; see ``Supervisor.await_started``."""
        supervisor = self.supervisor
        if supervisor is not None:  # first, so that they do not inherit descriptors of envs here
            supervisor.start()
        self.local = self._make_local()
        found: dict[int, EnvSpaces] = {}
        if supervisor is not None:
            found = supervisor.await_started(token_chunks, check)
            self.all += supervisor.hosts
            if self.local and len(supervisor.hosts) < len(usable_cores()):
                self.spin_for = SPIN_FOR
        for host in self.local:
            self.all.append(host)
            found.update(host.spaces())
        for number, each in enumerate(self.all):
            self._host_numbers[each.ids] = number
        return [found[i] for i in range(self.num_envs)]

    def make_block(self, spec: Spec) -> Block:
        """Make the block of all envs; every host writes rows into it from now on."""
        there = self.supervisor
        block = there.make_block(spec) if there else Block(spec._replace(local=True))
        for host in self.local:
            host.attach(block)
        return block

    def of(self, i: int) -> Host:
        return self.all[self._host_numbers.item(i)]

    def remote(self, i: int) -> RemoteHost:
        """Return the host of env ``i``, which is not in this process."""
        host = self.of(i)
        assert isinstance(host, RemoteHost)  # noqa: S101 - it can end, as only these can
        return host

    def prepare_plain_requests(
        self, index: slice | IdArray, tokens: spaces.Array, *, reset: bool, publish_early: bool
    ) -> list[Send]:
        """Prepare to send steps, or plain resets, to these envs, a message for each host.

        ``index`` may be a slice of all envs; the last messages for their steps are reused.
        """
        key: Any = (publish_early, tokens.tobytes()) if not reset and type(index) is slice else None
        if key is not None and key == self._last_messages[0]:
            return self._last_messages[1]
        home, tokens = self._host_numbers[index], tokens[index]
        if reset:
            tokens = tokens | RESET
        if len(home) == 1:  # of a session: in half the time
            host = self.all[home.item()]
            return [host.prepare_plain_requests(tokens.tobytes(), publish_early=publish_early)]
        messages = [
            self.all[number].prepare_plain_requests(
                tokens[home == number].tobytes(), publish_early=publish_early
            )
            for number in set(home.tolist())
        ]
        if key is not None:
            self._last_messages = key, messages
        return messages

    def prepare_requests(
        self, ids: IdArray, tokens: spaces.Array, requests: Sequence[Request]
    ) -> list[Send]:
        """Prepare to send a request to each of these envs; see ``Host.prepare_requests``."""
        by_host: dict[int, list[tuple[int, Request]]] = {}
        for i, token, request in zip(ids.tolist(), tokens[ids].tolist(), requests, strict=True):
            by_host.setdefault(self._host_numbers.item(i), []).append((token, request))
        return [self.all[number].prepare_requests(pairs) for number, pairs in by_host.items()]

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return the envs whose request is carried out anyway."""
        hosts = {self.of(i) for i in ids}  # not all: with a host per env, that is the square
        return {i for host in hosts for i in host.cancel(ids.intersection(host.ids))}

    def describe(self) -> str:
        if self.supervisor is None:
            return ""
        return self.supervisor.describe() + (", caller_steps=True" if self.local else "")

    def wake(self) -> None:
        """End the wait of a call that is under way in another thread."""
        with suppressed(RuntimeError):  # it was released before
            self.open_lock.release()
        if self.supervisor is not None:
            self.supervisor.poller.wake()

    def close(self) -> list[EnvError]:
        errors: list[EnvError] = []
        try:
            for host in self.local:
                errors += host.close()
        finally:
            if self.supervisor is not None:
                errors = self.supervisor.close() + errors
        return errors


def _base_class_of(worker: Any, options: ProcessOptions) -> type[EnvWorker] | None:
    """Return the class from which the worker has ``send`` and ``recv``; None: its own."""
    kind, given = type(worker), options.given()
    if given and not isinstance(worker, RemoteEnvWorker):
        raise TypeError(f"{kind.__name__} does not take {', '.join(sorted(given))}")
    for base in (DummyEnvWorker, RemoteEnvWorker):
        if issubclass(kind, base) and kind.send is base.send and kind.recv is base.recv:
            return base
    if options.num_processes is not None or options.caller_steps:
        raise TypeError(f"{kind.__name__} overrides send or recv; drop num_processes, caller_steps")
    return None


def _make_local(
    base: type[EnvWorker] | None, first: int, workers: Sequence[Any]
) -> list[InlineHost]:
    """Return the host of the envs from ``first`` on, in this process; none without such envs."""
    if base is None:
        return [CustomWorkerHost(workers)]
    executors: dict[int, Executor] = {}
    claimed: dict[int, tuple[int, Executor]] = {}
    try:
        for i in range(first, len(workers)):
            with naming_env(i, "env_fn"):
                is_made = base is DummyEnvWorker
                executors[i] = workers[i].executor if is_made else Executor(workers[i].env_fn)
                claim_instance(executors[i], i, claimed)
        return [InlineHost(executors)] if executors else []
    except BaseException:
        for executor in executors.values():
            with suppressed():  # the first error is the one to report
                executor.close()
        raise
