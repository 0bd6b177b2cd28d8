"""Help, ``info``, numbers, and bad input, which is one line on stderr, for every command."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

import envpool_py
from envpool_py import cli as commands
from envpool_py.cli.arguments import at_least, counted
from tests.cli.parts import COUNT
from tests.support.helpers import ROOT

PARTS = "tests.cli.parts"

COLLECT = [
    ("CartPole-v1 --episodes 5", "--episodes: not allowed with argument --steps"),
    ("CartPole-v1 --steps 0", "--steps: must be 1 or more, got 0"),
    ("CartPole-v1 --steps many", "--steps: invalid integer value: 'many'"),
    (f"CartPole-v1 --seed {2**63}", "--seed: must be below 2**63 - 8"),
    ("CartPole-v1 --timeout nan", "must be a positive number of seconds, got nan"),
    ("CartPole-v1 --num-envs 8 --wait-num 9", "--wait-num is 9, but there are 8 envs"),
    ("CartPole-v1 --backend dummy --num-processes 2", "the dummy backend has no processes"),
    ("CartPole-v1 --address auto", "--address: only the ray backend has a cluster"),
    ("CartPol-v1", "'CartPol-v1'; did you mean CartPole-v1"),
    ("ALE/Pomg-v5", "did you mean ALE/Pong-v5"),
    ("no_module:A-v0", "ModuleNotFoundError: No module named 'no_module'\n"),
    ("CartPole-v1 --env-kwarg sutton=true", "--env-kwarg: sutton is true; Python writes True"),
    ("CartPole-v1 --env-kwarg x=[1,", "is no Python literal"),
    ("CartPole-v1 --env-kwarg x=1 --env-kwarg x=2", "--env-kwarg: x is given twice"),
    ("tests.support.envs:UndeclaredEnv --env-kwarg tag=0 --env-kwarg kind=x", "action_space is mi"),
    (f"{COUNT} --env-kwarg fail=True", "env_fn raised ValueError: asked to fail"),
    (f"{COUNT} --policy mine", "must be module:callable"),
    (f"{COUNT} --policy {PARTS}:nothing", "'tests.cli.parts' has no 'nothing'"),
    (f"{COUNT} --wrapper {PARTS}:COUNT", "must be a class or function, got str; see"),
    (f"{COUNT} --policy os:getcwd", "--policy: policy is called as policy(obs, env_ids): too many"),
    ("CartPole-v1 --env-kwarg x=" + "~" * 9_999 + "1", "is no Python literal"),
    (f"{COUNT} --num-processes few", "must be an integer or auto, got 'few'"),
    (f"{COUNT} --out LOOP", "--out: [Errno 17] File exists"),
    (f"{COUNT} --policy fractions:Fraction", "fractions:Fraction raised TypeError"),
    (f"{COUNT} --out /no/such/a", "--out: /no/such/a: No such file or directory"),
    (f"{COUNT} --out setup.cfg", "--out: setup.cfg: is a file; episodes are written to a folder"),
    (f"{COUNT} --out tests", "--out: tests: not a folder of episodes: it has no metadata.json"),
    (f"{COUNT} --policy {PARTS}:NoPolicy", "--policy: policy must be callable, got a NoPolicy"),
    (f"{COUNT} --record /tmp", "--record: /tmp exists and is not overwritten"),
    (f"{COUNT} --backend dummy --step-timeout 1", "--step-timeout: the dummy backend has no"),
    (f"{PARTS}:count_env --video OUT", "env_fn raised ValueError: Render mode is None"),
    (f"{PARTS}:space_env --out OUT --env-kwarg name=graph", "--out: a Graph space has no"),
]
OTHERS = [
    ("collekt", "argument COMMAND: invalid choice: 'collekt'"),
    ("bench CartPole-v1 --num-envs 2 --wait-num 3", "--wait-num is 3, but"),
    (f"tune CartPole-v1 --policy {PARTS}:refuses --policy-us 3", "--policy: not allowed"),
    (f"tune {PARTS}:count_env --env-kwarg fail=True", "env_fn raised ValueError: asked to fail"),
    ("check nosuch.py:Arm", "there is no file nosuch.py\n"),
    ("check setup.cfg.py:Arm", "there is no file setup.cfg.py\n"),
    ("check tests/cli/part.py:Arm", "there is no file tests/cli/part.py; did you mean parts.py\n"),
    (f"check {PARTS}:count_env --env-kwarg lenght=3", "no argument 'lenght'; did you mean length"),
    (f"check {PARTS}:needs_stiffness --env-kwarg stiffnes=3", "'stiffnes'; did you mean stiffness"),
    (f"check {PARTS}:needs_stiffness_and_takes_more --env-kwarg size=3", "argument: 'stiffness'"),
    ("replay no_such.record", "no_such.record: No such file or directory"),
    ("replay pyproject.toml CartPole-v1", "pyproject.toml: not a record of a pool"),
    ("show pyproject.toml", "pyproject.toml: neither a folder of episodes nor a record"),
    ("tune CartPole-v1 --num-envs 1e-3", "must be an integer, got 1e-3"),
    ("tune CartPole-v1 --num-envs 1.5e0", "must be an integer, got 1.5e0"),
    ("tune CartPole-v1 --num-envs e", "invalid integer value: 'e'"),
    ("timeline CartPole-v1 --out a.jpeg", "--out: must end in .png, got a.jpeg"),
]


@pytest.mark.parametrize(
    ("line", "message"),
    OTHERS + [(f"collect --steps 5 {options}", message) for options, message in COLLECT],
)
def test_one_line(line, message, cli, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    ended = cli(line.replace("OUT", str(tmp_path / "a")).replace("LOOP", str(loop)))
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.startswith("envpool-py: ")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [loop]


def test_an_exit_of_the_users_code_is_not_status_0(cli):
    ended = cli("check CartPole-v1 --wrapper sys:exit")
    assert ended.status == 1
    assert re.search(r"making envs +error: env 0: env_fn raised SystemExit", ended.out)


def test_python_m_and_a_reader_that_ends():
    program = [sys.executable, "-m", "envpool_py", "check", "CartPole-v1"]
    reader, writer = os.pipe()
    os.close(reader)  # before the first line, as a program that runs on may end before ``head -1``
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(program, stdout=output, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_missing_package_is_named(monkeypatch, cli):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert 'pip install -e ".[bench]" in a clone' in cli("timeline CartPole-v1 --out a.png").err
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert 'pip install -e ".[atari]" in a clone' in cli("check ALE/Pong-v5").err


def test_help_and_what_a_bug_report_needs(cli):
    for line in ("", "--version"):
        status, out, err = cli(line)
        assert (status, err, "envpool-py" in out) == (0, "", True)
    found = {line[:18].strip(): line[19:] for line in cli("info").out.splitlines()}
    own = envpool_py.__version__
    assert (found["envpool-py"], found["numpy"]) == (own, np.__version__)
    assert "fork" in found["start methods"]
    assert f"version: {own}\n" in (ROOT / "CITATION.cff").read_text()
    assert version("envpool-py") == own


NAMES = [command.__name__.rpartition(".")[2] for command in commands._COMMANDS]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_the_help_fits_into_80_columns_and_has_what_every_command_has(name, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(f"{name} --help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert ("--json FILE" in ended.out) == bool(name)
    has_context = name in ("tune", "bench", "collect", "timeline")
    assert ("--context {" in ended.out) == has_context


def test_large_numbers():
    assert [*map(at_least(1), ("1e5", "50_000", "2E3"))] == [100_000, 50_000, 2000]


def test_counts_are_separated_and_plural():
    counts = [(1, "error"), (12_345, "step"), (0, "policy"), (1000, "batch")]
    texts = ["1 error", "12 345 steps", "0 policies", "1 000 batches"]
    assert [counted(*each) for each in counts] == texts
