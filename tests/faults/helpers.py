"""What the tests of faults share: the pools to run on, and ways to kill, to signal and to go on."""

import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from envpool_py import ThreadVectorEnv
from envpool_py.worker.host import Life
from tests.support import broken, envs
from tests.support.helpers import ROOT, wait_until, wait_until_blocked
from tests.support.places import PLACES

FNS = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
BROKEN = [functools.partial(broken.BrokenEnv, tag) for tag in range(3)]
GOOD = [""] * 3
RESTART = {"on_error": "restart", "restart_backoff": 0.0}
MODES = (None, "next_step", "same_step")

# The places whose code differs. `SubprocVectorEnv` runs the code of `ShmemVectorEnv`, and the start
# methods differ in nothing but the start: a case of each is enough.
PROCESSES = ("shmem-fork", "shmem-fork-packed")
EACH = ("dummy", *PROCESSES, "shmem-fork-caller", "thread")
NEW = ("shmem-spawn-packed", "shmem-forkserver-packed")
IN_CALLER = ("dummy", "shmem-fork-caller")

# Where env 1 fails.
WHERE = {
    "step": lambda pool, name: pool.step(["", name, ""]),
    "reset": lambda pool, name: pool.reset(options=[None, {"fault": name}, None]),
    "call": lambda pool, name: pool.call("fault", name, id=[1]),
}


def count_fns(num):
    """Return env_fns of CountEnvs with episodes of 50 steps."""
    return [functools.partial(envs.CountEnv, tag, 50) for tag in range(num)]


def made(tag, path, act):
    """Make a FaultEnv; ``act`` is called first, with how often it has been made."""
    act(envs.count_call(path))
    return envs.FaultEnv(tag)


def made_once(tag, path):
    """Make a FaultEnv, the first time that this is called; raise an OSError later."""
    times = envs.count_call(path)
    if times > 1:
        raise OSError(f"made {times} times")
    return envs.FaultEnv(tag)


@contextlib.contextmanager
def reset_pool(place, fns=FNS, **options):
    """Make a pool at this place and reset it; it is closed at the end of the block."""
    with PLACES[place](fns, **options) as pool:
        pool.reset()
        yield pool


def state_of(pid):
    """Return the letter for the state of a process: T stopped, Z zombie, X gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def running(pid):
    """Tell whether a process still runs: a zombie does not."""
    return state_of(pid) not in "ZX"


def kill(pool, i):
    """Kill the worker process of env ``i`` and wait until it has ended."""
    process = pool.workers[i].process
    process.kill()
    process.join()


def expire(pool):
    """Have the next check for envs that hang find each that is in a request, however short."""
    supervisor, states = pool.engine.hosts.supervisor, pool.engine.states
    dog = supervisor.watchdog
    find, limit = dog.find_overdue, dog.limit

    def counted(host):
        """Whether it has counted the messages whose rows are there: it does that after them."""
        late = {*states.waiting().tolist()} - {*pool.engine.arrivals.ids().tolist()}
        is_done = host.life is Life.RUNNING and late.isdisjoint(host.ids)
        return not is_done or host.heartbeat["handled"] >= host.num_sent

    assert wait_until(lambda: all(map(counted, supervisor.hosts)))

    def find_all(sent):
        del dog.find_overdue
        dog.limit = 0.0
        found = find(sent)
        dog.limit, dog.next_check = limit, time.monotonic() + limit
        return found

    dog.find_overdue, dog.next_check = find_all, 0.0


def await_hang(pool, i, others=()):
    """Wait until env ``i`` hangs in its process or thread, and the rows of others have arrived."""

    def hangs():
        poller, arrivals = pool.engine.hosts.supervisor.poller, pool.engine.arrivals
        poller.collect(arrivals.token_chunks)
        begun = i + 1 in pool.engine.block.heartbeats["env"]
        is_still = isinstance(pool, ThreadVectorEnv) or state_of(process.pid) in "ST"
        return begun and is_still and {*others} <= {*arrivals.ids().tolist()}

    process = pool.engine.hosts.of(i).process
    assert wait_until(hangs)
    if isinstance(pool, ThreadVectorEnv):
        wait_until_blocked(process)


BACK_OFF = {"on_error": "restart", "restart_backoff": 60.0, "autoreset_mode": "same_step"}
BACK_OFF |= {"wait_num": 1, "timeout": 0.01, "strict_timeout": True}


def await_back_off(pool, i):
    """Wait until env ``i`` waits for its back-off, in a pool of ``BACK_OFF``; no row comes."""
    while i not in pool.engine.recovery.recreating:
        assert len(pool.recv()[1]) == 0


def mates_of(pool, i):
    """Return the envs that share the process of env ``i``, itself included; or its thread."""
    threads = isinstance(pool, ThreadVectorEnv)
    found = pool.apply(lambda _: threading.get_ident() if threads else os.getpid())
    return [j for j in range(len(pool)) if found[j] == found[i]]


def goes_on(pool, ids):
    """Assert that these envs reset and step, and that the rows are their own and fresh."""
    pool.cancel()
    episodes = pool.get_env_attr("episode", ids)
    obs, infos = pool.reset(ids)
    assert obs.tolist() == [[i, k + 1, 0] for i, k in zip(ids, episodes, strict=True)]
    assert [info["env_id"] for info in infos] == ids
    obs = pool.step([""] * len(ids), ids)[0]
    assert obs.tolist() == [[i, k + 1, 1] for i, k in zip(ids, episodes, strict=True)]


@contextlib.contextmanager
def handling(number, handler):
    """Handle a signal by ``handler`` within the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def raising(error):
    """Return a signal handler that raises this."""

    def handle(*_):
        raise error

    return handle


def signalling(number=signal.SIGUSR1):
    """Return a function that waits until the main thread blocks in a call, and signals it."""
    main = threading.main_thread()

    def send():
        wait_until_blocked(main)
        signal.pthread_kill(main.ident, number)

    return send


def _raise(error):
    raise error


class _Handler:
    def __init__(self, error):
        self.error = error

    def handle(self, signum, frame):  # noqa: ARG002 - of a handler
        raise self.error


def _restoring(error):
    def soft(signum, frame):  # noqa: ARG001 - of a handler
        signal.signal(signum, before)
        raise error

    before = signal.getsignal(signal.SIGUSR1)
    return soft


def _deleting(error):
    def handle(signum, frame):
        del signum, frame
        raise error

    return handle


def _renaming(error):
    def handle(signum, frame, *, extra=None):  # noqa: ARG001 - of a handler
        signum = signal.Signals(signum)
        raise error

    return handle


HANDLERS = {
    "function": raising,
    "lambda": lambda error: lambda signum, frame: _raise(error),  # noqa: ARG005 - of a handler
    "method": lambda error: _Handler(error).handle,
    "restores the previous": _restoring,
    "deletes its arguments": _deleting,
    "renames the signal": _renaming,
}
"""Kinds of signal handlers of users, each a function that makes one that raises this error."""


@contextlib.contextmanager
def limited(kind, value):
    """Set a resource limit of this process within the block."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def run_script(folder, text, *args):
    """Run a program in a new session; return how it ended, with what it wrote as text."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    # Files in place of pipes, which a process that is left over would hold open.
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        done = subprocess.run(
            [sys.executable, str(script), *args],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=err,
            timeout=280,
            check=False,
            start_new_session=True,
        )
    done.stdout, done.stderr = ((folder / name).read_text() for name in ("out", "err"))
    return done
