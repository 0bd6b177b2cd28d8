"""Programs of their own: however a program ends, none of its processes is left."""

from __future__ import annotations

import json
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import run_script, running
from tests.support.helpers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

# The start methods differ in whose children the processes are.
PROCESSES = ("shmem-fork", "shmem-spawn", "shmem-forkserver")
ALL = ("dummy", *PROCESSES)

PRELUDE = """
    import json, os, signal, sys, time
    from pathlib import Path

    def started(num):
        import functools
        from tests.support import broken
        from tests.support.places import PLACES
        fns = [functools.partial(broken.BrokenEnv, tag) for tag in range(num)]
        pools = {place: PLACES[place](fns) for place in sys.argv[1].split(",")}
        for pool in pools.values():
            pool.reset()
        return pools, {place: pool.call("pid") for place, pool in pools.items()}
"""
ENDS = """
    if __name__ == "__main__":
        pools, pids = started(1)
        print(json.dumps(pids), flush=True)
        kept = pools  # to be found at the end, as a user's pool would
        END
"""
HANGS = """
    if __name__ == "__main__":
        from envpool_py.worker import processes
        processes.GRACE = 0.1
        pools, pids = started(1)
        for place, pool in pools.items():
            path = Path(sys.argv[2], place)
            pool.send([f"stubborn:{path}"])
            while not (path.exists() and path.read_text()):
                time.sleep(0.001)
            pids[place].append(int(path.read_text()))
        print(json.dumps(pids), flush=True)
"""
KILLED = """
    if __name__ == "__main__":
        from tests.faults.helpers import stopped
        pools, pids = started(4)
        for place, pool in pools.items():
            path = Path(sys.argv[2], place)
            pool.send([f"stubborn:{path}", "gil", "stop"], [1, 2, 3])
            while not (path.exists() and path.read_text() and stopped(pids[place][3])):
                time.sleep(0.001)
            pids[place].append(int(path.read_text()))
        print(json.dumps(pids), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
INTERRUPTED = """
    if __name__ == "__main__":
        pools, pids = started(2)
        for place, pool in pools.items():
            try:
                pool.step(["", f"interrupt:{os.getpgid(0)}"])
            except KeyboardInterrupt:
                pids[place].append(os.getpid())
            assert pool.call("pid") == pids[place][:2], place
            assert pool.reset()[0][:, 2].tolist() == [0, 0], place
            assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1], place
            pool.close()
        print(json.dumps(pids), flush=True)
"""


def run(folder: Path, text: str, places: tuple[str, ...]) -> tuple[int, str, dict[str, list[int]]]:
    """Run a program; return its exit code, its errors, and the processes of each place, all gone.

    One program serves all places: its start takes longer than all that happens in it.
    """
    whole = textwrap.dedent(PRELUDE) + textwrap.dedent(text)
    done = run_script(folder, whole, ",".join(places), str(folder))
    pids = json.loads(done.stdout) if done.stdout else {}
    assert list(pids) == list(places), done.stderr
    for place, own in pids.items():
        assert wait_until(lambda own=own: not any(map(running, own))), place
    return done.returncode, done.stderr, pids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "places", "code", "errors"),
    [
        (ENDS.replace("END", "pass"), ALL, 0, ""),
        (ENDS.replace("END", "raise KeyError('mine')"), ("shmem-fork",), 1, "KeyError: 'mine'\n"),
        (ENDS.replace("END", "sys.exit(3)"), ("shmem-fork",), 3, ""),
        (HANGS, PROCESSES, 0, ""),
    ],
    ids=["end", "exception", "exit", "hang"],
)
def test_the_program_ends(
    program: str, places: tuple[str, ...], code: int, errors: str, tmp_path: Path
) -> None:
    found, shown, pids = run(tmp_path, program, places)
    assert found == code
    assert shown.endswith(errors)
    assert shown.count("Traceback") == (errors != "")
    assert all(len(own) == (2 if program == HANGS else 1) for own in pids.values())


@pytest.mark.slow
def test_the_program_is_killed(tmp_path: Path) -> None:
    """One env is idle, one hangs and has a child process, one holds the GIL, one is stopped."""
    code, errors, pids = run(tmp_path, KILLED, PROCESSES)
    assert code == -signal.SIGKILL, errors
    assert all(len(set(own)) == 5 for own in pids.values())


@pytest.mark.slow
def test_the_program_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group: the caller, and no worker."""
    code, errors, pids = run(tmp_path, INTERRUPTED, ALL)
    assert (code, errors) == (0, "")
    assert all(len(own) == 3 for own in pids.values())


