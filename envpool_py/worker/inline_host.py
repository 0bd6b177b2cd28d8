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
from operator import length_hint, methodcaller
from typing import Any, TypeAlias

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Beside, Block
from envpool_py.env.executor import EnvSpaces, Executor, interrupts, reward_shape
from envpool_py.env.info_codec import KEPT
from envpool_py.env.obs_writer import actions_of
from envpool_py.env.step_loop import RowWriter
from envpool_py.errors import EnvError, env_error, from_signal_handler
from envpool_py.worker.base import ROW_KINDS, EnvWorker, Request
from envpool_py.worker.channel import ASK, HEADER, ID_MASK, RESET, TOKEN_BYTES


class _Results:
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


class InlineHost(_Results):
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
        self._requests.update((token, _own_request(request)) for token, request in pairs)
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


class _LastReply:
    """An env that returns the reply of a custom worker, which has already stepped its env."""

    def __init__(self) -> None:
        self.value: Any = None

    def step(self, action: Any) -> Any:  # noqa: ARG002 - the signature of an env's
        return self.value

    def reset(self, **kwargs: Any) -> Any:  # noqa: ARG002 - likewise
        return self.value


class WorkerHost(_Results):
    """All envs of a pool of custom workers; calls only ``send`` and ``recv`` of a worker."""

    measures = False

    def __init__(self, workers: Sequence[EnvWorker]) -> None:
        super().__init__({i: Executor(_LastReply) for i in range(len(workers))})
        self._workers = workers
        for executor in self._executors.values():
            executor.to_check.clear()  # the executor of the worker checks rows
        self._under_way: dict[int, tuple[int, Request]] = {}  # the oldest first
        self._cancelled: set[int] = set()
        self._done: list[bytes] = []
        # The env whose reply is being received, and that reply after ``recv`` has returned.
        self._receiving: list[int] = []
        self._received: list[Any] = []

    def spaces(self) -> dict[int, EnvSpaces]:
        """Return the spaces of the envs by id."""
        return {
            i: EnvSpaces(
                self._attribute(i, "observation_space"),
                self._attribute(i, "action_space"),
                reward_shape(self._attribute(i, "reward_space")),
            )
            for i in self.ids
        }

    def _attribute(self, i: int, name: str) -> Any:
        try:
            # A copy, as in every host, so that sampling does not change the env's space.
            return spaces_.snapshot(self._workers[i].get_env_attr(name))
        except AttributeError:
            return None
        except Exception as error:
            raise env_error(error, i, "get_attr") from error

    def attach(self, block: Block) -> None:
        """Write rows into this block from now on."""
        super().attach(block)
        self._actions = actions_of(block)

    def post(self, data: bytes) -> None:
        """Send the steps and plain resets of these tokens to the workers."""
        for token in memoryview(data).cast("q").tolist():
            action = None if token & RESET else self._actions[token & ID_MASK]
            request = Request("reset") if token & RESET else Request("step", (action,))
            self.post_requests([(token & ~RESET, request)])

    def post_requests(self, pairs: Sequence[tuple[int, Request]]) -> None:
        """Send requests with arguments, each with its token, to the workers."""
        for token, request in pairs:
            i = token & ID_MASK
            worker = self._workers[i]
            if i in self._cancelled:
                self._cancelled.discard(i)
                worker.cancel()
            self._under_way[i] = token, request
            try:
                worker.send(_own_request(request))
            except Exception as error:  # noqa: BLE001 - raised with the row of this env
                self._end(i, None, error)

    def left(self, only: set[int] | None) -> bool:
        """Whether requests are under way, of the envs ``only`` or of any env."""
        if self._done or only is None:
            return bool(self._done or self._under_way)
        return not only.isdisjoint(self._under_way)

    def run(
        self, chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> None:
        """Receive replies, as ``InlineHost.run`` carries out requests."""
        ids = [i for i in self._under_way if only is None or i in only]
        if ids and not self._done:
            workers = [self._workers[i] for i in ids]
            for worker in type(workers[0]).wait(workers, min(limit, len(ids)), seconds):
                self._receive(next(i for i in ids if self._workers[i] is worker), worker)
        while self._done:
            chunks.append(self._done[0])
            del self._done[0]

    def _receive(self, i: int, worker: EnvWorker) -> None:
        self._receiving, self._received = [i], []
        failure = None
        try:
            # One call, so that no signal handler runs between the reply and the list.
            self._received.extend(map(methodcaller("recv"), (worker,)))
        except (Exception, SystemExit) as error:
            if from_signal_handler(error):
                raise
            failure, self._received = error, [None]
        self._end(i, self._received[0], failure)
        self._receiving = []

    def _end(self, i: int, reply: Any, failure: BaseException | None) -> None:
        token, request = self._under_way[i]
        if failure is not None:
            self._writer.note_error(token, request.kind, failure)
        elif request.kind in ROW_KINDS:
            self._executors[i].env.value = reply
            self._writer.answer(token, request)
        else:
            self._writer.reply(token, reply)
        self._done.append(HEADER.pack(token))
        del self._under_way[i]

    def settle(self, chunks: list[bytes]) -> list[int]:
        """Report what an interrupted ``run`` has finished; return the env whose result is lost."""
        receiving, self._receiving = self._receiving, []
        chunks.extend(self._done)
        self._done.clear()
        for i in receiving if self._received else ():  # else the worker is cancelled
            self._under_way.pop(i, None)
        return receiving

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; all of them are carried out anyway."""
        self._cancelled |= ids & self._under_way.keys()
        for i in ids:
            self._under_way.pop(i, None)
            self.beside.pop(i, None)
        return ids

    def close(self) -> list[EnvError]:
        """Close the envs; return the errors."""
        return self._close(dict(enumerate(self._workers)))


#: A host that the engine runs itself.
LocalHost: TypeAlias = InlineHost | WorkerHost


def _packed(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int64).tobytes()


def _own_request(request: Request) -> Request:
    """Copy a request and its arguments; arguments that cannot be copied are shared."""
    if request.kind not in ("step", "reset", "set_attr", "call", "apply", "render"):
        return request
    first = request.args[:1] if request.kind == "apply" else ()
    args = (*first, *(spaces_.snapshot(arg) for arg in request.args[len(first) :]))
    kwargs = {key: spaces_.snapshot(value) for key, value in request.kwargs.items()}
    return Request(request.kind, args, kwargs)
