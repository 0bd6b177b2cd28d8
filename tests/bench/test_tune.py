"""Which settings are tried, and which one is recommended."""

import functools
import itertools

import gymnasium as gym
import pytest

from envpool_py.bench import tune
from envpool_py.bench.measure import Caller, MeasurementError, Results, carry_out
from envpool_py.bench.settings import Setting
from tests.bench.test_measure import IDLE, measurement
from tests.cli.parts import COUNT

ENV_FN = functools.partial(gym.make, COUNT)
CALLERS = [IDLE, Caller(0.001)]
DUMMY = Setting("dummy", 16)
ONE, SHMEM, FOUR, EACH = (Setting("shmem", 16, count) for count in (1, 2, 4, 16))
PARTIAL, TWO_HALF = (SHMEM._replace(wait_num=wait_num) for wait_num in (4, 8))
HALF = ONE._replace(wait_num=8)
CALLER = ONE._replace(caller_steps=True)
THREADS = Setting("thread", 16)


def results(rates, busy=None):
    """Made up: rates with a caller that does nothing, and with one that computes."""
    rows = [(each, rate, (busy or rates)[each]) for each, rate in rates.items()]
    return Results({each: [measurement(a), measurement(b, CALLERS[1])] for each, a, b in rows})


def test_the_first_settings():
    idle, both = CALLERS[:1], CALLERS
    assert tune.first_settings(16, 2, 256, idle) == [SHMEM, DUMMY, CALLER, EACH, FOUR, ONE]
    # A caller that computes needs a core, and half of the envs step meanwhile.
    assert tune.first_settings(16, 2, 256, both) == [SHMEM, DUMMY, CALLER, HALF, EACH, FOUR, ONE]
    assert tune.first_settings(16, 8, 256, both)[3] == Setting("shmem", 16, 7, 8)
    assert tune.first_settings(1, 1, 256, both) == [Setting("shmem", 1, 1), Setting("dummy", 1)]
    assert tune.first_settings(16, 2, 256, idle, waits=True)[:2] == [THREADS, SHMEM]
    few = tune.first_settings(64, 7, 5, both)
    assert len(set(few)) == len(few)
    assert all(each.num_processes <= 5 for each in few)


def test_partial_batches_of_the_fastest():
    made = results(
        {DUMMY: 9, SHMEM: 8, EACH: 7, CALLER: 9, FOUR: 6, HALF: 5},
        {DUMMY: 9, SHMEM: 8, EACH: 6, CALLER: 9, FOUR: 7, HALF: 5},
    )
    # The second is another one for a caller that computes.
    for callers, several in ((CALLERS[:1], [SHMEM, EACH]), (CALLERS, [SHMEM, EACH, FOUR])):
        halves = [each._replace(wait_num=8) for each in several]
        quarters = [each._replace(wait_num=4) for each in (HALF, *several)]
        assert tune.partial_settings(made, callers) == halves + quarters
    assert tune.partial_settings(results({Setting("shmem", 3, 3): 1}), CALLERS) == []
    halves = [each._replace(wait_num=8) for each in (THREADS, EACH)]
    assert tune.partial_settings(results({THREADS: 2, EACH: 1}), CALLERS[:1])[:2] == halves


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({DUMMY: 100, SHMEM: 180, EACH: 20}, SHMEM),
        ({DUMMY: 100, SHMEM: 104}, DUMMY),  # about as fast, and simpler
        ({SHMEM: 100, EACH: 104}, SHMEM),
        ({DUMMY: 100, SHMEM: 109}, DUMMY),
        ({DUMMY: 100, SHMEM: 112}, SHMEM),
        ({SHMEM: 100, CALLER: 104}, SHMEM),  # isolation comes first
        ({SHMEM: 100, CALLER: 200}, CALLER),
        ({SHMEM: 100, EACH: 200}, EACH),
        ({SHMEM: 100, EACH: 700, THREADS: 710}, EACH),
        ({SHMEM: 100, EACH: 600, THREADS: 710}, THREADS),
        ({DUMMY: 50, SHMEM: 100, PARTIAL: 110}, SHMEM),  # not enough for another loop
        ({DUMMY: 50, SHMEM: 100, PARTIAL: 120}, PARTIAL),
        ({SHMEM: 100, PARTIAL: 200, TWO_HALF: 198}, TWO_HALF),
    ],
)
def test_the_recommendation(rates, best):
    assert tune.recommended(results(rates), IDLE) == best


def test_one_lucky_measurement_is_no_recommendation():
    made = results({SHMEM: 100, DUMMY: 90, EACH: 300})
    for setting in (SHMEM, DUMMY):
        made.measured[setting] *= 2
    assert tune.recommended(made, IDLE) == SHMEM


class Machine:
    """Makes measurements up; each takes a second of its clock."""

    def __init__(self, rates, *failing):
        self.rates, self.failing = rates, failing
        self.now, self.asked, self.results = 100.0, [], Results()

    def measure(self, job):
        assert 0.1 <= job.seconds * len(CALLERS) <= 2
        assert (job.env_fn, job.callers) == (ENV_FN, CALLERS)
        self.now += 1
        self.asked.append(job.setting)
        if job.setting in self.failing:
            raise MeasurementError("boom")
        return [measurement(self.rates.get(job.setting, 1), caller) for caller in CALLERS]

    def run(self, settings, seconds):
        """Return the times at which measurements begin."""
        common = CALLERS, self.measure, ENV_FN, seconds, lambda: self.now
        return [over for over, _ in tune.try_settings(self.results, settings, *common)]


def test_every_setting_then_the_best_until_the_time_is_over():
    machine = Machine({SHMEM: 30, DUMMY: 20, EACH: 10})
    assert machine.run([SHMEM, DUMMY, EACH], 20) == [*range(21)]
    partial = [each._replace(wait_num=wait_num) for wait_num in (8, 4) for each in (SHMEM, EACH)]
    assert machine.asked == [SHMEM, DUMMY, EACH, *partial, *[SHMEM, DUMMY, EACH] * 5][:21]
    machine = Machine({})  # one is measured in any case
    machine.run([SHMEM, DUMMY, EACH], 1e-6)
    assert list(machine.results.measured) == [SHMEM]


def test_settings_that_fail():
    """They are reported, and not tried again; if all fail, it ends early."""
    machine = Machine({SHMEM: 30, DUMMY: 20}, SHMEM)
    machine.run([SHMEM, DUMMY], 10)
    assert machine.results.errors == {SHMEM: "boom"}
    assert list(machine.results.measured) == [DUMMY]
    assert machine.asked.count(SHMEM) == 1
    machine = Machine({}, SHMEM, DUMMY, EACH)
    machine.run([SHMEM, DUMMY, EACH], 20)
    assert machine.asked == [SHMEM, DUMMY]


def test_every_setting_is_measured_for_real():
    """That with ``caller_steps`` is measured too, and does not fail."""
    found, settings = Results(), [each._replace(num_envs=4) for each in (SHMEM, CALLER, DUMMY)]
    # So that no setting is left out on a slow machine.
    common = CALLERS, carry_out, ENV_FN, 8.0, itertools.count().__next__
    # The fifth, the best again, is not measured.
    list(itertools.islice(tune.try_settings(found, settings, *common), 5))
    assert found.errors == {}
    assert set(settings) <= set(found.measured)
    assert [bool(each.wait_num) for each in found.measured] == [False] * 3 + [True]
    assert all(found.rate(each, caller) > 0 for each in settings for caller in CALLERS)
