"""Requests that bring no row: attributes, calls, seeds, options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py.errors import EnvError, combine
from envpool_py.faults import warn_of
from envpool_py.ids import IdArray
from envpool_py.states import RAISED, READY
from envpool_py.worker.base import Request
from envpool_py.worker.channel import ASK, GENERATION
from envpool_py.worker.process import ProcessHost

if TYPE_CHECKING:
    from envpool_py.engine import Engine


class Asking:
    """Asks the envs of an engine for what brings no row, and waits for the replies.

    Args:
        engine: whose envs these are.

    Attributes:
        asked: the envs that are asked just now; their replies, once known.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked: dict[int, Any] = {}

    def ask(self, ids: IdArray, requests: Sequence[Request], *, observed: bool = True) -> list[Any]:
        """Send a request to each of these envs, which take one, and return the replies.

        Raises:
            EnvError: one has failed; needs no reset.
        """
        if self._engine.recovery is not None and observed:
            self._engine.recovery.mend(ids)
        notes = [o.asks(ids.tolist(), requests) for o in self._engine.observers] if observed else []
        failed: Sequence[int] | None = None
        try:
            replies = self._ask(ids, requests)
            failed = ()
        except EnvError as error:
            failed = error.env_ids
            raise
        finally:
            for note in notes:
                if note is not None and failed is not None:
                    note(failed)
        return replies

    def _ask(self, ids: IdArray, requests: Sequence[Request]) -> list[Any]:
        tokens = self._engine.states.tokens | ASK
        send = self._engine.hosts.pack(ids, tokens, requests)
        kinds = dict(zip(ids.tolist(), (request.kind for request in requests), strict=True))
        self.asked = dict.fromkeys(kinds)
        missing = set(kinds)
        try:
            send()
            while missing:
                self._engine.arrivals.drop_stale()
                for i in self._engine.arrivals.take_replies():
                    if i in missing and self.asked[i] is None:
                        self.asked[i] = self._reply_of(i, int(tokens[i]), kinds[i])
                missing = {i for i in missing if self.asked[i] is None}
                if missing:
                    self._engine.advance(1, None, missing)
            replies = dict(self.asked)
        except BaseException:
            # What is still to come is stale; a row that is there is not.
            self._engine.settle()
            self._engine.arrivals.stale.update(
                (i, int(self._engine.states.tokens[i])) for i in missing
            )
            self._engine.states.tokens[list(missing)] += GENERATION
            self._engine.hosts.forget_messages()
            if not self._engine.closed:
                self._engine.hosts.cancel(missing)
                self._engine.arrivals.drop_stale()
            raise
        finally:
            self.asked = {}
        errors = [reply for reply in replies.values() if isinstance(reply, EnvError)]
        if errors:
            raise combine(errors)
        warn_of(replies)
        return [reply["reply"] for reply in replies.values()]

    def _reply_of(self, i: int, token: int, kind: str) -> Any:
        host = self._engine.hosts.of(i)
        if isinstance(host, ProcessHost):
            return host.take_item(token, kind)
        return host.beside.pop(i | ASK)

    def seed(self, ids: IdArray, requests: Sequence[Request]) -> None:
        """Requests that reset their envs but bring no row.

        Raises:
            EnvError: one has failed, and then accepts only a reset.
        """
        if self._engine.recovery is not None:
            self._engine.recovery.mend(ids)
        states = self._engine.states
        states.cancelled(ids)  # should this be interrupted
        self._engine.hosts.forget_messages()
        try:
            self.ask(ids, requests)
        except EnvError as error:
            alive = np.array([i for i in ids.tolist() if i not in states.deaths], dtype=np.intp)
            states.state[alive] = READY
            failed = [i for i in error.env_ids if i not in states.deaths]
            states.state[failed] = RAISED
            raise
        states.state[ids] = READY
        for i in ids.tolist():
            self._engine.recreation.see(i)
        if self._engine.recovery is not None:
            self._engine.recovery.seeded(ids.tolist())
