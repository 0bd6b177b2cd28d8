"""A signal handler that raises at any line of any call leaves a pool that goes on.

Each cell of the table is a call, a backend, and a state of affairs. A dry run records the lines of
the package that the call runs; then each of them is interrupted, and all envs must go on.
"""

import asyncio
import contextlib
import functools
import itertools
import signal
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, ThreadVectorEnv
from envpool_py.env.request import ID_MASK
from tests.backends.test_worker_contract import ThreadWorker
from tests.support import every_line
from tests.support.every_line import DIE, FINE, KINDS, LOOP, RAISE, WAIT, Ready, Scene
from tests.support.helpers import wait_until

CALLS = ("step", "send", "recv", "reset", "drain", "restart", "call", "recv_async", "close")
STATES = ("fine", "raises", "dies", "hangs", "restarting", "late", "unreported")
ON_ERROR = ("raise", "restart")


class Backend(NamedTuple):
    """How a pool is made; the env that fails, where it raises and where its process dies."""

    make: Any
    num_envs: int = 2
    raises: int = 1
    dies: int | None = 1
    mates: tuple[int, ...] = (1,)


_FORK = functools.partial(ShmemVectorEnv, context="fork")
BACKENDS = {
    "in process": Backend(DummyVectorEnv, dies=None, raises=0, mates=(0,)),
    "shared memory": Backend(_FORK),
    "packed": Backend(functools.partial(_FORK, num_processes=2), 3, mates=(0, 1)),
    "threads": Backend(ThreadVectorEnv),
    "caller_steps": Backend(
        functools.partial(_FORK, num_processes=1, caller_steps=True), dies=0, mates=(0,)
    ),
    "custom": Backend(
        functools.partial(BaseVectorEnv, worker_fn=ThreadWorker), dies=None, raises=0, mates=(0,)
    ),
}


TRIGGERS = {
    "a signal": every_line.Lines,
    "two signals": every_line.Twice,
    "an allocation": every_line.Allocations,
    "on_restart": every_line.Callback,
}


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    call: str
    backend: str
    state: str
    on_error: str
    mode: str | None
    by: str = "a signal"

    def __str__(self):
        text = f"{self.call}, {self.backend}, {self.state}, {self.on_error}, {self.mode}"
        return text + f", {self.by}" * (self.trigger is not every_line.Lines)

    @property
    def trigger(self):
        """What raises the error."""
        return TRIGGERS[self.by]

    @property
    def kind(self):
        """What the handler raises: each of two kinds in half of the cells."""
        parts = (CALLS, self.call), (tuple(BACKENDS), self.backend), (STATES, self.state)
        number = sum(values.index(value) for values, value in parts)
        return KINDS[(number + (self.on_error == "restart" and self.mode is None)) % 2]

    @property
    def visits(self):
        """Which visits of a line are interrupted; a process that is started takes long."""
        forks = self.state in ("dies", "restarting") and self.backend in (
            "shared memory",
            "caller_steps",
        )
        return (1, 5) if forks else (1, 2, 5)

    @property
    def dies(self):
        """Whether the env that fails is one whose process or thread can end."""
        return self.state in ("dies", "hangs", "restarting", "late") and not self.is_local

    @property
    def is_local(self):
        return BACKENDS[self.backend].dies is None

    @property
    def impossible(self):
        """Why there is no such cell; empty if there is."""
        if self.is_local and self.state in ("dies", "hangs"):
            return "the env has no process or thread of the pool's own"
        if self.backend == "in process" and self.state == "late":
            return "a cancelled request is dropped: nothing is late"
        if self.state == "hangs" and (self.backend != "threads" or self.call not in FETCHING):
            return "a process that hangs is killed, as in the state 'dies'"
        if self.is_local and self.state == "restarting" and self.on_error == "raise":
            return "pool.restart of an env in this process returns when the env is recreated"
        if self.state == "restarting" and self.call == "restart" and self.on_error == "restart":
            return "the env is in flight, and in flight it is not restarted"
        return ""

    def scene(self):
        """Make the pool."""
        backend = BACKENDS[self.backend]
        options = {"on_error": self.on_error, "autoreset_mode": self.mode}
        if self.on_error == "restart":
            options |= {"restart_backoff": 0.0, "max_restarts": None}
        if self.state == "hangs":
            options["step_timeout"] = 0.3
        if self.is_partial:
            options["wait_num"] = 1
        bad = backend.dies if self.dies else backend.raises
        mates = backend.mates if bad in backend.mates else (bad,)
        restarts = self.on_error == "restart"

        def make(env_fns, on_restart):
            told = {"on_restart": on_restart} if restarts else {}
            return backend.make(env_fns, **options, **told)

        return Scene(make, backend.num_envs, bad, mates, restarts=restarts)

    @property
    def is_partial(self):
        return self.on_error == "restart" and self.state in ("restarting", "unreported")

    def prepare(self, scene):
        """Bring the pool into the state; return the call."""
        fault = {"raises": RAISE, "dies": DIE, "hangs": LOOP}.get(self.state, FINE)
        if self.state in ("restarting", "late", "unreported"):
            PREPARE[self.state](self, scene)
        return ASK[self.call](self, scene, fault)


