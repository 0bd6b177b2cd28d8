"""What a pool tells of itself, and what it asks its envs for beside rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.error import ClosedEnvironmentError

from envpool_py import arguments
from envpool_py import ids as ids_
from envpool_py.asking import ask
from envpool_py.calls import one_at_a_time
from envpool_py.engine import Engine
from envpool_py.ids import IdArray, Ids
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.executor import NEXT_STEP


class _Process:
    """This process: to ask the system for it in each call would cost more than the other checks."""

    def __init__(self) -> None:
        self.note()
        if hasattr(os, "register_at_fork"):  # a fork from C is not noticed
            os.register_at_fork(after_in_child=self.note)

    def note(self) -> None:
        """Ask the system."""
        self.pid = os.getpid()


this_process = _Process()


class PoolAttributes:
    """The part of ``BaseVectorEnv`` that brings no rows."""

    engine: Engine
    workers: list[EnvWorker]
    observation_space: list[gym.Space[Any] | None]
    action_space: list[gym.Space[Any] | None]
    env_num: int
    is_closed: bool
    _wait_num: int
    _timeout: float | None
    _autoreset: str | None
    _attributes: dict[str, list[Any]]
    _pid: int
    _all: IdArray

    def __len__(self) -> int:
        return self.env_num

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self.env_num

    @property
    def wait_num(self) -> int:
        """The number of rows that a batch waits for; it may be set between calls."""
        return self._wait_num

    @wait_num.setter
    def wait_num(self, wait_num: int | None) -> None:
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self.engine.prompt = self.is_async

    @property
    def timeout(self) -> float | None:
        """Seconds after which a batch comes with fewer rows; it may be set between calls."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        self._timeout = arguments.check_timeout(timeout)
        self.engine.prompt = self.is_async

    @property
    def is_async(self) -> bool:
        """Whether ``step`` may return fewer rows than envs: ``wait_num`` or ``timeout`` is set."""
        return self._wait_num != self.env_num or self._timeout is not None

    @property
    def autoreset_mode(self) -> gym.vector.AutoresetMode | None:
        """Who resets an env at the end of its episode; None: the caller."""
        if self._autoreset is None:
            return None
        return (
            gym.vector.AutoresetMode.NEXT_STEP
            if self._autoreset == NEXT_STEP
            else gym.vector.AutoresetMode.SAME_STEP
        )

    @property
    def waiting_id(self) -> list[int]:
        """The envs in flight, the oldest request first."""
        listed: list[int] = self.engine.states.waiting().tolist()
        return listed

    @property
    def waiting_conn(self) -> list[EnvWorker]:
        """The workers of the envs in flight, the oldest request first."""
        return [self.workers[i] for i in self.waiting_id]

    @property
    def ready_id(self) -> list[int]:
        """The envs that take a request, in the order in which their rows were returned."""
        listed: list[int] = self.engine.states.ready().tolist()
        return listed

    @property
    def batch_ids(self) -> IdArray:
        """The envs of the batch that was returned last, in its order: shape ``(k,)``."""
        return self.engine.batch_ids.copy()

    @property
    def single_observation_space(self) -> gym.Space[Any] | None:
        """The observation space of every env.

        Raises:
            ValueError: two envs have different ones.
        """
        return arguments.common_space("observation_space", self.observation_space)

    @property
    def single_action_space(self) -> gym.Space[Any] | None:
        """The action space of every env.

        Raises:
            ValueError: two envs have different ones.
        """
        return arguments.common_space("action_space", self.action_space)

    @property
    def spec(self) -> list[Any]:
        """The ``EnvSpec`` of every env, or None."""
        return self._attribute("spec")

    @property
    def metadata(self) -> list[Any]:
        """The metadata of every env."""
        return self._attribute("metadata")

    @property
    def unwrapped(self) -> Any:
        """The pool itself."""
        return self

    def _attribute(self, name: str) -> list[Any]:
        if name not in self._attributes:
            self._attributes[name] = self.get_env_attr(name)
        return self._attributes[name]

    def __repr__(self) -> str:
        text = f"{type(self).__name__}(num_envs={self.env_num}"
        if self._wait_num != self.env_num:
            text += f", wait_num={self._wait_num}"
        if self._timeout is not None:
            text += f", timeout={self._timeout}"
        if self._autoreset is not None:
            text += f", autoreset_mode={self._autoreset!r}"
        if hasattr(self, "engine"):
            text += self.engine.hosts.describe()
        return text + (", closed)" if self.is_closed else ")")

    @one_at_a_time
    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:  # noqa: A002 - Tianshou's name
        """The attribute ``key`` of each env, from the outermost wrapper that has it.

        Args:
            key: its name.
            id: which envs; None is all.

        Returns:
            One value for each id, in their order.

        Raises:
            EnvError: an env has no such attribute (then it is an AttributeError too), or reading it
                raised. The env needs no reset.
            AlreadyPendingCallError: an env is in flight.
        """
        return self._ask_each(id, Request("get_attr", (key,)))

    @one_at_a_time
    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Set the attribute ``key`` of each env: where it is, else on the base env.

        Returns once every env has it.

        Args:
            key: its name.
            value: the value, the same for all.
            id: which envs; None is all.

        Raises:
            EnvError: setting it raised, for a read-only attribute say.
            AlreadyPendingCallError: an env is in flight.
        """
        self._ask_each(id, Request("set_attr", (key, value)))
        self._attributes.clear()

    @one_at_a_time
    def call(self, method: str, *args: Any, id: Ids = None, **kwargs: Any) -> list[Any]:  # noqa: A002
        """Call a method of each env, that of the outermost wrapper that has it.

        Args:
            method: its name; not ``reset``, ``step`` or ``close``.
            *args: its arguments.
            id: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each returned, in the order of the ids.

        Raises:
            ValueError: the method is the pool's own business.
            EnvError: the method raised, or there is none.
            AlreadyPendingCallError: an env is in flight.
        """
        if method in ("reset", "step", "close"):
            raise ValueError(f"call: {method!r} goes through the pool's own {method}()")
        return self._ask_each(id, Request("call", (method, *args), kwargs))

    @one_at_a_time
    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function(env, *args, **kwargs)`` for each env, where it is.

        Args:
            function: takes the env, with its wrappers, first; pickled (by cloudpickle) on its way.
            *args: its other arguments.
            id: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each call returned, in the order of the ids.

        Raises:
            EnvError: the function raised, or what it returned can't be sent.
            AlreadyPendingCallError: an env is in flight.
        """
        return self._ask_each(id, Request("apply", (function, *args), kwargs))

    @one_at_a_time
    def render(self, id: Ids = None, **kwargs: Any) -> list[Any]:  # noqa: A002 - Tianshou's name
        """Render each env.

        Args:
            id: which envs; None is all.
            **kwargs: passed to every env's ``render``.

        Returns:
            What each env returned.

        Raises:
            AlreadyPendingCallError: an env is in flight.
            EnvError: rendering raised.
        """
        return self._ask_each(id, Request("render", kwargs=kwargs))

    def _assert_open(self) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"{type(self).__name__} is closed")
        if self._pid != this_process.pid and self.engine.hosts.processes is not None:
            raise RuntimeError(
                f"{type(self).__name__} was made in process {self._pid}; a fork of it cannot"
                " use its workers and must make a pool of its own"
            )

    def _resolve(self, env_id: Ids, other: Ids = None) -> IdArray:
        if env_id is None:
            if other is None:
                return self._all
            env_id = other
        elif other is not None:
            raise TypeError("ids were given twice, as env_id and as id")
        return ids_.resolve(env_id, self.env_num)

    def _ask_each(self, id: Ids, request: Request) -> list[Any]:  # noqa: A002 - Tianshou's name
        self._assert_open()
        ids = self._resolve(id)
        self.engine.states.check_free(ids)
        return ask(self.engine, ids, [request] * len(ids))
