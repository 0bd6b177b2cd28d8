"""Choose these pools in Tianshou's high-level interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from envpool_py.options import Backend
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.pool_classes import pool_class

__all__ = ["VectorEnvType"]


@dataclass(frozen=True)
class VectorEnvType:
    """The ``venv_type`` of Tianshou's env factories, with our pools.

    The members have the names of Tianshou's enum; another one has options of the pool::

        venv_type = VectorEnvType("shmem", {"num_processes": 4, "on_error": "restart"})
        EnvFactoryRegistered(task="CartPole-v1", venv_type=venv_type)

    Args:
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        options: of that pool class.
    """

    backend: Backend
    options: Mapping[str, Any] = field(default_factory=dict)

    DUMMY: ClassVar[VectorEnvType]
    SUBPROC: ClassVar[VectorEnvType]
    SUBPROC_SHARED_MEM_DEFAULT_CONTEXT: ClassVar[VectorEnvType]
    SUBPROC_SHARED_MEM_FORK_CONTEXT: ClassVar[VectorEnvType]
    SUBPROC_SHARED_MEM_AUTO: ClassVar[VectorEnvType]
    RAY: ClassVar[VectorEnvType]

    def __post_init__(self) -> None:
        if self.backend != "ray":  # is imported when it is used
            pool_class(self.backend)

    def create_venv(self, factories: Sequence[Callable[[], Any]]) -> BaseVectorEnv:
        """Make a pool of one env per factory; the errors are those of the pool class."""
        return pool_class(self.backend)(factories, **self.options)


VectorEnvType.DUMMY = VectorEnvType("dummy")
VectorEnvType.SUBPROC = VectorEnvType("subproc")
VectorEnvType.SUBPROC_SHARED_MEM_DEFAULT_CONTEXT = VectorEnvType("shmem")
VectorEnvType.SUBPROC_SHARED_MEM_FORK_CONTEXT = VectorEnvType("shmem", {"context": "fork"})
# Tianshou forks here where it can; our processes start at once under any start method.
VectorEnvType.SUBPROC_SHARED_MEM_AUTO = VectorEnvType.SUBPROC_SHARED_MEM_DEFAULT_CONTEXT
VectorEnvType.RAY = VectorEnvType("ray")
