"""The pools that are measured, and how each library's are stepped in their own natural way.

A library is imported when one of its pools is started, so that it is needed only there.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import ceiling
import numpy as np
from ceiling import Work
from workloads import ENVPOOL, GYM, PARALLEL, ROLLOUT, ROLLOUTS, TURNS, Workload, legal

from envpool_py.bench import settings
from envpool_py.bench.settings import Running, Setting, beside_caller
from envpool_py.collector import AsyncCollector

OURS, CEILING = "envpool_py", "ceiling"

INSIDE, CORES, EACH, THREADS = "inside", "cores", "each", "threads"
"""Where envs are: all in the caller's process, over a process per core, a process each, or, if
they are C++, in threads."""

LIBRARIES = {
    "gymnasium": ("gymnasium", "gymnasium.vector"),
    "sb3": ("stable-baselines3", "stable_baselines3.common.vec_env"),
    "tianshou": ("tianshou", "tianshou.env"),
    "pufferlib": ("pufferlib-core", "pufferlib.vector"),
    "torchrl": ("torchrl", "torchrl.envs"),
    "supersuit": ("supersuit", "supersuit"),
    "agilerl": ("agilerl", "agilerl.vector.pz_async_vec_env"),
    "envpool": ("envpool", "envpool"),
}
"""The other libraries: their names for an installer, and the modules of their pools."""


def module(library: str) -> Any:
    """The module of a library's pools; imported where it is needed."""
    return importlib.import_module(LIBRARIES[library][1])


def leave_out_torch() -> None:
    """Have ``module`` import nothing of SB3 and Tianshou but their pools, which use no torch.

    Each fork of a process with torch in it takes longer, and torch may not be installed.
    """
    used = {"torch": "Tensor", "stable_baselines3.common.env_util": "is_wrapped"}
    for name, part in used.items():  # in an annotation, and in a method that is not called
        sys.modules[name] = types.ModuleType(name)
        setattr(sys.modules[name], part, type(part, (), {}))
    for library, file in (("sb3", "subproc_vec_env"), ("tianshou", "venvs")):
        package = LIBRARIES[library][1]
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            continue
        for name in itertools.accumulate(package.split("."), "{}.{}".format):
            spec: Any = importlib.util.find_spec(name)
            sys.modules[name] = importlib.util.module_from_spec(spec)  # its code does not run
        pools = vars(importlib.import_module(f"{package}.{file}"))
        own = {key: value for key, value in pools.items() if not key.startswith("__")}
        vars(sys.modules[package]).update(own)
    del sys.modules["torch"]


