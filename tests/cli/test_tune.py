"""``envpool-py tune``."""

import argparse
import json

from envpool_py.auto import Probe
from envpool_py.bench.measure import MeasurementError
from envpool_py.cli import tune as command
from tests.bench.test_measure import IDLE
from tests.bench.test_tune import CALLERS, DUMMY, EACH, PARTIAL, SHMEM, results
from tests.cli.conftest import COMPUTING

WAITS = "steps wait rather than compute, and with a process per env they wait at once"
WAITING = Probe(1e-3, 1e-4, 1e-3, 9e-3)


def test_what_an_env_costs():
    assert list(command.costs(COMPUTING)) == [
        "step: 1.00 ms with resets (median 900 µs, p99 2.00 ms), 100% of it on the CPU",
        "resets: 5.00 ms each, 5% of the time",
        "observation: 33.6 kB",
    ]
    step, resets, _ = command.costs(WAITING)
    assert step == "step: 1.00 ms with resets (median 1.00 ms, p99 9.00 ms), 10% of it on the CPU"
    assert resets == "resets: none until the time was over"


def test_why_that_one(asked):
    del asked  # for its two cores

    def why(profile, best, rates):
        return list(command.reasons(results(rates), profile, best, IDLE))

    assert why(COMPUTING, SHMEM, {SHMEM: 1800, DUMMY: 1000, EACH: 200}) == [
        "processes: 2 on 2 cores; 1.80 times the steps of dummy"
    ]
    assert why(COMPUTING, DUMMY, {DUMMY: 1000, SHMEM: 500}) == [
        "processes: none; 2.00 times the steps of shmem, num_processes=2"
    ]
    assert why(COMPUTING, DUMMY, {DUMMY: 1000}) == ["processes: none"]
    assert why(WAITING, PARTIAL, {EACH: 1000, PARTIAL: 3000, DUMMY: 100}) == [
        f"processes: 2 on 2 cores; {WAITS}; 30.00 times the steps of dummy",
        "wait_num: 4; 3.00 times the steps of shmem, num_processes=16",
    ]
    assert why(COMPUTING, EACH, {EACH: 1000, PARTIAL: 1000}) == [
        "processes: 16 on 2 cores",
        "wait_num: all rows; 1.00 times the steps of shmem, num_processes=2, wait_num=4",
    ]


def test_one_line_of_code_for_callers_that_need_the_same_pool():
    args = argparse.Namespace(env="CartPole-v1", env_kwarg=[], wrapper=[])

    def headings(made):
        return [each["policy"] for each in command.recommendations(args, made, COMPUTING, CALLERS)]

    assert headings(results({SHMEM: 180, DUMMY: 100})) == ["policy: 0 or 1000 µs per batch"]
    assert headings(results({SHMEM: 180, DUMMY: 100}, {SHMEM: 50, DUMMY: 100})) == [
        "policy: 0 µs per batch",
        "policy: 1000 µs per batch",
    ]


def test_settings_that_fail_are_told(asked, cli):
    asked.failing["shmem"] = MeasurementError("OSError: no processes today")
    ended = cli("tune ALE/Pong-v5 --seconds 0.05")
    assert ended.status == 0
    assert "shmem, num_processes=16 failed: OSError: no processes today" in ended.out
    code = 'make("ale_py:ALE/Pong-v5", 16, backend="dummy")'
    *lines, last = ended.out.splitlines()[-8:]
    topics = ["step", "resets", "observation", "", "# policy", "import envpool_py"]
    assert [line.partition(":")[0] for line in lines[:6]] == topics
    assert (lines[6], last) == (f"pool = envpool_py.{code}", "# processes: none")
    found = json.loads(cli("tune ALE/Pong-v5 --seconds 0.05 --json").out)
    assert code in found["recommendations"][0]["code"]
    assert found["one_env"]["obs_bytes"] == 33_600
    assert {each["pool"] for each in found["measurements"]} == {"dummy", "shmem"}


def test_when_everything_fails(asked, cli):
    asked.failing["shmem"] = asked.failing["dummy"] = MeasurementError("OSError: nothing today")
    assert cli("tune CartPole-v1") == (1, "", "envpool-py: OSError: nothing today\n")


def test_an_env_that_cannot_be_made(cli):
    ended = cli("tune tests.cli.parts:count_env --env-kwarg fail=True --seconds 1")
    assert ended.status == 1
    assert "env 0: env_fn raised ValueError: asked to fail" in ended.err


def test_ctrl_c_gives_the_recommendation_until_then(asked, cli):
    asked.failing["dummy"] = KeyboardInterrupt()
    ended = cli("tune CartPole-v1")
    assert ended.status == 130
    assert 'backend="shmem"' in ended.out
