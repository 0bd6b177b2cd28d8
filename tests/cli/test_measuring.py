"""``envpool-py bench``, ``tune`` and ``timeline``."""

import argparse
import ast
import itertools
import json
import os
import re
import time
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.bench import timeline
from envpool_py.bench.measure import Caller, MeasurementError
from envpool_py.bench.settings import NAMES, Setting, make_pool
from envpool_py.cli import arguments, bench, tables, tune
from envpool_py.cli.timeline import summary
from envpool_py.pool.backend_choice import Probe
from envpool_py.worker.cores_and_threads import usable_cores
from tests.bench.test_measure import measurement
from tests.bench.test_tune import CALLERS, DUMMY, EACH, PARTIAL, SHMEM, THREADS, results
from tests.support.envs import CountEnv

COMPUTING = Probe(1e-3, 1e-3, 0.9e-3, 2e-3, 0.01, 5e-3, 33_600)
WAITING = Probe(1e-3, 1e-4, 1e-3, 9e-3)


@pytest.fixture
def asked(monkeypatch):
    """The jobs. Nothing is measured: the n-th job makes 100 n steps in a second, on two cores.

    ``failing``: what the pools of these names raise.
    """
    asked = SimpleNamespace(jobs=[], failing={}, rates={})

    def carry_out(job):
        asked.jobs.append(job)
        if job.setting.pool in asked.failing:
            raise asked.failing[job.setting.pool]
        rate = asked.rates.get(job.setting.pool, 100 * len(asked.jobs))
        return [measurement(rate, caller) for caller in job.callers]

    monkeypatch.setattr(arguments, "busy_part", lambda _: None)
    monkeypatch.setattr(tune, "probe", lambda *_: COMPUTING)
    for command in (bench, tune):
        monkeypatch.setattr(command, "carry_out", carry_out)
        monkeypatch.setattr(command, "usable_cores", lambda: [0, 1])
    return asked


def test_a_table_of_medians(asked, cli):
    ended = cli("bench CartPole-v1 --backend loop --backend dummy --policy-us 0 --repeats 2")
    assert [job.setting.pool for job in asked.jobs] == ["loop", "dummy"] * 2  # in turns
    table = ended.table()
    assert [*table] == ["in process", "loop"]  # the fastest first
    assert table == {  # 100 and 300, 200 and 400 steps in a second
        "in process": ["300 ± 33 %", "1.50", "2.00 ms", "4.00 ms"],
        "loop": ["200 ± 50 %", "1.00", "2.00 ms", "4.00 ms"],
    }
    assert ended.out.splitlines()[:2] == [
        "CartPole-v1 x 16, policy: 0 µs per batch: in process, 300 ± 33 % steps/s",
        "  1.50 times the steps of a loop",
    ]
    assert max(map(len, ended.out.splitlines())) <= 80
    many = cli("bench CartPole-v1 --num-envs 100 --backend dummy --policy-us 0 --repeats 1")
    assert many.table()["in process"][-2:] == ["250 ms", "50.0 MB"]


def test_a_small_difference_is_none(asked, cli):
    """The simplest pool is the answer if another is no more than a tenth faster."""
    asked.rates = {"loop": 1000, "dummy": 1090, "make": 1095}
    pools = "--backend loop --backend dummy --backend make --policy-us 0 --repeats 1"
    said = cli(f"bench CartPole-v1 {pools}").out.splitlines()[:2]
    assert said == [
        "CartPole-v1 x 16, policy: 0 µs per batch: loop, 1 000 steps/s",
        "  no difference: no pool is more than 10% faster than a loop",
    ]
    asked.rates["make"] = 1200
    assert ": make, 1 200 steps/s" in cli(f"bench CartPole-v1 {pools}").out


def test_every_pool_with_callers_that_compute(asked, cli):
    ended = cli("bench ALE/Pong-v5 --num-envs 4 --num-envs 6 --repeats 1 --max-processes 5")
    assert ended.status == 0
    assert " pools of 4 and 6 envs x 3 policies x 1 repeat: about " in ended.err
    text = "is left out: it would start 6 processes, and --max-processes is 5"
    for name in ("Gymnasium Async", "6 procs"):
        assert f"{name} {text}" in ended.err
    for num_envs, left_out in ((4, set()), (6, {"gymnasium-async"})):
        settings = [job.setting for job in asked.jobs if job.setting.num_envs == num_envs]
        assert {each.pool for each in settings} == set(NAMES) - left_out
        assert len(set(settings)) == len(settings)
    thinks = [Caller(), Caller(300e-6), Caller(1e-3)]
    assert all(job.callers == thinks and job.seconds == 0.5 for job in asked.jobs)
    asked.jobs.clear()
    assert cli("bench CartPole-v1 --wait-num 4 --repeats 1").status == 0
    whole = {job.setting.pool for job in asked.jobs if job.setting.wait_num is None}
    assert whole == {"loop", "gymnasium-sync", "gymnasium-async"}
    ended = cli("bench CartPole-v1 --max-processes 1 --backend subproc")
    assert (ended.status, "leaves no pool to measure" in ended.err) == (2, True)


