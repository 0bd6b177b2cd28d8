"""The tiers of the tests, and what holds after each test: nothing is left, nothing hangs.

`pytest` runs the quick tests, `pytest -m peers` those of PEERS, `pytest -m ray` those of RAY,
`pytest -m soak` the soaks, and `pytest -m "not soak"` everything else: first what needs no other
library, then, in a second and a third pytest, the peers and Ray. A process that has torch in it
takes twenty times as long to fork, which most tests do, and one that has started Ray has its
threads and processes: so no process runs tests of two kinds. Tests that the command line names run
whatever their tier, soaks excepted.
"""

import collections
import contextlib
import gc
import importlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import subprocess
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

from tests.support import envs  # noqa: E402
from tests.support.helpers import (  # noqa: E402
    Helper,
    children,
    descriptors,
    mark_shared_memory,
    shared_memory,
    wait_until,
)

PEERS = ("tests/sb3", "tests/pettingzoo", "tests/peers", "tests/docs/test_programs_of_peers.py")
PEERS += tuple(f"docs/{page}.md" for page in ("datasets", "pettingzoo", "sb3"))
PEERS += tuple(
    f"tests/envpool_face/test_{name}.py" for name in ("against_envpool", "atari", "examples")
)
"""The files and folders that import the libraries which are compared with or adapted to."""

RAY = ("tests/ray", "tests/backends", "tests/pool", "tests/sessions")
"""The files and folders whose tests, all or those of any backend, run on Ray too."""

SLOW = ("tests/bench", "tests/cli", "tests/docs/test_programs.py", "tests/soak")
SLOW += ("tests/collector/test_collect.py", "tests/envpool_face/test_faults.py")
SLOW += ("tests/test_examples.py", "tests/test_hostile_files.py")
FACE = ("as_async", "equal_to_sync", "faults", "wrappers")
SLOW += tuple(f"tests/gymnasium_face/test_{name}.py" for name in FACE)
"""The files and folders whose tests take long together; single tests are marked."""

THINNED = {
    "tests/backends/test_matrix.py": 4,
    "tests/collector/test_evaluate.py": 8,
    "tests/collector/test_kills.py": 4,
    "tests/collector/test_rollout.py": 2,
    "tests/collector/test_steps.py": 2,
    "tests/faults/test_forks.py": 2,
    "tests/faults/test_interrupts.py": 3,
    "tests/faults/test_matrix.py": 8,
    "tests/faults/test_restart.py": 3,
    "tests/faults/test_table.py": 8,
    "tests/sessions/test_cancels.py": 3,
    "tests/sessions/test_refusals.py": 3,
    "tests/sessions/test_sessions.py": 3,
    "tests/test_doors.py": 4,
}
"""Of each parametrised test of these files every n-th case is kept; the others are soaks.

On Ray every second case is kept, and all of Ray's own tests.
"""

ONLY_QUICK = "not (slow or peers or soak)"
EVERYTHING = "not soak"
WITHOUT_PEERS = "not (peers or soak)"
ONLY_PEERS = "peers and not soak"
ONLY_RAY = "ray and not soak"

WATCHDOG = 180.0
"""Seconds until a test is ended; many times what the slowest takes on an idle machine."""

PATIENCE = 20.0
"""Seconds until what a test has left counts as left."""


class Hung(BaseException):
    """A test took longer than it may; not an Exception, so that nothing swallows it."""


def is_in(path, places):
    """Return whether a file or folder is one of these places, or in one."""
    return any(path.is_relative_to(ROOT / place) for place in places)


def names_tests(config):
    """Return whether the command line names files or folders."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def is_ray(config):
    """Return whether it is Ray's tests that run: they replace the places of the others."""
    named = names_tests(config) and any("tests/ray" in arg for arg in config.args)
    return named or config.option.markexpr.startswith("ray")


