"""A custom, unregistered env through every command, as the transcripts of the docs say."""

import argparse
import os
import re
import shlex
import subprocess
import sys

import pytest

from envpool_py.bench.settings import Setting
from envpool_py.cli.env_argument import code_of, env_fn_of
from envpool_py.cli.importing import imported
from tests.support.helpers import ROOT

PAGE = (ROOT / "docs/commands.md").read_text()
CORRIDOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
SHORTER = {"tune": "--seconds 0.2", "bench": "--seconds 0.02 --repeats 1 --policy-us 0"}
BAD_INPUT = re.compile("^envpool-py: (no env|corridor.py:Corridor: missing|--out)", re.MULTILINE)


def transcripts():
    """Each command of the page with what it shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [each for block in blocks for each in block.split("$ envpool-py")[1:]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: what is imported from it is forgotten afterwards."""
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def apart(words, given):
    """Carry out a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "envpool_py.cli", *shlex.split(words)],
        input=given,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_transcripts_of_the_docs(folder, cli):
    for transcript in transcripts():
        line, *expected = transcript.splitlines()
        name = next(iter(line.split()), "")
        status = int(" error: " in transcript or name == "replay")
        if BAD_INPUT.search(transcript):
            status = 2
        typed = [text[6:] for text in expected if text.startswith("(Pdb) ")]
        words = f"{line} {SHORTER.get(name, '')}"
        # The debugger reads stdin; matplotlib keeps its fonts open.
        separate = typed or name == "timeline"
        ended, out, err = apart(words, "\n".join(typed)) if separate else cli(words)
        assert ended == status, out + err
        for text in expected:
            if not text.startswith("(Pdb) ") and ": about" not in text:
                assert text in out + err, (line, out, err)
    written = {path.suffix for path in folder.iterdir() if path.is_file()}
    assert written == {".py", ".npz", ".png", ".record"}
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
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
        ("tests.cli.parts:countenv", "did you mean count_env"),
        ("tests.cli.parts:count_env --env-kwarg size=3", "unexpected keyword argument 'size'"),
        ("'own package/own_part.py'", "name the class or function in it, as own package/own_part"),
        ("'own package/own_part.py:ENV'", None),
        ("corridor:Corridor --env-kwarg length=5", None),  # a module in the working directory
    ],
)
def test_files_of_every_kind(env, message, folder, cli):
    (folder / "own package").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    status, _, err = cli(f"check {env}")
    assert status == (2 if message else 0)
    assert (message or "") in err
    assert err.count("\n") == (1 if message else 0)


def test_ids_are_made_without_the_checker_of_gymnasium():
    args = argparse.Namespace(env="CartPole-v1", env_kwarg=[], wrapper=[])
    assert "PassiveEnvChecker" not in str(env_fn_of(args)())


@pytest.mark.parametrize(
    ("env", "setting"),
    [
        ("tests.cli.parts:count_env", Setting("dummy", 3)),
        ("tests.cli.parts:EnvpoolPyTests/Count-v0", Setting("shmem", 3, 1, caller_steps=True)),
        ("tests.cli.parts:EnvpoolPyTests/Count-v0", Setting("shmem", 3, 2, 1)),
    ],
)
def test_the_code_makes_the_pool(env, setting):
    wrapper = imported("tests.cli.parts:scaled")
    args = argparse.Namespace(env=env, env_kwarg=[("length", 7)], wrapper=[wrapper])
    names = {}
    exec(code_of(args, setting), names)
    with names["pool"] as pool:
        assert type(pool).__name__ == f"{setting.pool.capitalize()}VectorEnv"
        assert pool.wait_num == (setting.wait_num or 3)
        assert ("caller_steps=True" in repr(pool)) is setting.caller_steps
        assert pool.get_env_attr("length") == [7] * 3
        pool.reset()
        pool.send([0] * 3)
        assert pool.drain()[1].tolist() == [10.0] * 3
