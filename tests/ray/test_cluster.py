"""Three nodes on this machine: where actors are, a node that goes, a node that comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from tests.support.helpers import ROOT

PROGRAM = """
import collections, time
import ray
from ray.cluster_utils import Cluster
from envpool_py import RayVectorEnv
from tests.support.envs import CountEnv

cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20},
)
node = lambda: cluster.add_node(num_cpus=4, object_store_memory=80 * 2**20)
nodes = [node() for _ in range(3)]
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
cluster.wait_for_nodes()
names = {n.node_id: k for k, n in enumerate(nodes)}

def where(pool):
    return [names[i] for i in pool.apply(lambda _: ray.get_runtime_context().get_node_id())]

options = {"envs_per_actor": 2, "on_error": "restart", "max_restarts": None}
with RayVectorEnv([CountEnv] * 12, num_cpus=1, **options) as pool:
    print("spread", sorted(collections.Counter(where(pool)).items()), flush=True)
    obs = pool.reset()[0]
    steps = pool.step([0] * 12)[0][:, 2].tolist()
    gone = where(pool)
    cluster.remove_node(nodes[0])
    lost = [i for i, place in enumerate(gone) if place == 0]
    reported, rows = [], 0
    start = time.monotonic()
    while len(reported) < len(lost):
        assert time.monotonic() < start + 100
        _, _, _, truncated, info = pool.step([0] * 12)
        rows += 12
        ended = [i["env_id"] for i in info if "env_error" in i]
        assert truncated.nonzero()[0].tolist() == ended
        reported += ended
        if ended:
            assert all("node" in info[i]["env_error"] for i in ended)
            pool.reset(ended)
    print("reported", sorted(reported) == sorted(lost), flush=True)
    assert not any(pool.step([0] * 12)[3])
    print("elsewhere", 0 not in where(pool), flush=True)
    fresh = node()
    names[fresh.node_id] = 3
    left = where(pool).count(1)
    cluster.remove_node(nodes[1])
    while left:
        assert time.monotonic() < start + 200
        _, _, _, _, info = pool.step([0] * 12)
        ended = [i["env_id"] for i in info if "env_error" in i]
        left -= len(ended)
        if ended:
            pool.reset(ended)
    print("used", 3 in where(pool), flush=True)
    assert not any(pool.step([0] * 12)[3])
ray.shutdown()
cluster.shutdown()
print("done", flush=True)
"""


def test_a_node_that_goes_and_a_node_that_comes() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line for line in run.stdout.splitlines() if line.split()[0] in WANTED]
    assert lines == [f"{key} {value}".strip() for key, value in WANTED.items()]


WANTED = {
    "spread": str(sorted(Counter([0, 1, 2] * 4).items())),
    "reported": "True",
    "elsewhere": "True",
    "used": "True",
    "done": "",
}
