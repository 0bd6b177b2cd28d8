"""`make`, what `"auto"` chooses, and what processes are given."""

import functools
import multiprocessing
import os
import re
import signal
import tempfile
import time

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import (
    DummyVectorEnv,
    EnvError,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    make,
)
from envpool_py.pool import backend_choice
from envpool_py.testing import CountingEnv
from envpool_py.worker.cores_and_threads import usable_cores
from tests.support import envs
from tests.support.helpers import no_process_left, run_python
from tests.support.places import paired
from tests.support.reference import same

CHEAP, BUSY, IDLE = (
    backend_choice.Probe(1e-5, 1e-5),
    backend_choice.Probe(1e-3, 1e-3),
    backend_choice.Probe(5e-5, 1e-6),
)
DISTURBED = CHEAP._replace(disturbed=True)


def waits(_env, _action, row):
    time.sleep(0.005)
    return row


@pytest.mark.parametrize(
    "step", [waits, lambda *_: os.kill(os.getpid(), signal.SIGKILL), lambda *_: time.sleep(600)]
)
def test_an_env_that_waits_or_cannot_be_measured_has_a_process_of_its_own(step, monkeypatch):
    monkeypatch.setattr("envpool_py.pool.backend_choice.LONGEST_PROBE", 0.3)
    with make(envs.ChangedEnv, 3, env_kwargs={"step": step}) as pool:
        assert len(set(pool.call("pid"))) == 3
    fns = [functools.partial(envs.ChangedEnv, step=step)] * 3
    with ShmemVectorEnv(fns, num_processes="auto") as pool:
        assert "num_processes=3" in repr(pool)


class BusyMachine:
    """Clocks of a thread whose steps compute for 1 ms and wait for a core or sleep for 4 ms."""

    def __init__(self, sleeps):
        self.now = self.cpu = self.kept = 0.0
        self.sleeps = sleeps

    def step(self, _env, _action, row):
        self.now += 0.005
        self.cpu += 0.001
        self.kept += 0.0 if self.sleeps else 0.004
        return row

    perf_counter = property(lambda self: lambda: self.now)
    thread_time = property(lambda self: lambda: self.cpu)

    def read_text(self):
        return f"{self.cpu * 1e9:.0f} {self.kept * 1e9:.0f} 7"


@pytest.mark.parametrize("sleeps", [False, True])
def test_an_env_that_computes_does_not_seem_to_wait_on_a_busy_machine(sleeps, monkeypatch, beside):
    machine, found = BusyMachine(sleeps), []
    monkeypatch.setattr(backend_choice, "time", machine)
    monkeypatch.setattr(backend_choice, "Path", lambda _: machine)
    env = envs.ChangedEnv(step=machine.step)
    beside(lambda: found.append(backend_choice._measure(env, 0.1))).finish()
    measured = backend_choice.Probe(*found[0])
    assert measured.waits is sleeps
    assert (measured.cpu, measured.wall) == pytest.approx((0.001, 0.005 if sleeps else 0.001))


def test_the_probe_makes_its_own_env_in_its_own_process(tmp_path):
    def made():
        (tmp_path / "pid").write_text(str(os.getpid()))
        return CountingEnv()

    assert backend_choice.probe(made).wall >= 0  # though action 3, which it draws, raises
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    with pytest.raises(EnvError, match="env 0: env_fn raised ValueError: no licence"):
        make(lambda: envs.raise_in_constructor("no licence"), 2)


@pytest.mark.parametrize("measured", [CHEAP, BUSY])
def test_on_one_core_nothing_can_be_done_at_the_same_time(measured, monkeypatch):
    monkeypatch.setattr(backend_choice, "usable_cores", lambda: [0])
    assert backend_choice.choose(measured, 64) == ("dummy", None, False)


TWO, LEFT_OUT = {"num_envs": 2}, ", autoreset_mode='same_step'"
RESTART = {"on_error": "restart"}
SPREAD = "ShmemVectorEnv(num_envs=64, num_processes=2)"
SHARED = "ShmemVectorEnv(num_envs=64, num_processes=1, caller_steps=True)"
FIVE_ALONE = "ShmemVectorEnv(num_envs=5, num_processes=5)"
FEW, FEW_SPREAD = "DummyVectorEnv(num_envs=2)", "ShmemVectorEnv(num_envs=2, num_processes=2)"
# An env, the options of `make`, and the repr of the pool.
MADE = [
    (CHEAP, {}, SHARED),
    *((CHEAP, o, SPREAD) for o in ({"caller_steps": False}, RESTART)),
    *((CHEAP, o, SPREAD) for o in ({"step_timeout": 9.0}, {"num_processes": 2})),
    (CHEAP, {"on_error": "raise"}, SPREAD),  # the caller steps none
    (CHEAP, {"context": "fork"}, SPREAD),
    (CHEAP, TWO | {"context": "fork"}, FEW_SPREAD),
    (CHEAP, {"wait_num": 8}, "ShmemVectorEnv(num_envs=64, wait_num=8, num_processes=2)"),
    (CHEAP, TWO, FEW),
    *(
        (CHEAP, TWO | o, FEW_SPREAD)
        for o in ({"threads_per_process": 2}, {"step_timeout": None}, RESTART)
    ),
    (CHEAP, TWO | RESTART | {"backend": "dummy"}, FEW),
    (CHEAP, TWO | {"on_error": "raise"}, FEW),
    (BUSY, {"num_envs": 5}, "ShmemVectorEnv(num_envs=5, num_processes=2)"),
    (CHEAP, TWO | {"wait_num": 1}, "ShmemVectorEnv(num_envs=2, wait_num=1, num_processes=2)"),
    *((env, TWO, FEW_SPREAD) for env in (IDLE, DISTURBED)),
    *((env, {"num_envs": 5}, FIVE_ALONE) for env in (IDLE, DISTURBED)),
    *((env, {"num_envs": 1}, "DummyVectorEnv(num_envs=1)") for env in (CHEAP, DISTURBED)),
]


