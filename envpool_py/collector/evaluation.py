"""``evaluate``: run each of some episodes exactly once, on whichever env is free."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py import extras
from envpool_py.collector.collect import common_layout
from envpool_py.collector.policy import (
    Policy,
    PolicyWithInfos,
    check_pool_and_policy,
    split_extras,
    takes_infos,
)
from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.errors import EnvError
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.pool.engine_for_interfaces import drained_rows

#: The seed and the options of the reset that begins an episode.
Task = tuple[int | None, dict[str, Any] | None]


@dataclass(frozen=True, eq=False, slots=True)
class Evaluation:
    """The results of ``evaluate``, one of each of ``E`` episodes, in the order of the tasks.

    Attributes:
        returns: ``(E,)`` float64, the sums of the rewards, not discounted; ``(E, m)`` where the
            env's reward is a vector; NaN of a task that failed.
        lengths: ``(E,)`` int64, the numbers of steps.
        terminated, truncated: ``(E,)`` bool, how the episodes ended; both False of a failed task.
        infos: the info dicts of the last steps, without ``env_id``; empty of a failed task.
        tasks: ``(E,)`` int64, the positions of the tasks; not all in the ``finished`` of an error.
        failed: ``(E,)`` bool, the tasks whose env failed; True only with ``on_failure="record"``.
        errors: the texts of the errors of these tasks, None for the others.
        reruns: ``(E,)`` int64, how often each task was run again, as the pool restarted its env.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]
    tasks: NDArray[np.int64]
    failed: NDArray[np.bool_]
    errors: list[str | None]
    reruns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.returns)

    def __repr__(self) -> str:
        good, count = self.returns[~self.failed], f"{len(self)} episode{'s' * (len(self) != 1)}"
        for number, what in ((self.failed.sum(), "failed"), (self.reruns.sum(), "run again")):
            count += f", {number} {what}" if number else ""
        if not len(good) or good.ndim > 1:
            return f"<Evaluation of {count}>"
        deviation, length, more = good.std(), self.lengths[~self.failed].mean(), len(good) - 1
        error = f", standard error {deviation / more**0.5:.4g}" if more else ""
        spread = f"mean return {good.mean():.4g}{error}, standard deviation {deviation:.4g}"
        return f"<Evaluation of {count}: {spread}; mean length {length:.4g}>"


