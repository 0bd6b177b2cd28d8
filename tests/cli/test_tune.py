"""``envpool-py tune``."""

from __future__ import annotations

from typing import Any

import pytest

from envpool_py.bench.interpreters import MeasurementError
from envpool_py.bench.profile import Profile
from envpool_py.bench.tune import Setting, Tuning
from envpool_py.cli import main
from envpool_py.cli import tune as command
from tests.bench.made_up import measurement

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"
COMPUTING = Profile(1000, 1e-3, 1e-3, 2e-3, 1.0, 10, 5e-3, 0.05, 2_500_000)
WAITING = COMPUTING._replace(busy=0.1, step_p99=9e-3, resets=0, reset_share=0.0, memory_bytes=None)
DUMMY, SHMEM = Setting("dummy", 16, 0), Setting("shmem", 16, 2)
EACH, PARTIAL = Setting("shmem", 16, 16), Setting("shmem", 16, 16, 4)


def tune(*args: Any) -> int:
    return main(["tune", *map(str, args)])


def reasons(profile: Profile, best: Setting, rates: dict[Setting, int]) -> list[str]:
    made = Tuning(profile, {each: [measurement(rate)] for each, rate in rates.items()})
    return list(command.reasons(made, best, 2))[1:]


def test_a_recommendation_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(COUNT, "--num-envs", 2, "--seconds", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    (code,) = [line for line in lines if line.startswith("import ")]
    names: dict = {}
    exec(code, names)
    with names["pool"] as pool:
        assert len(pool) == 2
    assert "2 envs" in lines[0]
    after = lines[lines.index(code) + 2 :]
    topics = ["step", "resets", "memory", "processes"]
    assert [line.partition(":")[0] for line in after][:4] == topics


def test_why_processes() -> None:
    assert reasons(COMPUTING, SHMEM, {SHMEM: 1800, DUMMY: 1000, EACH: 200}) == [
        "step: 1.00 ms (median 1.00 ms, p99 2.00 ms), 100% of it on the CPU",
        "resets: 5.00 ms each, 5% of the time",
        "memory: 2.5 MB for one more env, 50 MB for this pool",
        "processes: 2 on 2 cores; 1.80 times the steps of dummy",
    ]


def test_why_none() -> None:
    assert reasons(COMPUTING, DUMMY, {DUMMY: 1000, SHMEM: 500})[-1] == (
        "processes: none; 2.00 times the steps of shmem, num_processes=2"
    )
    assert reasons(COMPUTING, DUMMY, {DUMMY: 1000})[-1] == "processes: none"


def test_why_partial_batches() -> None:
    rates = {EACH: 1000, PARTIAL: 3000, DUMMY: 100}
    step, resets, processes, wait_num = reasons(WAITING, PARTIAL, rates)
    assert step == "step: 1.00 ms (median 1.00 ms, p99 9.00 ms), 10% of it on the CPU"
    assert resets == "resets: none until the time was over"
    assert processes == (
        "processes: 16 on 2 cores; steps wait rather than compute, and with a process per env they"
        " wait at once; 30.00 times the steps of dummy"
    )
    assert wait_num == "wait_num: 3.00 times the steps of shmem, a process per env"
    rates = {EACH: 1000, PARTIAL: 1000}
    assert reasons(WAITING, EACH, rates)[-1] == (
        "wait_num: all rows; 1.00 times the steps of shmem, a process per env, wait_num=4"
    )


def test_settings_that_fail_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "profiled", lambda *_: COMPUTING)

    def carry_out(_: Any, job: Any, *, ours: bool) -> Any:
        assert ours
        if job.contestant != "dummy":
            raise MeasurementError("OSError: no processes today")
        return measurement()

    monkeypatch.setattr(command, "carry_out", carry_out)
    assert tune("CartPole-v1", "--seconds", 0.5) == 0
    out = capsys.readouterr().out
    assert "shmem, a process per env failed: OSError: no processes today" in out
    assert 'make("CartPole-v1", 16, backend="dummy")' in out


def test_when_everything_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def carry_out(*_: Any, **__: Any) -> Any:
        raise MeasurementError("OSError: nothing today")

    monkeypatch.setattr(command, "profiled", lambda *_: COMPUTING)
    monkeypatch.setattr(command, "carry_out", carry_out)
    assert tune("CartPole-v1") == 1
    assert capsys.readouterr().err.endswith("envpool-py: OSError: nothing today\n")


def test_ctrl_c_gives_the_recommendation_until_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def carry_out(_: Any, job: Any, **__: Any) -> Any:
        if job.contestant == "dummy":
            raise KeyboardInterrupt
        return measurement()

    monkeypatch.setattr(command, "profiled", lambda *_: COMPUTING)
    monkeypatch.setattr(command, "carry_out", carry_out)
    assert tune("CartPole-v1") == 130
    assert 'backend="shmem"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["CartPole-v9"], "did you mean CartPole-v1"),
        ([], "the following arguments are required: ENV_ID"),
        (["CartPole-v1", "--seconds", "0"], "must be a positive number of seconds, got 0"),
        (["CartPole-v1", "--num-envs", "x"], "must be an int, got 'x'"),
    ],
)
def test_bad_input_is_told_in_one_line(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
