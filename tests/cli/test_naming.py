"""The env by its name: of an own file, in printed code, and in a record."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction

import pytest

import envpool_py
from envpool_py.bench.settings import Setting
from envpool_py.cli.naming import code_of, env_fn_of, imported
from envpool_py.record import file_format
from tests.cli import parts
from tests.cli.parts import COUNT
from tests.support import hostile_files
from tests.support.envs import CountEnv, FaultEnv
from tests.support.helpers import ROOT, forget
from tests.support.places import PLACES

PAGE = (ROOT / "docs/commands.md").read_text()
CORRIDOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
SHORTER = {"tune": "--seconds 0.2", "bench": "--seconds 0.02 --repeats 1 --policy-us 0"}
BAD_INPUT = re.compile(
    "^envpool-py: (no env|corridor.py:Corridor: miss|argument --out)", re.MULTILINE
)
#: Which restarts are logged, the first ones of the pool, depends on timing.
WHICH = re.compile(r"env \d+ restarted \(restart \d+ of this env, \d+ of the pool\)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: what is imported from it is forgotten afterwards."""
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget(tmp_path, tmp_path / "own package", ROOT / "examples")


def play(page, cli, caplog):
    """Type what a page types; all that it shows is shown."""
    blocks = re.findall(r"```console\n(.*?)```", page.replace(" \\\n    ", " "), re.DOTALL)
    for transcript in [each for block in blocks for each in block.split("$ envpool-py")[1:]]:
        line, *expected = transcript.splitlines()
        name = next(iter(line.split()), "")
        status = int(" error: " in transcript or name == "replay")
        if BAD_INPUT.search(transcript):
            status = 2
        typed = [text[6:] for text in expected if text.startswith("(Pdb) ")]
        words = f"{line} {SHORTER.get(name, '')}"
        if typed or name == "timeline":  # the debugger reads stdin; matplotlib keeps fonts open
            program = [sys.executable, "-m", "envpool_py", *shlex.split(words)]
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            options = {"input": "\n".join([*typed, "q"]), "capture_output": True, "text": True}
            done = subprocess.run(program, env=environ, check=False, timeout=170, **options)
            ended, shown = done.returncode, done.stdout + done.stderr
        else:
            ended, out, err = cli(words)
            shown = out + err + caplog.text
        assert ended == status, shown
        shown = WHICH.sub("", shown)
        for text in (WHICH.sub("", each).rstrip(" │") for each in expected):
            assert text.startswith("(Pdb) ") or ": about" in text or text in shown, (line, shown)


def test_the_crash_of_readme_is_real(folder, cli, caplog):
    (folder / "examples").symlink_to(ROOT / "examples")
    play((ROOT / "README.md").read_text(), cli, caplog)


def test_the_transcripts_of_the_docs(folder, cli, caplog):
    play(PAGE, cli, caplog)
    written = {path.suffix for path in folder.iterdir() if path.is_file()}
    assert written == {".py", ".png", ".record"}
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert any((folder / "videos").iterdir())


FILES = {
    "own_typo.py": "class Env(:",
    "own_exits.py": "import sys\nsys.exit(3)",
    "json.py": "class Env: ...",
    "own package/__init__.py": "",
    "own package/own_part.py": "from .own_other import ENV",
    "own package/own_other.py": "from tests.cli.parts import count_env as ENV",
}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("own_typo.py:Env", "SyntaxError: invalid syntax (own_typo.py, line 1)"),
        ("own_exits.py:Env", "can't import 'own_exits.py': SystemExit: 3 (own_exits.py:2)"),
        ("own_type.py:Env", "there is no file own_type.py; did you mean own_typo.py"),
        ("json.py:Env", "json.py: another module has the name 'json'"),
        ("tests.cli.parts:countenv", "did you mean count_env"),
        ("tests.cli.parts:nq", "named 'tests.cli.parts:nq'; ENV is"),  # np is not its own
        ("tests.cli.parts:count_env --env-kwarg size=3", "there is no argument 'size'"),
        ("'own package/own_part.py'", "name the class or function in it"),
        ("'own package/own_part.py:ENV'", None),
        ("corridor:Corridor --env-kwarg length=5", None),  # a module in the working directory
    ],
)
def test_files_of_every_kind(env, message, folder, cli):
    (folder / "own package").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    status, _, err = cli(f"check {env}")
    assert (status, err.count("\n")) == ((2, 1) if message else (0, 0))
    assert (message or "") in err


ENVS = "tests.cli.parts:count_env", COUNT
SETTINGS = Setting("subproc", 3, 2, 1), Setting("shmem", 3, 1, caller_steps=True)


