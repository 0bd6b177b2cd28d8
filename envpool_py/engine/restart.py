"""Recreate envs, in their process or in a restarted one.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envpool_py.engine.asking import Call, ask
from envpool_py.engine.engine import Engine
from envpool_py.engine.states import DEAD
from envpool_py.env.request import Request
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.worker import process_group
from envpool_py.worker.process_host import ProcessHost

# Any process that is not in a step answers it at once.
_PING = Request("apply", (id,))


def configure(engine: Engine, ids: Sequence[int], **changes: Any) -> None:
    """Send these envs the options of the pool and their positions, and wait for the replies."""
    requests = [configuring(engine, i, **changes) for i in ids]
    ask(engine, np.array(ids, dtype=np.intp), requests, observed=False)


def configuring(engine: Engine, i: int, **changes: Any) -> Request:
    """Return the request that tells env ``i`` the options of the pool and where it goes on."""
    positions = engine.flight.positions
    episode, over = positions.of(i)
    facts = {"root": positions.root_of(i), "episode": episode, "over": over}
    facts |= {"env_id": i, "restarts": int(engine.hosts.restarts[i])}
    return Request("configure", (engine.options.env,), facts | changes)


def restart(engine: Engine, ids: IdArray) -> None:
    """Recreate these envs, and all other envs of their processes that have ended.

    EnvError if an env_fn raised, or a process ended while it started.
    """
    hosts = engine.hosts
    _notice_ends(engine)
    living = hosts.living(ids)
    # After an interrupt an env may be DEAD although its process was restarted.
    engine.states.check_free(living[engine.states.state[living] != DEAD])
    _end_hung(engine, living)
    living = hosts.living(ids)
    engine.states.mark_cancelled(living)  # in case of an interrupt
    dead = {hosts.of(i) for i in ids.tolist() if hosts.of(i).is_dead}
    while dead:
        for host in dead.copy():
            if restart_process(engine, host):
                recreate(engine, host.ids, new=True, by_hand=True)
                dead.remove(host)
        if dead:
            advance_restart(engine)
    if len(living):
        recreate(engine, living.tolist(), by_hand=True)


def swap(engine: Engine, ids: IdArray, env_fns: Sequence[Callable[[], Any]]) -> None:
    """Put other envs, with the same spaces, in the places of these.

    If it raises EnvError, because an env_fn did or spaces differ, all envs go on as they were.
    """
    hosts = engine.hosts
    revive(engine, ids)
    engine.states.check_free(ids)
    _end_hung(engine, ids)
    try:
        ask(engine, ids, [Request("env_fn", (env_fn,)) for env_fn in env_fns])
    except EnvError:
        living = hosts.living(ids)
        ask(engine, living, [Request("env_fn", (None,))] * len(living), observed=False)
        raise
    recreate(engine, ids.tolist(), by_hand=True)
    for i, env_fn in zip(ids.tolist(), env_fns, strict=True):
        if hosts.group is not None and hosts.of(i) in hosts.group.hosts:
            hosts.group.set_env_fn(hosts.of(i), i, env_fn)


def _notice_ends(engine: Engine) -> None:
    if engine.hosts.group is not None:
        engine.hosts.group.connection.fetch(engine.arrivals.chunks, 0, 0)
        engine.flight.handle_ended_processes()
        engine.arrivals.drop_stale()


def revive(engine: Engine, ids: IdArray) -> None:
    """Restart the processes of these envs that have ended and are not restarted by recovery."""
    _notice_ends(engine)
    dead = ids[engine.states.state[ids] == DEAD]
    if len(dead):
        restart(engine, dead)


def _end_hung(engine: Engine, ids: IdArray) -> None:
    """Kill the processes of these envs that do not answer, because they carry out a cancelled step.

    A process that steps an env in flight is only late: it is waited for.
    """
    hosts = engine.hosts
    while hosts.group is not None and len(ids):
        call = Call(engine, ids, [_PING] * len(ids), observed=False)
        try:
            call.send()
            call.wait(process_group.GRACE)
        except TimeoutError:
            hung = [
                i
                for i in sorted(call.missing)
                if not engine.states.in_flight()[hosts.of(i).ids].any()
            ]
            if hung:
                hosts.kill_hung(hung)
                engine.flight.handle_ended_processes()
        except EnvError:
            pass  # a process has ended: it is restarted
        else:
            return
        finally:
            call.cancel()
        ids = hosts.living(ids)


def restart_process(engine: Engine, host: ProcessHost) -> bool:
    """Restart an ended process, unless that has begun; whether its envs are made.

    They are not configured yet. EnvError if an env_fn raised, or the process ended while it
    started; OSError if it does not start.
    """
    assert engine.hosts.group is not None  # noqa: S101 - its process has ended
    if not host.restarting:
        engine.hosts.group.restart(host)
    if host.is_restarting:
        return False
    host.restarting = False
    if host.exit is None and host.started and host.start_error is None:
        engine.batches.reader.forget(host.ids)
        return True
    host.end()
    host.reap()
    host.ended = False  # the error of the restart is reported
    for i in host.ids if engine.flight.recovery is None else ():
        engine.states.mark_dead(i, host.death_of(i))
    raise host.start_error or host.death_of(host.ids[0])


def advance_restart(engine: Engine) -> None:
    group = engine.hosts.group
    assert group is not None  # noqa: S101 - one is being restarted
    engine.flight.refuse_if_closed()
    group.connection.fetch(engine.arrivals.chunks, 0, group.timeout(None))
    engine.flight.handle_ended_processes()


def recreate(
    engine: Engine,
    ids: Sequence[int],
    *,
    new: bool = False,
    by_hand: bool = False,
    wait: bool = True,
) -> None:
    """Recreate these envs, unless they are ``new``, and configure them.

    By hand they must be reset; else the steps of idle ones are sent as ``lose``. Without ``wait``,
    recovery sends their requests in flight, before which they are recreated.
    """
    engine.hosts.restarts[ids] += 1
    requests = [configuring(engine, i, recreate=not new) for i in ids]
    try:
        if wait:
            ask(engine, np.array(ids, dtype=np.intp), requests, observed=False)
    except BaseException:
        engine.hosts.restarts[ids] -= 1
        raise
    states, recovery = engine.states, engine.flight.recovery
    states.mark_recreated(i for i in ids if by_hand or states.state[i] == DEAD)
    for i in ids:
        engine.flight.positions.mark_recreated(i)
    for observer in engine.observers:
        observer.recreated(ids, requests)
    if recovery is not None:
        recovery.recreated(ids, [None if wait else one for one in requests], by_hand=by_hand)
