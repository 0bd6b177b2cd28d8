"""Interrupt a call of a pool at each line of the package that it runs, and see what is left."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import linecache
import logging
import mmap
import multiprocessing
import os
import queue
import selectors
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import envpool_py
from envpool_py import EnvError, interrupts
from envpool_py.engine import batches
from envpool_py.env.executor import Abandoned
from tests.faults.helpers import handling
from tests.support.helpers import children, wait_until

PACKAGE = f"{Path(envpool_py.__file__).parent}{os.sep}"
LIBRARY = threading, queue, logging, selectors, multiprocessing, concurrent.futures
"""Modules of the standard library that take locks in Python: what the package calls is walked."""
LOCKS = tuple(getattr(module, "__path__", [module.__file__])[0] for module in LIBRARY)
WALKED = (*LOCKS, contextlib.__file__)
"""An interrupt in ``contextlib`` skips what the end of a ``with`` statement would do."""
LOCKLESS = {"threading.current_thread", "threading.main_thread", "threading.ident"}
LOCKLESS |= {"util.__call__", "util.sub_debug"}  # a finalizer, which garbage collection may call
"""All that the main thread may call there outside of ``interrupts.deferred``: they take no lock."""

LEFT_AFTER = 20.0
"""Seconds until what a call has left counts as left."""
LIMIT = 60.0
"""Seconds after which a call, with what follows, hangs: the watchdog of the tests barks."""

FINE, END, RAISE, DIE, WAIT, LOOP = range(6)
"""What an env is asked to do: by its action, or once, by the ``fault`` of the board."""


class Board:
    """Numbers that a test and its envs share, in whatever process they are; a list for each env.

    Attributes:
        fault: what the next reset or call of the env does, once.
        fails_to_make: whether the next ``env_fn`` raises, once. ``fails_to_close``: ``close``.
        made: how often the env was made. ``pid``, ``thread``: where, the last time.
        waits: whether the env waits for ``held`` to become 0. ``rings``: and tells the test so.
    """

    def __init__(self, num_envs):
        rows = np.frombuffer(mmap.mmap(-1, 4096), np.int64).reshape(8, -1)[:, :num_envs]
        self.fault, self.fails_to_make, self.fails_to_close, self.made = rows[:4]
        self.pid, self.thread, self.waits, self._common = rows[4:]
        self.main = os.getpid()

    held = property(
        lambda self: self._common[0], lambda self, value: self._common.__setitem__(0, value)
    )
    rings = property(
        lambda self: self._common[1], lambda self, value: self._common.__setitem__(1, value)
    )

    def calm(self):
        """Let no env do anything but its work from now on."""
        self.held = self.rings = 0
        self.fault[:] = self.fails_to_make[:] = self.fails_to_close[:] = 0

    def wait(self, tag):
        """Wait until the test goes on (called by the env)."""
        if not self.held:
            return
        self.waits[tag] = 1
        if self.rings:
            self.rings = 0
            os.kill(self.main, signal.SIGUSR2)
        while self.held:
            time.sleep(2e-4)
        self.waits[tag] = 0


class LineEnv(gym.Env):
    """Observes (tag, number of the reset by the test, resets since then, step, errors raised)."""

    def __init__(self, tag, board):
        self.observation_space = spaces.Box(-1, 10**9, (5,), np.int64)
        self.action_space = spaces.Discrete(8)
        self.tag, self.board = tag, board
        self.number, self.resets, self.t, self.failures = -1, 0, 0, 0
        board.pid[tag], board.thread[tag] = os.getpid(), threading.get_ident()
        board.made[tag] += 1
        board.wait(tag)
        if board.fails_to_make[tag]:
            board.fails_to_make[tag] = 0
            raise ValueError("not made")

    def act(self, action):
        if action == RAISE:
            self.failures += 1
            raise ValueError("boom")
        if action == DIE and self.board.main == os.getpid():
            raise Abandoned
        if action == DIE:
            os._exit(37)
        if action == WAIT:
            self.board.wait(self.tag)
        while action == LOOP:
            time.sleep(1e-3)

    def act_once(self):
        action, self.board.fault[self.tag] = int(self.board.fault[self.tag]), 0
        self.act(action)

    def observe(self):
        return np.array([self.tag, self.number, self.resets, self.t, self.failures])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.act_once()
        self.resets, self.t = self.resets + 1, 0
        if options is not None:
            self.number, self.resets = options["number"], 0
        return self.observe(), {}

    def step(self, action):
        self.act(action)
        self.t += 1
        ended = bool(action == END)
        return self.observe(), self.tag * 1000.0 + self.t, ended, False, {"action": int(action)}

    def poke(self):
        self.failures -= int(self.board.fault[self.tag] == RAISE)  # after it no new env is needed
        self.act_once()
        return self.tag

    def close(self):
        if self.board.fails_to_close[self.tag]:
            self.board.fails_to_close[self.tag] = 0
            raise RuntimeError("not closed")


class WrongError(AssertionError):
    """The pool is not as it must be after an interrupt."""


class Ready(BaseException):
    """Interrupts a call when an env waits."""


# Between these lines and those before them there is no call and no jump, so no signal handler runs
# there. It would only because of the tracer, whose function is called at each line.
NO_SIGNAL = {
    "contextlib.py": ("except StopIteration:", "return False"),  # as in wrapper_layers.py
    "custom_worker_host.py": ("except BaseException as error:", "self._raised = error"),
    "executor.py": ("close()",),
    "sessions.py": ("if self._holds_env and",),  # of ``__del__``, whose errors Python prints
    "wrapper_layers.py": ("continue",),  # where CPython 3.11 loses a reference, too
}


class Lines:
    """Records which lines of the package the main thread runs; raises a signal at one of them.

    Attributes:
        undeferred: the functions of the standard library, with locks, that are not deferred.
        target: file, line and the number of the visit; None: nowhere.
        error: what the signal handler raises. ``fired``: whether the signal was raised.
        look: called just before that.
    """

    def __init__(self, scene, kind, target):
        self.target, self.look, self.fired = target, scene.look, False
        self.error = kind("of the handler")
        self._seen = collections.Counter()
        self.undeferred = set()
        self._raised = None  # the frame, if the last event was an exception
        self._pid = os.getpid()

    def __enter__(self):
        signal.signal(signal.SIGUSR1, self._handle)
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _handle(self, *_):
        raise self.error

    def _trace(self, frame, event, arg):  # noqa: ARG002 - of a tracer
        if os.getpid() != self._pid:  # a process that was forked meanwhile
            sys.settrace(None)
            return None
        caller = frame
        while caller.f_code.co_filename.startswith(WALKED) and caller.f_back is not None:
            caller = caller.f_back
        if not caller.f_code.co_filename.startswith(PACKAGE):
            return None
        takes_locks = frame.f_code.co_filename.startswith(LOCKS)
        if takes_locks and event == "call" and not interrupts._deferrals:
            self.undeferred.add(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        raised, self._raised = self._raised, frame if event == "exception" else None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            # An exception leaves a block: no signal handler runs before ``__exit__`` does, and
            # CPython loses a reference if a tracer raises here.
            if frame is raised and linecache.getline(*place).lstrip().startswith("with "):
                return self._trace
            self._seen[place] += 1
            if (*place, self._seen[place]) == self.target:
                sys.settrace(None)
                self.fired = True
                self.look()
                signal.raise_signal(signal.SIGUSR1)
        return self._trace

    def places(self, visits):
        """Return the places to interrupt: these visits of each line, the fifth only deep inside."""
        found = []
        for (file, line), count in self._seen.items():
            text = linecache.getline(file, line).strip()
            if text.startswith(NO_SIGNAL.get(Path(file).name, "no line")):
                continue
            deep = file.startswith((f"{PACKAGE}engine", f"{PACKAGE}worker", *LOCKS))
            wanted = [visit for visit in visits if visit < 5 or deep]
            found += [(file, line, visit) for visit in wanted if visit <= count]
        return found


class Twice(Lines):
    """Raises a second signal soon after the first; the visit of a place is the number of calls."""

    second = None

    def __init__(self, scene, kind, target):
        super().__init__(scene, kind, target and (*target[:2], 1))
        self._left = 0 if target is None else target[2]

    def __exit__(self, *_):
        sys.setprofile(None)
        super().__exit__()

    def _handle(self, *_):
        if self._left:
            sys.setprofile(self._count)
            raise self.error
        self.second = type(self.error)("of the handler, called again")
        raise self.second

    def _count(self, frame, event, arg):  # noqa: ARG002 - of a profiler
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            self._left -= 1
            if not self._left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    def places(self, _):
        return [(*place[:2], gap) for place in super().places((1,)) for gap in range(1, 9)]


class Allocations:
    """Raises a MemoryError at one of the calls of NumPy in ``engine/batches.py``."""

    def __init__(self, scene, _, target):
        self.target, self.look, self.fired = target, scene.look, False
        self.error = MemoryError("of an allocation")
        self._count = 0

    def __enter__(self):
        batches.np = self

    def __exit__(self, *_):
        batches.np = np

    def __getattr__(self, name):
        found = getattr(np, name)
        return functools.partial(self._allocate, found) if inspect.isroutine(found) else found

    def _allocate(self, function, *args, **kwargs):
        self._count += 1
        if self.target == ("allocation", self._count, 1):
            self.fired = True
            self.look()
            raise self.error
        return function(*args, **kwargs)

    def places(self, _):
        return [("allocation", k, 1) for k in range(1, self._count + 1)]


class Callback:
    """Has ``on_restart`` raise in one of its calls (place 1, 2, ...), or in each (place 0)."""

    def __init__(self, scene, _, target):
        self.target, self.fired = target, False
        self.error = CallbackError("of on_restart")
        self._scene, self._count = scene, 0

    def __enter__(self):
        self._scene.on_restart = self._call

    def __exit__(self, *_):
        if self.target is None or self.target[1]:  # else it goes on
            self._scene.on_restart = None

    def _call(self):
        self._count += 1
        if self.target in (("on_restart", self._count, 1), ("on_restart", 0, 1)):
            self.fired = True
            raise self.error

    def places(self, _):
        return [("on_restart", k, 1) for k in range(self._count + 1)]


class CallbackError(Exception):
    """Raised by ``on_restart``."""


def name_place(place):
    file, line, visit = place
    return f"{file.removeprefix(PACKAGE)}:{line}" + (f" (visit {visit})" if visit > 1 else "")


def resources():
    """Return the numbers of descriptors, child processes and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(children()), threading.active_count()  # noqa: PTH208


