"""The envs of the tests: small, importable by name, and made so that a wrong row shows itself.

Whatever an env returns says which env, episode and step it belongs to, so a stale, crossed or
overwritten reply cannot pass for the right one. Envs that block do so at a `Gate`, so races are
made to happen and never waited for.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import signal
import sys
import threading
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces

# ---------------------------------------------------------------------------------- counting


class CountEnv(gym.Env):
    """Observes (tag, episode, step); its episodes end after `length` steps.

    Even episodes are terminated, odd ones truncated. Infos tell what the env was given.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, tag=0, length=4, render_mode=None):
        self.observation_space = spaces.Box(-1, 10**6, (3,), np.int64)
        self.action_space = spaces.Discrete(100)
        self.render_mode = render_mode
        self.tag, self.length = tag, length
        self.episode, self.t = -1, 0
        self.steps, self.resets = 0, 0

    def observe(self):
        return np.array([self.tag, self.episode, self.t])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.resets += 1
        told = {"seed": seed, "options": copy.deepcopy(options)}
        return self.observe(), {"tag": self.tag, "episode": self.episode, "step": 0, **told}

    def step(self, action):
        self.t, self.steps = self.t + 1, self.steps + 1
        ended = self.t >= self.length
        odd = self.episode % 2 == 1
        reward = self.tag * 1000.0 + self.episode * 100 + self.t
        info = {"tag": self.tag, "episode": self.episode, "step": self.t}
        info["action"] = copy.deepcopy(action)
        return self.observe(), reward, ended and not odd, ended and odd, info

    def render(self):
        return np.full((2, 2, 3), self.tag, np.uint8)

    # What tests call and read from outside.

    def counts(self):
        return self.steps, self.resets

    def add(self, number, *, times=1):
        return self.tag + number * times

    def pid(self):
        return os.getpid()


class ChangedEnv(CountEnv):
    """A CountEnv whose rows are what functions make of them.

    They are called with the env, the action and the row of a step, or the env and that of a reset.
    """

    def __init__(
        self,
        tag=0,
        length=50,
        *,
        step=lambda env, action, row: row,  # noqa: ARG005
        reset=lambda env, row: row,  # noqa: ARG005
        space=None,
    ):
        super().__init__(tag, length)
        self.on_step, self.on_reset = step, reset
        self.observation_space = space or self.observation_space

    def reset(self, **kwargs):
        return self.on_reset(self, super().reset(**kwargs))

    def step(self, action):
        return self.on_step(self, action, super().step(action))


class StoreEnv(CountEnv):
    """Has attributes to read and to set, one of which cannot leave its process."""

    def __init__(self, tag=0, length=4):
        super().__init__(tag, length)
        self.setting = {"tag": tag}
        self.lock = threading.Lock()

    @property
    def read_only(self):
        return self.tag

    def fail(self, text):
        raise LookupError(text)

    def give_lock(self):
        return self.lock


