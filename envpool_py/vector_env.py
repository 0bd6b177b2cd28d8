"""``BaseVectorEnv``: many envs, indexed by id, stepped in whole or partial batches.

What holds for every backend:

* ids, counts, shapes and seeds are checked before anything is sent;
* in sync mode rows come in the order asked, in async mode in the order in which envs finished;
* an env whose row has not been handed out is in flight: it takes no other request;
* an error names its envs; the rows of all other envs of that call are kept for the next ``recv``;
* a call that is broken off (Ctrl-C, a signal handler that raises) disowns what it asked for: those
  envs then accept only ``reset``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import arguments, checks, recording, seeding
from envpool_py import ids as ids_
from envpool_py.arguments import Options
from envpool_py.comeback import ReplayingLives, make_lives
from envpool_py.errors import EnvError
from envpool_py.ids import IdArray, Ids
from envpool_py.journal import Journal, JournaledLives
from envpool_py.life import StepResult
from envpool_py.restarts import Policy, RestartingLives
from envpool_py.seeding import Seed
from envpool_py.spaces import Array
from envpool_py.stats import Stats, summarise
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.execute import NEXT_STEP, ResetFn

# This process: to ask the system for it in each call would cost more than the rest of the check. A
# fork that Python does not hear of, from C, is not told.
_pid = os.getpid()


def _note_fork() -> None:
    global _pid  # noqa: PLW0603 - there is but one such id
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


class BaseVectorEnv:
    """Many envs behind one interface.

    Args:
        env_fns: one callable for each env; ``env_fns[i]()`` makes env ``i``.
        worker_fn: makes an ``EnvWorker`` of an ``env_fn``.
        wait_num: the rows that ``step`` and ``recv`` wait for, 1 to ``num_envs``; None is all.
        timeout: seconds after which a batch comes with fewer rows, but with one at least.
        strict_timeout: let a batch come empty after ``timeout``, of the right shapes and dtypes.
        autoreset_mode: None: the caller resets, and stepping a finished env calls its ``step``
            again. ``"next_step"``, ``"same_step"`` or a ``gymnasium.vector.AutoresetMode``: as in
            Gymnasium.
        episode_seeds: seed every reset from (the env's seed, the number of the episode).
        reset_fn: ``(env_id, episode) -> (seed, options)``, asked for every reset that is not given
            its own, automatic ones included.
        columns: Dict and Tuple observations as a dict or tuple of arrays ``(k, ...)``; by default
            an object array of one dict or tuple per env.
        copy: False: a row holds only until its env is stepped or reset again. A batch of all envs
            in order is views of the memory that the envs write to; the observations of any other
            are gathered into memory that is used again.
        reset_first: False: a step before the first reset reaches the env, whatever it makes of it.
        validate: which rows are looked at for NaN, values out of bounds and whatever
            ``observation_space.contains`` refuses. ``"first"``: the first reset and the first step
            of each env; what is found is warned of. ``"always"``: every row; what is found is an
            error of that env. ``"off"``: none.
        on_error: ``"raise"``: what an env raises reaches the caller. ``"restart"``: the env is made
            anew, its process too where that has ended; its lost step comes as a row that is
            truncated, with the last observation, reward 0 and the error's text in
            ``info["env_error"]``. ``"replay"``: the new env is brought back to its step by what the
            lost one has been through; the row is that of the step, with the error's text in
            ``info["env_replayed"]``; where that can't be, as ``"restart"``.
        max_restarts: how often each env may be made anew before its error is raised after all; None
            is without end.
        restart_backoff: seconds between the first and the second restart of an env, doubled for
            each later one, 30 at the most. Only that env waits.
        on_restart: ``(env_id, error)``, called once an env has been made anew, before its reset; it
            must not use the pool.
        measure: count steps and resets and the time that they take, for ``stats()``; it costs
            one to three microseconds for each step.
        record: a file that is to hold all that the envs are asked, and enough to check what comes
            of it, for ``envpool_py.replay``; it must not exist.
        **worker_options: what the worker class takes.

    Raises:
        TypeError, ValueError: an argument is wrong, or an env_fn made no env.
        EnvError: an env_fn raised.
        WorkerDiedError: a process ended before its envs were there.
        FileExistsError, OSError: the record exists, or can't be written there.

    Warns:
        UserWarning: in a later call; see ``validate``.
        RuntimeWarning: in a later call: the record can't be written any further.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        worker_fn: Callable[[Callable[[], Any]], EnvWorker],
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        strict_timeout: bool = False,
        autoreset_mode: str | gym.vector.AutoresetMode | None = None,
        episode_seeds: bool = False,
        reset_fn: ResetFn | None = None,
        columns: bool = False,
        copy: bool = True,
        reset_first: bool = True,
        validate: str = checks.FIRST,
        on_error: str = "raise",
        max_restarts: int | None = 10,
        restart_backoff: float = 0.1,
        on_restart: Callable[[int, EnvError], object] | None = None,
        measure: bool = False,
        record: str | os.PathLike[str] | None = None,
        **worker_options: Any,
    ) -> None:
        self.is_closed = True  # until there is something to close
        self._pid = os.getpid()
        self._env_fns = arguments.check_env_fns(env_fns)
        self.env_num = len(self._env_fns)
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self._timeout = arguments.check_timeout(timeout)
        self.strict_timeout = strict_timeout
        self._autoreset = arguments.check_autoreset_mode(autoreset_mode)
        if reset_fn is not None and not callable(reset_fn):
            raise TypeError(f"reset_fn must be callable, got {type(reset_fn).__name__}")
        if reset_fn is not None and episode_seeds:
            raise ValueError("episode_seeds and reset_fn both seed every reset; pass one of them")
        self._validate = arguments.check_validate(validate)
        policy = arguments.check_policy(on_error, max_restarts, restart_backoff, on_restart)
        path = None if record is None else recording.check_path(record)
        self._facts: dict[str, list[Any]] = {}
        self.workers: list[EnvWorker] = []
        try:
            for i, env_fn in enumerate(self._env_fns):
                self.workers.append(arguments.make_worker(worker_fn, env_fn, i))
            self.worker_class = arguments.common_class(self.workers)
            self._group = self.worker_class.group(self.workers, **worker_options)
            self._group.measuring = measure
            self._set_async()
            self._group.start(self._autoreset, columns=columns)
            if policy is None and (episode_seeds or reset_fn is not None):
                # An env made anew by hand must go on with its schedule as well.
                policy = Policy(max_restarts=0, backoff=0.0, on_restart=None)
            self._lives = make_lives(
                self._group,
                policy,
                columns=columns,
                copy=copy,
                autoreset=self._autoreset,
                replay=on_error == "replay",
                journal=path is not None,
            )
            self._all = self._lives.everything
            if not reset_first:
                self._lives.take_as_reset()
            self._configure(episode_seeds, reset_fn)
            self._journals: list[Journal] = []
            if isinstance(self._lives, JournaledLives):
                self._lives.tells_asked = reset_fn is not None
                self._keep_journals(
                    path,
                    on_error=on_error,
                    columns=columns,
                    reset_first=reset_first,
                    episode_seeds=bool(episode_seeds),
                    reset_fn=reset_fn is not None,
                )
        except BaseException:
            self._abandon_construction()
            raise
        self.observation_space = [fact.observation_space for fact in self._group.facts]
        self.action_space = [fact.action_space for fact in self._group.facts]
        self.is_closed = False
        self._begin_counting()

    def _configure(self, episode_seeds: bool, reset_fn: ResetFn | None) -> None:
        """Send the envs those options that are not the defaults."""
        self._roots: list[int | None] = [None] * self.env_num
        plain = self._autoreset is None and self._validate == checks.FIRST
        if plain and not episode_seeds and reset_fn is None:
            return
        entropy = np.random.SeedSequence()
        roots: list[int | None] = [None] * self.env_num
        if episode_seeds:
            roots = seeding.per_env(entropy, range(self.env_num))
        # Only where it is needed: a worker of a user's own may not know of it.
        tells = reset_fn is not None and isinstance(self._lives, JournaledLives)
        tell = {"tell_asked": True} if tells else {}
        self._roots = roots
        requests = [
            Request(
                "configure",
                kwargs={
                    "env_id": i,
                    "autoreset_mode": self._autoreset,
                    "root": roots[i],
                    "reset_fn": reset_fn,
                    "validate": self._validate,
                    **tell,
                },
            )
            for i in range(self.env_num)
        ]
        self._lives.ask(self._all, requests)
        self._group.configured.update(enumerate(requests))
        if isinstance(self._lives, RestartingLives) and (episode_seeds or reset_fn is not None):
            self._lives.follow_schedule()

    def _keep_journals(self, path: Path | None, **options: Any) -> None:
        """Begin the record, and the history of envs that are to be brought back."""
        assert isinstance(self._lives, JournaledLives)  # noqa: S101 - for the type checker
        if isinstance(self._lives, ReplayingLives):
            self._journals.append(self._lives.keep_history())
        if path is not None:
            header = {
                "pool": type(self).__name__,
                "num_envs": self.env_num,
                "autoreset_mode": self._autoreset,
                "validate": self._validate,
                "roots": self._roots,
                **options,
            }
            shape = self._group.block.shape
            self._journals.append(recording.Recorder(path, header, shape, self._all))
        self._lives.journals = self._journals

    def _abandon_construction(self) -> None:
        if hasattr(self, "_group"):
            self._group.close()
        for worker in self.workers:
            try:
                worker.close()
            except Exception:  # noqa: BLE001, S112 - the error on its way out says more
                continue

    # -------------------------------------------------------------------------------- properties

    def __len__(self) -> int:
        return self.env_num

    @property
    def num_envs(self) -> int:
        """The number of envs."""
        return self.env_num

    @property
    def wait_num(self) -> int:
        """The number of rows that a batch waits for; it may be set between calls."""
        return self._wait_num

    @wait_num.setter
    def wait_num(self, wait_num: int | None) -> None:
        self._wait_num = arguments.check_wait_num(wait_num, self.env_num)
        self._set_async()

    @property
    def timeout(self) -> float | None:
        """Seconds after which a batch comes with fewer rows; it may be set between calls."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: float | None) -> None:
        self._timeout = arguments.check_timeout(timeout)
        self._set_async()

    @property
    def is_async(self) -> bool:
        """Whether ``step`` may return fewer rows than envs: ``wait_num`` or ``timeout`` is set."""
        return self._is_async

    @property
    def autoreset_mode(self) -> gym.vector.AutoresetMode | None:
        """Who resets an env at the end of its episode; None: the caller."""
        if self._autoreset is None:
            return None
        return (
            gym.vector.AutoresetMode.NEXT_STEP
            if self._autoreset == NEXT_STEP
            else gym.vector.AutoresetMode.SAME_STEP
        )

    @property
    def waiting_id(self) -> list[int]:
        """The envs in flight, the oldest request first."""
        listed: list[int] = self._lives.waiting().tolist()
        return listed

    @property
    def waiting_conn(self) -> list[EnvWorker]:
        """The workers of the envs in flight, the oldest request first."""
        return [self.workers[i] for i in self.waiting_id]

    @property
    def ready_id(self) -> list[int]:
        """The envs that take a request, in the order in which their rows were handed out."""
        listed: list[int] = self._lives.ready().tolist()
        return listed

    @property
    def spec(self) -> list[Any]:
        """The ``EnvSpec`` of every env, or None."""
        return self._fact("spec")

    @property
    def metadata(self) -> list[Any]:
        """The metadata of every env."""
        return self._fact("metadata")

    @property
    def unwrapped(self) -> BaseVectorEnv:
        """The pool itself."""
        return self

    def _fact(self, name: str) -> list[Any]:
        if name not in self._facts:
            self._facts[name] = self.get_env_attr(name)
        return self._facts[name]

    def __repr__(self) -> str:
        text = f"{type(self).__name__}(num_envs={self.env_num}"
        if self._wait_num != self.env_num:
            text += f", wait_num={self._wait_num}"
        if self._timeout is not None:
            text += f", timeout={self._timeout}"
        if self._autoreset is not None:
            text += f", autoreset_mode={self._autoreset!r}"
        group = getattr(self, "_group", None)
        if group is not None:
            text += group.described()
        return text + (", closed)" if self.is_closed else ")")

    # ---------------------------------------------------------------------------- reset and step

    def reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> tuple[Any, Array]:
        """Reset envs and wait for all of them.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or one entry for each id.
            options: one dict for all, or a sequence of one for each id.
            **kwargs: passed to every env's ``reset``.

        Returns:
            The observations, as ``step`` returns them, and an object array ``(k,)`` of fresh info
            dicts with ``env_id``; rows in the order of the ids.

        Raises:
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised.
            IndexError, TypeError, ValueError: ids, seeds or options are wrong; nothing was sent.
        """
        self._assert_open()
        ids = self._resolve(env_id, id)
        requests = self._reset_requests(ids, seed, options, kwargs)
        batch = self._lives.reset(ids, requests)
        return batch[0], batch[4]

    def step(self, action: Any, id: Ids = None) -> StepResult:  # noqa: A002 - Tianshou's name
        """Step envs.

        In sync mode: step the envs ``id`` and wait for all of them. In async mode: send them their
        actions, and return the next partial batch, of whichever envs have finished.

        Args:
            action: one action for each id: an array ``(k, *shape)`` or a sequence; for Dict and
                Tuple spaces also a dict or tuple of arrays. None: send nothing and fetch, the next
                batch or that of the envs ``id``.
            id: which envs; None is all.

        Returns:
            Five aligned arrays of ``k`` rows: the observations ``(k, *shape)`` in the dtype of
            their space (an object array where they are no arrays, or where they are dicts or
            tuples and ``columns`` is off), rewards float64 ``(k,)`` (vector rewards ``(k, m)``),
            ``terminated`` and ``truncated`` bool ``(k,)``, and an object array ``(k,)`` of fresh
            info dicts, each with ``env_id``. In sync mode rows are in the order of ``id``, in async
            mode in the order in which the envs finished.

        Raises:
            ResetNeeded: an env was never reset, or has raised since.
            AlreadyPendingCallError: an env is in flight.
            EnvError: an env raised; the rows of the others are kept for the next ``recv``.
            IndexError, TypeError, ValueError: ids or actions are wrong, nothing was sent; or there
                is nothing to fetch.
        """
        if action is None:
            return self._fetch(id)
        lives = self._lives
        if not self._is_async:
            self._assert_open()
            ids = self._all if id is None else ids_.resolve(id, self.env_num)
            return lives.step(ids, action)
        self._assert_open()
        lives.send(action, id)
        if not lives.in_flight:  # no ids, and nothing to wait for
            return lives.fetch_all()
        return lives.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)

    def send(self, action: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Send envs their actions and return at once; ``recv`` brings the rows.

        Args:
            action: as for ``step``, but not None.
            id: which envs; None is all.

        Raises:
            ResetNeeded, AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``step``.
        """
        if action is None:
            raise TypeError("send needs actions, got None; recv() and step(None) fetch rows")
        self._assert_open()
        self._lives.send(action, id)

    def send_reset(
        self,
        env_id: Ids = None,
        *,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        seed: Seed = None,
        options: Options = None,
        **kwargs: Any,
    ) -> None:
        """Reset envs and return at once; their rows come with later batches.

        Such a row has the first observation, reward 0, both flags False, and the reset's info with
        ``info["is_reset"]`` True.

        Args:
            env_id: which; None is all.
            id: another name of ``env_id``.
            seed: as for ``reset``.
            options: as for ``reset``.
            **kwargs: passed to every env's ``reset``.

        Raises:
            AlreadyPendingCallError, IndexError, TypeError, ValueError: as ``reset``.
        """
        self._assert_open()
        ids = self._resolve(env_id, id)
        self._lives.send_resets(ids, self._reset_requests(ids, seed, options, kwargs))

    def recv(self) -> StepResult:
        """The next batch of rows, of steps and resets in flight.

        In async mode at least ``wait_num`` rows, or all in flight if they are fewer; after
        ``timeout`` those that are there, at least one unless ``strict_timeout``. More than
        ``wait_num`` only if they are there already. In sync mode all in flight, in the order sent.

        Returns:
            As ``step``.

        Raises:
            ValueError: nothing is in flight.
            EnvError: an env raised; the other rows are kept for the next ``recv``.
        """
        self._assert_open()
        lives = self._lives
        if not lives.in_flight:
            raise ValueError("recv fetches results, but no env is in flight")
        if self._is_async:
            return lives.fetch_next(self._wait_num, self._timeout, strict=self.strict_timeout)
        return lives.fetch_exactly(lives.waiting())

    def drain(self) -> StepResult:
        """Wait for everything in flight and return it as one batch, empty if nothing is.

        Returns:
            As ``step``; in async mode in the order in which envs finished.

        Raises:
            EnvError: as ``recv``.
        """
        self._assert_open()
        if self._is_async:
            return self._lives.fetch_all()
        return self._lives.fetch_exactly(self._lives.waiting())

    def cancel(self, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Give up what these envs have in flight: it is dropped, however late it comes.

        Those envs then accept only a reset; envs that have nothing in flight are left alone. Called
        by a signal handler while another call waits for one of them, that call raises ResetNeeded.

        Args:
            id: which; None is all.
        """
        self._assert_open()
        self._lives.cancel(self._resolve(id))

    def _fetch(self, id: Ids) -> StepResult:  # noqa: A002 - Tianshou's name
        self._assert_open()
        if not self._lives.in_flight:
            raise ValueError("step(None) fetches results, but no env is in flight")
        if id is None:
            return self.recv()
        ids = ids_.resolve(id, self.env_num)
        self._lives.check_fetch(ids)
        return self._lives.fetch_exactly(ids)

    # --------------------------------------------------------------------- requests without rows

    def seed(self, seed: Seed = None) -> list[list[int | None]]:
        """Seed all envs, each by one reset whose observation is dropped, and their action spaces.

        The next ``reset()`` goes on with the seeded stream: it is the second reset of that seed.

        Args:
            seed: None, an int ``s`` (env ``i`` takes ``s + i``), or a list of one for each env.

        Returns:
            ``[[seed of env 0], [seed of env 1], ...]`` on every backend.

        Raises:
            AlreadyPendingCallError: an env is in flight; nothing was sent.
            TypeError, ValueError: seeds are wrong; nothing was sent.
            EnvError: an env raised.
        """
        self._assert_open()
        seeds = seeding.per_env(seed, self._all.tolist())
        self._lives.claim_reset(self._all)
        self._lives.ask_seeds(self._all, [Request("seed", (one,)) for one in seeds])
        for i, one in enumerate(seeds):
            self._seed_action_space(i, one)
        return [[one] for one in seeds]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:  # noqa: A002 - Tianshou's name
        """The attribute ``key`` of each env, from the outermost wrapper that has it.

        Args:
            key: its name.
            id: which envs; None is all.

        Returns:
            One value for each id, in their order.

        Raises:
            EnvError: an env has no such attribute (then it is an AttributeError too), or reading it
                raised. The env needs no reset.
            AlreadyPendingCallError: an env is in flight.
        """
        return self._ask_each(id, Request("get_attr", (key,)))

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Set the attribute ``key`` of each env: where it is, else on the base env.

        Returns once every env has it.

        Args:
            key: its name.
            value: the value, the same for all.
            id: which envs; None is all.

        Raises:
            EnvError: setting it raised, for a read-only attribute say.
            AlreadyPendingCallError: an env is in flight.
        """
        self._ask_each(id, Request("set_attr", (key, value)))
        self._facts.clear()

    def call(self, method: str, *args: Any, id: Ids = None, **kwargs: Any) -> list[Any]:  # noqa: A002
        """Call a method of each env, that of the outermost wrapper that has it.

        Args:
            method: its name; not ``reset``, ``step`` or ``close``.
            *args: its arguments.
            id: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each returned, in the order of the ids.

        Raises:
            ValueError: the method is the pool's own business.
            EnvError: the method raised, or there is none.
            AlreadyPendingCallError: an env is in flight.
        """
        if method in ("reset", "step", "close"):
            raise ValueError(f"call: {method!r} goes through the pool's own {method}()")
        return self._ask_each(id, Request("call", (method, *args), kwargs))

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        id: Ids = None,  # noqa: A002 - Tianshou's name
        **kwargs: Any,
    ) -> list[Any]:
        """Call ``function(env, *args, **kwargs)`` for each env, where it is.

        Args:
            function: takes the env, with its wrappers, first; pickled (by cloudpickle) on its way.
            *args: its other arguments.
            id: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each call returned, in the order of the ids.

        Raises:
            EnvError: the function raised, or what it returned can't be sent.
            AlreadyPendingCallError: an env is in flight.
        """
        return self._ask_each(id, Request("apply", (function, *args), kwargs))

    def render(self, id: Ids = None, **kwargs: Any) -> list[Any]:  # noqa: A002 - Tianshou's name
        """Render each env.

        Args:
            id: which envs; None is all.
            **kwargs: passed to every env's ``render``.

        Returns:
            What each env returned.

        Raises:
            AlreadyPendingCallError: an env is in flight.
            EnvError: rendering raised.
        """
        return self._ask_each(id, Request("render", kwargs=kwargs))

    def restart(self, id: Ids = None) -> None:  # noqa: A002 - Tianshou's name
        """Make envs anew, each by its ``env_fn``; they must then be reset.

        Where the process of an env has ended a new one is started, with all the envs that it had;
        otherwise the env is closed, whatever state it is in, and made again where it is.

        Args:
            id: which; None is all.

        Raises:
            AlreadyPendingCallError: an env is in flight; ``cancel`` gives its request up, and if it
                hangs for more than a few seconds all the same its process is ended for it.
            EnvError: an env_fn raised, or a process ended while it started.
        """
        self._assert_open()
        self._lives.restart(self._resolve(id))

    def stats(self, *, clear: bool = False) -> Stats:
        """What the envs have done, and how long it took; at any time, steps under way included.

        Args:
            clear: begin to count anew afterwards.

        Raises:
            RuntimeError: the pool was made without ``measure=True``.
            NotImplementedError: its workers are of a class that does not measure.
        """
        self._assert_open()
        if not self._group.measuring:
            raise RuntimeError("nothing was measured: make the pool with measure=True")
        lives, group = self._lives, self._group
        meter = group.meter
        if meter is None:
            raise NotImplementedError(f"{self.worker_class.__name__} does not measure its envs")
        counts, restarts, since, batches, rows = self._counted
        found = summarise(
            meter.counts() - counts,
            group.restarts - restarts,
            group.processes(),
            seconds=time.perf_counter() - since,
            batches=lives.batches - batches,
            rows=lives.rows - rows,
        )
        if clear:
            self._begin_counting()
        return found

    def _begin_counting(self) -> None:
        """Note down where all counters stand: ``stats`` tells what came since."""
        lives, group = self._lives, self._group
        counts = 0 if group.meter is None else group.meter.counts()
        now = time.perf_counter()
        self._counted = counts, group.restarts.copy(), now, lives.batches, lives.rows

    # --------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Close all envs and end all processes, within a bounded time; a second call does nothing.

        Warns:
            RuntimeWarning: closing an env raised. All others are closed all the same.
        """
        if self.is_closed or os.getpid() != self._pid:
            return
        self.is_closed = True
        for journal in self._journals:
            journal.close()
        errors = self._group.close()
        for error in errors:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Any:
        self._assert_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "is_closed", True) or sys.is_finalizing() or os.getpid() != self._pid:
            return
        try:
            warnings.warn(
                f"unclosed {type(self).__name__}", ResourceWarning, source=self, stacklevel=2
            )
        finally:  # a warning may be an error
            self.close()

    # -------------------------------------------------------------------------------- the inside

    def _wrap_id(self, id: Ids = None) -> list[int]:  # noqa: A002 - Tianshou's name
        """Ids as a list; None is all."""
        listed: list[int] = ids_.resolve(id, self.env_num).tolist()
        return listed

    def _assert_id(self, id: Ids) -> None:  # noqa: A002 - Tianshou's name
        """Raise unless all of these envs can be asked for something now."""
        self._lives.check_free(ids_.resolve(id, self.env_num))

    def _assert_open(self) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"{type(self).__name__} is closed")
        if self._group.pid not in (None, _pid):
            raise RuntimeError(
                f"{type(self).__name__} was made in process {self._group.pid}; a fork of it cannot"
                " use its workers and must make a pool of its own"
            )

    def _resolve(self, env_id: Ids, other: Ids = None) -> IdArray:
        if env_id is None:
            if other is None:
                return self._all
            env_id = other
        elif other is not None:
            raise TypeError("ids were given twice, as env_id and as id")
        return ids_.resolve(env_id, self.env_num)

    def _reset_requests(
        self, ids: IdArray, seed: Seed, options: Options, kwargs: Mapping[str, Any]
    ) -> list[Request]:
        """One request for each env, all of which take a reset now."""
        requests = arguments.reset_requests(ids.tolist(), seed, options, kwargs)
        self._lives.claim_reset(ids)
        if seed is not None:
            for i, request in zip(ids.tolist(), requests, strict=True):
                self._seed_action_space(i, request.kwargs.get("seed"))
        return requests

    def _seed_action_space(self, i: int, seed: int | None) -> None:
        space = self.action_space[i]
        if space is not None and seed is not None:
            space.seed(seed)

    def _ask_each(self, id: Ids, request: Request) -> list[Any]:  # noqa: A002 - Tianshou's name
        self._assert_open()
        ids = self._resolve(id)
        self._lives.check_free(ids)
        return self._lives.ask(ids, [request] * len(ids))

    def _set_async(self) -> None:
        self._is_async = self._wait_num != self.env_num or self._timeout is not None
        self._group.prompt = self._is_async
