"""``replay``: repeat the recorded requests of a pool, and check every row.

The envs are created again and receive the same requests, each env in the same order, and rows are
fetched in the order of the run. So timing has no effect, and all envs can be in the calling
process, where a debugger reaches them. Only the death of a process is taken from the record.

A request is sent when the record shows that the env answered it. So a request that killed its
process, or that never began, is not carried out, on any backend.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py import env_ids as ids_
from envpool_py.env import spaces
from envpool_py.env.block import StepResult
from envpool_py.env.request import KINDS, Request
from envpool_py.env_ids import Ids
from envpool_py.errors import (
    EnvError,
    EnvTimeoutError,
    ReplayError,
    WorkerDiedError,
    closed_on_error,
    combine,
    warn,
)
from envpool_py.interrupts import suppressed
from envpool_py.options import Backend, RecoveryOptions
from envpool_py.pool.arguments import check_env_fns
from envpool_py.pool.base import RECORDED, BaseVectorEnv
from envpool_py.pool.keywords import Fixed, PoolOptions, check_options
from envpool_py.pool.pool_classes import pool_class
from envpool_py.record import file_format
from envpool_py.record.file_format import Event, Row
from envpool_py.record.untrusted_files import require

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PLACE = re.compile(r" \([^()]*:\d+\)$")
_DEATHS = {kind.__name__: kind for kind in (WorkerDiedError, EnvTimeoutError)}


def replay(
    path: str | os.PathLike[str],
    env_fns: Sequence[Callable[[], Any]],
    *,
    env_ids: Ids = None,
    until: int | None = None,
    backend: Backend | Callable[..., BaseVectorEnv] = "dummy",
    deaths: bool = False,
    swaps: Mapping[int, Sequence[Callable[[], Any]]] | None = None,
    **options: Unpack[PoolOptions],
) -> Replay:
    """Repeat the run of a pool with ``record=path``.

    Args:
        path: the record, also of a run that was killed.
        env_fns: the env_fns of the run, one for each env.
        env_ids: the envs to replay; None: all. Other envs are not created, and batches without a
            row of the chosen envs are left out.
        until: stop after this number of batches and keep the pool open; None: replay to the end.
        backend: ``"dummy"`` (all envs in the calling process), ``"subproc"``, ``"shmem"``,
            ``"ray"``, or a pool class.
        deaths: also carry out the requests in which a process died or was killed, and, as a last
            batch, the requests that were in flight when the program ended. They may end or block
            the calling process, as in the run. By default they are not carried out.
        swaps: the ``env_fns`` that ``pool.restart`` has put in the places of envs, by env id.
        **options: ``num_processes``, ``context`` and others of the pool class.

    Returns:
        An iterator of batches.

    Raises:
        ValueError: not a record, or a damaged one; or ``env_fns`` differ in number or spaces from
            the record.
        OSError: the record cannot be read.
        EnvError: an env_fn raised.
    """
    header, events = file_format.read(path)
    num_envs = header["num_envs"]
    env_fns = check_env_fns(env_fns)
    if len(env_fns) != num_envs:
        raise ValueError(f"got {len(env_fns)} env_fns, but the record {path} is of {num_envs} envs")
    cls: Any = backend if callable(backend) else pool_class(backend)
    if until is not None and (not isinstance(until, int) or until < 0):
        raise ValueError(f"until must be a number of batches or None, got {until!r}")
    chosen = ids_.resolve(env_ids, num_envs).tolist()
    if not chosen:
        raise ValueError("env_ids is empty; a replay needs at least one env")
    recorded = {name: header[name] for name in RECORDED}
    decided = {"wait_num": None, "timeout": None, **recorded}
    fixed = {name: Fixed(value, "it is that of the run") for name, value in decided.items()}
    why = "the record says what became of each error"
    fixed |= {name: Fixed(value, why) for name, value in vars(RecoveryOptions()).items()}
    own = check_options(options if cls is backend else cls, "replay", options, fixed)
    try:
        pool = cls([env_fns[i] for i in chosen], **recorded, **own)
    except EnvError as error:
        if isinstance(error, TypeError) and "agents/" in header["observations"]:
            raise ValueError(
                f"the record {path} is of a ParallelVectorEnv; pass env_fns of its PackedEnvs:"
                " functools.partial(envpool_py.pettingzoo.packed_env.PackedEnv, env_fn,"
                " with_state=state_in_info)"
            ) from error
        raise
    with closed_on_error(pool):
        spec = pool._inner.block_spec
        for name, layout in (("observations", spec.obs), ("actions", spec.action)):
            described = file_format.describe(layout)
            if described != header[name]:
                raise ValueError(
                    f"{name}: these envs have {described:.500},"
                    f" but the record {path} has {header[name]:.500}"
                )
        return Replay(path, pool, chosen, header, events, until, swaps or {}, deaths=deaths)


@dataclass
class _Env:
    #: The number of its episode, -1 before the first, and of its last step in it.
    position: tuple[int, int] = (-1, 0)
    #: Requests that reached the env but have no result: cancelled steps and resets, and calls that
    #: failed. They are carried out when the record shows a later answer of the env; if the env was
    #: recreated first, its process had died.
    unconfirmed: list[Request] = field(default_factory=list)
    #: Its entry of ``RECREATED``, if the run recreated the env but a row is returned before.
    life: dict[str, Any] | None = None

    def next_position(self, request: Request | None, info: Iterable[str] = ()) -> tuple[int, int]:
        """Return the position after a request; ``info``: of its row, has ``is_reset`` if needed."""
        episode, step = self.position
        if request is None or request.kind == "lost_step":
            return self.position
        is_step = request.kind == "step" and "is_reset" not in info
        return (episode, step + 1) if is_step else (episode + 1, 0)


class Replay(Iterator[StepResult], AbstractContextManager["Replay"]):
    """An iterator over the repeated batches of a record; ``replay`` creates it.

    Each batch has the form of the result of ``step``, with the rows in the order of the run:
    observations, rewards, ``terminated``, ``truncated``, infos. Rows of a reset have reward 0 and
    both flags False. ``info["env_id"]`` is the id of the env in the run.

    If the run raised an ``EnvError`` to its caller, the iterator raises the error too; the next
    batch is the one after the error. At its end the iterator closes the pool; a ``with`` block
    closes it in any case.

    Raises:
        EnvError: as in the run.
        ReplayError: a row or an error differs from the record.
        ValueError: the record is corrupt from here on.

    Warns:
        UserWarning: a function was applied to envs; a record holds no functions.

    Attributes:
        pool: the pool of the replay; its env ``k`` is env ``env_ids[k]`` of the run.
        env_ids: the ids of its envs in the run.
        header: the facts of the recorded pool.
        until: the number of batches after which to stop; may be changed.
        num_batches: the number of batches so far.
        recovered: errors that the run's ``on_error`` handled, so far.
        recovered_at: the number of the episode and of the step in which each of them happened; 0 is
            the reset.
        failed_at: the same of the last error of an env, by its id in the run.
        complete: whether the record ends with the pool's ``close()``; known at the end.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pool: BaseVectorEnv,
        env_ids: Sequence[int],
        header: dict[str, Any],
        events: Generator[Event, None, None],
        until: int | None,
        swaps: Mapping[int, Sequence[Callable[[], Any]]],
        *,
        deaths: bool,
    ) -> None:
        self._path, self.pool, self._events = path, pool, events
        self.env_ids, self.header, self.until = list(env_ids), header, until
        self.num_batches = 0
        self.recovered: list[EnvError] = []
        self.recovered_at: list[tuple[int, int]] = []
        self.failed_at: dict[int, tuple[int, int]] = {}
        self.complete = False
        self._deaths = deaths
        self._swaps = {i: list(env_fns) for i, env_fns in swaps.items()}
        self._inner = pool._inner
        # From here on ids are those of the pool of the replay.
        self._index = {i: k for k, i in enumerate(self.env_ids)}
        self._envs = [_Env() for _ in self.env_ids]
        # The requests in flight in the run, in the order of sending; not sent in the replay yet.
        self._pending: dict[int, Request] = {}
        is_seeded = header["episode_seeds"] or header["recycle"]
        self._inner.begin_replay([header["roots"][i] for i in self.env_ids] if is_seeded else ())

    def __next__(self) -> StepResult:
        try:
            return self._next()
        except ValueError as error:
            if type(error) is ValueError:  # the record is corrupt from here on
                self.close()
            raise

    def _next(self) -> StepResult:
        if self.pool.is_closed or (self.until is not None and self.num_batches >= self.until):
            raise StopIteration
        for kind, ids, data in self._events:
            self.complete = kind == file_format.CLOSED
            pairs = zip(ids, data, strict=True)
            entries = {self._index[i]: entry for i, entry in pairs if i in self._index}
            if kind in (file_format.ROWS, file_format.RESET_ROWS) and (entries or not ids):
                self._check(entries.keys() <= self._pending.keys(), "a row without a request")
                requests = {i: self._pending.pop(i) for i in entries}
                batch = self._repeat(requests, entries)
                for info in batch[4] if kind == file_format.RESET_ROWS else ():
                    info.pop("is_reset", None)
                if any(request.kind == "seed" for request in requests.values()):
                    continue  # `pool.seed` has dropped these rows
                self.num_batches += 1
                return batch
            if kind in (file_format.RAISED, file_format.RECOVERED):
                errors = [self._error_of(i, entry) for i, entry in entries.items()]
                if kind == file_format.RECOVERED:
                    self.recovered += errors
                    self.recovered_at += [self.failed_at[self.env_ids[i]] for i in entries]
                elif errors:
                    raise combine(errors)
            elif kind == file_format.ASKED and entries and data[0][0] == "apply":
                warn(
                    f"the run applied {data[0][1][0]} to {len(ids)} envs, which is not"
                    " replayed: a record holds no functions"
                )
            else:
                for i, entry in entries.items():
                    self._follow(kind, i, entry)
        if self._deaths and not self.complete and self._pending:
            pending, self._pending = self._pending, {}
            return self._fetch(pending)
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Close the pool and the file."""
        self.pool.close()
        self._events.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _follow(self, kind: bytes, i: int, entry: Any) -> None:
        """Follow what an event without rows and errors holds for env ``i``."""
        env = self._envs[i]
        if kind == file_format.STEPS:
            layout = self._inner.block_spec.action
            shapes = [leaf.shape for leaf in spaces.leaves(layout)]
            self._check([np.shape(part) for part in entry] == shapes, "the shape of an action")
            self._pending[i] = Request("step", (spaces.join(layout, entry),))
        elif kind == file_format.REQUESTS:
            request = Request(*entry)
            if request.kind == "lost_step":
                request = request._replace(args=(self._inner.last_obs(i),))
            self._pending[i] = request
        elif kind == file_format.CANCELLED:
            cancelled = self._pending.pop(i, None)
            if cancelled is not None and entry:
                env.unconfirmed.append(cancelled)
            self._recreate(i)
        elif kind == file_format.RECREATED:
            env.life = entry
            if i not in self._pending:  # else its row is returned first
                self._recreate(i)
        elif kind == file_format.ASKED:
            *fields, failed = entry
            request = Request(*fields)
            if request.kind == "env_fn":
                if failed:  # the env stayed
                    return
                env_id, name = self.env_ids[i], request.args[0]
                if not self._swaps.get(env_id):
                    raise ValueError(
                        f"env {env_id}: the run put another env in its place here, by {name}; a"
                        f" record holds no functions, so pass swaps={{{env_id}: [{name}]}}"
                    )
                request = request._replace(args=(self._swaps[env_id].pop(0),))
            if failed:
                env.unconfirmed.append(request)
                return
            self._confirm(i)
            error = self._carry_out(i, request)
            if error is not None:
                how = f"{request.kind} raised, but not in the run"
                raise self._differs(i, how, env.position) from error

    def _check(self, condition: bool, text: str) -> None:
        require(condition, f"{self._path}: damaged, batch {self.num_batches}: {text}")

    def _recreate(self, i: int) -> None:
        """Recreate env ``i`` if it was recreated in the run."""
        env = self._envs[i]
        if env.life is not None:
            env.unconfirmed.clear()
            with suppressed(EnvError):  # as in the run, of another env_fn
                self._inner.recreate(i, env.life)
            env.life = None

    def _confirm(self, i: int) -> None:
        """Carry out the unconfirmed requests of env ``i``, which has answered a later one."""
        env = self._envs[i]
        requests, env.unconfirmed = env.unconfirmed, []
        for request in requests:
            self._carry_out(i, request)

    def _carry_out(self, i: int, request: Request) -> EnvError | None:
        """Carry out a request on env ``i``, drop the result, and return the error, if any."""
        env = self._envs[i]
        try:
            if KINDS[request.kind].has_row:
                infos = self._fetch({i: request})[4]
                env.position = env.next_position(request, infos[0])
            else:
                self._inner.carry_out(i, request)
        except EnvError as error:
            return error
        return None

    def _fetch(self, requests: Mapping[int, Request]) -> StepResult:
        for i in requests:
            self._confirm(i)
        try:
            batch = self._inner.fetch(requests)
        except ResetNeeded as error:
            self._check(False, str(error))
        except EnvError as error:  # with the ids of the run
            index, i = error.env_id, self.env_ids[error.env_id]
            error.message = error.message.replace(f"env {index}:", f"env {i}:", 1)
            error.env_ids = tuple(self.env_ids[k] for k in error.env_ids)
            raise
        for i, info in zip(requests, batch[4], strict=True):
            info["env_id"] = self.env_ids[i]
        return batch

    def _repeat(self, requests: Mapping[int, Request], rows: Mapping[int, Row]) -> StepResult:
        try:
            batch = self._fetch(requests)
        except EnvError as error:
            i = self._index[error.env_id]
            first = _headline(error.message)
            position = self._envs[i].next_position(requests[i])
            raise self._differs(i, f"{first}; in the run it did not", position) from error
        for n, (i, row) in enumerate(rows.items()):
            env, info = self._envs[i], batch[4][n]
            env.position = env.next_position(requests[i], info)
            how = self._difference(batch, n, i, row)
            if how is not None:
                raise self._differs(i, how, env.position)
            if "final_obs" in info and requests[i].kind in ("step", "lost_step"):
                env.position = env.position[0] + 1, 0
            self._recreate(i)
        return batch

    def _difference(self, batch: StepResult, n: int, i: int, row: Row) -> str | None:
        """Describe how row ``n`` of a batch, of env ``i``, differs from the record; None: equal."""
        _, reward, terminated, truncated, _ = batch
        now, was = (bool(terminated[n]), bool(truncated[n])), (row.terminated, row.truncated)
        if now != was:
            return f"(terminated, truncated) is {now}, was {was}"
        values = np.asarray(reward[n], np.float64).squeeze()
        recorded = np.asarray(row.reward, np.float64).squeeze()
        # Zeros of another shape: of an env alone, whose pool had another env with vector rewards.
        are_equal = values.tobytes() == recorded.tobytes()
        if not are_equal and (values.ndim == recorded.ndim or values.any() or recorded.any()):
            return f"reward is {values.tolist()}, was {recorded.tolist()}"
        found = self._inner.last_obs_digest(i)
        if found != row.digest:
            shown = f"{self._inner.last_obs(i)!r:.300}"
            return f"obs is {shown}, of digest {found:08x}; the digest was {row.digest:08x}"
        return None

    def _differs(self, i: int, how: str, position: tuple[int, int]) -> ReplayError:
        episode, step = position
        where = f"step {step}" if step else "reset"
        text = (
            f"env {self.env_ids[i]}: episode {episode}, {where}: {how};"
            " the env is not deterministic, or not the one of the run"
        )
        return ReplayError(text, self.env_ids[i], episode, step)

    @staticmethod
    def _position_of(env: _Env, request: Request | None, *, is_reset: bool) -> tuple[int, int]:
        """Return the position of an error; ``is_reset``: of an automatic reset in a step."""
        if is_reset and not env.position[1]:  # in same_step mode, after the row of the episode
            return env.position
        return env.next_position(request, ["is_reset"] if is_reset else ())

    def _error_of(self, i: int, fault: tuple[str, str, str, tuple[int, ...]]) -> EnvError:
        """Return the error of the run; ReplayError unless an env that raised it does so again."""
        kind, text, asked, env_ids = fault
        env, request = self._envs[i], self._pending.pop(i, None)
        is_death, error = kind in _DEATHS, None
        is_reset = asked == "reset" and request is not None and request.kind == "step"
        position = self._position_of(env, request, is_reset=is_reset)
        if request is not None and (self._deaths if is_death else asked in ("step", "reset")):
            self._confirm(i)
            position = self._position_of(env, request, is_reset=is_reset)
            if is_death:
                warn(f"env {self.env_ids[i]}: repeats what ended it; this process may end")
            error = self._carry_out(i, request)
            was, now = _headline(text), "" if error is None else _headline(error.message)
            if not is_death and _ADDRESS.sub("0x", now) != _ADDRESS.sub("0x", was):
                how = f"raised {now!r}, was {was!r}"
                if error is None:
                    how = f"it did not raise the error of the run: {was}"
                raise self._differs(i, how, position) from error
        self.failed_at[self.env_ids[i]] = position
        if request is not None and request.kind == "step" and not is_reset:
            env.position = position
        self._recreate(i)
        message, _, details = text.partition("\n\n")
        return error or _DEATHS.get(kind, EnvError)(message, env_ids, asked, details)


def _headline(message: str) -> str:
    # Without its env, and without the line of the user's code.
    return _PLACE.sub("", message.partition("\n")[0].partition(": ")[2])