@pytest.mark.parametrize(("measured", "options", "expected"), MADE, ids=str)
def test_what_make_chooses(measured, options, expected, monkeypatch):
    monkeypatch.setattr(backend_choice, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(backend_choice, "probe", lambda *_, **__: measured)
    with make(CountingEnv, **{"num_envs": 64, **options}) as pool:
        # The default start method is forkserver from Python 3.14 on.
        left_out = rf"{re.escape(LEFT_OUT)}|, context='\w+'|, on_error='restart'"
        assert re.sub(left_out, "", repr(pool)) == expected


BAD = [
    ((CountingEnv, 8), {"wait_num": "auto"}, TypeError, "wait_num must be an int or None"),
    ((CountingEnv, 8), {"wait_num": 9}, ValueError, r"in \[1, 8\], but got 9"),
    (("CartPole-v1", 0), {}, ValueError, "num_envs.*0"),
    (("CartPole-v1",), {"backend": "gpu"}, ValueError, "ray, auto, got 'gpu'$"),
    (("CartPole-v1",), {"backend": "threads"}, ValueError, "'threads'; did you mean thread"),
    (("classic/tictactoe-v3",), {}, gym.error.Error, "; an env of PettingZoo: .* PettingZooEnv"),
    ((5,), {}, TypeError, "int"),
    ((CountingEnv,), {"backend": "shmem", "num_processes": "many"}, ValueError, "'many'"),
]


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "dummy"},
        {"backend": "thread"},
        {"backend": "shmem", "num_processes": 1},
        {"num_processes": 2},
        {"num_processes": None, "caller_steps": False},
    ],
)
def test_no_env_is_made_beyond_those_of_the_pool(options, tmp_path):
    """If nothing is to be chosen, nothing is measured."""

    def made():
        descriptor, _ = tempfile.mkstemp(dir=tmp_path)
        os.close(descriptor)
        return CountingEnv()

    context = {} if options.get("backend") in ("dummy", "thread") else {"context": "fork"}
    with make(made, 2, **options, **context):
        assert len(list(tmp_path.iterdir())) == 2


def test_bad_arguments(monkeypatch):
    monkeypatch.setattr(backend_choice, "probe", lambda *_: pytest.fail("an env was measured"))
    for args, options, error, text in BAD:
        with pytest.raises(error, match=text):
            make(*args, **options)


def to_integers(env):
    return gym.wrappers.TransformReward(env, round)


def test_make_equals_envs_made_by_hand():
    options = {"env_kwargs": {"g": 5.0}, "wrappers": [to_integers]}
    with make("gymnasium:Pendulum-v1", 3, **options) as pool:
        raw = [to_integers(gym.make("Pendulum-v1", g=5.0)) for _ in range(3)]
        obs, _ = pool.reset(seed=4)
        assert same(obs, np.stack([env.reset(seed=4 + i)[0] for i, env in enumerate(raw)]))
        actions = np.full((3, 1), 0.5, dtype=np.float32)
        rows = [env.step(action) for env, action in zip(raw, actions, strict=True)]
        obs, reward, *_ = pool.step(actions)
        assert same(obs, np.stack([row[0] for row in rows]))
        assert reward.tolist() == [row[1] for row in rows]


def test_make_resets_at_the_end_and_returns_arrays():
    env = functools.partial(envs.SpaceEnv, 0, "dict", 1)
    with make(env, 3, backend="dummy") as pool:
        pool.reset()
        obs, *_, infos = pool.step([pool.action_space[0].sample()] * 3)
        assert obs["speed"].shape == (3, 2)
        assert [info["episode"] for info in infos] == [1] * 3
        assert infos[1]["final_obs"].keys() == {"image", "speed"}
    with make(env, backend="dummy", autoreset_mode=None, columns=False) as pool:
        assert pool.autoreset_mode is None
        assert pool.reset()[0][0].keys() == {"image", "speed"}


