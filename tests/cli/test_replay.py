"""``envpool-py replay`` and ``show``: the env of a record, and its errors."""

import contextlib
import functools
import json
import re
import sys

import pytest

import envpool_py
from envpool_py.record import named_env, recorder
from tests.cli import parts
from tests.support.envs import CountEnv

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


def record(path, env, **options):
    """Write a record of three steps."""
    with envpool_py.make(env, 2, backend="dummy", record=path, **options) as pool:
        pool.reset(seed=0)
        for _ in range(3):
            pool.step([0, 0])


@pytest.mark.parametrize(
    ("env", "others"),
    [
        (f"{PARTS}:count_env --env-kwarg length=2", "--env-kwarg length=5"),
        ("CartPole-v1 --env-kwarg sutton_barto_reward=True --video videos", ""),
        (
            f"own.py:Own --env-kwarg length=3 --wrapper {PARTS}:shifted --wrapper own.py:doubled",
            f"--wrapper {PARTS}:shifted",
        ),
    ],
)
def test_collect_names_the_env(env, others, tmp_path, monkeypatch, cli):
    (tmp_path / "own.py").write_text(OWN)
    path = tmp_path / "a.record"
    monkeypatch.chdir(tmp_path)
    limits = "--num-envs 2 --episodes 4 --seed 1 --backend dummy"
    assert cli(f"collect {env} {limits} --record {path}").status == 0
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    ended = cli(f"replay {path}")
    assert (ended.status, "the run ended well" in ended.out) == (0, True), ended
    shown = json.loads(cli(f"show {path} --json").out)
    assert shown["env"] == env.partition(" ")[0].replace("own.py", str(tmp_path / "own.py"))
    assert (shown["episodes"], shown["seeds"], shown["complete"]) == (4, [1, 2], True)
    if others:  # its rows are others
        assert cli(f"replay {path} {others}").status == 1


def test_make_names_what_can_be_imported(tmp_path, monkeypatch, cli):
    def env_of(module, name):
        return type("Env", (CountEnv,), {"__module__": module, "__qualname__": name})

    of_program = env_of("__main__", "OfProgram")  # to import it again would run the program
    monkeypatch.setattr(sys.modules["__main__"], "OfProgram", of_program, raising=False)
    named = [
        ("CartPole-v1", {}),
        (parts.count_env, {"env_kwargs": {"length": 2}, "wrappers": [parts.shifted]}),
    ]
    unnamed = [
        *((env, {}) for env in (env_of(__name__, "test.<locals>.Local"), of_program)),
        (env_of(PARTS, "count_env"), {}),  # another object has its name
        (functools.partial(CountEnv, 0), {}),
        (parts.count_env, {"wrappers": [lambda env: env]}),
        (parts.with_size, {"env_kwargs": {"size": {1: float}}}),
    ]
    for i, (env, options) in enumerate([*named, *unnamed]):
        path = tmp_path / f"{i}.record"
        record(path, env, **options)
        status, out, err = cli(f"replay {path}")
        if i < len(named):
            assert (status, "the run ended well" in out) == (0, True), err
        else:
            assert status == 2
            assert "does not name the env of its 2 envs; name that of the run: envpool-py" in err
    assert cli(f"replay {tmp_path}/2.record {PARTS}:count_env --env 1").status == 0


def test_envs_that_differ_have_no_name(tmp_path):
    def env_fn():
        return CountEnv()

    named_env.attach(env_fn, f"{PARTS}:count_env", {}, [])
    for env_fns, name in (([env_fn] * 2, f"{PARTS}:count_env"), ([env_fn, CountEnv], None)):
        path = tmp_path / str(name is None)
        envpool_py.DummyVectorEnv(env_fns, record=path).close()
        found = recorder.read_header(path)["env"]
        assert (found and found["env"]) == name


def test_an_older_record_needs_the_env(tmp_path, monkeypatch, cli):
    path = tmp_path / "a.record"
    record(path, "CartPole-v1")
    header = recorder.read_header(path)
    del header["env"]
    monkeypatch.setattr(recorder, "read_header", lambda _: header)
    assert cli(f"replay {path}").status == 2
    assert cli(f"replay {path} CartPole-v1").status == 0
    assert cli(f"show {path}").table()["pool"] == ["DummyVectorEnv"]


def test_each_error_is_shown_with_its_place(tmp_path, cli):
    """One that was raised, and those that ``on_error`` recovered from, before it and after it."""
    path = tmp_path / "a.record"
    options = {"on_error": "restart", "max_restarts": 1, "backend": "dummy", "record": path}
    with envpool_py.make(parts.raising, 2, **options) as pool:
        pool.reset()
        for i in (0, 0, 1):
            with contextlib.suppress(envpool_py.EnvError):
                for _ in range(12):
                    pool.step([0], [i])
    ended = cli(f"replay {path} {PARTS}:raising")
    assert ended.status == 1
    error = r"step raised ValueError: boom \(parts.py:\d+\); episode \d, step \d"
    found = re.findall(f"^env (.): {error}(; on_error went on)?$", ended.out, re.MULTILINE)
    assert [(env, bool(went_on)) for env, went_on in found] == [("0", 1), ("0", 0), ("1", 1)]
    assert ended.out.endswith("; 3 errors\n")
    assert re.findall("env .: .*boom", cli(f"show {path}").out) == [
        f"env {i}: step raised ValueError: boom" for i in range(2)
    ]
