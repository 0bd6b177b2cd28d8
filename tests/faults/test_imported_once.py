"""What processes share from their start: the modules of their envs, imported once.

Under fork the program imports them, else a fork server, which ends with the pool.
"""

import gc
import importlib
import importlib.machinery
import importlib.util
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium as gym
import pytest
import threadpoolctl

from envpool_py import ShmemVectorEnv, env_by_name
from envpool_py.env.failures import dumps_by_value
from envpool_py.sb3 import DummyVecEnv, make_vec_env
from envpool_py.worker import fork_server
from envpool_py.worker.cores_and_threads import ready_to_fork
from tests.faults.helpers import count_fns, kill
from tests.support import envs
from tests.support.helpers import children, no_process_left, run_python

HALF_CHEETAH = "gymnasium.envs.mujoco.half_cheetah_v5"
MODULE = """
import os
from tests.support.envs import CountEnv

print("imported", flush=True)
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
PROGRAM = """
import os, signal, sys
from pathlib import Path
import gymnasium as gym
from envpool_py import EnvError, ShmemVectorEnv
from tests.support.helpers import children

sys.path.append(os.getcwd())
gym.register("Counted-v0", entry_point="counted:Env", disable_env_checker=True)

def pids():
    return [int(line) for line in Path("pids").read_text().split()]

def pool(**options):
    return ShmemVectorEnv([lambda: gym.make("Counted-v0")] * 3, context=sys.argv[1], **options)

if __name__ == "__main__":
"""


def run(folder, module, program, context="forkserver", *args):
    (folder / "counted.py").write_text(MODULE + module)
    lines = ["    " + line for line in program.strip().splitlines()]
    (folder / "program.py").write_text(PROGRAM + "\n".join(lines) + "\n")
    return run_python("program.py", context, *args, cwd=folder)


ONCE = """
with pool() as envs:
    first = envs.call("pid")
    (importing,) = pids()
    assert importing not in first
    assert (importing == os.getpid()) == (sys.argv[1] == "fork")
    assert (importing in children()) == (sys.argv[1] == "forkserver")
    envs.reset()
    os.kill(first[1], signal.SIGKILL)
    envs.restart([1])
    assert pids() == [importing] and envs.call("pid")[1] != first[1]
assert ("counted" in sys.modules) == (sys.argv[1] == "fork")
assert importing not in children()
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_module_is_imported_once_for_all_processes_and_restarts(context, tmp_path):
    module = """
import signal, sys
sys.argv[1] == "fork" or signal.raise_signal(signal.SIGINT)  # as Ctrl-C does in a terminal
class Env(CountEnv):
    def __init__(self, render_mode=None):
        super().__init__(0)
"""
    assert run(tmp_path, module, ONCE, context) == "imported\n"


BROKEN = """
for text in sys.argv[2:]:
    try:
        pool()
    except EnvError as error:
        assert text in str(error), error
        assert ("counted.py" in str(error)) == (text == "env_fn raised"), error
    else:
        raise AssertionError("no error")
    assert len(set(pids())) == 4  # the server or the program, which goes on, and then the processes
    assert not [pid for pid in pids() if pid in children()]
    os.rename("pids", "exits")
"""


def test_a_module_whose_import_fails_is_an_error_of_the_env(tmp_path):
    run(tmp_path, "raise ValueError('no')", BROKEN, "fork", "env_fn raised")


def test_a_module_whose_import_exits_or_ends_the_process(tmp_path):
    module = "raise SystemExit(3) if not os.path.exists('exits') else os._exit(3)"
    texts = "env_fn raised", "exited with code 3 while starting"
    run(tmp_path, module, BROKEN, "forkserver", *texts)