def evaluate(
    pool: BaseVectorEnv,
    policy: Policy | PolicyWithInfos,
    episodes: int | None = None,
    *,
    tasks: Sequence[Task] | None = None,
    seed: int = 0,
    on_failure: Literal["raise", "record"] = "raise",
    progress: bool = False,
) -> Evaluation:
    """Run each episode exactly once, on whichever env is free, and return all results.

    The episodes are chosen before they run. So those that end early are not over-represented;
    among the first episodes that a pool finishes they would be. If the actions of the policy depend
    on the observations of the episode alone, and the envs take their seeds, the results are equal
    for any number of envs and processes and any ``wait_num``.

    Every episode begins with a reset with its seed and options, and is followed by no automatic
    one, whatever the ``autoreset_mode``. If the pool restarts an env (``on_error="restart"``), its
    episode is run again from the start, unless failures are recorded. What is in flight when the
    call begins is dropped. The pool is not closed; its envs must be reset before they are used
    again.

    Args:
        pool: the pool; a wrapped one too. Freeze the statistics of wrappers that normalize.
        policy: ``policy(obs, env_ids) -> actions``; see ``Policy``. Extras are ignored. A recurrent
            policy keeps its state by env id, and has a method ``start_episodes(env_ids)``.
        episodes: how many, with the seeds ``seed``, ``seed + 1``, ...
        tasks: in place of ``episodes``, the ``(seed, options)`` of each; both may be None.
        seed: of the first of ``episodes``.
        on_failure: ``"raise"``: an error, a time-out or a crash of an env is raised.
            ``"record"``: the first failure is the result of the task that the env ran, whatever the
            ``on_error`` of the pool, and the env goes on with the next one: an episode that is run
            until it ends well would flatter the policy. A crash fails the tasks of all envs in the
            process.
        progress: show a progress bar, by tqdm.

    Raises:
        TypeError: ``pool`` is no pool of this package, ``policy`` not callable, or a task no pair.
        ValueError: not exactly one of ``episodes`` and ``tasks`` is given, a negative number, or
            another ``on_failure``.
        EnvError: an env failed; its message names the task, by its position. Its attribute
            ``finished`` is an ``Evaluation`` of the tasks that had finished.
        MissingPackageError: ``progress``, but tqdm is not installed.
    """
    check_pool_and_policy(pool, policy)
    if (episodes is None) == (tasks is None):
        raise ValueError("evaluate: give episodes=, or tasks= with the (seed, options) of each")
    if episodes is not None and episodes < 0:
        raise ValueError(f"evaluate: episodes must be 0 or more, got {episodes}")
    if on_failure not in ("raise", "record"):
        raise ValueError(f"evaluate: on_failure must be 'raise' or 'record', got {on_failure!r}")
    chosen: list[Task]
    chosen = [(seed + k, None) for k in range(episodes or 0)] if tasks is None else list(tasks)
    for n, task in enumerate(chosen):
        if not (isinstance(task, (tuple, list)) and len(task) == 2):
            raise TypeError(f"evaluate: task {n} must be a (seed, options), got {task!r}")
    for _ in drained_rows(pool):  # requests before this call
        pass
    bar: Any = contextlib.nullcontext()
    if progress:
        tqdm = extras.load("tqdm", "evaluate: a progress bar needs tqdm; pip install tqdm")
        bar = tqdm.tqdm(total=len(chosen), unit="episode")
    with bar:
        run = _Run(pool, policy, chosen, on_failure, bar.update if progress else lambda: None)
        try:
            with pool._inner.single_episodes(retries=on_failure == "raise"):
                run.run()
        except EnvError as error:
            error.finished = _results(run)
            raise
    return _results(run)


class _Outcome(NamedTuple):
    """The result of one task; ``error``: the text of the error of a failed one."""

    total: Any
    length: int
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    error: str | None = None


def _results(run: _Run) -> Evaluation:
    tasks = sorted(run.found)
    columns = zip(*(run.found[n] for n in tasks), strict=True) if tasks else [()] * 6
    totals, lengths, terminated, truncated, infos, errors = columns
    shape = max(map(np.shape, totals), default=())  # that of NaN is ()
    return Evaluation(
        np.array([np.broadcast_to(total, shape) for total in totals], np.float64),
        np.array(lengths, np.int64),
        np.array(terminated, np.bool_),
        np.array(truncated, np.bool_),
        list(infos),
        np.array(tasks, np.int64),
        np.array([error is not None for error in errors], np.bool_),
        list(errors),
        run.reruns[tasks],
    )


