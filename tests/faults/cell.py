"""Try one cell of the table of faults: what arrived, and what of that is wrong."""

import contextlib
import ctypes
import functools
import logging
import multiprocessing
import os
import re
import signal
import warnings
from pathlib import Path

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv, ThreadVectorEnv
from envpool_py.worker import supervisor
from tests.faults import env_of_table, table
from tests.faults.helpers import running
from tests.support.helpers import children, wait_until

NUM, VICTIM = 3, env_of_table.VICTIM
OTHERS = [i for i in range(NUM) if i != VICTIM]
STEPS = 20
"""Steps after the fault: where two processes answer for an env, one of so many rows is wrong."""

LIMIT = 100.0
"""Seconds after which a whole cell counts as hanging."""

POOLS = {
    table.IN_PROCESS: (DummyVectorEnv, {}, {}),
    table.PROCESSES: (ShmemVectorEnv, {"context": "fork"}, {"num_processes": 1}),
    table.THREADS: (ThreadVectorEnv, {}, {"num_threads": 1}),
}
"""The class, its options, and those with which all envs share a process."""


def pattern(text):
    """Return the regular expression for a text of the table."""
    return ".*".join(map(re.escape, text.split("...")))


def differences(texts, lines):
    """Return what is missing of these texts, and the lines that nothing in them explains."""
    expected = [] if texts == table.NOTHING else [pattern(text) for text in texts]
    missing = [
        f"missing: {text}"
        for text, regex in zip(texts, expected, strict=False)
        if not any(re.match(regex, line, re.DOTALL) for line in lines)
    ]
    restarted = any(text.startswith("row:") for text in texts)
    extra = [
        f"unexpected: {line}"
        for line in lines
        if not any(re.match(regex, line, re.DOTALL) for regex in expected)
        and not (restarted and line.startswith("logged:"))
    ]
    return missing + extra


class Cell(logging.Handler):
    """One trial: ``lines`` is what the caller got, ``problems`` what is wrong beside it."""

    def __init__(self, row, backend, on_error, folder, pools=POOLS):
        super().__init__()
        self.row, self.backend, self.on_error = row, backend, on_error
        self.folder = Path(folder)
        self.lines, self.problems = [], []
        self.resets = 0
        kind, options, shared = pools[backend]
        if row.place == "close of the pool":
            options = {**options, **shared}
        self.make_pool = functools.partial(kind, **options, **row.options(backend, on_error))

    # What arrives.

    def emit(self, record):
        self.lines.append(f"logged: {record.getMessage()}")

    def warned(self, message, category, *_, **__):
        del category
        if re.search(r"\benvs? \d", str(message)):  # others warn of their own things
            (self.folder / "told").touch()
            self.lines.append(f"warned: {message}")

    @contextlib.contextmanager
    def raised(self):
        try:
            yield
        except EnvError as error:
            self.lines.append(f"raised: {error}")

    def rows_of(self, infos):
        for info in infos:
            error = info.get("env_error") or info.get("final_info", {}).get("env_error")
            if error:
                self.lines.append(f"row: {error}")

    def wrong(self, what, found, expected):
        if found != expected:
            self.problems.append(f"{what}: {found}, not {expected}")

    # The run.

    def run(self):
        logger = logging.getLogger("envpool_py")
        logger.addHandler(self)
        propagate, logger.propagate = logger.propagate, False
        # So short only where nothing is to be done in that time.
        constants = []
        if (self.row.place, self.row.fault) == ("env_fn", "hangs"):
            constants = [(supervisor, "SLOW_START")]
        elif (self.row.place, self.row.fault) == ("close of the pool", "hangs"):
            constants = [(supervisor, "GRACE")]
        before = [getattr(*constant) for constant in constants]
        for constant in constants:
            setattr(*constant, 5 if self.backend == table.RAY else 0.5)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = self.warned
                self._run()
        finally:
            logger.removeHandler(self)
            logger.propagate = propagate
            for constant, value in zip(constants, before, strict=True):
                setattr(*constant, value)
        texts = self.row.texts(self.backend, self.on_error)
        return differences(texts, self.lines) + self.problems

    def _run(self):
        arguments = self.folder, self.row.place, self.row.fault
        fns = [functools.partial(env_of_table.make, tag, *arguments) for tag in range(NUM)]
        pool = None
        with self.raised():
            pool = self.make_pool(fns)
        if pool is None:
            return
        with pool:
            self._fail(pool)
            self._go_on(pool)
            if self.row.place == "close of the pool":
                with self.raised():
                    pool.close()
                self._check_closed()

    def _reset(self, pool):
        self.resets += 1
        obs, infos = pool.reset()
        self.rows_of(infos)
        episode = 0 if self.row.place == "close at recycling" else self.resets - 1
        self.wrong("rows of a reset", obs[OTHERS].tolist(), [[i, episode, 0] for i in OTHERS])
        self.wrong("the env's row", [obs[VICTIM][0], obs[VICTIM][2]], [VICTIM, 0])
        return obs

    def _fail(self, pool):
        """Have the env fail at its place."""
        place = self.row.place
        with self.raised():
            self._reset(pool)
        if place.startswith("first reset") and self.on_error == "raise":
            pool.cancel()
            return
        if place == "first reset of all":
            return
        if place in ("reset", "close at recycling"):
            with self.raised():
                self._reset(pool)
        elif place == "call":
            with self.raised():
                found = pool.call("work")
                self.wrong("values", [found[i] for i in OTHERS], OTHERS)
            found = pool.call("work", id=OTHERS)
            self.wrong("values", found, OTHERS)
        elif place in ("step", "env_fn at a restart", "close after a crash"):
            self._fail_in_step(pool, crashes=place != "step")
        pool.cancel()

    def _fail_in_step(self, pool, *, crashes):
        actions = [env_of_table.FAIL if i == VICTIM else 0 for i in range(NUM)]
        if crashes and self.on_error == "raise":
            with contextlib.suppress(EnvError):
                pool.step(actions)
            with self.raised():
                pool.restart([VICTIM])
            return
        with self.raised():
            obs, _, _, truncated, infos = pool.step(actions)
            expected = [[i, self.resets - 1, 1] for i in OTHERS]
            self.wrong("rows beside it", obs[OTHERS].tolist(), expected)
            self.wrong("truncated", truncated[OTHERS].tolist(), [False] * len(OTHERS))
            self.rows_of(infos)

    def _go_on(self, pool):
        """Reset and step all envs: each row is its env's next."""
        obs = self._reset(pool)
        episodes = obs[:, 1].tolist()
        for t in range(1, STEPS + 1):
            obs, rewards, *_ = pool.step([0] * NUM)
            expected = [[i, episodes[i], t] for i in range(NUM)]
            self.wrong(f"step {t} afterwards", obs.tolist(), expected)
            expected = [i * 1000.0 + episodes[i] * 100 + t for i in range(NUM)]
            self.wrong(f"rewards of step {t} afterwards", rewards.tolist(), expected)

    def _check_closed(self):
        path = self.folder / "closed"
        closed = set(path.read_text().split()) if path.exists() else set()
        expected = {str(i) for i in OTHERS}
        if self.row.fault in ("exits", "is killed"):
            expected = {"0"}  # no process is left for env 2, and the warning says so
        if not closed >= expected:
            self.problems.append(f"closed: {sorted(closed)}, not {sorted(expected)}")