@pytest.mark.parametrize(("env", "setting"), [*zip(ENVS, SETTINGS, strict=True)])
def test_the_code_makes_the_pool(env, setting):
    wrapper = imported("tests.cli.parts:scaled")
    args = argparse.Namespace(env=env, env_kwarg=[("length", 7)], wrapper=[wrapper])
    exec(code_of(args, setting), {"__name__": "imported"})  # by a process that is not forked
    names = {"__name__": "__main__"}
    exec(code_of(args, setting), names)
    with names["pool"] as pool:
        assert type(pool).__name__ == f"{setting.pool.capitalize()}VectorEnv"
        assert pool.wait_num == (setting.wait_num or 3)
        assert ("caller_steps=True" in repr(pool)) is setting.caller_steps
        assert pool.get_env_attr("length") == [7] * 3
        pool.reset()
        pool.send([0] * 3)
        assert pool.drain()[1].tolist() == [10.0] * 3
        assert "PassiveEnvChecker" not in str(env_fn_of(args)())  # which slows steps down


@pytest.mark.parametrize(
    ("env", "others"),
    [
        ("tests.cli.parts:count_env --env-kwarg length=2", "--env-kwarg length=5"),
        ("CartPole-v1 --env-kwarg sutton_barto_reward=True --video videos", ""),
        ("own.py:Own --env-kwarg length=3 --wrapper own.py:scaled", "--env-kwarg length=5"),
    ],
)
def test_collect_names_the_env(env, others, tmp_path, monkeypatch, cli):
    (tmp_path / "own.py").write_text("from tests.cli.parts import count_env as Own, scaled")
    path = tmp_path / "a.record"
    monkeypatch.chdir(tmp_path)
    limits = "--num-envs 2 --episodes 4 --seed 1 --backend dummy"
    assert cli(f"collect {env} {limits} --record {path}").status == 0
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    trust = "" if env.startswith("CartPole") else "--trust"
    ended = cli(f"replay {path} {trust}")
    assert (ended.status, "the record is complete" in ended.out) == (0, True), ended
    shown = json.loads(cli(f"show {path} --json -").out)
    assert shown["env"] == env.partition(" ")[0].replace("own.py", str(tmp_path / "own.py"))
    assert (shown["episodes"], shown["seeds"], shown["complete"]) == (4, [1, 2], True)
    if others:  # its rows are others
        assert cli(f"replay {path} {others} --trust").status == 1


