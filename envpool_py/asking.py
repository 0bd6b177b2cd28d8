"""Requests that bring no row: attributes, calls, seeds, options."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
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
    """
    call = Call(engine, ids, requests, observed=observed)
    try:
        call.send()
        return call.wait()
    finally:
        call.cancel()  # if a signal handler has raised between the two


class Call:
    """A request to each of these envs, which take one; they carry it out after ``send``.

    With ``hold`` no env takes another request before ``wait`` has returned or raised; without it
    the caller makes sure of that.
    """

    def __init__(
        self,
        engine: Engine,
        ids: IdArray,
        requests: Sequence[Request],
        *,
        observed: bool = True,
        hold: bool = False,
    ) -> None:
        if hold:
            engine.states.check_free(ids)
        if engine.recovery is not None and observed:
            engine.recovery.mend(ids)
        self._engine = engine
        self._notes = [o.asks(ids.tolist(), requests) for o in engine.observers if observed]
        self._kinds = {i: request.kind for i, request in zip(ids.tolist(), requests, strict=True)}
        self._tokens = engine.states.tokens | ASK
        self._messages = engine.hosts.pack(ids, self._tokens, requests)
        self._hold = hold
        self._is_open = False  # from ``send`` to the end
        self._missing: set[int] = set(self._kinds)  # the envs without a reply

    def send(self) -> None:
        """Send the requests. After an error call ``cancel``."""
        self._is_open = True
        self._engine.asked = dict.fromkeys(self._kinds)
        self._engine.states.held = self._hold
        for post, message in self._messages:
            post(message)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Return the replies.

        Raises:
            EnvError: an env has failed; needs no reset.
            TimeoutError: replies are missing after ``timeout`` seconds. They are dropped, however
                late they come. A worker process carries its requests out all the same.
        """
        engine, begun, left = self._engine, time.monotonic(), timeout
        while self._take():
            if timeout is not None and (left := begun + timeout - time.monotonic()) <= 0:
                self.cancel(late=True)
                raise TimeoutError(f"no reply after {timeout} seconds")
            engine.advance(1, left, self._missing)
        replies = engine.asked
        errors = [reply for reply in replies.values() if isinstance(reply, EnvError)]
        error = combine(errors) if errors else None
        self._end(() if error is None else error.env_ids)
        if error is not None:
            raise error
        faults.warn_of(engine, replies)
        return [reply["reply"] for reply in replies.values()]

    def _take(self) -> bool:
        """Take the replies that are there; return whether some are missing."""
        engine = self._engine
        engine.arrivals.drop_stale()
        for i in self._missing.intersection(engine.arrivals.take_replies()):
            if engine.asked[i] is None:
                token = int(self._tokens[i])
                engine.asked[i] = engine.hosts.of(i).take_item(token, self._kinds[i])
        self._missing = {i for i in self._missing if engine.asked[i] is None}
        return bool(self._missing)

    def cancel(self, *, late: bool = False) -> None:
        """Drop the replies that are missing; a call that is over is left unchanged.

        A worker process carries out a request that is ``late`` all the same.
        """
        engine, missing = self._engine, self._missing
        if not self._is_open:
            return
        # What is still to come is stale; a row that is there is not.
        engine.settle()
        to_come = [i for i in missing if engine.hosts.may_answer(i)]
        engine.arrivals.stale.update((i, int(engine.states.tokens[i])) for i in to_come)
        engine.states.tokens[list(missing)] += GENERATION
        engine.hosts.forget_messages()
        failed = missing
        if not engine.closed and missing:
            carried_out = engine.hosts.cancel(missing)
            failed = missing - carried_out if late else missing
            engine.arrivals.drop_stale()
        self._end(failed)

    def _end(self, failed: Collection[int]) -> None:
        """The call is over."""
        self._engine.asked, self._engine.states.held = {}, False
        self._is_open = False
        for note in filter(None, self._notes):
            note(list(failed))


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
