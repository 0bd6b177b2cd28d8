"""``envpool-py collect``, in this process and as a command that gets signals."""

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.collector import load
from tests.cli import parts
from tests.cli.parts import COUNT
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT, wait_until

PARTS = "tests.cli.parts"
COLLECT = [sys.executable, "-m", "envpool_py", "collect"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}


def collected(folder, line):
    """What the command wrote, by its arguments in one line."""
    out = folder / str(len(list(folder.iterdir())))
    assert main(["collect", *line.split(), "--out", str(out)]) == 0
    return load(out)


def test_a_seed_is_drawn(tmp_path):
    line = f"{COUNT} --num-envs 2 --episodes 2 --backend dummy"
    first, second = (collected(tmp_path, line).metadata["seed"] for _ in range(2))
    assert first != second


def test_a_policy_that_is_made_of_the_pool_and_the_seed(tmp_path):
    limits = "--num-envs 3 --wait-num 1 --episodes 6 --seed 4"
    for episode in collected(tmp_path, f"CartPole-v1 {limits} --policy {PARTS}:Parity"):
        assert episode.actions.tolist() == [(4 + episode.env_id) % 2] * len(episode)


def test_the_summary_and_the_metadata(tmp_path, cli):
    limits = "--num-envs 2 --episodes 6 --seed 9 --wait-num 2"
    wrappers = [f"{PARTS}:scaled", f"{PARTS}:shifted"]  # the innermost first
    env = f"{COUNT} --env-kwarg length=4 --wrapper {' --wrapper '.join(wrappers)}"
    ended = cli(f"collect {env} {limits} --out {tmp_path}/a")
    assert (ended.status, ended.err) == (0, "")
    table = {name: cells[0] for name, cells in ended.table().items()}
    assert float(table.pop("seconds")) > 0
    assert float(table.pop("steps/s").replace(" ", "")) > 0
    # Rewards of episode k are 100 k + t for t = 1 to 4, times 10 and plus 1.
    error = np.std([104, 4104, 8104] * 2, ddof=1) / 6**0.5
    figures = f"return mean 4104, standard error {error:.4g}, 104 to 8104; length mean 4,"
    figures += " standard error 0, 4 to 4; rows per batch 2.0"
    shown = "; ".join(f"{name} {value}" for name, value in table.items())
    assert shown == f"episodes 6; steps 24; {figures}; seed 9; file {tmp_path}/a"
    found = load(tmp_path / "a").metadata
    assert found.pop("versions")["gymnasium"] == gym.__version__
    names = "env_id", "env_kwargs", "wrappers", "policy", "seed", "num_envs", "episodes", "steps"
    values = COUNT, {"length": "4"}, wrappers, "random", 9, 2, 6, None
    assert found == {**dict(zip(names, values, strict=True)), "complete": True}


def test_the_summary_for_other_programs(tmp_path, cli):
    limits = f"--num-envs 2 --episodes 6 --seed 9 --out {tmp_path}/a --json {tmp_path}/a.json"
    table = cli(f"collect {COUNT} {limits}").table()
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["env"], found["file"]) == (COUNT, table["file"][0])
    assert found["lengths"] == load(found["file"]).lengths.tolist() == [4] * 6
    assert f"mean {np.mean(found['returns']):g}, " in table["return"][0]
    rest = {name: found[name] for name in ("episodes", "steps", "seed", "restarts", "complete")}
    assert rest == {"episodes": 6, "steps": 24, "seed": 9, "restarts": 0, "complete": True}
    ended = cli(f"collect {PARTS}:raising --num-envs 2 --steps 900 --seed 3 --json -")
    assert (ended.status, json.loads(ended.out)["complete"]) == (1, False)


@pytest.mark.parametrize("backend", ["dummy", "thread", "shmem"])
def test_options_of_processes_are_not_ignored(backend, cli):
    options = f"--num-envs 1 --steps 5 --backend {backend}"
    ended = cli(f"collect CartPole-v1 {options} --context spawn")
    has_processes = backend == "shmem"
    assert ended.status == (0 if has_processes else 2)
    text = f"--context: the {backend} backend starts no worker processes"
    assert (text in ended.err) != has_processes
    assert cli(f"collect CartPole-v1 {options}").status == 0


