"""``SB3MultiAgentVecEnv``: the agents of many parallel envs as the envs of one VecEnv."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py import seeding, spaces
from envpool_py.pettingzoo import packing
from envpool_py.pettingzoo.groups import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Group,
    action_field,
    group_masks,
    group_obs,
    groups_of,
)
from envpool_py.pettingzoo.packed_pool import packed_pool
from envpool_py.pettingzoo.packing import Rows
from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)
from envpool_py.sb3.common.vec_env.over_pool import OverPool
from envpool_py.sb3.inside import class_names
from envpool_py.seeding import Seed
from envpool_py.spaces import Array

_MASKS = "action_masks"


class SB3MultiAgentVecEnv(OverPool):
    """Parallel envs with equal agents as a VecEnv: one row per agent, those of an env together.

    For training one policy that all agents share, with Stable-Baselines3's algorithms and with
    ``MaskablePPO``. Row ``r`` is agent ``r % len(possible_agents)`` of env
    ``r // len(possible_agents)``.

    A row is *active* from its agent's birth to its death. At the death it is done; then it has
    zeros and reward 0, what is done with its actions is nothing, and ``infos[r]["active"]`` is
    False, until its env is over. When no agent is left, the env is reset in the same step, and all
    its rows are done.

    Args:
        env_fns: one callable for each env, which makes a ``ParallelEnv``, or an ``AECEnv`` that
            PettingZoo's ``aec_to_parallel`` takes.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        num_processes: over how many processes the envs are spread; None is one for each env.
        **options: of the pool: ``context``, ``episode_seeds``, ``reset_fn``.

    Attributes:
        pool: the pool that steps the envs, one row per env.
        possible_agents: the names of the agents of an env, in the order of their rows.

    Raises:
        UnsuitableEnvError: the spaces of the agents differ.
        TypeError, ValueError, EnvError: as ``ParallelVectorEnv``.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        backend: str = "shmem",
        num_processes: int | None = None,
        **options: Any,
    ) -> None:
        for name in ("wait_num", "timeout", "strict_timeout", "autoreset_mode", "copy"):
            if name in options:
                raise TypeError(f"{name}: a VecEnv waits for all envs, and resets them itself")
        self.pool, facts = packed_pool(
            env_fns, backend, None, None, "same_step", num_processes, options
        )
        try:
            groups = groups_of(facts)
            _assert_alike(groups)
            self._group = groups[0]
            self.possible_agents = list(facts.agents)
            self._width = len(facts.agents)
            # The place in the group's block of each agent, in the order of the rows.
            order = np.argsort(self._group.places)
            self._order = None if (order == np.arange(self._width)).all() else order
            self._masks: NDArray[np.bool_] | None = None
            super().__init__(
                len(self.pool) * self._width,
                self._group.observation_space,
                self._group.action_space,
            )
        except BaseException:
            self.pool.close()
            raise
        if isinstance(facts.metadata, Mapping) and facts.metadata:
            self.metadata = dict(facts.metadata)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._width} agents, {self.pool!r})"

    # ---------------------------------------------------------------------------- reset and step

    def reset(self) -> VecEnvObs:
        """Reset all envs, with the seeds and options set for it; a step under way is given up.

        Returns:
            The first observations ``(num_envs, *shape)``; the infos are in ``reset_infos``.

        Raises:
            EnvError: an env raised; the seeds and options are kept.
            ClosedEnvironmentError: this was closed.
        """
        obs, infos = self._reset_pool(self._seeds)
        flags = np.zeros(len(infos), dtype=np.bool_)
        rows = packing.rows_of((obs, np.zeros((len(infos), self._width)), flags, flags, infos))
        for env, by_agent in enumerate(rows.infos):
            self._note_reset(env, by_agent)
        self._note_masks(rows)
        return self._joined(self._flat_obs(rows.fields))

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs.

        Args:
            actions: ``(num_envs, *shape)``; those of rows that are not active are not looked at.

        Raises:
            AlreadyPendingCallError: a step is under way.
            ResetNeeded: an env was never reset, or has raised and was not reset since.
            TypeError, ValueError: the actions are wrong, or fewer than rows; nothing was sent.
            ClosedEnvironmentError: this was closed.

        Warns:
            UserWarning: there are more actions than rows; those left over are not used.
        """
        self._assert_no_step("step_async: ")
        if np.shape(actions)[:1] > (self.num_envs,):
            warnings.warn(
                f"got {len(actions)} actions for {self.num_envs} envs;"
                " those left over are not used",
                stacklevel=3,
            )
            actions = actions[: self.num_envs]
        layout = self._group.action
        parts = spaces.batch_actions(layout, actions, range(self.num_envs))
        if parts is None:
            raise TypeError("actions: got None among them; every row needs an action")
        columns = {
            action_field(self._group, n): self._side_by_side(part) for n, part in enumerate(parts)
        }
        self._send(columns)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that ``step_async`` has begun.

        Returns:
            ``obs`` ``(num_envs, *shape)``, of the next episode where the env is over; ``rewards``
            float32 ``(num_envs,)``; ``dones`` bool ``(num_envs,)``; ``infos``, a list of one dict
            per row, each with ``active`` and ``TimeLimit.truncated``, and where done
            ``terminal_observation``.

        Raises:
            NoAsyncCallError: no step was begun.
            EnvError: an env raised. The other envs have made the step, but its results are dropped;
                ``reset`` goes on.
            ClosedEnvironmentError: this was closed.
        """
        rows = packing.rows_of(self._received())
        valid, alive = rows.flags[:, VALID], rows.flags[:, ALIVE]
        terminated, truncated = rows.flags[:, TERMINATED], rows.flags[:, TRUNCATED]
        over = rows.env_done[:, None]
        left = valid & (terminated | truncated | (~alive & ~over))
        # What a row shows next is no continuation of what it has shown: it was an absent agent's.
        born = alive & ~valid & ~over
        dones = (left | born | over).reshape(-1)
        timeouts = (valid & truncated & ~terminated).reshape(-1)
        obs = self._flat_obs(rows.fields)
        infos = self._row_infos(rows, valid.reshape(-1), timeouts)
        if dones.any():
            self._end_episodes(rows, obs, infos, dones, (born & ~over).reshape(-1))
        self._note_masks(rows)
        rewards = rows.reward.astype(np.float32).reshape(-1)
        return self._joined(obs), rewards, dones, infos

    def _row_infos(
        self, rows: Rows, valid: NDArray[np.bool_], timeouts: NDArray[np.bool_]
    ) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = []
        row = 0
        active, timed_out = valid.tolist(), timeouts.tolist()
        for env, by_agent in enumerate(rows.infos):
            own = rows.final_infos.get(env, by_agent)
            shared = {"env_error": rows.errors[env]} if env in rows.errors else {}
            for agent in self.possible_agents:
                infos.append(
                    {
                        **own.get(agent, {}),
                        **shared,
                        "active": active[row],
                        "TimeLimit.truncated": timed_out[row],
                    }
                )
                row += 1
        return infos

    def _end_episodes(
        self,
        rows: Rows,
        obs: list[Array],
        infos: list[dict[str, Any]],
        dones: NDArray[np.bool_],
        born: NDArray[np.bool_],
    ) -> None:
        """Add what the agents saw last, and show zeros for those who have left."""
        finals = {env: self._final_obs(fields) for env, fields in rows.finals.items()}
        for env in rows.finals:
            self._note_reset(env, rows.infos[env])
        for row in np.flatnonzero(dones).tolist():
            env, place = divmod(row, self._width)
            if env in finals:
                parts = [part[place] for part in finals[env]]
            elif born[row]:
                parts = [np.zeros_like(part[row]) for part in obs]
            else:
                parts = [np.array(part[row]) for part in obs]
                for part in obs:
                    part[row] = 0
            infos[row]["terminal_observation"] = spaces.join(self._group.obs, parts)

    def _final_obs(self, fields: Mapping[str, Any]) -> list[Any]:
        """The leaves of what the agents of one env saw at its end, ``(len(agents), ...)``."""
        batch = group_obs(self._group, {key: [value] for key, value in fields.items()})
        return [part[0] if self._order is None else part[0][self._order] for part in batch]

    def _flat_obs(self, fields: Mapping[str, Any]) -> list[Array]:
        return [self._flat(part) for part in group_obs(self._group, fields)]

    def _flat(self, block: Array) -> Array:
        """``(k, n, ...)`` of a group as rows ``(k * n, ...)``."""
        if self._order is not None:
            block = block[:, self._order]
        return block.reshape(-1, *block.shape[2:])

    def _side_by_side(self, rows: Array) -> Array:
        """Rows ``(k * n, ...)`` as ``(k, n, ...)`` in the order of the group."""
        block = rows.reshape(-1, self._width, *rows.shape[1:])
        return block if self._order is None else block[:, self._group.places]

    def _joined(self, parts: list[Array]) -> VecEnvObs:
        return spaces.join(self._group.obs, parts)

    def _note_masks(self, rows: Rows) -> None:
        masks = group_masks(self._group, rows.fields)
        if masks is not None:
            flat = self._flat(masks).copy()
            # Whoever is not there may pretend to do anything: a policy needs some legal action.
            flat[~rows.flags[:, ALIVE].reshape(-1)] = True
            self._masks = flat

    def _note_reset(self, env: int, by_agent: Mapping[str, Any]) -> None:
        for n, agent in enumerate(self.possible_agents):
            self.reset_infos[env * self._width + n] = dict(by_agent.get(agent, {}))

    # --------------------------------------------------------------------------- seeds, options

    def seed(self, seed: Seed = None) -> Sequence[int | None]:
        """Set the seeds of the next ``reset``; the agents of an env share its seed.

        Args:
            seed: an int ``s``: ``s + i`` for env ``i``; a list: one for each env, or one for each
                row, of which the first of each env counts; None: drawn anew.

        Returns:
            The seed of every row.

        Raises:
            TypeError, ValueError: seeds are wrong, or not as many as envs or rows.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(seed, (list, tuple, np.ndarray)) and len(seed) == self.num_envs:
            seed = list(seed)[:: self._width]
        self._seeds = seeding.per_env(seed, range(len(self.pool)))
        return [one for one in self._seeds for _ in self.possible_agents]

    def set_options(
        self, options: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None
    ) -> None:
        """Set the options of the next ``reset``; the agents of an env share them.

        Args:
            options: one dict for all envs; or a list of one for each env, or for each row, of which
                the first of each env counts.

        Raises:
            TypeError, ValueError: no dicts, or not as many as envs or rows.
        """
        if options is not None and not isinstance(options, Mapping):
            options = list(options)
            if len(options) == len(self.pool):
                options = [one for one in options for _ in self.possible_agents]
        super().set_options(options)
        self._options = self._options[:: self._width]

    def _reset_seeds(self) -> None:
        self._seeds: list[int | None] = [None] * len(self.pool)

    def _reset_options(self) -> None:
        self._options: list[dict[str, Any]] = [{} for _ in range(len(self.pool))]

    # ----------------------------------------------------------------------- into the envs

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal in every row, bool ``(num_envs, n)``; all where not active.

        Raises:
            AttributeError: the envs have no masks, and their actions are not discrete.
        """
        if self._group.mask is None:
            raise AttributeError("the agents have no action_masks")
        if self._masks is None:
            return np.ones((self.num_envs, *self._group.mask), dtype=np.bool_)
        return self._masks.copy()

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute.

        Args:
            attr_name: its name; ``"action_masks"`` is there where actions are discrete or masked.
        """
        if attr_name == _MASKS:
            return self._group.mask is not None
        return super().has_attr(attr_name)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the env of each row, once for each env.

        Args:
            method_name: its name; ``"action_masks"`` gives the mask of each row.
            *method_args: its arguments.
            indices: which rows; None is all.
            **kwargs: its keyword arguments.

        Returns:
            For each row what the method of its env returned.

        Raises:
            EnvError: the method raised, or there is none.
            ValueError: the method is the VecEnv's own business: reset, step or close.
            AlreadyPendingCallError: a step is under way.
        """
        if method_name == _MASKS and self._group.mask is not None:
            return list(self.action_masks()[self._get_indices(indices)])
        return self._ask(
            indices, lambda ids: self.pool.call(method_name, *method_args, id=ids, **kwargs)
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Whether the env of each row has a wrapper of this class around it.

        Classes are told by their module and name.

        Args:
            wrapper_class: the class.
            indices: which rows; None is all.

        Raises:
            AlreadyPendingCallError: a step is under way.
        """
        names = class_names(wrapper_class)
        found = self._ask(indices, lambda ids: self.pool.call("wrapper_names", id=ids))
        return [any(names.intersection(layer) for layer in layers) for layers in found]

    def _env_of(self, row: int) -> int:
        return row // self._width

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """An image of each env, not of each row; None each where they have another render mode.

        Raises:
            AlreadyPendingCallError: a step is under way.
        """
        self._assert_no_step()
        if self.render_mode != "rgb_array":
            return [None] * len(self.pool)
        return self.pool.render()


def _assert_alike(groups: Sequence[Group]) -> None:
    if len(groups) > 1:
        first, other = groups[0], groups[1]
        raise UnsuitableEnvError(
            f"agent {other.agents[0]!r} has the spaces {other.observation_space} and"
            f" {other.action_space}, but {first.agents[0]!r} has {first.observation_space} and"
            f" {first.action_space}; the rows of a VecEnv have equal spaces, and SuperSuit's pad_*"
            " wrappers make them so"
        )
