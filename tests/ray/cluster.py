"""A local Ray with few resources, and actors that serve one pool after another."""

import contextlib
import os
import warnings
from pathlib import Path

import ray

from envpool_py.ray import actors as module
from envpool_py.ray.actor import EnvActor

_idle = []
_open, _closed = module.Actors._open, module.ActorHost._closed


class KeptEnvActor(EnvActor):
    """An actor that can begin afresh: to start a process takes a second of CPU time."""

    def again(self, ids):
        super().__init__(ids)

    def pid(self):
        return os.getpid()


def _open_with_kept(self):
    _open(self)
    shared = self.hosts[0]._shared
    make = shared.make

    def take(ids):
        if not _idle or shared.step_timeout is not None:
            return make(ids)
        actor, _ = _idle.pop()
        actor.again.remote(ids)
        return actor

    shared.make = take


def _keep(self, reply):
    if self._shared.step_timeout is not None:  # something watches it
        return _closed(self, reply)
    self.ended = True
    _idle.append((self.process, ray.get(self.process.pid.remote())))
    return self._answered(reply)


@contextlib.contextmanager
def local_ray():
    """Have a Ray that takes little memory, whose actors are kept when a pool has closed its envs.

    A pool whose actor died, hung or has a ``step_timeout`` ends it as usual.
    """
    module.EnvActor = KeptEnvActor
    module.Actors._open, module.ActorHost._closed = _open_with_kept, _keep
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            "local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=80 * 2**20,
        )
    try:
        yield
    finally:
        ray.shutdown()
        _idle.clear()


def actors():
    """Return the processes of actors with envs, of this process's Ray, that no pool has closed."""

    def parent_of(pid):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]

    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"EnvActor" in (path / "cmdline").read_bytes():
                raylet = parent_of(path.name)
                if parent_of(raylet) == str(os.getpid()):
                    found.add(int(path.name))
    return found - {pid for _, pid in _idle}
