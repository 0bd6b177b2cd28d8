"""The host of envs in the calling process, which steps them one after another.

Invariants:

* requests are carried out when the caller waits for results, the oldest first;
* an interrupt (KeyboardInterrupt, or an exception of a signal handler) loses only the result of the
  env that is being stepped, whose id ``settle`` returns.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces, Executor, interrupts
from envpool_py.env.info_codec import KEPT
from envpool_py.env.request import Request
from envpool_py.env.request_tokens import ASK, ID_MASK, TOKEN_BYTES
from envpool_py.env.step_loop import StepLoop
from envpool_py.errors import EnvError, env_error
from envpool_py.worker.host import Send


class InlineHost:
    """Envs in the calling process, each with an executor; see ``host.LocalHost``."""

    measures = True
    is_dead = is_restarting = False

    def __init__(self, executors: Mapping[int, Executor]) -> None:
        self._executors = executors
        self.ids = list(executors)
        # The values of results that the block cannot hold, or their errors, by the env's id; for
        # replies by the id and the bit ``ASK``.
        self._beside: dict[int, Beside | EnvError] = {}
        # Tokens as bytes and as numbers, and an iterator over those not yet carried out.
        self._queue: tuple[bytes, list[int], Iterator[int]] = b"", [], iter(())
        self._reported = 0
        self._requests: dict[int, Request] = {}
        self._running = False
        self._closed = False

    def spaces(self) -> dict[int, EnvSpaces]:
        return {
            i: EnvSpaces(*map(spaces_.snapshot, executor.env_spaces()))
            for i, executor in self._executors.items()
        }

    def attach(self, block: Block) -> None:
        self._infos = block.infos
        self._writer = StepLoop(
            block, self._executors, self._keep_beside, self._keep_error, self._keep_info
        )

    # --------------------------------------------------------------------------- results, errors

    def _keep_info(self, i: int, info: dict[str, Any]) -> int:
        self._infos[i] = spaces_.snapshot(info)
        return KEPT

    def take_item(self, token: int, kind: str) -> Beside | EnvError:  # noqa: ARG002 - as ProcessHost
        return self._beside.pop(token & (ID_MASK | ASK))

    def _keep_beside(self, token: int, beside: Beside) -> None:
        # Copies, because the env may change its values later.
        self._beside[token & (ID_MASK | ASK)] = {
            key: value if key == "reply" else spaces_.snapshot(value)
            for key, value in beside.items()
        }

    def _keep_error(self, token: int, kind: str, error: BaseException) -> None:
        if interrupts(error):
            raise error
        if self._closed:
            raise ClosedEnvironmentError("the pool was closed meanwhile; make a new pool") from None
        self._beside[token & (ID_MASK | ASK)] = env_error(error, token & ID_MASK, kind)

    # ----------------------------------------------------------------------------------- requests

    def prepare_tokens(self, data: bytes, *, publish_early: bool) -> Send:  # noqa: ARG002 - see `run`
        return partial(self._send_tokens, data)

    def prepare_requests(self, pairs: Sequence[tuple[int, Request]]) -> Send:
        return partial(self._send_requests, pairs)

    def _send_tokens(self, data: bytes) -> None:
        self._append(data)

    def _send_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        self._requests.update((token, request.with_own_arguments()) for token, request in pairs)
        self._append(_packed([token for token, _ in pairs]))

    def _append(self, data: bytes) -> None:
        if length_hint(self._queue[2]):
            data = _packed(self._left()) + data
        self._fill(data)

    def _fill(self, data: bytes) -> None:
        tokens = memoryview(data).cast("q").tolist()
        self._queue, self._reported = (data, tokens, iter(tokens)), 0

    def _left(self) -> list[int]:
        _, tokens, todo = self._queue
        return tokens[len(tokens) - length_hint(todo) :]

    def has_work(self, only: set[int] | None) -> bool:
        if only is None:
            return length_hint(self._queue[2]) > 0
        return any(token & ID_MASK in only for token in self._left())

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
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

    def _put_first(self, ids: Collection[int]) -> int:
        """Move the requests of these envs to the front of the queue; return their number."""
        left = self._left()
        wanted = [token for token in left if token & ID_MASK in ids]
        if left[: len(wanted)] != wanted:
            self._fill(_packed(wanted + [token for token in left if token & ID_MASK not in ids]))
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
        running, self._running = self._running, False
        done = self._report(chunks)
        return [self._queue[1][done - 1] & ID_MASK] if running and done else []

    def cancel(self, ids: set[int]) -> set[int]:
        left = self._left()
        dropped = {token & ID_MASK for token in left} & ids
        if dropped:
            kept = [token for token in left if token & ID_MASK not in ids]
            self._requests = {t: r for t, r in self._requests.items() if t in kept}
            self._fill(_packed(kept))
        for i in ids:
            self._beside.pop(i, None)
        return ids - dropped

    def close(self) -> list[EnvError]:
        self._closed = True
        for _ in self._queue[2]:  # emptied, so that a loop in another thread ends
            pass
        errors = []
        for i, executor in self._executors.items():
            try:
                executor.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(env_error(error, i, "close"))
        self._executors, self._requests = {}, {}
        self.__dict__.pop("_writer", None)
        return errors


def _packed(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int64).tobytes()
