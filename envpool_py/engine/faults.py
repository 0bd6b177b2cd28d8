"""Handle processes that end or hang while an engine waits, and the envs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envpool_py.engine.states import RESETTING, STEPPING
from envpool_py.env import checks
from envpool_py.env.block import BESIDE, Beside
from envpool_py.env.tokens import GENERATION, pack_token
from envpool_py.errors import EnvError, EnvTimeoutError
from envpool_py.ids import IdArray
from envpool_py.worker.process_host import ProcessHost

if TYPE_CHECKING:
    from envpool_py.engine.engine import Engine


def attend(engine: Engine) -> None:
    """Handle processes that have ended, and envs that exceed ``step_timeout``."""
    engine.refuse_if_closed()
    processes = engine.hosts.processes
    if processes is None:
        return
    engine.arrivals.drop_stale()
    for host, overdue in processes.look():
        named, text = processes.end_stuck(host, overdue)
        for i in named:
            _fail_in_flight(engine, i, EnvTimeoutError(f"env {i}: {text}", (i,), "step"))
    for host in processes.ended():
        _handle_death(engine, host)
    processes.timed |= any(host.disconnected for host in processes.hosts)


def _fail_in_flight(engine: Engine, i: int, error: EnvError) -> bool:
    """Make ``error`` the result of env ``i``'s request; return whether a row was in flight."""
    if i in engine.asked:  # in flight too if recovery asks: it tries again or fails the request
        engine.asked[i] = engine.asked[i] or error
        return False
    if not engine.states.flying()[i] or i in engine.arrivals.ids():
        return False
    if not error.request:
        error.request = "reset" if engine.states.state[i] == RESETTING else "step"
    fail(engine, i, error)
    return True


def _handle_death(engine: Engine, host: ProcessHost) -> None:
    """Handle the end of a process: its envs that are in flight have failed."""
    host.reap()
    assert engine.hosts.processes is not None  # noqa: S101 - it has ended
    engine.hosts.processes.channel.collect(engine.arrivals.chunks)
    engine.arrivals.drop_stale()
    if not host.restarting:  # else recreation handles it
        for i in host.ids:
            error = host.death_of(i)
            if not _fail_in_flight(engine, i, error):
                engine.places.keep(i)
            if engine.recovery is None or not engine.recovery.handle_death(i, error):
                engine.states.died(i, error)
    host.ended = False  # last: after an interrupt, all of this is repeated


def fail(engine: Engine, i: int, error: EnvError) -> None:
    """Make this error the result of env ``i``, which is in flight."""
    engine.places.keep(i, unanswered=True)
    engine.states.tokens[i] += GENERATION
    engine.hosts.forget_messages()
    engine.block.mark[i] = BESIDE
    engine.beside[i] = error
    engine.arrivals.chunks.append(pack_token(int(engine.states.tokens[i])))


def end_writers(engine: Engine) -> None:
    """End every process with an env in flight, after data that is no result came in the pipe.

    Any of these processes may have written the data, and any of their results may be lost.
    """
    processes = engine.hosts.processes
    assert processes is not None  # noqa: S101 - only processes write tokens
    engine.arrivals.chunks.clear()
    flying = engine.states.flying()
    for host in processes.hosts:
        if flying[host.ids].any() or not engine.asked.keys().isdisjoint(host.ids):
            host.end("was killed: something wrote into the pipe of the results")
    processes.channel.collect([])
    attend(engine)


def put_lost(engine: Engine, ids: IdArray) -> None:
    """Make the row of a lost step the result of these envs, none of which is in flight."""
    engine.states.sent(ids, ids, STEPPING)
    for i in ids.tolist():
        deliver_lost(engine, i)


def deliver_lost(engine: Engine, i: int) -> None:
    """Make the row of a lost step the result of env ``i``, which is in flight."""
    own = engine.batches.put_lost(i)
    if own:
        engine.beside[i] = own
    engine.arrivals.chunks.append(pack_token(int(engine.states.tokens[i])))


def warn_of(engine: Engine, beside: dict[int, Beside]) -> None:
    """Warn of invalid values in rows that are returned nevertheless; each kind once per pool."""
    found: dict[str, dict[int, str]] = {}
    for i, own in beside.items():
        for kind, text in own.get("warnings", {}).items():
            if kind not in engine.warned:
                found.setdefault(kind, {})[i] = text
    engine.warned.update(found)
    for kind, texts in found.items():
        checks.warn(checks.warning(kind, texts))
