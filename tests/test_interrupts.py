"""A signal handler that raises, at any moment of any call, leaves the pool usable and truthful.

The handler fires after random microseconds, thousands of times. Each observation holds (env,
episode, step), so a row that is stale, lost or another env's is seen.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import envpool_py
from envpool_py import EnvError
from tests.support import envs
from tests.support.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envpool_py import BaseVectorEnv

NUM_ENVS = 6
SECONDS = 1.0
PACKAGE = Path(envpool_py.__file__).parent
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


def interrupted_at(call: Callable[[], Any], number: int, files: tuple[str, ...] = ()) -> bool:
    """Whether ``call`` came to its ``number``-th line within the package, and was broken off.

    With ``files`` only the lines of these count.
    """
    seen = 0
    pid = os.getpid()
    counted = tuple(str(PACKAGE / file) for file in files) or str(PACKAGE)

    def trace(frame: Any, event: str, arg: Any) -> Any:  # noqa: ARG001 - the signature of a tracer
        nonlocal seen
        if not frame.f_code.co_filename.startswith(counted) or os.getpid() != pid:
            return None
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                raise Broken
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        call()
    except Broken:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("place", [*PLACES_TRIED, "shmem-fork-caller"])
def test_a_step_of_all_envs_may_be_interrupted_at_any_line(place: str, as_list: bool) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]
    actions = np.array([5, 6, 7], dtype=np.int64)
    given: Any = actions.tolist() if as_list else actions
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step(actions)
        for number in itertools.count(1):
            if not interrupted_at(lambda: pool.step(given), number):
                break
            assert pool.waiting_id == []
            episodes = pool.reset()[0][:, 1].tolist()
            obs, *_, infos = pool.step(actions)
            assert obs.tolist() == [[i, episodes[i], 1] for i in range(3)]
            assert [info["action"] for info in infos] == [5, 6, 7]
        assert number > 50, "the tracer has seen hardly a line"


def test_a_constructor_that_is_interrupted_at_any_line_leaves_nothing() -> None:
    # What is left, the fixture of all tests sees.
    fns = [functools.partial(envs.CountEnv, tag) for tag in range(2)]
    files = ("pool.py", "engine.py", "assembly.py", "worker/placement.py", "worker/processes.py")
    for number in itertools.count(1):
        made: list[BaseVectorEnv] = []
        broken_off = interrupted_at(
            lambda: made.append(PLACES["shmem-fork"](fns, autoreset_mode="same_step")),  # noqa: B023 - called at once
            number,
            files,
        )
        if not broken_off:
            break
        assert not made
    made[0].close()
    assert number > 100, "the tracer has seen hardly a line"


class SignalsEnv(envs.CountEnv):
    """Sends SIGALRM to the process that has imported this, where the action asks for it."""

    pid = os.getpid()
    ASKS = 99

    def step(self, action: Any) -> tuple:
        if action == self.ASKS:
            os.kill(self.pid, signal.SIGALRM)
            time.sleep(0.05)  # its row is not to be there before the handler has run
        return super().step(action)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("place", [*PLACES_TRIED, "shmem-fork-caller"])
def test_a_handler_may_raise_what_envs_raise(place: str, as_list: bool) -> None:
    def handler(*_: object) -> None:
        raise EnvError("env 0 of another pool", (0,))

    def given(first: int) -> Any:
        return [first, 0, 0] if as_list else np.array([first, 0, 0])

    with PLACES[place]([functools.partial(SignalsEnv, tag) for tag in range(3)]) as pool:
        pool.reset()
        before = signal.signal(signal.SIGALRM, handler)
        try:
            with pytest.raises(EnvError, match="another pool"):
                pool.step(given(SignalsEnv.ASKS))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert pool.waiting_id == []
        with pytest.raises(ResetNeeded, match="broken off"):
            pool.step(given(0))
        assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert pool.step(given(0))[0][:, 2].tolist() == [1, 1, 1]


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


class SignallingBox(gym.spaces.Box):
    """Sends SIGALRM to this process when it is asked what it contains."""

    def contains(self, x: Any) -> bool:
        signal.raise_signal(signal.SIGALRM)
        return super().contains(x)


class SignallingSpaceEnv(envs.CountEnv):
    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.observation_space = SignallingBox(-1, 10**6, (3,), np.int64)


@pytest.mark.parametrize("kind", [LookupError, ValueError])
def test_a_handler_may_raise_while_a_row_is_looked_at(kind: type[Exception]) -> None:
    def handler(*_: object) -> None:
        raise kind("of the handler")

    with PLACES["dummy"]([functools.partial(SignallingSpaceEnv, 0)]) as pool:
        before = signal.signal(signal.SIGALRM, handler)
        try:
            with pytest.raises(kind, match="of the handler"):
                pool.reset()
        finally:
            signal.signal(signal.SIGALRM, before)
