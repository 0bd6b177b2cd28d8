"""Who takes part: our backends, and those of other libraries."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from envpool_py.bench.games import GYM, PARALLEL, TURNS, faces
from envpool_py.bench.job import Driver
from envpool_py.bench.workloads import Workload

OURS = "envpool_py"

#: What is no library: plain loops that show what is left of the limit without a pool.
CEILING = "ceiling"

#: The name under which one bare env in a tight loop is measured.
BARE = "bare"

#: How the envs are spread: all in this process, over a process per core, or a process each.
INSIDE, CORES, EACH = "inside", "cores", "each"


class Contestant(NamedTuple):
    """One way to step many envs."""

    name: str
    library: str
    title: str
    processes: str
    function: str
    """In the driver of the library."""
    partial: bool = True
    """Whether a batch may be of some of the envs."""
    plays: str = GYM
    """Whose envs it steps."""


CONTESTANTS = (
    Contestant("dummy", OURS, "envpool_py Dummy", INSIDE, "dummy"),
    Contestant("subproc", OURS, "envpool_py Subproc", CORES, "subproc"),
    Contestant("subproc-each", OURS, "envpool_py Subproc", EACH, "subproc_each"),
    Contestant("shmem", OURS, "envpool_py Shmem", CORES, "shmem"),
    Contestant("shmem-views", OURS, "envpool_py Shmem, copy=False", CORES, "shmem_views"),
    Contestant("shmem-caller", OURS, "envpool_py Shmem, caller_steps=True", CORES, "shmem_caller"),
    Contestant(
        "shmem-caller-views",
        OURS,
        "envpool_py Shmem, caller_steps=True, copy=False",
        CORES,
        "shmem_caller_views",
    ),
    Contestant("shmem-each", OURS, "envpool_py Shmem", EACH, "shmem_each"),
    Contestant("gymnasium-sync", "gymnasium", "Gymnasium Sync", INSIDE, "sync", partial=False),
    Contestant("gymnasium-async", "gymnasium", "Gymnasium Async", EACH, "async_", partial=False),
    Contestant("sb3-dummy", "sb3", "SB3 Dummy", INSIDE, "dummy", partial=False),
    Contestant("sb3-subproc", "sb3", "SB3 Subproc", EACH, "subproc", partial=False),
    Contestant("tianshou-dummy", "tianshou", "Tianshou Dummy", INSIDE, "dummy"),
    Contestant("tianshou-subproc", "tianshou", "Tianshou Subproc", EACH, "subproc"),
    Contestant("tianshou-shmem", "tianshou", "Tianshou Shmem", EACH, "shmem"),
    Contestant(
        "pufferlib-serial", "pufferlib", "PufferLib Serial", INSIDE, "serial", partial=False
    ),
    Contestant(
        "pufferlib-multiprocessing",
        "pufferlib",
        "PufferLib Multiprocessing",
        CORES,
        "multiprocessing",
    ),
    Contestant("torchrl-serial", "torchrl", "TorchRL Serial", INSIDE, "serial", partial=False),
    Contestant(
        "torchrl-nested", "torchrl", "TorchRL Parallel of Serial", CORES, "nested", partial=False
    ),
    Contestant("torchrl-parallel", "torchrl", "TorchRL Parallel", EACH, "parallel", partial=False),
    Contestant("torchrl-async", "torchrl", "TorchRL AsyncEnvPool", CORES, "async_pool"),
)

#: What is left of the limit without a pool; measured where it is asked for.
CEILINGS = (
    Contestant("ceiling-apart", CEILING, "no pool: apart", CORES, "apart", partial=False),
    Contestant("ceiling-in-step", CEILING, "no pool: in step", CORES, "in_step", partial=False),
    Contestant(
        "ceiling-views", CEILING, "no pool: rows, not copied", CORES, "views", partial=False
    ),
    Contestant("ceiling-rows", CEILING, "no pool: rows", CORES, "rows", partial=False),
    Contestant("ceiling-partial", CEILING, "no pool: partial batches", CORES, "partial"),
)

_OF_ONE_ARRAY = {"ceiling-views", "ceiling-rows", "ceiling-partial"}

#: Those that step PettingZoo's envs.
AGENT_CONTESTANTS = (
    Contestant(
        "parallel-dummy", OURS, "ParallelVectorEnv dummy", INSIDE, "parallel_dummy", plays=PARALLEL
    ),
    Contestant(
        "parallel-shmem", OURS, "ParallelVectorEnv shmem", CORES, "parallel_shmem", plays=PARALLEL
    ),
    Contestant(
        "agents-dummy",
        OURS,
        "SB3MultiAgentVecEnv dummy",
        INSIDE,
        "sb3_dummy",
        partial=False,
        plays=PARALLEL,
    ),
    Contestant(
        "agents-shmem",
        OURS,
        "SB3MultiAgentVecEnv shmem",
        CORES,
        "sb3_shmem",
        partial=False,
        plays=PARALLEL,
    ),
    Contestant("turns-dummy", OURS, "PettingZooEnv in Dummy", INSIDE, "turns_dummy", plays=TURNS),
    Contestant("turns-shmem", OURS, "PettingZooEnv in Shmem", CORES, "turns_shmem", plays=TURNS),
    Contestant(
        "supersuit-inside",
        "supersuit",
        "SuperSuit, num_cpus=0",
        INSIDE,
        "inside",
        partial=False,
        plays=PARALLEL,
    ),
    Contestant(
        "supersuit-processes",
        "supersuit",
        "SuperSuit, a process per core",
        CORES,
        "processes",
        partial=False,
        plays=PARALLEL,
    ),
    Contestant(
        "agilerl-async",
        "agilerl",
        "AgileRL AsyncPettingZooVecEnv",
        EACH,
        "async_",
        partial=False,
        plays=PARALLEL,
    ),
    Contestant(
        "tianshou-turns-dummy",
        "tianshou",
        "Tianshou PettingZooEnv in Dummy",
        INSIDE,
        "dummy",
        plays=TURNS,
    ),
    Contestant(
        "tianshou-turns-subproc",
        "tianshou",
        "Tianshou PettingZooEnv in Subproc",
        EACH,
        "subproc",
        plays=TURNS,
    ),
    Contestant(
        "tianshou-turns-shmem",
        "tianshou",
        "Tianshou PettingZooEnv in Shmem",
        EACH,
        "shmem",
        plays=TURNS,
    ),
)

BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS + CEILINGS + AGENT_CONTESTANTS}

#: The libraries, and the package of each, as an installer knows it.
PACKAGES = {
    "gymnasium": "gymnasium",
    "sb3": "stable-baselines3",
    "tianshou": "tianshou",
    "pufferlib": "pufferlib",
    "torchrl": "torchrl",
    "supersuit": "supersuit",
    "agilerl": "agilerl",
}


def takes_part(contestant: Contestant, workload: Workload) -> bool:
    """Whether a contestant steps envs of this kind at all."""
    return contestant.plays in faces(workload.env)


def why_not(contestant: Contestant, workload: Workload, max_processes: int) -> str | None:
    """Why a contestant does not do this work; None: it does."""
    if workload.wait_num and not contestant.partial:
        return "has no partial batches"
    if contestant.name == "ceiling-partial" and not workload.wait_num:
        return "has nothing but partial batches"
    if workload.env == "dict" and contestant.name in _OF_ONE_ARRAY:
        return "has memory for one array of each env"
    if workload.env == "info" and contestant.library == "torchrl":
        return "drops infos, and can be told to read only those that hold arrays"
    started = _beyond_cores(contestant, workload)
    if started > max_processes:
        return f"would start {started} processes; --max-processes is {max_processes}"
    return None


def _beyond_cores(contestant: Contestant, workload: Workload) -> int:
    """The processes that a contestant starts, where these are not as many as cores."""
    if contestant.processes == EACH:
        return workload.num_envs
    if contestant.library == "pufferlib" and workload.wait_num:
        return -(-workload.num_envs // workload.wait_num)  # a process to each batch
    return 0


def driver(name: str) -> Driver:
    """What starts a contestant's pool; its library is imported now."""
    contestant = BY_NAME[name]
    place = "drivers" if contestant.plays == GYM else "drivers.agents"
    module = importlib.import_module(f"envpool_py.bench.{place}.{contestant.library}")
    found: Driver = getattr(module, contestant.function)
    return found
