"""``envpool-py collect``, in this process and as a command that gets signals."""

from __future__ import annotations

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
from tests.conftest import ROOT, wait_until
from tests.test_collector import check_by_hand, fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"


def collect(*args: Any) -> int:
    return main(["collect", *map(str, args)])


def make(env_id: str, **kwargs: Any) -> gym.Env:
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "envpool_py.cli", "collect", *map(str, args)]


# ------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("backend", ["dummy", "subproc", "shmem"])
def test_cartpole_equals_hand_stepped_envs(tmp_path: Path, backend: str) -> None:
    out = tmp_path / "a.npz"
    limits = ("--num-envs", 5, "--wait-num", 2, "--steps", 300, "--seed", 3)
    assert collect("CartPole-v1", *limits, "--backend", backend, "--out", out) == 0
    episodes = load(out)
    assert episodes.num_steps >= 300
    assert set(episodes.env_ids.tolist()) == {0, 1, 2, 3, 4}
    assert episodes.observation_space == gym.make("CartPole-v1").observation_space
    check_by_hand(episodes, [partial(make, "CartPole-v1")] * 5, seed=3)


@pytest.mark.parametrize("limit", [("--steps", 250), ("--episodes", 13)])
def test_one_seed_gives_one_file_whatever_the_timing(tmp_path: Path, limit: tuple) -> None:
    files = set()
    ways: list[tuple[Any, ...]] = [
        ("--backend", "dummy"),
        ("--backend", "dummy", "--wait-num", 1),
        ("--backend", "subproc", "--wait-num", 3),
        ("--backend", "shmem", "--num-processes", 1, "--wait-num", 4),
        ("--backend", "shmem", "--num-processes", 4, "--wait-num", 1),
        ("--backend", "shmem", "--num-processes", 3, "--timeout", 0.001),
    ]
    for number, way in enumerate(ways):
        out = tmp_path / f"{number}.npz"
        assert collect("CartPole-v1", "--num-envs", 4, *limit, "--seed", 1, *way, "--out", out) == 0
        files.add(out.read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize("balanced", [True, False])
def test_just_as_many_episodes_as_asked_for(tmp_path: Path, balanced: bool) -> None:
    out = tmp_path / "a.npz"
    flag = "--balanced" if balanced else "--no-balanced"
    assert collect("CartPole-v1", "--num-envs", 3, "--episodes", 7, flag, "--out", out) == 0
    found = load(out)
    assert len(found) == 7
    if balanced:
        assert np.bincount(found.env_ids).tolist() == [3, 2, 2]
    assert found.metadata["complete"] is True
    check_by_hand(found, [partial(make, "CartPole-v1")] * 3, seed=found.metadata["seed"])


@pytest.mark.parametrize("name", ["dict", "tuple", "nested", "discrete", "text", "box-uint8"])
def test_observations_and_actions_of_every_structure(tmp_path: Path, name: str) -> None:
    out = tmp_path / "a.npz"
    env_id = "EnvpoolPyTests/Space-v0"
    kwargs = ("--env-kwarg", f"name={name}", "--env-kwarg", "length=3")
    common = ("--num-envs", 2, "--wait-num", 1, "--episodes", 4, "--seed", 3, *kwargs)
    assert collect(f"tests.cli.parts:{env_id}", *common, "--out", out, "--compress") == 0
    env_fns = [partial(make, env_id, name=name, length=3)] * 2
    check_by_hand(load(out), env_fns, seed=3)


def test_atari_equals_hand_stepped_envs(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    short = ("--env-kwarg", "max_episode_steps=12", "--env-kwarg", "obs_type=grayscale")
    limits = ("--num-envs", 2, "--episodes", 3, "--seed", 5)
    assert collect("ALE/Pong-v5", *limits, *short, "--out", out) == 0
    assert out.stat().st_size < 50_000  # 39 frames of 33 600 bytes: images are compressed
    env_fn = partial(make, "ALE/Pong-v5", max_episode_steps=12, obs_type="grayscale")
    found = load(out)
    assert found.observations.shape == (3 * 13, 210, 160)
    check_by_hand(found, [env_fn] * 2, seed=5)


def test_mujoco_equals_hand_stepped_envs(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    limits = ("--num-envs", 2, "--episodes", 3, "--seed", 5)
    short = ("--env-kwarg", "max_episode_steps=20")
    assert collect("HalfCheetah-v5", *limits, *short, "--out", out) == 0
    env_fn = partial(make, "HalfCheetah-v5", max_episode_steps=20)
    check_by_hand(load(out), [env_fn] * 2, seed=5)


def test_wrappers_from_the_inside_out(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    both = ("--wrapper", "tests.cli.parts:Scaled", "--wrapper", "tests.cli.parts:Shifted")
    assert collect("CartPole-v1", "--num-envs", 2, "--episodes", 2, *both, "--out", out) == 0
    assert set(load(out).rewards.tolist()) == {11.0}  # 10 * 1 + 1, and not 10 * (1 + 1)


@pytest.mark.parametrize("name", ["alternate", "Parity"])
def test_policies(tmp_path: Path, name: str) -> None:
    out = tmp_path / "a.npz"
    policy = ("--policy", f"tests.cli.parts:{name}")
    common = ("--num-envs", 3, "--wait-num", 1, "--episodes", 6, "--seed", 4)
    assert collect("CartPole-v1", *common, *policy, "--out", out) == 0
    for episode in load(out):
        if name == "alternate":
            expected = (episode.observations[:-1, 2] > 0).astype(int).tolist()
        else:
            expected = [(4 + episode.env_id) % 2] * len(episode)
        assert episode.actions.tolist() == expected


def test_the_policy_may_be_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def ones(obs, env_ids):\n    return 0 * env_ids + 1\n")
    args = ("CartPole-v1", "--num-envs", 2, "--episodes", 2, "--policy", "mine:ones")
    run = subprocess.run(
        command(*args, "--out", "a.npz"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=40,
        check=False,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert load(tmp_path / "a.npz").actions.min() == 1


def test_more_envs_than_episodes(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    assert collect(COUNT, "--num-envs", 5, "--episodes", 2, "--out", out) == 0
    assert load(out).env_ids.tolist() == [0, 1]


# ------------------------------------------------------------------------- what is shown


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
    out = tmp_path / "a.npz"
    kwarg = ("--env-kwarg", "length=2")
    assert collect(COUNT, "--num-envs", 2, "--episodes", 2, *kwarg, "--out", out) == 0
    found = load(out).metadata
    assert found["env_id"] == COUNT
    assert found["env_kwargs"] == {"length": "2"}
    assert found["policy"] == "random"
    assert (found["num_envs"], found["episodes"], found["steps"]) == (2, 2, None)
    assert found["versions"]["gymnasium"] == gym.__version__


def test_a_drawn_seed_repeats_the_run(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    common = ("CartPole-v1", "--num-envs", 2, "--episodes", 4)
    assert collect(*common, "--out", first) == 0
    assert collect(*common, "--out", second, "--seed", load(first).metadata["seed"]) == 0
    assert first.read_bytes() == second.read_bytes()


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
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "steps/s" in shown.decode()
    assert " %" in shown.decode()
    assert "rows per batch" in out.decode()


def test_without_rich_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "envpool_py.cli.show", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert collect("CartPole-v1", "--steps", 1) == 2
    assert capsys.readouterr().err == (
        'envpool-py: can\'t import rich; it comes with: pip install "envpool-py[cli]"\n'
    )


@pytest.mark.parametrize("args", [["--help"], ["collect", "--help"], ["--version"]])
def test_help(args: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    assert "envpool-py" in capsys.readouterr().out


# ----------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the following arguments are required: COMMAND; see envpool-py --help"),
        (["collekt"], "argument COMMAND: invalid choice: 'collekt'"),
        (["collect"], "the following arguments are required: ENV_ID"),
        (["collect", "CartPole-v1"], "one of the arguments --steps --episodes is required"),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--episodes", "5"],
            "argument --episodes: not allowed with argument --steps",
        ),
        (["collect", "CartPole-v1", "--steps", "0"], "--steps: must be 1 or more, got 0"),
        (["collect", "CartPole-v1", "--steps", "many"], "--steps: must be an int, got 'many'"),
        (["collect", "CartPole-v1", "--steps", "5", "--seed", "-1"], "--seed: must be 0 or more"),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--seed", str(2**63)],
            "--seed: must be below 2**63 - 8",
        ),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--backend", "cluster"],
            "invalid choice: 'cluster'",
        ),
        (["collect", "CartPole-v1", "--steps", "5", "--timeout", "0"], "must be a positive number"),
        (["collect", "CartPole-v1", "--steps", "5", "--timeout", "nan"], "must be a positive numb"),
        (["collect", "CartPole-v1", "--steps", "5", "--timeout", "x"], "must be a number of sec"),
        (["collect", "CartPole-v1", "--steps", "5", "--num-envs", "0"], "must be 1 or more, got 0"),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--num-envs", "8", "--wait-num", "9"],
            "--wait-num is 9, but there are 8 envs",
        ),
        (
            [
                "collect",
                "CartPole-v1",
                "--steps",
                "5",
                "--backend",
                "dummy",
                "--num-processes",
                "2",
            ],
            "--num-processes: the dummy backend has no processes",
        ),
        (["collect", "CartPol-v1", "--steps", "5"], "'CartPol-v1'; did you mean CartPole-v1"),
        (["collect", "CartPole", "--steps", "5"], "'CartPole'; did you mean CartPole-v"),
        (["collect", "ALE/Pomg-v5", "--steps", "5"], "did you mean ALE/Pong-v5"),
        (["collect", "Qzx/Qzx-v0", "--steps", "5"], "MODULE:ENV_ID imports the module first"),
        (["collect", "no_module:A-v0", "--steps", "5"], "no_module:A-v0: No module named"),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--env-kwarg", "sutton=true"],
            "--env-kwarg: sutton is true; Python writes True",
        ),
        (["collect", "CartPole-v1", "--steps", "5", "--env-kwarg", "x"], "must be key=value"),
        (["collect", "CartPole-v1", "--steps", "5", "--env-kwarg", "x=[1,"], "is no Python lit"),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--env-kwarg", "x=1", "--env-kwarg", "x=2"],
            "--env-kwarg: x is given twice",
        ),
        (
            ["collect", "CartPole-v1", "--steps", "5", "--env-kwarg", "gravity_=9"],
            "env_fn raised TypeError",
        ),
        (
            ["collect", COUNT, "--steps", "5", "--env-kwarg", "fail=True"],
            "env_fn raised ValueError: asked to fail",
        ),
        (["collect", COUNT, "--steps", "5", "--policy", "mine"], "must be module:callable"),
        (["collect", COUNT, "--steps", "5", "--policy", "no_module:x"], "can't import 'no_module'"),
        (
            ["collect", COUNT, "--steps", "5", "--policy", "tests.cli.parts:nothing"],
            "'tests.cli.parts' has no 'nothing'",
        ),
        (
            ["collect", COUNT, "--steps", "5", "--wrapper", "tests.cli.parts:not_callable"],
            "is a int, not a callable",
        ),
        (
            ["collect", COUNT, "--steps", "5", "--policy", "tests.cli.parts:Unmakeable"],
            "--policy: tests.cli.parts:Unmakeable raised RuntimeError: no such weights",
        ),
        (
            ["collect", COUNT, "--steps", "5", "--out", "/no/such/directory/a.npz"],
            "--out: /no/such/directory/a.npz: there is no directory",
        ),
        (["collect", COUNT, "--steps", "5", "--out", "/tmp"], "--out: /tmp: is a directory"),
        (["collect", COUNT, "--steps", "5", "--out", "/dev/null"], "is not a regular file"),
        (
            [
                *("collect", "EnvpoolPyTests/Different-v0", "--steps", "5", "--out", "OUT"),
                *("--backend", "dummy"),
            ],
            "--out: one file holds one observation_space, but that of env 1 is",
        ),
        (
            [
                *("collect", "EnvpoolPyTests/Space-v0", "--steps", "5", "--out", "OUT"),
                *("--env-kwarg", "name=graph"),
            ],
            "--out: a Graph space has no form of arrays",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([str(tmp_path / "a.npz") if arg == "OUT" else arg for arg in args]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("envpool-py: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


def test_a_directory_that_takes_no_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere
    assert collect(COUNT, "--steps", 5, "--out", tmp_path / "a.npz") == 2
    assert f"--out: {tmp_path}/a.npz: Permission denied" in capsys.readouterr().err


# -------------------------------------------------------------------------- ends half way


def test_an_env_that_raises_keeps_whole_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    wrapper = ("--wrapper", "tests.cli.parts:Raising")
    limits = ("--num-envs", 2, "--wait-num", 2, "--steps", 900, "--seed", 3)
    assert collect(COUNT, *limits, *wrapper, "--out", out) == 1
    shown = capsys.readouterr()
    assert "step raised ValueError: boom" in shown.err
    assert f"ended by an error; kept 4 whole episodes in {out}" in shown.err
    found = load(out)
    assert found.lengths.tolist() == [4, 4, 4, 4]
    assert found.metadata["complete"] is False
    check_by_hand(found, [parts.count_env] * 2, seed=3)


def test_a_policy_that_raises_keeps_whole_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    policy = ("--policy", "tests.cli.parts:stumbles")
    limits = ("--num-envs", 2, "--wait-num", 2, "--steps", 900, "--seed", 3)
    assert collect(COUNT, *limits, *policy, "--out", out) == 1
    shown = capsys.readouterr()
    assert "LookupError: stumbled" in shown.err
    assert "in stumbles" in shown.err  # the traceback shows where
    check_by_hand(load(out), [parts.count_env] * 2, seed=3)
    assert load(out).lengths.tolist() == [4, 4, 4, 4]


def test_an_interrupt_keeps_whole_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    policy = ("--policy", "tests.cli.parts:Interrupts")
    limits = ("--num-envs", 2, "--wait-num", 2, "--steps", 900, "--seed", 3)
    assert collect(COUNT, *limits, *policy, "--out", out) == 130
    shown = capsys.readouterr()
    # Batches: reset, four steps (the policy is called before each), reset, four steps.
    assert shown.err.splitlines() == [
        "envpool-py: interrupted; writing what there is, which another Ctrl-C would drop",
        f"envpool-py: interrupted; kept 4 whole episodes in {out}",
    ]
    assert "episodes       │ 4" in shown.out
    check_by_hand(load(out), [parts.count_env] * 2, seed=3)


def test_an_interrupt_before_any_episode_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    out.write_text("old")
    policy = ("--policy", "tests.cli.parts:Interrupts", "--env-kwarg", "length=50")
    assert collect(COUNT, "--num-envs", 2, "--steps", 900, *policy, "--out", out) == 130
    assert capsys.readouterr().err == "envpool-py: interrupted; nothing is written\n"
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_interrupt_drops_what_is_being_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("envpool_py.collector.file._Column.copy_to", interrupted)
    policy = ("--policy", "tests.cli.parts:Interrupts")
    out = tmp_path / "a.npz"
    assert (
        collect(COUNT, "--num-envs", 2, "--wait-num", 2, "--steps", 900, *policy, "--out", out)
        == 130
    )
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "envpool-py: interrupted; nothing is written"
    assert not list(tmp_path.iterdir())


def start(tmp_path: Path, *args: Any) -> subprocess.Popen[str]:
    marks = tmp_path / "marks"
    marks.mkdir()
    return subprocess.Popen(
        command(COUNT, *args),
        cwd=ROOT,
        env={**os.environ, "ENVPOOL_PY_MARKS": str(marks)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ctrl_c_while_envs_hang(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    stuck = ("--wrapper", "tests.cli.parts:Stuck", "--num-processes", 2)
    limits = ("--num-envs", 2, "--wait-num", 1, "--steps", 10**6, "--seed", 3)
    with start(tmp_path, *limits, *stuck, "--out", out) as process:
        try:
            # Both envs hang in their third episode: four have been written.
            assert wait_until(lambda: len(list((tmp_path / "marks").iterdir())) == 2, 30)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            stdout, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == f"envpool-py: interrupted; kept 4 whole episodes in {out}"
    assert "episodes" in stdout
    found = load(out)
    assert found.metadata["complete"] is False
    assert found.env_ids.tolist() == [0, 0, 1, 1]
    check_by_hand(found, [parts.count_env] * 2, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "marks"]


def test_a_killed_command_leaves_no_half_written_file(tmp_path: Path) -> None:
    out = tmp_path / "a.npz"
    stuck = ("--wrapper", "tests.cli.parts:Stuck", "--num-processes", 2)
    with start(tmp_path, "--num-envs", 2, "--steps", 10**6, *stuck, "--out", out) as process:
        try:
            assert wait_until(lambda: len(list((tmp_path / "marks").iterdir())) == 2, 30)
        finally:
            process.kill()
        process.communicate(timeout=30)
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    out = tmp_path / "a.npz"
    run = subprocess.run(
        command(
            "CartPole-v1", "--num-envs", 2, "--steps", 20_000, "--backend", "dummy", "--out", out
        ),
        cwd=ROOT,
        preexec_fn=little_room,
        capture_output=True,
        timeout=40,
        check=False,
        text=True,
    )
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert "ended by an error" in run.stderr
    kept = load(out).num_steps if out.exists() else 0
    assert ("kept" in run.stderr) == (kept > 0)
    assert {path.name for path in tmp_path.iterdir()} <= {"a.npz"}


def test_fingerprints_differ_where_episodes_do(tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        out = tmp_path / f"{seed}.npz"
        assert (
            collect("CartPole-v1", "--num-envs", 2, "--episodes", 4, "--seed", seed, "--out", out)
            == 0
        )
        files.append(fingerprint(load(out)))
    assert files[0] != files[1]
