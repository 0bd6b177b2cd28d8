"""The asynchronous collector: while the caller works on what was collected, the envs step.

Fast envs fill more of the batches of ``steps`` than slow ones, and episodes that end early come
first: the first 16 random CartPole episodes of 16 envs have 17 steps on average, 16 that are chosen
beforehand have 22. ``rollout``, ``episodes`` and ``evaluate`` have fixed shares of each env.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py import seeding
from envpool_py.collector.episode import Episode, Transitions
from envpool_py.collector.episode_buffer import EpisodeBuffer, OpenRows, stacked, widened
from envpool_py.collector.policy import (
    Policy,
    PolicyWithInfos,
    check_pool_and_policy,
    split_extras,
    takes_infos,
)
from envpool_py.collector.rollout import Rollout, RolloutBuffer
from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.errors import EnvError
from envpool_py.pool.arguments import check_wait_num
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.engine_for_interfaces import drained_rows
from envpool_py.seeding import Seed
from envpool_py.worker.builtin_env_workers import DummyEnvWorker


def shares(total: int, num_envs: int) -> list[int]:
    """Split ``total`` over the envs as evenly as possible; the first envs get one more."""
    each, more = divmod(total, num_envs)
    return [each + (i < more) for i in range(num_envs)]


class _Batch(NamedTuple):
    """A batch of the pool, for the policy and for storage.

    In same-step mode a row may end an episode and begin the next. ``obs`` and ``infos``, for the
    policy, then belong to the next episode; ``seen``, for storage, to the ended one.
    """

    ids: NDArray[np.intp]
    obs: Any
    infos: Any
    seen: list[Any]  # per leaf of the observation, and last the infos, if they are kept
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    begins: NDArray[np.bool_]  # rows of resets that were sent
    ends: NDArray[np.bool_]
    failed: NDArray[np.bool_]


class AsyncCollector:
    """Steps a pool with a policy and yields episodes or transitions.

    Works with asynchronous and synchronous pools, with every ``autoreset_mode``, and with wrapped
    pools. Memory holds the running episodes, or one batch of transitions, whatever the number
    collected. The collector never closes the pool; at the end of a ``with`` block it cancels what
    is in flight. Do not step the pool while a loop over the collector runs.

    If the pool restarts an env (``on_error="restart"``), its episode ends with a truncated step,
    whose observation is the last one that is known.

    Args:
        pool: the pool. In ``autoreset_mode="same_step"`` an env has begun its next episode when
            one ends: if that is not collected, it counts in ``episode_id`` nevertheless.
        policy: ``policy(obs, env_ids) -> actions`` or ``-> (actions, extras)``; with a parameter
            ``infos``, ``policy(obs, env_ids, infos)``. See ``Policy``.
        seed: for each env's first reset here, as in ``pool.reset``: an int ``s`` seeds env ``i``
            with ``s + i``; a list has one seed or None per env. Later episodes go on with the env's
            own stream, or have the seeds of the pool's ``episode_seeds`` or ``reset_fn``. None
            leaves the envs unchanged.
        keep_infos: whether episodes and transitions hold the info dicts of their rows; or the keys
            that they hold.
        wait_num: the rows that the collector waits for, in place of the pool's own ``wait_num``.

    Attributes:
        num_rows, num_batches: rows, those of resets included, and batches received so far.
        num_steps: env steps done so far, those of running episodes included.
        num_started, num_episodes: episodes started, and finished, so far.

    Raises:
        ValueError: the seeds are not as many as the envs, or ``wait_num`` is out of range or of a
            pool that steps all envs in this process.
        TypeError: ``pool`` is no pool, a seed is not an int, or ``policy`` is not callable.
    """

    def __init__(
        self,
        pool: BaseVectorEnv,
        policy: Policy | PolicyWithInfos,
        *,
        seed: Seed = None,
        keep_infos: bool | Sequence[str] = False,
        wait_num: int | None = None,
    ) -> None:
        self.pool = pool
        self.policy = policy
        check_wait_num(wait_num, len(pool))
        self._wait_num = wait_num
        if wait_num is not None and issubclass(pool.worker_class, DummyEnvWorker):
            text = "this pool steps its envs in this process, one after the other, so a partial"
            hint = "batch saves no time; make it with worker processes, or drop wait_num"
            raise ValueError(f"wait_num: {text} {hint}")
        self.num_rows = self.num_batches = self.num_steps = 0
        self.num_started = self.num_episodes = 0
        num_envs = len(pool)
        self._same_step = pool.autoreset_mode is AutoresetMode.SAME_STEP
        self._seeds = _EpisodeSeeds(pool, seeding.per_env(seed, range(num_envs)))
        self._keep_infos = [keep_infos] if isinstance(keep_infos, str) else keep_infos
        self._episode = np.full(num_envs, -1)
        self._finished_steps = np.zeros(num_envs, np.int64)
        self._obs_layout = common_layout(pool.observation_space)
        self._action_layout = common_layout(pool.action_space)
        self._fixed_actions = spaces.is_fixed(self._action_layout)
        self._uses = pool._inner.usage_marker
        self._in_rows = False  # whether the pool returns trees as rows, and not as columns
        self._held: Any = None  # the rows at which the last rollout ended
        # "steps" or "rollout", when it was left, and the uses of the pool until then.
        self._left: tuple[str, tuple[int, int, bytes]] | None
        # Transitions that ``steps`` has not yielded yet, and how many there are.
        self._pending: deque[Transitions]
        self._num_pending = 0
        self._forget_running()

    @property
    def policy(self) -> Policy | PolicyWithInfos:
        """The policy; may be replaced at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy | PolicyWithInfos) -> None:
        check_pool_and_policy(self.pool, policy)
        self._policy = policy
        self._takes_infos = takes_infos(policy)

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self.pool.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed:
            self.pool.cancel()

    def __repr__(self) -> str:
        counts = f"{self.num_episodes} episodes, {self.num_steps} steps"
        return f"{type(self).__name__}({counts}, {self.pool!r})"

    def episodes(
        self, num_episodes: int | None = None, num_steps: int | None = None
    ) -> Iterator[Episode]:
        """Collect, and yield each episode when it has ended; without a limit, indefinitely.

        Every call starts with fresh episodes. A loop that is left early leaves requests in flight:
        the next call fetches and drops them, and so does ``pool.drain()``. With a limit each env
        does its share, fixed beforehand, so the same episodes are collected whatever the timing.

        Args:
            num_episodes: collect exactly so many, split over the envs as ``shares`` does.
            num_steps: collect at least so many steps: each env starts no episode once it has its
                share of them, and finishes the one that runs.

        Raises:
            ValueError: both limits are given, or one is negative.
            EnvError: an env failed, while iterating. First the requests of the other envs are
                finished, and each episode that has ended is yielded.
            KeyboardInterrupt: Ctrl-C; its ``finished`` has the episodes that had just ended.
            RuntimeError: the pool was used otherwise since the last episode, while iterating.
        """
        for name, limit in (("num_episodes", num_episodes), ("num_steps", num_steps)):
            if limit is not None and limit < 0:
                raise ValueError(f"{name} must be 0 or more, got {limit}")
        if num_episodes is not None and num_steps is not None:
            raise ValueError("both num_episodes and num_steps are given; give one of them")
        if num_episodes is None:
            return self._episodes(self._finished_steps, num_steps)
        return self._episodes(self._episode, num_episodes)

    def steps(self, batch_size: int | None = None) -> Iterator[Transitions]:
        """Collect transitions indefinitely, and yield them in batches as they come.

        An env that ends an episode begins the next. Which transitions a batch has depends on
        timing, and fast envs fill more of them than slow ones: if that matters, use ``rollout``.
        Those of each env are in order and complete. A loop that is left goes on in the next call,
        with the same running episodes and without losing a transition, unless the pool was used in
        between, by ``episodes``, ``rollout`` or another collector for instance, or an error was
        raised: then fresh episodes are started.

        Args:
            batch_size: how many transitions each batch has; None: as many as the pool returns at a
                time, at least one.

        Raises:
            ValueError: ``batch_size`` is less than 1.
            EnvError: an env failed, while iterating.
            RuntimeError: the pool was used otherwise since the last batch, while iterating.
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        return self._steps(batch_size)

    def rollout(self, num_steps: int) -> Rollout:
        """Collect steps of all envs under one policy, and return when no env is in flight.

        An env that is ready takes its next step at once, and one that has made its steps waits for
        the others, so that no env is represented more than another. ``wait_num``, or the pool's,
        and its ``timeout`` say for how many envs the policy is called. The next call continues the
        same episodes, unless the pool was used in between, by ``steps`` for instance, or an error
        was raised: then, as in the first call, fresh episodes are started.

        Args:
            num_steps: the steps of each env; resets are no steps.

        Raises:
            ValueError: ``num_steps`` is less than 1.
            EnvError: an env failed; the steps of this rollout are lost.
        """
        num_envs = len(self.pool)
        layouts = self._obs_layout, self._action_layout
        keeps_infos = bool(self._keep_infos)
        rows = RolloutBuffer(num_envs, num_steps, *layouts, keeps_infos=keeps_infos)
        goes_on, self._left = self._left == ("rollout", self._uses()), None
        with self._partial_batches():
            if goes_on:
                everyone = np.arange(num_envs)
                rows.open(everyone, self._held)
                *parts, infos, _ = self._held
                obs = stacked(self._obs_layout, spaces.join(self._obs_layout, parts))
                if self._in_rows:
                    obs = spaces.as_rows(self._obs_layout, parts, num_envs)
                self._act(everyone, obs, infos, rows)
            else:
                self._start_afresh(range(num_envs))
            while self.pool.waiting_id:
                batch = self._receive(self.pool.recv())
                rows.close(batch)
                acting = self._begin(batch, batch.ends)
                obs = self._obs_parts(spaces.take(batch.obs, acting))
                starts = batch.begins | batch.ends
                seen = [*obs, batch.infos[acting], starts[acting]]
                acting[acting] = rows.open(batch.ids[acting], seen)
                self._act_on(batch, acting, rows)
        self._held, self._left = rows.held(), ("rollout", self._uses())
        return rows.finish()

    def _episodes(self, done: NDArray[np.int64], limit: int | None) -> Iterator[Episode]:
        """Collect until each env has ``done`` its share of the limit."""
        stops: Any = np.inf if limit is None else done + shares(limit, len(self.pool))
        starting = np.flatnonzero(done < stops)
        self._start_afresh(starting.tolist())
        running = len(starting)
        while running:
            finished: list[Episode] = []
            try:
                with self._partial_batches():
                    batch = self._receive(self.pool.recv())
                    finished = self._ended(batch)
                    again = batch.ends & (done < stops)[batch.ids]
                    running -= int(np.count_nonzero(batch.ends & ~again))
                    self._go_on(batch, again, self._buffer)
            except Exception as error:
                # Ended episodes are complete, even if the policy or the pool raises now.
                yield from finished
                if isinstance(error, EnvError):
                    for result in drained_rows(self.pool):
                        yield from self._ended(self._receive(result))
                raise
            except BaseException as interrupt:  # a loop that is left at an episode would lose it
                interrupt.finished = finished  # type: ignore[attr-defined]
                raise
            used = self._uses()
            for episode in finished:
                yield episode
                self._check_unused(used)

    def _ended(self, batch: _Batch) -> list[Episode]:
        self._buffer.add(batch.ids, batch.seen, batch.rewards)
        return [self._finish(batch, int(k)) for k in np.flatnonzero(batch.ends)]

    def _steps(self, batch_size: int | None) -> Iterator[Transitions]:
        if self._left != ("steps", self._uses()):
            self._start_afresh(range(len(self.pool)))
        while True:
            while (transitions := self._take_pending(batch_size)) is not None:
                used = self._uses()
                self._left = "steps", used
                yield transitions
                self._check_unused(used)
            self._left = None
            with self._partial_batches():
                batch = self._receive(self.pool.recv())
                self._take_steps(batch)
                self._go_on(batch, batch.ends, self._last)

    def _check_unused(self, used: tuple[int, int, bytes]) -> None:
        if self._uses() != used:
            text = "the pool was used otherwise while this loop was collecting, by another loop or"
            hint = "collector for instance; leave the loop first, or use another pool"
            raise RuntimeError(f"{text} {hint}")

    def _receive(self, result: StepResult) -> _Batch:
        """Take apart the rows that end an episode and begin the next."""
        obs, rewards, terminated, truncated, infos = result
        ids = self.pool.batch_ids
        begins = self._resetting[ids]
        self._resetting[ids] = False
        self.num_batches += 1
        self.num_rows += len(ids)
        self.num_steps += len(ids) - int(np.count_nonzero(begins))
        seen = self._seen(obs, infos)
        ends = terminated | truncated
        if ends.any():  # a turn-based env goes on where one of its agents has ended
            if self._same_step:
                ends &= ["final_obs" in info for info in infos]
                self._put_last(seen, ids, ends, infos)
            else:
                ends[ends.copy()] = list(map(self.pool._inner.is_over, ids[ends].tolist()))
        failed = self.pool._inner.failed(ids)
        return _Batch(ids, obs, infos, seen, rewards, terminated, truncated, begins, ends, failed)

    def _seen(self, obs: Any, infos: Iterable[dict[str, Any]]) -> list[Any]:
        """What is stored of a batch, per leaf."""
        kept = [spaces.objects([self._kept(info) for info in infos])] if self._keep_infos else []
        return [*self._obs_parts(obs), *kept]

    def _put_last(
        self, seen: list[Any], ids: NDArray[np.intp], ends: NDArray[np.bool_], infos: Any
    ) -> None:
        """Replace what was seen in the rows ``ends`` by the last of their episodes."""
        for n, leaf in enumerate(spaces.leaves(self._obs_layout)):
            # Rows of an undeclared space may have stacked, and the last not be like them.
            is_array = leaf.dtype is not None and isinstance(seen[n], np.ndarray)
            seen[n] = seen[n].copy() if is_array else list(seen[n])
        for k in np.flatnonzero(ends):
            last = spaces.split(self._obs_layout, infos[k]["final_obs"], "obs")
            if self._keep_infos:
                last.append(self._kept({**infos[k]["final_info"], "env_id": int(ids[k])}))
            for part, value in zip(seen, last, strict=True):
                part[k] = value

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        keys = self._keep_infos
        if isinstance(keys, bool):
            return info
        return {key: info[key] for key in keys if key in info}

    def _take_steps(self, batch: _Batch) -> None:
        """Store a batch, and make transitions of its rows of steps."""
        rows = ~batch.begins
        ids = batch.ids[rows]
        before, actions, extras = self._last.of(ids)
        self._last.add(batch.ids, batch.seen)
        after, _, _ = self._last.of(ids)
        if len(ids):
            transitions = Transitions(
                obs=spaces.join(self._obs_layout, before),
                actions=spaces.join(self._action_layout, actions),
                rewards=batch.rewards[rows],
                terminated=batch.terminated[rows],
                truncated=batch.truncated[rows],
                next_obs=spaces.join(self._obs_layout, after),
                env_id=ids.astype(np.int64),
                episode_id=self._episode[ids],
                extras=extras,
                infos=before[-1] if self._keep_infos else None,
                next_infos=after[-1] if self._keep_infos else None,
            )
            if self._pending and self._pending[-1].rewards.ndim < batch.rewards.ndim:
                shape = batch.rewards.shape[1:]
                wide = [replace(one, rewards=widened(one.rewards, shape)) for one in self._pending]
                self._pending = deque(wide)
            self._pending.append(transitions)
            self._num_pending += len(ids)

    def _take_pending(self, batch_size: int | None) -> Transitions | None:
        """Take a batch of what ``steps`` has collected; None if that is not enough."""
        if self._num_pending < (batch_size or 1):
            return None
        missing = batch_size or self._num_pending
        self._num_pending -= missing
        parts = []
        while missing:
            part = self._pending.popleft()
            if len(part) > missing:
                self._pending.appendleft(part[missing:])  # a view: a copy of all is too slow
                part = part[:missing]
            parts.append(part)
            missing -= len(part)
        found = parts[0].join(*parts[1:])
        return replace(
            found,
            obs=stacked(self._obs_layout, found.obs),
            actions=stacked(self._action_layout, found.actions),
            next_obs=stacked(self._obs_layout, found.next_obs),
        )

    def _start(self, env_ids: Sequence[int]) -> None:
        if len(env_ids):
            self.pool.send_reset(list(env_ids), seed=self._seeds.take(env_ids))
            self._resetting[list(env_ids)] = True
            self._count(env_ids)

    def _count(self, env_ids: Sequence[int]) -> None:
        self._episode[list(env_ids)] += 1
        self.num_started += len(env_ids)

    def _go_on(self, batch: _Batch, again: NDArray[np.bool_], rows: OpenRows) -> None:
        """Begin the next episodes of those rows, and send actions to the envs that are running."""
        if self._same_step and again.any():
            infos = [_of_reset(info) for info in batch.infos[again]]
            rows.add(batch.ids[again], self._seen(spaces.take(batch.obs, again), infos))
        self._act_on(batch, self._begin(batch, again), rows)

    def _begin(self, batch: _Batch, again: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Begin the next episodes of the rows ``again``; return which rows wait for an action."""
        started, restarted = batch.ids[batch.begins], batch.ids[again]
        acting = ~batch.ends
        if not self._same_step:
            self._start(restarted.tolist())
        elif len(restarted):
            acting |= again
            self._seeds.take(restarted.tolist())  # none is left: the pool has reset them itself
            self._count(restarted.tolist())
            started = np.concatenate([started, restarted])
        if len(started):
            self._seeds.begin(started.tolist())
            start_episodes = getattr(self.policy, "start_episodes", None)
            if start_episodes is not None:
                start_episodes(started)
        return acting

    def _act_on(self, batch: _Batch, acting: NDArray[np.bool_], rows: OpenRows) -> None:
        if acting.any():
            which = slice(None) if acting.all() else acting  # no copy of a whole batch
            obs = spaces.take(batch.obs, which)
            self._act(batch.ids[which], obs, batch.infos[which], rows)

    def _act(self, ids: NDArray[np.intp], obs: Any, infos: Any, rows: OpenRows) -> None:
        policy: Any = self._policy
        returned = policy(obs, ids, infos=infos) if self._takes_infos else policy(obs, ids)
        actions, extras = split_extras(returned, ids)
        if self._fixed_actions:
            parts = spaces.batch_actions(self._action_layout, actions, ids.tolist())
            if parts is None:
                text = "gave None as an action, which the action space has no room for"
                raise ValueError(f"the policy {text}")
            actions = spaces.join(self._action_layout, parts)
        else:
            actions = spaces.list_actions(self._action_layout, actions, ids.tolist())
            columns = spaces.as_columns(self._action_layout, spaces.objects(actions))
            parts = spaces.split(self._action_layout, columns, "action")
        # First what may refuse the extras; only then is anything sent.
        rows.add_actions(ids, parts, extras)
        self.pool.send(actions, ids)

    def _finish(self, batch: _Batch, k: int) -> Episode:
        env_id = int(batch.ids[k])
        seen, actions, rewards, extras = self._buffer.take(env_id)
        ends = np.zeros((2, len(rewards)), dtype=np.bool_)
        ends[:, -1] = batch.terminated[k], batch.truncated[k]
        episode = Episode(
            env_id=env_id,
            episode_id=int(self._episode[env_id]),
            env_seed=self._seeds.of_env[env_id],
            seed=self._seeds.of_episode[env_id],
            obs=spaces.join(self._obs_layout, seen),
            actions=spaces.join(self._action_layout, actions),
            rewards=rewards,
            terminated=ends[0],
            truncated=ends[1],
            extras=extras,
            infos=tuple(seen[-1]) if self._keep_infos else (),
            failed=bool(batch.failed[k]),
        )
        self._finished_steps[env_id] += len(rewards)
        self.num_episodes += 1
        return episode

    def _obs_parts(self, obs: Any) -> list[Any]:
        """The leaves of a batch of observations, each with ``k`` rows."""
        self._in_rows = isinstance(obs, np.ndarray) and not spaces.is_leaf(self._obs_layout)
        return spaces.split(self._obs_layout, spaces.as_columns(self._obs_layout, obs), "obs")

    def _start_afresh(self, env_ids: Sequence[int]) -> None:
        """Start episodes, once what an earlier loop has left in flight is fetched and dropped."""
        for _ in drained_rows(self.pool):
            pass
        self._forget_running()
        with self._partial_batches():
            self._start(env_ids)

    @contextlib.contextmanager
    def _partial_batches(self) -> Iterator[None]:
        """Within the block the pool has the collector's ``wait_num``, if that is given."""
        before = self.pool.wait_num
        if self._wait_num is not None:
            self.pool.wait_num = self._wait_num
        try:
            yield
        finally:
            if self._wait_num is not None:
                self.pool.wait_num = before

    def _forget_running(self) -> None:
        seen, actions = spaces.leaves(self._obs_layout), spaces.leaves(self._action_layout)
        if self._keep_infos:
            seen.append(spaces.Leaf((), (), None))
        self._buffer = EpisodeBuffer(len(self.pool), seen, actions)
        self._last = OpenRows(len(self.pool), seen, actions)
        self._resetting = np.zeros(len(self.pool), dtype=np.bool_)
        self._pending, self._num_pending, self._left = deque(), 0, None


