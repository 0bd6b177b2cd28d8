"""An env forks: the copy of the process ends when it leaves the env's code, and answers nothing."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.faults.helpers import running
from tests.support import envs
from tests.support.helpers import run_python, wait_until
from tests.support.places import PLACES

WHERE = ("env_fn", "reset", "step", "call", "coroutine", "close")
CHILD = ("raises", "exits", "exec", "goes on", "returns")
STEPS, LENGTH = 160, 50


class Forks(envs.CountEnv):
    """Forks at one place, once; the child does ``what``. Writes the id of the child to ``path``."""

    def __init__(self, tag, where, what, path):
        super().__init__(tag, LENGTH)
        self.where, self.what, self.path, self.hold = where, what, path, None
        self.calls = 0
        self.fork("env_fn")

    def fork(self, place):
        if place != self.where:
            return
        self.where = None
        read, write = os.pipe()
        if pid := os.fork():
            self.path.write_text(str(pid))
            os.close(read)
            self.hold = write
            return
        if self.what == "raises":
            raise RuntimeError("of the copy")
        if self.what == "exits":
            sys.exit("of the copy")
        if self.what == "exec":
            os.execv("/no/such", ["program"])
        if self.what == "goes on":
            os.close(write)
            os.read(read, 1)  # until the parent has gone on, and closes its end

    def release(self):
        if self.hold is not None:
            os.close(self.hold)
            self.hold = None

    def reset(self, **kwargs):
        row = super().reset(**kwargs)
        if self.episode == 2:  # an automatic one
            self.fork("reset")
        return row

    def step(self, action):
        self.calls += 1
        row = super().step(action)
        if self.calls == 20:
            self.fork("step")
        if self.calls == 120:
            self.release()
        return row

    def count(self):
        if self.tag == 0 and self.where == "coroutine":
            return self.count_later()
        self.fork("call")
        return self.calls

    async def count_later(self):
        """Forks in the thread of the event loop."""
        self.fork("coroutine")
        return self.calls

    def close(self):
        self.fork("close")
        self.release()


def steps_of(place, where, what, path):
    """Step a pool whose env 0 forks; print what is wrong, and how often this comes to its end."""
    pair = partial(Forks, 0, where, what, path), partial(Forks, 1, None, None, None)
    other = partial(Forks, 2, None, None, None)
    pool = PLACES[place]([*pair, other], autoreset_mode="same_step")
    pool.reset()
    for number in range(1, STEPS + 1):
        episode, t = divmod(number, LENGTH)
        obs = pool.step([0] * 3)[0].tolist()
        if obs != [[tag, episode, t] for tag in range(3)]:
            os.write(1, f"wrong at {number}: {obs}\n".encode())
        if number == 30 and (counts := pool.call("count")) != [30] * 3:
            os.write(1, f"wrong counts: {counts}\n".encode())
    pool.close()
    # Of a copy that comes here the line is written at its end.
    os.write(1, f"{where} {what}\n".encode())


def run_all(place, folder):
    for where in WHERE:
        for what in CHILD:
            path = Path(folder, f"{where} {what}")
            steps_of(place, where, what, path)
            if not wait_until(lambda path=path: not running(int(path.read_text()))):
                os.write(1, b"the copy is left\n")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", "thread"])
def test_the_copy_answers_nothing(place, tmp_path):
    expected = [f"{where} {what}" for where in WHERE for what in CHILD]
    assert run_python("-m", __name__, place, tmp_path, quiet=True).splitlines() == expected


if __name__ == "__main__":
    run_all(*sys.argv[1:])
