"""``SB3MultiAgentVecEnv``: the agents of many parallel envs as the envs of one VecEnv."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py import seeding
from envpool_py.env import spaces
from envpool_py.env.spaces import Array
from envpool_py.errors import closed_on_error
from envpool_py.options import Backend, NumProcesses
from envpool_py.pettingzoo.agent_spaces import assert_alike, masks_of
from envpool_py.pettingzoo.convert import layers_of
from envpool_py.pettingzoo.parallel import DECIDED, ByAgent, ParallelVectorEnv, side_by_side
from envpool_py.pool.keywords import InProcessOptions, StartOptions, check_options, spell_out
from envpool_py.pool.pool_classes import pool_class
from envpool_py.sb3.called_in_workers import is_named
from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)
from envpool_py.sb3.common.vec_env.pool_vec_env import DECIDED as DECIDED_BY_VEC_ENVS
from envpool_py.sb3.common.vec_env.pool_vec_env import OverPool
from envpool_py.seeding import Seed

_MASKS = "action_masks"


def _has_layer(env: Any, names: set[str]) -> bool:
    return any(is_named(type(layer), names) for layer in layers_of(env))


class _InRows(ParallelVectorEnv):
    """A pool whose rewards and flags are rows of the VecEnv, not dicts by agent."""

    def _columns(self, matrix: Array) -> Any:
        return matrix.reshape(-1)


class _Options(InProcessOptions, StartOptions, total=False):
    """The keywords of ``SB3MultiAgentVecEnv``, after its own."""


_DECIDED = {**DECIDED_BY_VEC_ENVS, **DECIDED}


@spell_out(_Options, _DECIDED)
class SB3MultiAgentVecEnv(OverPool):
    """Parallel envs with equal agents as a VecEnv: one row per agent, those of an env together.

    For training one policy that all agents share, with Stable-Baselines3's algorithms and with
    ``MaskablePPO``. Row ``r`` is agent ``r % len(possible_agents)`` of env
    ``r // len(possible_agents)``.

    A row is *active* from its agent's birth to its death. At the death it is done, once; then it
    has zeros and reward 0, its actions are ignored, and ``infos[r]["active"]`` is False, until its
    env is over. When no agent is left, the env is reset in the same step.

    Args:
        env_fns: one callable for each env, which makes a ``ParallelEnv``, or an ``AECEnv`` that
            PettingZoo's ``aec_to_parallel`` takes.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        num_processes: over how many processes the envs are spread; None is one for each env.
        context: how worker processes are started, as in ``ShmemVectorEnv``.
        start_method: the same as ``context``.
        options: ``on_error``, ``step_timeout``, ``record``, ...: see ``PoolOptions``.

    Attributes:
        pool: steps the envs; a ``ParallelVectorEnv``, but for the form of rewards and flags.
        possible_agents: the names of the agents of an env, in the order of their rows.

    Raises:
        UnsuitableEnvError: the spaces of the agents differ.
        TypeError, ValueError, EnvError: as ``ParallelVectorEnv``.
    """

    pool: Any
    _is_wrapped_by = staticmethod(_has_layer)

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        backend: Backend = "shmem",
        num_processes: NumProcesses = None,
        **options: Unpack[_Options],
    ) -> None:
        name, known = type(self).__name__, pool_class(backend)
        own = check_options(known, name, options, _DECIDED)
        self.pool = pool = _InRows(
            env_fns,
            backend,
            autoreset_mode="same_step",
            num_processes=num_processes,
            copy=False,  # rows are new in any case
            **own,
        )
        with closed_on_error(pool):
            agents = self.possible_agents = pool.possible_agents
            own = {a: (pool.observation_space(a), pool.action_space(a)) for a in agents}
            alike = "the rows of a VecEnv have equal spaces, and SuperSuit's pad_* wrappers do that"
            assert_alike(own, alike, UnsuitableEnvError)
            num_rows = len(pool) * len(agents)
            mask = masks_of(own).get(agents[0])
            self._masks = mask and np.ones((num_rows, *mask.shape), dtype=np.bool_)
            self._layout = spaces.layout_of(own[agents[0]][0])
            super().__init__(num_rows, *own[agents[0]])
        if isinstance(pool.metadata, Mapping) and pool.metadata:
            self.metadata = dict(pool.metadata)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.possible_agents)} agents, {self.pool.pool!r})"

    def reset(self) -> VecEnvObs:
        obs, info = self._reset_pool(self._seeds[:: len(self.possible_agents)])
        for env in range(len(self.pool)):
            self._note_reset(env, info)
        self._note_masks(info)
        return self._joined(self._leaves(obs))

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs, with actions ``(num_envs, *shape)``, one for each row.

        Raises and warns as ``PoolVecEnv.step_async``; ResetNeeded also if an env was never reset.
        """
        self._assert_no_step("step_async: ")
        if not np.iterable(actions):
            raise TypeError(f"actions: expected {self.num_envs}, one per row; got {actions!r:.80}")
        count = f"got {len(actions)} actions for {self.num_envs} envs"
        if len(actions) < self.num_envs:
            raise ValueError(count)
        if len(actions) > self.num_envs:
            warnings.warn(f"{count}; the last ones are not used", stacklevel=3)
        width = len(self.possible_agents)
        own = enumerate(self.possible_agents)
        self._send({agent: actions[n : self.num_envs : width] for n, agent in own})

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that ``step_async`` has begun.

        Return ``obs, rewards, dones, infos`` as ``VecEnv.step_wait``, by row; each info also has
        ``active``. Raises as ``PoolVecEnv.step_wait``.
        """
        seen, reward, terminated, truncated, info = self._received()
        valid, alive = info["valid"], info["alive"]
        over = np.repeat(info["env_done"], len(self.possible_agents))
        dones = valid & (terminated | truncated | ~alive | over)
        obs = self._leaves(seen)
        infos = self._row_infos(info, valid, valid & truncated & ~terminated)
        for env in np.flatnonzero(info["env_done"]).tolist():
            self._note_reset(env, info)
        for row in np.flatnonzero(dones).tolist():
            env, place = divmod(row, len(self.possible_agents))
            if over[row]:
                last = info["final_obs"][env][self.possible_agents[place]]
            else:
                last = self._joined([np.array(part[row]) for part in obs])
                for part in obs:
                    part[row] = 0
            infos[row]["terminal_observation"] = last
        self._note_masks(info)
        return self._joined(obs), reward.astype(np.float32), dones, infos

    def _row_infos(
        self, info: dict[str, Any], valid: NDArray[np.bool_], timeouts: NDArray[np.bool_]
    ) -> list[dict[str, Any]]:
        """The info of each row; of an env that is over, those of the ended episode."""
        infos: list[dict[str, Any]] = []
        errors = info.get("env_error", [None] * len(self.pool))
        rows = zip(info["agent_infos"], info["final_infos"], errors, strict=True)
        for running, ended, error in rows:
            own = running if ended is None else ended
            shared = {} if error is None else {"env_error": error}
            infos += [{**own.get(agent, {}), **shared} for agent in self.possible_agents]
        for told, active, timeout in zip(infos, valid.tolist(), timeouts.tolist(), strict=True):
            told["active"], told["TimeLimit.truncated"] = active, timeout
        return infos

    def _leaves(self, obs: ByAgent) -> list[Array]:
        """The leaves of what all rows show: new arrays ``(num_envs, *shape)``."""
        block = side_by_side(list(obs.values()))
        parts = spaces.split(self._layout, block, "obs")
        return [part.reshape(-1, *part.shape[2:]) for part in parts]

    def _joined(self, parts: Sequence[Any]) -> Any:
        return spaces.join(self._layout, parts)

    def _note_masks(self, info: dict[str, Any]) -> None:
        if self._masks is not None:
            block = np.stack(list(info["action_mask"].values()), axis=1)
            self._masks = block.reshape(self._masks.shape)
            # All actions of an absent agent count as legal, because a policy needs a legal action.
            self._masks[~info["alive"]] = True

    def _note_reset(self, env: int, info: dict[str, Any]) -> None:
        for n, agent in enumerate(self.possible_agents):
            row = env * len(self.possible_agents) + n
            self.reset_infos[row] = dict(info["agent_infos"][env].get(agent, {}))

    def seed(self, seed: Seed = None) -> Sequence[int | None]:
        """Set the seeds of the next ``reset``; return the seed of every row.

        An int ``s`` means ``s + i`` for env ``i``; a list has one seed for each env, or one for
        each row, of which the first of each env counts; None: seeds are drawn at random.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(seed, (list, tuple, np.ndarray)) and len(seed) == self.num_envs:
            seed = list(seed)[:: len(self.possible_agents)]
        seeds = seeding.per_env(seed, range(len(self.pool)))
        self._seeds = [one for one in seeds for _ in self.possible_agents]
        return list(self._seeds)

    def set_options(
        self, options: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None
    ) -> None:
        """Set the options of the next ``reset``: one dict for all, or a list as for ``seed``."""
        if isinstance(options, (Sequence, np.ndarray)) and len(options) == len(self.pool):
            options = [one for one in options for _ in self.possible_agents]
        super().set_options(options)
        self._options = self._options[:: len(self.possible_agents)]

    def _reset_options(self) -> None:
        self._options: list[dict[str, Any]] = [{} for _ in range(len(self.pool))]

    def action_masks(self) -> NDArray[np.bool_]:
        """The legal actions of each row, bool ``(num_envs, n)``, all where not active.

        AttributeError if the agents have none.
        """
        if self._masks is None:
            raise AttributeError("the agents have no action_masks")
        return self._masks.copy()

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have it; ``"action_masks"`` if actions are discrete or masked."""
        return self._masks is not None if attr_name == _MASKS else super().has_attr(attr_name)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each row's env; ``"action_masks"`` gives masks, bool ``(n,)`` by row."""
        if method_name == _MASKS and self._masks is not None:
            return list(self._masks[self._get_indices(indices)])
        return super().env_method(method_name, *method_args, indices=indices, **kwargs)

    def _env_of(self, row: int) -> int:
        return row // len(self.possible_agents)
