"""Programs of their own: however a program ends, none of its processes is left."""

import json
import signal
from pathlib import Path

import pytest

from tests.faults.helpers import run_script, running
from tests.support.helpers import wait_until

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
        # The second interrupt ends a close that waits for envs that hang.
        ("interrupted twice", FORK, 0, "", 2),
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


CTRL_C = """
    import gc, random, sys, threading, time, warnings
    from signal import SIGINT, raise_signal

    import envpool_py
    from envpool_py.testing import CountingEnv
    from tests.support.helpers import children, wait_until

    def busy():
        while not over.is_set():
            sum(range(1000))

    def press(seconds):
        time.sleep(seconds)
        raise_signal(SIGINT)

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
        pool, outcome = None, "swallowed"
        thread = threading.Thread(target=press, args=(rng.random() * seconds,))
        try:
            thread.start()
            pool = make()
            thread.join()
            time.sleep(5)
        except BaseException as error:
            outcome = repr(error)
        thread.join()
        within += pool is None
        if pool is not None:
            pool.close()
        del pool
        gc.collect()
        wait_until(lambda: not children(), 20)
        found = outcome, swallowed, children()
        assert found == ("KeyboardInterrupt()", [], set()), f"round {n}: {found}"
    over.set()
    assert within >= 3, f"{within} within the constructor"
"""


def test_ctrl_c_while_a_pool_is_constructed_is_never_swallowed(tmp_path):
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


def test_envs_registered_in_the_main_module(tmp_path):
    done = run_script(tmp_path, REGISTERED)
    assert (done.returncode, done.stdout) == (0, "[[3.0], [3.0]] [[4.0], [4.0]]\n" * 3), done.stderr
