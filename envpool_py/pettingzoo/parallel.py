"""``ParallelVectorEnv``: many envs in which agents act at the same time."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py import env_ids as ids_
from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.env.spaces import Array
from envpool_py.env_ids import IdArray, Ids
from envpool_py.errors import closed_on_error, name_ids
from envpool_py.options import Autoreset, Backend, NumProcesses
from envpool_py.pettingzoo.agent_spaces import AgentSpaces, assert_alike, blank, of_agent
from envpool_py.pettingzoo.convert import unknown_agent
from envpool_py.pettingzoo.packed_env import (
    AGENTS,
    ALIVE,
    FLAGS,
    INFOS,
    MASKS,
    OF_STEP,
    STATE,
    TERMINATED,
    TRUNCATED,
    VALID,
    PackedEnv,
)
from envpool_py.pool.adapter_base import PoolAdapter
from envpool_py.pool.arguments import Options, check_env_fns
from envpool_py.pool.keywords import CommonOptions, Fixed, StartOptions, check_options, spell_out
from envpool_py.pool.pool_classes import pool_class
from envpool_py.pool.stats import Stats
from envpool_py.seeding import Seed
from envpool_py.wrappers.vector import forward_to_pool

#: ``{agent: (k, ...)}``
ByAgent = dict[str, Any]
#: (obs, rewards, terminated, truncated, info)
Flags = dict[str, NDArray[np.bool_]]
AgentStep = tuple[ByAgent, dict[str, NDArray[np.float64]], Flags, Flags, dict[str, Any]]

#: The options of the pool that are decided here.
DECIDED = {
    "columns": Fixed(True, "batches of agents are arrays"),
    "reset_first": Fixed(True, "a reset says which agents act"),
}

_R = TypeVar("_R")


class _Options(CommonOptions, StartOptions, total=False):
    """The keywords of ``ParallelVectorEnv``, after its own."""


@spell_out(_Options, DECIDED)
class ParallelVectorEnv(PoolAdapter):
    """Many PettingZoo parallel envs; batches are dicts ``{agent: (k, ...)}``.

    A batch has one row per env, and the agents of an env are never split over two batches. An
    absent agent, before it appears or after its death, has zeros and reward 0. Methods, arguments
    and errors that are not described here are as in ``BaseVectorEnv``.

    Args:
        env_fns: one callable for each env, which makes a ``ParallelEnv``, or an ``AECEnv`` that
            PettingZoo's ``aec_to_parallel`` takes.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        wait_num: the rows that ``step`` and ``recv`` wait for; None: all.
        timeout: seconds after which a batch has fewer rows, but at least one.
        autoreset_mode: how an env is reset when no agent is left; None: call ``reset`` yourself.
        num_processes: the number of processes that share the envs; None: one per env. Not for
            ``"dummy"``.
        state_in_info: add ``env.state()`` to every row, as ``info["state"]``.
        copy: False: observations, masks and states are valid only until the next call.
        context: how worker processes are started, as in ``ShmemVectorEnv``.
        start_method: the same as ``context``.
        options: ``on_error``, ``step_timeout``, ``record``, ...: see ``PoolOptions``.

    Attributes:
        pool: the pool that steps the envs, one row per env.
        possible_agents: the names of all agents.
        groups: the agents of one kind and equal spaces, by the name they share but for its number.
        metadata: that of env 0.
        state_space: the space of ``state``; None where the envs declare none.

    Raises:
        TypeError: an argument is wrong, or an env is not PettingZoo's, or turn-based.
        ValueError: an argument is wrong, or the envs have different agents or spaces.
        EnvError: an env_fn raised.
    """

    metadata: Any = None

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        backend: Backend = "shmem",
        wait_num: int | None = None,
        timeout: float | None = None,
        autoreset_mode: Autoreset = None,
        num_processes: NumProcesses = None,
        *,
        state_in_info: bool = False,
        copy: bool = True,
        **options: Unpack[_Options],
    ) -> None:
        cls = pool_class(backend)
        own = check_options(cls, type(self).__name__, options, DECIDED)
        if num_processes is not None:
            own["num_processes"] = num_processes
        warned: set[str] = set()
        make = [
            functools.partial(PackedEnv, env_fn, warned, with_state=state_in_info)
            for env_fn in check_env_fns(env_fns)
        ]
        own |= {"autoreset_mode": autoreset_mode, "columns": True, "copy": False}
        self.pool = cls(make, wait_num, timeout, **own)
        with closed_on_error(self.pool):
            rows: Any = self.pool.single_observation_space
            self._spaces: AgentSpaces = rows.own
            self.metadata, self.state_space = self.pool.apply(_facts, id=0)[0]
        self._copies = copy
        self._restarts = own.get("on_error") == "restart"
        self.possible_agents: list[str] = list(self._spaces)
        self.groups = _groups_of(self._spaces)
        self._alive = np.zeros((self.num_envs, len(self.possible_agents)), dtype=np.bool_)

    if TYPE_CHECKING:  # of the pool; see forward_to_pool
        autoreset_mode: gym.vector.AutoresetMode | None
        batch_ids: IdArray
        is_async: bool
        ready_id: list[int]
        timeout: float | None
        wait_num: int
        waiting_id: list[int]
        workers: list[Any]
        call: Callable[..., list[Any]]
        cancel: Callable[..., None]
        get_env_attr: Callable[..., list[Any]]
        render: Callable[..., list[Any]]
        render_grid: Callable[..., Array]
        restart: Callable[..., None]
        send_reset: Callable[..., None]
        set_env_attr: Callable[..., None]
        stats: Callable[..., Stats]

    @property
    def unwrapped(self) -> ParallelVectorEnv:
        """This itself."""
        return self

    @property
    def agents(self) -> list[str]:
        """The agents that are alive in some env, in the order of ``possible_agents``."""
        return [self.possible_agents[n] for n in np.flatnonzero(self._alive.sum(axis=0))]

    @property
    def num_agents(self) -> int:
        """The number of ``agents``."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """The number of ``possible_agents``."""
        return len(self.possible_agents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.possible_agents)} agents, {self.pool!r})"

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """The observation space of an agent, always the same object; KeyError: no such agent."""
        return of_agent(self._spaces, agent)[0]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """The action space of an agent, always the same object; KeyError: no such agent.

        ``reset`` and ``seed`` seed it where they are given a seed for env 0.
        """
        own: Any = self.pool.action_space[0]
        return of_agent(own.spaces, agent)

    # The spaces of one env; a pool's names for what PettingZoo calls by the names above.
    single_observation_space, single_action_space = observation_space, action_space

    def reset(
        self, env_id: Ids = None, *, id: Ids = None, seed: Seed = None, options: Options = None
    ) -> tuple[ByAgent, dict[str, Any]]:
        """Reset envs and wait for all of them; the agents of an env share its seed.

        Return the observations and the info, as of ``step``, with rows in the order of the ids.
        EnvError if an env raised; IndexError, TypeError or ValueError for wrong ids, seed, options.
        """
        obs, infos = self.pool.reset(env_id, id=id, seed=seed, options=options)
        flags, rewards = np.zeros(len(infos), np.bool_), np.zeros((len(infos), len(self._spaces)))
        return self._by_agent((obs, rewards, flags, flags, infos))[::4]

    def step(self, actions: Any, id: Ids = None, *, env_id: Ids = None) -> AgentStep:
        """Step envs; in async mode: send the actions, and return the next partial batch.

        Args:
            actions: ``{agent: k actions}``, where an agent that is alive in none of these envs may
                be left out, and the rows of agents that are not alive are not looked at; or a
                sequence of ``k`` dicts ``{agent: action}`` of the agents that are alive. None: send
                nothing and fetch, the next batch or that of the envs ``id``.
            id: which envs; None is all.
            env_id: the same as ``id``.

        Returns:
            Five values of ``k`` rows each:

            * observations ``{agent: (k, *shape)}``, for Dict and Tuple spaces a dict or tuple of
              arrays;
            * rewards ``{agent: float64 (k,)}`` of this step;
            * ``terminated`` and ``truncated``, ``{agent: bool (k,)}``, True until the next reset;
            * info: ``env_id`` ``(k,)``; ``alive`` ``{agent: bool (k,)}``: who must act next;
              ``valid`` likewise: for whom this row is a transition; ``env_done`` bool ``(k,)``: no
              agent is left; ``is_reset`` bool ``(k,)``: the row of a reset that was asked for;
              ``agent_infos``, an object array ``(k,)`` of dicts ``{agent: info}`` of the infos that
              are not empty; ``action_mask`` ``{agent: bool (k, n)}`` of those whose actions are
              discrete or masked; with ``state_in_info`` also ``state`` ``(k, ...)``; with
              ``autoreset_mode="same_step"`` also ``final_obs`` and ``final_infos``, object arrays
              ``(k,)`` of dicts by agent where ``env_done``, else of None; with
              ``on_error="restart"`` also ``env_error``, an object array ``(k,)`` of the texts of
              errors that ended an env, else of None.

        Raises:
            ResetNeeded: no agent is left in an env, or it was never reset, or has raised since.
            EnvError: an env raised; the rows of the others are kept for the next ``recv``.
            TypeError, ValueError: actions are wrong, nothing was sent; or nothing is in flight.
        """
        ids = ids_.one_of(id, env_id)
        return self._by_agent(self.pool.step(self._checked(actions, ids), ids))

    def send(self, actions: Any, id: Ids = None, *, env_id: Ids = None) -> None:
        """Send envs their actions, as for ``step`` but not None; ``recv`` returns the rows."""
        ids = ids_.one_of(id, env_id)
        self.pool.send(self._checked(actions, ids), ids)

    def recv(self) -> AgentStep:
        """The next batch of what is in flight, in the form of ``step``; ValueError: nothing is."""
        return self._by_agent(self.pool.recv())

    async def recv_async(self) -> AgentStep:
        """As ``recv``, while other coroutines of the event loop run; see the pools' method."""
        return self._by_agent(await self.pool.recv_async())

    def sessions(self) -> Any:
        """Raise TypeError: the agents of an env act together, and a session steps one env."""
        raise TypeError("sessions: ParallelVectorEnv has none; step each env by send and recv")

    def drain(self) -> AgentStep:
        """Wait for everything in flight and return it as one batch, empty if nothing is."""
        return self._by_agent(self.pool.drain())

    def group(self, values: Mapping[str, Any], name: str | None = None) -> Any:
        """The values of a group of agents side by side: ``(k, n, ...)``.

        Observations that ``reset`` and ``step`` return are slices of it, and it is no copy.

        Args:
            values: ``{agent: (k, ...)}``: observations, rewards, flags, masks, or your own.
            name: a key of ``groups``, else KeyError; None is all agents, ValueError if their
                spaces differ.

        Returns:
            An array; for Dict and Tuple spaces a dict or tuple of arrays.
        """
        if name is None:
            assert_alike(self._spaces, f"name one of the groups {', '.join(self.groups)}")
        elif name not in self.groups:
            raise KeyError(f"unknown group {name!r}; the groups are {', '.join(self.groups)}")
        agents = self.possible_agents if name is None else self.groups[name]
        return side_by_side([values[agent] for agent in agents])

    def state(self, id: Ids = None, *, env_id: Ids = None) -> Any:
        """The global state of envs ``(k, ...)``, for a centralised critic.

        ``state_in_info=True`` brings it with every row, through shared memory.
        """
        states = self.pool.call("state", id=id, env_id=env_id)
        return spaces.stack_objects(states, spaces.Leaf((), (), None, stacked=True))

    def seed(self, seed: Seed = None) -> list[list[int | None]]:
        """Seed all envs, each by one reset without observation; return ``[[s0], [s1], ...]``."""
        seeds = self.pool.seed(seed)
        self._alive[:] = self.pool.get_env_attr("alive")
        return seeds

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        id: Ids = None,
        env_id: Ids = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function(env, *args, **kwargs)`` with each parallel env, in its process.

        The function is sent by cloudpickle. Return the results; EnvError if it raised.
        """
        return self.pool.apply(_on_inner, function, *args, id=id, env_id=env_id, **kwargs)

    def _checked(self, actions: Any, id: Ids) -> dict[str, Any] | None:
        """The actions as columns of the pool, whose envs ``id`` accept a request; None is None."""
        if actions is None:
            return None
        ids = ids_.resolve(id, self.num_envs)
        self.pool._inner.check_free(ids)
        alive = self._alive[ids]
        if self.autoreset_mode is None:
            over = ids[~alive.any(axis=1)].tolist()
            if over:
                hint = 'reset before step, or pass autoreset_mode="same_step"'
                raise ResetNeeded(f"{name_ids(over)}: no agent is alive; {hint}")
        return _action_columns(self._spaces, actions, ids.tolist(), alive)

    def _by_agent(self, batch: StepResult) -> AgentStep:
        """A batch of the pool in the form that is returned; with ``copy`` all of it is new."""
        row, reward, terminated, truncated, told = batch
        infos: list[dict[str, Any]] = told.tolist()
        info: dict[str, Any] = {
            "env_id": self.pool.batch_ids,
            "env_done": terminated | truncated,
            "is_reset": np.array(["is_reset" in each for each in infos], dtype=np.bool_),
            "agent_infos": spaces.objects([each.get(INFOS, {}) for each in infos]),
        }
        flags = row[FLAGS].copy()
        for k, each in enumerate(infos):
            last = flags[k]
            if "final_obs" in each:  # the flags of the step are those before the automatic reset
                last = each["final_obs"][FLAGS]
                flags[k, OF_STEP] = last[OF_STEP]
            if "env_error" in each and truncated[k]:  # the episode was lost for who was alive
                flags[k, VALID] = last[ALIVE]
                flags[k, TRUNCATED] |= last[ALIVE]
                flags[k, ALIVE] &= "final_obs" in each
        self._alive[info["env_id"]] = flags[:, ALIVE]
        info["alive"], info["valid"], terminations, truncations = (
            self._columns(flags[:, flag]) for flag in (ALIVE, VALID, TERMINATED, TRUNCATED)
        )
        obs, masks = row[AGENTS], row[MASKS]
        if self._copies:
            obs = dict(obs)
            for agents in self.groups.values():
                block = side_by_side([obs[agent] for agent in agents])
                for n, agent in enumerate(agents):
                    obs[agent] = spaces.take(block, (slice(None), n))
            masks = {agent: mask.copy() for agent, mask in masks.items()}
        if masks:
            info["action_mask"] = masks
        if STATE in row:
            info["state"] = deepcopy(row[STATE]) if self._copies else row[STATE]
        if self._restarts:
            info["env_error"] = spaces.objects([each.get("env_error") for each in infos])
        if self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP:
            ended = [each if "final_obs" in each else None for each in infos]
            last = [each and each["final_obs"][AGENTS] for each in ended]
            last_infos = [each and each.get("final_info", {}).get(INFOS, {}) for each in ended]
            info["final_obs"], info["final_infos"] = map(spaces.objects, (last, last_infos))
        return obs, self._columns(reward.copy()), terminations, truncations, info

    def _columns(self, matrix: Array) -> ByAgent:
        return dict(zip(self.possible_agents, matrix.T, strict=True))


forward_to_pool(ParallelVectorEnv, "pool")


def _action_columns(
    own: AgentSpaces, actions: Any, ids: list[int], alive: NDArray[np.bool_]
) -> dict[str, Any]:
    """The actions of a batch as a column per agent, with zeros for agents not ``alive`` ``(k, n)``.

    ``actions`` are as in ``ParallelVectorEnv.step``, of the ``k`` envs ``ids``. TypeError for
    another form, ValueError for an unknown agent, an action missing or in excess, or another count.
    """
    if not isinstance(actions, Mapping):
        actions = _by_agent(own, actions, ids, alive)
    for agent in actions:
        if agent not in own:
            raise ValueError(f"actions: {unknown_agent(agent, own)}")
    columns = {}
    for (agent, (_, space)), acts in zip(own.items(), alive.T.tolist(), strict=True):
        column = actions.get(agent, [None] * len(ids))
        if isinstance(column, np.ndarray) and column.ndim and column.dtype.hasobject:
            column = list(column)
        if not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            raise TypeError(f"agent {agent!r}: got a scalar, not {len(ids)} actions")
        counted = isinstance(column, list) or hasattr(column, "ndim")
        if counted and len(column) != len(ids):
            raise ValueError(f"agent {agent!r}: got {len(column)} actions for {len(ids)} envs")
        if isinstance(column, (list, tuple)):
            for i, action, act in zip(ids, column, acts, strict=False):
                if act and action is None:
                    raise ValueError(f"env {i}: no action for agent {agent!r}, which is alive")
            column = _filled(space, column)
        columns[agent] = column
    return columns


def _filled(space: gym.Space[Any], actions: Any) -> Any:
    """Return actions with zeros for None; for a Dict or Tuple space as a tree of columns."""
    layout = spaces.layout_of(space)
    if any(action is None for action in actions):
        zeros = blank(space)
        actions = [zeros if action is None else action for action in actions]
    if spaces.is_leaf(layout) or (isinstance(layout, tuple) and isinstance(actions, tuple)):
        return actions  # one leaf, or a tuple of columns already
    rows = [spaces.split(layout, action, "action") for action in actions]
    leaves = range(len(spaces.leaves(layout)))
    return spaces.join(layout, [[row[m] for row in rows] for m in leaves])


def _by_agent(
    own: AgentSpaces, actions: Any, ids: list[int], alive: NDArray[np.bool_]
) -> dict[str, list[Any]]:
    """Convert a dict of actions per env, of live agents only, to a list of actions per agent."""
    if isinstance(actions, (str, bytes)) or not hasattr(actions, "__len__"):
        forms = "a dict {agent: k actions} or a sequence of k dicts {agent: action}"
        raise TypeError(f"actions: got a {type(actions).__name__}; pass {forms}")
    if len(actions) != len(ids):
        raise ValueError(f"got {len(actions)} actions for {len(ids)} envs")
    for i, row, acts in zip(ids, actions, alive.tolist(), strict=True):
        if not isinstance(row, Mapping):
            text = f"actions must be a dict {{agent: action}}, got {type(row).__name__}"
            raise TypeError(f"env {i}: {text}")
        for agent in row:
            if agent not in own:
                raise ValueError(f"env {i}: {unknown_agent(agent, own)}")
        for agent, act in zip(own, acts, strict=True):
            if not act and row.get(agent) is not None:
                text = f"an action for agent {agent!r}, which is not alive; leave it out"
                raise ValueError(f"env {i}: {text}, or pass None")
    return {agent: [row.get(agent) for row in actions] for agent in own}


def _on_inner(env: PackedEnv, function: Callable[..., _R], /, *args: Any, **kwargs: Any) -> _R:
    return function(env.env, *args, **kwargs)


def _facts(env: PackedEnv) -> tuple[Any, gym.Space[Any] | None]:
    return getattr(env, "metadata", None), getattr(env, "state_space", None)


def _groups_of(own: AgentSpaces) -> dict[str, tuple[str, ...]]:
    """The agents of one kind and equal spaces, by the name they share but for its number.

    Where agents of one name have different spaces, each such group is called by its first agent.
    """
    groups: dict[tuple[str, str], list[str]] = {}  # by the stem of the name and the first agent
    for agent, pair in own.items():
        stem = re.sub(r"_?\d+$", "", agent) or agent
        first = next((one for name, one in groups if name == stem and own[one] == pair), agent)
        groups.setdefault((stem, first), []).append(agent)
    stems = [stem for stem, _ in groups]
    return {
        first if stems.count(stem) > 1 else stem: tuple(group)
        for (stem, first), group in groups.items()
    }


def side_by_side(values: Sequence[Any]) -> Any:
    """Batches ``(k, ...)`` as one ``(k, n, ...)``, which they view if they are its columns."""
    return spaces.map_tree(_block_of, *values)


def _block_of(*columns: Any) -> Array:
    block = getattr(columns[0], "base", None)
    if isinstance(block, np.ndarray) and block.shape[1:2] == (len(columns),):
        own = [block[:, n].__array_interface__ for n in range(len(columns))]
        if own == [np.asarray(column).__array_interface__ for column in columns]:
            return block
    return np.stack(columns, axis=1)
