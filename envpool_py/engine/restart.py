"""Recreate envs, in their process or in a restarted one.

A recreated env continues at the position of the lost env in its schedule of episodes. The executor,
which knows which resets reached the env, writes that position into the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_py.engine.asking import Call, ask
from envpool_py.engine.engine import Engine
from envpool_py.engine.states import DEAD
from envpool_py.env.request import Request
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray
from envpool_py.worker import process_group

# Any process that is not in a step answers it at once.
_PING = Request("apply", (id,))


def configure(engine: Engine, requests: Sequence[Request]) -> None:
    ask(engine, engine.all.ids, requests, observed=False)
    engine.hosts.configured.update(enumerate(requests))


def configured_for(engine: Engine, i: int) -> Request | None:
    """Return the request that gives a new executor of env ``i`` the pool's options and position."""
    request = engine.hosts.configured.get(i)
    if request is None:
        return None
    root, episode, _ = engine.flight.positions.of(i)
    return request._replace(kwargs={**request.kwargs, "root": root, "episode": episode})


def _configure_again(engine: Engine, ids: Sequence[int]) -> None:
    requests = {i: configured_for(engine, i) for i in ids}
    sent = {i: request for i, request in requests.items() if request is not None}
    if sent:
        ask(engine, np.array(list(sent), dtype=np.intp), list(sent.values()), observed=False)
    for i in ids:
        engine.flight.positions.mark_recreated(i)


def restart(engine: Engine, ids: IdArray) -> None:
    """Recreate these envs, and all other envs of their processes that have ended.

    Raises:
        AlreadyPendingCallError: an env is in flight, and its process has not ended.
        EnvError: an env_fn raised, or a process ended while it started.
    """
    if engine.flight.recovery is None:
        _restart(engine, ids)
    else:
        engine.flight.recovery.restart_by_hand(lambda: _restart(engine, ids))


def _restart(engine: Engine, ids: IdArray) -> list[int]:
    hosts = engine.hosts
    if hosts.group is not None:
        hosts.group.channel.fetch(engine.arrivals.chunks, 0, 0)
        engine.flight.handle_ended_processes()
        engine.arrivals.drop_stale()

    def living() -> IdArray:
        return ids[[not hosts.is_dead(i) for i in ids.tolist()]]

    engine.states.check_free(living())
    _end_hung(engine, living())
    engine.states.mark_cancelled(living())  # in case of an interrupt
    hosts.forget_messages()
    dead = [i for i in ids.tolist() if hosts.is_dead(i)]
    for i in dead:
        hosts.begin_restart(i)
    while any(hosts.is_restarting(i) for i in dead):
        advance_restart(engine)
    made = [i for host in {hosts.of(i) for i in dead} for i in finish_restart(engine, host)]
    rest = ids[~np.isin(ids, made)]
    if len(rest):
        rebuild(engine, rest)
    return [*made, *rest.tolist()]


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
            hung = [i for i in call.missing if not engine.states.in_flight()[hosts.of(i).ids].any()]
            if hung:
                hosts.kill_hung(hung)
                engine.flight.handle_ended_processes()
        except EnvError:
            pass  # a process has ended: it is restarted
        else:
            return
        finally:
            call.cancel()
        ids = ids[[not hosts.is_dead(i) for i in ids.tolist()]]


def advance_restart(engine: Engine) -> None:
    group = engine.hosts.group
    assert group is not None  # noqa: S101 - one is being restarted
    engine.flight.refuse_if_closed()
    group.channel.fetch(engine.arrivals.chunks, 0, group.timeout(None))
    engine.flight.handle_ended_processes()


def finish_restart(engine: Engine, host: Any) -> list[int]:
    """Configure the envs of a restarted process with the positions of the lost envs.

    Returns:
        The ids of these envs.

    Raises:
        EnvError: an env_fn raised, or the process ended while it started.
    """
    states, deaths = engine.states, dict(engine.states.deaths)
    try:
        error = engine.hosts.end_restart(host)
        if error is None:
            engine.batches.forget_forms(host.ids)
            states.deaths = {i: death for i, death in deaths.items() if i not in host.ids}
            _configure_again(engine, host.ids)
            _note_recreated(engine, host.ids)
    except BaseException:
        # The executors may lack their options, so the process must be restarted again.
        states.deaths.update(deaths)
        host.restarting = False
        host.end()
        raise
    if error is not None:
        for i in host.ids if engine.flight.recovery is None else ():
            states.mark_dead(i, host.death_of(i))
        raise error
    return list(host.ids)


def rebuild(engine: Engine, ids: IdArray) -> None:
    ask(engine, ids, [Request("rebuild")] * len(ids), observed=False)
    _configure_again(engine, ids.tolist())
    _note_recreated(engine, ids.tolist())


def _note_recreated(engine: Engine, ids: Sequence[int]) -> None:
    engine.hosts.restarts[list(ids)] += 1
    recovery, to_reset = engine.flight.recovery, ids
    if recovery is not None:
        recovery.recreated(ids)
        if not recovery.by_hand:
            to_reset = [i for i in ids if engine.states.state[i] == DEAD]
    engine.states.mark_recreated(to_reset)
    for observer in engine.observers:
        observer.recreated(ids)
