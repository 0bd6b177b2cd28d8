"""The built-in ``EnvWorker`` classes: descriptions of where an env is, which a pool reads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from envpool_py.env.executor import Executor
from envpool_py.env.request import GENERATION, Request
from envpool_py.errors import EnvError
from envpool_py.worker.env_worker import EnvWorker
from envpool_py.worker.supervisor import Supervisor


class BuiltinEnvWorker(EnvWorker):
    """What the built-in workers share: in a pool, the pool answers their requests."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
        self._request: Request | None = None
        # In a pool, see ``join``.
        self._ask: Callable[[Request], Any] | None = None
        self._host: Callable[[], Any] | None = None

    def join(self, ask: Callable[[Request], Any], host: Callable[[], Any]) -> None:
        """Join a pool: ``ask`` lets the pool answer a request, ``host`` returns the env's host."""
        self._ask, self._host = ask, host

    def send(self, request: Request) -> None:
        """Store the request for ``recv``."""
        self._request = request

    def recv(self) -> Any:
        """Return the reply; wait for it, or carry the request out now."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("recv: no request was sent; call send() first")
        return self._reply_to(request) if self._ask is None else self._ask(request)

    @abstractmethod
    def _reply_to(self, request: Request) -> Any:
        """Return the reply, outside a pool."""

    def cancel(self) -> None:
        """Drop the request."""
        self._request = None


class DummyEnvWorker(BuiltinEnvWorker):
    """A worker whose env is in this process; ``recv`` carries out the request.

    Args:
        env_fn: makes the env; called at once.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn)
        self.executor = Executor(env_fn)

    @property
    def env(self) -> Any:
        """The env itself."""
        return self.executor.env

    def _reply_to(self, request: Request) -> Any:
        return self.executor(request)

    def close(self) -> None:
        """Close the env."""
        self.executor.close()


class RemoteEnvWorker(BuiltinEnvWorker):
    """A worker whose env is outside the caller's thread, in a host of this kind.

    The host starts with the first request. A pool starts all hosts at once, and may put several
    envs into one. Outside a pool messages are pickled, unless the env is in a thread; in a pool
    rows and actions go through shared memory.
    """

    make_supervisor: type[Supervisor] = Supervisor
    #: Of the host: of a process multiprocessing's, of an actor its options.
    context: Any = None
    # Outside a pool.
    _supervisor: Supervisor | None = None
    _token = 0

    def send(self, request: Request) -> None:
        """Send the request to the host."""
        if self._ask is None:
            self._started_supervisor().hosts[0].prepare_requests([(self._token, request)])()
        super().send(request)

    def _reply_to(self, request: Request) -> Any:
        supervisor = self._started_supervisor()
        host = supervisor.hosts[0]
        token_chunks: list[bytes] = []
        while self._token not in memoryview(b"".join(token_chunks)).cast("q"):
            if host.reap():
                raise host.error_of(0)
            supervisor.poller.fetch(token_chunks, 0, None)
        result = host.values_or_error(self._token, request.kind)
        host.forget_item(self._token)
        if isinstance(result, EnvError):
            raise result
        return result["reply"]

    def cancel(self) -> None:
        """Cancel the request; its reply is dropped when it arrives."""
        super().cancel()
        self._token += GENERATION

    def close(self) -> None:
        """End the host; in a pool this does nothing, because the pool ends it."""
        if self._supervisor is not None:
            self._supervisor.close()

    def _started_supervisor(self) -> Supervisor:
        if self._supervisor is None:
            try:  # in a `with`, an interrupt at its end would skip the close
                self._supervisor = self.make_supervisor([self.env_fn], self.context, 1)
                self._supervisor.start()
                self._supervisor.await_started([], lambda: None)
            except BaseException:
                self.close()
                self._supervisor = None
                raise
        return self._supervisor

    @property
    def process(self) -> Any:
        """The ``multiprocessing`` process of the env, or its thread or actor.

        Raises:
            AttributeError: the caller steps the env itself.
        """
        host = self._started_supervisor().hosts[0] if self._host is None else self._host()
        if not hasattr(host, "process"):
            raise AttributeError("process: the caller steps this env itself, in no other process")
        return host.process


class ShmemEnvWorker(RemoteEnvWorker):
    """A worker whose env is in a worker process; rows and actions are in shared memory.

    Args:
        env_fn: makes the env, in the process.
        context: the name of a start method or a multiprocessing context; None: multiprocessing's
            default.
    """

    def __init__(self, env_fn: Callable[[], Any], context: str | BaseContext | None = None) -> None:
        super().__init__(env_fn)
        self.context = context


class SubprocEnvWorker(ShmemEnvWorker):
    """``ShmemEnvWorker`` under the name that Tianshou uses.

    Args:
        share_memory: ignored; in a pool memory is always shared.
    """

    def __init__(
        self,
        env_fn: Callable[[], Any],
        share_memory: bool = False,  # noqa: ARG002 - Tianshou's
        context: str | BaseContext | None = None,
    ) -> None:
        super().__init__(env_fn, context)
