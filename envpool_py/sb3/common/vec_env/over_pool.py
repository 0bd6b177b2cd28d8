"""``OverPool``: the common part of VecEnvs over a pool, whatever their rows are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from envpool_py.block import StepResult
from envpool_py.errors import EnvError
from envpool_py.pool import BaseVectorEnv
from envpool_py.sb3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices
from envpool_py.sb3.inside import has_attribute


class OverPool(VecEnv):
    """A VecEnv whose envs a pool steps.

    ``step_wait`` ends a pending step and ``reset`` cancels it; until then every other request
    raises ``AlreadyPendingCallError``. After ``close`` all raise ``ClosedEnvironmentError``.

    Attributes:
        pool: the pool that steps the envs.
    """

    pool: BaseVectorEnv
    _stepping = False

    # ----------------------------------------------------------------------------------- a step

    def _assert_open(self) -> None:
        if self.pool.is_closed:
            raise ClosedEnvironmentError(f"{type(self).__name__} is closed")

    def _assert_no_step(self, prefix: str = "") -> None:
        self._assert_open()
        if self._stepping:
            raise AlreadyPendingCallError(
                f"{prefix}a step is pending; call step_wait(), or reset()", "step_async"
            )

    def _send(self, actions: Any) -> None:
        self.pool.send(actions)
        self._stepping = True

    def _received(self) -> StepResult:
        """The rows of all envs, in order; after an error the rows of the others are dropped."""
        self._assert_open()
        if not self._stepping:
            raise NoAsyncCallError(
                "step_wait: no step is pending; step_async(actions) begins one", "step_wait"
            )
        self._stepping = False
        pool = self.pool
        try:
            return pool.step(None, np.arange(len(pool))) if pool.is_async else pool.recv()
        except EnvError:
            self._drop_rows()
            raise
        except BaseException:  # Ctrl-C, or an exception of a signal handler
            pool.cancel()
            raise

    def _reset_pool(self, seeds: Any) -> tuple[Any, Any]:
        """Reset all envs, with these seeds and the options set; cancel a pending step.

        Raises:
            EnvError: an env raised; the seeds and options are kept.
        """
        self._assert_open()
        self._stepping = False
        self.pool.cancel()
        options = [one or None for one in self._options] if any(self._options) else None
        try:
            batch = self.pool.reset(seed=seeds, options=options)
        except EnvError:
            self._drop_rows()
            raise
        self._reset_seeds()
        self._reset_options()
        return batch

    def _drop_rows(self) -> None:
        """Drop the rows of the other envs, after an error of one."""
        while self.pool.waiting_id:
            with contextlib.suppress(EnvError):
                self.pool.drain()

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        Warns:
            RuntimeWarning: closing an env raised.
        """
        self.pool.close()

    # ----------------------------------------------------------------------------- into the envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of the env of each row, from the outermost wrapper that has it.

        Raises:
            EnvError: an env has no such attribute (an AttributeError too), reading it raised, or
                its value can't be sent. No reset is needed.
        """
        return self._ask(indices, lambda ids: self.pool.get_env_attr(attr_name, id=ids))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute of the env of each row: where it is, else on the outermost wrapper."""
        ids = list(dict.fromkeys(map(self._env_of, self._get_indices(indices))))
        self._assert_no_step()
        found = np.array(self.pool.apply(has_attribute, attr_name, id=ids), dtype=np.bool_)
        self.pool.set_env_attr(attr_name, value, id=np.array(ids)[found])
        self.pool.apply(setattr, attr_name, value, id=np.array(ids)[~found])

    def _ask(self, indices: VecEnvIndices, ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        """Ask the env of each row, every env once."""
        ids = [self._env_of(row) for row in self._get_indices(indices)]
        self._assert_no_step()
        return self._asked(ids, ask)

    def _asked(self, ids: Sequence[int], ask: Callable[[list[int]], list[Any]]) -> list[Any]:
        distinct = list(dict.fromkeys(ids))
        answers = dict(zip(distinct, ask(distinct), strict=True))
        return [answers[i] for i in ids]

    def _env_of(self, row: int) -> int:
        """The env of a row."""
        return row