class Scene:
    """A pool, and what the test knows of its envs.

    Attributes:
        bad: the env that fails. ``mates``: the envs that share its process, itself included.
        number: the number of the last reset.
        has_arrived: whether the error of ``bad`` has arrived, and so must be followed by a new env.
        logged: the error of a callback of the event loop, which goes on after it.
    """

    def __init__(self, make, num_envs, bad, mates, *, restarts):
        self.board = Board(num_envs)
        self.before = resources()
        env_fns = [functools.partial(LineEnv, i, self.board) for i in range(num_envs)]
        self.pool = make(env_fns, self._tell)
        if self.pool.engine.hosts.supervisor is not None:  # a pool keeps it until it is closed
            self.pool.engine.hosts.supervisor.poller.duplicate()
        self.bad, self.mates, self.restarts = bad, mates, restarts
        self.ids = list(range(num_envs))
        self.others = [i for i in self.ids if i not in mates]
        self.number, self.stage, self.trigger = 0, "start", None
        self.has_arrived, self.on_restart, self.failures = False, None, [0] * num_envs
        self.reported = set()
        self.pool.reset(options={"number": 0})
        self.open = resources()

    # ------------------------------------------------------------------------- what states need

    def actions(self, ids, action, *, end=False):
        """Return actions for these envs: this one for the bad env."""
        first = self.others[0] if end else None
        return [action if i == self.bad else END if i == first else FINE for i in ids]

    def reset_options(self):
        self.number += 1
        return {"number": self.number}

    def kill(self):
        """End the process or thread of the bad env while it is idle, and wait for its end."""
        if self.board.pid[self.bad] == os.getpid():  # a thread ends only by its env
            self.pool.send([DIE], [self.bad])
            self.await_end()
            self.pool.cancel([self.bad])
        else:
            os.kill(int(self.board.pid[self.bad]), signal.SIGKILL)
            self.await_end()

    def await_end(self):
        """Wait until the process, or thread, of the bad env has ended, and leave it unnoticed."""
        pid, thread = int(self.board.pid[self.bad]), int(self.board.thread[self.bad])
        if pid != os.getpid():
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        elif not wait_until(lambda: thread not in {t.ident for t in threading.enumerate()}):
            raise WrongError("the thread of the env does not end")

    def fetch_others_until(self, condition):
        """Step another env, and fetch its row, until the condition holds."""

        def step():
            if self.others[0] not in self.pool.waiting_id:
                self.pool.send([FINE], self.others[:1])
            self.note(self.pool.recv()[4])
            return condition()

        if not wait_until(step):
            raise WrongError("the env is not recreated")

    # ----------------------------------------------------------------------------- what must hold

    def note(self, infos):
        self.reported.update(info["env_id"] for info in infos if "env_error" in info)

    def _tell(self, *_):
        if self.on_restart is not None:
            self.on_restart()

    def look(self):
        """Note whether the result of the bad env has arrived, just before the interrupt."""
        self.has_arrived = self.bad in self.pool.engine.arrivals.ids().tolist()

    def fetch_all(self):
        for _ in range(8):
            if not self.pool.waiting_id:
                return
            with contextlib.suppress(EnvError, CallbackError):
                obs, _, _, _, infos = self.pool.drain()
                self.note(infos)
                for row, info in zip(obs.tolist(), infos, strict=True):
                    if row[0] != info["env_id"] or row[1] not in (self.number - 1, self.number, -1):
                        raise WrongError(f"env {info['env_id']} returned {row}")
        raise WrongError(f"still in flight: {self.pool.waiting_id}")

    def reset_all(self):
        for attempt in range(9):
            try:
                obs, infos = self.pool.reset(options=self.reset_options())
            except (
                EnvError,
                CallbackError,
            ):  # the late end of a process, or an error that was not reported
                if attempt == 8:
                    raise
            else:
                self.note(infos)
                return obs
        raise AssertionError

    def go_on(self, again):
        """Fetch what is in flight, reset all envs, and step them twice; then fetch by ``again``."""
        self.stage = "drain"
        self.fetch_all()
        self.stage = "reset"
        self.board.calm()
        self.check(self.reset_all(), 0)
        for t in (1, 2):
            self.stage = f"step {t}"
            self.pool.send([FINE] * len(self.ids))
            obs, reward, terminated, truncated, infos = self.pool.step(None, self.ids)
            self.note(infos)
            self.check(obs, t)
            if any("env_error" in info for info in infos):
                raise WrongError(f"an error is reported with step {t} after a reset")
            if (
                reward.tolist() != [i * 1000.0 + t for i in self.ids]
                or (terminated | truncated).any()
            ):
                raise WrongError(f"step {t} returned {reward}, {terminated}, {truncated}")
            if [info.get("action") for info in infos] != [FINE] * len(self.ids):
                raise WrongError(f"step {t} returned {infos}")
        self.failures = obs[:, 4].tolist()
        if again is not None:
            self.stage = "the call again"
            self.pool.send([FINE] * len(self.ids))
            again()
            self.fetch_all()
        if self.pool.waiting_id:
            raise WrongError(f"in flight at the end: {self.pool.waiting_id}")

    def check(self, obs, t):
        found = obs[:, :4].tolist()
        if found != [[i, self.number, 0, t] for i in self.ids]:
            raise WrongError(f"after reset {self.number} the rows of step {t} are {found}")

    def check_restarts(self, state, restarts, *, has_arrived, by_hand):
        """Check who was recreated; ``restarts``: how often by now, since the state was made."""
        again = {i for i in self.ids if restarts[i]} | self.reported
        may = {"fine": set(), "raises": {self.bad}, "unreported": {self.bad}}.get(
            state, {*self.mates}
        )
        if again - may and not by_hand:
            raise WrongError(f"envs {again - may} were recreated or reported, and have not failed")
        if self.restarts and self.failures[self.bad] and (has_arrived or self.bad in again):
            raise WrongError("the env that raised goes on, and was not recreated")

    def check_left(self, allowed):
        names = "descriptors", "child processes", "threads"
        self.stage = "leftovers"

        def more():
            found = zip(names, resources(), allowed, strict=True)
            return [f"{now - was} {name}" for name, now, was in found if now > was]

        if more():
            gc.collect()
        if not wait_until(lambda: not more(), LEFT_AFTER):
            raise WrongError(f"left: {', '.join(more())}")

    def close(self):
        self.stage = "close"
        self.board.calm()
        if self.pool is not None:
            self.pool.close()


