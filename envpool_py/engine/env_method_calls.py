"""Requests that are answered by a reply, not by a row: attributes, calls, options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from envpool_py import interrupts
from envpool_py.engine.flight import Asked, Flight
from envpool_py.env.request import ASK, GENERATION, ID_MASK, Request
from envpool_py.env.validation import warn_of_rows
from envpool_py.env_ids import IdArray
from envpool_py.errors import EnvError, combine


def ask(
    flight: Flight, ids: IdArray, requests: Sequence[Request], *, observed: bool = True
) -> list[Any]:
    """Send a request to each of these envs, which must accept one, and return the replies.

    ``observed``: a record holds the requests. EnvError if an env raised, or its process ended; no
    reset is needed.
    """
    call = Call(flight, ids, requests, observed=observed)
    try:
        call.send()
        return call.wait()
    finally:
        call.cancel()  # does nothing unless an interrupt came before all replies


class Call:
    """One request to each of these envs, which must accept one; ``send`` starts them."""

    def __init__(
        self,
        flight: Flight,
        ids: IdArray,
        requests: Sequence[Request],
        *,
        observed: bool = True,
    ) -> None:
        self._flight = flight
        self._record_end: Callable[..., object] = lambda *_: None
        if observed and flight.recorder is not None:
            self._record_end = flight.recorder.ask_writer(ids.tolist(), requests)
        tokens = flight.states.tokens | ASK
        self._messages = flight.hosts.prepare_requests(ids, tokens, requests)
        pairs = zip(tokens[ids].tolist(), requests, strict=True)
        self._asked = {token: Asked(request, math.inf) for token, request in pairs}
        self._is_open = False  # True from ``send`` until the call has ended

    @property
    def missing(self) -> set[int]:
        """The envs without a reply."""
        return {token & ID_MASK for token, one in self._asked.items() if not one.is_answered}

    def send(self, *, hold: bool = False) -> None:
        """Send the requests. If this raises, call ``cancel``.

        With ``hold`` no env accepts another request before ``wait`` has returned or raised. Without
        ``hold`` the caller must not send one.
        """
        with self._flight.recording_guard():
            self._is_open = True
            for one in self._asked.values():
                one.since = time.monotonic()
            self._flight.asked |= self._asked
            self._flight.states.is_held = hold
            for send in self._messages:
                send()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Return the replies.

        Raises:
            EnvError: an env raised, or its process ended. No reset is needed.
            TimeoutError: replies are missing after ``timeout`` seconds. They are dropped, however
                late they come; a worker process nevertheless carries out its requests.
        """
        flight, begun, left = self._flight, time.monotonic(), timeout
        while missing := self.missing:
            if timeout is not None and (left := begun + timeout - time.monotonic()) <= 0:
                self.cancel()
                raise TimeoutError(f"no reply after {timeout} seconds")
            flight.advance(1, left, missing)
            flight.take_replies()
        replies = {token & ID_MASK: flight.take_reply(token) for token in self._asked}
        failed = {i: reply for i, reply in replies.items() if isinstance(reply, EnvError)}
        with flight.recording_guard():
            self._end(failed)
        good: dict[int, Any] = {i: reply for i, reply in replies.items() if i not in failed}
        warn_of_rows(good, set())
        if failed:
            raise combine(list(failed.values()))
        return [reply["reply"] for reply in good.values()]

    def cancel(self) -> None:
        """Drop the missing replies; do nothing if the call has ended."""
        flight = self._flight
        if not self._is_open:
            return
        with interrupts.deferred():
            flight.settle()
            flight.take_replies()
            missing, asked = self.missing, [token & ID_MASK for token in self._asked]
            # Of all: the value of a reply that has arrived may still be unread in the socket.
            flight.states.tokens[asked] += GENERATION
            self._end(asked, missing - flight.hosts.cancel(missing))

    def _end(self, failed: Collection[int], dropped: Collection[int] = ()) -> None:
        """End the call; ``dropped``: of the ``failed``, the envs that did not begin it."""
        for token in self._asked:
            self._flight.forget_asked(token)
        self._flight.states.is_held = False
        self._is_open = False
        self._record_end(failed, dropped)
