"""``EnvWorker``: the parent's handle on one env, and the unit that is plugged in.

What a worker promises, and all that a pool asks of it:

* it answers one request at a time: ``send``, then ``recv``, which returns the reply or raises what
  the env raised;
* after ``recv`` has raised, it takes the next request;
* ``close`` frees everything, may be called at any time and twice, and never blocks indefinitely.

A worker knows nothing of other envs. A pool steps many of them through a host
(``envpool_py.worker.hosts``).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

W = TypeVar("W", bound="EnvWorker")


class Request(NamedTuple):
    """One thing asked of one env.

    ``kind`` says what an ``Executor`` is to do, with ``args`` and ``kwargs``:

    ============== ============================== ==========================================
    kind           arguments                      reply
    ============== ============================== ==========================================
    ``step``       ``action``                     (obs, reward, terminated, truncated, info)
    ``reset``      ``seed=``, ``options=``, ...   (obs, info)
    ``seed``       ``seed``                       ``[seed]``
    ``get_attr``   ``name``                       the value
    ``set_attr``   ``name, value``                None
    ``call``       ``method, *args, **kwargs``    what the method returned
    ``apply``      ``function, *args, **kwargs``  what ``function(env, ...)`` returned
    ``render``     ``**kwargs``                   what the env returned
    ``run``        ``function, *args``            what ``function(carry_out, ...)`` returned
    ``rebuild``                                   None; a new env, made by the same ``env_fn``
    ``configure``  the pool's options             None; asked only where they are not the defaults
    ============== ============================== ==========================================
    """

    kind: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


#: Requests whose reply is a row.
ROW_KINDS = frozenset({"step", "reset"})


class EnvWorker(ABC):
    """The handle on one env; subclass it to run envs in your own way.

    A subclass writes ``send``, ``recv`` and ``close``; ``envpool_py.worker.executor.Executor``
    carries a request out on a real env. ``envpool_py.testing.EnvWorkerContract`` holds the tests
    that a worker class must pass.

    Args:
        env_fn: makes the env; called once.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env_fn = env_fn

    @abstractmethod
    def send(self, request: Request) -> None:
        """Begin a request; must not wait for its end."""

    @abstractmethod
    def recv(self) -> Any:
        """Wait for the end of the request and return the reply.

        Raises:
            Exception: what the env raised.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the env and free everything; a second call does nothing."""

    def cancel(self) -> None:
        """Cancel the request under way: its reply will not be asked for.

        The default waits for the reply and drops it.
        """
        with contextlib.suppress(Exception):  # whatever it raises belongs to what is dropped
            self.recv()

    @classmethod
    def wait(cls, workers: Sequence[W], wait_num: int, timeout: float | None = None) -> list[W]:  # noqa: ARG003
        """Those of ``workers``, each with a request under way, whose ``recv`` will not wait.

        The default names the first ``wait_num``, the oldest requests, done or not: batches come in
        order of sending. Override it to return rows in the order in which envs finish.

        Args:
            workers: the oldest request first; not empty.
            wait_num: how many to wait for, at most ``len(workers)``.
            timeout: seconds after which to return with fewer, maybe none; None waits indefinitely.
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
        """The attribute ``key`` of the env or of the outermost wrapper that has it."""
        return self.request("get_attr", key)

    def set_env_attr(self, key: str, value: Any) -> None:
        """Set the attribute where it is, or on the base env where it is nowhere."""
        self.request("set_attr", key, value)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the env or of the outermost wrapper that has it."""
        return self.request("call", method, *args, **kwargs)

    def render(self, **kwargs: Any) -> Any:
        """Render the env."""
        return self.request("render", **kwargs)
