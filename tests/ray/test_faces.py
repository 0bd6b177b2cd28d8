"""What is built on pools gives over actors what it gives in process; the docs, example, cluster."""

import os
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import ray

from envpool_py import DummyVectorEnv, ParallelVectorEnv, envpool
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import PoolVecEnv
from tests.docs.programs import run
from tests.pettingzoo.envs import MeadowEnv
from tests.ray.plugin import PLACE
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT, run_python
from tests.support.reference import same

CARTPOLE = [partial(gym.make, "CartPole-v1", disable_env_checker=True)] * 4
ACTIONS = np.random.default_rng(0).integers(2, size=(40, 4))
SAME_STEP = {"autoreset_mode": "same_step"}


def drive(stepped, **options):
    yield stepped.reset(**options)
    for action in ACTIONS:
        yield stepped.step(action)
    stepped.close()


def sb3(make):
    venv = PoolVecEnv(make(CARTPOLE, **SAME_STEP))
    venv.seed(1)
    return drive(venv)


def gymnasium(make):
    return drive(VectorEnv(make(CARTPOLE, **SAME_STEP, columns=True)), seed=1)


def by_name(make):
    """Return the options of a function that makes a pool by the name of a backend."""
    if make is DummyVectorEnv:
        return {"backend": "dummy"}
    return {"backend": "ray", "num_cpus": 0.01, "num_processes": 2}


def as_envpool(make):
    options = {"num_envs": 4, "seed": 1, "pool_options": by_name(make)}
    return drive(envpool.make_gymnasium("CartPole-v1", **options))


def parallel(make):
    with ParallelVectorEnv([MeadowEnv] * 3, **by_name(make)) as pool:
        yield pool.reset(seed=4)
        spaces = {agent: pool.action_space(agent) for agent in pool.possible_agents}
        for space in spaces.values():
            space.seed(1)
        for _ in range(6):
            yield pool.step(
                {a: np.stack([space.sample() for _ in range(3)]) for a, space in spaces.items()}
            )


@pytest.mark.parametrize("face", [sb3, gymnasium, as_envpool, parallel])
def test_rows_are_those_of_envs_in_process(face):
    ours, theirs = list(face(PLACE)), list(face(DummyVectorEnv))
    assert len(ours) > 5
    for left, right in zip(ours, theirs, strict=True):
        assert same(left, right)


def test_collect_on_the_command_line(tmp_path):
    out = str(tmp_path / "a.npz")
    limits = ["--num-envs", "4", "--wait-num", "2", "--steps", "200", "--seed", "3"]
    backend = ["--backend", "ray", "--num-processes", "2"]
    assert main(["collect", "CartPole-v1", *limits, *backend, "--out", out]) == 0
    check_by_hand(load(out), CARTPOLE, seed=3)
    assert main(["collect", "CartPole-v1", *limits, "--address", "auto"]) == 2


def test_the_program_of_the_page_runs(tmp_path):
    run("docs/ray.md", tmp_path)


def test_the_example_shows_the_nodes_and_the_speed():
    address = ray.get_runtime_context().gcs_address
    options = ["--num-envs", "4", "--envs-per-actor", "2", "--num-cpus", "0.01", "--seconds", "0.2"]
    example = ROOT / "examples" / "ray_cluster.py"
    lines = run_python(example, "--address", address, *options, env=os.environ).splitlines()
    assert lines[0].endswith(": 4 envs")
    assert lines[-2] == "0 episodes lost"
    assert "steps a second" in lines[-1]


# A node of two goes, another comes, and the second goes; a step reports each env that is lost.
CLUSTER = """
import collections, time
import ray
from ray.cluster_utils import Cluster
from envpool_py import RayVectorEnv
from tests.support.envs import CountEnv

MEMORY = {"object_store_memory": 80 * 2**20}
cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **MEMORY}
)
nodes = [cluster.add_node(num_cpus=1, **MEMORY) for _ in range(2)]
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
cluster.wait_for_nodes()
names = {node.node_id: k for k, node in enumerate(nodes)}

def where(pool):
    return [names[i] for i in pool.apply(lambda _: ray.get_runtime_context().get_node_id())]

def remove(pool, number):
    lost = [i for i, place in enumerate(where(pool)) if place == number]
    cluster.remove_node(nodes[number])
    reported, start = [], time.monotonic()
    while len(reported) < len(lost):
        assert time.monotonic() < start + 100
        _, _, _, truncated, info = pool.step([0] * 8)
        ended = [i["env_id"] for i in info if "env_error" in i]
        assert truncated.nonzero()[0].tolist() == ended
        assert all("node" in info[i]["env_error"] for i in ended)
        reported += ended
        if ended:
            pool.reset(ended)
    assert sorted(reported) == lost
    assert not any(pool.step([0] * 8)[3])
    assert number not in where(pool)

options = {"envs_per_actor": 2, "on_error": "restart", "max_restarts": None}
with RayVectorEnv([lambda: CountEnv(length=10**9)] * 8, num_cpus=0.25, **options) as pool:
    assert collections.Counter(where(pool)) == {0: 4, 1: 4}
    pool.reset()
    pool.step([0] * 8)
    remove(pool, 0)
    names[cluster.add_node(num_cpus=1, **MEMORY).node_id] = 2
    remove(pool, 1)
    assert 2 in where(pool)
ray.shutdown()
cluster.shutdown()
print("done", flush=True)
"""


def test_a_node_that_goes_and_a_node_that_comes():
    assert run_python("-c", CLUSTER, env=os.environ).split()[-1] == "done"
