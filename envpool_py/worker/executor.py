"""Carry out any request on one env: with ``row_writer``, the only code that touches a user's env.

Used by every backend: in this process, in a worker process, in a custom worker. The rules of
automatic resets and of the seeds of episodes are here, and nowhere else.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
from gymnasium.error import ClosedEnvironmentError

from envpool_py import checks, seeding, spaces
from envpool_py.errors import from_signal_handler
from envpool_py.schedules import Place
from envpool_py.stats import StepTimes
from envpool_py.watchdog import Heartbeat
from envpool_py.worker.base import Request

#: From (env_id, episode) to the (seed, options) of that reset.
ResetFn = Callable[[int, int], tuple[int | None, dict[str, Any] | None]]
#: (obs, reward, terminated, truncated, info): the reply to a step.
Row: TypeAlias = "tuple[Any, Any, Any, Any, dict[str, Any]]"

NEXT_STEP = "next_step"
SAME_STEP = "same_step"

#: The key under which an info says, where asked to, what ``reset_fn`` has returned.
ASKED = "envpool_py: asked of reset_fn"
#: The attribute by which a turn-based env says that its episode is over for all agents: the flags
#: of a row are those of one agent.
EPISODE_OVER = "_envpool_py_episode_over"


class ResetInfo(dict[str, Any]):
    """The info of a reset's row."""


class FinalInfo(dict[str, Any]):
    """The info of a row that ended an episode and began the next; it has ``final_obs``."""


class EnvSpaces(NamedTuple):
    """What a pool must know of an env before its first reset."""

    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    reward_shape: tuple[int, ...]


