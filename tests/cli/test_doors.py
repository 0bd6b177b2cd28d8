"""The commands take options of pools with the same meaning, or refuse them with a reason."""

import json

import pytest

from envpool_py.bench import timeline
from envpool_py.cli import arguments, bench, tune
from envpool_py.cli.env_checks import stages
from tests.cli.parts import COUNT, interrupted
from tests.support.doors import FOREIGN, OPTIONS, held_by

POOL = {"wait_num": 1, "num_processes": 1, "on_error": "restart", "context": "spawn"}
#: The options that a command takes, each with another value than its default.
TAKES = {
    "collect": {**POOL, "timeout": 9.0, "step_timeout": 60.0, "record": "run.record"},
    "timeline": POOL,
    "bench": {"wait_num": 1, "on_error": "restart", "context": "spawn"},
    "tune": {"on_error": "restart", "context": "spawn"},
    "check": {},
}
MORE = {"collect": "--steps 1", "timeline": "--seconds 0.01 --out a.png"}
REASONS = ("did you mean --", "in pools it is ", "only pools in Python take it", "there is no such")
NAMES = [*OPTIONS, *FOREIGN]


def line_of(command, name, value):
    option = f"--{name.replace('_', '-')}"
    return f"{command} CartPole-v1 --num-envs 2 {MORE.get(command, '')} {option} {value}"


@pytest.mark.parametrize("command", ["collect", "timeline"])
def test_an_option_of_a_command_is_that_of_its_pool(command, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timeline, "draw", lambda *_: None)
    held, pool_class = [], arguments.pool_class

    def spy(backend):
        def make(*args, **options):
            pool = pool_class(backend)(*args, **options)
            held.append(held_by(pool))
            return pool

        return make

    monkeypatch.setattr(arguments, "pool_class", spy)
    for name, value in TAKES[command].items():
        ended = cli(line_of(command, name, value))
        assert ended.status == 0, ended.err
        assert held.pop()[name] == value
    for backend, count in [("dummy", None), ("thread", 2), ("subproc", 2), ("thread", "auto")]:
        chosen = "" if count is None else f"--num-processes {count}"
        assert cli(f"{line_of(command, 'backend', backend)} {chosen}").status == 0
        assert held.pop()["num_processes"] == (None if count == "auto" else count)


@pytest.mark.parametrize("command", [bench, tune])
def test_an_option_of_a_measurement_is_that_of_its_pools(command, cli, monkeypatch):
    settings = []

    def carry_out(job):
        settings.append(job.setting)
        raise KeyboardInterrupt  # as Ctrl-C: it is enough

    monkeypatch.setattr(command, "carry_out", carry_out)
    name = command.__name__.rpartition(".")[2]
    only = " --backend shmem" if command is bench else ""
    for option, value in TAKES[name].items():
        cli(line_of(name, option, value) + only)
        assert getattr(settings.pop(), option) == value


@pytest.mark.parametrize("command", TAKES)
def test_another_option_is_refused_with_a_reason(command, cli):
    for name in NAMES:
        if name in TAKES[command]:
            continue
        ended = cli(line_of(command, name, 2))
        assert (ended.status, ended.out) == (2, "")
        start, reason = ended.err.split("envpool-py " + command + " does not take it; ")
        assert start == f"envpool-py: --{name.replace('_', '-')}: "
        near = {"n_envs": "num-envs"} | (
            {"on_eror": "on-error"} if "on_error" in TAKES[command] else {}
        )
        if name in near:
            assert reason.startswith(f"did you mean --{near[name]}?")
        assert reason.startswith(REASONS)


def test_ctrl_c_shows_and_writes_what_was_done(monkeypatch, tmp_path, cli):
    cli(f"collect {COUNT} --episodes 4 --backend dummy --record {tmp_path}/a.record")
    monkeypatch.setattr("envpool_py.cli.check.stages_beside", lambda fns, _: stages(fns))
    for line, shown, key in (
        (f"replay {tmp_path}/a.record --trust", "batches repeated: 1; interrupted", "batches"),
        (f"check {COUNT}", "1 error, 0 warnings", "stages"),
    ):
        rest = f"--wrapper {interrupted.__module__}:interrupted --json {tmp_path}/a.json"
        ended = cli(f"{line} {rest}")
        assert (ended.status, ended.err) == (130, "envpool-py: interrupted\n")
        assert shown in ended.out
        assert json.loads((tmp_path / "a.json").read_text())[key]


def test_arguments_that_are_no_options(cli):
    assert "junk: envpool-py check does not take it; there is no such" in cli("check A junk").err
    assert "--foo: envpool-py does not take it" in cli("--foo").err