class _EpisodeSeeds:
    """The seeds of the envs and of their running episodes.

    Attributes:
        of_env: by env, the seed of its first episode, or that of which the pool makes all others.
        of_episode: by env, the seed of its last reset.
    """

    def __init__(self, pool: BaseVectorEnv, seeds: list[int | None]) -> None:
        self._inner = pool._inner
        self._unused = dict(enumerate(seeds))
        self.of_env = list(seeds)
        self.of_episode: list[int | None] = [None] * len(seeds)

    def take(self, env_ids: Sequence[int]) -> list[int | None]:
        """The seeds for resets of these envs: each env's only once."""
        for i in env_ids:
            self.of_episode[i] = self._unused.pop(i, None)
        return [self.of_episode[i] for i in env_ids]

    def begin(self, env_ids: Sequence[int]) -> None:
        """The episodes of these envs have begun, and their first rows are there."""
        options = self._inner.env_options
        for i in env_ids:
            root, episode = self._inner.episode_of(i)
            if options.episode_seeds and root is not None:
                self.of_env[i], self.of_episode[i] = root, seeding.of_episode(root, episode)
            elif options.reset_fn is not None and self.of_episode[i] is None:
                self.of_episode[i], _ = options.reset_fn(i, episode)


def common_layout(env_spaces: list[Any]) -> Any:
    """The layout of all the spaces; where they differ, rows are objects."""
    layout = spaces.layout_of(env_spaces[0])
    if all(spaces.layout_of(space) == layout for space in env_spaces[1:]):
        return layout
    return spaces.layout_of(None)


def _of_reset(info: dict[str, Any]) -> dict[str, Any]:
    """The info of the reset alone, of a row that also ended an episode."""
    of_reset = {key: info[key] for key in info if key not in ("final_obs", "final_info")}
    return {**of_reset, "is_reset": True}