SLOW = """
import threading, warnings
from envpool_py import EnvTimeoutError
from envpool_py.worker import supervisor

class Interrupt(EOFError, ConnectionError):  # as if the server had ended
    pass

def show(message, *_):
    if "fork server" in str(message):
        texts.append(str(message))
        supervisor.SLOW_START = 60.0
        open("fifo", "w").close()  # which lets the import go on

def interrupt(*_):
    raise Interrupt

def send():
    files.append(open("fifo", "w"))  # when the server reads it
    os.kill(os.getpid(), signal.SIGALRM)

os.mkfifo("fifo")
texts, files = [], []
supervisor.SLOW_START = 0.1
warnings.showwarning = show
with pool() as envs:
    envs.reset()
(text,) = texts
assert text.endswith("the modules of the envs after 0.1 seconds; still waiting"), text

signal.signal(signal.SIGALRM, interrupt)
threading.Thread(target=send).start()
try:
    pool()
except Interrupt:
    pass
else:
    raise AssertionError("no error")
assert not [pid for pid in pids() if pid in children()]

supervisor.MAKES_WITHIN = 1.0
try:
    pool(step_timeout=0.1)
except EnvTimeoutError as error:
    text = "envs 0 to 2: the fork server has not imported the modules within 1 seconds"
    assert text in str(error) and error.env_ids == (0, 1, 2), error
else:
    raise AssertionError("no error")
commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children()]
assert not [text for text in commands if "forkserver" in text]
"""


@pytest.mark.slow
def test_an_import_that_takes_long_is_warned_of_can_be_interrupted_and_has_a_limit(tmp_path):
    module = "open('fifo').read()\nclass Env(CountEnv):\n    render_mode = None\n"
    run(tmp_path, module + "    def __init__(self, **_):\n        super().__init__(0)\n", SLOW)


class Variables(envs.CountEnv):
    def variables(self):
        return dict(os.environ)

    def pools(self):
        return importlib.import_module("threadpoolctl").threadpool_info()


def test_the_program_keeps_its_own_server_and_environment():
    own = multiprocessing.forkserver._forkserver
    before = own._forkserver_pid, list(own._preload_modules), dict(os.environ)
    with no_process_left(), ShmemVectorEnv([Variables] * 2, context="forkserver") as pool:
        assert "context='forkserver'" in repr(pool)
        variables = pool.call("variables")
    assert (own._forkserver_pid, own._preload_modules, dict(os.environ)) == before
    assert all(each == variables[0] for each in variables)
    assert not any("FORK_SERVER" in name for name in variables[0])
    assert variables[0].get("PYTHONPATH") == os.environ.get("PYTHONPATH")


def test_each_of_the_pools_that_start_at_once_in_threads_has_its_own_options():
    barrier = threading.Barrier(2)

    def variables(threads):
        barrier.wait(60)
        options = {"context": "forkserver", "threads_per_process": threads}
        with ShmemVectorEnv([Variables] * 2, **options) as pool:
            return [each["OMP_NUM_THREADS"] for each in pool.call("variables")]

    with no_process_left(), ThreadPoolExecutor(2) as executor:
        assert list(executor.map(variables, (1, 2))) == [["1"] * 2, ["2"] * 2]


def test_processes_go_on_and_restart_if_their_server_is_killed():
    with no_process_left():
        before = children()
        with ShmemVectorEnv(count_fns(2), context="forkserver") as pool:
            (server,) = children() - before
            pool.reset()
            os.kill(server, signal.SIGKILL)
            assert pool.step([0, 0])[0].tolist() == [[0, 0, 1], [1, 0, 1]]
            kill(pool, 1)
            pool.restart([1])
            assert pool.reset([1])[0].tolist() == [[1, 0, 0]]
            assert pool.step([0, 0])[0].tolist() == [[0, 0, 2], [1, 0, 1]]


def test_what_the_server_imports():
    def modules_of(env_fn):
        return fork_server.modules_in([dumps_by_value(env_fn)])

    named = modules_of(partial(gym.make, "HalfCheetah-v5"))
    assert HALF_CHEETAH in named
    assert named == modules_of(partial(gym.make, gym.spec("HalfCheetah-v5")))
    assert "ale_py" in modules_of(lambda: gym.make("ale_py:ALE/Pong-v5"))
    own = modules_of(partial(envs.CountEnv, "this:that"))
    assert "tests.support.envs" in own
    assert not own & {"this", "__main__"}
    # Bytes are no names of modules; a bytearray is an operation of its own in a pickle.
    env_fn = partial(envs.CountEnv, 0, bytearray(b"envpool_py"))
    pickled = [pickle.dumps(env_fn, 5), pickle.dumps(b"gymnasium")]
    assert fork_server.modules_in(pickled) == {"functools", "tests.support.envs"}


def with_variable():
    os.environ["MUJOCO_GL"] = "egl"
    return gym.make("HalfCheetah-v5")


def maker(env_id):
    return lambda: gym.make(env_id)


