"""``envpool-py collect``, in this process and as a command that gets signals."""

import contextlib
import os
import pty
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


def make(env_id, **kwargs):
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def collected(folder, line):
    """What the command wrote, by its arguments in one line."""
    out = folder / "a.npz"
    assert main(["collect", *line.split(), "--out", str(out), "--force"]) == 0
    return load(out)


@contextlib.contextmanager
def started(line, **options):
    """The command in a process of its own, which has ended afterwards."""
    program = [sys.executable, "-m", "envpool_py.cli", "collect", *line.split()]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    options["env"] = {**os.environ, **options.get("env", {})}
    with subprocess.Popen(program, cwd=ROOT, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=120)


def test_one_seed_gives_one_file_whatever_the_timing(tmp_path):
    """On every backend, and its episodes are those of envs stepped by hand."""
    files = set()
    for way in (
        "--backend dummy --wait-num 1",
        "--backend subproc --wait-num 3",
        "--backend shmem --num-processes 4 --wait-num 4",
        "--backend shmem --num-processes 3 --timeout 0.001",
    ):
        found = collected(tmp_path, f"CartPole-v1 --num-envs 4 --steps 250 --seed 1 {way}")
        files.add((tmp_path / "a.npz").read_bytes())
    assert len(files) == 1
    assert found.num_steps >= 250
    assert set(found.env_ids.tolist()) == {0, 1, 2, 3}
    assert found.observation_space == gym.make("CartPole-v1").observation_space
    check_by_hand(found, [partial(make, "CartPole-v1")] * 4, seed=1)


@pytest.mark.parametrize("flag", ["--balanced", "--no-balanced"])
def test_just_as_many_episodes_as_asked_for(tmp_path, flag):
    found = collected(tmp_path, f"CartPole-v1 --num-envs 3 --episodes 7 {flag}")
    assert len(found) == 7
    if flag == "--balanced":
        assert np.bincount(found.env_ids).tolist() == [3, 2, 2]
    check_by_hand(found, [partial(make, "CartPole-v1")] * 3, seed=found.metadata["seed"])
    fewer = collected(tmp_path, f"{COUNT} --num-envs 5 --episodes 2 {flag}")
    assert len(fewer.env_ids) == 2
    assert fewer.metadata["seed"] != found.metadata["seed"]  # which is drawn


@pytest.mark.parametrize(
    ("env_id", "kwargs", "options"),
    [
        ("EnvpoolPyTests/Space-v0", {"name": "dict", "length": 3}, "--compress"),
        ("EnvpoolPyTests/Space-v0", {"name": "box-uint8", "length": 3}, "--no-compress"),
        ("ALE/Pong-v5", {"max_episode_steps": 12, "obs_type": "grayscale"}, ""),
        ("HalfCheetah-v5", {"max_episode_steps": 20}, ""),
    ],
)
def test_envs_of_every_kind(tmp_path, env_id, kwargs, options):
    given = " ".join(f"--env-kwarg {key}={value}" for key, value in kwargs.items())
    limits = "--num-envs 2 --wait-num 1 --episodes 4 --seed 3"
    found = collected(tmp_path, f"{env_id} {limits} {given} {options}")
    check_by_hand(found, [partial(make, env_id, **kwargs)] * 2, seed=3)
    # Pong: 52 frames of 33 600 bytes; images are compressed.
    assert (tmp_path / "a.npz").stat().st_size < 65_000


def test_wrappers_from_the_inside_out(tmp_path):
    both = f"--wrapper {PARTS}:scaled --wrapper {PARTS}:shifted"
    found = collected(tmp_path, f"CartPole-v1 --num-envs 2 --episodes 2 {both}")
    assert set(found.rewards.tolist()) == {11.0}  # 10 * 1 + 1, and not 10 * (1 + 1)


@pytest.mark.parametrize("name", ["alternate", "Parity"])
def test_policies(tmp_path, name):
    common = "--num-envs 3 --wait-num 1 --episodes 6 --seed 4"
    for episode in collected(tmp_path, f"CartPole-v1 {common} --policy {PARTS}:{name}"):
        expected = [(4 + episode.env_id) % 2] * len(episode)
        if name == "alternate":
            expected = (episode.observations[:-1, 2] > 0).astype(int).tolist()
        assert episode.actions.tolist() == expected


def test_the_summary_and_the_metadata(tmp_path, cli):
    limits = "--num-envs 2 --episodes 6 --seed 9 --wait-num 2"
    ended = cli(f"collect {COUNT} --env-kwarg length=4 {limits} --out {tmp_path}/a.npz")
    assert (ended.status, ended.err) == (0, "")
    table = {name: cells[0] for name, cells in ended.table().items()}
    assert float(table.pop("seconds")) > 0
    assert float(table.pop("steps/s")) > 0
    names = "episodes", "steps", "return", "length", "rows per batch", "seed", "file"
    # Rewards of episode k are 100 k + t for t = 1 to 4: 10, 410 and 810 in all.
    values = "6", "24", "mean 410, 10 to 810", "mean 4, 4 to 4", "2.0", "9", f"{tmp_path}/a.npz"
    assert table == dict(zip(names, values, strict=True))
    found = load(tmp_path / "a.npz").metadata
    assert found.pop("versions")["gymnasium"] == gym.__version__
    names = "env_id", "env_kwargs", "wrappers", "policy", "seed", "num_envs", "episodes", "steps"
    values = COUNT, {"length": "4"}, [], "random", 9, 2, 6, None
    ended_well = {"balanced": True, "complete": True}
    assert found == dict(zip(names, values, strict=True)) | ended_well