@pytest.mark.parametrize(("failing", "status"), [("shmem", 1), ("loop", 1), ("gymnasium-sync", 0)])
def test_failures_are_shown(failing, status, asked, tmp_path, cli):
    asked.failing[failing] = MeasurementError("ValueError: [boom]")
    ended = cli(f"bench CartPole-v1 --repeats 2 --json {tmp_path}/a.json")
    assert ended.status == status
    name = {"shmem": "2 procs", "loop": "loop", "gymnasium-sync": "Gymnasium Sync"}[failing]
    assert f"  {name} failed: ValueError: [boom]" in ended.out
    found = json.loads((tmp_path / "a.json").read_text())
    assert {each["pool"] for each in found if "error" in each} == {failing}


def test_a_step_that_fails_is_no_bad_input(tmp_path, cli):
    ended = cli(f"timeline tests.cli.parts:raising --seconds 99 --out {tmp_path}/a.png")
    assert (ended.status, "step raised ValueError: boom" in ended.err) == (1, True)


def test_ctrl_c_keeps_what_was_measured(asked, tmp_path, cli):
    asked.failing["make"] = KeyboardInterrupt()
    ended = cli(f"bench CartPole-v1 --json {tmp_path}/a.json")
    assert ended.status == 130
    assert ended.err.endswith("envpool-py: interrupted\n")
    found = json.loads((tmp_path / "a.json").read_text())
    assert {each["policy_seconds"] for each in found} == {0, 300e-6, 1e-3}
    measured = {each["pool"] for each in found}
    assert measured == {"loop", "gymnasium-sync", "gymnasium-async"}
    assert set(ended.table()) == {"loop", "Gymnasium Sync", "Gymnasium Async"}


def test_numbers_have_units():
    rates = [tables.separated(each) for each in (0.5, 9.996, 99.96, 999.6, 17_573, 1_234_567)]
    assert rates == ["0.50", "10.0", "100", "1 000", "17 600", "1 230 000"]
    durations = [tables.duration(each) for each in (0.9999, 0.0123, 4.5e-6)]
    assert durations == ["1.00 s", "12.3 ms", "4.50 µs"]


def test_why_that_one():
    def why(profile, best, *rates):
        callers = CALLERS[: len(rates)]
        return list(tune.reasons(results(*rates), profile, best, callers))

    assert why(COMPUTING, DUMMY, {DUMMY: 1000, SHMEM: 500}) == [
        "in process: 1 000 steps/s",
        "  2.00 times the steps of 2 procs",
    ]
    waits = "steps wait rather than compute; with a process per env they wait at once"
    assert why(WAITING, PARTIAL, {EACH: 1000, PARTIAL: 3000, DUMMY: 100}) == [
        waits,
        "2 procs, wait 4: 3 000 steps/s",
        "  30.00 times the steps of in process",
        "  3.00 times the steps of 16 procs",
    ]
    assert why(COMPUTING, EACH, {EACH: 1000, PARTIAL: 1050}) == [
        "16 procs: 1 000 steps/s",
        "  no difference from 2 procs, wait 4: take the simplest",
    ]
    slower = "  0.88 times the steps of 2 procs, wait 4, which needs a loop for partial batches"
    assert why(COMPUTING, EACH, {EACH: 1000, PARTIAL: 1140})[-1] == slower
    # A comparison is made once, also if it answers two questions.
    waits, _, than = why(WAITING, THREADS, {THREADS: 1200, EACH: 1000, DUMMY: 100})
    assert waits == "steps wait rather than compute; in threads they wait at once"
    assert than == "  1.20 times the steps of 16 procs"
    assert why(WAITING, EACH, {EACH: 1000, THREADS: 950})[-1] == (
        "  no difference from threads, where a crash of an env ends your program"
    )
    # Each figure is that of its own table.
    assert why(COMPUTING, DUMMY, {DUMMY: 109, SHMEM: 100}, {DUMMY: 96, SHMEM: 100}) == [
        "policy: 0 µs per batch: 109 steps/s",
        "  no difference from 2 procs: take the simplest",
        "policy: 1000 µs per batch: 96.0 steps/s",
        "  no difference from 2 procs: take the simplest",
    ]


