"""Where each env of a pool lives: which host has it, and what to send to which host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from envpool_py import spaces
from envpool_py.block import Block, Spec
from envpool_py.errors import EnvError, name_ids
from envpool_py.ids import IdArray
from envpool_py.spaces import Array
from envpool_py.worker import processes as processes_
from envpool_py.worker.base import Request
from envpool_py.worker.channel import frame
from envpool_py.worker.executor import SAME_STEP, EnvSpaces
from envpool_py.worker.hosts import LocalHost
from envpool_py.worker.limits import usable_cores
from envpool_py.worker.process import ProcessHost
from envpool_py.worker.processes import Processes

#: Seconds for which the caller looks for results before it sleeps, where it has a core of its own.
LOOK_FOR = 300e-6


class Plan(NamedTuple):
    """Where the envs of a pool are to live.

    ``processes``: those of the first envs, not started yet; None for none. ``local``: makes the
    hosts of the other envs, and calls their env_fns.
    """

    num_envs: int
    processes: Processes | None
    local: Callable[[], list[LocalHost]]


class Hosts:
    """The hosts of a pool.

    Args:
        plan: where the envs are to live.

    Attributes:
        processes: None where there are none.
        local: the hosts that the engine runs itself.
        look_for: seconds for which the caller looks for results before it sleeps.
        restarting: the processes that were started again, and nobody has taken up yet.
        closing: set when the pool is closed.
        configured: what each env was told of the pool's options.
        restarts: int64 ``(num_envs,)``: how often each env was recreated.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.processes = plan.processes
        self.local: list[LocalHost] = []
        self.restarting: set[ProcessHost] = set()
        self.closing = threading.Event()
        self.configured: dict[int, Request] = {}
        self.restarts = np.zeros(plan.num_envs, dtype=np.int64)
        self.look_for = 0.0
        self._messages: dict[int, list[tuple[Any, bytes]]] = {}
        self._all: list[Any] = []

    # ------------------------------------------------------------------------------------- start

    def start(self, chunks: list[bytes], check: Callable[[], object]) -> list[EnvSpaces]:
        """Have all envs made, and return their spaces.

        Args:
            chunks: where results go.
            check: called every now and then; may raise.

        Raises:
            EnvError: an env_fn raised.
            OSError: a process cannot be started.
        """
        processes = self.processes
        found: dict[int, EnvSpaces] = {}
        # What an env here holds open is not for the processes: they are started first.
        if processes is not None:
            processes.start()
        self.local = self._plan.local()
        if processes is not None:
            processes.await_started(chunks, check)
            found = processes.spaces()
            if self.local and len(processes.hosts) < len(usable_cores()):
                self.look_for = LOOK_FOR
        for host in self.local:
            found.update(host.spaces())
        first = [] if processes is None else processes.hosts
        self._all = [*first, *self.local]
        self._home = np.empty(self._plan.num_envs, dtype=np.intp)
        for number, host in enumerate(self._all):
            self._home[host.ids] = number
        return [found[i] for i in range(self._plan.num_envs)]

    def attach(self, spec: Spec) -> Block:
        """The block of all envs, which every host keeps rows in from now on."""
        processes = self.processes
        if processes is not None and processes.watchdog is not None:
            spec = spec._replace(num_processes=len(processes.hosts))
        block = Block(spec, None if processes is None else processes.allocate(spec))
        if processes is not None and processes.watchdog is not None:
            processes.watchdog.attach(block.heartbeats)
        for host in self.local:
            host.attach(block)
        return block

    # ----------------------------------------------------------------------------------- sending

    def of(self, i: int) -> Any:
        """The host of env ``i``."""
        return self._all[int(self._home[i])]

    def messages(
        self, index: Any, tokens: Array, kind: int, steps: bool
    ) -> list[tuple[Any, bytes]]:
        """What to send to which host so that these envs carry out steps or plain resets.

        Args:
            index: the envs; a slice is all envs, to which each step sends the same.
            tokens: of the requests.
            kind: of the message to a process.
            steps: whether these are steps.
        """
        whole = steps and type(index) is slice
        if whole and kind in self._messages:
            return self._messages[kind]
        home = self._home[index]
        messages: list[tuple[Any, bytes]] = []
        for number in set(home.tolist()):
            data = tokens[home == number].tobytes()
            host = self._all[number]
            messages.append((host, frame(kind, data) if isinstance(host, ProcessHost) else data))
        if whole:
            self._messages[kind] = messages
        return messages

    def forget_messages(self) -> None:
        """Tokens have changed."""
        self._messages.clear()

    def pack(
        self, ids: IdArray, tokens: Array, requests: Sequence[Request]
    ) -> Callable[[], object]:
        """Pickle a request for each env, one message for each process.

        Returns:
            What sends them.

        Raises:
            TypeError: the arguments of one cannot be pickled.
        """
        by_host: dict[int, list[tuple[int, Request]]] = {}
        for i, token, request in zip(ids.tolist(), tokens[ids].tolist(), requests, strict=True):
            by_host.setdefault(int(self._home[i]), []).append((token, request))
        packed: list[tuple[Callable[[Any], object], Any]] = []
        for number, pairs in by_host.items():
            host = self._all[number]
            if isinstance(host, ProcessHost):
                packed.append((host.write, host.pack(pairs)))
            else:
                packed.append((host.post_requests, pairs))

        def send() -> None:
            for post, what in packed:
                post(what)

        return send

    def cancel(self, ids: set[int]) -> set[int]:
        """Drop the requests of these envs; return those that are carried out all the same."""
        carried_out: set[int] = set(ids)
        for host in self.local:
            own = ids.intersection(host.ids)
            if own:
                carried_out -= own - host.cancel(own)
        for process in [] if self.processes is None else self.processes.hosts:
            if process.torn:  # a message cut in two cannot be mended
                process.kill()
        return carried_out

    # ---------------------------------------------------------------------------------- processes

    @property
    def timed(self) -> bool:
        """Whether there is something to look at when a time has passed."""
        return self.processes is not None and self.processes.timed

    def is_dead(self, i: int) -> bool:
        """Whether the process of env ``i`` has ended, or is being started again."""
        host = self.of(i)
        return isinstance(host, ProcessHost) and (host.exit is not None or host in self.restarting)

    def may_answer(self, i: int) -> bool:
        """Whether a cancelled request of env ``i`` may still be answered."""
        host = self.of(i)
        return isinstance(host, ProcessHost) and host.exit is None

    def begin_restart(self, i: int) -> None:
        """Start the ended process of env ``i`` once more; its envs are made meanwhile.

        Raises:
            OSError: it cannot be started.
        """
        host = self.of(i)
        if host not in self.restarting:
            assert self.processes is not None  # noqa: S101 - its process has ended
            self.restarting.add(host)
            try:
                self.processes.restart(host)
            except BaseException:
                self.restarting.discard(host)
                raise

    def is_restarting(self, i: int) -> bool:
        """Whether the process of env ``i`` was started again, and is not there yet."""
        host = self.of(i)
        return (
            host in self.restarting
            and not host.started
            and host.exit is None
            and host.start_error is None
        )

    def end_restart(self, host: ProcessHost) -> EnvError | None:
        """A process was started again; return what went wrong, if anything did."""
        self.restarting.discard(host)
        error = host.start_error
        if error is None and host.exit is None and host.started:
            return None
        if host.exit is None:  # half made, it has no use
            host.kill()
            host.ends(5)
            host.reap()
        return error or host.death_of(host.ids[0])

    def grace(self) -> float:
        """Seconds that a cancelled request may go on before its process is killed."""
        return processes_.GRACE

    def end_stuck(self, stuck: Sequence[int]) -> None:
        """Kill the process of the first of these envs."""
        host = self.of(stuck[0])
        named = [i for i in stuck if i in host.ids]
        text = name_ids(named)
        host.kill(reason=f"was killed: {text} did not end a request that was given up")
        if not host.ends(5):
            raise EnvError(f"{text}: its process does not end", tuple(stuck), "restart")
        host.ended = True

    @property
    def measure(self) -> bool:
        """Whether the envs can be timed."""
        return all(host.measures for host in self.local)

    def listed(self) -> list[list[int]]:
        """The ids of the envs of each process, those of the caller's at the end."""
        return [list(host.ids) for host in self._all]

    def describe(self) -> str:
        """What a pool's ``repr`` says of where its envs live."""
        if self.processes is None:
            return ""
        return self.processes.describe() + (", caller_steps=True" if self.local else "")

    # --------------------------------------------------------------------------------------- end

    def wake(self) -> None:
        """End the sleep of a call that is under way in another thread."""
        self.closing.set()
        if self.processes is not None:
            self.processes.channel.wake()

    def close(self) -> list[EnvError]:
        """Close all envs and end all processes; return what closing the envs raised."""
        errors: list[EnvError] = []
        try:
            for host in self.local:
                errors += host.close()
        finally:
            if self.processes is not None:
                errors = self.processes.close() + errors
        return errors