def test_the_threads_and_cores_of_worker_processes(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = usable_cores()
    for options, threads, expected in (
        ({"threads_per_process": 2}, "2", [cores] * 3),
        ({"affinity": True}, "1", [[core] for core in cores * 3][:3]),
    ):
        with SubprocVectorEnv([CountingEnv] * 3, **options) as pool:
            assert pool.apply(lambda _: os.environ.get("OMP_NUM_THREADS")) == [threads] * 3
            assert pool.apply(lambda _: sorted(os.sched_getaffinity(0))) == expected
    assert usable_cores() == cores


def test_a_daemonic_process_has_pools_without_processes():
    text = "a daemonic process, such as a DataLoader worker, cannot have worker processes; use "

    def use():
        for kind in (ShmemVectorEnv, functools.partial(make, backend="shmem")):
            env = [CountingEnv] if kind is ShmemVectorEnv else CountingEnv
            refused = pytest.raises(NotImplementedError, match=f"{text}ThreadV.* or DummyVectorEnv")
            with no_process_left(), refused:
                kind(env, num_processes=1)
        for env, options, expected in (
            (CountingEnv, {"wait_num": 1, "on_error": "restart"}, DummyVectorEnv),
            (CountingEnv, {"step_timeout": 60}, ThreadVectorEnv),
            (functools.partial(envs.ChangedEnv, step=waits), {}, ThreadVectorEnv),
        ):
            with make(env, 2, **options) as pool:
                pool.reset()
                pool.step([0, 0])
                assert type(pool) is expected

    process = multiprocessing.get_context("fork").Process(target=use, daemon=True)
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0


# The names that issue 16 lists, and what else Windows lacks.
HIDE = """\
import multiprocessing, os, select, signal, socket, sys

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(arguments[0])

sys.addaudithook(refuse)
names = {
    os: "fork forkpty register_at_fork killpg getpgid setpgid getppgrp sched_yield memfd_create "
    "sched_getaffinity sched_setaffinity pidfd_open posix_fallocate getuid",
    select: "epoll poll PIPE_BUF",
    signal: "SIGKILL SIGALRM SIGSTOP SIGCONT SIGRTMAX setitimer pthread_sigmask",
    socket: "MSG_DONTWAIT MSG_WAITALL AF_UNIX",
}
multiprocessing.get_all_start_methods = lambda: ["spawn"]
for name in ("fcntl", "resource", "termios", "pwd"):
    sys.modules[name] = None
for module, each in names.items():
    for name in each.split():
        vars(module).pop(name, None)
"""

USE = """\
import gymnasium as gym
import numpy as np
from envpool_py import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from envpool_py import make, sb3

env_fns = [lambda: gym.make("CartPole-v1")] * 2
with gym.make("CartPole-v1") as hand:
    shown = [hand.reset(seed=3)[0], hand.step(1)[0]]
with DummyVectorEnv(env_fns, wait_num=1, record=sys.argv[1]) as pool:
    assert np.array_equal(pool.reset(seed=3)[0][0], shown[0])
    assert np.array_equal(pool.step([1, 1])[0][0], shown[1])
    pool.drain()
with ThreadVectorEnv(env_fns, wait_num=1, step_timeout=60.0) as pool:
    assert np.array_equal(pool.reset(seed=3)[0][0], shown[0])
    pool.send([1, 1])
    assert np.array_equal(pool.step(None, [0])[0][0], shown[1])
venv = sb3.DummyVecEnv(env_fns)
venv.seed(3)
assert np.array_equal(venv.reset()[0], shown[0])
venv.close()
with make("CartPole-v1", 2) as pool:
    assert type(pool) is DummyVectorEnv
for kind in (
    lambda: ShmemVectorEnv(env_fns),
    lambda: SubprocVectorEnv(env_fns, num_processes="auto"),
    lambda: sb3.SubprocVecEnv(env_fns, start_method="spawn"),
    lambda: make("CartPole-v1", 2, num_processes=2),
    lambda: make("CartPole-v1", 2, backend="shmem"),
):
    try:
        kind()
    except NotImplementedError as error:
        print(error)
"""
REFUSAL = "worker processes need os.fork.* which this platform lacks"
REFUSAL += "; use ThreadVectorEnv or DummyVectorEnv"


@pytest.mark.slow
def test_a_platform_without_worker_processes(tmp_path):
    printed = run_python("-c", HIDE + USE, f"{tmp_path}/record", env={"PATH": ""})
    assert [bool(re.fullmatch(REFUSAL, line)) for line in printed.splitlines()] == [True] * 5


@pytest.mark.parametrize(
    ("env", "how"),
    paired([envs.SharingEnv, envs.OnceEnv, envs.DiesTwiceEnv], ["make", "auto", "make"]),
)
def test_envs_that_disturb_each_other_get_a_process_each(env, how):
    if how == "make":
        pool = make(env, 3, autoreset_mode=None)
    else:
        pool = ShmemVectorEnv([env] * 3, num_processes="auto")
    with pool:
        assert len({worker.process.pid for worker in pool.workers}) == 3
        pool.reset(seed=1)
        for step in (1, 2):
            obs = pool.step([0] * 3)[0]
            assert [int(row[0]) for row in obs] == [step] * 3
