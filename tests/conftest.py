"""What holds after every test: nothing is left behind, and nothing hangs."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # worker processes import tests.envs by name
    sys.path.insert(0, str(ROOT))

from tests import envs  # noqa: E402
from tests.places import STANDING  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEERS = [
    ROOT / "tests" / name
    for name in (
        "sb3",
        "pettingzoo",
        "ray",
        "test_tensors.py",
        "test_tianshou.py",
        "wrappers/test_against_tianshou.py",
    )
]
"""What imports other libraries, torch among them: a run of its own, since to fork a process that
has torch in it takes twenty times as long."""

WATCHDOG = 45.0
"""Seconds until a test is broken off."""


class Hung(BaseException):
    """A test took longer than it may; not an Exception, so that nothing swallows it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the tests that are left out otherwise."""
    text = "run the tests that need other libraries' pools and algorithms, and only these"
    parser.addoption("--peers", action="store_true", help=text)


def of_peers(path: Path) -> bool:
    """Return whether a file or folder is one of PEERS, or in one."""
    return any(path == peer or peer in path.parents for peer in PEERS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out PEERS, or all others; what the command line names is collected in any case."""
    if any(of_peers(Path(arg.partition("::")[0]).resolve()) for arg in config.args):
        return None
    wanted = config.getoption("--peers") == of_peers(collection_path)
    return None if wanted or collection_path.is_dir() else True


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Poll until a condition holds; return whether it came to hold in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def wait_until_blocked(thread: threading.Thread) -> None:
    """Wait until a thread stands still: in a call that blocks, whatever runs it in between."""
    place, seen = None, 0
    while seen < 20:
        frame = sys._current_frames()[thread.ident]
        here = id(frame), frame.f_lasti
        place, seen = here, seen + 1 if here == place else 0
        time.sleep(0.005)


def children() -> set[int]:
    """Return the ids of this process's children, and of the fork server's; zombies included."""
    found: set[int] = set()
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    tasks = [*Path("/proc/self/task").iterdir()]
    if server is not None:
        tasks += Path(f"/proc/{server}/task").glob("*")
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


@contextlib.contextmanager
def no_process_left() -> Iterator[None]:
    """Assert that at the end of the block, at once, no child process is left of those it began."""
    before = children()
    yield
    assert children() <= before


def descriptors() -> dict[int, str]:
    """Return the open file descriptors and what each of them is."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def shared_memory() -> set[str]:
    """Return the names of shared memory files and semaphores on this machine, torch's left out."""
    names = {entry.name for entry in Path("/dev/shm").iterdir()}
    return {name for name in names if not name.startswith("torch_")}


def shared_by_strangers() -> set[str]:
    """Return the names in /dev/shm that processes other than this one and its children use."""
    found: set[str] = set()
    own = {os.getpid(), *children()}
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in own:
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            lines = (process / "maps").read_text().splitlines()
            lines += [str(link.readlink()) for link in (process / "fd").iterdir()]
            found.update(Path(line.split()[-1]).name for line in lines if "/dev/shm/" in line)
    return found


def left_in_shared_memory(before: set[str]) -> set[str]:
    """Return what has come into /dev/shm since then, and is no stranger's."""
    new = shared_memory() - before
    return new and new - shared_by_strangers()


@pytest.fixture(scope="session", autouse=True)
def helpers_of_multiprocessing() -> None:
    """Start once what multiprocessing keeps for good, so that no test seems to leave it."""
    names = ["pytest", "numpy", "gymnasium", "tests.envs", "envpool_py", "tests.broken"]
    multiprocessing.set_forkserver_preload(names)
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def logs_of_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have Stable-Baselines3 make its folders, one for each algorithm, where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("sb3")))
        yield


@pytest.fixture(autouse=True)
def nothing_left(helpers_of_multiprocessing: None) -> Iterator[None]:
    """Check that the test leaves no process, no descriptor, no thread and no shared memory."""
    del helpers_of_multiprocessing
    gc.collect()
    # What is there now is no test's garbage: not to be looked through again after each of them.
    gc.freeze()
    before = children(), descriptors(), shared_memory(), set(threading.enumerate())
    yield
    gc.collect()
    multiprocessing.active_children()  # reaps
    processes, fds, shm, threads = before
    for pool in STANDING:
        processes |= {host.process.pid for host in pool.engine.hosts.processes.hosts}
    wait_until(lambda: children() <= processes, 3)
    wait_until(lambda: len(descriptors()) <= len(fds), 1)
    # Of what another process of these tests has for a moment, nothing stays.
    shared = shared_memory() - shm
    wait_until(lambda: not shared.intersection(left_in_shared_memory(shm)), 2)
    wait_until(lambda: set(threading.enumerate()) <= threads, 1)
    left = children() - processes
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it is the fork server's
            os.waitpid(pid, 0)
    assert not left, f"child processes are left: {left}"
    opened = {fd: what for fd, what in descriptors().items() if fds.get(fd) != what}
    assert len(descriptors()) <= len(fds), f"descriptors are left open: {opened}"
    shared &= left_in_shared_memory(shm)
    assert not shared, f"/dev/shm holds {shared}"
    alive = {t for t in threading.enumerate() if t not in threads}
    assert not alive, f"threads are left: {alive}"


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """Break a test off that hangs, with the stack of where it hung."""
    mark = request.node.get_closest_marker("soak")
    seconds = 0 if mark else WATCHDOG

    def bark(*_: Any) -> None:
        message = f"still running after {seconds} s"
        raise Hung(message)

    previous = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def gates(tmp_path: Path) -> list[envs.Gate]:
    """Four gates, for envs 0 to 3."""
    return [envs.Gate(tmp_path / f"gate{i}") for i in range(4)]


class Helper(threading.Thread):
    """A thread whose exception reaches the test that joins it."""

    def __init__(self, target: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.job, self.error = target, None

    def run(self) -> None:
        try:
            self.job()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def finish(self) -> None:
        self.join(20)
        assert not self.is_alive(), "the helper thread hangs"
        if self.error is not None:
            raise self.error


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], None]], Helper]]:
    """Run functions in threads beside the test; joined, and their errors raised, at its end."""
    started: list[Helper] = []

    def start(target: Callable[[], None]) -> Helper:
        started.append(Helper(target))
        started[-1].start()
        return started[-1]

    yield start
    for helper in started:
        helper.finish()
