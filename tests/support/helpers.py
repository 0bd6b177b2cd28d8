"""How tests wait, and how they count processes, descriptors and shared memory."""

import contextlib
import multiprocessing.forkserver
import multiprocessing.shared_memory
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The working tree."""


def run_python(*args, cwd=None, env=None, quiet=False, timeout=280):
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


def forget(*folders):
    """Forget what was imported from files of these folders."""
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "/").parent in folders:
            del sys.modules[name]


def wait_until(condition, seconds=60.0):
    """Poll until a condition holds; return whether it came to hold in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def wait_until_blocked(thread):
    """Wait until a thread ends, or stands still: in a call that blocks, whatever runs it before.

    One that only waits for a core has another state.
    """
    stat, place, seen = Path(f"/proc/self/task/{thread.native_id}/stat"), None, 0
    while seen < 20:
        try:
            frame = sys._current_frames()[thread.ident]
            sleeps = stat.read_text().rpartition(")")[2].split()[0] == "S"
        except (KeyError, FileNotFoundError, ProcessLookupError):  # it has ended
            return
        here = id(frame), frame.f_lasti
        place, seen = here, seen + 1 if sleeps and here == place else 0
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
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - twice in each test: paths take longer
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    return found


def mark_shared_memory():
    """Have multiprocessing put the id of this process into its names in /dev/shm.

    Locks have it in all child processes too, shared memory in those that are forked.
    """
    multiprocessing.current_process()._config["semprefix"] = f"/mp{os.getpid()}"
    multiprocessing.shared_memory._SHM_NAME_PREFIX = f"/p{os.getpid()}_"


def shared_memory():
    """Return the names in /dev/shm that this process and its child processes have made."""
    own = tuple(form.format(os.getpid()) for form in ("sem.mp{}-", "p{}_", "pym-{}-"))
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(own)}


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
