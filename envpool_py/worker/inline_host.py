"""Hosts of envs that are not in worker processes: in the calling process, or in custom workers.

A host accepts tokens and requests. It carries them out in ``run``, which the engine calls while it
waits, and reports the tokens of finished requests. The host of envs in a worker process is
``envpool_py.worker.process_host.ProcessHost``.

Invariants:

* an ``InlineHost`` carries out requests when the caller waits for results, the oldest first; a
  custom worker gets its request at once;
* an interrupt (KeyboardInterrupt, or an exception of a signal handler) loses only the result of the
  env that is being stepped, whose id ``settle`` returns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces, Executor, interrupts
from envpool_py.env.info_codec import KEPT
from envpool_py.env.request import Request
from envpool_py.env.step_loop import RowWriter
from envpool_py.env.tokens import ASK, ID_MASK, TOKEN_BYTES
from envpool_py.errors import EnvError, env_error
from envpool_py.worker.base import EnvWorker


class Results:
    """The base class of the hosts of this module, with the results of their envs."""

    #: Whether steps can be timed.
    measures = True

    def __init__(self, executors: Mapping[int, Executor]) -> None:
        self._executors = executors
        self.ids = list(executors)
        # The values of results that the block cannot hold, or their errors, by the env's id; for
        # replies by the id and the bit ``ASK``.
        self.beside: dict[int, Beside | EnvError] = {}
        self._closed = False

    def attach(self, block: Block) -> None:
        """Write rows into this block from now on."""
        self._infos = block.infos
        self._writer = RowWriter(
            block, self._executors, self._keep_beside, self._keep_error, self._keep_info
        )

    def _keep_info(self, i: int, info: dict[str, Any]) -> int:
        self._infos[i] = spaces_.snapshot(info)
        return KEPT

    def take_item(self, token: int, kind: str) -> Beside | EnvError:  # noqa: ARG002 - as ProcessHost
        """Return the values beside a row, or the reply or error in place of one."""
        return self.beside.pop(token & (ID_MASK | ASK))

    def _keep_beside(self, token: int, beside: Beside) -> None:
        # Copies, because the env may change its values later.
        self.beside[token & (ID_MASK | ASK)] = {
            key: value if key == "reply" else spaces_.snapshot(value)
            for key, value in beside.items()
        }

    def _keep_error(self, token: int, kind: str, error: BaseException) -> None:
        if interrupts(error):
            raise error
        if self._closed:
            raise ClosedEnvironmentError("the pool was closed meanwhile; make a new pool") from None
        self.beside[token & (ID_MASK | ASK)] = env_error(error, token & ID_MASK, kind)

    def _close(self, owners: Mapping[int, Executor | EnvWorker]) -> list[EnvError]:
        """Close the envs of these executors or workers; return the errors."""
        self._closed = True
        errors = []
        for i, owner in owners.items():
            try:
                owner.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(env_error(error, i, "close"))
        return errors


class InlineHost(Results):
    """Envs in the calling process, each with an executor, stepped one after another."""

    def __init__(self, ids: Sequence[int], executors: Sequence[Executor]) -> None:
        super().__init__(dict(zip(ids, executors, strict=True)))
        # Tokens as bytes and as numbers, and an iterator over those not yet carried out.
        self._queue: tuple[bytes, list[int], Iterator[int]] = b"", [], iter(())
        self._reported = 0
        self._requests: dict[int, Request] = {}
        self._running = False

    def spaces(self) -> dict[int, EnvSpaces]:
        """Return copies of the envs' spaces by id, so that sampling does not change the env's."""
        return {
            i: EnvSpaces(*map(spaces_.snapshot, executor.env_spaces()))
            for i, executor in self._executors.items()
        }

    def post(self, data: bytes) -> None:
        """Queue the steps and plain resets of these tokens."""
        if length_hint(self._queue[2]):
            data = _packed(self._left()) + data
        self._fill(data)

    def post_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        """Queue requests with arguments, each with its token."""
        # Copies for each env, because an env may change its arguments.
        self._requests.update((token, own_request(request)) for token, request in pairs)
        self.post(_packed([token for token, _ in pairs]))

    def _fill(self, data: bytes) -> None:
        tokens = memoryview(data).cast("q").tolist()
        self._queue, self._reported = (data, tokens, iter(tokens)), 0

    def _left(self) -> list[int]:
        _, tokens, todo = self._queue
        return tokens[len(tokens) - length_hint(todo) :]

    def left(self, only: set[int] | None) -> bool:
        """Whether requests are queued, of the envs ``only`` or of any env."""
        if only is None:
            return length_hint(self._queue[2]) > 0
        return any(token & ID_MASK in only for token in self._left())

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
        """Carry out requests, the oldest first; only those of the envs ``only`` unless None.

        The tokens of finished requests go to ``chunks``. Return after ``limit`` requests, or after
        ``seconds``.
        """
        if only is not None:
            limit = min(limit, self._put_first(only))
        _, tokens, todo = self._queue
        due = 0.0 if seconds is None else time.perf_counter() + seconds
        self._running = True
        if self._requests:
            self._run_requests(todo, limit, due)
        else:
            self._writer.carry_out(tokens, todo, due, limit)
        self._running = False
        self._report(chunks)

    def _run_requests(self, todo: Iterator[int], limit: int, due: float) -> None:
        for token in todo:
            request = self._requests.pop(token, None)
            if request is None:
                self._writer.carry_out([token], iter([token]), 0)
            else:
                self._writer.answer(token, request)
            limit -= 1
            if limit <= 0 or (due and time.perf_counter() > due):
                return

    def _put_first(self, only: set[int]) -> int:
        """Move the requests of these envs to the front of the queue; return their number."""
        left = self._left()
        wanted = [token for token in left if token & ID_MASK in only]
        if left[: len(wanted)] != wanted:
            self._fill(_packed(wanted + [token for token in left if token & ID_MASK not in only]))
        return len(wanted)

    def _report(self, chunks: list[bytes]) -> int:
        """Report finished requests; return how many tokens of the queue are finished."""
        data, tokens, todo = self._queue
        done = len(tokens) - length_hint(todo)
        if done > self._reported:
            chunks.append(data[self._reported * TOKEN_BYTES : done * TOKEN_BYTES])
            self._reported = done
        return done

    def settle(self, chunks: list[bytes]) -> list[int]:
        """Report what an interrupted ``run`` has finished; return the env whose result is lost."""
        running, self._running = self._running, False
        done = self._report(chunks)
        return [self._queue[1][done - 1] & ID_MASK] if running and done else []

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return the envs whose request is carried out anyway."""
        left = self._left()
        dropped = {token & ID_MASK for token in left} & ids
        if dropped:
            kept = [token for token in left if token & ID_MASK not in ids]
            self._requests = {t: r for t, r in self._requests.items() if t in kept}
            self._fill(_packed(kept))
        for i in ids:
            self.beside.pop(i, None)
        return ids - dropped

    def close(self) -> list[EnvError]:
        """Close the envs; return the errors."""
        for _ in self._queue[2]:  # emptied, so that a loop in another thread ends
            pass
        errors = self._close(self._executors)
        self._executors, self._requests = {}, {}
        self.__dict__.pop("_writer", None)
        return errors


def _packed(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int64).tobytes()


def own_request(request: Request) -> Request:
    """Copy a request and its arguments; arguments that cannot be copied are shared."""
    if request.kind not in ("step", "reset", "set_attr", "call", "apply", "render"):
        return request
    first = request.args[:1] if request.kind == "apply" else ()
    args = (*first, *(spaces_.snapshot(arg) for arg in request.args[len(first) :]))
    kwargs = {key: spaces_.snapshot(value) for key, value in request.kwargs.items()}
    return Request(request.kind, args, kwargs)
