"""Programs of their own: however a program ends, none of its processes is left."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from envpool_py import ShmemVectorEnv
from tests.faults.helpers import run_script, running
from tests.support import envs
from tests.support.helpers import ROOT, run_python, wait_until
from tests.support.places import paired, soak

pytestmark = pytest.mark.slow

FORK = ("shmem-fork",)
# The start methods differ in whose children the processes are.
PROCESSES = ("shmem-fork", "shmem-spawn", "shmem-forkserver")


@pytest.mark.parametrize(
    ("how", "places", "code", "errors", "num"),
    [
        ("end", ("dummy", *PROCESSES), 0, "", 2),
        ("exception", FORK, 1, "KeyError: 'mine'\n", 2),
        ("exit", FORK, 3, "", 2),
        ("hang", PROCESSES, 0, "", 2),
        # One env is idle, one hangs and has a child process, one holds the GIL, one is stopped.
        ("killed", PROCESSES, -signal.SIGKILL, "", 5),
        # Ctrl-C reaches the whole process group: the caller, and no worker.
        ("interrupted", ("dummy", *PROCESSES), 0, "", 3),
    ],
)
def test_no_process_outlives_its_program(how, places, code, errors, num, tmp_path):
    """One program serves all places: its start takes longer than all that happens in it."""
    program = Path(__file__).with_name("program.py").read_text()
    done = run_script(tmp_path, program, how, ",".join(places), str(tmp_path))
    pids = json.loads(done.stdout) if done.stdout else {}
    assert list(pids) == list(places), done.stderr
    for place, own in pids.items():
        assert wait_until(lambda own=own: not any(map(running, own))), place
        assert len(own) == num
        assert place == "dummy" or len(set(own)) == num, place
    assert done.returncode == code
    assert done.stderr.endswith(errors)
    assert done.stderr.count("Traceback") == (errors != "")


SIGPIPE = """
    import os, signal, sys, warnings

    import envpool_py
    from envpool_py.testing import CountingEnv
    from tests.faults.helpers import running
    from tests.support.helpers import wait_until

    class Env(CountingEnv):
        def handler(self):
            return signal.getsignal(signal.SIGPIPE).name

    def main():
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as tools do whose output is piped
        for context in ("fork", "forkserver", "spawn"):
            with envpool_py.ShmemVectorEnv([Env] * 2, context=context, on_error="restart") as pool:
                pool.reset()
                assert pool.call("handler") == ["SIG_IGN"] * 2
                pid = pool.workers[0].process.pid
                os.kill(pid, signal.SIGKILL)
                assert wait_until(lambda: not running(pid))
                # Two messages, the second one larger than the system takes at once.
                pool.workers[0]._host().write(b"x" * 100)
                pool.workers[0]._host().write(b"x" * 1_000_000)
                assert pool.step([0, 0])[3].tolist() == [True, False]
                pool.reset()
                pool.step([0, 0])
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
        print("ended")

    if __name__ == "__main__":
        main()
    else:
        signal.raise_signal(signal.SIGINT)  # as Ctrl-C in a terminal, while a process starts
"""


def test_sigpipe_at_its_default_and_ctrl_c_do_not_end_the_program_or_a_process(tmp_path):
    done = run_script(tmp_path, SIGPIPE)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr


AT_EXIT = """
    import atexit, multiprocessing.util

    from gymnasium.error import ClosedEnvironmentError

    import envpool_py
    from envpool_py.testing import CountingEnv

    def late():
        for pool in pools:
            try:
                pool.step([0])
            except ClosedEnvironmentError as error:
                print(pool.closed, error)
            pool.close()

    if __name__ == "__main__":
        kinds = envpool_py.ShmemVectorEnv, envpool_py.ThreadVectorEnv
        pools = [kind([CountingEnv]) for kind in kinds]
        # Handlers run in the reverse order.
        atexit.unregister(multiprocessing.util._exit_function)
        atexit.register(late)
        atexit.register(multiprocessing.util._exit_function)
"""


DAEMONS = """
    import threading

    import envpool_py
    from envpool_py.worker import supervisor
    from tests.support.envs import FaultEnv

    if __name__ == "__main__":
        supervisor.GRACE = 0.3
        kinds = envpool_py.ShmemVectorEnv, envpool_py.ThreadVectorEnv
        pools = [kind([FaultEnv]) for kind in kinds]
        for pool in pools:
            pool.reset()
            pool.send(["hang"])
            threading.Thread(target=pool.recv, daemon=True).start()
        while not all(pool._under_way for pool in pools):
            pass
