"""Step some envs of a VecEnv while others are in flight, through the wrappers around it.

Wrappers expect rows of all envs. Those that are known keep arrays with one row per env and treat
all rows alike. So the lowest wrapper gets a ``_Rows`` in place of its VecEnv for one call, and
each array the rows of the envs that are stepped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import map_tree, snapshot, take
from envpool_py.errors import EnvError
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


class PartialSteps:
    """Sends steps to some envs of a VecEnv and receives those that are finished.

    A context: on leaving it by an exception, the requests in flight are cancelled. Those envs, and
    so all, then need a reset.

    Args:
        venv: a ``PoolVecEnv``, or wrappers around one. A wrapper that is neither ours nor
            Stable-Baselines3's needs a class attribute ``per_env``: the names of its arrays, or
            dicts of arrays, with one row per env.

    Raises:
        UnsuitableEnvError: another VecEnv, or a wrapper that cannot step some envs alone.
    """

    def __init__(self, venv: Any) -> None:
        self._top = self._base = venv
        self._lowest: Any = None
        self._arrays: list[tuple[Any, str]] = []
        while not isinstance(self._base, PoolVecEnv):
            inner = vars(self._base).get("venv")
            text = f"env: partial batches need a VecEnv of envpool_py.sb3, got {self._base!r}"
            require(inner is not None, f"{text}; make it by envpool_py.sb3.make_vec_env")
            self._arrays += _arrays_of(self._base)
            self._lowest, self._base = self._base, inner
        self.pool = self._base.pool
        self._bottom = _Rows(self._base)

    def __enter__(self) -> Any:
        self._base._assert_no_step()  # noqa: SLF001 - of this package
        self._before = self.pool.wait_num, self.pool.timeout
        for owner, name in self._arrays:  # they are written into
            setattr(owner, name, snapshot(getattr(owner, name)))
        return self

    def __exit__(self, *_: object) -> None:
        if not self.pool.is_closed:
            self.pool.cancel()
            self.pool.wait_num, self.pool.timeout = self._before

    def send(self, actions: Any, ids: NDArray[np.intp]) -> None:
        """Begin a step of the envs ``ids`` ``(k,)``, with actions ``(k, *shape)``."""
        self._bottom.ids = ids
        with self._in_place() as top:
            top.step_async(actions)

    def recv(self) -> tuple[NDArray[np.intp], Any, Any, Any, Any]:
        """Return the next batch of the pool: ids ``(k,)``, and what ``step_wait`` returns."""
        batch = self._base._rows(self.pool.recv)  # noqa: SLF001
        ids = self.pool.batch_ids
        self._bottom.results = self._base._results(*batch)  # noqa: SLF001
        whole = [(owner, name, getattr(owner, name)) for owner, name in self._arrays]
        for owner, name, value in whole:
            if _has_rows(value, len(self.pool)):
                setattr(owner, name, take(value, ids))
        try:
            with self._in_place() as top:
                results = top.step_wait()
        finally:
            for owner, name, value in whole:
                setattr(owner, name, _merged(value, ids, getattr(owner, name), len(self.pool)))
        return ids, *results

    def drain(self) -> Iterator[tuple[NDArray[np.intp], Any, Any, Any, Any]]:
        """Receive what is still in flight; batches that have a failed env are dropped."""
        while self.pool.waiting_id:
            with contextlib.suppress(EnvError):
                yield self.recv()

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[Any]:
        if self._lowest is None:
            yield self._bottom
            return
        self._lowest.venv = self._bottom
        try:
            yield self._top
        finally:
            self._lowest.venv = self._base


class _Rows:
    """What wrappers step in place of a VecEnv: the envs ``ids``."""

    def __init__(self, venv: PoolVecEnv) -> None:
        self._venv = venv
        self.ids: Any = None
        self.results: Any = None

    def step_async(self, actions: Any) -> None:
        """Send the actions to the pool."""
        self._venv.pool.send(actions, self.ids)

    def step_wait(self) -> Any:
        """Return the rows that were received."""
        return self.results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._venv, name)


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
        parts = list(getattr(stack, "sub_stacked_observations", {}).values()) or [stack]
        return [(part, "stacked_obs") for part in parts]
    return [(wrapper, name) for name in names or ()]


def _has_rows(value: Any, num_envs: int) -> bool:
    """Whether an attribute has one row per env; before the first step some are empty or None."""
    parts = value.values() if isinstance(value, dict) else [value]
    return all(np.shape(part)[:1] == (num_envs,) for part in parts)


def _merged(whole: Any, ids: NDArray[np.intp], rows: Any, num_envs: int) -> Any:
    """Put rows into the arrays of all envs, in place."""

    def put(part: Any, into: Any) -> Any:
        into[ids] = part
        return into

    if not _has_rows(rows, len(ids)):  # the wrapper does not set it
        return rows
    if not _has_rows(whole, num_envs):
        whole = map_tree(lambda part: np.zeros((num_envs, *part.shape[1:]), part.dtype), rows)
    return map_tree(put, rows, whole)
