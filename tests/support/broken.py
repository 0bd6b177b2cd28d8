"""The env of the table of faults: it breaks in the way that its action names. Light to import."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from tests.support import envs


def worker_process():
    """Return the object that serves this worker process, found on the stack that runs the env."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if hasattr(found, "_executors") and hasattr(found, "_connection"):
            return found
        frame = frame.f_back
    raise LookupError("no worker process around")


def sleep_indefinitely(*, with_gil=False):
    while True:  # a signal ends the sleep, and not the loop
        ctypes.PyDLL(None).sleep(60) if with_gil else time.sleep(60)


def child_process(path):
    """Start a process that never ends by itself; its id is in the file."""
    text = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    Path(path).write_text(str(subprocess.Popen([sys.executable, "-c", text]).pid))


class Bell:
    """Sends the process that unpickles it a signal."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGUSR1,)


class BrokenEnv(envs.FaultEnv):
    """Does as its action says, `"NAME"` or `"NAME:ARGUMENT"`; its actions may be anything."""

    def __init__(self, tag=0, length=50):
        super().__init__(tag, length)
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        del self.action_space
        self.asked = None

    def observe(self):
        return np.array([self.tag, self.episode, self.t], np.float32)

    def step(self, action):
        name, _, argument = action.partition(":") if isinstance(action, str) else ("", "", "")
        if hasattr(self, f"do_{name}"):
            getattr(self, f"do_{name}")(argument)
        row = super().step(name)
        if name == "bell":
            return *row[:4], {"bell": Bell()}
        if isinstance(action, np.ndarray):
            return *row[:4], {"array": action + self.tag}
        return row

    # What an action names; each is called with its argument.

    def do_signal(self, pid):
        os.kill(int(pid), signal.SIGUSR1)

    def do_interrupt(self, pid):
        os.killpg(int(pid), signal.SIGINT)

    def do_orphan(self, path):
        """Leave a process behind that holds all descriptors of this one."""
        if os.fork() == 0:
            Path(path).write_text(str(os.getpid()))
            sleep_indefinitely()
        while not (Path(path).exists() and Path(path).read_text()):
            time.sleep(0.001)
        os._exit(37)

    def do_closefds(self, _):
        os.closerange(3, 256)

    def do_disconnect(self, _):
        os.closerange(3, 256)
        sleep_indefinitely()

    def do_stubborn(self, path):
        """Hang, ignore SIGTERM, and have a child process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child_process(path)
        sleep_indefinitely()

    def do_gil(self, _):
        sleep_indefinitely(with_gil=True)

    def do_stop(self, _):
        os.kill(os.getpid(), signal.SIGSTOP)
        sleep_indefinitely()

    def do_rubbish(self, _):
        worker_process()._connection._stream.sendall(b"what an env has no business to write\n" * 9)
        sleep_indefinitely()

    def do_unreadable(self, _):
        """Write what looks like a message, up to its pickle."""
        process = worker_process()
        process._connection._stream.sendall(b"".join(self._item(process, b"no pickle", 9)))
        sleep_indefinitely()

    def do_cut(self, _):
        """Die in the midst of a message that has come in several pieces."""
        process = worker_process()
        head, data = self._item(process, bytes(1 << 20), 1 << 30)
        process._connection._stream.sendall(head)
        process._connection._stream.sendall(data)
        os.kill(os.getpid(), signal.SIGKILL)

    def do_results(self, _):
        os.write(worker_process()._connection._results, b"not a multiple of four")
        sleep_indefinitely()

    def _item(self, process, data, length):
        from envpool_py.worker import messages  # noqa: PLC0415 - in the process

        return messages.ITEM.pack(process.ids[0], messages.CLOSED, length), data


def inner_rows(env, kind, action):
    """Make a pool in the process of an env, step it, and return the observations."""
    del env
    pool = DummyVectorEnv if kind == "dummy" else ShmemVectorEnv
    options = {} if kind == "dummy" else {"context": "fork"}
    with pool([BrokenEnv, BrokenEnv], **options) as inner:
        inner.reset()
        return inner.step(["", action])[0].tolist()


class WideEnv(envs.CountEnv):
    """Its observation takes 4 MB."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (1 << 20,), np.float32)

    def observe(self):
        return np.zeros(1 << 20, np.float32)


def hang_at_birth(path):
    """Write the id of this process into a file, and make no env, ever."""
    path.write_text(str(os.getpid()))
    sleep_indefinitely()