def test_the_cost_of_one_env():
    step, resets, _ = tune.costs(WAITING)
    assert step == "step: 1.00 ms with resets (median 1.00 ms, p99 9.00 ms), 10% of it on the CPU"
    assert resets == "resets: none until the time was over"


def test_long_code_is_wrapped():
    words = ", ".join(["argument=1"] * 9)
    shown = tune.wrapped(f"if main:\n    pool = envpool_py.make({words})").splitlines()
    assert shown[1:] == ["    pool = envpool_py.make(", f"        {words}", "    )"]
    assert tune.wrapped("pool = f(x)") == "pool = f(x)"


@pytest.mark.parametrize("busy", [0.5, 0.1, None])
@pytest.mark.usefixtures("asked")
def test_a_busy_machine_is_said(busy, cli, monkeypatch):
    monkeypatch.setattr(arguments, "busy_part", lambda _: busy)
    text = "the machine is busy: other programs use 50% of its cores"
    for command in ("bench CartPole-v1 --backend loop --repeats 1", "tune CartPole-v1"):
        assert (text in cli(f"{command} --seconds 0.05").err) == (busy == 0.5)


def test_a_pool_for_each_caller_that_needs_another():
    args = argparse.Namespace(env="CartPole-v1", env_kwarg=[], wrapper=[])
    made = results({SHMEM: 180, DUMMY: 100}, {SHMEM: 50, DUMMY: 100})
    found = [each["policy"] for each in tune.recommendations(args, made, COMPUTING, CALLERS)]
    assert found == ["policy: 0 µs per batch", "policy: 1000 µs per batch"]


def test_settings_that_fail_are_told(asked, cli):
    asked.failing["shmem"] = MeasurementError("OSError: no processes today")
    ended = cli("tune ALE/Pong-v5 --seconds 0.05")
    assert ended.status == 0
    assert "16 procs failed: OSError: no processes today" in ended.out
    code = 'make("ale_py:ALE/Pong-v5", 16, backend="dummy")'
    assert ended.out.splitlines()[:3] == [
        "# policy: 0 or 300 or 1000 µs per batch",
        "import envpool_py",
        f"pool = envpool_py.{code}",
    ]
    assert "step: 1.00 ms with resets (median 900 µs, p99 2.00 ms), 100%" in ended.out
    assert "resets: 5.00 ms each, 5% of the time\nobservation: 33.6 kB\n\nALE/Pong" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    found = json.loads(cli("tune ALE/Pong-v5 --seconds 0.05 --json -").out)
    assert code in found["recommendations"][0]["code"]
    assert found["one_env"]["obs_bytes"] == 33_600
    assert {each["pool"] for each in found["measurements"]} == {"dummy", "shmem"}


def test_the_code_has_the_options_of_the_command(asked, cli):
    """It is a program, and the pools were measured with these options."""
    options = "--on-error restart --context spawn"
    found = json.loads(cli(f"tune CartPole-v1 {options} --seconds 0.05 --json -").out)
    for each in found["recommendations"]:
        made = ast.parse(each["code"]).body[-1]
        call = (made.body[0] if isinstance(made, ast.If) else made).value
        options = {part.arg: ast.literal_eval(part.value) for part in call.keywords}
        assert options["on_error"] == "restart"
        assert options.get("context") == ("spawn" if options["backend"] == "shmem" else None)
    asked.jobs.clear()
    cli("bench CartPole-v1 --context spawn --repeats 1 --num-envs 2")
    contexts = {job.setting.pool: job.setting.context for job in asked.jobs}
    with_processes = {"gymnasium-async", "make", "subproc", "shmem"}
    assert {pool for pool, context in contexts.items() if context == "spawn"} == with_processes


def test_ctrl_c_gives_the_recommendation_until_then(asked, cli):
    asked.failing["dummy"] = KeyboardInterrupt()
    ended = cli("tune CartPole-v1")
    assert ended.status == 130
    assert 'backend="shmem"' in ended.out
    asked.failing["shmem"] = asked.failing["dummy"] = MeasurementError("OSError: nothing today")
    assert cli("tune CartPole-v1") == (1, "", "envpool-py: OSError: nothing today\n")


