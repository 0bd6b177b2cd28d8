"""Which settings are tried, and which one is recommended."""

from __future__ import annotations

import itertools

import pytest

from envpool_py.bench import tune
from envpool_py.bench.interpreters import MeasurementError
from envpool_py.bench.job import Measurement
from envpool_py.bench.profile import Profile, profile
from envpool_py.bench.tune import Setting, Tuning
from tests.bench.made_up import measurement

PROFILE = Profile(100, 1e-3, 1e-3, 2e-3, 1.0, 5, 1e-3, 0.1, 1_000_000)
DUMMY = Setting("dummy", 16, 0)
SHMEM = Setting("shmem", 16, 2)
EACH = Setting("shmem", 16, 16)
SUBPROC = Setting("subproc", 16, 2)
PARTIAL = Setting("shmem", 16, 2, 4)
CALLER = Setting("shmem", 16, 1, caller=True)


def tuning(rates: dict[Setting, int]) -> Tuning:
    return Tuning(PROFILE, {setting: [measurement(rate)] for setting, rate in rates.items()})


def test_the_first_settings() -> None:
    assert tune.first_settings(16, 2, 256) == [
        SHMEM,
        DUMMY,
        CALLER,
        EACH,
        Setting("shmem", 16, 4),
        Setting("shmem", 16, 1),
        SUBPROC,
        Setting("subproc", 16, 16),
    ]
    assert tune.first_settings(1, 1, 256) == [
        Setting("shmem", 1, 1),
        Setting("dummy", 1, 0),
        Setting("subproc", 1, 1),
    ]
    for num_envs, cores, most in itertools.product((1, 3, 64), (1, 2, 7), (1, 5, 256)):
        settings = tune.first_settings(num_envs, cores, most)
        assert len(set(settings)) == len(settings)
        assert all(each.num_processes <= min(num_envs, most) for each in settings)


def test_partial_batches_of_the_fastest() -> None:
    made = tuning({DUMMY: 9, SHMEM: 8, EACH: 7, SUBPROC: 6})
    assert tune.partial_settings(made) == [
        SHMEM._replace(wait_num=8),
        EACH._replace(wait_num=8),
        SHMEM._replace(wait_num=4),
        EACH._replace(wait_num=4),
    ]
    few = Setting("shmem", 3, 3)
    assert tune.partial_settings(tuning({few: 1})) == []


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({DUMMY: 100, SHMEM: 180, EACH: 20}, SHMEM),
        ({DUMMY: 100, SHMEM: 104}, DUMMY),  # about as fast, and simpler
        ({SHMEM: 100, EACH: 104}, SHMEM),
        ({SHMEM: 100, SUBPROC: 104}, SHMEM),
        ({SHMEM: 100, EACH: 200}, EACH),
        ({DUMMY: 50, SHMEM: 100, PARTIAL: 110}, SHMEM),  # not enough for another loop
        ({DUMMY: 50, SHMEM: 100, PARTIAL: 120}, PARTIAL),
        (
            {SHMEM: 100, PARTIAL: 200, PARTIAL._replace(wait_num=8): 198},
            PARTIAL._replace(wait_num=8),
        ),
    ],
)
def test_the_recommendation(rates: dict[Setting, int], best: Setting) -> None:
    assert tune.recommended(tuning(rates)) == best


def test_nothing_to_recommend() -> None:
    with pytest.raises(ValueError, match="no setting was measured"):
        tune.recommended(tuning({}))


class Machine:
    """Makes measurements up; each takes a second of its clock."""

    def __init__(self, rates: dict[Setting, int], *failing: Setting) -> None:
        self.rates, self.failing = rates, failing
        self.now = 100.0
        self.asked: list[Setting] = []

    def measure(self, setting: Setting, seconds: float) -> Measurement:
        assert 0.1 <= seconds <= 2
        self.now += 1
        self.asked.append(setting)
        if setting in self.failing:
            raise MeasurementError("boom")
        return measurement(self.rates.get(setting, 1))

    def clock(self) -> float:
        return self.now


