"""Carry out any request on one env.

Every backend uses this module. In a pool only this module and ``step_loop`` call a user's env; only
this module chooses automatic resets and the seeds of episodes.
"""

from __future__ import annotations

import operator
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import seeding
from envpool_py.env import coroutine_envs, spaces, wrapper_layers
from envpool_py.env import validation as checks
from envpool_py.env.block import Position
from envpool_py.env.end_forked_copies import FORK_COUNT, EndingCopies, end_copy
from envpool_py.env.failures import describe, place_of
from envpool_py.env.heartbeat import CLOSING, MAKING, Heartbeat
from envpool_py.env.request import KINDS, Request
from envpool_py.env.step_times import RESET_NS, RESETS, note_step
from envpool_py.errors import warn
from envpool_py.interrupts import is_interrupt, ordinary, suppressed
from envpool_py.options import ALWAYS, NEXT_STEP, OFF, SAME_STEP, EnvOptions

#: (obs, reward, terminated, truncated, info): the reply to a step.
Row: TypeAlias = "tuple[Any, Any, Any, Any, dict[str, Any]]"


class Abandoned(KeyboardInterrupt):
    """Raised in a thread that the pool has abandoned, to end it."""


class ResetInfo(dict[str, Any]):
    """The info of a reset's row."""


class FinalInfo(dict[str, Any]):
    """The info of a row that ended an episode; it has ``final_obs`` and ``final_info``, too."""


class Recreated:
    """The ``env_fn`` of an env that is recreated: files of the env before it are continued."""

    #: ``is_making``: whether such an ``env_fn`` runs in this thread.
    _thread_local = threading.local()

    def __init__(self, env_fn: Any) -> None:
        self.env_fn = env_fn

    def __call__(self) -> Any:
        self._thread_local.is_making = True
        try:
            return self.env_fn()
        finally:
            self._thread_local.is_making = False

    @classmethod
    def is_being_made(cls) -> bool:
        return getattr(cls._thread_local, "is_making", False)


class RecycleDue(Exception):  # noqa: N818 - no error
    """Raised in place of recreating an env that is due, so that the caller does, elsewhere."""


class EnvSpaces(NamedTuple):
    """The spaces of an env, None if it has none, and the shape of its reward."""

    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    reward_shape: tuple[int, ...]


