"""The tiers of the tests, and what holds after each test: nothing is left, nothing hangs.

One pytest runs one tier: `pytest` the quick tests, `pytest -m slow`, `-m peers`, `-m ray` and
`-m soak` the others; files and folders that the command line names change nothing about that. A
process that has torch in it takes twenty times as long to fork, which most tests do, and one that
has started Ray has its threads and processes: so no process runs tests of two tiers.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import inspect
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

import pytest

# Read when NumPy is imported. Each worker process that is forked sets its number of threads, at
# which OpenBLAS begins as many as it had: they look for work for 30 ms.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Read when Tianshou imports Numba, which would compile for longer than all tests of it take.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # worker processes import tests.support.envs by name
    sys.path.insert(0, str(ROOT))

from envpool_py.worker import supervisor  # noqa: E402
from tests.support import envs  # noqa: E402
from tests.support.helpers import (  # noqa: E402
    Helper,
    children,
    descriptors,
    mark_shared_memory,
    shared_memory,
    wait_until,
)

PEERS = ("tests/sb3", "tests/peers", "tests/docs/test_programs_of_peers.py")
PEERS += tuple(f"docs/{page}.md" for page in ("datasets", "pettingzoo", "sb3"))
PEERS += tuple(
    f"tests/envpool_face/test_{name}.py" for name in ("against_envpool", "atari", "examples")
)
PEERS += tuple(f"tests/pettingzoo/test_{name}.py" for name in ("multi_agent_vec_env", "peers"))
"""The files and folders that import the libraries which are compared with or adapted to, or torch.
PettingZoo's other tests need none of them."""

RAY = ("tests/ray", "tests/backends/test_matrix.py")
RAY += tuple(f"tests/pool/test_{name}.py" for name in ("recv_async", "stats", "worker_calls"))
RAY += tuple(f"tests/sessions/test_{name}.py" for name in ("cancels", "chaos", "sessions"))
"""The files and folders whose tests, all or those of any backend, run on Ray too: what the code
of actors decides. The engine's own part, and that of an env's process, is the same everywhere."""

SLOW = ("tests/bench", "tests/cli", "tests/docs/test_programs.py", "tests/soak")
SLOW += ("tests/collector/test_collect.py", "tests/collector/test_linear.py", "tests/pettingzoo")
SLOW += ("tests/faults/test_imported_once.py", "tests/test_examples.py")
SLOW += ("tests/test_hostile_files.py",)
FACE = ("as_async", "equal_to_sync", "faults", "wrappers")
SLOW += tuple(f"tests/gymnasium_face/test_{name}.py" for name in FACE)
"""The files and folders whose tests take long together; single tests are marked."""

QUICK = "not (slow or peers or ray)"

WATCHDOG = 300.0
"""Seconds until a test is ended; many times what the slowest takes on an idle machine."""

PATIENCE = 20.0
"""Seconds until what a test has left counts as left."""


class Hung(BaseException):
    """A test took longer than it may; not an Exception, so that nothing swallows it."""


@functools.cache
def is_in(path, places):
    """Return whether a file or folder is one of these places, or in one."""
    return any(path.is_relative_to(ROOT / place) for place in places)


def is_tier(config, name):
    """Return whether this is the tier that runs."""
    return config.option.markexpr.lstrip("(").startswith(name)


def pytest_configure(config):
    """Choose the tier; let Ctrl-C interrupt, and Ray replace the other backends."""
    tier = config.option.markexpr or QUICK
    config.option.markexpr = tier if "soak" in tier else f"({tier}) and not soak"
    # A shell has the programs that it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_tier(config, "ray"):
        config.pluginmanager.import_plugin("tests.ray.plugin")


def pytest_ignore_collect(collection_path, config):
    """Leave out the files of other tiers: to import them takes as long as many tests."""
    left_out = (*PEERS, *RAY[:1], *(SLOW if is_tier(config, QUICK) else ()))
    if is_tier(config, "ray"):
        wanted = is_in(collection_path, RAY)
    elif is_tier(config, "peers"):
        wanted = is_in(collection_path, PEERS)
    else:
        wanted = not is_in(collection_path, left_out)
    may_have_more = collection_path.is_dir() and not is_in(collection_path, left_out)
    return None if wanted or may_have_more else True  # else its conftest.py is not imported either


