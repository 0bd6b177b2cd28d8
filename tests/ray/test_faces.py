"""What is built on pools gives over actors what it gives in process; the docs, example, cluster."""

import os
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import ray

from envpool_py import ParallelVectorEnv, envpool, make
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import PoolVecEnv
from tests.docs.programs import programs
from tests.pettingzoo.envs import MeadowEnv
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT, run_python
from tests.support.reference import same

ACTIONS = np.random.default_rng(0).integers(2, size=(40, 4))


def drive(stepped, actions=ACTIONS, **options):
    yield stepped.reset(**options)
    for action in actions:
        yield stepped.step(action)
    stepped.close()


def sb3(options):
    venv = PoolVecEnv(make("CartPole-v1", 4, **options))
    venv.seed(1)
    return drive(venv)


def gymnasium(options):
    return drive(VectorEnv(make("CartPole-v1", 4, **options)), seed=1)


def as_envpool(options):
    return drive(envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=1, options=options))


def parallel(options):
    pool = ParallelVectorEnv([MeadowEnv] * 3, **options)
    actions = [{agent: [n % 2, n % 3, 0] for agent in pool.possible_agents} for n in range(6)]
    return drive(pool, actions, seed=4)


@pytest.mark.parametrize("face", [sb3, gymnasium, as_envpool, parallel])
def test_rows_are_those_of_envs_in_process(face):
    ours = list(face({"backend": "ray", "num_cpus": 0.01, "num_processes": 2}))
    theirs = list(face({"backend": "dummy"}))
    assert len(ours) > 5
    for left, right in zip(ours, theirs, strict=True):
        assert same(left, right)


def test_collect_on_the_command_line(tmp_path):
    out = str(tmp_path / "a")
    limits = ["--num-envs", "4", "--wait-num", "2", "--steps", "200", "--seed", "3"]
    backend = ["--backend", "ray", "--num-processes", "2"]
    assert main(["collect", "CartPole-v1", *limits, *backend, "--out", out]) == 0
    check_by_hand(load(out), [partial(gym.make, "CartPole-v1")] * 4, seed=3)
    assert main(["collect", "CartPole-v1", *limits, "--address", "auto"]) == 2


def test_the_program_of_the_page_runs(tmp_path):
    for name, code in programs(ROOT / "docs" / "ray.md"):
        (tmp_path / name).write_text(code)
        run_python(name, cwd=tmp_path)


def test_the_example_shows_the_nodes_and_the_speed():
    address = ray.get_runtime_context().gcs_address
    options = ["--num-envs", "4", "--envs-per-actor", "2", "--num-cpus", "0.01", "--seconds", "0.2"]
    example = ROOT / "examples" / "ray_cluster.py"
    lines = run_python(example, "--address", address, *options, env=os.environ).splitlines()
    assert lines[0].endswith(": 4 envs")
    assert lines[-2] == "0 episodes lost"
    assert "steps a second" in lines[-1]


# The envs are on nodes 0 and 1; node 2 comes and node 0 goes: a step reports each env that is lost.
CLUSTER = """
import time
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

def where(pool):
    ids = [node.node_id for node in nodes]
    return [ids.index(i) for i in pool.apply(lambda _: ray.get_runtime_context().get_node_id())]

options = {"envs_per_actor": 2, "on_error": "restart", "max_restarts": None}
with RayVectorEnv([lambda: CountEnv(length=10**9)] * 8, num_cpus=0.5, **options) as pool:
    before = where(pool)
    assert sorted(before) == [0] * 4 + [1] * 4
    pool.reset()
    nodes.append(cluster.add_node(num_cpus=1, **MEMORY))
    cluster.remove_node(nodes[0])
    reported, start = [], time.monotonic()
    while len(reported) < 4:
        assert time.monotonic() < start + 100
        _, _, _, truncated, info = pool.step([0] * 8)
        ended = [i["env_id"] for i in info if "env_error" in i]
        assert truncated.nonzero()[0].tolist() == ended
        assert all("node" in info[i]["env_error"] for i in ended)
        reported += ended
        if ended:
            pool.reset(ended)
    assert sorted(reported) == [i for i in range(8) if before[i] == 0]
    assert not any(pool.step([0] * 8)[3])
    assert where(pool) == [place or 2 for place in before]
ray.shutdown()
cluster.shutdown()
print("done", flush=True)
"""


def test_a_node_that_goes_and_a_node_that_comes():
    assert run_python("-c", CLUSTER, env=os.environ).split()[-1] == "done"
