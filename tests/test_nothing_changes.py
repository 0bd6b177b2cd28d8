"""Every public call: what it returns does not change later, what it is given is not changed."""

import asyncio
from functools import partial
from itertools import islice

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv, envpool, evaluate
from envpool_py.collector import AsyncCollector
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import DummyVecEnv, SubprocVecEnv
from envpool_py.wrappers import NormalizeReward, VectorEnvNormObs
from tests.support import watched
from tests.support.reference import same
from tests.support.watched import GreedyEnv, Watched, extended

N = 3
ENV_FNS = [partial(GreedyEnv, tag) for tag in range(N)]
POOLS = [DummyVectorEnv, ThreadVectorEnv, partial(ShmemVectorEnv, num_processes=2)]

#: What is no value of the caller: the envs and pools themselves, and their descriptions.
OBJECTS = {"spec", "unwrapped", "closed", "is_closed", "close", "num_envs", "metadata", "timeout"}
OBJECTS |= {"is_async", "wait_num", "autoreset_mode", "single_action_space"}
OBJECTS |= {"single_observation_space", "waiting_conn", "envs", "render_mode", "is_vector_env"}
#: Of Gymnasium's class, what is not of the envs; the processes of a VecEnv; and Specs.
OBJECTS |= {"np_random", "np_random_seed", "close_extras", "processes", "waiting", "remotes"}
OBJECTS |= {"options", "sessions", "in_rollout"}
OBJECTS |= {f"{verb}_wrapper_attr" for verb in ("get", "set", "has")}
OBJECTS |= {f"{what}_spec" for what in ("action", "observation", "reward", "discount")}


LIVE = {f"the result of {name}" for name in watched.LIVE}


def check_used(found):
    """Check that every public name was used, but those of objects."""
    names = {name for name in dir(type(found.target)) if not name.startswith("_")}
    assert names <= found.used | OBJECTS


def actions():
    return np.ones((N, 2))


def drive_pool(found):
    """Make every call of a pool, twice where results could be one object."""
    options = [{"list": [1]} for _ in range(N)]
    for _ in range(2):
        found.reset(seed=[1, 2, 3], options=options)
        found.reset([0, 2], options={"list": []})
        for _ in range(6):
            found.step(actions())
        found.step([np.ones(2), np.ones(2)], [0, 2])
        found.send(list(actions()))
        found.recv()
        found.send(actions())
        found.step(None, [1, 0, 2])
        found.send_reset([1], options={"list": [3]}, seed=[4])
        found.drain()
        found.send(actions())
        asyncio.run(found.target.recv_async())
        found.used.add("recv_async")
        if found.target.waiting_id:
            found.drain()
        found.send(actions())
        found.cancel([0])
        if found.target.waiting_id:
            found.drain()
        found.reset()
        found.seed([5, 6, 7])
        found.seed(np.array([5, 6, 7]))
        found.set_env_attr("values", [1, np.ones(2)])
        found.get_env_attr("values")
        found.get_env_attr("told", [1])
        found.call("extend", [1], more=[2])
        found.apply(extended, [1])
        found.render()
        found.render_grid()
        found.stats()
        found.restart([0])
        found.reset()
        for name in ("batch_ids", "restarts", "ready_id", "waiting_id"):
            getattr(found, name)


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("cls", POOLS, ids=["dummy", "thread", "shmem"])
def test_pools(cls, mode):
    with cls(ENV_FNS, autoreset_mode=mode, measure=True, validate="off") as pool:
        found = Watched(pool)
        drive_pool(found)
        check_used(found)
        assert found.changed() <= (set() if isinstance(pool, ShmemVectorEnv) else LIVE)


def drive_vector_env(found):
    for _ in range(2):
        found.reset(seed=[1, 2, 3], options={"list": [1]})
        found.reset(options={"list": [1], "reset_mask": np.array([True, False, True])})
        for _ in range(6):
            found.step(actions())
        found.reset_async(options={"list": [1]})
        found.reset_wait()
        found.step_async(actions())
        found.step_wait()
        found.call("extend", [1], more=[2])
        found.call_async("extend", [1])
        found.call_wait()
        found.set_attr("values", [[1, np.ones(2)]] * N)
        found.get_attr("values")
        found.render()
        _ = found.restarts


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", [{}, {"caller_steps": True, "num_processes": 1}])
def test_vector_env(backend, mode):
    with VectorEnv(ENV_FNS, autoreset_mode=mode, **backend) as env:
        found = Watched(env)
        drive_vector_env(found)
        check_used(found)
        assert found.changed() <= (LIVE if "caller_steps" in backend else set())


