"""Hosts of envs that are not in worker processes: in the calling process, or in custom workers.

A host takes tokens and requests, carries them out in ``run``, which the engine calls as it waits,
and reports the tokens of those that are done. ``envpool_py.worker.process.ProcessHost`` is the host
of envs in a worker process.

What holds:

* requests are carried out when their results are waited for, the oldest first;
* an exception that passes through (KeyboardInterrupt, or raised by a signal handler) loses the
  result of the one env that was at work, which ``settle`` names, and no other.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import length_hint
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import spaces as spaces_
from envpool_py.block import Beside, Block
from envpool_py.errors import EnvError, env_error, from_signal_handler
from envpool_py.obs_writer import actions_of
from envpool_py.row_writer import RowWriter
from envpool_py.schedules import Place
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.channel import ASK, HEADER, ID_MASK, RESET, TOKEN_BYTES
from envpool_py.worker.executor import EnvSpaces, Executor, Row, checked_row, reward_shape


class LocalHost(ABC):
    """A host that the engine runs itself.

    Args:
        ids: the envs that live there.

    Attributes:
        beside: what the block cannot hold of results, or their errors, by the env's id, and of
            replies by its id and the bit ``ASK``.
        closed: whether the envs were closed.
        measures: whether steps can be timed.
    """

    measures = True

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.beside: dict[int, Beside | EnvError] = {}
        self.closed = False

    @abstractmethod
    def spaces(self) -> dict[int, EnvSpaces]:
        """The spaces of the envs, by id."""

    @abstractmethod
    def attach(self, block: Block) -> None:
        """Keep rows in the block from now on."""

    @abstractmethod
    def post(self, data: bytes) -> None:
        """Take on the steps and plain resets of these tokens."""

    @abstractmethod
    def post_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        """Take on requests with arguments, each with its token."""

    @abstractmethod
    def left(self, only: set[int] | None) -> bool:
        """Whether there is something to carry out, for one of the envs ``only``."""

    @abstractmethod
    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
        """Carry out requests, the oldest first.

        Args:
            chunks: where the tokens of those that are done go.
            limit: how many to carry out at the most.
            seconds: after how many to return; None for no limit.
            only: the envs that are waited for; None is all.
        """

    @abstractmethod
    def settle(self, chunks: list[bytes]) -> list[int]:
        """Report what an interrupted ``run`` has done; return the env whose result is lost."""

    @abstractmethod
    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return those that are carried out all the same."""

    @abstractmethod
    def close(self) -> list[EnvError]:
        """Close the envs; return what that raised."""

    def take_item(self, token: int, kind: str) -> Beside | EnvError:  # noqa: ARG002 - as ProcessHost
        """What lies beside a row, or in place of one."""
        return self.beside.pop(token & (ID_MASK | ASK))

    def _keep_beside(self, token: int, beside: Beside) -> None:
        self.beside[token & (ID_MASK | ASK)] = _own(beside)

    def _keep_error(self, token: int, kind: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) or from_signal_handler(error):
            raise error
        if self.closed:
            raise ClosedEnvironmentError("the pool was closed meanwhile") from None
        self.beside[token & (ID_MASK | ASK)] = env_error(error, token & ID_MASK, kind)


def _own(beside: Beside) -> Beside:
    """What lies beside a row, as a copy that the env cannot change later."""
    return {
        key: value if key == "reply" else spaces_.snapshot(value) for key, value in beside.items()
    }


