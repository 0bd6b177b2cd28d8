"""The programs of ``examples`` that measure: one short run of each."""

import json
import struct
from xml.etree import ElementTree as ET

from envpool_py.cli.tables import separated
from tests.support.helpers import ROOT, run_python

FOLDER = ROOT / "examples" / "benchmark"
BUILD = ROOT / "docs" / "build"
SVG = "{http://www.w3.org/2000/svg}"

# One process for all, as to import the libraries takes longer than to measure.
EVERY_KIND = """
import one

for name in ("dict", "info", "image-84", "spin-10", "sleep", "spread"):
    ours = ["parallel-shmem", "agents-shmem", "turns-shmem"] if name == "spread" else ["shmem"]
    for contestant in ["bare", *ours]:
        (row,) = one.measure(contestant, (name, 2, None), 2, [0.0], 0.01)
        assert row["steps"] >= 1 and row["memory_bytes"] > 0 and row["cpu_seconds"] >= 0
"""


def test_every_kind_of_env():
    run_python("-c", EVERY_KIND, cwd=FOLDER)


def test_one_command_makes_tables(tmp_path):
    files = {name: tmp_path / f"a.{name}" for name in ("json", "markdown")}
    outputs = ["--json", files["json"], "--markdown", files["markdown"]]
    pools = ["shmem", "ceiling-apart", "gymnasium-sync"]
    backends = [word for pool in pools for word in ("--backend", pool)]
    short = ["--seconds", 0.02, "--repeats", 1, "--think", 0, "--think", 50]
    run = FOLDER / "run.py"
    text = run_python(run, "--workload", "cartpole-x8", *backends, *short, *outputs, cwd=tmp_path)
    assert text.strip() == files["markdown"].read_text().strip()
    for words in ("computes 50 µs\n", "### cartpole-x8", *(f"| {pool} |" for pool in pools)):
        assert words in text
    rows = json.loads(files["json"].read_text())
    rates = {(row["contestant"], row["think"]): row["steps"] / row["seconds"] for row in rows}
    assert {name for name, _ in rates} == {"bare", *pools}
    shown = [f"| {separated(rate)} " for (name, _), rate in rates.items() if name != "bare"]
    assert all(each in text for each in shown)
    assert run_python(run, "--read", files["json"], cwd=tmp_path) == text


def test_two_programs_are_measured_in_turns(tmp_path):
    """So are the programs that need torch, in tests/sb3/test_algorithms.py."""
    few = ["--num-envs", 2, "--seconds", 0.05, "--rounds", 2, "--json", tmp_path / "a.json"]
    assert "ratio" in run_python(FOLDER / "pipes.py", *few, cwd=tmp_path)
    rows = json.loads((tmp_path / "a.json").read_text())
    assert len(rows) >= 2
    assert all(row.keys() == {"pipes", "ours"} and min(row.values()) > 0 for row in rows)


# The pools of the three other libraries, without torch; one round, and no training. All in one
# process; test_one_command_makes_tables asks others.
OVER_CORES = """
import json, multiprocessing, sys

sys.path += ["../../examples/benchmark"]
import cores, one

def ask(words, limit):
    told = json.loads(words[-1])
    return one.versions() if told is None else one.measure(**told)

cores.ask = ask
multiprocessing.set_start_method("fork")
pools = {**cores.PEERS, "ours": cores.Pool("shmem", 1, free=True)}
policy = {"policy": (cores.PER_BATCH, cores.PER_ROW), "num_envs": 2}
rollouts = {"pools": {"ours": cores.Pool("rollouts")}, "num_envs": 2}
small = {"cartpole": cores.CASES["cartpole"]._replace(pools=pools, **policy)}
cores.CASES = {**small, "uneven": cores.CASES["uneven"]._replace(**rollouts)}
cores.PPO, cores.COUNTS = {}, (1,)
found = cores.measured(None, seconds=0.02, limit=cores.LONGEST)
assert found.keys() == {"minutes"}  # no time was left
found = cores.measured(None, seconds=0.02, rounds=1)
rates = {*found} - {"minutes"}
assert {f"cartpole.{name}.1" for name in pools} | {"uneven.ours.1"} == rates
assert min(found.values()) > 0
cores.Path(sys.argv[1]).write_text(cores.drawn(found))
"""


