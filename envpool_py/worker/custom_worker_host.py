"""The host of custom workers: an inline host whose envs are the replies of the workers.

A request goes to its worker at once. Where an ``InlineHost`` steps an env, this host receives the
reply of the worker, in the order in which ``EnvWorker.wait`` says that the workers are ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any

from envpool_py.env import spaces as spaces_
from envpool_py.env.block import Block
from envpool_py.env.block_io import actions_of
from envpool_py.env.executor import EnvSpaces, Executor, FinalInfo, ResetInfo, reward_shape
from envpool_py.env.failures import env_error
from envpool_py.env.request import ID_MASK, RESET, Request
from envpool_py.interrupts import is_interrupt, ordinary, suppressed
from envpool_py.options import EnvOptions
from envpool_py.worker.env_worker import EnvWorker
from envpool_py.worker.inline_host import InlineHost


class _RemoteEnv:
    """An env in a worker: ``send`` asks the worker, ``step`` and ``reset`` receive its reply."""

    def __init__(self, worker: EnvWorker) -> None:
        self.worker, self.close = worker, worker.close
        # What ``send`` and ``recv`` of the worker have returned for this request: one item if the
        # worker still owes the reply. The call and the change of the list are one operation:
        # Python runs signal handlers at calls and jumps.
        self._returned: list[Any] = []
        # What ``send`` has raised, or ``recv``: that was the reply, or an interrupt.
        self._raised: BaseException | None = None

    def send(self, request: Request) -> None:
        if len(self._returned) == 1 and (self._raised is None or is_interrupt(self._raised)):
            if type(self.worker).cancel is EnvWorker.cancel:  # it would only drop the reply
                with suppressed():
                    self.recv()
            else:
                self._returned[:] = filter(None, map(methodcaller("cancel"), (self.worker,)))
        self._returned, self._raised = [], None
        try:
            self._returned.extend(map(methodcaller("send", request), (self.worker,)))
        except ordinary() as error:  # raised in place of the reply
            self._raised = error

    def recv(self, *_: Any, **__: Any) -> Any:
        if not self._returned and self._raised is not None:
            raise self._raised
        try:
            self._returned.extend(map(methodcaller("recv"), (self.worker,)))
        except BaseException as error:
            self._raised = error  # without a call, see above
            raise
        returned, self._returned = self._returned, []
        return returned.pop()

    step = reset = recv


class _RemoteExecutor(Executor):
    """Receives the reply to any request; the executor of the worker has checked the row."""

    def __init__(self, worker: EnvWorker) -> None:
        super().__init__(lambda: _RemoteEnv(worker))
        self.to_check.clear()

    def __call__(self, request: Request) -> Any:
        reply = self.env.recv()  # it was sent before
        if request.kind == "configure":
            self._options = EnvOptions(episode_seeds=request.args[0].episode_seeds)
        return reply

    @property
    def stepper(self) -> Any:
        return self

    def step(self, *_: Any) -> Any:
        row = self.env.recv()
        if isinstance(row, tuple) and row and type(row[-1]) in (ResetInfo, FinalInfo):
            self.position = self.position[0] + 1, False  # the worker has reset the env
        return row

    lost_step = step  # type: ignore[assignment]  # its arguments were sent before, too


class CustomWorkerHost(InlineHost):
    """The envs of custom workers; calls ``send``, ``recv``, ``wait``, ``cancel`` and ``close``."""

    can_measure = False

    def __init__(self, workers: Sequence[EnvWorker]) -> None:
        super().__init__({i: _RemoteExecutor(worker) for i, worker in enumerate(workers)})
        self._workers = workers

    def spaces(self) -> dict[int, EnvSpaces]:
        found: dict[int, EnvSpaces] = {}
        for i in self.ids:
            names = ("observation_space", "action_space", "reward_space")
            obs, action, reward = (self._attribute(i, name) for name in names)
            found[i] = EnvSpaces(obs, action, reward_shape(reward))
        return found

    def _attribute(self, i: int, name: str) -> Any:
        try:
            # A copy, as in every host, so that sampling does not change the env's space.
            return spaces_.snapshot(self._workers[i].get_env_attr(name))
        except AttributeError:
            return None
        except ordinary() as error:
            raise env_error(error, i, "get_attr") from error

    def attach(self, block: Block) -> None:
        super().attach(block)
        self._actions = actions_of(block, self.ids)

    def _send(self, tokens: list[int], requests: Mapping[int, Request]) -> None:
        # A worker has one request at a time: nobody waits for the reply to an earlier one.
        super().cancel({token & ID_MASK for token in tokens})
        for token in tokens:
            i, request = token & ID_MASK, requests.get(token)
            if request is not None:
                # A custom worker's reply to `seed` is no row.
                kind = "reset" if request.kind == "seed" else request.kind
                request = request._replace(kind=kind).with_own_arguments()
            elif token & RESET:
                request = Request("reset")
            else:
                request = Request("step", (self._actions[i],))
            self._executors[i].env.send(request)
        super()._send(tokens, requests)

    def run(
        self, token_chunks: list[bytes], limit: int, seconds: float | None, only: set[int] | None
    ) -> bool:
        waiting = {id(self._workers[token & ID_MASK]): token & ID_MASK for token in self.unbegun()}
        workers = [self._workers[i] for i in waiting.values() if only is None or i in only]
        if not workers:
            return False
        ready = type(workers[0]).wait(workers, min(limit, len(workers)), seconds)
        for worker in ready:  # one by one, in the order in which they are ready
            super().run(token_chunks, 1, None, {waiting[id(worker)]})
        return True

    def cancel(self, ids: set[int]) -> set[int]:
        super().cancel(ids)
        return ids
