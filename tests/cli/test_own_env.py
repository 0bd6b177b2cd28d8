"""A custom, unregistered env through every command, as the transcripts of the docs say."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envpool_py.bench.settings import Setting
from envpool_py.cli import main
from envpool_py.cli.env_argument import code_of
from envpool_py.cli.importing import imported
from envpool_py.collector import load
from tests.support.helpers import ROOT

PAGE = (ROOT / "docs/commands.md").read_text()
CORRIDOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
SHORTER = {"tune": "--seconds 0.2", "bench": "--seconds 0.02 --repeats 1 --policy-us 0"}
BAD_INPUT = re.compile("^envpool-py: (no env|corridor.py:Corridor: missing|--out)", re.MULTILINE)


def transcripts() -> list[str]:
    """Each command of the page with what it shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [each for block in blocks for each in block.split("$ envpool-py")[1:]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: what is imported from it is forgotten afterwards."""
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def apart(words: list[str], given: str) -> tuple[int, str]:
    """Carry out a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "envpool_py.cli", *words],
        input=given,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_transcripts_of_the_docs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for transcript in transcripts():
        line, *expected = transcript.splitlines()
        name = next(iter(line.split()), "")
        status = int(" error: " in transcript or name == "replay")
        if BAD_INPUT.search(transcript):
            status = 2
        typed = [text[6:] for text in expected if text.startswith("(Pdb) ")]
        words = shlex.split(f"{line} {SHORTER.get(name, '')}")
        # The debugger reads stdin; matplotlib keeps its fonts open.
        if typed or name == "timeline":
            ended, said = apart(words, "\n".join(typed))
        else:
            ended, said = main(words), "".join(capsys.readouterr())
        assert ended == status, said
        for text in expected:
            if not text.startswith("(Pdb) ") and ": about" not in text:
                assert text in said, (line, said)
    assert {path.suffix for path in folder.iterdir() if path.is_file()} == {
        *(".py", ".npz", ".png", ".record"),
    }
    assert any((folder / "videos").iterdir())


FILES = {
    "own_typo.py": "class Env(:",
    "own_raises.py": "import json\n\njson.loads('{')",
    "own_exits.py": "import sys\nsys.exit(3)",
    "json.py": "class Env: ...",
    "own package/__init__.py": "",
    "own package/own_part.py": "from . import own_other\nENV = own_other.ENV\nSIZE = 3",
    "own package/own_other.py": "from tests.cli.parts import count_env as ENV",
}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("own_typo.py:Env", "SyntaxError: invalid syntax (own_typo.py, line 1)"),
        ("own_raises.py:Env", "(own_raises.py:3)"),
        ("own_exits.py:Env", "can't import 'own_exits.py': SystemExit: 3 (own_exits.py:2)"),
        ("own_type.py:Env", "there is no file own_type.py; did you mean own_typo.py"),
        ("json.py:Env", "json.py: another module has the name 'json'"),
        ("json.py", "json.py: another module"),
        ("tests.cli.parts:countenv", "did you mean count_env"),
        ("tests.cli.parts:not_callable", "is a int, not a class or function"),
        ("tests.cli.parts:count_env --env-kwarg size=3", "unexpected keyword argument 'size'"),
        ("'own package/own_part.py'", "name the class or function in it, as own package/own_part"),
        ("'own package/own_part.py:SIZE'", "is a int, not a class or function"),
        ("'own package/own_part.py:ENV'", None),
    ],
)
def test_files_of_every_kind(
    env: str,
    message: str | None,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "own package").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    assert main(["check", *shlex.split(env)]) == (2 if message else 0)
    shown = capsys.readouterr().err
    assert (message or "") in shown
    assert shown.count("\n") == (1 if message else 0)


def test_a_policy_in_the_working_directory(folder: Path) -> None:
    (folder / "mine.py").write_text("def ones(obs, env_ids):\n    return 0 * env_ids + 1\n")
    line = "collect CartPole-v1 --num-envs 2 --episodes 2 --policy mine:ones --out a.npz"
    assert main(line.split()) == 0
    assert load("a.npz").actions.min() == 1


@pytest.mark.parametrize(
    "setting",
    [
        Setting("dummy", 3),
        Setting("shmem", 3, 2),
        Setting("shmem", 3, 1, caller_steps=True),
        Setting("shmem", 3, 2, 1),
    ],
    ids=lambda setting: setting.text,
)
def test_the_code_makes_the_pool(setting: Setting) -> None:
    wrapper = imported("tests.cli.parts:scaled")
    for env in ("tests.cli.parts:count_env", "tests.cli.parts:EnvpoolPyTests/Count-v0"):
        args = argparse.Namespace(env=env, env_kwarg=[("length", 7)], wrapper=[wrapper])
        names: dict[str, Any] = {}
        exec(code_of(args, setting), names)
        with names["pool"] as pool:
            assert len(pool) == 3
            assert type(pool).__name__ == f"{setting.pool.capitalize()}VectorEnv"
            assert pool.wait_num == (setting.wait_num or 3)
            assert ("caller_steps=True" in repr(pool)) is setting.caller_steps
            assert pool.get_env_attr("length") == [7] * 3
            pool.reset()
            pool.send([0] * 3)
            assert pool.drain()[1].tolist() == [10.0] * 3
