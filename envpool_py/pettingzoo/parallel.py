"""``ParallelVectorEnv``: many envs in which agents act at the same time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from envpool_py import seeding, spaces
from envpool_py.arguments import Options
from envpool_py.block import StepResult
from envpool_py.errors import name_ids
from envpool_py.ids import IdArray, Ids
from envpool_py.pettingzoo import packing
from envpool_py.pettingzoo.agent_spaces import unknown_agent
from envpool_py.pettingzoo.groups import ALIVE, TERMINATED, TRUNCATED, VALID, groups_of, names_of
from envpool_py.pettingzoo.packed_pool import packed_pool
from envpool_py.pettingzoo.packing import AgentDict, Rows
from envpool_py.seeding import Seed

#: (obs, rewards, terminated, truncated, info)
AgentStep = tuple[AgentDict, AgentDict, AgentDict, AgentDict, dict[str, Any]]


class ParallelVectorEnv:
    """Many PettingZoo parallel envs; batches are dicts ``{agent: (k, ...)}``.

    A batch has one row per env, and the agents of an env are never split over two batches. An agent
    that is not there, not yet or no longer, has zeros and reward 0.

    Args:
        env_fns: one callable for each env, which makes a ``ParallelEnv``, or an ``AECEnv`` that
            PettingZoo's ``aec_to_parallel`` takes.
        backend: ``"dummy"``, ``"subproc"``, ``"shmem"`` or ``"ray"``.
        wait_num: the rows that ``step`` and ``recv`` wait for; None is all.
        timeout: seconds after which a batch comes with fewer rows.
        autoreset_mode: None: the caller resets; ``"next_step"``, ``"same_step"``: as in Gymnasium,
            when no agent is left.
        num_processes: over how many processes the envs are spread; None is one for each env. Not
            for ``"dummy"``.
        state_in_info: bring ``env.state()`` with every row, as ``info["state"]``.
        **options: of the pool: ``context``, ``episode_seeds``, ``reset_fn``, ``copy``,
            ``strict_timeout``, ``on_error``, ...

    Attributes:
        pool: the pool that steps the envs, one row per env.
        possible_agents: the names of all agents.
        groups: the agents of one kind and equal spaces, by the name they share but for its number.

    Raises:
        TypeError: an argument is wrong, or an env is not PettingZoo's, or turn-based.
        ValueError: an argument is wrong, or the envs have different agents or spaces.
        EnvError: an env_fn raised.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        backend: str = "shmem",
        wait_num: int | None = None,
        timeout: float | None = None,
        autoreset_mode: str | gym.vector.AutoresetMode | None = None,
        num_processes: int | None = None,
        *,
        state_in_info: bool = False,
        **options: Any,
    ) -> None:
        self.pool, self._facts = packed_pool(
            env_fns,
            backend,
            wait_num,
            timeout,
            autoreset_mode,
            num_processes,
            options,
            with_state=state_in_info,
        )
        self._groups = groups_of(self._facts)
        self.possible_agents = list(self._facts.agents)
        self.groups = names_of(self._groups)
        self.metadata = self._facts.metadata
        self._recovers = options.get("on_error", "raise") != "raise"
        # One for each agent, though equal ones are sent as one: drawing from one leaves the others.
        self._action_spaces = {
            agent: copy.deepcopy(space) for agent, space in self._facts.action_spaces.items()
        }
        self._alive = np.zeros((self.num_envs, len(self.possible_agents)), dtype=np.bool_)
        self._place = {agent: n for n, agent in enumerate(self.possible_agents)}

    # -------------------------------------------------------------------------------- properties

    def __len__(self) -> int:
        return len(self.pool)

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self.pool.num_envs

    @property
    def wait_num(self) -> int:
        """The number of rows that a batch waits for; it may be set between calls."""
        return self.pool.wait_num

    @wait_num.setter
    def wait_num(self, wait_num: int | None) -> None:
        self.pool.wait_num = wait_num

    @property
    def timeout(self) -> float | None:
        """Seconds after which a batch comes with fewer rows; it may be set between calls."""
        return self.pool.timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        self.pool.timeout = timeout

    @property
    def is_async(self) -> bool:
        """Whether ``step`` may return fewer rows than envs."""
        return self.pool.is_async

    @property
    def autoreset_mode(self) -> gym.vector.AutoresetMode | None:
        """Who resets an env when no agent is left; None: the caller."""
        return self.pool.autoreset_mode

    @property
    def waiting_id(self) -> list[int]:
        """The envs in flight, the oldest request first."""
        return self.pool.waiting_id

    @property
    def ready_id(self) -> list[int]:
        """The envs that take a request, in the order in which their rows were handed out."""
        return self.pool.ready_id

    @property
    def is_closed(self) -> bool:
        """Whether this was closed."""
        return self.pool.is_closed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.possible_agents)} agents, {self.pool!r})"

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """The observation space of an agent; the same object at every call.

        Raises:
            KeyError: there is no such agent.
        """
        return self._of(self._facts.observation_spaces, agent)

    def action_space(self, agent: str) -> gym.Space[Any]:
        """The action space of an agent; the same object at every call.

        ``reset`` and ``seed`` seed it where they are given seeds, from the first of these.

        Raises:
            KeyError: there is no such agent.
        """
        return self._of(self._action_spaces, agent)

    @property
    def state_space(self) -> gym.Space[Any] | None:
        """The space of ``state``; None where the envs declare none."""
        space: gym.Space[Any] | None = self._facts.state_space
        return space

    def _of(self, own: dict[str, gym.Space[Any]], agent: str) -> gym.Space[Any]:
        if agent not in own:
            raise KeyError(unknown_agent(agent, self.possible_agents))
        return own[agent]

    # ---------------------------------------------------------------------------- reset and step

    def reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
    ) -> tuple[AgentDict, dict[str, Any]]:
        """Reset envs and wait for all of them.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or one entry for each id; the
                agents of an env share its seed.
            options: one dict for all, or a sequence of one for each id.

        Returns:
            ``{agent: (k, ...)}`` and the info, as of ``step``; rows in the order of the ids.

        Raises:
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised.
            IndexError, TypeError, ValueError: ids, seeds or options are wrong; nothing was sent.
        """
        obs, infos = self.pool.reset(env_id, id=id, seed=seed, options=options)
        self._seed_action_spaces(seed)
        flat = np.zeros(len(infos), dtype=np.bool_)
        reward = np.zeros((len(infos), len(self.possible_agents)))
        batch = self._handed_out((obs, reward, flat, flat, infos))
        return batch[0], batch[4]

    def step(self, actions: Any, id: Ids = None) -> AgentStep:  # noqa: A002 - Tianshou's name
        """Step envs; in async mode: send the actions, and return the next partial batch.

        Args:
            actions: ``{agent: k actions}``, where an agent that is alive in none of these envs may
                be left out, and the rows of agents that are not alive are not looked at; or a
                sequence of ``k`` dicts ``{agent: action}`` of the agents that are alive. None: send
                nothing and fetch, the next batch or that of the envs ``id``.
            id: which envs; None is all.

        Returns:
            Five values of ``k`` rows each:

            * observations ``{agent: (k, *shape)}`` (for Dict and Tuple spaces a dict or tuple of
              arrays), zeros for the absent;
            * rewards ``{agent: float64 (k,)}`` of this step;
            * ``terminated`` and ``truncated``, ``{agent: bool (k,)}``, which stay True until the
              env is reset;
            * info: ``env_id`` ``(k,)``; ``alive`` ``{agent: bool (k,)}``: who must act next;
              ``valid`` likewise: for whom this row is a transition; ``env_done`` bool ``(k,)``: no
              agent is left; ``is_reset`` bool ``(k,)``: the row is that of a reset that was asked
              for; ``agent_infos``, an object array ``(k,)`` of dicts ``{agent: info}`` of the infos
              that are not empty; ``action_mask`` ``{agent: bool (k, n)}`` of those whose actions
              are discrete or masked; with ``state_in_info`` also ``state`` ``(k, ...)``; with
              ``autoreset_mode="same_step"`` also ``final_obs`` and ``final_infos``, object arrays
              ``(k,)`` of dicts by agent where ``env_done``, and of None; with
              ``on_error="restart"`` and ``on_error="replay"`` also ``env_error``, an object array
              ``(k,)`` of the texts of errors and of None.

        Raises:
            ResetNeeded: no agent is left in an env, or it was never reset, or has raised since.
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised; the rows of the others are kept for the next ``recv``.
            IndexError, TypeError, ValueError: ids or actions are wrong, nothing was sent; or there
                is nothing to fetch.
        """
        if actions is None:
            return self._handed_out(self.pool.step(None, id))
        ids, columns = self._checked(actions, id)
        return self._handed_out(self.pool.step(columns, ids))

    def send(self, actions: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Send envs their actions and return at once; ``recv`` brings the rows.

        Args:
            actions: as for ``step``, but not None.
            id: which envs; None is all.

        Raises:
            ResetNeeded, AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``step``.
        """
        if actions is None:
            raise TypeError("send needs actions, got None; recv() and step(None) fetch rows")
        ids, columns = self._checked(actions, id)
        self.pool.send(columns, ids)

    def send_reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
    ) -> None:
        """Reset envs and return at once; their rows come with later batches.

        Such a row has reward 0, all flags but ``alive`` False, and ``is_reset`` True.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: as for ``reset``.
            options: as for ``reset``.

        Raises:
            AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``reset``.
        """
        self.pool.send_reset(env_id, id=id, seed=seed, options=options)

    def recv(self) -> AgentStep:
        """The next batch of rows, of steps and resets in flight; as ``step``.

        Raises:
            ValueError: nothing is in flight.
            EnvError: an env raised; the other rows are kept for the next ``recv``.
        """
        return self._handed_out(self.pool.recv())

    def drain(self) -> AgentStep:
        """Wait for everything in flight and return it as one batch, empty if nothing is.

        Raises:
            EnvError: as ``recv``.
        """
        return self._handed_out(self.pool.drain())

    # ----------------------------------------------------------------------------- side by side

    def group(self, values: AgentDict | dict[str, Any], name: str | None = None) -> Any:
        """The agents of a group side by side: ``(k, n, ...)``.

        Of what ``reset`` and ``step`` return it is a slice, and no copy, where the agents of the
        group lie together, as those of equal spaces do.

        Args:
            values: ``{agent: (k, ...)}``: observations, rewards, flags, masks, or your own.
            name: a key of ``groups``; None is all agents, whose spaces must then be equal.

        Returns:
            An array; for Dict and Tuple spaces a dict or tuple of arrays.

        Raises:
            KeyError: there is no such group.
            ValueError: the spaces of the agents differ.
        """
        agents = self._agents_of_group(name)
        side = packing.side_of(values, agents)
        if side is None:
            return _stacked([values[agent] for agent in agents])
        if side.matrix is not None:
            places = [self._place[agent] for agent in agents]
            return side.matrix[:, _as_slice(places)]
        n, group = next((n, g) for n, g in enumerate(self._groups) if agents[0] in g.agents)
        places = [group.agents.index(agent) for agent in agents]
        return _sliced(side.by_group[n], _as_slice(places))

    def _agents_of_group(self, name: str | None) -> Sequence[str]:
        if name is None:
            if len(self._groups) > 1:
                raise ValueError(
                    f"the spaces of the agents differ; name one of the groups"
                    f" {', '.join(self.groups)}"
                )
            return self.possible_agents
        if name not in self.groups:
            raise KeyError(f"unknown group {name!r}; the groups are {', '.join(self.groups)}")
        return self.groups[name]

    # --------------------------------------------------------------------- requests without rows

    def state(self, id: Ids = None) -> Any:  # noqa: A002 - Tianshou's name
        """The global state of envs, for a centralised critic.

        ``state_in_info=True`` brings it with every row, through shared memory.

        Args:
            id: which envs; None is all.

        Returns:
            ``(k, ...)``.

        Raises:
            EnvError: an env has no ``state``, or it raised.
            AlreadyPendingCallError: an env is in flight.
        """
        return spaces.stack_objects(
            self.pool.call("state", id=id), spaces.Leaf((), (), None, stacked=True)
        )

    def seed(self, seed: Seed = None) -> list[list[int | None]]:
        """Seed all envs, each by one reset whose observation is dropped.

        Args:
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or a list of one for each env.

        Returns:
            ``[[seed of env 0], [seed of env 1], ...]``.
        """
        seeds = self.pool.seed(seed)
        self._seed_action_spaces(seed)
        self._alive[:] = self.pool.get_env_attr("alive")
        return seeds

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:  # noqa: A002 - Tianshou's name
        """The attribute ``key`` of each env, as ``BaseVectorEnv.get_env_attr``."""
        return self.pool.get_env_attr(key, id)

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Set the attribute ``key`` of each env, as ``BaseVectorEnv.set_env_attr``."""
        self.pool.set_env_attr(key, value, id)

    def call(self, method: str, *args: Any, id: Ids = None, **kwargs: Any) -> list[Any]:  # noqa: A002
        """Call a method of each env, as ``BaseVectorEnv.call``."""
        return self.pool.call(method, *args, id=id, **kwargs)

    def render(self, id: Ids = None) -> list[Any]:  # noqa: A002 - Tianshou's name
        """Render each env, as ``BaseVectorEnv.render``."""
        return self.pool.render(id)

    def close(self) -> None:
        """Close all envs and end all processes, in bounded time; a second call does nothing."""
        self.pool.close()

    def __enter__(self) -> Any:
        self.pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- the inside

    def _checked(self, actions: Any, id: Ids) -> tuple[IdArray, dict[str, Any]]:  # noqa: A002
        """The ids, and the actions as columns of the pool; nothing has been sent."""
        ids = np.array(self.pool._wrap_id(id), dtype=np.intp)  # noqa: SLF001 - Tianshou's name of it
        self.pool._assert_id(ids)  # noqa: SLF001 - likewise
        alive = self._alive[ids]
        if self.autoreset_mode is None:
            over = ids[~alive.any(axis=1)]
            if len(over):
                raise ResetNeeded(
                    f"{name_ids(over.tolist())}: no agent is alive; reset before step"
                )
        columns = packing.action_columns(self._groups, self.possible_agents, actions, ids, alive)
        return ids, columns

    def _seed_action_spaces(self, seed: Seed) -> None:
        if isinstance(seed, (list, tuple, np.ndarray)):
            seed = next((one for one in seed if one is not None), None)
        first = seeding.per_env(seed, [0])[0]
        if first is not None:
            for n, space in enumerate(self._action_spaces.values()):
                # A stream of its own: with the env's seed it would repeat what the env draws.
                state = np.random.SeedSequence(first, spawn_key=(n,)).generate_state(1)
                space.seed(int(state[0]))

    def _rows(self, batch: StepResult) -> Rows:
        rows = packing.rows_of(batch)
        self._alive[rows.env_id] = rows.flags[:, ALIVE]
        return rows

    def _handed_out(self, batch: StepResult) -> AgentStep:
        rows = self._rows(batch)
        agents = self.possible_agents
        groups = self._groups
        info: dict[str, Any] = {
            "env_id": rows.env_id,
            "alive": self._flag(rows, ALIVE),
            "valid": self._flag(rows, VALID),
            "env_done": rows.env_done,
            "is_reset": rows.is_reset,
            "agent_infos": packing.objects(rows.infos),
        }
        if any(group.mask is not None for group in groups):
            info["action_mask"] = packing.masks_by_agent(groups, agents, rows.fields)
        state = packing.state_of(rows.fields)
        if state is not None:
            info["state"] = state
        if self._recovers:
            errors = [rows.errors.get(k) for k in range(len(rows.infos))]
            info["env_error"] = packing.objects(errors)
        if self.autoreset_mode is gym.vector.AutoresetMode.SAME_STEP:
            info["final_obs"] = packing.objects(
                [
                    packing.final_obs_by_agent(groups, agents, rows.finals[k])
                    if k in rows.finals
                    else None
                    for k in range(len(rows.infos))
                ]
            )
            info["final_infos"] = packing.objects(
                [rows.final_infos.get(k) for k in range(len(rows.infos))]
            )
        return (
            packing.obs_by_agent(groups, agents, rows.fields),
            packing.matrix_by_agent(rows.reward, agents),
            self._flag(rows, TERMINATED),
            self._flag(rows, TRUNCATED),
            info,
        )

    def _flag(self, rows: Rows, which: int) -> AgentDict:
        matrix: NDArray[np.bool_] = rows.flags[:, which]
        return packing.matrix_by_agent(matrix, self.possible_agents)


def _as_slice(places: Sequence[int]) -> Any:
    """A slice where the places lie together, which views; else the places."""
    first = places[0]
    together = list(places) == list(range(first, first + len(places)))
    return slice(first, first + len(places)) if together else list(places)


def _sliced(tree: Any, place: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _sliced(part, place) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_sliced(part, place) for part in tree)
    if tree is None:
        raise KeyError("the agents of this group have no action_mask")
    return tree[:, place]


def _stacked(values: Sequence[Any]) -> Any:
    """Batches ``(k, ...)`` of agents as one ``(k, n, ...)``."""
    if isinstance(values[0], dict):
        return {key: _stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_stacked(parts) for parts in zip(*values, strict=True))
    return np.stack(values, axis=1)