class Contestant(NamedTuple):
    """One way to step many envs."""

    library: str
    place: str
    start: Callable[[Work], Running]
    partial: bool = True
    """Whether a batch may be of some of the envs."""
    face: str = GYM

    def why_not(self, workload: Workload, max_processes: int) -> str | None:
        """Why it does not do this work; None: it does."""
        if workload.wait_num and not self.partial:
            return "has no partial batches"
        if self.place == THREADS and workload.env not in ENVPOOL:
            return "has no such env"
        if workload.env == "info" and self.library == "torchrl":
            return "drops infos"
        started = workload.num_envs if self.place == EACH else 0
        if self.library == "pufferlib" and workload.wait_num:
            started = -(-workload.num_envs // workload.wait_num)  # a process to each batch
        if started > max_processes:
            return f"would start {started} processes; --max-processes is {max_processes}"
        return None


# ------------------------------------------------------------------------- our pools, Gymnasium's


def _setting(how: str, work: Work) -> Running:
    """``how``: the pool, then any of ``cores``, ``each``, ``caller``, ``views``."""
    pool, *words = how.split()
    count = {CORES: work.num_processes, EACH: work.num_envs}
    num_processes = sum(count.get(word, 0) for word in words)
    setting = Setting(pool, work.num_envs, num_processes, work.wait_num, copy="views" not in words)
    if "caller" in words:
        setting = beside_caller(setting)
    return settings.start(setting, work.env_fns, work.batches)


def _rollouts(work: Work) -> Running:
    """Rollouts that step each env again once its row has arrived."""
    setting = Setting("shmem", work.num_envs, work.num_envs, wait_num=1)
    pool, actions = settings.make_pool(setting, work.env_fns), itertools.cycle(work.batches)
    collector = AsyncCollector(pool, lambda _, env_ids: next(actions)[: len(env_ids)])
    return Running(lambda: collector.rollout(ROLLOUT).rewards.size, pool.close)


# ------------------------------------------------------------------------------ other libraries'


def _run(pool: Any, batches: list[Any], **close: Any) -> Running:
    """A pool whose ``step`` returns rows of all envs, with automatic resets in the same step."""
    actions = itertools.cycle(batches)
    return Running(lambda: len(pool.step(next(actions))[1]), functools.partial(pool.close, **close))


def _sb3(name: str, work: Work) -> Running:
    options = {"start_method": "fork"} if name == "SubprocVecEnv" else {}  # as all others
    pool = getattr(module("sb3"), name)(work.env_fns, **options)
    pool.reset()
    return _run(pool, work.batches)


def _tianshou(name: str, work: Work) -> Running:
    pool = getattr(module("tianshou"), name)(work.env_fns, wait_num=work.wait_num)
    return _caller_resets(pool, work)


def _tianshou_turns(name: str, work: Work) -> Running:
    env_fns = _around(module("tianshou").PettingZooEnv, work)
    return _tianshou(name, work._replace(env_fns=env_fns))


def _around(wrap: Callable[[Any], Any], work: Work) -> list[Callable[[], Any]]:
    return [functools.partial(_wrapped, wrap, env_fn) for env_fn in work.env_fns]


def _wrapped(wrap: Callable[[Any], Any], env_fn: Callable[[], Any]) -> Any:
    return wrap(env_fn())


def _caller_resets(pool: Any, work: Work) -> Running:
    """Tianshou's loop: the caller resets envs that have ended, and chooses legal actions."""
    seen = pool.reset()[0]
    actions = itertools.cycle(work.batches)
    ids = np.arange(work.num_envs)

    def advance() -> int:
        nonlocal ids
        some = next(actions)[: len(ids)]
        if work.masked:
            some = [legal(seen[i]["mask"], number) for i, number in zip(ids, some, strict=True)]
        obs, _, terminated, truncated, infos = pool.step(some, ids)
        if pool.is_async:
            ids = np.array([info["env_id"] for info in infos])
        if work.masked:
            seen[ids] = obs
        ended = ids[terminated | truncated]
        if len(ended):
            seen[ended] = pool.reset(ended)[0]
        return len(ids)

    return Running(advance, pool.close, pool.is_async)


def _pufferlib(backend: str, work: Work) -> Running:
    """``recommended``: a process per core and half batches, its values for ``"auto"``.

    Otherwise one process less than there are cores: they and the caller all wait busily. A batch is
    of whole processes: partial batches take as many as there are in it.
    """
    vector = module("pufferlib")
    emulation = importlib.import_module("pufferlib.emulation")
    num_envs, options = work.num_envs, {}
    if backend == "recommended":
        backend = "Multiprocessing"
        count = next(n for n in range(work.num_processes, 0, -1) if num_envs % (2 * n) == 0)
        half = num_envs // 2 if count % 2 == 0 else num_envs
        options = {"num_workers": count, "batch_size": half, "overwork": True}
    elif backend == "Multiprocessing":
        least = -(-num_envs // work.wait_num) if work.wait_num else max(1, work.num_processes - 1)
        count = next(n for n in range(least, num_envs + 1) if num_envs % n == 0)
        options = {"num_workers": count, "batch_size": work.wait_num or num_envs, "overwork": True}

    def emulated(env_fn: Callable[[], Any]) -> Callable[..., Any]:
        return lambda buf=None, seed=0: emulation.GymnasiumPufferEnv(
            env_creator=env_fn, buf=buf, seed=seed
        )

    pool = vector.make(
        [emulated(env_fn) for env_fn in work.env_fns],
        env_args=[[]] * num_envs,
        env_kwargs=[{}] * num_envs,
        num_envs=num_envs,
        backend=getattr(vector, backend),
        **options,
    )
    pool.async_reset(0)
    *_, ids, _ = pool.recv()  # there are more values in newer versions
    actions = itertools.cycle(work.batches)
    # The envs whose next row is that of a reset; with partial batches also those not yet returned.
    has_ended = np.ones(num_envs, bool)
    has_ended[ids] = False

    def advance() -> int:
        nonlocal ids
        pool.send(next(actions)[: len(ids)])
        _, _, terminated, truncated, *_, ids, _ = pool.recv()
        steps = len(ids) - int(np.count_nonzero(has_ended[ids]))
        has_ended[ids] = terminated | truncated
        return steps

    return Running(advance, pool.close)


def _envpool(work: Work) -> Running:
    """The env of this id that EnvPool has in C++; the step after the end of an episode resets."""
    env_id, options = ENVPOOL[work.env]
    batch_size = work.wait_num or work.num_envs
    pool = module("envpool").make(
        env_id, "gymnasium", num_envs=work.num_envs, batch_size=batch_size, seed=0, **options
    )
    actions = itertools.cycle(work.batches)
    pool.async_reset()
    ids = pool.recv()[-1]["env_id"]
    has_ended = np.ones(work.num_envs, bool)  # the envs whose next row is that of a reset
    has_ended[ids] = False

    def advance() -> int:
        nonlocal ids
        pool.send(next(actions)[: len(ids)], ids)
        _, _, terminated, truncated, info = pool.recv()
        ids = info["env_id"]
        steps = len(ids) - int(np.count_nonzero(has_ended[ids]))
        has_ended[ids] = terminated | truncated
        return steps

    return Running(advance, pool.close)


def _torchrl(kind: str, work: Work) -> Running:
    """Envs are reset in the step that ends their episode."""
    envs, torch = module("torchrl"), importlib.import_module("torch")
    wrap = functools.partial(envs.GymWrapper, categorical_action_encoding=True)
    makers, num_envs = _around(wrap, work), work.num_envs
    count = max(n for n in range(1, work.num_processes + 1) if num_envs % n == 0)
    batches = [torch.from_numpy(batch) for batch in work.batches]
    if kind == "parallel":
        pool = envs.ParallelEnv(num_envs, makers, mp_start_method="fork")
    elif kind == "nested":
        share = num_envs // count
        shares = [makers[i : i + share] for i in range(0, num_envs, share)]
        makers = [functools.partial(envs.SerialEnv, share, each) for each in shares]
        pool = envs.ParallelEnv(count, makers, mp_start_method="fork")
        batches = [batch.reshape(count, share, *batch.shape[1:]) for batch in batches]
    else:
        pool = envs.AsyncEnvPool(
            makers,
            backend="multiprocessing",
            exchange="auto",
            envs_per_worker=-(-num_envs // work.num_processes),
        )
    data = pool.reset()
    actions = itertools.cycle(batches)

    def advance() -> int:
        nonlocal data
        data["action"] = next(actions)
        _, data = pool.step_and_maybe_reset(data)
        return num_envs

    def advance_some() -> int:
        nonlocal data
        data["action"] = next(actions)[: len(data)]
        pool.async_step_and_maybe_reset_send(data)
        rows, data = pool.async_step_and_maybe_reset_recv(min_get=work.wait_num or num_envs)
        return len(rows)

    close = functools.partial(pool.close, raise_if_closed=False)
    return Running(advance_some if kind == "async" else advance, close)


# ----------------------------------------------------------------------------------- many agents


def _pettingzoo() -> Any:
    return importlib.import_module("envpool_py.pettingzoo")


def _processes(backend: str, work: Work) -> dict[str, int]:
    return {} if backend == "dummy" else {"num_processes": work.num_processes}


def _parallel(backend: str, work: Work) -> Running:
    pool = _pettingzoo().ParallelVectorEnv(
        work.env_fns, backend, autoreset_mode="same_step", **_processes(backend, work)
    )
    return _run_columns(pool, work)


def _run_columns(pool: Any, work: Work) -> Running:
    """A pool that takes and returns a column for each agent."""
    pool.reset(seed=0)
    agents = pool.possible_agents
    columns = [dict(zip(agents, batch.T, strict=True)) for batch in work.batches]
    actions = itertools.cycle(columns)
    return Running(lambda: sum(map(len, pool.step(next(actions))[1].values())), pool.close)


def _agents(backend: str, work: Work) -> Running:
    make = _pettingzoo().SB3MultiAgentVecEnv
    pool = make(work.env_fns, backend, **_processes(backend, work))
    pool.reset()
    return _run(pool, [batch.reshape(-1) for batch in work.batches])


def _turns(backend: str, work: Work) -> Running:
    env_fns = _around(_pettingzoo().PettingZooEnv, work)
    pool = settings.pool_class(backend)(env_fns, work.wait_num, **_processes(backend, work))
    return _caller_resets(pool, work)


def _supersuit(apart: bool, work: Work) -> Running:
    supersuit = module("supersuit")
    one = supersuit.pettingzoo_env_to_vec_env_v1(work.env_fns[0]())
    count = work.num_processes if apart else 0
    pool = supersuit.concat_vec_envs_v1(one, work.num_envs, count, base_class="gymnasium")
    pool.reset(seed=0)
    return _run(pool, [batch.reshape(-1) for batch in work.batches])


def _agilerl(work: Work) -> Running:
    return _run_columns(module("agilerl").AsyncPettingZooVecEnv(work.env_fns), work)


_WITH_PARTIAL_BATCHES: dict[str, tuple[Any, ...]] = {
    # name: place, function, its first argument
    "dummy": (INSIDE, _setting, "dummy"),
    "subproc": (CORES, _setting, "subproc cores"),
    "shmem": (CORES, _setting, "shmem cores"),
    "shmem-views": (CORES, _setting, "shmem cores views"),
    "shmem-caller": (CORES, _setting, "shmem cores caller"),
    "shmem-caller-views": (CORES, _setting, "shmem cores caller views"),
    "shmem-each": (EACH, _setting, "shmem each"),
    "tianshou-dummy": (INSIDE, _tianshou, "DummyVectorEnv"),
    "tianshou-subproc": (EACH, _tianshou, "SubprocVectorEnv"),
    "tianshou-shmem": (EACH, _tianshou, "ShmemVectorEnv"),
    "pufferlib-multiprocessing": (CORES, _pufferlib, "Multiprocessing"),
    "torchrl-async": (CORES, _torchrl, "async"),
    "envpool-cpp": (THREADS, _envpool),
}
_WHOLE_BATCHES: dict[str, tuple[Any, ...]] = {
    "gymnasium-sync": (INSIDE, _setting, settings.SYNC),
    "gymnasium-async": (EACH, _setting, settings.ASYNC),
    "sb3-dummy": (INSIDE, _sb3, "DummyVecEnv"),
    "sb3-subproc": (EACH, _sb3, "SubprocVecEnv"),
    "pufferlib-serial": (INSIDE, _pufferlib, "Serial"),
    "pufferlib-recommended": (CORES, _pufferlib, "recommended"),
    "torchrl-nested": (CORES, _torchrl, "nested"),
    "torchrl-parallel": (EACH, _torchrl, "parallel"),
    "ceiling-apart": (CORES, ceiling.apart),
    "ceiling-in-step": (CORES, ceiling.in_step),
    "ceiling-views": (CORES, ceiling.views),
    "ceiling-rows": (CORES, ceiling.rows),
}
_OF_PARALLEL_ENVS: dict[str, tuple[Any, ...]] = {
    "parallel-dummy": (INSIDE, _parallel, "dummy"),
    "parallel-shmem": (CORES, _parallel, "shmem"),
    "agents-dummy": (INSIDE, _agents, "dummy"),
    "agents-shmem": (CORES, _agents, "shmem"),
    "supersuit-inside": (INSIDE, _supersuit, False),
    "supersuit-processes": (CORES, _supersuit, True),
    "agilerl-async": (EACH, _agilerl),
}
_IN_TURNS: dict[str, tuple[Any, ...]] = {
    "turns-dummy": (INSIDE, _turns, "dummy"),
    "turns-shmem": (CORES, _turns, "shmem"),
    "tianshou-turns-dummy": (INSIDE, _tianshou_turns, "DummyVectorEnv"),
    "tianshou-turns-subproc": (EACH, _tianshou_turns, "SubprocVectorEnv"),
    "tianshou-turns-shmem": (EACH, _tianshou_turns, "ShmemVectorEnv"),
}


def _contestants(rows: dict[str, tuple[Any, ...]], **options: Any) -> dict[str, Contestant]:
    found = {}
    for name, (place, start, *given) in rows.items():
        first = name.partition("-")[0]
        library = first if first in (*LIBRARIES, CEILING) else OURS
        bound = functools.partial(start, *given) if given else start
        found[name] = Contestant(library, place, bound, **options)
    return found


CONTESTANTS = {
    **_contestants(_WITH_PARTIAL_BATCHES),
    **_contestants(_WHOLE_BATCHES, partial=False),
    **_contestants(_OF_PARALLEL_ENVS, partial=False, face=PARALLEL),
    **_contestants(_IN_TURNS, face=TURNS),
    **_contestants({"rollouts": (EACH, _rollouts)}, face=ROLLOUTS),
}
