"""The pool of envs in actors of Ray, and its worker."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray

from envpool_py.env.pool_options import INTEGER
from envpool_py.pool.arguments import check_env_fns
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.option_names import check_options
from envpool_py.pool.option_signatures import PoolKeywords, spell_out
from envpool_py.ray.actors import Actors
from envpool_py.worker.builtin_workers import SubprocEnvWorker

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


class RayKeywords(PoolKeywords, total=False):
    """The additional options of ``RayVectorEnv``."""

    step_timeout: float | None
    caller_steps: bool


class RayEnvWorker(SubprocEnvWorker):
    """A worker whose env is in an actor of Ray; in a pool an actor may hold several envs.

    ``process`` is the handle of the actor, which starts with the first request, or with a pool.

    Args:
        env_fn: makes the env; called once, in the actor; sent by cloudpickle.
        **options: of the actor, as ``ray.remote`` takes them.
    """

    make_group = Actors

    def __init__(self, env_fn: Callable[[], Any], **options: Any) -> None:
        super().__init__(env_fn)
        self.context: Any = options


@spell_out(RayKeywords)
class RayVectorEnv(BaseVectorEnv):
    """A pool of actors on the nodes of a Ray cluster, in place of worker processes.

    Call ``ray.init(address)`` first to choose the cluster; otherwise Ray is initialised here. An
    actor gets one call for all its envs of a batch, and returns their rows together, so a partial
    batch consists of whole calls. With ``on_error="restart"`` Ray places a new actor on any node
    with free resources.

    Args:
        env_fns: one callable per env; pickled by cloudpickle, called in a thread of the actor.
        envs_per_actor: how many envs share an actor at the most; ``"auto"``: as many actors as
            there are free resources for.
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
        envs_per_actor: int | str = "auto",
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: dict[str, float] | None = None,
        scheduling_strategy: Any = "SPREAD",
        runtime_env: dict[str, Any] | None = None,
        **options: Unpack[RayKeywords],
    ) -> None:
        env_fns = check_env_fns(env_fns)
        check_options(RayVectorEnv.__init__, type(self).__name__, options)
        needed = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        count = _count(len(env_fns), envs_per_actor, needed)
        worker_fn = functools.partial(
            RayEnvWorker,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            scheduling_strategy=scheduling_strategy,
            runtime_env=runtime_env,
        )
        super().__init__(env_fns, worker_fn, wait_num, timeout, num_processes=count, **options)


def _count(num_envs: int, envs_per_actor: int | str, needed: Mapping[str, float]) -> int:
    """How many actors, each of which needs these resources, to start."""
    auto = envs_per_actor == "auto"
    if not auto and (not isinstance(envs_per_actor, INTEGER) or envs_per_actor < 1):
        raise ValueError(f"envs_per_actor must be 1 or more, or 'auto', got {envs_per_actor!r}")
    most = num_envs if auto else -(-num_envs // int(envs_per_actor))
    if not ray.is_initialized():  # ``cluster_resources`` does not start Ray
        ray.init()
    in_all = _room(ray.cluster_resources(), needed, most)
    deadline = time.monotonic() + 1
    while _room(ray.available_resources(), needed, most) < in_all and time.monotonic() < deadline:
        time.sleep(0.02)  # what a pool had that was closed just now is free a moment later
    room = _room(ray.available_resources(), needed, most)
    count = max(room, 1) if auto else most
    if count > room:
        text = f"Ray has room for {room} of {count} actors now, and the pool waits for the others"
        warnings.warn(f"{text}; pass a larger envs_per_actor or a smaller num_cpus", stacklevel=4)
    return count


def _room(resources: Mapping[str, float], needed: Mapping[str, float], most: int) -> int:
    """For how many actors there are resources, ``most`` at the most."""
    return min([most, *(int(resources.get(name, 0) // n) for name, n in needed.items() if n)])
