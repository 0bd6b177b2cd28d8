"""Read files as a user would, within limits of memory and time; print each outcome as JSON.

``python -m tests.support.hostile_reader READER,... FILE ...``: a line for each reader and file. A
crash, and a file that takes more than a minute, ends the program.
"""

import contextlib
import io
import itertools
import json
import resource
import signal
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym

from envpool_py import EnvError, ReplayError, replay
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.sb3.common.vec_env.dummy_vec_env import DummyVecEnv
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize
from tests.support import envs


class FailsInItsFifthStep(envs.SpaceEnv):
    """Has nested spaces, and fails in the fifth step since it was made."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 5:
            raise ValueError("the fifth step")
        return super().step(action)


ENV_FNS = [partial(FailsInItsFifthStep, tag, "nested") for tag in range(2)]
STATISTICS_ENV = partial(gym.make, "CartPole-v1")
#: What a file may add to the memory of the program.
MEMORY = 600 << 20


def read_episodes(path, *, mmap=False):
    found = load(path, mmap=mmap)
    list(found)
    found.transitions()


def read_record(path):
    again = replay(path, ENV_FNS)
    with again, contextlib.suppress(EnvError, ReplayError):  # the file is of another run
        list(again)


def read_statistics(path):
    VecNormalize.load(path, DummyVecEnv([STATISTICS_ENV]))


def run_command(*arguments):
    """Run a command; its outcome is wrong if it raises, or prints control characters."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(list(map(str, arguments)))
    text = out.getvalue()
    assert text.replace("\n", "").isprintable(), repr(text)
    if status == 2:
        raise ValueError(text)


READERS = {
    "load": read_episodes,
    "mmap": partial(read_episodes, mmap=True),
    "replay": read_record,
    "VecNormalize": read_statistics,
    "show": partial(run_command, "show"),
    "replay command": partial(run_command, "replay"),
}


def outcome_of(reader, path):
    """Return "read", "refused" (a ValueError that names the file), or what else has happened."""
    try:
        READERS[reader](path)
    except ValueError as error:
        named = str(path) in str(error)
        return "refused" if named else f"does not name the file: {error}"
    except Exception:  # noqa: BLE001 - the outcome
        return traceback.format_exc()
    return "read"


if __name__ == "__main__":
    readers, *files = sys.argv[1:]
    warnings.simplefilter("ignore")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY,) * 2)
    for reader, file in itertools.product(readers.split(","), files):
        signal.alarm(60)
        print(json.dumps([reader, Path(file).name, outcome_of(reader, file)]), flush=True)  # noqa: T201
