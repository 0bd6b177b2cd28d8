"""Requests that are answered by a reply, not by a row: attributes, calls, options."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from envpool_py.engine.engine import Engine
from envpool_py.env.request import Request
from envpool_py.env.tokens import ASK, GENERATION
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError, combine


def ask(
    engine: Engine, ids: IdArray, requests: Sequence[Request], *, observed: bool = True
) -> list[Any]:
    """Send a request to each of these envs, which must accept one, and return the replies.

    EnvError if an env raised, or its process ended; no reset is needed.
    """
    call = Call(engine, ids, requests, observed=observed)
    try:
        call.send()
        return call.wait()
    finally:
        call.cancel()  # does nothing unless a signal handler raised before all replies came


class Call:
    """One request to each of these envs, which must accept one; ``send`` starts them.

    With ``hold`` no env accepts another request before ``wait`` has returned or raised. Without
    ``hold`` the caller must not send one.
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
        self._engine, self._note = engine, None
        if observed:
            engine.flight.recovery.mend(ids)
            if engine.flight.recorder is not None:
                self._note = engine.flight.recorder.asks(ids.tolist(), requests)
        self._kinds = {i: request.kind for i, request in zip(ids.tolist(), requests, strict=True)}
        self._tokens = engine.states.tokens | ASK
        self._messages = engine.hosts.prepare_requests(ids, self._tokens, requests)
        self._hold = hold
        self._is_open = False  # True from ``send`` until the call has ended
        self.missing: set[int] = set(self._kinds)  # without a reply

    def send(self) -> None:
        """Send the requests. If this raises, call ``cancel``."""
        self._is_open = True
        self._engine.flight.replies = dict.fromkeys(self._kinds)
        self._engine.states.held = self._hold
        for send in self._messages:
            send()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Return the replies.

        Raises:
            EnvError: an env raised, or its process ended. No reset is needed.
            TimeoutError: replies are missing after ``timeout`` seconds. They are dropped, however
                late they come; a worker process nevertheless carries out its requests.
        """
        engine, begun, left = self._engine, time.monotonic(), timeout
        while self._take():
            if timeout is not None and (left := begun + timeout - time.monotonic()) <= 0:
                self.cancel(late=True)
                raise TimeoutError(f"no reply after {timeout} seconds")
            engine.flight.advance(1, left, self.missing)
        replies = engine.flight.replies
        errors = [reply for reply in replies.values() if isinstance(reply, EnvError)]
        error = combine(errors) if errors else None
        self._end(() if error is None else error.env_ids)
        if error is not None:
            raise error
        return [reply["reply"] for reply in replies.values()]

    def _take(self) -> bool:
        """Take the replies that have arrived; return whether some are missing."""
        engine = self._engine
        engine.arrivals.drop_stale()
        for i in self.missing.intersection(engine.arrivals.take_replies()):
            if engine.flight.replies[i] is None:
                token = int(self._tokens[i])
                engine.flight.replies[i] = engine.hosts.of(i).take_item(token, self._kinds[i])
        self.missing = {i for i in self.missing if engine.flight.replies[i] is None}
        return bool(self.missing)

    def cancel(self, *, late: bool = False) -> None:
        """Drop the missing replies; do nothing if the call has ended.

        After a timeout (``late``) a request that a worker process still carries out has not failed.
        """
        engine, missing = self._engine, self.missing
        if not self._is_open:
            return
        engine.flight.publish_finished()
        engine.states.tokens[list(missing)] += GENERATION
        failed = missing
        if not engine.flight.closed and missing:
            carried_out = engine.hosts.cancel(missing)
            failed = missing - carried_out if late else missing
            engine.arrivals.drop_stale()
        self._end(failed)

    def _end(self, failed: Collection[int]) -> None:
        self._engine.flight.replies, self._engine.states.held = {}, False
        self._is_open = False
        if self._note is not None:
            self._note(list(failed))
