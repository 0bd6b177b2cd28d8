"""The host of custom workers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Block
from envpool_py.env.executor import EnvSpaces, Executor, reward_shape
from envpool_py.env.obs_writer import actions_of
from envpool_py.env.request import ROW_KINDS, Request
from envpool_py.env.tokens import ID_MASK, RESET, pack_token
from envpool_py.errors import EnvError, env_error, ordinary
from envpool_py.worker.base import EnvWorker
from envpool_py.worker.inline_host import Results, own_request


class _LastReply:
    """An env that returns the reply of a custom worker, which has already stepped its env."""

    def __init__(self) -> None:
        self.value: Any = None

    def step(self, action: Any) -> Any:  # noqa: ARG002 - the signature of an env's
        return self.value

    def reset(self, **kwargs: Any) -> Any:  # noqa: ARG002 - likewise
        return self.value


class WorkerHost(Results):
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
                worker.send(own_request(request))
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
        except ordinary(Exception, SystemExit) as error:
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
        self._done.append(pack_token(token))
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
