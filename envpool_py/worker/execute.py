"""Carry out one request on one env: beside ``runner`` the only code that touches a user's env.

Used by every backend: in this process, in a worker process, in a Ray actor.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.error import ClosedEnvironmentError

from envpool_py import checks, seeding, spaces
from envpool_py.rows import FinalInfo, ResetInfo, Row
from envpool_py.worker.base import Request
from envpool_py.worker.meter import EnvMeter
from envpool_py.worker.past import Layouts, Past, play

#: From (env_id, episode) to the (seed, options) of that reset.
ResetFn = Callable[[int, int], tuple[int | None, dict[str, Any] | None]]

NEXT_STEP = "next_step"
SAME_STEP = "same_step"

#: The key under which an info tells, where it is asked to, what ``reset_fn`` has returned.
ASKED = "envpool_py: asked of reset_fn"


class EnvFacts(NamedTuple):
    """What a pool must know of an env before its first reset."""

    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    reward_shape: tuple[int, ...]


class Executor:
    """One env, and what is to be remembered of it between two requests.

    Calling it with a ``Request`` carries that out and returns the reply.

    Args:
        env_fn: makes the env; called at once.

    Raises:
        TypeError: ``env_fn`` returned no env.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env_fn = env_fn
        self._closed = False
        #: Called with what is strange about a row that is taken all the same.
        self.complain: Callable[[str], object] = _warn
        self._validate = checks.FIRST
        # Whether the next reset, and the next step, are to be looked at.
        self._check_reset = self._check_step = True
        #: Whether the next step is nothing but the env's own, and ``finish``; once the row of the
        #: last one is kept.
        self.quick = False
        self._make()
        # The last row of the episode that the step just done has ended, in same_step mode, until
        # the row of that step is kept.
        self._ended: Row | None = None
        # What the next step does in place of a step: an automatic reset, or raise the error of one.
        self._before_step: Callable[[], Row] | None = None
        self._autoreset: str | None = None
        self._env_id = 0
        self._root: int | None = None
        self._reset_fn: ResetFn | None = None
        self._episode = -1
        self._in_reset = False  # an automatic one
        self._meter: EnvMeter | None = None
        # (episode, seed, options) of the calls of reset_fn still to be told; None: nobody asks.
        self._asked: list[tuple[int, int | None, Any]] | None = None

    def __call__(self, request: Request) -> Any:
        """Carry out any request."""
        return getattr(self, request.kind)(*request.args, **request.kwargs)

    def _make(self) -> None:
        env = self._env_fn()
        missing = [name for name in ("reset", "step") if not callable(getattr(env, name, None))]
        if missing:
            raise TypeError(
                f"env_fn returned {type(env).__name__}, which has no {' and no '.join(missing)};"
                " it must return an environment"
            )
        if callable(getattr(type(env), "observation_space", None)):  # PettingZoo's is a method
            space = env.observation_space
            if callable(space) and not hasattr(space, "sample"):
                raise TypeError(
                    f"env_fn returned {type(env).__name__}, whose observation_space is a method;"
                    " a PettingZoo env goes into PettingZooEnv, or into a ParallelVectorEnv"
                )
        self.env = env

    def rebuild(self) -> None:
        """Close the env, whatever state it is in, and make a new one by its ``env_fn``."""
        with contextlib.suppress(Exception):
            self.close()
        self._make()
        self._closed = False
        self._before_step = None
        self._in_reset = False
        self.quick = False

    def measure(self, meter: EnvMeter) -> None:
        """Say to ``meter`` from now on what the env does and how long it takes."""
        self._meter = meter
        take_step = self.step

        def step(action: Any) -> Row:
            if self._before_step is not None:  # that is a reset, which is measured by itself
                return take_step(action)
            resets, begun = meter.reset_ns, meter.now()
            try:
                return take_step(action)
            finally:
                meter.note_step(meter.now() - begun - (meter.reset_ns - resets))

        self.step = step  # type: ignore[method-assign] # nothing is asked where nothing is measured

    def failing(self, kind: str) -> str:
        """What it was that raised just now, in a request of this kind: maybe an automatic reset."""
        return "reset" if kind == "step" and self._in_reset else kind

    def configure(
        self,
        *,
        env_id: int = 0,
        autoreset_mode: str | None = None,
        root: int | None = None,
        reset_fn: ResetFn | None = None,
        episode: int = -1,
        validate: str = checks.FIRST,
        tell_asked: bool = False,
    ) -> None:
        """Take the options of the pool.

        Args:
            env_id: the env's place in the pool.
            autoreset_mode: None, ``"next_step"`` or ``"same_step"``.
            root: the seed from which every episode is seeded; None leaves it to the env's stream.
            reset_fn: gives seed and options of every reset that was not given its own.
            episode: the number of the last episode; -1 before the first.
            validate: which rows are looked at: ``"first"``, ``"always"`` or ``"off"``.
            tell_asked: have the infos of resets tell what ``reset_fn`` returned.
        """
        self._asked = [] if tell_asked else None
        self._env_id = env_id
        self._autoreset = autoreset_mode
        self._root = root
        self._reset_fn = reset_fn
        self._episode = episode
        self._validate = validate
        self.quick = False
        if validate != checks.FIRST:
            self._check_reset = self._check_step = validate == checks.ALWAYS

    def facts(self) -> EnvFacts:
        """The env's spaces, each None where it has none, and the shape of its reward."""
        return EnvFacts(
            getattr(self.env, "observation_space", None),
            getattr(self.env, "action_space", None),
            reward_shape(_lookup(self.env, "reward_space", None)),
        )

    def step(self, action: Any) -> Row:
        """Step the env, and reset it where the autoreset mode says so."""
        if self._closed:
            raise ClosedEnvironmentError("step: the env is closed")
        if self._before_step is not None:
            return self._before_step()
        self._ended = None
        # Looked up each time: an env may rebind its step.
        row: Row = self._checked_step(action) if self._check_step else self.env.step(action)
        self.quick = self._is_quick()
        return self.finish(row)

    def _is_quick(self) -> bool:
        return not self._check_step and self._meter is None

    def finish(self, row: Row) -> Row:
        """The row of a step, from what the env's own step returned; resets the env where due."""
        if type(row) is not tuple or len(row) != 5:
            row = _checked_row(row)
        info = row[4]
        if type(info) is not dict and not isinstance(info, dict):
            raise TypeError(f"step() must return an info dict, got {_named(info)}")
        # Where nothing has ended and the info is empty, which is most often, no more is asked.
        if self._autoreset is not None and (row[2] or row[3] or info) and _has_ended(row):
            if self._autoreset == SAME_STEP:
                return self._same_step(row)
            self.note_end()
        return row

    def note_end(self) -> None:
        """The episode is over; in next_step mode the next step resets the env."""
        if self._autoreset == NEXT_STEP:
            self._before_step = self._next_step
            self.quick = False

    def begin_episode(self) -> tuple[Any, dict[str, Any]]:
        """Reset the env as an automatic reset does."""
        obs, info = self._reset(None, None, {})
        return obs, self._with_asked(info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env; arguments that are None are not passed on."""
        obs, info = self._reset(seed, options, kwargs)
        return obs, self._with_asked(info)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the env: by its own ``seed`` method if it has one, and by a reset in any case."""
        own = _lookup(self.env, "seed", None)
        if callable(own):
            own(seed)
        # Such an env's reset may not take a seed, but every episode has its own under a root.
        if callable(own) and self._root is None:
            self._reset(None, None, {})
        else:
            self._reset(seed, None, {})
        return [seed]

    def get_attr(self, name: str) -> Any:
        """The attribute of the outermost layer that has it."""
        return _lookup(self.env, name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set the attribute on the outermost layer that has it, else on the base env."""
        layers = _layers(self.env)
        target = next((layer for layer in layers if _has(layer, name)), layers[-1])
        setattr(target, name, value)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the method of the outermost layer that has it."""
        return _lookup(self.env, method)(*args, **kwargs)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``function(env, *args, **kwargs)`` returns, called where the env is."""
        return function(self.env, *args, **kwargs)

    def replay(
        self,
        past: Past,
        layouts: Layouts,
        carry_out: Callable[[Request], Any] | None = None,
    ) -> str | None:
        """Bring the env, just made, to where another was; see ``envpool_py.worker.past.play``."""
        return play(past, layouts, carry_out or self)

    def render(self, **kwargs: Any) -> Any:
        """What the env's ``render`` returns."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the env; a second call does nothing."""
        if not self._closed:
            self._closed = True
            close = getattr(self.env, "close", None)
            if close is not None:
                close()

    def _reset(
        self, seed: int | None, options: dict[str, Any] | None, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        episode = self._episode + 1
        if self._root is not None:
            if seed is not None:
                self._root, episode = seed, 0
            seed = seeding.of_episode(self._root, episode)
        if self._reset_fn is not None and seed is None and options is None:
            seed, options = self._reset_fn(self._env_id, episode)
            seed = None if seed is None else operator.index(seed)
            if self._asked is not None:
                self._asked.append((episode, seed, spaces.snapshot(options)))
        if seed is not None:
            kwargs = {"seed": seed, **kwargs}
        if options is not None:
            kwargs = {"options": options, **kwargs}
        begun = 0 if self._meter is None else self._meter.now()
        result = self.env.reset(**kwargs)
        if self._meter is not None:
            self._meter.note_reset(self._meter.now() - begun)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"reset() must return (obs, info), got {_named(result)}")
        obs, info = result
        if not isinstance(info, dict):
            raise TypeError(f"reset() must return (obs, info dict), got info {_named(info)}")
        if self._check_reset:
            self._check_reset = self._validate == checks.ALWAYS
            self._check(obs, None)
        self._episode = episode
        self._before_step = None
        self._in_reset = False
        return obs, info

    def _checked_step(self, action: Any) -> Any:
        result = self.env.step(action)
        if self._validate == checks.FIRST:
            self._check_step = False
        if isinstance(result, (tuple, list)) and len(result) == 5:
            self._check(result[0], result[1])
        return result

    def _check(self, obs: Any, reward: Any) -> None:
        space = getattr(self.env, "observation_space", None)
        text = checks.complaint(space, obs) if isinstance(space, gym.Space) else None
        text = text or checks.reward_complaint(reward)
        if text is None:
            return
        if self._validate == checks.ALWAYS:
            raise ValueError(text)
        self.complain(text)

    def _same_step(self, ended: Row) -> Row:
        last, reward, terminated, truncated, final_info = ended
        # The env may reuse its buffers for the reset.
        last, final_info = spaces.snapshot(last), spaces.snapshot(final_info)
        self._ended = (last, reward, terminated, truncated, final_info)
        try:
            obs, info = self.begin_episode()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - raised with the next request
            return self._put_off(error)
        told = FinalInfo(info, final_obs=last, final_info=final_info)
        return obs, reward, terminated, truncated, told

    def note_ended(self, row: Row) -> None:
        """The last row of the episode before the one that has begun, until that row is kept."""
        self._ended = row

    def note_kept(self) -> None:
        """The row of the last step is where it will be handed on from."""
        self._ended = None

    def ended_row(self, error: BaseException) -> Row | None:
        """The row of the episode's end, where the row of its automatic reset can't be handed on.

        Args:
            error: why not; the next request will raise it.

        Returns:
            None where the last row was not of an automatic reset, or has been kept.
        """
        return None if self._ended is None else self._put_off(error)

    def check_fits(self, obs: Any) -> None:
        """Raise unless ``obs`` has the shapes and dtypes of the env's observation space.

        Raises:
            TypeError, ValueError: it has not.
        """
        space = getattr(self.env, "observation_space", None)
        if isinstance(space, gym.Space):
            spaces.fit_tree(spaces.layout_of(space), obs, "obs", "observation_space")

    def _put_off(self, error: BaseException) -> Row:
        """The ended row comes first, whole; the error of the reset with the next request."""

        def raise_late() -> Row:
            self._before_step = None
            self._in_reset = True
            raise error

        self._before_step = raise_late
        self.quick = False
        row, self._ended = self._ended, None
        assert row is not None  # noqa: S101 - both callers have seen to it
        last, reward, terminated, truncated, info = row
        told = FinalInfo(final_obs=last, final_info=info)
        return last, reward, terminated, truncated, told

    def take_due_reset(self) -> tuple[Any, dict[str, Any]] | None:
        """Carry out the automatic reset that stands in place of the next step, where one does."""
        if self._closed or self._before_step != self._next_step:
            return None
        self._in_reset = True
        first = self.begin_episode()
        self.quick = self._is_quick()
        return first

    def _next_step(self) -> Row:
        first = self.take_due_reset()
        assert first is not None  # noqa: S101 - this is what stands there
        return row_of_reset(*first)

    def _with_asked(self, info: dict[str, Any]) -> dict[str, Any]:
        if not self._asked:
            return info
        info = {**info, ASKED: self._asked}
        self._asked = []
        return info


def _has_ended(row: Row) -> bool:
    """Whether the episode is over; of a turn-based env one agent's flags don't tell."""
    env_done = row[4].get("env_done")
    return bool(row[2] or row[3] if env_done is None else env_done)


def row_of_reset(obs: Any, info: dict[str, Any]) -> Row:
    """The row of an automatic reset that stands in place of a step."""
    return obs, 0.0, False, False, ResetInfo({**info, "is_reset": True})


def reward_shape(space: Any) -> tuple[int, ...]:
    """The shape of the rewards of an env that declares ``space`` for them."""
    return tuple(space.shape) if isinstance(space, gym.spaces.Box) else ()


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


def _checked_row(result: Any) -> Row:
    if isinstance(result, (tuple, list)) and len(result) == 5:
        return tuple(result)
    got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _named(result)
    raise TypeError(f"step() must return (obs, reward, terminated, truncated, info), got {got}")


def _named(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}"


_REQUIRED: Any = object()


def _layers(env: Any) -> list[Any]:
    """The env's wrappers, the outermost first, and the base env."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _has(layer: Any, name: str) -> bool:
    """Whether this very layer has the attribute: a wrapper's forwarding properties do not count."""
    if isinstance(layer, gym.Wrapper):
        return name in vars(layer) or any(
            name in vars(base) for base in type(layer).__mro__ if base not in gym.Wrapper.__mro__
        )
    return hasattr(layer, name)


def _lookup(env: Any, name: str, default: Any = _REQUIRED) -> Any:
    """An attribute of the env with the semantics of ``gymnasium.Env.get_wrapper_attr``."""
    for layer in _layers(env):
        try:
            return getattr(layer, name)
        except AttributeError:
            continue
    if default is not _REQUIRED:
        return default
    raise AttributeError(
        f"neither {type(env).__name__} nor what it wraps has the attribute {name!r}"
    )