def pytest_configure(config):
    """Let Ctrl-C interrupt, and Ray replace the other backends before their tests are imported."""
    # A shell has the programs that it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_ray(config):
        config.pluginmanager.import_plugin("tests.ray.plugin")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config):
    """Choose the tier; run the peers, and Ray's tests, once this pytest has run the others."""
    if not config.option.markexpr:
        config.option.markexpr = EVERYTHING if names_tests(config) else ONLY_QUICK
    if config.option.markexpr != EVERYTHING or names_tests(config):
        return (yield)
    config.option.markexpr = WITHOUT_PEERS
    status = yield
    # A process of pytest-xdist is given the same arguments: it runs none of the other tiers.
    if status == pytest.ExitCode.INTERRUPTED or hasattr(config, "workerinput"):
        return status
    given = config.invocation_params.args

    def command(tier, *more):
        args = [*(tier if arg == EVERYTHING else arg for arg in given), *more]
        return [sys.executable, "-m", "pytest", *args]

    # Ray's tests wait most of the time; Ray has processes enough.
    alone = ["-n", "0"] if config.pluginmanager.hasplugin("xdist") else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command(ONLY_RAY, *alone), **pipes) as ray:
        peers = subprocess.run(command(ONLY_PEERS), check=False)
        sys.stdout.write(ray.communicate()[0].decode())
    return status or peers.returncode or ray.returncode


def pytest_ignore_collect(collection_path, config):
    """Leave out the peers, or all others; what the command line names is collected in any case."""
    if any(is_in(Path(arg.partition("::")[0]).resolve(), PEERS) for arg in config.args):
        return None
    if is_ray(config):
        wanted = is_in(collection_path, RAY)
    else:
        wanted = config.option.markexpr.startswith("peers") == is_in(collection_path, PEERS)
        wanted &= not is_in(collection_path, RAY[:1])
    may_have_more = collection_path.is_dir() and not is_in(collection_path, PEERS)
    return None if wanted or may_have_more else True  # else its conftest.py is not imported either


def pytest_collection_modifyitems(items, config):
    """Mark the tests of PEERS and SLOW, and of RAY where that is what runs."""
    marked = {"peers": PEERS, "slow": SLOW, "ray": RAY if is_ray(config) else ()}
    cases = collections.Counter()
    for item in items:
        for mark, places in marked.items():
            if is_in(item.path, places):
                item.add_marker(mark)
        share = THINNED.get(item.path.relative_to(ROOT).as_posix(), 1)
        if is_ray(config):
            share = 1 if is_in(item.path, RAY[:1]) else 2
        if hasattr(item, "callspec"):
            if cases[item.originalname] % share:
                item.add_marker("soak")
            cases[item.originalname] += 1


@pytest.fixture(scope="session", autouse=True)
def helpers_of_multiprocessing():
    """Start once what multiprocessing keeps for good, so that no test seems to leave it."""
    with contextlib.suppress(ImportError):  # else every worker process that is forked imports it
        importlib.import_module("threadpoolctl").threadpool_info()
    names = ["pytest", "numpy", "gymnasium", "envpool_py"]
    names += ["tests.support.envs", "tests.support.broken"]
    mark_shared_memory()
    multiprocessing.set_forkserver_preload(names)
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def logs_of_peers(tmp_path_factory):
    """Have Stable-Baselines3 make its folders, one for each algorithm, where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


@pytest.fixture(autouse=True)
def nothing_left(helpers_of_multiprocessing, request):
    """Check that the test leaves no process, no descriptor, no thread and no shared memory."""
    del helpers_of_multiprocessing
    if is_ray(request.config):  # its plugin looks for what is left
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
    # A machine that is busy takes long for what else is done at once: only a leak waits to the end.
    wait_until(lambda: children() <= processes, PATIENCE)
    wait_until(lambda: len(descriptors()) <= len(fds), PATIENCE)
    wait_until(lambda: shared_memory() <= shm, PATIENCE)
    wait_until(lambda: set(threading.enumerate()) <= threads, PATIENCE)
    left = children() - processes
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it is the fork server's
            os.waitpid(pid, 0)
    assert not left, f"child processes are left: {left}"
    opened = {fd: what for fd, what in descriptors().items() if fds.get(fd) != what}
    assert len(descriptors()) <= len(fds), f"descriptors are left open: {opened}"
    assert shared_memory() <= shm, f"/dev/shm holds {shared_memory() - shm}"
    alive = set(threading.enumerate()) - threads
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