# ------------------------------------------------------------- Ctrl-C at the beginning and the end

HANGS_AT_CLOSE = """
    import signal, time
    import envpool_py
    from envpool_py.testing import CountingEnv

    class HangingEnv(CountingEnv):
        def step(self, action):
            while True:
                time.sleep(1)

    if __name__ == "__main__":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        envpool_py.worker.processes.GRACE = 600.0
        pool = envpool_py.ShmemVectorEnv([HangingEnv] * 2, context="fork")
        pool.reset()
        try:
            with pool:
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.3)  # again during close
                pool.step([0, 0])
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_a_second_interrupt_ends_a_close_that_waits(tmp_path: Path) -> None:
    done = run_script(tmp_path, HANGS_AT_CLOSE)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


CTRL_C = """
    import gc, os, random, signal, sys, threading, time, warnings

    import envpool_py
    from envpool_py.testing import CountingEnv
    from tests.support.helpers import children, wait_until

    def busy():
        while not over.is_set():
            sum(range(1000))

    def press(seconds):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    def make():
        return envpool_py.ShmemVectorEnv([CountingEnv] * 4, context="fork")

    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-4)  # or the busy thread would have most of the time
    over = threading.Event()
    threading.Thread(target=busy, daemon=True).start()
    swallowed = []
    sys.unraisablehook = lambda unraisable: swallowed.append(repr(unraisable.exc_value))
    rng = random.Random(7)
    begun = time.perf_counter()
    for _ in range(3):
        make().close()
    seconds = (time.perf_counter() - begun) / 3

    within = 0
    for n in range(20):
        pool = None
        thread = threading.Thread(target=press, args=(rng.random() * seconds,))
        try:
            thread.start()
            pool = make()
            thread.join()
            time.sleep(5)
            outcome = "swallowed"
        except KeyboardInterrupt:
            outcome = "KeyboardInterrupt"
        except BaseException as error:
            outcome = repr(error)
        thread.join()
        if pool is None:
            within += 1
        else:
            pool.close()
        del pool
        gc.collect()
        wait_until(lambda: not children(), 20)
        if outcome != "KeyboardInterrupt" or swallowed or children():
            print(f"round {n}: {outcome}, unraisable {swallowed}, left {children()}", flush=True)
            os._exit(1)
    over.set()
    print(f"{within} within the constructor")
    sys.exit(0 if within >= 3 else 2)
"""


@pytest.mark.slow
def test_ctrl_c_while_a_pool_is_constructed_is_never_swallowed(tmp_path: Path) -> None:
    """Finding 30: a second thread runs, as torch and logging have some."""
    done = run_script(tmp_path, CTRL_C)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


# ---------------------------------------------------------------------- envs of the main module

REGISTERED = """
    import functools, sys
    import gymnasium as gym
    import numpy as np
    from envpool_py import ShmemVectorEnv

    class MyEnv(gym.Env):
        observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return np.full(1, 3, np.float32), {}
        def step(self, action):
            return np.full(1, 4, np.float32), 1.0, True, False, {}

    gym.register("Mine-v0", entry_point=MyEnv)

    if __name__ == "__main__":
        make = functools.partial(gym.make, "Mine-v0")
        for context in ("fork", "spawn", "forkserver"):
            with ShmemVectorEnv([make] * 2, context=context) as pool:
                print(pool.reset()[0].tolist(), pool.step([0, 1])[0].tolist())
"""


@pytest.mark.slow
def test_envs_registered_in_the_main_module(tmp_path: Path) -> None:
    done = run_script(tmp_path, REGISTERED)
    assert (done.returncode, done.stdout) == (0, "[[3.0], [3.0]] [[4.0], [4.0]]\n" * 3), done.stderr
