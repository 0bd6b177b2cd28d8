"""``examples/benchmark``: pools make the steps that they say, and the tables show what was done."""

import json
import sys

import pytest

from tests.support.helpers import ROOT, run_python

FOLDER = ROOT / "examples" / "benchmark"

# SuperSuit, AgileRL, PufferLib and TorchRL are measured by hand, where they are installed.
TIANSHOU = ["tianshou"] if sys.version_info >= (3, 11) else []


# Every env counts its steps in a file. Runs where contestants and workloads can be imported.
COUNTING = """
import functools, sys
import numpy as np
from ceiling import Work
from contestants import CONTESTANTS
from tests.bench import counting

for name, contestant in CONTESTANTS.items():
    if contestant.library in sys.argv[2:] and contestant.face == "gym":
        for wait_num in (None, 2) if contestant.partial else (None,):
            def start(env_fns, batches):
                return contestant.start(Work(env_fns, batches, 6, wait_num, 2))
            counting.check(start, sys.argv[1], 6, wait_num)
        print(name)
"""


def test_the_steps_are_made(tmp_path):
    names = {"dummy", "shmem", "shmem-caller", "shmem-caller-views", "shmem-each"}
    names |= {"gymnasium-sync", "gymnasium-async"}
    names |= {f"{library}-{kind}" for library in TIANSHOU for kind in ("dummy", "shmem")}
    libraries = ["envpool_py", "gymnasium", *TIANSHOU]
    counted = run_python("-c", COUNTING, tmp_path / "counts", *libraries, cwd=FOLDER)
    assert names <= set(counted.split())


# The rows of two processes are those of Gymnasium.
ROWS = """
import gymnasium as gym
import numpy as np
import ceiling, workloads

returned, batch_of = [], ceiling.Block.batch
def batch(self, *, copy):
    returned.append(batch_of(self, copy=copy))
    return returned[-1]

ceiling.Block.batch = batch
env_fns, batches = (make("cartpole", "gym", 4) for make in (workloads.env_fns, workloads.batches))
for start in (ceiling.views, ceiling.rows):
    returned.clear()
    pool = gym.vector.SyncVectorEnv(env_fns, autoreset_mode="SameStep")
    pool.reset(seed=0)
    running = start(ceiling.Work(env_fns, batches, 4, None, 2))
    ends = 0
    for actions in batches[:60]:
        assert running.advance() == 4
        *columns, infos = returned[-1]
        *theirs, _ = pool.step(actions)
        for column, expected in zip(columns, theirs, strict=True):
            np.testing.assert_array_equal(column, expected)
        assert [info["env_id"] for info in infos] == [0, 1, 2, 3]
        ends += np.count_nonzero(theirs[2] | theirs[3])
    running.close()
    assert ends > 5
    print(returned[0][0] is returned[1][0])
"""


def test_the_rows_of_the_ceiling():
    assert run_python("-c", ROWS, cwd=FOLDER).split() == ["True", "False"]


# One process for all, as to import the libraries takes longer than to measure.
EVERY_KIND = """
import one

for name in ("dict", "info", "image-84", "spin-10", "sleep", "spread"):
    ours = ["parallel-shmem", "agents-shmem", "turns-shmem"] if name == "spread" else ["shmem"]
    for contestant in ["bare", *ours]:
        (row,) = one.measure(contestant, (name, 2, None), 2, [0.0], 0.01)
        assert row["steps"] >= 1 and row["memory_bytes"] > 0 and row["cpu_seconds"] >= 0
        if (contestant, name) == ("bare", "sleep"):  # only whole episodes can be compared
            assert row["steps"] % 100 == 0
"""


def test_every_kind_of_env():
    run_python("-c", EVERY_KIND, cwd=FOLDER)


def test_one_command_makes_tables(tmp_path):
    files = {name: tmp_path / f"a.{name}" for name in ("json", "markdown")}
    outputs = ["--json", files["json"], "--markdown", files["markdown"]]
    backends = ["--backend", "shmem", "--backend", "ceiling-apart"]
    short = ["--seconds", 0.02, "--repeats", 1, "--think", 0, "--think", 50]
    run = FOLDER / "run.py"
    text = run_python(run, "--workload", "cartpole-x8", *backends, *short, *outputs, cwd=tmp_path)
    assert text.strip() == files["markdown"].read_text().strip()
    for words in ("computes 50 µs\n", "### cartpole-x8", "| shmem |", "| ceiling-apart |", "50 µs"):
        assert words in text
    assert run_python(run, "--read", files["json"], cwd=tmp_path) == text


def made_up(contestant, repeat, steps, **others):
    row = {"workload": "cartpole-x64", "contestant": contestant, "repeat": repeat, "steps": steps}
    row |= {"cores": 2, "machine": "a machine", "versions": {"numpy": "2"}, "batches": 100}
    row |= {"run": "", "think": 0.0, "seconds": 1.0, "step_p50": 0.002, "step_p99": 0.004}
    row |= {"cpu_seconds": 1.0, "caller_seconds": 0.5, "others_seconds": 0.0}
    return {**row, "startup_seconds": 0.25, "memory_bytes": 50_000_000, **others}


def test_figures_by_hand(tmp_path):
    """Each measurement is compared with the bare env of its own repeat and Python."""
    there = {"versions": {"numpy": "1"}}
    rows = [
        *(made_up("bare", k, steps) for k, steps in enumerate((1000, 500, 2000))),
        *(made_up("shmem", k, 1000) for k in range(3)),
        made_up("bare", 0, 9000),  # of another run: no other measurement is compared with it
        made_up("bare", 0, 250, **there),
        made_up("sb3-dummy", 0, 250, **there),
        made_up("shmem", 0, 600, think=0.001, caller_seconds=0.6),
        {**made_up("gymnasium-sync", 0, 0), "steps": None, "error": "failed: ImportError: no"},
    ]
    files = []
    for name, some in (("a.json", rows[:6]), ("b.json", rows[6:])):
        (tmp_path / name).write_text(json.dumps(some))
        files += ["--read", tmp_path / name]
    text = run_python(FOLDER / "run.py", *files)
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.split("\n")}
    assert cells["shmem"][:8] == [
        *("1.00 k (1.00 k to 1.00 k)", "0.50 (0.25 to 1.00)"),  # of 2000, 1000 and 4000
        *("1.00", "1.00 ms (1.00 ms to 1.00 ms)", "2.00 ms", "4.00 ms", "5.00 ms", "250 ms"),
    ]
    assert cells["shmem"][8:] == ["50.0 MB", "600 |"]
    assert cells["sb3-dummy"][1] == "0.50"
    assert cells["envpool_py"] == ["600 (shmem) |"]  # of the last table: a caller that computes
    assert "| sb3 | 250 (sb3-dummy) |" in text
    assert "gymnasium-sync failed: ImportError: no." in text


def test_ppo_of_all_vec_envs_gives_equal_weights(tmp_path):
    """The script compares them; it fails if they differ."""
    ppo, path = FOLDER / "ppo.py", tmp_path / "a.json"
    few = ["--env", "CartPole-v1", "--threads", 1, "--updates", 1]
    text = run_python(ppo, *few, "--json", path, cwd=tmp_path)
    rows = json.loads(path.read_text())
    assert [len(row["learn"]) for row in rows] == [2] * 4
    assert {row["returns"][-1] > 9 for row in rows} == {True}
    assert "| CartPole-v1, 1 torch thread |" in text
    path.write_text(json.dumps([*rows[:3], {**rows[3], "weights": "others"}]))
    with pytest.raises(AssertionError, match="different weights"):
        run_python(ppo, "--read", path)