def drive_vec_env(found):
    found.set_options([{"list": [1]} for _ in range(N)])
    for _ in range(2):
        found.seed(1)
        found.reset()
        for _ in range(6):
            found.step(actions())
        found.step_async(actions())
        found.step_wait()
        found.env_method("extend", [1], more=[2])
        found.env_method("reset", indices=[1])
        found.set_attr("values", [1, np.ones(2)])
        found.get_attr("values")
        found.get_images()
        found.render()
        found.has_attr("values")
        found.env_is_wrapped(GreedyEnv)
        found.getattr_depth_check("values", already_found=False)
        _ = found.restarts


FORK = partial(SubprocVecEnv, start_method="fork")


@pytest.mark.parametrize("cls", [DummyVecEnv, FORK], ids=["dummy", "subproc"])
def test_vec_env(cls):
    env = cls(ENV_FNS)
    found = Watched(env)
    drive_vec_env(found)
    check_used(found)
    env.close()
    assert found.changed() <= (LIVE if cls is DummyVecEnv else set())


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
@pytest.mark.parametrize("kind", ["gymnasium", "dm"])
def test_envpool(kind, backend):
    make = envpool.make_dm if kind == "dm" else envpool.make_gymnasium
    options = {"render_mode": "rgb_array", "options": {"backend": backend}}
    with make(GreedyEnv, num_envs=N, **options) as env:
        found = Watched(env)
        for _ in range(2):
            found.reset(options={"list": [1]})
            for _ in range(6):
                found.step(actions())
            found.step({"action": actions()[:2], "env_id": np.array([0, 2])})
            found.send(actions())
            found.recv()
            found.async_reset()
            found.recv()
            found.render()
            _ = found.restarts
        check_used(found)
        assert found.changed() == set()


class FloatEnv(GreedyEnv):
    """Observes floats, which can be normalized."""

    def __init__(self, tag=0):
        super().__init__(tag)
        self.observation_space = spaces.Box(-1, 1e6, (3,), np.float64)
        self.buffer = np.zeros(3)


def test_wrappers():
    pool = DummyVectorEnv([FloatEnv] * N, measure=True, validate="off")
    with VectorEnvNormObs(NormalizeReward(pool)) as wrapper:
        found = Watched(wrapper)
        drive_pool(found)
        assert found.changed() <= LIVE


@pytest.mark.parametrize("wait_num", [1, N])
@pytest.mark.parametrize("keep", [{}, {"keep_infos": True}])
def test_collectors(wait_num, keep):
    """What the policy gets does not change either; it changes what it has returned."""
    seen = Watched(None)
    given = np.ones((N, 2)), np.zeros(N)

    def policy(obs, env_ids):
        seen.note("observations", obs)
        seen.note("env_ids", env_ids)
        actions, values = (part[: len(env_ids)] for part in given)
        actions[:], values[:] = 1, values + 1  # the same memory each time
        return actions, {"value": values}

    with ShmemVectorEnv(ENV_FNS, wait_num, num_processes=1, validate="off") as pool:
        collector = AsyncCollector(pool, policy, seed=1, **keep)
        for episode in islice(collector.episodes(6), 6):
            seen.note("an episode", episode)
        for batch in islice(collector.steps(7), 5):
            seen.note("transitions", batch)
        for _ in range(3):
            seen.note("a rollout", collector.rollout(3))
        tasks = [(1, {"list": []}), (2, {"list": [1]})]
        seen.note("tasks", tasks)
        seen.note("an evaluation", evaluate(pool, lambda obs, _: given[0][: len(obs)], tasks=tasks))
    assert seen.changed() == set()


@pytest.mark.parametrize("name", ["dummy", "shmem", "vector", "sb3"])
def test_what_a_user_does_to_a_result_reaches_no_later_one(name):
    options = {"measure": True, "validate": "off"}
    make, drive = {
        "dummy": (partial(DummyVectorEnv, ENV_FNS, **options), drive_pool),
        "shmem": (partial(ShmemVectorEnv, ENV_FNS, num_processes=1, **options), drive_pool),
        "vector": (partial(VectorEnv, ENV_FNS, autoreset_mode="same_step"), drive_vector_env),
        "sb3": (partial(FORK, ENV_FNS), drive_vec_env),
    }[name]
    found = []
    for spoils in (False, True):
        with make() as pool:
            found.append(Watched(pool, spoils=spoils))
            drive(found[-1])
    for one, other in zip(found[0].results(), found[1].results(), strict=True):
        assert same(one, other), (one, other)
