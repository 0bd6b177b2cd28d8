"""``evaluate``: run each of some episodes exactly once, on whichever env is free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envpool_py import extras
from envpool_py.collector.policy import Policy, check_pool_and_policy, split_extras, takes_infos
from envpool_py.env import spaces
from envpool_py.errors import EnvError
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.inner import settled

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
        TypeError: ``pool`` is no pool of this package, ``policy`` not callable, or a task no pair.
        ValueError: not exactly one of ``episodes`` and ``tasks`` is given, or a negative number.
        EnvError: an env failed; its message names the task, by its position.
        MissingPackageError: ``progress``, but tqdm is not installed.
    """
    check_pool_and_policy(pool, policy)
    if (episodes is None) == (tasks is None):
        raise ValueError("evaluate: give episodes=, or tasks= with the (seed, options) of each")
    if episodes is not None and episodes < 0:
        raise ValueError(f"evaluate: episodes must be 0 or more, got {episodes}")
    chosen: list[Task]
    chosen = [(seed + k, None) for k in range(episodes or 0)] if tasks is None else list(tasks)
    for n, task in enumerate(chosen):
        if not (isinstance(task, (tuple, list)) and len(task) == 2):
            raise TypeError(f"evaluate: task {n} must be a (seed, options), got {task!r}")
    for _ in settled(pool):  # requests before this call
        pass
    found: list[Any] = [None] * len(chosen)
    bar: Any = contextlib.nullcontext()
    if progress:
        tqdm = extras.load("tqdm", "evaluate: a progress bar needs tqdm; pip install tqdm")
        bar = tqdm.tqdm(total=len(chosen), unit="episode")
    with bar:
        for n, result in _run(pool, policy, chosen):
            found[n] = result
            if progress:
                bar.update()
    returns, lengths, *flags, infos = zip(*found, strict=True) if chosen else [()] * 5
    terminated, truncated = (np.array(flag, np.bool_) for flag in flags)
    columns = np.array(returns, np.float64), np.array(lengths, np.int64), terminated, truncated
    return Evaluation(*columns, list(infos))


def _run(pool: BaseVectorEnv, policy: Any, tasks: list[Task]) -> Iterator[tuple[int, Any]]:
    """Run each task; yield its position, and what ``Evaluation`` holds of it, when it has ended."""
    has_infos = takes_infos(policy)
    start_episodes = getattr(policy, "start_episodes", lambda _: None)
    same_step = pool.autoreset_mode is AutoresetMode.SAME_STEP
    left = iter(range(len(tasks)))
    # Of each env: its task (-1: none), and its steps and return; -1 steps before its reset.
    task, length = np.full(len(pool), -1), np.zeros(len(pool), np.int64)
    total: list[Any] = [0.0] * len(pool)

    def start(ids: NDArray[np.intp]) -> None:
        """Reset these envs: those that have a task for the same, the others for the next ones."""
        for i in ids[task[ids] < 0]:
            task[i] = next(left, -1)
        ids = ids[task[ids] >= 0]
        if len(ids):
            seeds, options = zip(*(tasks[n] for n in task[ids]), strict=True)
            length[ids] = -1
            pool.send_reset(ids, seed=seeds, options=options)

    start(np.arange(len(pool)))
    while pool.waiting_id:
        try:
            obs, rewards, terminated, truncated, infos = pool.recv()
            ids = pool.batch_ids
            length[ids] += 1
            steps = length[ids] > 0
            for k, i in enumerate(ids.tolist()):
                total[i] = total[i] + rewards[k] if steps[k] else 0.0
            ends = (terminated | truncated) & steps
            if same_step:  # a turn-based env goes on where one of its agents has ended
                ends &= ["final_obs" in info for info in infos]
            done = ends & ["env_error" not in info for info in infos]
            for k in np.flatnonzero(done).tolist():
                i = ids[k]
                info = infos[k]["final_info"] if same_step else infos[k]
                info.pop("env_id", None)
                yield int(task[i]), (total[i], length[i], terminated[k], truncated[k], info)
            task[ids[done]] = -1
            start(ids[ends])
            if not steps.all():
                start_episodes(ids[~steps])
            if not ends.all():
                rows = ~ends
                ids, obs, infos = ids[rows], spaces.take(obs, rows), infos[rows]
                extra = {"infos": infos} if has_infos else {}
                pool.send(split_extras(policy(obs, ids, **extra), ids)[0], ids)
        except EnvError as error:
            ran = ", ".join(str(n) for n in task[list(error.env_ids)] if n >= 0)
            error.message = f"{error.message}; evaluate ran task {ran}"
            raise