def test_a_bar_on_a_terminal():
    reader, writer = pty.openpty()
    terminal = {"TERM": "xterm", "COLUMNS": "120"}
    with started("CartPole-v1 --num-envs 2 --steps 200", stderr=writer, env=terminal) as process:
        os.close(writer)
        shown = b""
        # The other end is closed: how a terminal says that it is over.
        with contextlib.suppress(OSError):
            while part := os.read(reader, 4096):
                shown += part
        os.close(reader)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "steps/s" in shown.decode()
    assert " %" in shown.decode()
    assert "rows per batch" in out


# -------------------------------------------------------------------------- ends half way


@pytest.mark.parametrize(
    ("line", "status", "complaints"),
    [
        (f"{PARTS}:raising", 1, ["step raised ValueError: boom", "ended by an error"]),
        # The traceback shows where.
        (
            f"{COUNT} --policy {PARTS}:stumbles",
            1,
            ["in stumbles", "LookupError: stumbled", "ended by an error"],
        ),
        # Batches: reset, four steps (the policy is called before each), reset, four steps.
        (f"{COUNT} --policy {PARTS}:Interrupts", 130, ["interrupted"]),
    ],
)
def test_whole_episodes_are_kept(line, status, complaints, tmp_path, cli):
    out = tmp_path / "a.npz"
    ended = cli(f"collect {line} --num-envs 2 --wait-num 2 --steps 900 --seed 3 --out {out}")
    assert ended.status == status
    assert all(text in ended.err for text in complaints)
    assert ended.err.splitlines()[-2:] == [
        f"envpool-py: {complaints[-1]}; writing what there is",
        f"envpool-py: {complaints[-1]}; kept 4 whole episodes in {out}",
    ]
    assert status == 1 or ended.err.count("\n") == 2
    assert ended.table()["episodes"] == ["4"]
    found = load(out)
    assert found.lengths.tolist() == [4, 4, 4, 4]
    assert found.metadata["complete"] is False
    check_by_hand(found, [parts.count_env] * 2, seed=3)


def test_an_interrupt_before_any_episode_leaves_what_was_there(tmp_path, cli):
    out = tmp_path / "a.npz"
    out.write_text("old")
    policy = f"--policy {PARTS}:Interrupts --env-kwarg length=50"
    ended = cli(f"collect {COUNT} --num-envs 2 --steps 900 {policy} --out {out} --force")
    assert ended.status == 130
    assert ended.err == "envpool-py: interrupted; nothing is written\n"
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_interrupt_leaves_the_folder(tmp_path, cli, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    out = tmp_path / "a.npz"
    monkeypatch.setattr("envpool_py.collector.file._pack", interrupted)
    limits = f"--num-envs 2 --wait-num 2 --steps 900 --out {out}"
    ended = cli(f"collect {COUNT} {limits} --policy {PARTS}:Interrupts")
    assert ended.status == 130
    last = f"envpool-py: interrupted; kept 4 whole episodes in {out}.partial"
    assert ended.err.splitlines()[-1] == last
    assert len(load(out)) == 4
    assert cli(f"show {out}").table()["episodes"] == ["4"]


def test_an_unfinished_run_is_kept_until_another_one_begins(tmp_path):
    out = tmp_path / "a.npz"
    left = tmp_path / "a.npz.partial"
    begin = ["collect", "--episodes", "2", "--out"]
    assert main([*begin, str(tmp_path / "left"), COUNT, "--num-envs", "1"]) == 0
    (tmp_path / "left").rename(left)
    for wrong in (
        "CartPol-v1 --force",
        f"{COUNT} --env-kwarg size=3 --force",
        f"{COUNT} --policy {PARTS}:Unmakeable --force",
        "EnvpoolPyTests/Space-v0 --env-kwarg name=graph --force",
        COUNT,
    ):
        assert main([*begin, str(out), *wrong.split()]) == 2, wrong
        assert len(load(left)) == 2
    assert main([*begin, str(out), COUNT, "--force"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_envs_hang(number, tmp_path):
    """Both envs hang in their third episode, after four have been written."""
    out, marks = tmp_path / "a.npz", tmp_path / "marks"
    marks.mkdir()
    limits = "--num-envs 2 --num-processes 2 --wait-num 1 --steps 1000000 --seed 3"
    line = f"{PARTS}:stuck {limits} --out {out}"
    with started(line, env={"ENVPOOL_PY_MARKS": str(marks)}) as process:
        assert wait_until(lambda: len(list(marks.iterdir())) == 2, 30)
        os.killpg(process.pid, number)  # as a terminal does with SIGINT
        stdout, stderr = process.communicate(timeout=120)
    file = out if number is signal.SIGINT else tmp_path / "a.npz.partial"
    assert sorted(tmp_path.iterdir()) == [file, marks]
    found = load(out)
    assert found.env_ids.tolist() == [0, 0, 1, 1]
    check_by_hand(found, [parts.count_env] * 2, seed=3)
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert stderr.splitlines()[-1] == f"envpool-py: interrupted; kept 4 whole episodes in {out}"
        assert "episodes" in stdout
        assert found.metadata["complete"] is False


def test_a_disk_that_is_full(tmp_path):
    out = tmp_path / "a.npz"
    line = f"CartPole-v1 --num-envs 2 --steps 20000 --backend dummy --out {out}"
    room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (40_000, 40_000))
    with started(line, preexec_fn=room) as process:
        _, stderr = process.communicate(timeout=170)
    assert process.returncode == 1
    assert "File too large" in stderr
    kept = load(out)
    assert len(kept) > 0
    last = f"envpool-py: ended by an error; kept {len(kept)} whole episodes in {out}.partial"
    assert stderr.splitlines()[-1] == last
    check_by_hand(kept, [partial(make, "CartPole-v1")] * 2, kept.metadata["seed"])