def pytest_collection_modifyitems(items, config):
    """Mark the tests of PEERS and SLOW, and of RAY where that is what runs."""
    marked = {"peers": PEERS, "slow": SLOW, "ray": RAY if is_tier(config, "ray") else ()}
    for item in items:
        for mark, places in marked.items():
            if is_in(item.path, places):
                item.add_marker(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in an event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session", autouse=True)
def helpers_of_multiprocessing():
    """Start once what multiprocessing keeps for good, so that no test seems to leave it."""
    supervisor.SLOW_START = WATCHDOG  # no warning because the machine is busy
    with contextlib.suppress(ImportError):  # else every worker process that is forked imports it
        importlib.import_module("threadpoolctl").threadpool_info()
    mark_shared_memory()
    multiprocessing.resource_tracker.ensure_running()
    # For Stable-Baselines3's processes, and ours of one env; others have a server of their own.
    multiprocessing.set_forkserver_preload(["numpy", "gymnasium"])
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def logs_of_peers(tmp_path_factory):
    """Have Stable-Baselines3 make its folders, one for each algorithm, where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


def lasting(look):
    """Return what it sees, once that is nothing or is no longer waited for.

    A machine that is busy takes long for what else is done at once: only a leak waits to the end.
    """
    found = []
    wait_until(lambda: found.append(look()) or not found[-1], PATIENCE)
    return found[-1]


@pytest.fixture(autouse=True)
def nothing_left(helpers_of_multiprocessing, request):
    """Check that the test leaves no process, no descriptor, no thread and no shared memory."""
    del helpers_of_multiprocessing
    if is_tier(request.config, "ray"):  # its plugin looks for what is left
        yield
        return
    gc.collect()
    # What is there now is no test's garbage: not to be looked through again after each of them.
    gc.freeze()
    before = children(), descriptors(), shared_memory(), set(threading.enumerate())
    yield
    gc.collect()
    multiprocessing.active_children()  # reaps
    processes, fds, shm, threads = before

    def opened():
        now = descriptors()
        return len(now) > len(fds) and {fd: now[fd] for fd in now if fds.get(fd) != now[fd]}

    left = lasting(lambda: children() - processes)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it is the fork server's
            os.waitpid(pid, 0)
    assert not left, f"child processes are left: {left}"
    assert not lasting(opened), f"descriptors are left open: {opened()}"
    assert not lasting(lambda: shared_memory() - shm), f"/dev/shm holds {shared_memory() - shm}"
    alive = lasting(lambda: set(threading.enumerate()) - threads)
    assert not alive, f"threads are left: {alive}"


@pytest.fixture(autouse=True)
def watchdog(request):
    """End a test that hangs, with the stack of where it hung."""

    def bark(*_):
        message = f"still running after {WATCHDOG} s"
        raise Hung(message)

    previous = signal.signal(signal.SIGALRM, bark)
    is_soak = request.node.get_closest_marker("soak")
    signal.setitimer(signal.ITIMER_REAL, 0 if is_soak else WATCHDOG)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def gates(tmp_path):
    """Four gates, for envs 0 to 3."""
    return [envs.Gate(tmp_path / f"gate{i}") for i in range(4)]


@pytest.fixture
def run_example(monkeypatch, capsys):
    """Run an example in this process, which has torch; return what it prints.

    As a program it would import torch, and every process that it spawns too.
    """

    def run(name, *args):
        program = ROOT / "examples" / f"{name}.py"
        monkeypatch.syspath_prepend(program.parent)
        monkeypatch.setattr(sys, "argv", [name, *map(str, args)])
        runpy.run_path(str(program))["main"]()
        printed = capsys.readouterr()
        assert not printed.err
        return printed.out.rstrip()

    return run


@pytest.fixture
def beside():
    """Run functions in threads beside the test; joined, and their errors raised, at its end."""
    started = []

    def start(target):
        started.append(Helper(target))
        started[-1].start()
        return started[-1]

    yield start
    for helper in started:
        helper.finish()
