"""A signal handler that raises, at any moment of any call, leaves the pool usable and truthful.

The handler fires after random microseconds, thousands of times. Each observation holds (env,
episode, step), so a row that is stale, lost or another env's is seen.
"""

from __future__ import annotations

import functools
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.error import ResetNeeded

from tests import envs
from tests.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envpool_py import BaseVectorEnv

NUM_ENVS = 6
SECONDS = 1.0
PLACES_TRIED = ("dummy", "subproc-fork-packed", "shmem-fork-packed")


class Broken(KeyboardInterrupt):
    """What the handler raises: no Exception, so that no env is blamed for it."""


class Interrupts:
    """A timer whose handler raises once, after up to a millisecond."""

    def __init__(self) -> None:
        self.armed = False
        self.count = 0

    def handle(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            self.count += 1
            raise Broken

    def call(self, rng: random.Random, act: Any) -> tuple[bool, Any]:
        """Return (was it left whole, what it returned)."""
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * rng.choice([2e-5, 1e-4, 1e-3]))
                self.armed = True
                result = act()
            finally:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Broken:
            return False, None
        return True, result


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    found = Interrupts()
    before = signal.signal(signal.SIGALRM, found.handle)
    yield found
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def idle(pool: BaseVectorEnv) -> list[int]:
    waiting = set(pool.waiting_id)
    return [i for i in range(NUM_ENVS) if i not in waiting]


# Where the handler fires in a callback of the collector or in a __del__, Python can only warn.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("place", PLACES_TRIED)
def test_interrupts_at_random_moments(
    place: str, wait_num: int | None, interrupts: Interrupts
) -> None:
    rng = random.Random(f"{place} {wait_num}")
    fns = [functools.partial(envs.CountEnv, tag, 10**9) for tag in range(NUM_ENVS)]
    known: dict[int, int] = {}  # env id -> the step that its next row must be one after
    calls = 0
    with PLACES[place](fns, wait_num=wait_num) as pool:
        pool.reset()
        action = pool.action_space[0].sample()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            calls += 1
            ids = idle(pool)
            name = rng.choice(["step", "step", "reset", "send", "recv", "drain", "attribute"])
            if (name == "recv" and len(ids) == NUM_ENVS) or (name == "step" and not ids):
                continue
            acts = {
                "step": lambda ids=ids: pool.step([action] * len(ids), ids),
                "reset": lambda ids=ids: pool.reset(ids),
                "send": lambda ids=ids: pool.send([action] * len(ids[:3]), ids[:3]),
                "recv": pool.recv,
                "drain": pool.drain,
                "attribute": lambda ids=ids: pool.call("__getattribute__", "tag", id=ids),
            }
            try:
                whole, result = interrupts.call(rng, acts[name])
            except ResetNeeded:
                ids = idle(pool)
                name, whole, result = "reset", True, pool.reset(ids)
            if not whole:
                known.clear()
            elif name == "reset":
                assert result[0].tolist() == [[i, episode, 0] for i, episode, _ in result[0]]
                assert result[0][:, 0].tolist() == ids
                known.update(dict.fromkeys(ids, 0))
            elif name == "attribute":
                assert result == ids
            elif result is not None:
                rows = zip(result[0].tolist(), result[4], strict=True)
                for (tag, _, step), info in rows:
                    assert tag == info["env_id"]
                    assert step == known.get(tag, step - 1) + 1
                    known[tag] = step
        pool.drain()
        assert pool.reset()[0][:, 2].tolist() == [0] * NUM_ENVS
    assert interrupts.count > 100, "the handler has hardly fired"
    assert calls > interrupts.count


HANGS = """
    import signal, sys, time
    import envpool_py
    from envpool_py.testing import CountingEnv

    class HangingEnv(CountingEnv):
        def step(self, action):
            while True:
                time.sleep(1)

    if __name__ == "__main__":
        pool = envpool_py.ShmemVectorEnv([HangingEnv] * 2, context=sys.argv[1])
        pool.reset()
        try:
            with pool:
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.3)  # again during close
                pool.step([0, 0])
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_second_interrupt_ends_a_close_that_waits(tmp_path: Path, context: str) -> None:
    handler = "signal.signal(signal.SIGALRM, signal.default_int_handler)"
    source = textwrap.dedent(HANGS).replace(
        "    pool = envpool_py", f"    {handler}\n    pool = envpool_py", 1
    )
    script = tmp_path / "hangs.py"
    script.write_text(source)
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, script, context],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert time.monotonic() - begun < 20


class Alarming:
    """While it is pickled or copied, the signal comes."""

    def __reduce__(self) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return Alarming, ()


@pytest.mark.parametrize("place", PLACES_TRIED)
def test_an_exception_of_a_handler_is_not_taken_for_one_of_pickling(place: str) -> None:
    calls = []

    def handle(*_: object) -> None:
        calls.append(place)
        if len(calls) == 1:
            raise TimeoutError("enough")

    with PLACES[place]([functools.partial(envs.SpaceEnv, 0, "text", 9)] * 2) as pool:
        before = signal.signal(signal.SIGALRM, handle)
        try:
            with pytest.raises(TimeoutError, match="^enough$"):
                pool.reset(options={"alarm": Alarming()})
        finally:
            signal.signal(signal.SIGALRM, before)
        pool.reset()