class _Run:
    """Runs the tasks, each on the next env that is free; ``found``: their outcomes by position."""

    def __init__(
        self,
        pool: BaseVectorEnv,
        policy: Any,
        tasks: list[Task],
        on_failure: str,
        done: Callable[[], object],
    ) -> None:
        self._pool, self._policy, self._tasks = pool, policy, tasks
        self._raises, self._done = on_failure == "raise", done
        self._takes_infos = takes_infos(policy)
        self._start_episodes = getattr(policy, "start_episodes", lambda _: None)
        self._left = deque(range(len(tasks)))
        # Of each env: its task (-1: none), and its steps and return; -1 steps before its reset.
        self._task, self._length = np.full(len(pool), -1), np.zeros(len(pool), np.int64)
        self._total: list[Any] = [0.0] * len(pool)
        self.found: dict[int, _Outcome] = {}
        self.reruns = np.zeros(len(tasks), np.int64)

    def run(self) -> None:
        """Run all tasks. EnvError: an env failed, and ``on_failure`` is ``"raise"``."""
        self._start(np.arange(len(self._pool)))
        while self._pool.waiting_id:
            try:
                batch = self._pool.recv()
            except EnvError as error:
                self._start(self._fail(error))
            else:
                self._take(batch)

    def _start(self, ids: NDArray[np.intp]) -> None:
        """Reset these envs: those that have a task for the same, the others for the next ones."""
        while True:
            for i in ids[self._task[ids] < 0].tolist():
                if self._left:
                    self._task[i] = self._left.popleft()
            ids = ids[self._task[ids] >= 0]
            if not len(ids):
                return
            seeds, options = zip(*(self._tasks[n] for n in self._task[ids]), strict=True)
            self._length[ids] = -1
            try:
                self._pool.send_reset(ids, seed=seeds, options=options)
            except EnvError as error:  # an env could not be recreated; nothing was sent
                rest = np.setdiff1d(ids, error.env_ids)
                if self._raises or not (len(rest) or self._pool.waiting_id):
                    ids = self._fail(error)
                    continue
                lost = np.intersect1d(ids, error.env_ids)  # others run its task; it runs no more
                self._left.extendleft(self._task[lost].tolist())
                self._task[lost] = -1
                ids = rest
            else:
                return

    def _take(self, batch: StepResult) -> None:
        obs, rewards, terminated, truncated, infos = batch
        ids = self._pool.batch_ids
        self._length[ids] += 1
        steps = self._length[ids] > 0
        for k, i in enumerate(ids.tolist()):
            self._total[i] = self._total[i] + rewards[k] if steps[k] else 0.0
        failed = self._pool._inner.failed(ids)
        lost = failed & (not self._raises)
        for k in np.flatnonzero(lost).tolist():
            self._record(int(ids[k]), int(self._length[ids[k]]) - 1, infos[k]["env_error"])
        ends = (terminated | truncated) & steps & ~lost
        for k in np.flatnonzero(ends).tolist():
            i, info = int(ids[k]), infos[k]
            # Of an env that was recreated, or of a custom worker.
            is_final = {"final_obs", "final_info"} <= info.keys()
            # A turn-based env goes on where one of its agents has ended.
            ends[k] = is_final or self._pool._inner.is_over(i)
            if failed[k]:
                self.reruns[self._task[i]] += 1
            elif ends[k]:
                info = info["final_info"] if is_final else info
                info.pop("env_id", None)
                flags = bool(terminated[k]), bool(truncated[k])
                self._end(i, _Outcome(self._total[i], int(self._length[i]), *flags, info))
        ends |= lost
        self._start(ids[ends])
        if not (steps | lost).all():
            self._start_episodes(ids[~steps & ~lost])
        if not ends.all():
            rows = ~ends
            ids, obs, infos = ids[rows], spaces.take(obs, rows), infos[rows]
            extra = {"infos": infos} if self._takes_infos else {}
            self._send(split_extras(self._policy(obs, ids, **extra), ids)[0], ids)

    def _send(self, actions: Any, ids: NDArray[np.intp]) -> None:
        try:
            self._pool.send(actions, ids)
        except EnvError as error:  # the process of an env has ended; nothing was sent
            failed = self._fail(error)
            self._start(failed)
            rows = ~np.isin(ids, failed)
            if rows.any():
                layout = common_layout(self._pool.action_space)
                listed = spaces.list_actions(layout, actions, ids.tolist())
                self._send(list(compress(listed, rows)), ids[rows])

    def _fail(self, error: EnvError) -> NDArray[np.intp]:
        """Let the tasks of the envs of an error fail; return these envs."""
        ids: NDArray[np.intp] = np.array(error.env_ids, np.intp)
        ids = ids[self._task[ids] >= 0]
        if self._raises:
            ran = ", ".join(map(str, self._task[ids]))
            error.message += f"; evaluate ran task {ran}"
            error.message += '; pass on_failure="record" to count such tasks as failed'
            raise error
        for i in ids.tolist():
            self._record(i, int(self._length[i]), error.text)
        return ids

    def _record(self, i: int, length: int, error: str) -> None:
        """Let the task of env ``i`` fail after so many steps; the env gets its full budget."""
        self._end(i, _Outcome(np.nan, max(length, 0), False, False, {}, error))
        self._pool._inner.refill_budget(i)

    def _end(self, i: int, outcome: _Outcome) -> None:
        self.found[int(self._task[i])] = outcome
        self._task[i] = -1
        self._done()
