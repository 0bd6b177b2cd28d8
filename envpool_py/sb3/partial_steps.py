"""Step some envs of a VecEnv while others are in flight, through the wrappers around it.

Wrappers expect rows of all envs. Those that are known keep arrays with one row per env and treat
all rows alike. So the lowest wrapper steps a few rows in place of its VecEnv, and for one call each
array has the rows of those envs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py.env.spaces import map_tree, snapshot, take
from envpool_py.sb3.common.vec_env.base_vec_env import require
from envpool_py.sb3.common.vec_env.pool_vec_env import PoolVecEnv

#: The arrays of the wrappers of both libraries that have one row per env.
_PER_ENV: dict[str, tuple[str, ...]] = {
    "VecCheckNan": (),
    "VecExtractDictObs": (),
    "VecFrameStack": ("stacked_obs",),
    "VecMonitor": ("episode_returns", "episode_lengths"),
    "VecNormalize": ("returns", "old_obs", "old_reward"),
    "VecTransposeImage": (),
}


class Overlay:
    """An object with other values of some attributes; others are read and set on the object."""

    def __init__(self, of: Any, **replaced: Any) -> None:
        vars(self).update(replaced, _of=of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the attribute ``call``."""
        return self.call(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance() and super()
        return type(self._of)


class PartialSteps:
    """Sends steps to some envs of a VecEnv and receives those that are finished.

    A context: on leaving it, requests in flight are cancelled; then the envs need a reset.

    ``venv`` is a ``PoolVecEnv``, or wrappers around one. A wrapper that is neither ours nor
    Stable-Baselines3's needs a class attribute ``per_env``: the names of its arrays, or dicts of
    arrays, with one row per env. UnsuitableEnvError for another VecEnv, or a wrapper without it.
    """

    def __init__(self, venv: Any) -> None:
        self._base, self._lowest = venv, None
        self._arrays: list[tuple[Any, str]] = []
        while not isinstance(self._base, PoolVecEnv):
            inner = vars(self._base).get("venv")
            text = f"env: partial batches need a VecEnv of envpool_py.sb3, got {self._base!r}"
            require(inner is not None, f"{text}; make it by envpool_py.sb3.make_vec_env")
            self._arrays += _arrays_of(self._base)
            self._lowest, self._base = self._base, inner
        self.pool = self._base.pool
        rows = Overlay(self._base, step_async=self._send, step_wait=lambda: self._results)
        self._rows, self._top = rows, rows if self._lowest is None else venv

    def __enter__(self) -> Self:
        self._base._assert_no_step()  # noqa: SLF001 - of this package
        self._before = self.pool.wait_num, self.pool.timeout
        for owner, name in self._arrays:  # copies, because they are written into
            value = snapshot(getattr(owner, name))
            is_empty = not isinstance(value, dict) and np.shape(value)[:1] != (len(self.pool),)
            setattr(owner, name, np.zeros(len(self.pool)) if is_empty else value)
        if self._lowest is not None:
            self._lowest.venv = self._rows
        self._base.in_rollout = True
        return self

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Within the block envs that are not in flight may be asked, while others are."""
        self._base.in_rollout = False
        try:
            yield
        finally:
            self._base.in_rollout = True

    def __exit__(self, *_: object) -> None:
        self._base.in_rollout = False
        if self._lowest is not None:
            self._lowest.venv = self._base
        if not self.pool.is_closed:
            self.pool.cancel()
            self.pool.wait_num, self.pool.timeout = self._before

    def send(self, actions: Any, ids: NDArray[np.intp]) -> None:
        """Begin a step of the envs ``ids`` ``(k,)``, in order if they are all; ``k`` actions."""
        self._ids = ids if len(ids) < len(self.pool) else None
        self._top.step_async(actions)

    def _send(self, actions: Any) -> None:
        self.pool.send(actions, self._ids)

    def linger(self, seconds: float) -> None:
        """Wait for a row, and with ``k`` rows there at most ``seconds / k`` for another one.

        If a call of the policy takes ``seconds``, a row that is late by more saves less, because it
        does not wait for the end of that call, than the ``k`` others lose.
        """
        wait, count = self.pool._inner.wait, 0
        found = wait(1, None)
        while found > count:
            count = found
            found = wait(count + 1, time.monotonic() + seconds / count)

    def recv(self) -> tuple[NDArray[np.intp], Any, Any, Any, Any]:
        """Return the next batch of the pool: ids ``(k,)``, and what ``step_wait`` returns."""
        batch = self._base._rows(self.pool.recv)  # noqa: SLF001
        ids = self.pool.batch_ids
        self._results = self._base._results(*batch)  # noqa: SLF001
        arrays = [(owner, name, getattr(owner, name)) for owner, name in self._arrays]
        for owner, name, array in arrays:
            setattr(owner, name, take(array, ids))
        try:
            return ids, *self._top.step_wait()
        finally:
            for owner, name, array in arrays:
                put_rows(array, ids, getattr(owner, name))
                setattr(owner, name, array)


def put_rows(tree: Any, at: Any, rows: Any) -> None:
    """Set the rows ``at`` of an array, or of each array of nested dicts and tuples."""
    map_tree(lambda array, part: array.__setitem__(at, part), tree, rows)


def _arrays_of(wrapper: Any) -> list[tuple[Any, str]]:
    """The arrays of a wrapper with one row per env: the object and the name of its attribute."""
    cls = type(wrapper)
    known = cls.__module__.startswith(("envpool_py.sb3.", "stable_baselines3."))
    names = getattr(cls, "per_env", _PER_ENV.get(cls.__name__) if known else None)
    text = f"env: {cls.__name__} cannot step some envs alone"
    require(cls.__name__ != "VecVideoRecorder", f"{text}; record the videos of an evaluation")
    hint = "if each row is treated alike, name its arrays (num_envs, ...) in per_env, ()"
    require(names is not None, f"{text}: it may keep state per env; {hint} if it has none")
    if cls.__name__ == "VecFrameStack":
        stack = wrapper.stacked_obs
        parts = getattr(stack, "sub_stacked_observations", None) or {"": stack}
        return [(part, "stacked_obs") for part in parts.values()]
    return [(wrapper, name) for name in names or ()]
