"""``envpool-py replay``: the env of a record."""

from __future__ import annotations

import functools
import json
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest

import envpool_py
from envpool_py.cli import main
from envpool_py.record import named_env, recorder
from tests.cli import parts
from tests.support.envs import CountEnv

if TYPE_CHECKING:
    from pathlib import Path

PARTS = "tests.cli.parts"
OWN = """
import gymnasium as gym
from tests.support.envs import CountEnv

class Own(CountEnv):
    def __init__(self, length):
        super().__init__(0, length)

def doubled(env):
    return gym.wrappers.TransformReward(env, lambda reward: 2 * reward)
"""


def make(path: Path, env: Any, **options: Any) -> None:
    """Write a record of three steps."""
    with envpool_py.make(env, 2, backend="dummy", record=path, **options) as pool:
        pool.reset(seed=0)
        for _ in range(3):
            pool.step([0, 0])


def replayed(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str]:
    """The exit status, and what the command writes."""
    status = main(["replay", *map(str, args)])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


@pytest.mark.parametrize(
    ("env", "others"),
    [
        (f"{PARTS}:count_env --env-kwarg length=2", ["--env-kwarg", "length=5"]),
        ("CartPole-v1 --env-kwarg sutton_barto_reward=True --video videos", []),
        (
            f"own.py:Own --env-kwarg length=3 --wrapper {PARTS}:shifted --wrapper own.py:doubled",
            ["--wrapper", f"{PARTS}:shifted"],
        ),
    ],
)
def test_collect_names_the_env(
    env: str,
    others: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    path = tmp_path / "a.record"
    monkeypatch.chdir(tmp_path)
    limits = ["--num-envs", "2", "--episodes", "4", "--backend", "dummy"]
    assert main(["collect", *env.split(), *limits, "--record", str(path)]) == 0
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    capsys.readouterr()
    status, said = replayed(capsys, path)
    assert (status, "the run ended well" in said) == (0, True), said
    assert main(["show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["env"] == env.partition(" ")[0].replace("own.py", str(tmp_path / "own.py"))
    if others:  # its rows are others
        assert replayed(capsys, path, *others)[0] == 1


def test_make_names_what_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Local(CountEnv):
        pass

    class OfProgram(CountEnv):  # to import it again would run the program
        pass

    class Replaced(CountEnv):  # another object has its name
        pass

    OfProgram.__module__, OfProgram.__qualname__ = "__main__", "OfProgram"
    Replaced.__module__, Replaced.__qualname__ = PARTS, "count_env"
    monkeypatch.setattr(sys.modules["__main__"], "OfProgram", OfProgram, raising=False)
    named: list[tuple[Any, dict[str, Any]]] = [
        ("CartPole-v1", {}),
        (parts.count_env, {"env_kwargs": {"length": 2}, "wrappers": [parts.shifted]}),
    ]
    unnamed: list[tuple[Any, dict[str, Any]]] = [
        *((env, {}) for env in (Local, OfProgram, Replaced)),
        (functools.partial(CountEnv, 0), {}),
        (parts.count_env, {"wrappers": [lambda env: env]}),
        (parts.with_size, {"env_kwargs": {"size": {1: float}}}),
    ]
    for i, (env, options) in enumerate([*named, *unnamed]):
        path = tmp_path / f"{i}.record"
        make(path, env, **options)
        status, said = replayed(capsys, path)
        if i < len(named):
            assert (status, "the run ended well" in said) == (0, True), said
        else:
            assert status == 2
            assert "does not name the env of its 2 envs; name that of the run: envpool-py" in said
    assert replayed(capsys, tmp_path / "2.record", f"{PARTS}:count_env", "--env", 1)[0] == 0


def test_envs_that_differ_have_no_name(tmp_path: Path) -> None:
    def env_fn() -> CountEnv:
        return CountEnv()

    named_env.attach(env_fn, f"{PARTS}:count_env", {}, [])
    for env_fns, name in (([env_fn] * 2, f"{PARTS}:count_env"), ([env_fn, CountEnv], None)):
        path = tmp_path / str(name is None)
        envpool_py.DummyVectorEnv(env_fns, record=path).close()
        found = recorder.read_header(path)["env"]
        assert (found and found["env"]) == name


def test_an_older_record_needs_the_env(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.record"
    make(path, "CartPole-v1")
    data = path.read_bytes()
    start, head = len(recorder.MAGIC), recorder._CHUNK_HEAD
    length = head.unpack_from(data, start)[0]
    facts = recorder.read_header(path)
    del facts["env"]
    body = json.dumps(facts).encode()
    older = head.pack(len(body), zlib.crc32(body, zlib.crc32(recorder.HEADER)), recorder.HEADER)
    path.write_bytes(data[:start] + older + body + data[start + head.size + length :])
    assert replayed(capsys, path)[0] == 2
    assert replayed(capsys, path, "CartPole-v1")[0] == 0