def descendants(pid):
    """Return the ids of the processes below this one."""
    found, waiting = [], [pid]
    while waiting:
        for tasks in Path(f"/proc/{waiting.pop()}/task").glob("*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                below = list(map(int, (tasks / "children").read_text().split()))
                found += below
                waiting += below
    return found


def kill_all(pids):
    """Kill these processes; some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _main(cell, sender, folder):
    """Run a cell in a process; all processes that it starts stay below this one."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    os.setsid()
    signal.setitimer(signal.ITIMER_REAL, 0)
    output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        problems = cell.run()
    except BaseException as error:  # noqa: BLE001 - reported
        problems = [f"the caller got {type(error).__name__}: {error}", *cell.problems]
    if not wait_until(lambda: not any(map(running, children()))):
        problems.append("a process is left")
        kill_all(descendants(os.getpid()))
    sender.send((os.getpid(), [problem[:400] for problem in problems[:6]]))
    os._exit(0)


def try_in_process(row, backend, on_error, folder):
    """Return what is wrong with a cell, tried in a forked process that is killed if it hangs."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    cell = Cell(row, backend, on_error, folder)
    args = cell, sender, folder
    process = multiprocessing.get_context("fork").Process(target=_main, args=args)
    process.start()
    sender.close()
    try:
        process.join(LIMIT)
        problems = [] if process.exitcode is not None else [f"hangs: {LIMIT} s"]
        below = descendants(process.pid)
        process.kill()
        process.join()
        kill_all(below)
        with contextlib.suppress(EOFError):
            while receiver.poll(0):
                pid, found = receiver.recv()
                problems += found
                if pid != process.pid:
                    problems.append("a copy of the program ran on")
        if process.exitcode and not problems:
            problems.append(f"the program ended with {process.exitcode}")
    finally:
        receiver.close()
        process.close()
    if row.fault.startswith("forks") and (text := (Path(folder) / "output").read_text()):
        problems.append(f"output: {text[-300:]}")
    return problems