def test_a_bar_on_a_terminal(monkeypatch, cli):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any output for a terminal
    ended = cli("collect CartPole-v1 --num-envs 2 --steps 200")
    assert ended.status == 0
    assert "steps/s" in ended.err
    assert " %" in ended.err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"{PARTS}:raising", "step raised ValueError: boom"),
        (f"{COUNT} --policy {PARTS}:stumbles", "in stumbles"),  # the traceback shows where
    ],
)
def test_whole_episodes_are_kept(line, complaint, tmp_path, cli):
    out = tmp_path / "a"
    ended = cli(f"collect {line} --num-envs 2 --wait-num 2 --steps 900 --seed 3 --out {out}")
    assert ended.status == 1
    assert complaint in ended.err
    assert "collect.py" not in ended.err, "frames of the package"
    last = f"envpool-py: ended by an error; kept 4 whole episodes in {out}"
    assert ended.err.splitlines()[-1] == last
    assert ended.table()["episodes"] == ["4"]
    found = load(out)
    assert found.lengths.tolist() == [4, 4, 4, 4]
    assert found.metadata["complete"] is False
    check_by_hand(found, [parts.count_env] * 2, seed=3)


def test_an_interrupt_of_a_policy_keeps_what_has_just_ended(tmp_path, cli):
    env = f"{COUNT} --env-kwarg length=4 --backend dummy --num-envs 3 --wait-num 2 --steps 90"
    assert cli(f"collect {env} --policy {PARTS}:interrupts --out {tmp_path}/a").status == 130
    assert load(tmp_path / "a").lengths.tolist() == [4, 4, 4]  # the last in that batch


def test_an_interrupt_before_any_episode_leaves_room_for_the_next_run(tmp_path, cli):
    line = f"collect {COUNT} --num-envs 2 --steps 90 --out {tmp_path}/a"
    ended = cli(f"{line} --policy {PARTS}:Interrupts --env-kwarg length=50")
    text = f"envpool-py: interrupted; kept 0 whole episodes in {tmp_path}/a\n"
    assert (ended.status, ended.err) == (130, text)
    assert cli(line).status == 0
    number = len(load(tmp_path / "a"))
    assert f"argument --out: {tmp_path}/a: holds episodes; remove the folder" in cli(line).err
    assert len(load(tmp_path / "a")) == number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_envs_hang(number, tmp_path, monkeypatch):
    """Both envs hang in their third episode, after four have been written."""
    out, marks = tmp_path / "a", tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setenv("ENVPOOL_PY_MARKS", str(marks))
    limits = "--num-envs 2 --num-processes 2 --wait-num 1 --steps 1000000 --seed 3"
    program = [*COLLECT, f"{PARTS}:stuck", *limits.split(), "--out", out]
    with subprocess.Popen(program, start_new_session=True, **PIPES) as process:
        hang = wait_until(lambda: len(list(marks.iterdir())) == 2, 100)
        os.killpg(process.pid, number if hang else signal.SIGKILL)  # as a terminal does
        stdout, stderr = process.communicate(timeout=120)
    assert hang
    assert sorted(tmp_path.iterdir()) == [out, marks]
    found = load(out)
    assert found.env_ids.tolist() == [0, 0, 1, 1]
    check_by_hand(found, [parts.count_env] * 2, seed=3)
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert stderr.splitlines()[-1] == f"envpool-py: interrupted; kept 4 whole episodes in {out}"
        assert "episodes" in stdout
        assert found.metadata["complete"] is False


def test_a_disk_that_is_full(tmp_path):
    out = tmp_path / "a"
    program = [*COLLECT, *f"CartPole-v1 --steps 20000 --backend dummy --out {out}".split()]
    room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (40_000, 40_000))
    done = subprocess.run(program, preexec_fn=room, timeout=170, check=False, **PIPES)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    kept = len(load(out))
    assert kept > 0
    last = f"envpool-py: ended by an error; kept {kept} whole episodes in {out}"
    assert done.stderr.splitlines()[-1] == last