"""


def test_daemon_threads_that_wait_at_exit_say_that_their_pools_were_closed(tmp_path):
    done = run_script(tmp_path, DAEMONS)
    assert done.returncode == 0
    assert "closed while a call waited" in done.stderr
    assert "WorkerDiedError" not in done.stderr


def test_a_pool_that_was_closed_at_exit_says_so(tmp_path):
    done = run_script(tmp_path, AT_EXIT)
    said = [f"True {name}VectorEnv is closed; make a new pool\n" for name in ("Shmem", "Thread")]
    assert (done.stdout, done.returncode) == ("".join(said), 0), done.stderr


LINES = """
    import json, os, time

    import envpool_py
    from envpool_py.testing import CountingEnv

    class TaskError(Exception):
        pass

    class Env(CountingEnv):
        def step(self, action):
            if action == 0:
                json.loads("{")
            if action == 1:
                time.sleep(600)
            if action == 2:
                os.abort()
            raise TaskError("boom")

        def error(self):
            return TaskError()

    if __name__ == "__main__":
        for context in ("fork", "forkserver", "spawn"):
            options = {"context": context, "step_timeout": 2.0}
            with envpool_py.ShmemVectorEnv([lambda: Env()] * 4, **options) as pool:
                pool.reset()
                for i in range(4):
                    try:
                        pool.step([i], [i])
                    except envpool_py.EnvError as error:
                        print(error.message.rpartition("(")[2].partition(")")[0])
                        own = error
                assert isinstance(own, TaskError), type(own).__mro__
                assert type(own.__cause__) is type(pool.call("error", id=[3])[0]) is TaskError
"""


def test_the_line_and_the_classes_are_those_of_the_main_script_with_every_start_method(tmp_path):
    done = run_script(tmp_path, LINES)
    assert done.stdout.split() == [f"script.py:{n}" for n in (13, 15, 17, 18)] * 3, done.stderr
    assert done.returncode == 0, done.stderr
    program = textwrap.dedent(LINES).replace('("fork", "forkserver", "spawn")', '("fork",)')
    found = run_python("-c", program).split()
    assert found == [f"<string>:{n}" for n in (13, 15, 17, 18)]


NO_GUARD = """
    import envpool_py
    from envpool_py.testing import CountingEnv

    pool = envpool_py.ShmemVectorEnv([CountingEnv] * {num}, context="{context}")
"""


@pytest.mark.parametrize(("context", "num"), [("spawn", 4), ("forkserver", 1)])
def test_without_a_main_guard_the_line_that_helps_is_alone(tmp_path, context, num):
    done = run_script(tmp_path, NO_GUARD.format(num=num, context=context))
    assert done.stderr.count("Traceback") == 1
    text = f"code 1 while starting; under '{context}' the program needs `if __name__ == "
    assert text in done.stderr.splitlines()[-1]


CTRL_C = """
    import os, warnings
    from signal import SIGINT, raise_signal

    import envpool_py
    from envpool_py.testing import CountingEnv
    from tests.support.helpers import children, wait_until

    def press():
        global left
        left -= 1
        if left == 0:
            raise_signal(SIGINT)

    warnings.simplefilter("ignore")
    os.register_at_fork(before=press, after_in_parent=press)
    for left in (1, 2, 7, 8):  # before and after the first fork, and the last one
        try:
            envpool_py.ShmemVectorEnv([CountingEnv] * 4, context="fork")
        except KeyboardInterrupt:
            assert wait_until(lambda: not children())
            continue
        raise AssertionError("swallowed")
"""


def test_ctrl_c_while_a_process_is_forked_is_not_swallowed(tmp_path):
    """Python ignores what is raised in these callbacks."""
    done = run_script(tmp_path, CTRL_C)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------ killed while it starts, or at any later moment

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
    pool = ShmemVectorEnv([functools.partial(Simulated, tag) for tag in range(4)], context=context)
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("context", "times", "how"),
    [
        *paired(CONTEXTS, [1], HOW),
        *soak(*((context, 17, how) for context in CONTEXTS for how in HOW)),
    ],
)
def test_nothing_is_left_of_a_program_that_is_killed_at_any_time(context, times, how):
    for number in range(times):
        mark = f"{os.getpid()}-{context}-{how}-{number}"
        delay = random.Random(mark.partition("-")[2]).uniform(0.0, 1.5)
        program = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, how, context, str(delay)],
            env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )
        assert program.wait(60) in (3, -signal.SIGKILL, -signal.SIGTERM)
        assert wait_until(lambda own=mark: not marked(own)), f"{marked(mark)} left after {delay} s"


if __name__ == "__main__":
    run_until_killed(*sys.argv[1:])