class Executor:
    """Makes an env by ``env_fn``; a call with a ``Request`` carries it out, returning the reply."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._env_fn = env_fn
        #: Called with kind and text of each warning about a row.
        self.warn: Callable[[str, str], object] = lambda _, text: warn(f"env {self.env_id}: {text}")
        #: Called with the observation that ends an episode before the reset, which may overwrite
        #: it; returns what ``final_obs`` is in the info of the row.
        self.save_final_obs: Callable[[Any], Any] = spaces.snapshot
        #: What is still to check: the row of a reset, of a step, of a step after the end of an
        #: episode, a flag that is None, and a cast that loses digits.
        self.to_check = {checks.ON_RESET, checks.ON_STEP, checks.AFTER_END, checks.FLAG}
        self.to_check.add(checks.CAST)
        #: The call that a request has made in addition, and that has not returned: "reset" or
        #: "env_fn". If the request fails, it is what has raised.
        self.inner_call = ""
        #: The row of the env, see ``step_times``; None: nothing is measured.
        self.times: Any = None
        self.heartbeat = Heartbeat()
        self.env_id = 0
        self._make()
        #: Those of its first env; the next ones must have the same.
        self.spaces = self.env_spaces()
        self.configure()

    def _make(self) -> None:
        with EndingCopies():
            runner, env_fn = coroutine_envs.current(), self._env_fn
            env = coroutine_envs.adapted(runner.call_in_new_thread(env_fn) if runner else env_fn())
            if runner and not coroutine_envs.belongs_in_loop(env):
                raise TypeError("reset and step are no coroutine functions, as they were before")
        if self._env_fn is _refuse:  # by another thread, or by a signal handler during ``env_fn``
            with suppressed():
                env.close()
            raise ClosedEnvironmentError("the pool was closed while an env was recreated")
        what = f"env_fn returned {type(env).__name__}"
        missing = [name for name in ("reset", "step") if not callable(getattr(env, name, None))]
        if missing:
            text = f"which has no {' and no '.join(missing)}; it must return an environment"
            raise TypeError(f"{what}, {text}")
        space = getattr(env, "observation_space", None)
        if callable(space) and not hasattr(space, "sample"):  # PettingZoo's is a method
            hint = "a PettingZoo env goes into PettingZooEnv, or into a ParallelVectorEnv"
            raise TypeError(f"{what}, whose observation_space is a method; {hint}")
        self.env: Any = env
        self._turn_layer = wrapper_layers.turn_based_layer(env)
        self._closed = False
        # Called in place of the next step: an automatic reset, or raising the error of one.
        self._pending: Callable[[], Row] | None = None
        self._num_resets = 0
        self._no_autoreset = False  # whether no automatic reset follows the end of this episode

    def __call__(self, request: Request) -> Any:
        kind = KINDS[request.kind]
        if not kind.has_row:
            has_failed = self._closed and self._is_recreated and self._pending is None  # the env_fn
            if has_failed and not kind.sets_up:
                self._recreate()
            method = getattr(self, request.kind)
            with EndingCopies():
                return coroutine_envs.run(method(*request.args, **request.kwargs))
        row = self.row_of(request)
        if request.kind == "seed":
            return [*request.args, *request.kwargs.values()]
        if request.kind == "reset":
            return row[0], dict(row[4])
        row = self.finish(row)
        if type(row[4]) is ResetInfo:
            row[4]["is_reset"] = True
        return row

    def configure(
        self,
        options: EnvOptions = EnvOptions(),  # noqa: B008 - frozen
        *,
        env_id: int = 0,
        root: int = 0,
        episode: int = -1,
        over: bool = False,
        restarts: int = 0,
        recreate: bool = False,
        elsewhere: bool = False,
        is_new: bool = False,
    ) -> None:
        """Set the options, and where the env goes on: in ``episode``, or after it if ``over``.

        ``restarts``: how often it was recreated; if so, its first reset is seeded from ``root``.
        ``recreate``: close the env, with a warning if that fails, and make another one.
        ``elsewhere``: raise ``RecycleDue`` where ``recycle`` is due. ``is_new``: the first reset is
        seeded as after a restart.
        """
        self.env_id, self._root_seed, self._num_restarts = env_id, root, restarts
        self.position: Position = episode, over
        if recreate:  # if that fails, the next reset tries it again
            self._recreate()
        self._options = options
        self._is_recreated = restarts > 0 or is_new
        self._recycles_elsewhere = elsewhere
        if options.validate == ALWAYS:
            self.to_check |= {checks.ON_RESET, checks.ON_STEP}
        elif options.validate == OFF:
            self.to_check -= {checks.ON_RESET, checks.ON_STEP, checks.FLAG}

    def _recreate(self) -> None:
        self.heartbeat.begin(self.env_id, CLOSING)
        try:
            self._close_env()
        except ordinary(BaseException) as error:
            self.warn(checks.CLOSE, f"close raised {describe(error)}{place_of(error)}")
        self.heartbeat.begin(self.env_id, MAKING)
        self._is_recreated = True  # and closed, until there is a new one
        self.inner_call = "env_fn"
        if not isinstance(self._env_fn, Recreated):
            self._env_fn = Recreated(self._env_fn)
        self._make()
        pairs = zip(EnvSpaces._fields, self.spaces, self.env_spaces(), strict=True)
        for name, old, new in [pair for pair in pairs if pair[1] != pair[2]]:
            with suppressed():
                self._close_env()
            raise ValueError(f"its {name} is {new}, but the env in its place has {old}")
        self.inner_call = ""
        self.heartbeat.begin(self.env_id)

    @property
    def base(self) -> Any:
        """The env without its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def stepper(self) -> Any:
        """The object to step next: the env itself if the step needs no other work."""
        needs_more = self._pending is not None or self._turn_layer is not None
        if needs_more or self._warns_past_end or checks.ON_STEP in self.to_check:
            return self
        if self.times is None and not self.heartbeat.is_read:
            return self.env
        return SimpleNamespace(step=self._instrumented_step)

    def env_spaces(self) -> EnvSpaces:
        obs, action = (getattr(self.env, f"{of}_space", None) for of in ("observation", "action"))
        for space in (obs, action):
            if space is not None and not isinstance(space, gym.Space):
                kind = f"{type(self.env).__name__} has a space that is not Gymnasium's, {space!r}"
                raise TypeError(f"{kind}{checks.OLD_GYM}")
        reward = wrapper_layers.lookup(self.env, "reward_space", None)
        return EnvSpaces(obs, action, reward_shape(reward))

    @property
    def _warns_past_end(self) -> bool:
        """Whether the next step needs a warning: the episode is over and the env was not reset."""
        waits = self._options.autoreset_mode is None or self._no_autoreset
        return waits and self.position[1] and checks.AFTER_END in self.to_check

    def step(self, action: Any) -> Any:
        """Step the env; return its result, for ``finish``, or the row of an automatic reset."""
        # An env that could not be recreated is closed too: its error comes first.
        if self._closed and not (self._is_recreated and self._pending):
            raise ClosedEnvironmentError("step: the env is closed")
        if self._pending is not None:
            self.heartbeat.begin(self.env_id)
            self.inner_call = "reset"
            return self._pending()
        if self._warns_past_end:
            self.to_check.remove(checks.AFTER_END)
            self.warn(checks.AFTER_END, "an env was stepped after its episode ended; reset it")
        row = self._instrumented_step(action)
        if isinstance(row, (tuple, list)) and len(row) == 5:
            self._check(checks.ON_STEP, row[0], row[1], action)
        # A list makes the step loop call `finish`, which updates the stepper.
        return list(row) if type(row) is tuple else row

    def _instrumented_step(self, action: Any) -> Any:
        heartbeat, times = self.heartbeat, self.times
        if heartbeat.is_read:
            heartbeat.begin(self.env_id)
        begun = 0 if times is None else time.perf_counter_ns()
        forks = FORK_COUNT[0]
        try:
            return self.env.step(action)
        finally:
            if FORK_COUNT[0] != forks:
                end_copy(forks, sys.exc_info()[1])
            heartbeat.leave()
            if times is not None:
                note_step(times, time.perf_counter_ns() - begun)

    def _instrumented_reset(self, **kwargs: Any) -> Any:
        self.heartbeat.enter()
        begun = time.perf_counter_ns()
        try:
            with EndingCopies():
                result = self.env.reset(**kwargs)
        finally:
            self.heartbeat.leave()
        if self.times is not None:
            self.times[RESETS] += 1
            self.times[RESET_NS] += time.perf_counter_ns() - begun
        return result

    def finish(self, row: Row) -> Row:
        """Return the row of a step from the env's result; in same_step mode reset an ended env.

        The row of a reset is returned unchanged.
        """
        if type(row) is not tuple or len(row) != 5 or type(row[4]) is not dict:
            row = checked_row(row)
            if type(row[4]) in (ResetInfo, FinalInfo):
                return row
        obs, reward, terminated, truncated, info = row
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated = self._as_bool(terminated, "terminated")
            truncated = self._as_bool(truncated, "truncated")
            row = obs, reward, terminated, truncated, info
        over = terminated or truncated
        if self._turn_layer is not None and "env_error" not in info:
            over = getattr(self._turn_layer, wrapper_layers.EPISODE_OVER)
        if not over:
            return row
        self.position = self.position[0], True
        if self._options.autoreset_mode == NEXT_STEP:
            self._pending = self.reset
        if self._options.autoreset_mode != SAME_STEP or self._no_autoreset:
            return row
        last = first = self.save_final_obs(obs)
        final = spaces.snapshot(info) if info else {}
        begun: dict[str, Any] = {}
        try:
            with EndingCopies():
                first, begun = self._begin_episode({})
        except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
            self.postpone(error)
        info = FinalInfo(begun)
        info["final_obs"], info["final_info"] = last, final
        return first, reward, terminated, truncated, info

    def _as_bool(self, value: Any, name: str) -> bool:
        one = value
        if hasattr(value, "item"):  # an array, or a tensor
            with suppressed():  # it has more elements than one
                one = value.item()
        elif isinstance(value, (list, tuple)) and len(value) == 1:
            one = value[0]
        if one is None:
            if checks.FLAG in self.to_check:
                self.to_check.remove(checks.FLAG)
                self.warn(checks.FLAG, f"{name} is None, which is taken as False")
            return False
        if isinstance(one, (int, np.integer, np.bool_)) and one in (0, 1):
            return bool(one)
        raise TypeError(f"{name} must be a bool, got {type(value).__name__} {value!r:.80}")

    def postpone(self, error: BaseException) -> None:
        """Raise the error of an automatic reset in the next step; raise an interrupt at once."""
        if is_interrupt(error):
            raise error
        inner, self.inner_call = self.inner_call or "reset", ""

        def raise_late() -> Row:
            self._pending, self.inner_call = None, inner
            raise error

        self._pending = raise_late

    def row_of(self, request: Request) -> Any:
        """Carry out a request that has a row: return the env's result, or the row of a reset."""
        with EndingCopies():
            if request.kind == "lost_step":
                self._no_autoreset = request.no_autoreset
                return self.lost_step(request.args[0], request.error)
            row = getattr(self, request.kind)(*request.args, **request.kwargs)
        if request.kind == "reset":
            self._no_autoreset = request.no_autoreset
        if request.error:
            row[4]["env_error"] = request.error
        return row

    def lost_step(self, obs: Any, error: str) -> Row:
        """Return the row in place of a step in which an env was lost: truncated, without reward.

        ``obs`` is the last observation. In same_step mode the row also begins the next episode,
        unless no automatic reset is to follow.
        """
        final: dict[str, Any] = {"env_error": error}
        if self._turn_layer is not None:
            final["env_done"] = True
        if self._options.autoreset_mode == SAME_STEP and not self._no_autoreset:
            self.inner_call = "reset"
            first, info = self._begin_episode({})
            info = FinalInfo(info, env_error=error, final_obs=obs, final_info=final)
            return first, 0.0, False, True, info
        return obs, 0.0, False, True, final

    def reset(self, **kwargs: Any) -> Row:
        self._no_autoreset = False
        if kwargs.get("seed") is not None:  # counts even if the reset fails
            self._root_seed = kwargs["seed"]
            if self._options.episode_seeds:
                self.position = -1, self.position[1]
        obs, info = self._begin_episode(kwargs)
        return obs, 0.0, False, False, ResetInfo(info)

    def _begin_episode(self, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        seed, options = kwargs.get("seed"), kwargs.get("options")
        rules = self._options
        was_not_made = self._closed and self._is_recreated
        is_due = rules.recycle is not None and self._num_resets >= rules.recycle
        if is_due and self._recycles_elsewhere:
            raise RecycleDue
        if was_not_made or is_due:
            self._recreate()
        episode = self.position[0] + 1
        if rules.episode_seeds:
            seed = seeding.of_episode(self._root_seed, episode)
        elif rules.reset_fn is not None and seed is None and options is None:
            seed, options = rules.reset_fn(self.env_id, episode)
            seed = None if seed is None else operator.index(seed)
        elif self._is_recreated and seed is None and wrapper_layers.takes_seed(self.env):
            seed = seeding.of_restart(self._root_seed, self._num_restarts, episode)
        if seed is not None:
            kwargs["seed"] = seed
        if options is not None:
            kwargs["options"] = options
        is_plain = self.times is None and not self.heartbeat.is_read
        try:
            result = (self.env.reset if is_plain else self._instrumented_reset)(**kwargs)
        except BaseException as error:
            # The reset has reached the env, so it counts, as it would in a worker process.
            if is_interrupt(error):
                self.position = episode, False
            seeded = type(error) is TypeError and "seed" in kwargs
            if seeded and not wrapper_layers.takes_seed(self.env):
                text = f"{error}; write `def reset(self, *, seed=None, options=None)`"
                raise TypeError(f"reset() takes no seed: {text}{checks.OLD_GYM}") from error
            raise
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            got = _type_text(result)
            hint = "" if got.startswith("coroutine") else checks.OLD_GYM
            raise TypeError(f"reset() must return (obs, info), got {got}{hint}")
        obs, info = result
        if not isinstance(info, dict):
            raise TypeError(f"reset() must return (obs, info dict), got info {_type_text(info)}")
        if checks.ON_RESET in self.to_check:
            self._check(checks.ON_RESET, obs, None)
        self.position = episode, False
        self._pending = None
        self.inner_call, self._is_recreated = "", False
        self._num_resets += 1
        return obs, info

    def seed(self, seed: int | None = None) -> Row:
        """Seed the env by a reset, and by its ``seed`` method if it has one."""
        seed_method = wrapper_layers.lookup(self.env, "seed", None)
        if callable(seed_method):
            seed_method(seed)
            # The reset of such an env may not accept a seed, unless every reset is seeded.
            seed = seed if self._options.episode_seeds else None
        return self.reset() if seed is None else self.reset(seed=seed)

    def _check(self, what: str, obs: Any, reward: Any, action: Any = None) -> None:
        """Check this kind of row: each time with ``ALWAYS``, else once."""
        if what not in self.to_check:
            return
        if self._options.validate != ALWAYS:
            self.to_check.remove(what)
        space = getattr(self.env, "observation_space", None)
        found = {checks.REWARD: checks.reward_complaint(reward)}
        if isinstance(space, gym.Space):
            found = {checks.OBS: checks.complaint(space, obs), **found}
            if checks.CAST in self.to_check and (text := checks.lost_digits(space, obs)):
                self.to_check.remove(checks.CAST)
                self.warn(checks.CAST, text)
        for kind, text in found.items():
            if text is None:
                continue
            if checks.has_nan(action):
                text = f"the action has nan, and then {text}; check your policy"  # noqa: PLW2901
            if self._options.validate == ALWAYS:
                raise ValueError(text)
            self.warn(kind, text)

    def get_attr(self, name: str) -> Any:
        return wrapper_layers.lookup(self.env, name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set the attribute on the outermost layer that has it, else on the base env."""
        found = wrapper_layers.layers_of(self.env)
        owners = (layer for layer in found if wrapper_layers.has_own(layer, name))
        setattr(next(owners, found[-1]), name, value)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return wrapper_layers.lookup(self.env, method)(*args, **kwargs)

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(self.env, *args, **kwargs)

    def render(self, **kwargs: Any) -> Any:
        return spaces.snapshot(self.env.render(**kwargs))  # an env may draw into one frame

    def env_fn(self, env_fn: Callable[[], Any]) -> None:
        """Make the env by this function when it is recreated."""
        self._env_fn = env_fn

    def ping(self) -> None:
        """Do nothing: the reply shows that the process answers."""

    def close(self) -> None:
        """Close the env, and one that is being recreated; a second call does nothing."""
        self._env_fn = _refuse
        self._close_env()

    def _close_env(self) -> None:
        if not self._closed:
            close = getattr(self.env, "close", lambda: None)
            with EndingCopies():
                self._closed = True  # no signal handler runs between this and the call
                close()


def _refuse() -> Any:
    raise ClosedEnvironmentError("the pool was closed; make a new one")


def claim_instance(executor: Executor, i: int, claimed: dict[int, tuple[int, Executor]]) -> None:
    """Claim the env of an executor for id ``i``; ValueError if another id has the same instance.

    ``claimed``: id and executor by the address of the env, which may since be that of another one.
    """
    key = id(executor.base)
    first, other = claimed.setdefault(key, (i, executor))
    if first != i and other.base is executor.base:
        text = f"it returned the instance that env {first} has"
        raise ValueError(f"{text}; every env_fn must make its own")
    claimed[key] = i, executor


def reward_shape(space: Any) -> tuple[int, ...]:
    return tuple(space.shape) if isinstance(space, gym.spaces.Box) else ()


def checked_row(result: Any) -> Row:
    """Return the result of an env's ``step`` as a tuple of five; TypeError if it is wrong."""
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _type_text(result)
        got += checks.OLD_GYM if got == "4 values" else ""
        raise TypeError(f"step() must return (obs, reward, terminated, truncated, info), got {got}")
    if not isinstance(result[4], dict):
        raise TypeError(f"step() must return an info dict, got {_type_text(result[4])}")
    return tuple(result)


def _type_text(value: Any) -> str:
    name = type(value).__name__
    if name == "coroutine":
        name += "; only methods of the base gym.Env may be async def, without a decorator"
    return f"a {name} of {len(value)}" if isinstance(value, (tuple, list)) else name
