"""The host of envs in the calling process, which steps them one after another.

Invariants:

* requests are carried out when the caller waits for results, the oldest first;
* an interrupt (KeyboardInterrupt, or an exception of a signal handler) loses only the result of the
  env that is being stepped, whose id ``settle`` returns.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import length_hint

from gymnasium.error import ClosedEnvironmentError

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces, Executor
from envpool_py.env.failures import env_error
from envpool_py.env.request import ASK, ID_MASK, Request
from envpool_py.env.step_loop import StepLoop
from envpool_py.errors import EnvError
from envpool_py.interrupts import is_interrupt
from envpool_py.worker.host import Life, Send


class InlineHost:
    """Envs in the calling process, each with an executor; see ``Host``.

    Attributes:
        can_measure: whether steps can be timed.
    """

    can_measure = True
    life = Life.RUNNING

    def __init__(self, executors: Mapping[int, Executor]) -> None:
        self._executors = executors
        self.ids = list(executors)
        # The values of results that the block cannot hold, or their errors, by the env's id; for
        # replies by the id and the bit ``ASK``.
        self._items: dict[int, Beside | EnvError] = {}
        # Tokens that are not reported yet, and an iterator over those that are not begun yet.
        self._queue: tuple[list[int], Iterator[int]] = [], iter(())
        self._requests: dict[int, Request] = {}
        self._closed = False

    def spaces(self) -> dict[int, EnvSpaces]:
        """Return copies of the envs' spaces, so that sampling does not change the env's."""
        return {
            i: EnvSpaces(*map(spaces_.snapshot, executor.env_spaces()))
            for i, executor in self._executors.items()
        }

    def attach(self, block: Block) -> None:
        self._loop = StepLoop(block, self._executors, self._keep_beside, self._keep_error)

    def values_or_error(self, token: int, kind: str) -> Beside | EnvError:  # noqa: ARG002 - as RemoteHost
        return self._items[token & (ID_MASK | ASK)]

    def forget_item(self, token: int) -> None:
        self._items.pop(token & (ID_MASK | ASK), None)

    def _keep_beside(self, token: int, beside: Beside) -> None:
        # Copies, because the env may change its values later.
        values = beside if "reply" in beside else spaces_.snapshot(beside)
        self._items[token & (ID_MASK | ASK)] = values

    def _keep_error(self, token: int, kind: str, error: BaseException) -> None:
        if is_interrupt(error):
            raise error
        if self._closed:
            raise ClosedEnvironmentError("the pool was closed meanwhile; make a new pool") from None
        self._items[token & (ID_MASK | ASK)] = env_error(error, token & ID_MASK, kind)

    def prepare_plain_requests(self, data: bytes, *, publish_early: bool) -> Send:  # noqa: ARG002 - see `run`
        return partial(self._send, memoryview(data).cast("q").tolist(), {})

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        return partial(self._send, [token for token, _ in pairs], dict(pairs))

    def _send(self, tokens: list[int], requests: Mapping[int, Request]) -> None:
        """Queue these tokens; those of steps and plain resets have no request."""
        for token, request in requests.items():
            self._requests[token] = request.with_own_arguments()
        self._set_queue(self.unbegun() + tokens)

    def _set_queue(self, tokens: list[int]) -> None:
        self._queue = tokens, iter(tokens)

    def unbegun(self) -> list[int]:
        """Return the tokens of the requests that were not begun."""
        tokens, todo = self._queue
        return tokens[len(tokens) - length_hint(todo) :]

    def run(
        self, token_chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> bool:
        """Carry out requests, the oldest first; only those of the envs ``only`` unless None.

        The engine calls this while it waits. Tokens of finished requests go to ``token_chunks``.
        Return after ``limit`` requests, or after ``seconds``; False if there were no requests.
        """
        if only is not None:
            self._set_queue(sorted(self.unbegun(), key=lambda token: token & ID_MASK not in only))
            limit = min(limit, sum(token & ID_MASK in only for token in self._queue[0]))
        tokens, todo = self._queue
        if not limit or not length_hint(todo):
            return False
        due = 0.0 if seconds is None else time.perf_counter() + seconds
        if not self._requests:
            self._loop.carry_out(tokens, todo, due, limit)
        else:
            for token in islice(todo, limit):
                request = self._requests.pop(token, None)
                if request is None:
                    self._loop.carry_out([token], iter([token]), 0)
                else:
                    self._loop.answer(token, request)
                if due and time.perf_counter() > due:
                    break
        self._report(token_chunks)
        return True

    def _report(self, token_chunks: list[bytes]) -> list[int]:
        """Report the requests that were begun, and return their tokens."""
        tokens, todo = self._queue
        begun = tokens[: len(tokens) - length_hint(todo)]
        if begun:
            token_chunks.append(array("q", begun).tobytes())
            self._queue = tokens[len(begun) :], todo
        return begun

    def settle(self, token_chunks: list[bytes]) -> list[int]:
        """Report what an interrupted ``run`` has finished; return the env whose result is lost."""
        begun = self._report(token_chunks)
        if not begun or isinstance(self._items.get(begun[-1] & (ID_MASK | ASK)), EnvError):
            return []  # it had raised, which is a result
        return [begun[-1] & ID_MASK]

    def cancel(self, ids: set[int]) -> set[int]:
        left = self.unbegun()
        kept = [token for token in left if token & ID_MASK not in ids]
        self._requests = {t: r for t, r in self._requests.items() if t in kept}
        self._set_queue(kept)
        for i in ids:
            self._items.pop(i, None)
        return ids - {token & ID_MASK for token in left}

    def close(self) -> list[EnvError]:
        self._closed = True
        for _ in self._queue[1]:  # emptied, so that a loop in another thread ends
            pass
        errors = []
        for i, executor in self._executors.items():
            try:
                executor.close()
            except BaseException as error:  # the others must be closed as well
                if is_interrupt(error):
                    raise
                errors.append(env_error(error, i, "close"))
        self._executors, self._requests = {}, {}
        self.__dict__.pop("_loop", None)
        return errors
