"""Requests that bring no row: attributes, calls, seeds, options."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from envpool_py import faults
from envpool_py.errors import EnvError, combine
from envpool_py.ids import IdArray
from envpool_py.states import RAISED, READY
from envpool_py.worker.base import Request
from envpool_py.worker.channel import ASK, GENERATION

if TYPE_CHECKING:
    from envpool_py.engine import Engine


def ask(
    engine: Engine, ids: IdArray, requests: Sequence[Request], *, observed: bool = True
) -> list[Any]:
    """Send a request to each of these envs, which take one, and return the replies.

    Raises:
        EnvError: one has failed; needs no reset.
        TimeoutError: they took longer than ``engine.call_timeout``; the replies are dropped.
    """
    if engine.recovery is not None and observed:
        engine.recovery.mend(ids)
    notes = [o.asks(ids.tolist(), requests) for o in engine.observers] if observed else []
    failed: Any = None
    try:
        replies = _ask(engine, ids, requests, engine.call_timeout if observed else None)
        failed = ()
    except EnvError as error:
        failed = error.env_ids
        raise
    finally:
        for note in filter(None, notes if failed is not None else ()):
            note(failed)
    return replies


def _ask(engine: Engine, ids: IdArray, requests: Sequence[Request], timeout: Any) -> list[Any]:
    left, begun = timeout, time.monotonic()
    states, arrivals, hosts = engine.states, engine.arrivals, engine.hosts
    tokens = states.tokens | ASK
    messages = hosts.pack(ids, tokens, requests)
    kinds = dict(zip(ids.tolist(), (request.kind for request in requests), strict=True))
    engine.asked = dict.fromkeys(kinds)
    missing = set(kinds)
    try:
        for post, message in messages:
            post(message)
        while missing:
            arrivals.drop_stale()
            for i in missing.intersection(arrivals.take_replies()):
                if engine.asked[i] is None:
                    engine.asked[i] = hosts.of(i).take_item(int(tokens[i]), kinds[i])
            missing = {i for i in missing if engine.asked[i] is None}
            if missing:
                if timeout is not None and (left := begun + timeout - time.monotonic()) <= 0:
                    raise TimeoutError(f"no reply after {timeout} seconds")  # noqa: TRY301
                engine.advance(1, left, missing)
        replies = dict(engine.asked)
    except BaseException:
        # What is still to come is stale; a row that is there is not.
        engine.settle()
        arrivals.stale.update((i, int(states.tokens[i])) for i in missing)
        states.tokens[list(missing)] += GENERATION
        hosts.forget_messages()
        if not engine.closed:
            hosts.cancel(missing)
            arrivals.drop_stale()
        raise
    finally:
        engine.asked = {}
    errors = [reply for reply in replies.values() if isinstance(reply, EnvError)]
    if errors:
        raise combine(errors)
    faults.warn_of(engine, replies)
    return [reply["reply"] for reply in replies.values()]


def seed(engine: Engine, ids: IdArray, requests: Sequence[Request]) -> None:
    """Requests that reset their envs but bring no row.

    Raises:
        EnvError: one has failed, and then accepts only a reset.
    """
    states = engine.states
    if engine.recovery is not None:
        engine.recovery.mend(ids)
    states.cancelled(ids)  # should this be interrupted
    engine.hosts.forget_messages()
    try:
        ask(engine, ids, requests)
    except EnvError as error:
        alive = [i for i in ids.tolist() if i not in states.deaths]
        states.state[alive] = READY
        states.state[[i for i in error.env_ids if i in alive]] = RAISED
        raise
    states.state[ids] = READY
    engine.places.see(ids.tolist())
    if engine.recovery is not None:
        engine.recovery.drop_reports(ids.tolist())
