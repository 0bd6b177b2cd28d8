"""A program with pools, which ends as its argument says; `test_programs.py` runs it."""

import json
import os
import signal
import sys
from pathlib import Path

from envpool_py.worker import supervisor
from tests.faults import helpers
from tests.support.helpers import wait_until
from tests.support.places import PLACES

FAULTS = {"hang": ["stubborn"], "killed": ["", "stubborn", "gil", "stop"]}
"""What the envs do: the first kind of fault has a child process, whose id is in a file."""


def started(place, how, path):
    """Make a pool, have its envs fail, and return it with the ids of its processes."""
    faults = FAULTS.get(how, ["", ""])
    pool = PLACES[place]((helpers.BROKEN * 2)[: len(faults)])
    pool.reset()
    pids = pool.call("pid")
    if how in FAULTS:
        pool.send([f"{name}:{path}" for name in faults])
        assert wait_until(lambda: path.exists() and path.read_text())
        assert how == "hang" or wait_until(lambda: helpers.state_of(pids[3]) == "T")
        pids.append(int(path.read_text()))
    if how == "interrupted":
        try:
            pool.step(["", f"interrupt:{os.getpgid(0)}"])
        except KeyboardInterrupt:
            pids.append(os.getpid())
        assert pool.call("pid") == pids[:2], place
        assert pool.reset()[0][:, 2].tolist() == [0, 0], place
        assert pool.step(["", ""])[0][:, 2].tolist() == [1, 1], place
        pool.close()
    return pool, pids


if __name__ == "__main__":
    how, places, folder = sys.argv[1:]
    supervisor.GRACE = 0.1
    # Kept, to be found at the end, as a user's pool would be.
    kept = {place: started(place, how, Path(folder, place)) for place in places.split(",")}
    print(json.dumps({place: pids for place, (_, pids) in kept.items()}), flush=True)  # noqa: T201
    if how == "exception":
        raise KeyError("mine")
    if how == "exit":
        sys.exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
