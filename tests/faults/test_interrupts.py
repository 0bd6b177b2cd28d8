"""A signal handler that raises, at any moment of any call, leaves the pool usable and truthful."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded

import envpool_py
from envpool_py import EnvError, WorkerDiedError
from tests.faults.helpers import (
    EACH,
    IN_CALLER,
    goes_on,
    handling,
    raising,
    reset_pool,
    signalling,
    slow,
)
from tests.support import broken, envs
from tests.support.helpers import wait_until, wait_until_blocked
from tests.support.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envpool_py import BaseVectorEnv

NUM_ENVS = 6
PACKAGE = Path(envpool_py.__file__).parent
BROKEN = [functools.partial(broken.BrokenEnv, tag) for tag in range(3)]


class Broken(KeyboardInterrupt):
    """Raised by the handler: no Exception, so that no env is blamed for it."""


class BrokenOffError(TimeoutError):
    """Raised by the handler: an OSError, which nothing may take for a broken pipe."""


# ---------------------------------------------------------------------------- while a call waits


class SignalsEnv(envs.CountEnv):
    """Sends SIGALRM to the process that has imported this if the action asks for it."""

    main = os.getpid()
    ASKS = 99

    def step(self, action: Any) -> tuple:
        if action == self.ASKS:
            os.kill(self.main, signal.SIGALRM)
        return super().step(action)


@pytest.mark.parametrize("kind", [BrokenOffError, EnvError])
@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("place", EACH)
def test_a_signal_handler_raises(place: str, as_list: bool, kind: type) -> None:
    error = EnvError("env 0 of another pool", (0,)) if kind is EnvError else kind("mine")

    def given(first: int) -> Any:
        return [first, 0, 0] if as_list else np.array([first, 0, 0])

    with reset_pool(place, [functools.partial(SignalsEnv, tag) for tag in range(3)]) as pool:
        pids = pool.call("pid")
        with handling(signal.SIGALRM, raising(error)), pytest.raises(kind) as caught:
            pool.step(given(SignalsEnv.ASKS))
        assert caught.value is error, "no env is blamed for it"
        assert pool.waiting_id == []
        with pytest.raises(ResetNeeded, match="envs 0 to 2: .* broken off"):
            pool.step(given(0))
        assert pool.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert pool.step(given(0))[0][:, 2].tolist() == [1, 1, 1]
        assert pool.call("pid") == pids


def test_a_signal_handler_raises_while_a_row_is_unpickled() -> None:
    error = BrokenOffError("mine")
    with reset_pool("shmem-fork-packed", BROKEN) as pool, handling(signal.SIGUSR1, raising(error)):
        with pytest.raises(BrokenOffError, match="mine") as caught:
            pool.step(["", "bell", ""])
        assert caught.value is error
        with pytest.raises(ResetNeeded, match="envs 0 to 2: .* broken off"):
            pool.step([""] * 3)
        goes_on(pool, [0, 1, 2])


def test_a_signal_handler_raises_amid_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a message cannot be completed: its process is ended, and the others go on."""
    with reset_pool("shmem-fork", BROKEN) as pool:
        write, victim = os.write, pool.engine.hosts.of(1).stream.fd

        def half(fd: int, data: Any) -> int:
            if fd == victim:
                write(fd, bytes(data)[: len(data) // 2])
                raise BrokenOffError("mine")
            return write(fd, data)

        with monkeypatch.context() as patch:
            patch.setattr("envpool_py.worker.process.os.write", half)
            with pytest.raises(BrokenOffError, match="mine"):
                pool.step([np.zeros(1 << 15, np.uint8)] * 3)
        with pytest.raises(WorkerDiedError, match="env 1: .* was killed by SIGKILL"):
            pool.reset([1])
        goes_on(pool, [0, 2])


def test_a_signal_handler_raises_while_a_message_waits(beside: Callable) -> None:
    """The bytes that a stopped process does not take wait in the outbox, and are not cut."""
    handler = raising(BrokenOffError("mine"))
    with reset_pool("shmem-fork", BROKEN) as pool, handling(signal.SIGUSR1, handler):
        pids = pool.call("pid")
        os.kill(pids[1], signal.SIGSTOP)
        pool.send([np.zeros(1 << 22, np.uint8)], [1])
        beside(signalling())
        with pytest.raises(BrokenOffError, match="mine"):
            pool.recv()
        os.kill(pids[1], signal.SIGCONT)
        goes_on(pool, [0, 1, 2])
        assert pool.call("pid") == pids


# ------------------------------------------------------------------------------- at any moment


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
    with handling(signal.SIGALRM, found.handle):
        yield found
        signal.setitimer(signal.ITIMER_REAL, 0)


def idle(pool: BaseVectorEnv) -> list[int]:
    waiting = set(pool.waiting_id)
    return [i for i in range(NUM_ENVS) if i not in waiting]


# Where the handler fires in a callback of the collector or in a __del__, Python can only warn.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", "shmem-fork-caller"])
def test_interrupts_at_random_moments(
    place: str, wait_num: int | None, interrupts: Interrupts
) -> None:
    """Each observation holds (env, episode, step): a stale, lost or crossed row is seen."""
    rng = random.Random(f"{place} {wait_num}")
    fns = [functools.partial(envs.CountEnv, tag, 10**9) for tag in range(NUM_ENVS)]
    known: dict[int, int] = {}  # env id -> the step that its next row must be one after
    whole_calls = 0
    with reset_pool(place, fns, wait_num=wait_num) as pool:
        action = pool.action_space[0].sample()
        while interrupts.count < 2000 or whole_calls < 100:
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
            whole_calls += whole
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


def interrupted_at(call: Callable[[], Any], number: int, files: tuple[str, ...] = ("",)) -> bool:
    """Whether ``call`` came to its ``number``-th line in these files of the package, and ended."""
    seen = 0
    pid = os.getpid()
    counted = tuple(str(PACKAGE / file) for file in files)

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


@pytest.mark.slow
@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", "shmem-fork-caller"])
def test_a_step_of_all_envs_may_be_interrupted_at_any_line(place: str, as_list: bool) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]
    actions = np.array([5, 6, 7], dtype=np.int64)
    given: Any = actions.tolist() if as_list else actions
    with reset_pool(place, fns, autoreset_mode="same_step") as pool:
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


PARTS = 6  # of the lines: each case is short, on a busy machine too


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_a_constructor_that_is_interrupted_at_any_line_leaves_nothing(first: int) -> None:
    # The fixture of all tests sees what is left.
    fns = [functools.partial(envs.CountEnv, tag) for tag in range(2)]
    files = ("pool.py", "engine.py", "assembly.py", "worker/placement.py", "worker/processes.py")
    made: list[BaseVectorEnv] = []

    def make() -> None:
        made.append(PLACES["shmem-fork"](fns, autoreset_mode="same_step"))

    for number in itertools.count(first, PARTS):
        if not interrupted_at(make, number, files):
            break
        assert not made
    made[0].close()
    assert number > 100, "the tracer has seen hardly a line"


# -------------------------------------------------- while something of the env or the caller runs


class Alarm:
    """Sends SIGUSR1 to the calling process once, when it is set off."""

    armed = False
    main = os.getpid()

    @classmethod
    def ring(cls) -> None:
        if cls.armed and os.getpid() == cls.main:
            cls.armed = False
            signal.raise_signal(signal.SIGUSR1)


class AlarmingValue:
    """A value that sends the signal when it is copied or pickled."""

    def __reduce__(self) -> Any:
        Alarm.ring()
        return AlarmingValue, ()


class AlarmingArray:
    """An observation that becomes an array in ``__array__``, where it sends the signal."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        Alarm.ring()
        return np.array(self.values, dtype=dtype)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: Any) -> Any:
        Alarm.ring()
        return self.values[place]


def alarming(name: str) -> Any:
    """Return the method of dict of that name; it sends the signal first."""

    def method(self: dict, *args: Any) -> Any:
        Alarm.ring()
        return getattr(dict, name)(self, *args)

    return method


READS = ("__iter__", "__getitem__", "__contains__", "__len__", "keys", "values", "items", "get")
AlarmingInfo = type("AlarmingInfo", (dict,), {name: alarming(name) for name in READS})


class AlarmingBox(spaces.Box):
    """A space that sends the signal when it is asked what it contains."""

    def contains(self, x: Any) -> bool:
        Alarm.ring()
        return super().contains(x)


CARRIERS: dict[str, Callable[[np.ndarray, dict], tuple]] = {
    "observation": lambda obs, info: (AlarmingArray(obs), {}),  # noqa: ARG005
    "observation beside info": lambda obs, info: (AlarmingArray(obs), info),
    "part of observation": lambda obs, info: ({"counts": AlarmingArray(obs), "text": "a"}, info),
    "info": lambda obs, info: (obs, AlarmingInfo(info)),
    "value in info": lambda obs, info: (obs, {**info, "value": AlarmingValue()}),
    "space": lambda obs, info: (obs, info),
}


class AlarmingEnv(envs.CountEnv):
    """Returns rows that send the signal while the package checks and stores them."""

    def __init__(self, tag: int, carrier: str) -> None:
        super().__init__(tag, length=3)
        self.carrier = carrier
        if carrier == "part of observation":
            parts = {"counts": self.observation_space, "text": spaces.Text(3)}
            self.observation_space = spaces.Dict(parts)
        if carrier == "space":
            self.observation_space = AlarmingBox(-1, 10**6, (3,), np.int64)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        return CARRIERS[self.carrier](*super().reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        del info["action"]
        obs, info = CARRIERS[self.carrier](obs, info)
        return obs, reward, terminated, truncated, info


def counts_of(obs: Any) -> list[int]:
    """Return the step of each row."""
    return [int((row["counts"] if isinstance(row, dict) else row)[2]) for row in obs]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("place", IN_CALLER)
def test_what_a_signal_handler_raises_while_a_row_is_stored_passes_through(
    place: str, carrier: str
) -> None:
    """Finding 11: such an error is neither swallowed nor taken for one of the env."""
    fns = [functools.partial(AlarmingEnv, tag, carrier) for tag in range(3)]
    options = {"autoreset_mode": "same_step", "validate": "always"}
    with PLACES[place](fns, **options) as pool:
        for kind in (TypeError, ValueError, LookupError, NotImplementedError):
            error = kind("of the handler")
            for steps in (0, 1, 2):  # then comes a reset, a step, the end of an episode
                pool.reset()
                for _ in range(steps):
                    pool.step([0] * 3)
                Alarm.armed = True
                with handling(signal.SIGUSR1, raising(error)), pytest.raises(kind) as caught:
                    pool.step([0] * 3) if steps else pool.reset()
                assert not Alarm.armed
                assert caught.value is error
                assert counts_of(pool.reset()[0]) == [0] * 3
                assert counts_of(pool.step([0] * 3)[0]) == [1] * 3


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_exception_of_a_handler_is_not_taken_for_one_of_pickling(place: str) -> None:
    error = TimeoutError("enough")
    with PLACES[place]([functools.partial(envs.SpaceEnv, 0, "text", 9)] * 2) as pool:
        Alarm.armed = True
        with handling(signal.SIGUSR1, raising(error)), pytest.raises(TimeoutError) as caught:
            pool.reset(options={"alarm": AlarmingValue()})
        assert caught.value is error
        pool.reset()


# -------------------------------------------------------------- finding 23: while an env waits

BACKOFF = 20.0
WAITING: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "reset": lambda pool: pool.reset([1]),
    "recv": lambda pool: pool.send_reset([1]) or pool.recv(),
    "get_env_attr": lambda pool: pool.get_env_attr("tag", [1]),
}


@contextlib.contextmanager
def pool_in_back_off(place: str) -> Iterator[BaseVectorEnv]:
    """Make a pool whose env 1 is to be restarted a second time, in 20 seconds."""
    with reset_pool(place, on_error="restart", restart_backoff=BACKOFF) as pool:
        assert pool.step(["", "value", ""])[3].tolist() == [False, True, False]
        pool.reset([1])
        assert pool.step(["", "value", ""])[3].tolist() == [False, True, False]
        begun = time.monotonic()
        yield pool
        assert time.monotonic() - begun < BACKOFF, "it has waited for the back-off to end"


@pytest.mark.parametrize("by", ["thread", "handler", "ctrl-c"])
@pytest.mark.parametrize(
    ("place", "name"),
    [("dummy", "reset"), ("dummy", "recv"), *(("shmem-fork-packed", name) for name in WAITING)],
)
def test_a_back_off_ends_at_once(place: str, name: str, by: str, beside: Callable) -> None:
    """Finding 23: by close() of another thread or of a signal handler, and by Ctrl-C."""

    def close() -> None:
        wait_until_blocked(threading.main_thread())
        pool.close()

    error = KeyboardInterrupt if by == "ctrl-c" else ClosedEnvironmentError
    handler = raising(KeyboardInterrupt()) if by == "ctrl-c" else lambda *_: pool.close()
    with pool_in_back_off(place) as pool, handling(signal.SIGUSR1, handler):
        beside(close if by == "thread" else signalling())
        with pytest.raises(error):
            WAITING[name](pool)
        if by == "ctrl-c":
            assert pool.step(["", ""], [0, 2])[0][:, 2].tolist() == [3, 3]


# ------------------------------------------------------------------- finding 28: one call at a time

SECOND: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "step": lambda pool: pool.step([0], [0]),
    "step(None)": lambda pool: pool.step(None),
    "send": lambda pool: pool.send([0], [0]),
    "recv": lambda pool: pool.recv(),
    "drain": lambda pool: pool.drain(),
    "reset": lambda pool: pool.reset([0]),
    "send_reset": lambda pool: pool.send_reset([0]),
    "cancel": lambda pool: pool.cancel(),
    "get_env_attr": lambda pool: pool.get_env_attr("tag", [0]),
    "call": lambda pool: pool.call("counts", id=[0]),
    "restart": lambda pool: pool.restart([0]),
}


@pytest.mark.parametrize("by", ["thread", "handler"])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork", *slow("shmem-fork-caller")])
def test_a_second_call_is_refused(
    place: str, by: str, gates: list[envs.Gate], beside: Callable
) -> None:
    refused: list[str] = []

    def call(*_: object) -> None:
        for name, act in () if refused else SECOND.items():
            try:
                act(pool)
            except AlreadyPendingCallError:
                refused.append(name)

    def interfere() -> None:
        with gates[1].held():
            if by == "thread":
                call()
            while not refused:  # one signal may come just before a call blocks
                signal.pthread_kill(main, signal.SIGUSR1)
                wait_until(lambda: bool(refused), 0.05)

    main = threading.get_ident()
    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]
    with reset_pool(place, fns) as pool, handling(signal.SIGUSR1, call):
        helper = beside(interfere)
        batch = pool.step([envs.BLOCK], [1])
        helper.finish()
        assert refused == list(SECOND)
        assert batch[0].tolist() == [[1, 0, 1]]
        assert [info["env_id"] for info in batch[4]] == [1]
        assert pool.call("counts") == [(0, 1), (1, 1), (0, 1)]
        assert pool.step([0] * 3)[0][:, 2].tolist() == [1, 2, 1]