class TimedEnv(CountEnv):
    """Keeps when its steps began and ended, taken further inside than the recorder's.

    With a FIFO its step ends after a step of each of the two others has.
    """

    def __init__(self, length, fifo=None):
        super().__init__(0, length)
        self.fifo, self.own = fifo and os.open(fifo, os.O_RDWR), []

    def step(self, action):
        begun = time.perf_counter()
        for _ in range(2 if self.fifo else 0):
            os.read(self.fifo, 1)
        self.own.append((begun, time.perf_counter()))
        return super().step(action)


class Tells(gym.Wrapper):
    """Writes into a FIFO when the recorder has noted a step."""

    def __init__(self, env_fn, fifo):
        super().__init__(env_fn())
        self.fifo = os.open(fifo, os.O_RDWR)

    def step(self, action):
        result = self.env.step(action)
        os.write(self.fifo, b".")
        return result


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_who_stepped_and_who_held_the_others_up(backend, tmp_path):
    env_fns = [timeline.noted(partial(TimedEnv, 4))] * 3
    if backend == "shmem":
        os.mkfifo(fifo := tmp_path / "fifo")
        first = partial(Tells, timeline.noted(partial(TimedEnv, 10**6)), fifo)
        env_fns = [first, timeline.noted(partial(TimedEnv, 10**6, fifo)), first]
    with make_pool(Setting(backend, 3, 0 if backend == "dummy" else 3), env_fns) as pool:
        seconds = 0.2 if backend == "dummy" else 1.0
        found = timeline.record(pool, seconds, 0.1)
        spans, own = pool.get_env_attr("spans"), pool.get_env_attr("own")
    assert found.seconds >= seconds
    for drawn, noted, inner in zip(found.envs, spans, own, strict=True):
        for (_, _, end), (_, begin, _) in itertools.pairwise(drawn):
            assert end <= begin + 1e-9
        assert all(0 <= begin <= end <= found.seconds for _, begin, end in drawn)
        steps = [(begin, end) for what, begin, end in noted if what == timeline.STEP]
        for (begin, end), (inner_begin, inner_end) in zip(steps, inner, strict=True):
            assert begin <= inner_begin <= inner_end <= end
        # The steps that are drawn whole are some of these, in turn, and none between is left out.
        whole = [each[1:] for each in drawn[1:-1] if each[0] == timeline.STEP]
        assert whole
        shifts = [begin - whole[0][0] for begin, _ in steps[: len(steps) - len(whole) + 1]]
        assert any(
            np.allclose(np.add(whole, shift), steps[k : k + len(whole)], atol=1e-6, rtol=0)
            for k, shift in enumerate(shifts)
        )
    parts = timeline.shares(found)
    if backend == "shmem":
        assert timeline.last_of_batches(found) == [0, 1, 0]
        assert parts[timeline.DONE][1] < min(parts[timeline.DONE][::2])
        assert "env 1 was the last of its batch most often" in [*summary(found)][-1]
    else:
        assert timeline.last_of_batches(found) == [0, 0, 1]
        of_others = [parts[kind][i] for kind in (timeline.STEP, timeline.RESET) for i in (0, 1)]
        assert parts[timeline.QUEUED][2] > sum(of_others) - 1e-9


def test_what_make_has_chosen_and_the_processes_of_each_pool(cli, tmp_path):
    pools = "--backend make --backend gymnasium-async --backend subproc --backend loop"
    rest = f"--num-envs 3 --seconds 0.01 --repeats 1 --policy-us 0 --json {tmp_path}/a.json"
    ended = cli(f"bench CartPole-v1 {pools} {rest}")
    assert ended.status == 0
    found = json.loads((tmp_path / "a.json").read_text())
    made = {each["pool"]: each["made"] for each in found}
    processes = {each["pool"]: each["num_processes"] for each in found}
    # Which of the two depends on how long steps take in this minute.
    either = r"  make has chosen (?:Dummy|Shmem(?=.*num_processes=(\d+)))Vec.*"
    chosen = re.search(either, ended.out)
    assert chosen[0] == f"  make has chosen {made['make']}"
    assert processes["make"] == int(chosen[1] or 0)
    cores = min(len(usable_cores()), 3)
    assert (processes["gymnasium-async"], processes["loop"], processes["subproc"]) == (3, 0, cores)
    assert (made["gymnasium-async"], made["loop"]) == ("", "")
    assert made["subproc"].startswith("SubprocVectorEnv(num_envs=3")
