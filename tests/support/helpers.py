"""How tests wait, and how they count processes, descriptors and shared memory."""

import contextlib
import multiprocessing.forkserver
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The working tree."""


def run_python(*args, cwd=None, env=None, quiet=False, timeout=170):
    """Run Python with these arguments in a separate process; return what it prints.

    ``quiet``: warnings are errors, and nothing is written to stderr.
    """
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if quiet:
        own["PYTHONWARNINGS"] = "error"
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={**(env or {}), **own},
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (quiet and done.stderr), done.stderr
    return done.stdout


def wait_until(condition, seconds=60.0):
    """Poll until a condition holds; return whether it came to hold in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def wait_until_blocked(thread):
    """Wait until a thread stands still: in a call that blocks, whatever runs it in between."""
    place, seen = None, 0
    while seen < 20:
        frame = sys._current_frames()[thread.ident]
        here = id(frame), frame.f_lasti
        place, seen = here, seen + 1 if here == place else 0
        time.sleep(0.005)


def children():
    """Return the ids of this process's children, and of the fork server's; zombies included."""
    found = set()
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    tasks = [*Path("/proc/self/task").iterdir()]
    if server is not None:
        tasks += Path(f"/proc/{server}/task").glob("*")
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


@contextlib.contextmanager
def no_process_left():
    """Assert that at the end of the block, at once, no child process is left of those it began."""
    before = children()
    yield
    assert children() <= before


def descriptors():
    """Return the open file descriptors and what each of them is."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def shared_memory():
    """Return the names of shared memory files and semaphores on this machine, torch's left out."""
    names = {entry.name for entry in Path("/dev/shm").iterdir()}
    return {name for name in names if not name.startswith("torch_")}


def shared_by_strangers():
    """Return the names in /dev/shm that processes other than this one and its children use."""
    found = set()
    own = {os.getpid(), *children()}
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in own:
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            lines = (process / "maps").read_text().splitlines()
            lines += [str(link.readlink()) for link in (process / "fd").iterdir()]
            found.update(Path(line.split()[-1]).name for line in lines if "/dev/shm/" in line)
    return found


def left_in_shared_memory(before):
    """Return what has come into /dev/shm since then, and is no stranger's."""
    new = shared_memory() - before
    return new and new - shared_by_strangers()


class Helper(threading.Thread):
    """A thread whose exception reaches the test that joins it."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.job, self.error = target, None

    def run(self):
        try:
            self.job()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def finish(self):
        self.join(120)
        assert not self.is_alive(), "the helper thread hangs"
        if self.error is not None:
            raise self.error
