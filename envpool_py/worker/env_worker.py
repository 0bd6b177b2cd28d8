"""``EnvWorker``: the handle on one env, and the class to subclass for custom workers.

The contract between a worker and a pool:

* a worker answers one request at a time: ``send``, then ``recv``, which returns the reply or raises
  the exception of the env;
* after ``recv`` has raised, the worker accepts the next request;
* ``close`` frees everything, may be called at any time and twice, and never blocks indefinitely.

A worker handles one env. A pool steps many workers through a host (``worker.custom_worker_host``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envpool_py.env.request import Request
from envpool_py.interrupts import suppressed

W = TypeVar("W", bound="EnvWorker")


class EnvWorker(ABC):
    """The handle on one env; subclass it to run envs in your own way.

    A subclass implements ``send``, ``recv`` and ``close``. It can use
    ``envpool_py.env.executor.Executor`` to carry out requests on a real env. The tests that a
    worker class must pass are in ``envpool_py.testing.EnvWorkerContract``.

    Args:
        env_fn: makes the env, and makes it again when it is recreated.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env_fn = env_fn

    @abstractmethod
    def send(self, request: Request) -> None:
        """Start a request; must not wait for its end."""

    @abstractmethod
    def recv(self) -> Any:
        """Wait for the end of the request and return the reply.

        Raises:
            Exception: the exception of the env.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the env and free everything; a second call does nothing."""

    def cancel(self) -> None:
        """Cancel the request under way; the pool will not call ``recv`` for it.

        The default waits for the reply and drops it.
        """
        with suppressed():  # an error of the cancelled request is dropped too
            self.recv()

    @classmethod
    def wait(cls, workers: Sequence[W], wait_num: int, timeout: float | None = None) -> list[W]:  # noqa: ARG003
        """Wait for workers whose request has ended, so that ``recv`` does not wait; return them.

        The default returns the first ``wait_num`` workers, whether their requests have ended or
        not: batches are then in the order of sending. Override this method to get rows in the
        order in which envs finish.

        Args:
            workers: workers with a request under way, the oldest request first; not empty.
            wait_num: the number of workers to wait for, at most ``len(workers)``.
            timeout: seconds after which to return fewer workers, or none; None: no timeout.
        """
        return list(workers[:wait_num])

    def request(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        """Send a request, wait for its reply and return it."""
        self.send(Request(kind, args, kwargs))
        return self.recv()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; return (obs, reward, terminated, truncated, info)."""
        return self.request("step", action)  # type: ignore[no-any-return]

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env; return (obs, info)."""
        return self.request("reset", **kwargs)  # type: ignore[no-any-return]

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the env by a reset whose observation is dropped; return ``[seed]``."""
        return self.request("seed", seed)  # type: ignore[no-any-return]

    def get_env_attr(self, key: str) -> Any:
        """Return the attribute ``key`` of the outermost wrapper that has it, or of the env."""
        return self.request("get_attr", key)

    def set_env_attr(self, key: str, value: Any) -> None:
        """Set the attribute on the outermost wrapper that has it, or on the base env."""
        self.request("set_attr", key, value)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the outermost wrapper that has it, or of the env."""
        return self.request("call", method, *args, **kwargs)

    def render(self, **kwargs: Any) -> Any:
        """Return the result of ``env.render(**kwargs)``."""
        return self.request("render", **kwargs)