def test_figures_over_the_number_of_cores(tmp_path):
    picture = tmp_path / "a.svg"
    text = run_python("-c", OVER_CORES, picture, cwd=BUILD)
    assert "cartpole.ours.1: no time is left in round 1" in text
    assert " rounds in " in text
    texts = [each.text for each in ET.fromstring(picture.read_text()).iter(f"{SVG}text")]
    assert {"CartPole x 64", "Rollouts, 64 uneven envs", "1"} <= {*texts}


def test_agents_in_a_loop_and_in_pools(tmp_path):
    path = tmp_path / "a.json"
    few = ["--num-envs", 2, "--rounds", 1, "--json", path]
    run_python(FOLDER / "agents.py", *few, cwd=tmp_path)
    rows = json.loads(path.read_text())
    assert rows.keys() == {"loop", "dummy", "two"}
    assert min(rows.values()) > 0


def test_envs_that_wait(tmp_path):
    path = tmp_path / "a.json"
    short = ["--num-envs", 16, "--pool", "ThreadVectorEnv", "--seconds", 0.1, "--repeats", 1]
    text = run_python(FOLDER / "waiting.py", *short, "--json", path, cwd=tmp_path)
    (row,) = json.loads(path.read_text())
    assert "| ideal | 222 | 290 | 320 |" in text
    # A whole batch takes 25 to 75 ms, so no rate is greater.
    assert 0 < row["rates"]["16"] < 16 / 0.025


def test_what_a_worker_process_costs(tmp_path):
    path = tmp_path / "a.json"
    few = ["--case", "cartpole-x8", "--pool", "ours", "--pool", "gymnasium", "--rounds", 1]
    methods = ["--method", "fork", "--method", "forkserver", "--torch", "no"]
    text = run_python(FOLDER / "start.py", *few, *methods, "--json", path, cwd=tmp_path)
    rows = json.loads(path.read_text())
    assert [row["pool"] for row in rows] == ["ours", "gymnasium"] * 2
    for row in rows:
        assert f"| cartpole-x8 x 8, {row['method']} |" in text
        assert min(row["start"], row["close"]) > 0
        # Of an interpreter that has imported NumPy; a socket and the end of the process at least.
        assert 1 < row["memory"] < 1000
        assert 1 < row["descriptors"] < 10


def test_every_picture_is_made_and_listed(tmp_path):
    short = ["--seconds", 0.02]
    run_python(BUILD / "pictures.py", "all", "--out", tmp_path, *short, cwd=tmp_path)
    folder = ROOT / "docs" / "pictures"
    page = (ROOT / "CONTRIBUTING.md").read_text()
    pictures = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert {path.name for path in folder.glob("*.png")} == set(pictures)
    for name, image in pictures.items():
        assert f"`{name}`" in page
        assert image.startswith(b"\x89PNG")
        assert len(image) < 150_000
        width, height = struct.unpack(">II", image[16:24])
        assert (width, height >= 240) == (1200 if name == "card.png" else 960, True)


def test_the_animation_is_small_and_stands_still_if_motion_is_reduced(tmp_path):
    path = tmp_path / "a.svg"
    run_python(BUILD / "animation.py", "--out", path, "--seconds", 0.1, cwd=tmp_path)
    for text in (path.read_text(), (ROOT / "docs" / "pictures" / "animation.svg").read_text()):
        assert len(text) < 1_000_000
        moving = text.partition("prefers-reduced-motion: no-preference")
        assert "animation:" in moving[2]
        assert "animation:" not in moving[0]
        assert "prefers-color-scheme: dark" in text
        picture = ET.fromstring(text)
        texts = [each.text for each in picture.iter(f"{SVG}text")]
        assert {"policy", *(f"env {i}" for i in range(8))} <= set(texts)
        assert "SIGSEGV" in texts
