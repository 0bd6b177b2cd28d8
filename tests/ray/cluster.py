"""Actors that serve one pool after another, and which of them there are."""

import contextlib
import os
from types import SimpleNamespace

import psutil
import ray

from envpool_py.ray import actor_supervisor as module
from envpool_py.ray.actor import EnvActor

idle = []
"""The actors, each with its process' id, that a pool has closed and the next one takes."""

_open, _take_event = module.ActorSupervisor._open, module.ActorHost._take_event


class KeptEnvActor(EnvActor):
    """An actor that can begin afresh: to start a process takes a second of CPU time."""

    def again(self, ids):
        events = self._outbox.events
        super().__init__(ids)
        events.put((ids[0], 0, []))  # ends the call that waits for one, so the next can begin

    def pid(self):
        return os.getpid()


def _open_with_kept(self):
    _open(self)
    make = self.hosts[0].make

    def take(ids):
        if not idle or self.hosts[0].step_timeout is not None:
            return make(ids)
        actor, _ = idle.pop()
        actor.again.remote(ids)
        return actor

    for host in self.hosts:
        host.make = take


def _keep(self, event):
    is_last = event[2] and len(self.ids) - len(self.closed_envs) == 1
    if not is_last or self.step_timeout is not None:  # something watches the actor
        return _take_event(self, event)
    self._is_gone = self.poller.end_noticed = True
    # The actor answers when the call that waits for another event has begun.
    idle.append((self.process, ray.get(self.process.pid.remote())))
    self.process = SimpleNamespace()  # and after that one no other waits
    return self._take_reply([b"", 0, b"", event[2]])


def keep_actors():
    """Keep actors whose envs a pool has closed, if they have no ``step_timeout``."""
    module.EnvActor = KeptEnvActor
    module.ActorSupervisor._open, module.ActorHost._take_event = _open_with_kept, _keep


def actors():
    """Return the processes of actors with envs, of this process's Ray, that no pool has closed."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if "EnvActor" in "".join(process.cmdline()):
                found.add(process.pid)
    return found - {pid for _, pid in idle}
