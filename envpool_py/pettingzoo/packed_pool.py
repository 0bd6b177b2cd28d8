"""A pool of ``PackedEnv``, and the facts that its envs have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from envpool_py.arguments import check_env_fns
from envpool_py.pettingzoo.groups import Facts
from envpool_py.pettingzoo.packed_env import MakePacked
from envpool_py.pool import BaseVectorEnv
from envpool_py.pools import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv


def _over_ray(
    env_fns: Sequence[Callable[[], Any]],
    *args: Any,
    num_processes: int | None = None,
    **options: Any,
) -> BaseVectorEnv:
    from envpool_py.ray import RayVectorEnv  # noqa: PLC0415 - an extra

    if num_processes is not None:
        options["envs_per_actor"] = -(-len(env_fns) // num_processes)
    return RayVectorEnv(env_fns, *args, **options)


_BACKENDS: dict[str, Callable[..., BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem": ShmemVectorEnv,
    "ray": _over_ray,
}


def packed_pool(
    env_fns: Sequence[Callable[[], Any]],
    backend: str,
    wait_num: int | None,
    timeout: float | None,
    autoreset_mode: str | gym.vector.AutoresetMode | None,
    num_processes: int | None,
    options: dict[str, Any],
    *,
    with_state: bool = False,
) -> tuple[BaseVectorEnv, Facts]:
    """Make the pool; its envs have the same agents and spaces.

    Args:
        env_fns: each makes a ``ParallelEnv``, or an ``AECEnv`` that ``aec_to_parallel`` takes.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        wait_num: of the pool.
        timeout: of the pool.
        autoreset_mode: of the pool.
        num_processes: of the pool, where it has processes; with Ray, of actors.
        options: of the pool.
        with_state: as in ``PackedEnv``.

    Raises:
        TypeError: an argument is wrong, or an env is not PettingZoo's, or turn-based.
        ValueError: an argument is wrong, or the envs have different agents or spaces.
        EnvError: an env_fn raised.
    """
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    if "columns" in options:
        raise TypeError("columns: batches of agents are arrays in any case")
    if backend != "dummy":
        options = {**options, "num_processes": num_processes}
    elif num_processes is not None:
        raise TypeError("num_processes: the dummy backend has no processes")
    made = [MakePacked(env_fn, with_state=with_state) for env_fn in check_env_fns(env_fns)]
    pool = _BACKENDS[backend](
        made, wait_num, timeout, autoreset_mode=autoreset_mode, columns=True, **options
    )
    try:
        return pool, _common_facts(pool)
    except BaseException:
        pool.close()
        raise


def _common_facts(pool: BaseVectorEnv) -> Facts:
    first: Facts
    first, *others = pool.get_env_attr("facts")
    for i, other in enumerate(others, 1):
        if other.agents != first.agents:
            raise ValueError(
                f"env {i}: possible_agents is {list(other.agents)}, but that of env 0 is"
                f" {list(first.agents)}"
            )
        for name in ("observation_spaces", "action_spaces"):
            for agent, space in getattr(first, name).items():
                theirs = getattr(other, name)[agent]
                if theirs != space:
                    raise ValueError(
                        f"env {i}: {name[:-1]} of agent {agent!r} is {theirs}, but that of env 0"
                        f" is {space}"
                    )
    return first
