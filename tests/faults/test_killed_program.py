"""A program is killed: its worker processes, and the processes of their envs, end too."""

import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from envpool_py import ShmemVectorEnv
from tests.support import envs
from tests.support.helpers import ROOT, wait_until
from tests.support.places import paired, soak

MARK = "ENVPOOL_PY_TEST"
CONTEXTS = ("fork", "forkserver", "spawn")
HOW = ("SIGKILL", "SIGTERM", "_exit")


class Simulated(envs.CountEnv):
    """Has a process, in the group of its worker process."""

    def __init__(self, tag):
        super().__init__(tag)
        self.process = subprocess.Popen(["sleep", "1000"])


def run_until_killed(how, context, delay):
    def end():
        if how == "_exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, how))

    threading.Timer(float(delay), end).start()
    pool = ShmemVectorEnv([partial(Simulated, tag) for tag in range(4)], context=context)
    pool.reset()
    while True:
        pool.step([0] * 4)


def marked(mark):
    """Return the processes of the machine that have this variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def is_gone(mark):
    return not marked(mark)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("context", "times", "how"),
    [
        *paired(CONTEXTS, [1], HOW),
        *soak(*((context, 17, how) for context in CONTEXTS for how in HOW)),
    ],
)
def test_nothing_is_left(context, times, how):
    for number in range(times):
        mark = f"{os.getpid()}-{context}-{how}-{number}"
        delay = random.Random(mark.partition("-")[2]).uniform(0.0, 1.5)
        program = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, how, context, str(delay)],
            env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )
        assert program.wait(60) in (3, -signal.SIGKILL, -signal.SIGTERM)
        assert wait_until(partial(is_gone, mark)), f"{marked(mark)} left after {delay} s"


if __name__ == "__main__":
    run_until_killed(*sys.argv[1:])