def common_spec(own: Sequence[EnvSpaces], autoreset: str | None, *, columns: bool) -> Spec:
    """The spec of the block that holds the rows of all these envs.

    Spaces may differ in their bounds, and in anything where rows are objects.

    Raises:
        ValueError: they differ in shape, dtype or structure where rows are arrays.
    """
    obs = _common_layout(
        "observation_space", [each.observation_space for each in own], columns=columns, coded=True
    )
    action = _common_layout(
        "action_space", [each.action_space for each in own], columns=columns, coded=False
    )
    rewards = {each.reward_shape for each in own}
    return Spec(
        len(own),
        obs=obs,
        action=action,
        reward=rewards.pop() if len(rewards) == 1 else (),
        finals=autoreset == SAME_STEP and spaces.is_fixed(obs),
    )


def _common_layout(name: str, own: Sequence[Any], *, columns: bool, coded: bool) -> Any:
    layouts = [spaces.layout_of(space, coded=coded) for space in own]
    other = next((i for i, layout in enumerate(layouts) if layout != layouts[0]), None)
    if other is None:
        return layouts[0]
    if coded:
        return _common_layout(name, own, columns=columns, coded=False)
    if columns or any(spaces.is_leaf(layout) and layout.dtype is not None for layout in layouts):
        raise ValueError(
            f"env {other}: {name} is {own[other]}, but that of env 0 is {own[0]};"
            " shapes and dtypes must agree where rows are arrays"
        )
    return spaces.Leaf((), (), None)
