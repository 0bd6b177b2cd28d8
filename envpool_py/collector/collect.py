"""The asynchronous collector.

What it guarantees:

- It never waits for the slowest env: a batch is what the pool hands out, and a reset is sent, not
  waited for.
- While the caller works on an episode, the envs work on: their actions were sent before.
- With ``balanced=True`` each env does a share that is fixed beforehand. Which episodes are
  collected then depends on seeds and policy alone, never on timing; only their order may.
- No episode that has been started is dropped, so that short ones are not favoured.
- Memory holds the running episodes, whatever the number collected.
"""

from __future__ import annotations

import contextlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py import seeding, spaces
from envpool_py.collector.buffer import EpisodeBuffer
from envpool_py.collector.episode import Episode
from envpool_py.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from envpool_py.collector.policy import Policy
    from envpool_py.pool import BaseVectorEnv
    from envpool_py.seeding import Seed


def shares(total: int, num_envs: int) -> list[int]:
    """``total`` split over the envs as evenly as it goes, the first ones getting one more."""
    each, more = divmod(total, num_envs)
    return [each + (i < more) for i in range(num_envs)]


class AsyncCollector:
    """Steps a pool with a policy and yields every episode when it has ended.

    Works with asynchronous and synchronous pools alike, and with wrapped ones. The pool is the
    caller's: the collector never closes it.

    Args:
        pool: a pool with ``autoreset_mode=None``.
        policy: ``policy(obs, env_ids) -> actions``; see ``Policy``.
        seed: for each env's first reset here, as in ``pool.reset``: an int ``s`` seeds env ``i``
            with ``s + i``; a list has one seed or None per env. Later episodes go on with the env's
            own stream. None leaves the envs as they are.
        keep_infos: whether episodes hold the info dicts of their rows.

    Attributes:
        pool: the pool.
        policy: the policy; may be replaced between episodes.
        num_rows: rows received so far, those of resets included.
        num_batches: batches received so far.
        num_steps: env steps done so far, those of running episodes included.
        num_started: episodes started so far.
        num_episodes: episodes finished so far.

    Raises:
        ValueError: the pool resets its envs itself, or the seeds are not as many as the envs.
        TypeError: a seed is not an int.
    """

    def __init__(
        self,
        pool: BaseVectorEnv,
        policy: Policy,
        *,
        seed: Seed = None,
        keep_infos: bool = False,
    ) -> None:
        if pool.autoreset_mode is not None:
            mode = pool.autoreset_mode.name.lower()
            raise ValueError(
                f"autoreset_mode is {mode!r}, but the collector resets the envs itself; build the"
                " pool with autoreset_mode=None"
            )
        self.pool = pool
        self.policy = policy
        self.num_rows = 0
        self.num_batches = 0
        self.num_steps = 0
        self.num_started = 0
        self.num_episodes = 0
        num_envs = len(pool)
        self._seeds = seeding.per_env(seed, range(num_envs))
        self._unused_seeds = dict(enumerate(self._seeds))
        self._episode = [-1] * num_envs
        self._finished_steps = [0] * num_envs
        self._resetting = np.zeros(num_envs, dtype=np.bool_)
        self._infos: list[list[dict[str, Any]]] | None = None
        if keep_infos:
            self._infos = [[] for _ in range(num_envs)]
        self._obs_layout = _common_layout(pool.observation_space)
        self._action_layout = _common_layout(pool.action_space)
        self._fixed_actions = spaces.is_fixed(self._action_layout)
        self._buffer = EpisodeBuffer(
            num_envs, spaces.leaves(self._obs_layout), spaces.leaves(self._action_layout)
        )

    def episodes(
        self,
        num_episodes: int | None = None,
        num_steps: int | None = None,
        *,
        balanced: bool = True,
    ) -> Iterator[Episode]:
        """Collect, and yield each episode when it has ended; without a limit, for ever.

        Every call starts with fresh episodes. A loop that is left early leaves requests in flight:
        the next call fetches and drops them, and so does ``pool.drain()``.

        Args:
            num_episodes: collect just so many. They are counted when they start, and each that has
                started is yielded.
            num_steps: start no episode once there are so many steps, and finish those that run: at
                least so many steps are yielded.
            balanced: True: each env does its share, fixed beforehand: ``num_episodes`` episodes
                split as ``shares`` does, or as many episodes as it takes to reach its share of
                ``num_steps``. The same episodes are collected whatever the timing. False: an env
                that is free takes the next episode. No env idles while another has work left, but
                which episodes are collected depends on timing.

        Raises:
            ValueError: both limits are given, or one is negative.
            EnvError: an env failed, while iterating. Episodes that had ended have been yielded.
        """
        for name, limit in (("num_episodes", num_episodes), ("num_steps", num_steps)):
            if limit is not None and limit < 0:
                raise ValueError(f"{name} must be 0 or more, got {limit}")
        if num_episodes is not None and num_steps is not None:
            raise ValueError("both num_episodes and num_steps are given; give one of them")
        if num_episodes is not None:
            return self._collect(self._while_episodes(num_episodes, balanced))
        if num_steps is not None:
            return self._collect(self._while_steps(num_steps, balanced))
        return self._collect(lambda _: True)

    def _while_episodes(self, total: int, balanced: bool) -> Callable[[int], bool]:
        left = shares(total, len(self.pool)) if balanced else [total]

        def may_start(env_id: int) -> bool:
            pot = env_id if balanced else 0
            left[pot] -= 1
            return left[pot] >= 0

        return may_start

    def _while_steps(self, total: int, balanced: bool) -> Callable[[int], bool]:
        if not balanced:
            stop = self.num_steps + total
            return lambda _: self.num_steps < stop
        stops = [
            done + share
            for done, share in zip(self._finished_steps, shares(total, len(self.pool)), strict=True)
        ]
        return lambda env_id: self._finished_steps[env_id] < stops[env_id]

    def _collect(self, may_start: Callable[[int], bool]) -> Iterator[Episode]:
        self._drop_running()
        running = self._start([i for i in range(len(self.pool)) if may_start(i)])
        while running:
            obs, rewards, terminated, truncated, infos = self.pool.recv()
            ids = np.array([info["env_id"] for info in infos], dtype=np.intp)
            started = self._store(ids, obs, rewards, infos)
            ended = terminated | truncated
            finished = []
            try:
                if np.count_nonzero(ended):
                    again = []
                    for k in np.flatnonzero(ended):
                        env_id = int(ids[k])
                        finished.append(self._finish(env_id, terminated[k], truncated[k]))
                        if may_start(env_id):
                            again.append(env_id)
                    running += self._start(again) - len(finished)
                    going_on = ~ended
                    ids = ids[going_on]
                    obs = _select(obs, going_on)
                if len(started):
                    self._announce(started)
                if len(ids):
                    self._act(ids, obs)
            except Exception:
                # What has ended is whole, whatever the policy or the pool has to say now.
                yield from finished
                raise
            yield from finished

    def _start(self, env_ids: list[int]) -> int:
        """Send the resets of new episodes; returns how many."""
        if not env_ids:
            return 0
        seeds = [self._unused_seeds.pop(i, None) for i in env_ids]
        self.pool.send_reset(env_ids, seed=seeds)
        self._resetting[env_ids] = True
        for i in env_ids:
            self._episode[i] += 1
        self.num_started += len(env_ids)
        return len(env_ids)

    def _store(
        self, ids: NDArray[np.intp], obs: Any, rewards: NDArray[np.float64], infos: Any
    ) -> NDArray[np.intp]:
        """Store a batch; returns the ids of the envs that were reset."""
        self.num_batches += 1
        self.num_rows += len(ids)
        started = ids[self._resetting[ids]]
        self._resetting[started] = False
        num_steps = len(ids) - len(started)
        self.num_steps += num_steps
        self._buffer.add(ids, self._obs_parts(obs), rewards if num_steps else None)
        if self._infos is not None:
            for i, info in zip(ids, infos, strict=True):
                self._infos[i].append(info)
        return started

    def _announce(self, started: NDArray[np.intp]) -> None:
        start_episodes = getattr(self.policy, "start_episodes", None)
        if start_episodes is not None:
            start_episodes(started)

    def _act(self, ids: NDArray[np.intp], obs: Any) -> None:
        actions = self.policy(obs, ids)
        if self._fixed_actions:
            parts = spaces.batch_actions(self._action_layout, actions, ids.tolist())
            if parts is None:
                raise ValueError(
                    "the policy gave None as an action, which the action space has no room for"
                )
            actions = spaces.join(self._action_layout, parts)
        else:
            actions = spaces.list_actions(self._action_layout, actions, ids.tolist())
            parts = _stack_rows(self._action_layout, actions, "action")
        self.pool.send(actions, ids)
        self._buffer.add_actions(ids, parts)

    def _finish(self, env_id: int, terminated: np.bool_, truncated: np.bool_) -> Episode:
        obs, actions, rewards = self._buffer.take(env_id)
        ends = np.zeros((2, len(rewards)), dtype=np.bool_)
        ends[:, -1] = terminated, truncated
        infos: tuple[dict[str, Any], ...] = ()
        if self._infos is not None:
            infos = tuple(self._infos[env_id])
            self._infos[env_id] = []
        episode = Episode(
            env_id=env_id,
            episode_id=self._episode[env_id],
            seed=self._seeds[env_id],
            observations=spaces.join(self._obs_layout, obs),
            actions=spaces.join(self._action_layout, actions),
            rewards=rewards,
            terminated=ends[0],
            truncated=ends[1],
            infos=infos,
        )
        self._finished_steps[env_id] += len(rewards)
        self.num_episodes += 1
        return episode

    def _obs_parts(self, obs: Any) -> list[Any]:
        """The leaves of a batch of observations, each with ``k`` rows."""
        if isinstance(obs, np.ndarray) and not spaces.is_leaf(self._obs_layout):
            return _stack_rows(self._obs_layout, obs, "obs")
        return spaces.split(self._obs_layout, obs, "obs")

    def _drop_running(self) -> None:
        """Fetch what an earlier loop, left early, has in flight, and forget its episodes."""
        while len(self.pool.waiting_id):
            # An error there is of an episode that nobody asks for any more.
            with contextlib.suppress(EnvError):
                self.pool.drain()
        self._buffer.clear()
        self._resetting[:] = False
        if self._infos is not None:
            self._infos = [[] for _ in self._infos]


def _common_layout(env_spaces: list[Any]) -> Any:
    """The layout of all the spaces; where they differ, rows are objects."""
    layout = spaces.layout_of(env_spaces[0])
    if all(spaces.layout_of(space) == layout for space in env_spaces[1:]):
        return layout
    return spaces.layout_of(None)


def _stack_rows(layout: Any, rows: Any, what: str) -> list[Any]:
    """The leaves of ``k`` trees, each with ``k`` rows."""
    split_rows = [spaces.split(layout, row, what) for row in rows]
    return [[row[n] for row in split_rows] for n, _ in enumerate(spaces.leaves(layout))]


def _select(obs: Any, rows: NDArray[np.bool_]) -> Any:
    """The rows of a batch of observations."""
    return spaces.map_tree(itemgetter(rows), obs)
