"""Signals at random times, two within one call too, on every backend: the envs go on.

``python -m tests.soak.test_signals SEED ROUNDS`` runs the rounds of one seed, which a failure
prints: its pool, options, calls and times are the same again.
"""

import collections
import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import EnvError, ShmemVectorEnv
from tests.support.envs import CountEnv
from tests.support.every_line import DIE, END, FINE, RAISE, Scene, WrongError
from tests.support.helpers import ROOT, children, descriptors, run_python, shared_memory, wait_until
from tests.support.places import PLACES

ROUNDS = 400
HANGS_AFTER = 60
ALONE = "dummy", "shmem-fork", "shmem-fork-caller", "shmem-fork-packed", "thread"
NEEDS = ("reset before step", "no env is in flight", "not in flight; send")


class Alarm(Exception):  # noqa: N818 - no error
    """What the handler raises."""


class Signals:
    """Raises at these times, in seconds; each counts from the one before."""

    def __init__(self, times):
        self.times, self.fired, self.is_over = list(times), 0, False

    def arm(self):
        if self.times:
            signal.setitimer(signal.ITIMER_REAL, self.times.pop(0))

    def __call__(self, *_):
        if not self.is_over:
            self.fired += 1
            self.arm()
            raise Alarm


def attempt(times, call):
    """Run a call with signals at these times; return their number, and its result or error."""
    signals = Signals(times)
    signal.signal(signal.SIGALRM, signals)
    try:
        try:
            signals.arm()
            result = call()
        finally:
            signals.is_over = True
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        signals.is_over, result = True, error  # no signal comes before this
    signal.setitimer(signal.ITIMER_REAL, 0)
    return signals.fired, result


def options_of(rng, place, folder):
    """Return the options of a pool: ``finding 18`` has its own."""
    if rng.random() < 0.3 and place == "dummy":
        found = {"on_error": "restart", "wait_num": 3, "timeout": 0.01, "episode_seeds": True}
        return found | {"record": folder / "record", "restart_backoff": 0.0, "max_restarts": None}
    found = {"on_error": rng.choice(("raise", "restart"))}
    if found["on_error"] == "restart":
        found |= {"restart_backoff": 0.0, "max_restarts": None}
    found["autoreset_mode"] = rng.choice((None, "next_step", "same_step"))
    if rng.random() < 0.5:
        found |= {"wait_num": rng.randint(1, 3), "timeout": rng.choice((None, 0.01))}
    if rng.random() < 0.3:
        found["step_timeout"] = 30.0
    if rng.random() < 0.3:
        found |= {"episode_seeds": True, "record": folder / "record"}
    if place in ("dummy", "shmem-fork-caller"):
        found.pop("step_timeout", None)
    return found


def check(scene, batch):
    for row, info in zip(batch[0].tolist(), batch[-1], strict=True):
        if row[0] != info["env_id"] or row[1] > scene.number:
            raise WrongError(f"env {info['env_id']} returned {row}")


def call_of(rng, scene, place):
    """Return the name of a random call, and the call."""
    pool, ids = scene.pool, rng.sample(scene.ids, rng.randint(1, len(scene.ids)))
    acts = (FINE, FINE, FINE, END, RAISE, DIE if "fork" in place and "caller" not in place else END)
    actions = [rng.choice(acts) for _ in ids]
    calls = {
        "step": lambda: check(scene, pool.step(actions, ids)),
        "send": lambda: pool.send(actions, ids),
        "recv": lambda: check(scene, pool.recv()),
        "drain": lambda: check(scene, pool.drain()),
        "reset": lambda: check(scene, pool.reset(ids, options=scene.reset_options())),
        "send_reset": lambda: pool.send_reset(ids, options=scene.reset_options()),
        "restart": lambda: pool.restart(ids),
        "cancel": lambda: pool.cancel(ids),
        "call": lambda: pool.call("poke", id=ids),
        "waiting_id": lambda: pool.waiting_id,
    }
    name = rng.choice([*calls])
    return f"{name} {ids} {actions}", calls[name]