FETCHING = ("recv", "drain", "recv_async")
GIVING_ROWS = ("step", "reset", *FETCHING)

# ----------------------------------------------------------------------------------------- states


def prepare_restarting(cell, scene):
    """The new process of the bad env waits while it makes the env; or the request waits for it."""
    pool, board = scene.pool, scene.board
    if cell.on_error == "raise":
        scene.kill()
        board.held = board.rings = 1

        def ready(*_):
            raise Ready

        before = signal.signal(signal.SIGUSR2, ready)
        with contextlib.suppress(Ready):
            pool.restart([scene.bad])
        signal.signal(signal.SIGUSR2, before)
        return
    mates = list(scene.mates)  # the first of them waits in the new process
    made, restarts = int(board.made[mates].sum()), pool.restarts[scene.bad]
    pool.send([RAISE if cell.is_local else DIE], [scene.bad])
    if not cell.is_local:
        scene.await_end()
        board.held = 1
    scene.fetch_others_until(
        lambda: (
            pool.restarts[scene.bad] > restarts if cell.is_local else board.made[mates].sum() > made
        )
    )


def prepare_late(_, scene):
    """A cancelled step of the bad env is still under way."""
    scene.board.held = 1
    scene.pool.send([WAIT], [scene.bad])
    assert wait_until(lambda: scene.board.waits[scene.bad]), "the step has not begun"
    scene.pool.cancel([scene.bad])


def prepare_unreported(cell, scene):
    """The error of the bad env had arrived when its request was cancelled."""
    pool, restarts = scene.pool, scene.pool.restarts[scene.bad]
    scene.board.held = cell.on_error == "restart" and cell.backend not in (
        "in process",
        "caller_steps",
    )
    pool.send([RAISE], [scene.bad])
    if cell.on_error == "restart":
        asked = pool.engine.flight.asked
        scene.fetch_others_until(
            lambda: scene.bad in {t & ID_MASK for t in asked} or pool.restarts[scene.bad] > restarts
        )
        if in_flight := sorted({*pool.waiting_id} - {scene.bad}):  # the bad env was faster
            scene.note(pool.step(None, in_flight)[4])
    pool.cancel([scene.bad])


PREPARE = {"restarting": prepare_restarting, "late": prepare_late, "unreported": prepare_unreported}

# ------------------------------------------------------------------------------------------ calls


def free(cell, scene):
    """Return the envs that accept a step in this state."""
    return scene.ids if cell.state in ("fine", "raises", "dies", "hangs") else scene.others


def step(cell, scene, fault):
    ids = free(cell, scene)
    actions = scene.actions(ids, fault, end=cell.mode is not None)
    return lambda: scene.pool.step(actions, ids)


