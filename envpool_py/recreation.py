"""Recreate envs: where they are, or in a process that is started again.

A recreated env goes on where the lost one was in its schedule of episodes: its executor alone knows
which resets have reached it, and writes that into the block (``Block.put_place``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py.block import Place
from envpool_py.ids import IdArray
from envpool_py.states import DEAD
from envpool_py.worker.base import Request

if TYPE_CHECKING:
    from envpool_py.engine import Engine


class Recreation:
    """Recreates the envs of an engine.

    Args:
        engine: whose envs these are.

    Attributes:
        follows_schedule: whether it matters where envs are in their schedules.
        places: where envs of dead processes were in their schedules.
        seen: where envs were when their rows were returned last.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.follows_schedule = False
        self.places: dict[int, Place] = {}
        self.seen: dict[int, Place] = {}

    def restart(self, ids: IdArray) -> None:
        """Recreate these envs, and all that shared an ended process with one of them.

        Raises:
            AlreadyPendingCallError: one is in flight, and its process lives.
            EnvError: an env_fn raised, or a process ended while it started.
        """
        if self._engine.recovery is None:
            self._restart(ids)
        else:
            self._engine.recovery.restart_by_hand(lambda: self._restart(ids))

    def _restart(self, ids: IdArray) -> list[int]:
        processes = self._engine.hosts.processes
        if processes is not None:
            processes.channel.fetch(self._engine.arrivals.chunks, 0, 0)
            self._engine.faults.attend()
        alive = np.array(
            [i for i in ids.tolist() if not self._engine.hosts.is_dead(i)], dtype=np.intp
        )
        self._engine.states.check_free(alive)
        self._end_cancelled(alive.tolist())
        if len(alive):
            idle = np.array(
                [i for i in alive.tolist() if not self._engine.hosts.is_dead(i)], dtype=np.intp
            )
            self._engine.states.cancelled(idle)  # should this be interrupted
            self._engine.hosts.forget_messages()
        dead = [i for i in ids.tolist() if self._engine.hosts.is_dead(i)]
        hosts = {self._engine.hosts.of(i) for i in dead}
        for i in dead:
            self._engine.hosts.begin_restart(i)
        while any(self._engine.hosts.is_restarting(i) for i in dead):
            self.advance_restart()
        made = []
        for host in hosts:
            made += self.finish_restart(host)
        rest = np.array([i for i in ids.tolist() if i not in made], dtype=np.intp)
        if len(rest):
            self._engine.asking.ask(rest, [Request("rebuild")] * len(rest), observed=False)
            self._note_recreated(rest.tolist())
        return [*made, *rest.tolist()]

    def advance_restart(self) -> None:
        """Wait for a process that is being started again."""
        processes = self._engine.hosts.processes
        assert processes is not None  # noqa: S101 - one is started
        self._engine.refuse_if_closed()
        processes.channel.fetch(self._engine.arrivals.chunks, 0, processes.timeout(None))
        self._engine.faults.attend()

    def finish_restart(self, host: Any) -> list[int]:
        """The envs of a process that was started again go on where the lost ones were.

        Returns:
            Their ids.

        Raises:
            EnvError: an env_fn raised, or the process ended while it started.
        """
        error = self._engine.hosts.end_restart(host)
        if error is not None:
            for i in host.ids if self._engine.recovery is None else ():
                self._engine.states.died(i, host.death_of(i))
            raise error
        self._engine.batches.forget_forms(host.ids)
        lost = {i: self._engine.states.deaths.pop(i, None) for i in host.ids}
        try:
            self._configure_again(host.ids)
            self._note_recreated(host.ids)
        except BaseException:
            # Its executors may not know the options: it is to be started once more.
            self._engine.states.deaths.update((i, e) for i, e in lost.items() if e is not None)
            host.kill()
            host.ended |= host.ends(5)
            raise
        return list(host.ids)

    def rebuild(self, i: int) -> None:
        """Recreate env ``i`` where it is; for recovery."""
        self._engine.asking.ask(np.array([i], dtype=np.intp), [Request("rebuild")], observed=False)
        self._configure_again([i])
        self._note_recreated([i])

    def _configure_again(self, ids: Sequence[int]) -> None:
        requests = {i: self.configured_for(i) for i in ids}
        known = [i for i in ids if requests[i] is not None]
        if known:
            self._engine.asking.ask(
                np.array(known, dtype=np.intp),
                [requests[i] for i in known],  # type: ignore[misc]
                observed=False,
            )
        for i in ids:
            self.places.pop(i, None)
            self.see(i)

    def configured_for(self, i: int) -> Request | None:
        """The request that tells a new executor of env ``i`` the pool's options and its place."""
        request = self._engine.hosts.configured.get(i)
        if request is None:
            return None
        root, episode, _ = self.place(i)
        return request._replace(kwargs={**request.kwargs, "root": root, "episode": episode})

    def follow_schedule(self) -> None:
        """Know from now on where envs are in their schedules of episodes."""
        self.follows_schedule = True
        for i in self._engine.all_ids.tolist():
            self.see(i)

    def see(self, i: int) -> None:
        """Note where env ``i`` is in its schedule of episodes."""
        self.seen[i] = self._engine.block.schedule(i)

    def place(self, i: int) -> Place:
        """Where env ``i`` is in its schedule of episodes, or was when it was lost."""
        place = None if self._engine.recovery is None else self._engine.recovery.place(i)
        return place or self.places.get(i) or self._engine.block.schedule(i)

    def configure(self, requests: Sequence[Request]) -> None:
        """Tell all executors the options of the pool."""
        self._engine.asking.ask(self._engine.all_ids, requests, observed=False)
        self._engine.hosts.configured.update(enumerate(requests))

    def _note_recreated(self, ids: Sequence[int]) -> None:
        self._engine.hosts.restarts[list(ids)] += 1
        fresh = list(ids) if self._engine.recovery is None else self._engine.recovery.recreated(ids)
        if self._engine.recovery is not None and not self._engine.recovery.by_hand:
            ids = [i for i in ids if self._engine.states.state[i] == DEAD]
        self._engine.states.recreated(ids)
        for observer in self._engine.observers if fresh else ():
            observer.recreated(fresh)

    def _end_cancelled(self, ids: Sequence[int]) -> None:
        """Kill the processes in which a cancelled request of these envs goes on for too long."""
        deadline = time.monotonic() + self._engine.hosts.grace()
        while stuck := [
            i for i in ids if i in self._engine.arrivals.stale and self._engine.hosts.may_answer(i)
        ]:
            left = deadline - time.monotonic()
            self._engine.refuse_if_closed()
            if left > 0:
                self._wait_for_stale(left)
                continue
            self._engine.hosts.end_stuck(stuck)
            self._engine.faults.attend()

    def _wait_for_stale(self, seconds: float) -> None:
        processes = self._engine.hosts.processes
        if processes is None:
            self._engine.arrivals.stale.clear()
            return
        if processes.channel.fetch(self._engine.arrivals.chunks, 0, processes.timeout(seconds)):
            self._engine.faults.attend()
        self._engine.arrivals.drop_stale()