class RandomEnv(gym.Env):
    """Observations, rewards, infos and the ends of episodes all come from the env's own stream."""

    def __init__(self, tag=0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(4)
        self.tag, self.state = tag, np.zeros(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        scale = 1.0 if options is None else options.get("scale", 1.0)
        self.state = self.np_random.normal(size=3) * scale
        return self.state.copy(), {"coin": int(self.np_random.integers(1000)), "scale": scale}

    def step(self, action):
        self.state = self.state * 0.5 + self.np_random.normal(size=3) + 0.25 * float(action)
        reward = float(self.np_random.normal())
        terminated, truncated = (self.np_random.random(2) < (0.15, 0.1)).tolist()
        info = {"coin": int(self.np_random.integers(1000)), "noise": self.np_random.normal(size=2)}
        return self.state.copy(), reward, terminated, truncated, info

    def counts(self):
        return None


# ------------------------------------------------------------------------------- every space


@dataclasses.dataclass(frozen=True)
class Card:
    """An element of `Cards`: nothing NumPy knows."""

    suit: str
    rank: int


class Cards(spaces.Space):
    """A custom space, without shape or dtype; its attribute `code` means nothing to a pool."""

    def __init__(self, ranks):
        self.ranks, self.code = ranks, "cards"
        super().__init__(None, None)

    def sample(self, mask=None, probability=None):
        del mask, probability
        suit = ("clubs", "hearts")[int(self.np_random.integers(2))]
        return Card(suit, int(self.np_random.integers(self.ranks)))

    def contains(self, x):
        return isinstance(x, Card) and 0 <= x.rank < self.ranks

    def __eq__(self, other):
        return isinstance(other, Cards) and other.ranks == self.ranks

    __hash__ = None


class Pairs(spaces.Space):
    """A custom space whose elements are arrays: Gymnasium knows no shape of it."""

    def __init__(self):
        super().__init__(None, None)

    def sample(self, mask=None, probability=None):
        del mask, probability
        return self.np_random.normal(size=2)

    def contains(self, x):
        return isinstance(x, np.ndarray) and x.shape == (2,)

    def __eq__(self, other):
        return isinstance(other, Pairs)

    __hash__ = None


def box(dtype, shape=(2, 3)):
    """Make a Box that uses the range of its dtype."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return spaces.Box(-1e4, 1e4, shape, kind)
    if kind.kind == "b":
        return spaces.Box(0, 1, shape, kind)
    limits = np.iinfo(kind)
    # Gymnasium draws 64-bit numbers through floats, which the whole range would overflow.
    low, high = max(limits.min, -(2**52)), min(limits.max, 2**52)
    return spaces.Box(low, high, shape, kind)


FLOATS = ("float16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTS, "bool")


def dict_space():
    return spaces.Dict({"image": box("uint8", (2, 2, 1)), "speed": box("float32", (2,))})


def nested_space():
    inner = spaces.Tuple((box("float64", (2,)), spaces.Dict({"flags": spaces.MultiBinary(3)})))
    return spaces.Dict({"b": inner, "a": spaces.MultiDiscrete([3, 4]), "c": dict_space()})


def mixed_space():
    """Leaves of a fixed shape beside leaves that have none."""
    ragged = spaces.Tuple((spaces.Text(6), spaces.Sequence(box("float32", (2,)))))
    return spaces.Dict({"fixed": box("float32", (3,)), "ragged": ragged, "card": Cards(9)})


SPACES = {
    **{f"box-{dtype}": lambda dtype=dtype: box(dtype) for dtype in DTYPES},
    "box-scalar": lambda: box("float32", ()),
    "box-empty": lambda: box("float32", (0, 2)),
    "discrete": lambda: spaces.Discrete(5),
    "discrete-start": lambda: spaces.Discrete(5, start=-3),
    "multi-discrete": lambda: spaces.MultiDiscrete([3, 9, 2]),
    "multi-discrete-2d": lambda: spaces.MultiDiscrete([[3, 9], [2, 4]], start=[[1, 0], [5, -4]]),
    "multi-binary": lambda: spaces.MultiBinary(4),
    "multi-binary-2d": lambda: spaces.MultiBinary((2, 3)),
    "dict": dict_space,
    "tuple": lambda: spaces.Tuple(
        (box("int16", (2,)), spaces.Discrete(7, start=2), box("float16", ()))
    ),
    "nested": nested_space,
    "mixed": mixed_space,
    "every-dtype": lambda: spaces.Dict({dtype: box(dtype) for dtype in DTYPES}),
    "text": lambda: spaces.Text(8),
    "graph": lambda: spaces.Graph(box("float32", (2,)), spaces.Discrete(3)),
    "sequence": lambda: spaces.Sequence(box("float32", (2,))),
    "sequence-stacked": lambda: spaces.Sequence(box("float32", (2,)), stack=True),
    "sequence-of-dicts": lambda: spaces.Sequence(dict_space(), stack=True),
    "one-of": lambda: spaces.OneOf((spaces.Discrete(3), box("float32", (2,)), spaces.Text(4))),
    "custom": lambda: Cards(13),
    "custom-arrays": Pairs,
}
"""Every kind of space gymnasium has, and one it has not."""

KINDS = tuple(name for name in SPACES if name.removeprefix("box-") not in DTYPES[1:])
"""As SPACES, with one box that is an array: every-dtype has the others."""


def draw(space, rng):
    """Draw an element of a space from `rng`; unlike `space.sample`, the space keeps no state."""
    space.seed(int(rng.integers(2**31)))
    return copy.deepcopy(space.sample())


class SpaceEnv(CountEnv):
    """Observes what it draws from a space, and takes actions of the same space.

    What is drawn depends on the seed, tag, episode and step; the infos of `CountEnv` say which.
    """

    def __init__(self, tag, name, length=4):
        super().__init__(tag, length)
        self.observation_space = SPACES[name]()
        self.action_space = SPACES[name]()
        self.source = SPACES[name]()

    def observe(self):
        drawn = int(self.np_random.integers(2**31))
        return draw(self.source, np.random.default_rng([self.tag, self.episode, self.t, drawn]))


class UndeclaredEnv(CountEnv):
    """Declares no spaces; `shape_of` says what it observes."""

    def __init__(self, tag, kind, length=4):
        super().__init__(tag, length)
        del self.observation_space, self.action_space
        self.kind = kind

    def observe(self):
        counts = (self.tag, self.episode, self.t)
        if self.kind == "alike":
            return np.array([*counts, 0.25], np.float32)
        if self.kind == "ragged":
            return np.full(1 + (self.tag + self.t) % 3, self.t, np.int16)
        if self.kind == "ragged-2d":  # equal first axes, which trips a plain np.array
            return np.full((2, 1 + (self.tag + self.t) % 3), self.t, np.int16)
        if self.kind == "card":
            return Card("hearts", self.tag * 100 + self.t)
        if self.kind == "none":
            return None
        return {"text": f"{counts}", "list": [*counts], "array": np.arange(self.t)}


UNDECLARED = ("alike", "ragged", "ragged-2d", "card", "none", "object")


class VectorRewardEnv(CountEnv):
    """Gives each of three agents a reward, as a list or as an array."""

    def __init__(self, tag, length=4, as_list=False):
        super().__init__(tag, length)
        self.reward_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.as_list = as_list

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        rewards = [reward, -reward, 0.5]
        return obs, rewards if self.as_list else np.array(rewards), terminated, truncated, info


# ------------------------------------------------------------------------------- aliasing


class BufferEnv(CountEnv):
    """Writes every observation and info into the same objects."""

    def __init__(self, tag, length=4):
        super().__init__(tag, length)
        self.buffer = np.zeros(3, np.int64)
        self.told = {"array": np.zeros(2, np.int64), "list": [0], "step": 0}

    def observe(self):
        self.buffer[:] = self.tag, self.episode, self.t
        return self.buffer

    def _tell(self):
        assert self.told.keys() == {"array", "list", "step"}, "the pool has changed it"
        self.told["array"][:] = self.episode, self.t
        self.told["list"][0] = self.t
        self.told["step"] = self.t
        return self.told

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        return obs, self._tell()

    def step(self, action):
        *row, _ = super().step(action)
        return *row, self._tell()


# ------------------------------------------------------------------------------- gates


class Gate:
    """A meeting point of the test and one env, by a FIFO: works in any process, however started.

    The env waits in `wait`. The test's `held` returns once the env is there; leaving the block
    lets it go on. Each use of `held` must be followed by taking the env's row before the next.
    """

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(self.path)

    def wait(self):
        """Block until the test has come and gone (called by the env)."""
        with open(self.path, "rb") as fifo:  # noqa: PTH123
            fifo.read()

    @contextlib.contextmanager
    def held(self):
        """Wait for the env to arrive; hold it until the block ends (called by the test)."""
        fifo = os.open(self.path, os.O_WRONLY)
        try:
            yield
        finally:
            os.close(fifo)

    def release(self):
        """Wait for the env to arrive and let it go on."""
        with self.held():
            pass


BLOCK = 1
"""The action at which a GateEnv waits; `options={"block": True}` makes its reset wait."""


class GateEnv(CountEnv):
    """A CountEnv that waits at its gate when asked to."""

    def __init__(self, tag, gate, length=4):
        super().__init__(tag, length)
        self.gate = gate

    def reset(self, *, seed=None, options=None):
        if options and options.get("block"):
            self.gate.wait()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if np.asarray(action).item() == BLOCK:
            self.gate.wait()
        return super().step(action)


# ------------------------------------------------------------------------------- faults


def count_call(path):
    """Note this call in a file; return how many calls there were, in all processes together."""
    with path.open("ab") as file:
        file.write(b"x")
        return file.tell()


class UnpicklableError(Exception):
    """Holds a lock, so that it cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArgumentError(Exception):
    """Pickles, and fails to unpickle: its constructor asks for more than its args hold."""

    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")


class SlotError(ValueError):
    """An ordinary exception with one more attribute."""

    def __init__(self, text, code=5):
        super().__init__(text)
        self.code = code


class EmptyError(ValueError):
    """Is false, because its length is 0."""

    def __len__(self):
        return 0


RAISE = {
    "value": lambda: ValueError("boom"),
    "empty": lambda: EmptyError("boom"),
    "slot": lambda: SlotError("boom", code=9),
    "unpicklable": lambda: UnpicklableError("boom"),
    "two-argument": lambda: TwoArgumentError(1, 2),
    "exit": lambda: SystemExit(37),
    "interrupt": lambda: KeyboardInterrupt("boom"),
    "stop": lambda: StopIteration("boom"),
    "generator-exit": lambda: GeneratorExit("boom"),
    "memory": lambda: MemoryError("boom"),
    "recursion": lambda: RecursionError("boom"),
    "os": lambda: FileNotFoundError(2, "no such file", "boom.txt"),
}
if sys.version_info >= (3, 11):
    RAISE["group"] = lambda: ExceptionGroup("boom", [ValueError("inner")])  # noqa: F821
DIE = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: signal.raise_signal(signal.SIGSEGV),  # in this thread
    "os._exit": lambda: os._exit(37),
}


class FaultEnv(CountEnv):
    """Does as the action, or `options={"fault": ...}` of a reset, says: the key of a fault.

    Actions are strings, so the action space is Text.
    """

    def __init__(self, tag=0, length=50):
        super().__init__(tag, length)
        self.action_space = spaces.Text(20)

    def _fault(self, name):
        if name in RAISE:
            error = RAISE[name]()
            raise error
        if name in DIE:
            DIE[name]()
        while name == "hang":
            signal.pause()  # a signal that is handled, such as that for the stack, ends it
        while name == "loop":  # as "hang", but an exception in its thread ends it
            time.sleep(1e-3)

    def reset(self, *, seed=None, options=None):
        self._fault((options or {}).get("fault", ""))
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._fault(action)
        return super().step(action)

    def fault(self, name):
        self._fault(name)


class ClosingEnv(FaultEnv):
    """Calls a function when it is closed."""

    def __init__(self, tag=0, close=lambda: None):
        super().__init__(tag)
        self.on_close = close

    def close(self):
        self.on_close()


class RaisingEnv(CountEnv):
    """Action 1 raises, 2 kills the process."""

    def step(self, action):
        if action == 1:
            raise KeyError("boom")
        if action == 2:
            DIE["SIGKILL"]()
        return super().step(action)


class FailsToResetEnv(CountEnv):
    """Its second reset, and every later one, raises."""

    def reset(self, *, seed=None, options=None):
        if self.resets:
            raise ValueError("no second episode")
        return super().reset(seed=seed, options=options)


class CloseEnv(CountEnv):
    """Adds a line to a file when it is closed; may raise then."""

    def __init__(self, tag, path, fails=False):
        super().__init__(tag)
        self.path, self.fails = path, fails

    def close(self):
        with open(self.path, "a") as file:  # noqa: PTH123
            file.write(f"{self.tag}\n")
        if self.fails:
            raise RuntimeError(f"env {self.tag} does not want to close")


def raise_in_constructor(text):
    raise ValueError(text)


class LedgerEnv(CountEnv):
    """Observes (tag, episode, step, last action); what Tianshou's buffers can hold.

    Episodes of env `tag` end after `3 + tag` steps.
    """

    def __init__(self, tag, as_dict=False):
        super().__init__(tag, length=3 + tag)
        counts = spaces.Box(-1, 10**6, (4,), np.float32)
        both = spaces.Dict({"counts": counts, "image": spaces.Box(0, 255, (2, 2), np.uint8)})
        self.observation_space = both if as_dict else counts
        self.action_space = spaces.Discrete(7)
        self.as_dict, self.action = as_dict, -1

    def observe(self):
        counts = np.array([self.tag, self.episode, self.t, self.action], np.float32)
        image = np.full((2, 2), self.t % 256, np.uint8)
        return {"counts": counts, "image": image} if self.as_dict else counts

    def reset(self, **kwargs):
        self.action = -1
        return super().reset(**kwargs)[0], {"place": self.tag * 100.0}

    def step(self, action):
        self.action = int(action)
        obs, _, *flags, _ = super().step(action)
        place = self.tag * 100.0 + self.t
        return obs, place + 0.25 * self.action, *flags, {"place": place}


class SharingEnv(gym.Env):
    """Counts its steps in its class, as old simulators do: a second env disturbs the first."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = None
    t = 0

    def __init__(self):
        self.observation_space = spaces.Box(0, 1000, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        SharingEnv.t = 0
        self.start = self.np_random.random()
        return np.array([self.start], np.float32), {}

    def step(self, action):
        del action
        SharingEnv.t += 1
        return np.array([self.start + self.t], np.float32), 1.0, self.t >= 30, False, {}


class OnceEnv(SharingEnv):
    """Starts once in a process."""

    started = False

    def __init__(self):
        super().__init__()
        if OnceEnv.started:
            raise RuntimeError("already started")
        OnceEnv.started = True


class DiesTwiceEnv(OnceEnv):
    """Ends its process when it is started there again."""

    def __init__(self):
        try:
            super().__init__()
        except RuntimeError:
            os._exit(3)