@pytest.mark.parametrize(
    ("env_fn", "modules"),
    [
        (partial(gym.make, "HalfCheetah-v5"), {HALF_CHEETAH}),
        (partial(partial(gym.make, "HalfCheetah-v5"), max_episode_steps=3), {HALF_CHEETAH}),
        (lambda: gym.make("HalfCheetah-v5", render_mode="rgb_array"), {HALF_CHEETAH}),
        (partial(gym.make, "ale_py:ALE/Nowhere-v5"), {"ale_py"}),
        (env_by_name.env_fn_of("HalfCheetah-v5", {}), {HALF_CHEETAH}),
        (env_by_name.env_fn_of(gym.spec("HalfCheetah-v5"), {}, [gym.Wrapper]), {HALF_CHEETAH}),
        # Functions that may do something before, or make something else:
        (with_variable, set()),
        (partial(with_variable), set()),
        (maker("HalfCheetah-v5"), set()),
        (lambda: maker("HalfCheetah-v5"), set()),
        (lambda: gym.spec("HalfCheetah-v5"), set()),
        (lambda: [gym.make("HalfCheetah-v5"), os], set()),
        (partial(maker, "HalfCheetah-v5"), set()),
        (partial([gym.make].__getitem__, 0), set()),  # its __module__ is None
        (partial(list.pop, [gym.make]), set()),  # which has no __module__
        (types.SimpleNamespace(__code__=(lambda: gym.make).__code__), set()),
        (partial(gym.make, "Nowhere-v0"), set()),
        (envs.CountEnv, set()),
        (partial(envs.CountEnv, "HalfCheetah-v5"), set()),
        ("HalfCheetah-v5", set()),
    ],
)
def test_the_modules_that_the_program_imports_under_fork(env_fn, modules):
    assert env_by_name.modules_of(env_fn) == modules


def test_the_sb3_interface_makes_known_envs():
    found = []

    def vec_env(env_fns):
        found.extend(env_fns)
        return DummyVecEnv(env_fns)

    make_vec_env("CartPole-v1", 2, vec_env_cls=vec_env).close()
    assert set().union(*map(env_by_name.modules_of, found)) == {
        "gymnasium.envs.classic_control.cartpole"
    }


@pytest.mark.parametrize("frozen", [False, True])
def test_the_program_keeps_its_garbage_collection_and_its_threads(frozen):
    before = threadpoolctl.threadpool_info()
    gc.freeze() if frozen else gc.unfreeze()  # pytest has frozen its own objects
    try:
        count = gc.get_freeze_count()
        with ShmemVectorEnv([Variables] * 2, context="fork", threads_per_process=1) as pool:
            for info in pool.call("pools"):
                assert {one["num_threads"] for one in info} == {1}
        assert (gc.get_freeze_count() > 0) == frozen == (count > 0)
    finally:
        gc.freeze()
    assert threadpoolctl.threadpool_info() == before


def test_pools_that_fork_at_once_in_threads_leave_the_threads_of_the_program():
    with threadpoolctl.threadpool_limits(3):  # also where there is one core
        before = threadpoolctl.threadpool_info()
        first, second = ready_to_fork(1), ready_to_fork(1)
        with first:
            second.__enter__()
        second.__exit__(None, None, None)  # the second begins later, and ends later
        assert threadpoolctl.threadpool_info() == before
        with ready_to_fork(2):
            assert {one["num_threads"] for one in threadpoolctl.threadpool_info()} == {2}


def test_neither_lazy_modules_nor_those_under_the_guard_are_loaded(monkeypatch, tmp_path):
    spec = importlib.util.find_spec("this")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    main, lazy = types.ModuleType("__main__"), importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "this", lazy)
    spec.loader.exec_module(lazy)
    names = {"lazy": lazy, "gym": gym, "run_python": run_python, "Child": envs.CountEnv}
    names |= {"pickle": pickle, "loads": importlib.import_module}  # as if under the guard
    program = tmp_path / "program.py"
    program.write_text(
        'import gymnasium as gym\nif __name__ == "__main__":\n'
        "    if 1:\n        import pickle\n    from importlib import import_module as loads\n"
    )
    names |= {"__file__": str(program)}
    vars(main).update(names, __spec__=importlib.machinery.ModuleSpec("program", None))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        found = fork_server._modules_of_main()
    assert found == {"gymnasium", "tests.support.helpers", "tests.support.envs"}
    assert type(lazy) is not types.ModuleType, "it was loaded"