class InlineHost(LocalHost):
    """Envs in the calling process, stepped one after another.

    Args:
        ids: the envs that live there.
        executors: one for each.
    """

    def __init__(self, ids: Sequence[int], executors: Sequence[Executor]) -> None:
        super().__init__(ids)
        self._executors = dict(zip(self.ids, executors, strict=True))
        self._queue: tuple[bytes, list[int], Any] = b"", [], iter(())
        self._reported = 0
        self._requests: dict[int, Request] = {}
        self._running = False

    def spaces(self) -> dict[int, EnvSpaces]:
        """As ``LocalHost``."""
        # The parent's own copies, as with every other host: sampling does not touch the env's.
        return {
            i: EnvSpaces(*map(_copy_of, executor.env_spaces()))
            for i, executor in self._executors.items()
        }

    def attach(self, block: Block) -> None:
        """As ``LocalHost``."""
        self._writer = RowWriter(
            block, self._executors, self._keep_beside, self._keep_error, pack_infos=False
        )

    def post(self, data: bytes) -> None:
        """As ``LocalHost``."""
        _, tokens, todo = self._queue
        if left := length_hint(todo):
            data = np.array(tokens[-left:], np.int64).tobytes() + data
        tokens = memoryview(data).cast("q").tolist()
        self._queue, self._reported = (data, tokens, iter(tokens)), 0

    def post_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        """As ``LocalHost``."""
        # An env's own copy: what it does to its arguments reaches nobody else.
        self._requests.update((token, _own_request(request)) for token, request in pairs)
        self.post(np.array([token for token, _ in pairs], np.int64).tobytes())

    def left(self, only: set[int] | None) -> bool:
        """As ``LocalHost``."""
        _, tokens, todo = self._queue
        left = length_hint(todo)
        if only is None or not left:
            return left > 0
        return any(token & ID_MASK in only for token in tokens[-left:])

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
        """As ``LocalHost``."""
        if only is not None:
            limit = min(limit, self._put_first(only))
        _, tokens, todo = self._queue
        due = 0.0 if seconds is None else time.perf_counter() + seconds
        self._running = True
        if self._requests:
            self._run_requests(limit, due)
        elif limit < length_hint(todo):
            self._writer.carry_out(tokens, todo, due, limit)
        else:
            self._writer.carry_out(tokens, todo, due)
        self._running = False
        self._report(chunks)

    def _run_requests(self, limit: int, due: float) -> None:
        _, _, todo = self._queue
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
        """Have the requests of these envs come first; return how many there are."""
        data, tokens, todo = self._queue
        left = tokens[len(tokens) - length_hint(todo) :]
        wanted = [token for token in left if token & ID_MASK in only]
        if left[: len(wanted)] != wanted:
            tokens = wanted + [token for token in left if token & ID_MASK not in only]
            data = np.array(tokens, np.int64).tobytes()
            self._queue, self._reported = (data, tokens, iter(tokens)), 0
        return len(wanted)

    def _report(self, chunks: list[bytes]) -> None:
        data, tokens, todo = self._queue
        done = len(tokens) - length_hint(todo)
        if done > self._reported:
            chunks.append(data[self._reported * TOKEN_BYTES : done * TOKEN_BYTES])
            self._reported = done

    def settle(self, chunks: list[bytes]) -> list[int]:
        """As ``LocalHost``."""
        running, self._running = self._running, False
        _, tokens, todo = self._queue
        done = len(tokens) - length_hint(todo)
        self._report(chunks)
        return [tokens[done - 1] & ID_MASK] if running and done else []

    def cancel(self, ids: set[int]) -> set[int]:
        """As ``LocalHost``."""
        _, tokens, todo = self._queue
        left = tokens[len(tokens) - length_hint(todo) :]
        dropped = {token & ID_MASK for token in left} & ids
        if dropped:
            kept = [token for token in left if token & ID_MASK not in ids]
            self._requests = {t: r for t, r in self._requests.items() if t in kept}
            self._queue = np.array(kept, np.int64).tobytes(), kept, iter(kept)
            self._reported = 0
        for i in ids:
            self.beside.pop(i, None)
        return ids - dropped

    def close(self) -> list[EnvError]:
        """As ``LocalHost``."""
        self.closed = True
        self._requests.clear()
        self._queue = b"", [], iter(())
        errors = []
        for i, executor in self._executors.items():
            try:
                executor.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(env_error(error, i, "close"))
        if hasattr(self, "_writer"):
            self._writer.refresh()
            del self._writer
        self._executors = {}
        return errors


