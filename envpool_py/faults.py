"""What happens to processes, and to the envs in them, while an engine waits."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from envpool_py.block import BESIDE, Beside
from envpool_py.errors import EnvError, EnvTimeoutError
from envpool_py.ids import IdArray
from envpool_py.states import RESETTING, STEPPING
from envpool_py.worker.channel import GENERATION, HEADER
from envpool_py.worker.process import ProcessHost

if TYPE_CHECKING:
    from envpool_py.engine import Engine


class Faults:
    """Turns the end of a process, and a request that takes too long, into results.

    Args:
        engine: whose envs these are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def attend(self) -> None:
        """Handle what has happened to processes: ends, warnings, envs that are stuck."""
        self._engine.refuse_if_closed()
        processes = self._engine.hosts.processes
        if processes is None:
            return
        for host, overdue in processes.look():
            named, text = processes.end_stuck(host, overdue)
            arrived = set(self._engine.arrivals.ids().tolist())
            flying = self._engine.states.flying()
            for i in named:
                late = EnvTimeoutError(f"env {i}: {text}", (i,), "step")
                if i in self._engine.asking.asked and self._engine.asking.asked[i] is None:
                    self._engine.asking.asked[i] = late
                elif flying[i] and i not in arrived:
                    self.fail(i, late)
        for host in processes.ended():
            self._take_death(host)
        processes.timed |= any(host.disconnected for host in processes.hosts)

    def _take_death(self, host: ProcessHost) -> None:
        """A process has ended: its envs that are in flight have failed."""
        host.reap()
        processes = self._engine.hosts.processes
        assert processes is not None  # noqa: S101 - it has ended
        processes.channel.collect(self._engine.arrivals.chunks)
        self._engine.arrivals.drop_stale()
        for i in host.ids:
            self._engine.arrivals.stale.pop(i, None)
        if host.restarting:
            host.ended = False
            return  # whoever has restarted it looks after it
        arrived = set(self._engine.arrivals.ids().tolist())
        flying = self._engine.states.flying()
        for i in host.ids:
            error = host.death_of(i)
            if i in self._engine.asking.asked and self._engine.asking.asked[i] is None:
                self._engine.asking.asked[i] = error
            if i not in arrived and flying[i]:
                error.request = "reset" if self._engine.states.state[i] == RESETTING else "step"
                self.fail(i, error)
            self._engine.recreation.places.setdefault(i, self._engine.block.schedule(i))
            if self._engine.recovery is None or not self._engine.recovery.take_death(i, error):
                self._engine.states.died(i, error)
        host.ended = False  # last: an interrupt leaves all of this to be done once more

    def fail(self, i: int, error: EnvError) -> None:
        """Have this error be the result of env ``i``, which is in flight."""
        # What a request that was never answered has begun does not count.
        self._engine.recreation.places.setdefault(
            i, self._engine.recreation.seen.get(i) or self._engine.block.schedule(i)
        )
        self._engine.states.tokens[i] += GENERATION
        self._engine.hosts.forget_messages()
        self._engine.block.mark[i] = BESIDE
        self._engine.beside[i] = error
        self._engine.arrivals.chunks.append(HEADER.pack(int(self._engine.states.tokens[i])))

    def end_writers(self) -> None:
        """Something that is no result was written into the pipe: end whoever may have done it.

        A process with nothing in flight has not. Whose results were lost, nobody knows.
        """
        processes = self._engine.hosts.processes
        assert processes is not None  # noqa: S101 - nobody else writes tokens
        self._engine.arrivals.chunks.clear()
        flying = self._engine.states.flying()
        for host in processes.hosts:
            if flying[host.ids].any() or not self._engine.asking.asked.keys().isdisjoint(host.ids):
                host.end("was killed: something wrote into the pipe of the results")
        processes.channel.collect([])
        self.attend()

    def put_lost(self, ids: IdArray) -> None:
        """Have these envs, none of them in flight, deliver the row of a lost step."""
        self._engine.states.sent(ids, ids, STEPPING)
        for i in ids.tolist():
            self.deliver_lost(i)

    def deliver_lost(self, i: int) -> None:
        """The result of env ``i``, which is in flight, is the row of a lost step."""
        own = self._engine.batches.put_lost(i)
        if own:
            self._engine.beside[i] = own
        self._engine.arrivals.chunks.append(HEADER.pack(int(self._engine.states.tokens[i])))


def warn_of(beside: dict[int, Beside]) -> None:
    """Warn of what is strange about rows that came all the same."""
    for i, own in beside.items():
        for text in own.get("warnings", ()):
            named = f'env {i}: {text}; validate="off" takes it in silence'
            warnings.warn(named, UserWarning, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """The ``stacklevel`` at which a warning of the function that asks names the user's line."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way before Python 3.12
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("envpool_py."):
        frame = frame.f_back
        level += 1
    return level
