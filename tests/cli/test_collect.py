"""``envpool-py collect``, in this process and as a command that gets signals."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.collector import load
from tests.cli import parts
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"


def collect(*args: Any) -> int:
    return main(["collect", *map(str, args)])


def make(env_id: str, **kwargs: Any) -> gym.Env:
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "envpool_py.cli", "collect", *map(str, args)]


def collected(folder: Path, line: str) -> Any:
    """What the command wrote, by its arguments in one line."""
    out = folder / "a.npz"
    assert collect(*line.split(), "--out", out, "--force") == 0
    return load(out)


@pytest.mark.parametrize("limit", ["--steps 250", "--episodes 13"])
def test_one_seed_gives_one_file_whatever_the_timing(tmp_path: Path, limit: str) -> None:
    """On every backend, and its episodes are those of envs stepped by hand."""
    files = set()
    for way in (
        "--backend dummy",
        "--backend dummy --wait-num 1",
        "--backend subproc --wait-num 3",
        "--backend shmem --num-processes 1 --wait-num 4",
        "--backend shmem --num-processes 4 --wait-num 1",
        "--backend shmem --num-processes 3 --timeout 0.001",
    ):
        found = collected(tmp_path, f"CartPole-v1 --num-envs 4 {limit} --seed 1 {way}")
        files.add((tmp_path / "a.npz").read_bytes())
    assert len(files) == 1
    assert found.num_steps >= 250 or len(found) == 13
    assert set(found.env_ids.tolist()) == {0, 1, 2, 3}
    assert found.observation_space == gym.make("CartPole-v1").observation_space
    check_by_hand(found, [partial(make, "CartPole-v1")] * 4, seed=1)


@pytest.mark.parametrize("flag", ["--balanced", "--no-balanced"])
def test_just_as_many_episodes_as_asked_for(tmp_path: Path, flag: str) -> None:
    found = collected(tmp_path, f"CartPole-v1 --num-envs 3 --episodes 7 {flag}")
    assert len(found) == 7
    if flag == "--balanced":
        assert np.bincount(found.env_ids).tolist() == [3, 2, 2]
    assert found.metadata["complete"] is True
    check_by_hand(found, [partial(make, "CartPole-v1")] * 3, seed=found.metadata["seed"])
    fewer = collected(tmp_path, f"{COUNT} --num-envs 5 --episodes 2 {flag}")
    assert len(fewer.env_ids) == 2
    assert fewer.metadata["seed"] != found.metadata["seed"]  # which is drawn


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        *(
            ("EnvpoolPyTests/Space-v0", {"name": name, "length": 3})
            for name in ("dict", "tuple", "nested", "discrete", "text", "box-uint8")
        ),
        ("ALE/Pong-v5", {"max_episode_steps": 12, "obs_type": "grayscale"}),
        ("HalfCheetah-v5", {"max_episode_steps": 20}),
    ],
)
def test_envs_of_every_kind(tmp_path: Path, env_id: str, kwargs: dict[str, Any]) -> None:
    options = " ".join(f"--env-kwarg {key}={value}" for key, value in kwargs.items())
    limits = "--num-envs 2 --wait-num 1 --episodes 4 --seed 3"
    if "length" in kwargs:
        limits += " --compress"
    found = collected(tmp_path, f"{env_id} {limits} {options}")
    check_by_hand(found, [partial(make, env_id, **kwargs)] * 2, seed=3)
    # Pong: 52 frames of 33 600 bytes; images are compressed.
    assert (tmp_path / "a.npz").stat().st_size < 65_000


def test_wrappers_from_the_inside_out(tmp_path: Path) -> None:
    both = "--wrapper tests.cli.parts:scaled --wrapper tests.cli.parts:shifted"
    found = collected(tmp_path, f"CartPole-v1 --num-envs 2 --episodes 2 {both}")
    assert set(found.rewards.tolist()) == {11.0}  # 10 * 1 + 1, and not 10 * (1 + 1)


@pytest.mark.parametrize("name", ["alternate", "Parity"])
def test_policies(tmp_path: Path, name: str) -> None:
    common = "--num-envs 3 --wait-num 1 --episodes 6 --seed 4"
    for episode in collected(tmp_path, f"CartPole-v1 {common} --policy tests.cli.parts:{name}"):
        expected = [(4 + episode.env_id) % 2] * len(episode)
        if name == "alternate":
            expected = (episode.observations[:-1, 2] > 0).astype(int).tolist()
        assert episode.actions.tolist() == expected


def test_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert collect(COUNT, "--num-envs", 2, "--episodes", 6, "--seed", 9, "--wait-num", 2) == 0
    shown = capsys.readouterr()
    rows = [line.strip("│ ").split("│") for line in shown.out.splitlines() if "│" in line]
    table = {key.strip(): value.strip() for key, value in rows}
    assert table["episodes"] == "6"
    assert table["steps"] == "24"
    # Rewards of episode k are 100 k + t for t = 1 to 4: 10, 410 and 810 in all.
    assert table["return"] == "mean 410, 10 to 810"
    assert table["length"] == "mean 4, 4 to 4"
    assert table["seed"] == "9"
    assert table["rows per batch"] == "2.0"
    assert float(table["seconds"]) > 0
    assert float(table["steps/s"]) > 0
    assert shown.err == ""


def test_the_metadata(tmp_path: Path) -> None:
    found = collected(tmp_path, f"{COUNT} --num-envs 2 --episodes 2 --env-kwarg length=2").metadata
    assert found["env_id"] == COUNT
    assert found["env_kwargs"] == {"length": "2"}
    assert found["policy"] == "random"
    assert (found["num_envs"], found["episodes"], found["steps"]) == (2, 2, None)
    assert found["versions"]["gymnasium"] == gym.__version__


def test_a_bar_on_a_terminal() -> None:
    reader, writer = pty.openpty()
    with subprocess.Popen(
        command("CartPole-v1", "--num-envs", 2, "--steps", 200),
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=writer,
    ) as process:
        os.close(writer)
        shown = b""
        try:
            while part := os.read(reader, 4096):
                shown += part
        except OSError:  # the other end is closed: how a terminal says that it is over
            pass
        finally:
            os.close(reader)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "steps/s" in shown.decode()
    assert " %" in shown.decode()
    assert "rows per batch" in out.decode()


@pytest.mark.parametrize("args", [[], ["--help"], ["collect", "--help"], ["--version"]])
def test_help(args: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    assert "envpool-py" in capsys.readouterr().out


def test_a_directory_that_takes_no_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere
    assert collect(COUNT, "--steps", 5, "--out", tmp_path / "a.npz") == 2
    assert f"--out: {tmp_path}/a.npz: Permission denied" in capsys.readouterr().err


# -------------------------------------------------------------------------- ends half way


NOTED = "interrupted; writing what there is"


@pytest.mark.parametrize(
    ("option", "name", "status", "complaints"),
    [
        ("--wrapper", "Raising", 1, ["step raised ValueError: boom", "ended by an error"]),
        # The traceback shows where.
        ("--policy", "stumbles", 1, ["in stumbles", "LookupError: stumbled", "ended by an error"]),
        # Batches: reset, four steps (the policy is called before each), reset, four steps.
        ("--policy", "Interrupts", 130, [NOTED, "interrupted"]),
    ],
)
def test_whole_episodes_are_kept(
    tmp_path: Path,
    option: str,
    name: str,
    status: int,
    complaints: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "a.npz"
    limits = ("--num-envs", 2, "--wait-num", 2, "--steps", 900, "--seed", 3)
    assert collect(COUNT, *limits, option, f"tests.cli.parts:{name}", "--out", out) == status
    shown = capsys.readouterr()
    assert all(text in shown.err for text in complaints)
    assert shown.err.endswith(f"envpool-py: {complaints[-1]}; kept 4 whole episodes in {out}\n")
    if status == 130:
        assert shown.err.count("\n") == 2
    assert "episodes       │ 4" in shown.out
    found = load(out)
    assert found.lengths.tolist() == [4, 4, 4, 4]
    assert found.metadata["complete"] is False
    check_by_hand(found, [parts.count_env] * 2, seed=3)


def test_an_interrupt_before_any_episode_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    out.write_text("old")
    policy = ("--policy", "tests.cli.parts:Interrupts", "--env-kwarg", "length=50")
    limits = ("--num-envs", 2, "--steps", 900)
    assert collect(COUNT, *limits, *policy, "--out", out, "--force") == 130
    assert capsys.readouterr().err == "envpool-py: interrupted; nothing is written\n"
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_interrupt_leaves_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "a.npz"
    monkeypatch.setattr("envpool_py.collector.file._pack", interrupted)
    common = ("--num-envs", 2, "--wait-num", 2, "--steps", 900, "--out", out)
    assert collect(COUNT, *common, "--policy", "tests.cli.parts:Interrupts") == 130
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown == f"envpool-py: interrupted; kept 4 whole episodes in {out}.partial"
    assert len(load(out)) == 4


def test_an_unfinished_run_is_kept_until_another_one_begins(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    left = tmp_path / "a.npz.partial"
    collect(COUNT, "--num-envs", 1, "--episodes", 2, "--out", tmp_path / "left")
    (tmp_path / "left").rename(left)
    for wrong in (
        "CartPol-v1",
        f"{COUNT} --env-kwarg size=3",
        f"{COUNT} --policy tests.cli.parts:Unmakeable",
        "EnvpoolPyTests/Space-v0 --env-kwarg name=graph",
        COUNT,  # without --force
    ):
        force = [] if wrong == COUNT else ["--force"]
        assert collect(*wrong.split(), "--episodes", 1, "--out", out, *force) == 2, wrong
        assert len(load(left)) == 2
    assert collect(COUNT, "--episodes", 1, "--out", out, "--force") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@contextlib.contextmanager
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command whose two envs hang in their third episode, after four have been written."""
    marks = tmp_path / "marks"
    marks.mkdir()
    limits = ("--num-envs", 2, "--wait-num", 1, "--steps", 10**6, "--seed", 3)
    stuck = ("--wrapper", "tests.cli.parts:Stuck", "--num-processes", 2)
    with subprocess.Popen(
        command(COUNT, *limits, *stuck, "--out", tmp_path / "a.npz"),
        cwd=ROOT,
        env={**os.environ, "ENVPOOL_PY_MARKS": str(marks)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert wait_until(lambda: len(list(marks.iterdir())) == 2, 30)
            yield process
        finally:
            process.kill()
            process.communicate(timeout=120)


def test_ctrl_c_while_envs_hang(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    with hanging(tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == f"envpool-py: interrupted; kept 4 whole episodes in {out}"
    assert "episodes" in stdout
    found = load(out)
    assert found.metadata["complete"] is False
    assert found.env_ids.tolist() == [0, 0, 1, 1]
    check_by_hand(found, [parts.count_env] * 2, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "marks"]


def test_a_killed_command_leaves_its_whole_episodes(tmp_path: Path) -> None:
    with hanging(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz.partial", "marks"]
    found = load(tmp_path / "a.npz")
    assert found.env_ids.tolist() == [0, 0, 1, 1]
    check_by_hand(found, [parts.count_env] * 2, seed=3)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    out = tmp_path / "a.npz"
    limits = ("--num-envs", 2, "--steps", 20_000, "--backend", "dummy")
    done = subprocess.run(
        command("CartPole-v1", *limits, "--out", out),
        cwd=ROOT,
        preexec_fn=little_room,
        capture_output=True,
        timeout=170,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "ended by an error" in done.stderr
    kept = len(load(out))
    assert kept > 0
    assert f"kept {kept} whole episodes in {out}.partial" in done.stderr
    check_by_hand(load(out), [partial(make, "CartPole-v1")] * 2, load(out).metadata["seed"])