class Executor:
    """One env, and what there is to remember of it between two requests.

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
        self.warn: Callable[[str], object] = _warn
        self._validate = checks.FIRST
        # Whether the next reset, and the next step, are to be checked.
        self._check_reset = self._check_step = True
        # What the next step does in place of a step: an automatic reset, or raise the error of one.
        self._pending: Callable[[], Row] | None = None
        self._autoreset: str | None = None
        self._env_id = 0
        self._root: int | None = None
        self._reset_fn: ResetFn | None = None
        self._episode = -1
        self._in_reset = False  # an automatic one
        self._times: StepTimes | None = None
        self._heartbeat: Heartbeat | None = None
        self._over = False
        # (episode, seed, options) of the calls of reset_fn still to be told; None: nobody asks.
        self._asked: list[tuple[int, int | None, Any]] | None = None
        self._make()

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
        self._turns = _turn_based_layer(env)
        self._observed: Any = env

    # ----------------------------------------------------------------------------------- options

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
            validate: which rows are checked: ``"first"``, ``"always"`` or ``"off"``.
            tell_asked: have the infos of resets tell what ``reset_fn`` returned.
        """
        self._asked = [] if tell_asked else None
        self._env_id = env_id
        self._autoreset = autoreset_mode
        self._root = root
        self._reset_fn = reset_fn
        self._episode = episode
        self._validate = validate
        if validate != checks.FIRST:
            self._check_reset = self._check_step = validate == checks.ALWAYS
        self._over = False

    def observe(self, i: int, times: StepTimes | None, heartbeat: Heartbeat | None) -> None:
        """Time the env's steps and resets, and say when they begin.

        Args:
            i: the env's id.
            times: takes the times; None where nothing is measured.
            heartbeat: says that the env is at work; None where nobody looks.
        """
        self._times, self._heartbeat = times, heartbeat
        if times is not None or heartbeat is not None:
            self._observed = _Observed(self.env, i, times, heartbeat)

    @property
    def place(self) -> Place:
        """Where the env is in its schedule of episodes."""
        return self._root, self._episode, self._over

    @property
    def stepper(self) -> Any:
        """The object whose ``step`` takes the next step: the env itself where that is enough."""
        plain = self._pending is None and not (self._check_step or self._closed)
        plain = plain and self._turns is None
        return self._observed if plain else _RawStep(self)

    def env_spaces(self) -> EnvSpaces:
        """The env's spaces, each None where it has none, and the shape of its reward."""
        return EnvSpaces(
            getattr(self.env, "observation_space", None),
            getattr(self.env, "action_space", None),
            reward_shape(_lookup(self.env, "reward_space", None)),
        )

    def failing(self, kind: str) -> str:
        """What it was that raised just now, in a request of this kind: maybe an automatic reset."""
        return "reset" if kind == "step" and self._in_reset else kind

    # -------------------------------------------------------------------------------------- step

    def step(self, action: Any) -> Row:
        """Step the env, and reset it where the autoreset mode says so."""
        row: Row = self.raw_step(action)
        if type(row[4]) is ResetInfo:
            row[4]["is_reset"] = True
            return row
        return self.finish(row)

    def raw_step(self, action: Any) -> Any:
        """What the env's own ``step`` returns, or the row of an automatic reset in its place."""
        if self._closed:
            raise ClosedEnvironmentError("step: the env is closed")
        if self._pending is not None:
            return self._pending()
        result = self._observed.step(action)
        if self._check_step:
            self._check_step = self._validate == checks.ALWAYS
            if isinstance(result, (tuple, list)) and len(result) == 5:
                self._check(result[0], result[1])
        # No plain tuple: such a row goes through `finish`, after which this may not be needed.
        return list(result) if type(result) is tuple else result

    def finish(self, row: Any, keep: Callable[[int, Any], Any] | None = None, i: int = 0) -> Row:
        """The row of a step, from what the env's own step returned; resets the env where due.

        Args:
            row: what the env returned.
            keep: ``keep(i, obs)`` keeps the observation that ends an episode before the env, which
                may use its memory again, is reset. Its result is in ``final_obs``; None: a copy.
            i: for ``keep``.
        """
        if type(row) is not tuple or len(row) != 5:
            row = checked_row(row)
        obs, reward, terminated, truncated, info = row
        if not isinstance(info, dict):
            raise TypeError(f"step() must return an info dict, got {_named(info)}")
        over = bool(terminated or truncated)
        if self._turns is not None:
            over = bool(getattr(self._turns, EPISODE_OVER))
        if not over:
            return row  # type: ignore[no-any-return] # it was checked above
        self._over = True
        if self._autoreset == NEXT_STEP:
            self._pending = self._next_step
        if self._autoreset != SAME_STEP:
            return row  # type: ignore[no-any-return] # likewise
        last = spaces.snapshot(obs) if keep is None else keep(i, obs)
        ended = (last, reward, terminated, truncated, spaces.snapshot(info) if info else {})
        try:
            first, begun = self._reset(None, None, {})
            if self._asked:
                begun = self._with_asked(begun)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if from_signal_handler(error):
                raise
            return self.postpone(error, ended)
        begun = FinalInfo(begun, final_obs=ended[0], final_info=ended[4])
        return first, reward, terminated, truncated, begun

    def postpone(self, error: BaseException, ended: Row) -> Row:
        """The row of an episode's end, whole, where its automatic reset failed.

        Args:
            error: of the reset; the next step raises it.
            ended: the last row of the episode.
        """

        def raise_late() -> Row:
            self._pending = None
            self._in_reset = True
            raise error

        self._pending = raise_late
        last, reward, terminated, truncated, info = ended
        told = FinalInfo(final_obs=last, final_info=info)
        return last, reward, terminated, truncated, told

    def _next_step(self) -> Row:
        """An automatic reset in place of a step."""
        self._in_reset = True
        obs, info = self.reset()
        return obs, 0.0, False, False, ResetInfo(info)

    # ------------------------------------------------------------------------------------- reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env; arguments that are None are not passed on."""
        obs, info = self._reset(seed, options, kwargs)
        return obs, self._with_asked(info) if self._asked else info

    def _with_asked(self, info: dict[str, Any]) -> dict[str, Any]:
        info = {**info, ASKED: self._asked}
        self._asked = []
        return info

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the env: by its own ``seed`` method if it has one, and by a reset in any case."""
        own = _lookup(self.env, "seed", None)
        if callable(own):
            own(seed)
        # Such an env's reset may not take a seed, but every episode has its own under a root.
        self._reset(None if callable(own) and self._root is None else seed, None, {})
        return [seed]

    def _reset(
        self, seed: int | None, options: dict[str, Any] | None, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        root, episode = self._root, self._episode + 1
        if root is not None:
            if seed is not None:
                root, episode = seed, 0
            seed = seeding.of_episode(root, episode)
        if self._reset_fn is not None and seed is None and options is None:
            seed, options = self._reset_fn(self._env_id, episode)
            seed = None if seed is None else operator.index(seed)
            if self._asked is not None:
                self._asked.append((episode, seed, spaces.snapshot(options)))
        if seed is not None:
            kwargs = {"seed": seed, **kwargs}
        if options is not None:
            kwargs = {"options": options, **kwargs}
        begun = 0 if self._times is None else self._times.now()
        try:
            result = self.env.reset(**kwargs)
        except BaseException as error:
            # In a worker process the reset would have gone on: it has reached the env, and counts.
            if isinstance(error, KeyboardInterrupt) or from_signal_handler(error):
                self._root, self._episode, self._over = root, episode, False
            raise
        if self._times is not None:
            self._times.note_reset(self._times.now() - begun)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"reset() must return (obs, info), got {_named(result)}")
        obs, info = result
        if not isinstance(info, dict):
            raise TypeError(f"reset() must return (obs, info dict), got info {_named(info)}")
        if self._check_reset:
            self._check_reset = self._validate == checks.ALWAYS
            self._check(obs, None)
        self._root, self._episode, self._over = root, episode, False
        self._pending = None
        self._in_reset = False
        return obs, info

    def _check(self, obs: Any, reward: Any) -> None:
        space = getattr(self.env, "observation_space", None)
        text = checks.complaint(space, obs) if isinstance(space, gym.Space) else None
        text = text or checks.reward_complaint(reward)
        if text is None:
            return
        if self._validate == checks.ALWAYS:
            raise ValueError(text)
        self.warn(text)

    # ---------------------------------------------------------------------- requests without rows

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

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(carry_out, *args)``; ``carry_out(request)`` carries out a request."""
        return function(self._carry_out, *args)

    def _carry_out(self, request: Request) -> Any:
        heartbeat = self._heartbeat
        if heartbeat is None:
            return self(request)
        heartbeat.begin(self._env_id)
        try:
            return self(request)
        finally:
            heartbeat.begin(self._env_id, timed=False)

    def render(self, **kwargs: Any) -> Any:
        """What the env's ``render`` returns."""
        return self.env.render(**kwargs)

    def rebuild(self) -> None:
        """Close the env, whatever state it is in, and make a new one by its ``env_fn``."""
        with contextlib.suppress(Exception):
            self.close()
        self._make()
        self._closed = False
        self._pending = None
        self._in_reset = False

    def close(self) -> None:
        """Close the env; a second call does nothing."""
        if not self._closed:
            self._closed = True
            close = getattr(self.env, "close", None)
            if close is not None:
                close()