def test_videos_of_an_env_that_is_restarted_are_kept(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    limits = "--num-envs 1 --episodes 4 --on-error restart --backend dummy"
    assert cli(f"collect tests.cli.parts:FilmedEnv {limits} --video videos").status == 0
    names = {path.stem.rpartition("-")[2] for path in (tmp_path / "videos").glob("*.mp4")}
    assert names == {*"0123"}


def test_make_names_what_can_be_imported(tmp_path, monkeypatch, cli):
    # To import it again would run the program.
    names = {"__module__": "__main__", "__qualname__": "OfProgram"}
    of_program = type("OfProgram", (CountEnv,), names)
    monkeypatch.setattr(sys.modules["__main__"], "OfProgram", of_program, raising=False)
    path = tmp_path / "a.record"
    for is_named, env, options in [
        (True, "CartPole-v1", {}),
        (True, parts.count_env, {"env_kwargs": {"length": 2}, "wrappers": [parts.shifted]}),
        (False, of_program, {}),
        (False, parts.stuck, {}),
        (False, parts.count_env, {"wrappers": [lambda env: env]}),
        (False, parts.count_env, {"env_kwargs": {"length": Fraction(4)}}),
    ]:
        path.unlink(missing_ok=True)
        with envpool_py.make(env, 2, backend="dummy", record=path, **options) as pool:
            pool.reset(seed=0)
            pool.step([0, 0])
        status, out, err = cli(f"replay {path} --trust")
        assert status == (0 if is_named else 2), err
        text = "does not name the env of its 2 envs; name that of the run: envpool-py"
        assert ("the record is complete" if is_named else text) in out + err
    assert cli(f"replay {path} tests.cli.parts:count_env --env-id 1").status == 0


@pytest.mark.parametrize(
    "recorded",
    [
        {"env": "os:system", "env_kwargs": {"command": "'touch OUT'"}, "wrappers": []},
        {"env": "FILE.py:Env", "env_kwargs": {}, "wrappers": []},
        {"env": "FILE.py", "env_kwargs": {}, "wrappers": []},
        {"env": "runs:CartPole-v1", "env_kwargs": {}, "wrappers": []},
        {"env": "CartPole-v1", "env_kwargs": {}, "wrappers": ["FILE.py:Env"]},
        {"env": "CartPole-v1", "env_kwargs": {"a": "__import__('runs')"}, "wrappers": []},
        {"env": "CartPole-v1"},
        {"env": ["CartPole-v1"], "env_kwargs": {}, "wrappers": []},
        "CartPole-v1",
    ],
)
def test_opening_a_record_runs_nothing(recorded, tmp_path, monkeypatch, cli):
    """The header of the record names a command, a file beside it, or nonsense."""
    (tmp_path / "runs.py").write_text(f"open({str(tmp_path / 'out')!r}, 'w')\nEnv = str")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "a.record"
    with envpool_py.make("CartPole-v1", 2, backend="dummy", record=path) as pool:
        pool.reset(seed=0)
    (kind, facts), *others = hostile_files.chunks_of(path.read_bytes())
    text = json.dumps(recorded).replace("OUT", str(tmp_path / "out"))
    text = text.replace("FILE", str(tmp_path / "runs"))
    body = json.dumps({**json.loads(facts), "env": json.loads(text)}).encode()
    chunks = [hostile_files.chunk(*each) for each in ((kind, body), *others)]
    path.write_bytes(file_format.MAGIC + b"".join(chunks))
    ended = cli(f"replay {path}")
    assert (ended.status, ended.out) == (2, "")
    assert "pass this as ENV, or --trust" in ended.err or "corrupt; pass ENV" in ended.err
    assert "runs" not in sys.modules
    assert not (tmp_path / "out").exists()
    assert cli(f"replay {path} CartPole-v1").status == 0


def test_each_error_is_shown_with_its_place(tmp_path, cli, monkeypatch):
    """One that was raised, and those that ``on_error`` recovered from, before it and after it."""
    path = tmp_path / "a.record"
    options = {"on_error": "restart", "max_restarts": 1, "backend": "dummy", "record": path}
    options["on_restart"] = lambda env_id, _: 1 // (1 - env_id)
    with envpool_py.make(parts.raising, 2, **options) as pool:
        pool.reset()
        for _ in range(12):
            pool.step([0], [0])
        for _ in range(2):  # to the third episode, and none is completed
            pool.reset([0])
        pool.step([0], [0])
        with pytest.raises(envpool_py.EnvError, match="env 0 failed again after 1 restart"):
            pool.step([0], [0])
        for _ in range(9):
            pool.step([0], [1])
        with pytest.raises(ZeroDivisionError):  # the row with this error is not returned
            pool.step([0], [1])
    ended = cli(f"replay {path} tests.cli.parts:raising")
    assert ended.status == 1
    error = r"step raised ValueError: boom \(parts.py:\d+\); episode \d, step \d"
    found = re.findall(
        f"^env (.)(?: failed again .*)?: {error}(; on_error went on)?$", ended.out, re.MULTILINE
    )
    assert [(env, bool(went_on)) for env, went_on in found] == [("0", 1), ("0", 0), ("1", 1)]
    assert ended.out.endswith("; 3 errors\n")
    stopped = []
    monkeypatch.setattr("pdb.post_mortem", lambda trace: stopped.append(trace.tb_frame.f_code))
    found = json.loads(cli(f"replay {path} tests.cli.parts:raising --json -").out)
    assert found["errors"] == [line for line in ended.out.splitlines() if line.startswith("env ")]
    assert found["batches"] == file_format.count_batches(path) > 0
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any output for a terminal
    assert "repeated" in cli(f"replay {path} tests.cli.parts:raising").err
    ended = cli(f"replay {path} tests.cli.parts:raising --pdb")
    assert "batches repeated" not in ended.err  # the debugger has the terminal
    assert len(stopped) == 3, "at each failure in turn"
    assert ended.out.endswith("; 3 errors, and nothing more to debug\n")
    shown = cli(f"show {path}")
    assert shown.table()["pool"] == ["DummyVectorEnv"]
    errors = re.findall("env .: .*boom", shown.out)
    assert errors == [f"env {i}: step raised ValueError: boom" for i in range(2)]


def test_a_death_has_no_line_to_debug(tmp_path, cli):
    with PLACES["shmem-fork"]([FaultEnv] * 2, record=tmp_path / "a") as pool:
        pool.reset()
        with pytest.raises(envpool_py.WorkerDiedError):
            pool.step(["", "SIGKILL"])
    ended = cli(f"replay {tmp_path}/a tests.support.envs:FaultEnv --pdb")
    text = "env 1: the process died or hung here, without an exception; to repeat that: --deaths\n"
    assert text in ended.err