def send(cell, scene, fault):
    if cell.state == "dies":
        scene.kill()
        fault = FINE
        if scene.board.pid[scene.bad] == scene.board.main:  # its request was cancelled
            return lambda: scene.pool.send_reset([scene.bad])
    ids = free(cell, scene)
    actions = scene.actions(ids, fault, end=cell.mode is not None)
    return lambda: scene.pool.send(actions, ids)


def fetch(cell, scene, fault):
    ids = free(cell, scene)
    scene.pool.send(scene.actions(ids, fault, end=cell.mode is not None), ids)
    if cell.state in ("late", "unreported"):
        if cell.backend == "custom":  # such a worker waits for what is late before it sends
            scene.board.held = 0
        scene.pool.send_reset([scene.bad], options=scene.reset_options())
    if cell.state == "dies":
        scene.await_end()
    if cell.call == "recv_async":
        return lambda: asyncio.run(receive(scene))
    return getattr(scene.pool, cell.call)


async def receive(scene):
    """Return the next batch, and note an error that asyncio would log."""

    def note(_, context):
        scene.logged = context["exception"]

    asyncio.get_running_loop().set_exception_handler(note)
    return await scene.pool.recv_async()


def reset(cell, scene, fault):
    scene.board.fault[scene.bad] = fault
    ids = scene.others if cell.state == "restarting" and cell.on_error == "restart" else scene.ids
    options = scene.reset_options()
    return lambda: scene.pool.reset(ids, options=options)


def restart(cell, scene, fault):
    del fault
    if cell.state == "dies":
        scene.kill()
    scene.board.fails_to_make[scene.bad] = cell.state == "raises"
    return lambda: scene.pool.restart([scene.bad])


def call(cell, scene, fault):
    scene.board.fault[scene.bad] = fault
    busy = cell.state == "restarting" and cell.on_error == "restart"
    ids = scene.others if busy else scene.ids
    return lambda: scene.pool.call("poke", id=ids)


def close(cell, scene, fault):
    del fault
    if cell.state == "dies":
        scene.kill()
    scene.board.fails_to_close[scene.bad] = cell.state == "raises"
    return scene.pool.close


ASK = {
    **dict.fromkeys(FETCHING, fetch),
    "step": step,
    "send": send,
    "reset": reset,
    "restart": restart,
    "call": call,
    "close": close,
}


def table():
    """Return all cells that can be."""
    found = []
    for backend, call_, state, on_error in itertools.product(BACKENDS, CALLS, STATES, ON_ERROR):
        modes = (None,) if on_error == "raise" else ("same_step",)
        if (
            on_error == "restart"
            and backend in ("in process", "packed")
            and state in ("raises", "dies")
        ):
            modes = (None, "same_step")
        if call_ == "close" and (on_error == "restart") != (state in ("restarting", "unreported")):
            continue
        found += [Cell(call_, backend, state, on_error, mode) for mode in modes]
    for backend, call_, state in itertools.product(BACKENDS, GIVING_ROWS, ("raises", "dies")):
        found.append(Cell(call_, backend, state, "restart", None, "on_restart"))
    for backend, call_ in itertools.product(BACKENDS, CALLS[:-1]):
        found.append(Cell(call_, backend, "fine", "raise", None, "two signals"))
        found.append(Cell(call_, backend, "raises", "restart", "same_step", "two signals"))
    for backend, call_, state, on_error in itertools.product(
        ("in process", "shared memory"), GIVING_ROWS, ("fine", "raises"), ON_ERROR
    ):
        mode = "same_step" if on_error == "restart" else None
        found.append(Cell(call_, backend, state, on_error, mode, "an allocation"))
    return [cell for cell in found if not cell.impossible]


# ------------------------------------------------------------------------------------------- tests


def sample(places):
    """Return two of these places, or the only one."""
    return places[len(places) // 3 :: max(len(places) // 2, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_may_be_interrupted_at_some_lines(backend):
    for cell in [cell for cell in table() if cell.backend == backend][::11]:
        every_line.walk(cell, sample)


@pytest.mark.soak
@pytest.mark.parametrize("cell", table(), ids=str)
def test_a_call_may_be_interrupted_at_any_line(cell):
    every_line.walk(cell)