KINDS = (TimeoutError, KeyboardInterrupt)


def interrupt(scene, call, trigger):
    """Run a call, in which the trigger raises; Wrong if its error does not come out."""
    came_out, outcome = False, "returned"
    scene.has_arrived, scene.logged = False, None
    try:
        with trigger:
            call()
    except BaseException as caught:
        outcome = f"raised {describe(caught)[:90]}"
        came_out = caught in (trigger.error, getattr(trigger, "second", None))
        if not came_out and not isinstance(caught, EnvError):
            raise WrongError(f"the call {outcome}") from caught
        caught.__traceback__ = None  # it holds what was half made
    # asyncio.run, interrupted while it sets the handler of SIGINT back, leaves its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if trigger.fired and not came_out and trigger.error is not scene.logged:
        raise WrongError(f"the error did not come out: the call {outcome}")


def describe(error):
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def walk(cell, choose=lambda places: places):
    """Interrupt the call of a cell at each of its places, or at those that ``choose`` returns.

    WrongError at the first place after which something is wrong.
    """
    logging.disable()
    with warnings.catch_warnings(), handling(signal.SIGUSR1, signal.SIG_IGN):
        warnings.simplefilter("ignore")
        try:
            places, scene = record(cell)
            for place in choose(places):
                scene = visit(cell, scene, place)
            finish(scene)
        finally:
            logging.disable(logging.NOTSET)