class _RawStep:
    """Has the ``step`` of an env the next step of which is more than the env's own."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def step(self, action: Any) -> Any:
        return self._executor.raw_step(action)


class _Observed:
    """Steps an env; says that it is at work, and how long it took."""

    def __init__(
        self, env: Any, i: int, times: StepTimes | None, heartbeat: Heartbeat | None
    ) -> None:
        self._env = env
        self._i = i
        self._times = times
        self._heartbeat = heartbeat

    def step(self, action: Any) -> Any:
        if self._heartbeat is not None:
            self._heartbeat.begin(self._i)
        times = self._times
        if times is None:
            return self._env.step(action)
        begun = times.now()
        try:
            return self._env.step(action)
        finally:
            times.note_step(times.now() - begun)


def reward_shape(space: Any) -> tuple[int, ...]:
    """The shape of the rewards of an env that declares ``space`` for them."""
    return tuple(space.shape) if isinstance(space, gym.spaces.Box) else ()


def checked_row(result: Any) -> Row:
    """What an env's ``step`` returned, as a tuple of five.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(result, (tuple, list)) and len(result) == 5:
        return tuple(result)
    got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _named(result)
    raise TypeError(f"step() must return (obs, reward, terminated, truncated, info), got {got}")


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


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


def _turn_based_layer(env: Any) -> Any:
    """The wrapper or base env that says when the episode is over for all agents; None for none."""
    layer, seen = env, set()
    while layer is not None and not hasattr(type(layer), EPISODE_OVER):
        seen.add(id(layer))
        # Not by its __dict__: who has looked at that once makes every attribute slower.
        try:
            layer = getattr(layer, "env", None)
        except Exception:  # noqa: BLE001 - a user's property may raise anything
            return None
        if id(layer) in seen:
            return None
    return layer


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