def accepted(error):
    """Tell whether a call may raise this after an interrupt."""
    kinds = Alarm, EnvError, AlreadyPendingCallError, ResetNeeded
    return isinstance(error, kinds) or any(text in str(error) for text in NEEDS)


def run(seed, rounds):
    """Run the rounds of one seed; return how many signals came."""
    rng = random.Random(seed)
    place = ALONE[seed % len(ALONE)]
    count = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        options = options_of(rng, place, Path(folder))
        sys.stdout.write(f"{place} {options}\n")

        def make(env_fns, _):
            return PLACES[place](env_fns, **options)

        scene = Scene(make, 4, 1, (1,), restarts=options["on_error"] == "restart")
        for number in range(rounds):
            faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
            log = []
            for _ in range(rng.randint(1, 4)):
                name, call = call_of(rng, scene, place)
                times = [rng.expovariate(1 / 4e-4) + 1e-6]
                times += [rng.uniform(1e-6, 3e-4)] * (rng.random() < 0.5)
                fired, result = attempt(times, call)
                count[fired] += 1
                log.append(f"{name}: {result!r}")
                if isinstance(result, Exception) and not accepted(result):
                    raise WrongError(f"round {number}: {log}") from result
            try:
                settle(rng, scene)
            except (WrongError, EnvError, ResetNeeded, AlreadyPendingCallError) as wrong:
                raise WrongError(f"round {number} [{scene.stage}]: {log}") from wrong
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        result = None  # an error's frames may hold arrays of the block
        scene.close()
        faulthandler.cancel_dump_traceback_later()
        scene.check_left(scene.before)
    sys.stdout.write(f"{rounds} rounds; calls by number of signals: {dict(count)}\n")


def settle(rng, scene):
    """Drain or cancel what is in flight; then all envs must reset and step."""
    for _ in range(20):
        if rng.random() < 0.3:
            scene.pool.cancel()
        if not scene.pool.waiting_id:
            break
        with contextlib.suppress(EnvError):
            check(scene, scene.pool.drain())
    scene.go_on(None)


def open_now():
    """Return the open descriptors, shared memory, child processes and threads."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # of a fork server that has ended
            pass
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("memfd:envpool")
    return {*descriptors().items()}, shared_memory(), maps, children(), threading.active_count()


def construct(seed, rounds, method):
    """Interrupt so many constructions of a pool, each at a random time; it must leave nothing.

    Call it by ``python -c``: a spawned process imports a main module again.
    """
    rng, env_fns = random.Random(seed), [functools.partial(CountEnv, tag) for tag in range(2)]
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans are seen as children
    with tempfile.TemporaryDirectory() as folder:

        def make():
            return ShmemVectorEnv(env_fns, context=method, record=Path(folder, "record"))

        make().close()  # what it opens once stays
        before, begun, count = open_now(), time.monotonic(), 0
        make().close()
        longest = time.monotonic() - begun
        for number in range(10 * rounds):
            faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
            after = 1e-6 + longest * rng.random() * rng.choice((1, 0.1))
            fired, result = attempt([after], make)
            assert isinstance(result, Alarm if fired else ShmemVectorEnv), result
            count += fired
            if not fired:
                result.close()
            result = None
            if not wait_until(lambda: open_now() == before, 10):
                text = f"seed {seed}, round {number}, after {after} seconds"
                raise WrongError(f"{text}: {before} {open_now()}")
            if count == rounds:
                break
    sys.stdout.write(f"{count} interrupted constructions of {number + 1}\n")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_signals_at_random_times(seed):
    command = [sys.executable, "-m", "tests.soak.test_signals", str(seed), str(ROUNDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"


@pytest.mark.soak
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_construction_that_is_interrupted_at_a_random_time_leaves_nothing(method):
    call = f"construct({random.randrange(10**6)}, 500, {method!r})"
    run_python("-c", f"from tests.soak.test_signals import construct; {call}", timeout=7200)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    functools.partial(run, *map(int, sys.argv[1:]))()