def record(cell):
    """Return the places that dry runs visit, and the last scene.

    The first run fills caches; the other two may differ in what depends on time.
    """
    found, scene, undeferred = {}, None, set()
    for number in range(3):
        scene = visit(cell, scene, None)
        if number:
            found |= dict.fromkeys(scene.trigger.places(cell.visits))
            undeferred |= getattr(scene.trigger, "undeferred", set())
    if locks := undeferred - LOCKLESS:
        raise WrongError(f"{cell}: an interrupt may leave a lock held: {sorted(locks)}")
    return [*found], scene


def visit(cell, scene, place):
    """Interrupt the call at a place, of a new pool if there is none; return the scene."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    if scene is None or scene.pool is None:
        scene = cell.scene()
    try:
        once(cell, scene, place)
    except BaseException as error:
        where = "the dry run" if place is None else name_place(place)
        text = f"{cell}, at {where}, in the {scene.stage}: {describe(error)}"
        scene.close()
        raise WrongError(text) from error
    return scene


def once(cell, scene, place):
    """Bring the pool into the state, interrupt the call there, and see whether it goes on."""
    pool = scene.pool
    scene.stage, scene.reported = "preparation", set()
    before = pool.restarts
    call = cell.prepare(scene)
    scene.on_restart = None
    base = pool.restarts if cell.state != "unreported" else before
    scene.board.held = 0
    scene.stage = "call"
    scene.trigger = cell.trigger(scene, cell.kind, place)
    interrupt(scene, call, scene.trigger)
    if cell.call == "close":
        finish(scene)
        return
    scene.go_on(call if cell.call == "recv_async" else None)
    scene.trigger.error.__traceback__ = None  # of two; not earlier: the pool may have kept it
    scene.check_restarts(
        cell.state,
        pool.restarts - base,
        has_arrived=cell.state == "unreported" or (scene.has_arrived and cell.state == "raises"),
        by_hand=cell.call == "restart",
    )
    if scene.failures[scene.bad]:  # an error was dropped with its request: another env for the next
        pool.restart([scene.bad])
        pool.reset(options=scene.reset_options())
    scene.check_left(scene.open)


def finish(scene):
    """Close a pool that is not used again, and check what it leaves."""
    scene.close()
    scene.pool = scene.trigger.error = scene.trigger.second = None  # an error holds frames
    scene.check_left(scene.before)