def _copy_of(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a custom space may refuse to be copied
        return value


class WorkerHost(LocalHost):
    """Envs behind custom workers, through ``send`` and ``recv`` alone.

    Args:
        workers: of all envs of a pool; the position of a worker is its env id.
    """

    measures = False

    def __init__(self, workers: Sequence[EnvWorker]) -> None:
        super().__init__(range(len(workers)))
        self._workers = workers
        self._replies = {i: _Reply() for i in self.ids}
        self._under_way: dict[int, tuple[int, Request]] = {}  # the oldest first
        self._cancelled: set[int] = set()
        self._done: list[bytes] = []
        self._receiving: list[int] = []

    def spaces(self) -> dict[int, EnvSpaces]:
        """As ``LocalHost``."""
        return {i: self._spaces_of(i) for i in self.ids}

    def _spaces_of(self, i: int) -> EnvSpaces:
        found: list[Any] = []
        for name in ("observation_space", "action_space", "reward_space"):
            try:
                found.append(self._workers[i].get_env_attr(name))
            except AttributeError:
                found.append(None)
            except Exception as error:
                raise env_error(error, i, "get_attr") from error
        return EnvSpaces(found[0], found[1], reward_shape(found[2]))

    def attach(self, block: Block) -> None:
        """As ``LocalHost``."""
        self._writer = RowWriter(
            block,
            self._replies,  # type: ignore[arg-type]
            self._keep_beside,
            self._keep_error,
            pack_infos=False,
        )
        self._actions = actions_of(block.spec.action, block.action_leaves, block.actions)

    def post(self, data: bytes) -> None:
        """As ``LocalHost``."""
        tokens = memoryview(data).cast("q").tolist()
        self.post_requests(
            [
                (
                    token & ~RESET,
                    Request("reset")
                    if token & RESET
                    else Request("step", (self._actions[token & ID_MASK],)),
                )
                for token in tokens
            ]
        )

    def post_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        """As ``LocalHost``."""
        for token, request in pairs:
            i = token & ID_MASK
            worker = self._workers[i]
            if i in self._cancelled:
                self._cancelled.discard(i)
                worker.cancel()
            self._under_way[i] = token, request
            try:
                worker.send(_own_request(request))
            except Exception as error:  # noqa: BLE001 - it belongs to this env, and comes with its row
                self._end(i, None, error)

    def left(self, only: set[int] | None) -> bool:
        """As ``LocalHost``."""
        if self._done:
            return True
        return bool(self._under_way) if only is None else not only.isdisjoint(self._under_way)

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
        """As ``LocalHost``."""
        ids = [i for i in self._under_way if only is None or i in only]
        if ids and not self._done:
            by_worker = {id(self._workers[i]): i for i in ids}
            workers = [self._workers[i] for i in ids]
            for worker in type(workers[0]).wait(workers, min(limit, len(ids)), seconds):
                self._receive(by_worker[id(worker)], worker)
        while self._done:
            chunks.append(self._done[0])
            del self._done[0]

    def _receive(self, i: int, worker: EnvWorker) -> None:
        self._receiving = [i]
        reply, failure = None, None
        try:
            reply = worker.recv()
        except (Exception, SystemExit) as error:
            if from_signal_handler(error):
                raise
            failure = error
        self._end(i, reply, failure)
        self._receiving = []

    def _end(self, i: int, reply: Any, failure: BaseException | None) -> None:
        token, request = self._under_way[i]
        if failure is not None:
            self._writer.note_error(token, request.kind, failure)
        else:
            self._replies[i].value = reply
            self._writer.answer(token, request)
        self._done.append(HEADER.pack(token))
        del self._under_way[i]

    def settle(self, chunks: list[bytes]) -> list[int]:
        """As ``LocalHost``."""
        receiving, self._receiving = self._receiving, []
        chunks.extend(self._done)
        self._done.clear()
        for i in receiving:  # its reply may have been taken, and may not
            self._under_way.pop(i, None)
        return receiving

    def cancel(self, ids: set[int]) -> set[int]:
        """As ``LocalHost``."""
        for i in ids:
            if self._under_way.pop(i, None) is not None:
                self._cancelled.add(i)
            self.beside.pop(i, None)
        return ids

    def close(self) -> list[EnvError]:
        """As ``LocalHost``."""
        self.closed = True
        errors = []
        for i, worker in enumerate(self._workers):
            try:
                worker.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(env_error(error, i, "close"))
        return errors


class _Reply:
    """Stands for the executor of an env: a worker has carried the request out already."""

    def __init__(self) -> None:
        self.value: Any = None
        self.place: Place = (None, -1, False)

    @property
    def stepper(self) -> Any:
        return self

    def __call__(self, request: Request) -> Any:  # noqa: ARG002 - the signature of an executor's
        return self.value

    def raw_step(self, action: Any) -> Any:  # noqa: ARG002 - likewise
        self.place = (None, -1, False)
        return self.value

    def reset(self, **kwargs: Any) -> Any:  # noqa: ARG002 - likewise
        self.place = (None, -1, False)
        return self.value

    def finish(self, row: Any, keep: Any, i: int) -> Row:  # noqa: ARG002 - likewise
        checked = checked_row(row)
        self.place = (None, -1, bool(checked[2] or checked[3]))
        return checked

    def failing(self, kind: str) -> str:
        return kind

    def observe(self, *args: Any) -> None:
        """Nothing of the env is here."""

    def postpone(self, error: BaseException, ended: Row) -> Row:  # noqa: ARG002 - likewise
        raise error


def _own_request(request: Request) -> Request:
    """The request with arguments of its own; what cannot be copied is handed on unchanged."""
    if request.kind not in ("step", "reset", "set_attr", "call", "apply", "render"):
        return request
    first = request.args[:1] if request.kind == "apply" else ()
    args = (*first, *(spaces_.snapshot(arg) for arg in request.args[len(first) :]))
    kwargs = {key: spaces_.snapshot(value) for key, value in request.kwargs.items()}
    return Request(request.kind, args, kwargs)
