"""An env forks where the table of faults has no place: the copy of the process answers nothing."""

import os
import sys
from functools import partial

import pytest

from tests.faults.helpers import running
from tests.support import envs
from tests.support.helpers import children, run_python, wait_until
from tests.support.places import PLACES

WHERE = ("an automatic reset", "a coroutine")


class Forks(envs.CountEnv):
    """Forks at one place, once; in the child an exception leaves the code of the env."""

    def __init__(self, tag, where=None):
        super().__init__(tag, 3)
        self.where = where

    def fork(self, where):
        if where == self.where:
            self.where = None
            if os.fork() == 0:
                raise RuntimeError("of the copy")

    def reset(self, **kwargs):
        row = super().reset(**kwargs)
        if self.episode == 1:
            self.fork("an automatic reset")
        return row

    async def count(self):
        """In the thread of the event loop."""
        self.fork("a coroutine")
        return self.steps


def step(place):
    for where in WHERE:
        fns = [partial(Forks, 0, where), partial(Forks, 1), partial(Forks, 2)]
        with PLACES[place](fns, autoreset_mode="same_step") as pool:
            pool.reset()
            for t in range(1, 41):
                obs = pool.step([0] * 3)[0].tolist()
                assert obs == [[tag, *divmod(t, 3)] for tag in range(3)]
            assert pool.call("count") == [40] * 3
        assert wait_until(lambda: not any(map(running, children())))
        # Of a copy that comes here the line is written at its end.
        os.write(1, f"{where}\n".encode())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", "thread"])
def test_the_copy_answers_nothing(place):
    assert run_python("-m", __name__, place, quiet=True).splitlines() == [*WHERE]


if __name__ == "__main__":
    step(*sys.argv[1:])
