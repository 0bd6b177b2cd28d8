"""Bad input is one line on stderr and exit status 2, for every command."""

import pytest

from tests.cli.parts import COUNT

PARTS = "tests.cli.parts"

COLLECT = [
    ("CartPole-v1 --episodes 5", "--episodes: not allowed with argument --steps"),
    ("CartPole-v1 --steps 0", "--steps: must be 1 or more, got 0"),
    ("CartPole-v1 --steps many", "--steps: invalid integer value: 'many'"),
    (f"CartPole-v1 --seed {2**63}", "--seed: must be below 2**63 - 8"),
    ("CartPole-v1 --timeout nan", "must be a positive number of seconds, got nan"),
    ("CartPole-v1 --timeout x", "--timeout: invalid seconds value: 'x'"),
    ("CartPole-v1 --num-envs 8 --wait-num 9", "--wait-num is 9, but there are 8 envs"),
    ("CartPole-v1 --backend dummy --num-processes 2", "the dummy backend has no processes"),
    ("CartPole-v1 --address auto", "--address: only the ray backend has a cluster"),
    ("CartPol-v1", "'CartPol-v1'; did you mean CartPole-v1"),
    ("ALE/Pomg-v5", "did you mean ALE/Pong-v5"),
    ("Qzx/Qzx-v0", "ENV is an id of Gymnasium, MODULE:ID, MODULE:CLASS, MODULE:FUNCTION"),
    ("no_module:A-v0", "can't import 'no_module': ModuleNotFoundError: No module"),
    ("CartPole-v1 --env-kwarg sutton=true", "--env-kwarg: sutton is true; Python writes True"),
    ("CartPole-v1 --env-kwarg x", "must be key=value"),
    ("CartPole-v1 --env-kwarg x=[1,", "is no Python literal"),
    ("CartPole-v1 --env-kwarg x=1 --env-kwarg x=2", "--env-kwarg: x is given twice"),
    ("CartPole-v1 --env-kwarg gravity_=9", "env_fn raised TypeError"),
    (f"{COUNT} --env-kwarg fail=True", "env_fn raised ValueError: asked to fail"),
    (f"{COUNT} --policy mine", "must be module:callable"),
    (f"{COUNT} --policy {PARTS}:nothing", "'tests.cli.parts' has no 'nothing'"),
    (f"{COUNT} --wrapper {PARTS}:not_callable", "is a int, not a class or function"),
    (f"{COUNT} --policy {PARTS}:Unmakeable", ":Unmakeable raised RuntimeError: no such weights"),
    (f"{COUNT} --out /no/such/a.npz", "--out: /no/such/a.npz: there is no directory"),
    (f"{COUNT} --out /tmp", "--out: /tmp: is a directory"),
    (f"{COUNT} --out pyproject.toml", "--out: pyproject.toml exists; --force replaces it"),
    (f"{COUNT} --out /dev/null", "is not a regular file"),
    (f"{COUNT} --record /tmp", "--record: /tmp exists and is not overwritten"),
    (f"{COUNT} --backend dummy --step-timeout 1", "--step-timeout: the dummy backend has no"),
    (f"{PARTS}:count_env --video OUT", "--video: env 0: render_mode is None"),
    ("EnvpoolPyTests/Different-v0 --out OUT --backend dummy", "--out: env 1: observation_space is"),
    ("EnvpoolPyTests/Space-v0 --out OUT --env-kwarg name=graph", "--out: a Graph space has no"),
]
OTHERS = [
    ("collekt", "argument COMMAND: invalid choice: 'collekt'"),
    ("collect CartPole-v1", "one of the arguments --steps --episodes is required"),
    ("bench CartPole-v1 --num-envs 2 --wait-num 3", "--wait-num is 3, but"),
    ("bench CartPole-v1 --json /no/folder/a.json", "there is no directory /no/folder"),
    (f"tune CartPole-v1 --policy {PARTS}:alternate --policy-us 3", "--policy: not allowed"),
    (f"tune CartPole-v1 --policy {PARTS}:alternate --policy-row-us 3", "--policy: not allowed"),
    ("replay no_such.record", "no_such.record: No such file or directory"),
    ("replay pyproject.toml CartPole-v1", "pyproject.toml: not a record of a pool"),
    ("show no_such.npz", "no_such.npz: No such file or directory"),
    ("show pyproject.toml", "pyproject.toml: neither a file of episodes nor a record"),
    ("timeline CartPole-v1 --out a.jpeg", "--out: must end in .png, got a.jpeg"),
    ("timeline CartPole-v1 --out nowhere/a.png", "nowhere"),
]


@pytest.mark.parametrize(
    ("line", "message"),
    OTHERS + [(f"collect --steps 5 {options}", message) for options, message in COLLECT],
)
def test_one_line(line, message, cli, tmp_path):
    ended = cli(line.replace("OUT", str(tmp_path / "a.npz")))
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.startswith("envpool-py: ")
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(monkeypatch, cli):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert 'pip install "envpool-py[bench]"' in cli("timeline CartPole-v1 --out a.png").err
    assert 'pip install "envpool-py[atari]"' in cli("check ALE/Pong-v5").err


def test_a_directory_that_takes_no_files(monkeypatch, cli, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere
    ended = cli(f"collect {COUNT} --steps 5 --out {tmp_path}/a.npz")
    assert ended.status == 2
    assert f"--out: {tmp_path}/a.npz: Permission denied" in ended.err
