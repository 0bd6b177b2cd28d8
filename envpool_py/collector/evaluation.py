"""``evaluate``: run each of some episodes exactly once, on whichever env is free."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envpool_py import packages
from envpool_py.collector.policy import split_extras, takes_infos
from envpool_py.env import spaces
from envpool_py.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from envpool_py.collector.policy import Policy
    from envpool_py.pool.base import BaseVectorEnv

#: The seed and the options of the reset that begins an episode.
Task = tuple[int | None, dict[str, Any] | None]


@dataclass(frozen=True, eq=False, slots=True)
class Evaluation:
    """The results of ``evaluate``, one of each of ``E`` episodes, in the order of the tasks.

    Attributes:
        returns: ``(E,)`` float64, the sums of the rewards, not discounted; ``(E, m)`` where the
            env's reward is a vector.
        lengths: ``(E,)`` int64, the numbers of steps.
        terminated, truncated: ``(E,)`` bool, how the episodes ended.
        infos: the info dicts of the last steps, without ``env_id``.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.returns)

    def __repr__(self) -> str:
        if not len(self) or self.returns.ndim > 1:
            return f"<Evaluation of {len(self)} episodes>"
        mean, deviation = self.returns.mean(), self.returns.std()
        return (
            f"<Evaluation of {len(self)} episodes: return {mean:.4g} +/- {deviation:.4g},"
            f" length {self.lengths.mean():.4g}>"
        )


def evaluate(
    pool: BaseVectorEnv,
    policy: Policy,
    episodes: int | None = None,
    *,
    tasks: Sequence[Task] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Run each episode exactly once, on whichever env is free, and return all results.

    The episodes are chosen before they run. So those that end early are not over-represented;
    among the first episodes that a pool finishes they would be. If the actions of the policy depend
    on the observations of the episode alone, and the envs take their seeds, the results are equal
    for any number of envs and processes and any ``wait_num``.

    Every episode begins with a reset with its seed and options. The best pool is one with
    ``autoreset_mode=None``: in ``"same_step"`` each episode is reset twice. If the pool restarts an
    env (``on_error="restart"``), its episode is run again from the start; the pool raises when its
    ``max_restarts`` are used up. What is in flight when the call begins is dropped. The pool is not
    closed; its envs must be reset before they are used again.

    Args:
        pool: the pool; a wrapped one too. Freeze the statistics of wrappers that normalize.
        policy: ``policy(obs, env_ids) -> actions``; see ``Policy``. Extras are ignored. A recurrent
            policy keeps its state by env id, and has a method ``start_episodes(env_ids)``.
        episodes: how many, with the seeds ``seed``, ``seed + 1``, ...
        tasks: in place of ``episodes``, the ``(seed, options)`` of each; both may be None.
        seed: of the first of ``episodes``.
        progress: show a progress bar, by tqdm.

    Raises:
        ValueError: not exactly one of ``episodes`` and ``tasks`` is given.
        EnvError: an env failed.
        MissingPackageError: ``progress``, but tqdm is not installed.
    """
    if (episodes is None) == (tasks is None):
        raise ValueError("evaluate: give episodes=, or tasks= with the (seed, options) of each")
    chosen: list[Task]
    chosen = [(seed + k, None) for k in range(episodes or 0)] if tasks is None else list(tasks)
    while pool.waiting_id:
        with contextlib.suppress(EnvError):  # of a request before this call
            pool.drain()
    with contextlib.ExitStack() as stack:
        done: Callable[[int], Any] = lambda _: None  # noqa: E731
        if progress:
            tqdm = packages.load("tqdm", "evaluate: a progress bar needs tqdm; pip install tqdm")
            done = stack.enter_context(tqdm.tqdm(total=len(chosen), unit="episode")).update
        return _Run(pool, policy, chosen).results(done)


class _Run:
    """The state of one evaluation."""

    def __init__(self, pool: BaseVectorEnv, policy: Any, tasks: list[Task]) -> None:
        self._pool, self._policy, self._tasks = pool, policy, tasks
        self._takes_infos = takes_infos(policy)
        self._same_step = pool.autoreset_mode is AutoresetMode.SAME_STEP
        self._started = 0
        self._task = np.full(len(pool), -1)  # of each env
        self._resetting = np.zeros(len(pool), np.bool_)
        num_tasks = len(tasks)
        self._returns: Any = None  # only a step tells whether rewards are vectors
        self._lengths = np.zeros(num_tasks, np.int64)
        self._flags = np.zeros((2, num_tasks), np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in tasks]

    def results(self, done: Callable[[int], Any]) -> Evaluation:
        """Run all tasks; ``done`` is called with the number of those that have ended."""
        self._start(np.arange(len(self._pool)))
        while self._pool.waiting_id:
            done(self._advance())
        if self._returns is None:
            self._returns = np.zeros(0)
        terminated, truncated = self._flags
        return Evaluation(self._returns, self._lengths, terminated, truncated, self._infos)

    def _start(self, ids: NDArray[np.intp], again: Sequence[int] = ()) -> None:
        """Reset these envs: those in ``again`` for the same task, the others for the next ones."""
        chosen = []
        for i in ids.tolist():
            if i not in again:
                if self._started == len(self._tasks):
                    continue
                self._task[i] = self._started
                self._started += 1
            chosen.append(i)
        if chosen:
            seeds, options = zip(*(self._tasks[self._task[i]] for i in chosen), strict=True)
            self._resetting[chosen] = True
            self._pool.send_reset(chosen, seed=list(seeds), options=list(options))

    def _advance(self) -> int:
        """Take a batch, and send the next requests; return how many episodes have ended."""
        obs, rewards, terminated, truncated, infos = self._pool.recv()
        ids = self._pool.batch_ids
        steps = ~self._resetting[ids]
        self._resetting[ids] = False
        begun, tasks = ids[~steps], self._task[ids]
        if self._returns is None and steps.any():
            self._returns = np.zeros((len(self._tasks), *rewards.shape[1:]))
        if steps.any():
            self._returns[tasks[steps]] += rewards[steps]
            self._lengths[tasks[steps]] += 1
        ends = (terminated | truncated) & steps
        if self._same_step:  # a turn-based env goes on where one of its agents has ended
            ends &= ["final_obs" in info for info in infos]
        lost = []
        for k in np.flatnonzero(ends).tolist():
            n, info = tasks[k], infos[k]
            if "env_error" in info:
                lost.append(int(ids[k]))
                self._returns[n], self._lengths[n] = 0, 0
                continue
            info = info["final_info"] if self._same_step else info
            self._flags[:, n] = terminated[k], truncated[k]
            self._infos[n] = {key: value for key, value in info.items() if key != "env_id"}
        self._start(ids[ends], again=lost)
        start_episodes = getattr(self._policy, "start_episodes", None)
        if len(begun) and start_episodes is not None:
            start_episodes(begun)
        if not ends.all():
            self._act(ids, obs, infos, ~ends)
        return int(np.count_nonzero(ends)) - len(lost)

    def _act(self, ids: NDArray[np.intp], obs: Any, infos: Any, rows: NDArray[np.bool_]) -> None:
        if not rows.all():
            ids, obs, infos = ids[rows], spaces.take(obs, rows), infos[rows]
        policy = self._policy
        returned = policy(obs, ids, infos=infos) if self._takes_infos else policy(obs, ids)
        self._pool.send(split_extras(returned, ids)[0], ids)
