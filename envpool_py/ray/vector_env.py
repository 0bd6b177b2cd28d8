"""The pool of envs in actors of Ray, and its worker."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import ray
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.errors import warn
from envpool_py.options import INTEGER, NUMBER, NumProcesses, check_number
from envpool_py.pool.arguments import check_env_fns, check_num_processes
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.keywords import InProcessOptions, check_options, spell_out
from envpool_py.ray.actor_supervisor import ActorSupervisor
from envpool_py.worker.builtin_env_workers import RemoteEnvWorker

_forked: list[bool] = []  # not empty in a fork of a program that used Ray: Ray blocks there
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forked.extend([True] * ray.is_initialized()))


class RayOptions(InProcessOptions, total=False):
    """The keywords of ``RayVectorEnv``."""

    step_timeout: float | None
    caller_steps: bool


class RayEnvWorker(RemoteEnvWorker):
    """A worker whose env is in an actor of Ray; in a pool an actor may hold several envs.

    ``process`` is the handle of the actor, which starts with the first request, or with a pool.

    Args:
        env_fn: makes the env; called once, in the actor; sent by cloudpickle.
        **options: of the actor, as ``ray.remote`` takes them.
    """

    make_supervisor = ActorSupervisor

    def __init__(self, env_fn: Callable[[], Any], **options: Any) -> None:
        super().__init__(env_fn)
        self.context: Any = options


@spell_out(RayOptions)
class RayVectorEnv(BaseVectorEnv):
    """A pool of actors on the nodes of a Ray cluster, in place of worker processes.

    Call ``ray.init(address)`` first to choose the cluster; otherwise Ray is initialised here. An
    actor gets one call for all its envs of a batch, and returns their rows together, so a partial
    batch consists of whole calls. With ``on_error="restart"`` Ray places a new actor on any node
    with free resources.

    Args:
        env_fns: one callable per env; pickled by cloudpickle, called in a thread of the actor.
        num_processes: the number of actors, each with an equal share of the envs. None: one per
            env. ``"auto"``: as many as there are free resources for.
        envs_per_actor: the same in other words: how many envs share an actor at the most.
        num_cpus: CPUs that each actor reserves.
        num_gpus: GPUs that each actor reserves.
        resources: custom resources that each actor reserves.
        scheduling_strategy: as in ``ray.remote``.
        runtime_env: as in ``ray.remote``; every node must be able to import ``envpool_py``.
        step_timeout: seconds that a request to an env may take before its actor is killed; None:
            no timeout.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        num_processes: NumProcesses = "auto",
        envs_per_actor: int | Literal["auto"] = "auto",
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: dict[str, float] | None = None,
        scheduling_strategy: Any = "SPREAD",
        runtime_env: dict[str, Any] | None = None,
        **options: Unpack[RayOptions],
    ) -> None:
        env_fns = check_env_fns(env_fns)
        check_options(RayVectorEnv.__init__, type(self).__name__, options)
        if not isinstance(resources, (dict, type(None))):
            raise TypeError(f"resources must be a dict of numbers, got {resources!r}")
        needed = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        for name, amount in needed.items():
            what = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(name, f"resources: {name}")
            check_number(f"{what} must be a number", amount, NUMBER)
            if not 0 <= amount < math.inf:
                raise ValueError(f"{what} must be 0 or more, got {amount}")
        wanted = _wanted(len(env_fns), num_processes, envs_per_actor)
        count = _count(len(env_fns), wanted, needed)
        worker_fn = functools.partial(
            RayEnvWorker,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            scheduling_strategy=scheduling_strategy,
            runtime_env=runtime_env,
        )
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=count, **options)


def _wanted(num_envs: int, num_processes: NumProcesses, envs_per_actor: int | str) -> int | None:
    """How many actors are asked for; None: as many as there is room for."""
    count = check_num_processes(num_processes)
    if envs_per_actor == "auto":
        return None if isinstance(count, str) else min(count or num_envs, num_envs)
    if count != "auto":
        raise TypeError("num_processes and envs_per_actor are the same option; pass one of them")
    if not isinstance(envs_per_actor, INTEGER) or envs_per_actor < 1:
        raise ValueError(f"envs_per_actor must be 1 or more, or 'auto', got {envs_per_actor!r}")
    return -(-num_envs // int(envs_per_actor))


def _count(num_envs: int, wanted: int | None, needed: Mapping[str, float]) -> int:
    """How many actors, each of which needs these resources, to start."""
    if _forked:
        raise RuntimeError("Ray blocks in a fork of a program that uses Ray; use 'spawn'")
    most = wanted or num_envs
    if not ray.is_initialized():  # ``cluster_resources`` does not start Ray
        ray.init()
    in_all = _room(ray.cluster_resources(), needed, most)
    deadline = time.monotonic() + 1
    while (room := _room(ray.available_resources(), needed, most)) < in_all:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)  # what a pool had that was closed just now is free a moment later
    count = wanted or max(room, 1)
    if count > room:
        text = f"Ray has room for {room} of {count} actors now, and the pool waits for the others"
        warn(f"{text}; pass a smaller num_processes or num_cpus")
    return count


def _room(resources: Mapping[str, float], needed: Mapping[str, float], most: int) -> int:
    """For how many actors there are resources, ``most`` at the most."""
    return min([most, *(int(resources.get(name, 0) // n) for name, n in needed.items() if n)])