def test_every_setting_then_the_best_until_the_time_is_over() -> None:
    machine = Machine({SHMEM: 30, DUMMY: 20, EACH: 10})
    made = Tuning(PROFILE)
    turns = list(tune.try_settings(made, [SHMEM, DUMMY, EACH], machine.measure, 20, machine.clock))
    assert [over for over, _ in turns] == [*range(21)]
    partial = [SHMEM._replace(wait_num=8), EACH._replace(wait_num=8)]
    partial += [SHMEM._replace(wait_num=4), EACH._replace(wait_num=4)]
    assert machine.asked[:7] == [SHMEM, DUMMY, EACH, *partial]
    assert machine.asked[7:] == ([SHMEM, DUMMY, EACH] * 5)[: len(machine.asked) - 7]
    assert len(made.measured[SHMEM]) > 4


def test_one_setting_at_least_is_measured() -> None:
    machine = Machine({})
    made = Tuning(PROFILE)
    list(tune.try_settings(made, [SHMEM, DUMMY, EACH], machine.measure, 1e-6, machine.clock))
    assert list(made.measured) == [SHMEM]


def test_what_fails_is_told_and_left_alone() -> None:
    machine = Machine({SHMEM: 30, DUMMY: 20}, SHMEM)
    made = Tuning(PROFILE)
    list(tune.try_settings(made, [SHMEM, DUMMY], machine.measure, 10, machine.clock))
    assert made.errors == {SHMEM: "boom"}
    assert list(made.measured) == [DUMMY]
    assert machine.asked.count(SHMEM) == 1
    machine = Machine({}, SHMEM, DUMMY)
    made = Tuning(PROFILE)
    list(tune.try_settings(made, [SHMEM, DUMMY], machine.measure, 10, machine.clock))
    assert machine.asked == [SHMEM, DUMMY]
    assert made.measured == {}


@pytest.mark.parametrize(
    "setting",
    [
        Setting("dummy", 3, 0),
        Setting("shmem", 3, 2),
        Setting("shmem", 3, 3),
        Setting("shmem", 3, 1, caller=True),
        Setting("subproc", 3, 2, 1),
    ],
)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "tests.cli.parts:EnvpoolPyTests/Count-v0"])
def test_the_code_makes_the_pool(setting: Setting, env_id: str) -> None:
    names: dict = {}
    exec(tune.code(env_id, setting), names)
    with names["pool"] as pool:
        assert len(pool) == 3
        kinds = {
            "dummy": "DummyVectorEnv",
            "shmem": "ShmemVectorEnv",
            "subproc": "SubprocVectorEnv",
        }
        assert type(pool).__name__ == kinds[setting.backend]
        assert pool.wait_num == (setting.wait_num or 3)
        assert ("caller_steps=True" in repr(pool)) is setting.caller
        assert pool.get_env_attr("spec")[0].id == env_id.rpartition(":")[2]


def test_the_code_of_an_atari_game_imports_its_package() -> None:
    line = tune.code("ALE/Pong-v5", Setting("shmem", 8, 2))
    assert line == (
        'import ale_py, envpool_py; pool = envpool_py.make("ALE/Pong-v5", 8, backend="shmem",'
        " num_processes=2)"
    )


def test_the_profile_of_one_env(monkeypatch: pytest.MonkeyPatch) -> None:
    computing = profile("spin-1000", 0.02)
    assert computing.steps >= 1
    assert computing.step_p50 >= 1e-3
    assert computing.step_p99 >= computing.step_p50
    assert not tune.waits(computing)
    waiting = profile("sleep", 0.02)
    assert tune.waits(waiting)
    assert waiting.resets == 0
    assert waiting.reset_share == 0
    monkeypatch.setattr("time.sleep", lambda _: None)
    ended = profile("sleep", 0.05)
    assert ended.resets == ended.steps // 100 or ended.resets == (ended.steps + 1) // 100
    assert 0 < ended.reset_share < 1
