"""``replay``: what a pool has recorded is done once more, and checked row by row.

The envs are made anew and asked for the very same, each in the order in which it was; rows are
fetched in the order in which they were handed out. So timing plays no part, and all the envs may
live in this process, where a debugger reaches them. What no env can be asked for, the death of a
process, is taken from the record.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from envpool_py import digest, recording, spaces
from envpool_py import ids as ids_
from envpool_py.arguments import check_env_fns
from envpool_py.errors import EnvError, EnvTimeoutError, ReplayError, WorkerDiedError, combine
from envpool_py.ids import IdArray, Ids
from envpool_py.journal import LOST_EPISODE
from envpool_py.life import StepResult
from envpool_py.making import BACKENDS
from envpool_py.recording import Batch, Event, Fault
from envpool_py.vector_env import BaseVectorEnv
from envpool_py.worker.base import Request
from envpool_py.worker.dummy import DummyGroup
from envpool_py.worker.execute import ResetFn

if TYPE_CHECKING:
    from typing_extensions import Self

# Chunks that do not tell whether an env still answers.
_ASKING = frozenset(
    {recording.STEPS, recording.PLAIN_STEPS, recording.RESETS, recording.CANCELLED, recording.ASKS}
)
_REQUESTS = frozenset({recording.STEPS, recording.PLAIN_STEPS, recording.RESETS})
_WHY = "the env is not deterministic, or not the one of the run"
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_DEATHS = {kind.__name__: kind for kind in (WorkerDiedError, EnvTimeoutError)}


def replay(
    path: str | os.PathLike[str],
    env_fns: Sequence[Callable[[], Any]],
    *,
    env_ids: Ids = None,
    until: int | None = None,
    backend: str | Callable[..., BaseVectorEnv] = "dummy",
    reset_fn: ResetFn | None = None,
    deaths: bool = False,
    **options: Any,
) -> Replay:
    """Do once more what a pool with ``record=path`` has done.

    Args:
        path: the record; of a run that was killed, too.
        env_fns: those of the run, one for each env.
        env_ids: the envs to replay; None is all. The others are not made, and batches without a row
            of these are left out.
        until: after so many batches the replay stops and its pool stays open; None is to the end.
        backend: ``"dummy"``, all in this process, ``"subproc"``, ``"shmem"``, or a pool class.
        reset_fn: asked where the record does not hold what the run's ``reset_fn`` returned: the
            reset raised, or the options were of a kind that no record holds.
        deaths: carry out, too, the requests in which a process died or was killed, and those that
            were under way when the program ended: as a last batch. They may end this process, or
            hang, as they did then; without it they are not carried out.
        **options: other arguments of the pool class: ``context``, ``num_processes``, ...

    Returns:
        An iterator of batches.

    Raises:
        ValueError: not a record; another number of ``env_fns``, or other spaces, than it has.
        OSError: it can't be read.
        EnvError: an env_fn raised.
    """
    header = recording.read_header(path)
    num_envs = header["num_envs"]
    env_fns = check_env_fns(env_fns)
    if len(env_fns) != num_envs:
        raise ValueError(f"got {len(env_fns)} env_fns, but the record {path} is of {num_envs} envs")
    if isinstance(backend, str):
        if backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ValueError(f"backend must be a pool class or one of {known}, got {backend!r}")
        backend = BACKENDS[backend]
    if until is not None and (not isinstance(until, int) or until < 0):
        raise ValueError(f"until must be a number of batches or None, got {until!r}")
    chosen = ids_.resolve(env_ids, num_envs).tolist()
    if not chosen:
        raise ValueError("env_ids is empty; a replay needs one env at least")
    asked = None
    if header["reset_fn"]:
        asked = _Asked(_asked_in(path), chosen, reset_fn)
    pool = backend(
        [env_fns[i] for i in chosen],
        autoreset_mode=header["autoreset_mode"],
        columns=header["columns"],
        validate=header["validate"],
        reset_first=header["reset_first"],
        episode_seeds=header["episode_seeds"],
        reset_fn=asked,
        **options,
    )
    try:
        return Replay(pool, path, chosen, until=until, deaths=deaths)
    except BaseException:
        pool.close()
        raise


class Replay:
    """The batches of a record, made anew: an iterator, made by ``replay``.

    Each batch is what ``step`` returns, with the rows in the order in which the run had them:
    observations, rewards, ``terminated``, ``truncated``, infos. Those of a reset have reward 0 and
    both flags False. ``info["env_id"]`` is that of the run.

    Where the run raised an ``EnvError`` to its caller, the iterator raises it as well, and the next
    batch is what came after. At its end the pool is closed; a ``with`` block closes it in any case.

    Raises:
        EnvError: as in the run.
        ReplayError: a row, or an error, is not that of the record.
        ValueError: the record is corrupt from here on.

    Warns:
        UserWarning: a function was applied to an env, which no record holds.

    Attributes:
        pool: the pool that is replayed on; env ``k`` of it is ``env_ids[k]`` of the run.
        env_ids: the ids of its envs in the run.
        header: the facts of the run's pool.
        until: the number of batches after which to stop; may be changed.
        num_batches: how many there were so far.
        complete: whether the record ends with the pool's ``close()``; known at the end.
    """

    def __init__(
        self,
        pool: BaseVectorEnv,
        path: str | os.PathLike[str],
        env_ids: Sequence[int],
        *,
        until: int | None = None,
        deaths: bool = False,
    ) -> None:
        self.pool = pool
        self.env_ids = list(env_ids)
        self.header = recording.read_header(path)
        self.until = until
        self.num_batches = 0
        self.complete = False
        self._lives = pool._lives  # noqa: SLF001 - what is recorded was asked of it, not of the pool
        self._block = pool._group.block  # noqa: SLF001
        self._block.keep_last()
        self._deaths = deaths
        self._place = {i: k for k, i in enumerate(self.env_ids)}
        self._layout = self._block.shape.obs
        self._check_spaces(path)
        self._events = recording.read_events(path)
        self._ahead: deque[Event] = deque()
        # Where each env is: what it is asked for now, if anything; its episode, and its step in it.
        self._asked: dict[int, str] = {}
        self._episode = dict.fromkeys(self.env_ids, -1)
        self._step = dict.fromkeys(self.env_ids, 0)
        # Given up, and carried out all the same.
        self._given_up: set[int] = set()
        # By env and number: the requests that are not to be carried out. Needed where a request
        # that is sent is also carried out, or its seed kept.
        self._unanswered: set[tuple[int, int]] = set()
        early = not isinstance(pool._group, DummyGroup)  # noqa: SLF001
        if not deaths and (early or self.header["episode_seeds"]):
            self._unanswered = _unanswered_in(path)
        self._number = dict.fromkeys(self.env_ids, 0)
        # Those whose request is such a one.
        self._unsent: set[int] = set()
        # To be made anew when its row has been fetched.
        self._due: set[int] = set()
        # Of the schedule of seeds: for an env that was not reset yet.
        self._roots = dict(enumerate(self.header["roots"]))
        self._handlers: dict[bytes, Callable[[Event, list[int]], StepResult | None]] = {
            recording.STEPS: self._send_steps,
            recording.PLAIN_STEPS: self._send_steps,
            recording.RESETS: self._send_resets,
            recording.ROWS: self._hand_out,
            recording.RAISED: self._raise,
            recording.TAKEN: self._take,
            recording.MADE: self._make_anew,
            recording.CANCELLED: self._cancel,
            recording.ASKS: self._ask,
        }

    def _check_spaces(self, path: str | os.PathLike[str]) -> None:
        shape = self._block.shape
        for name, layout in (("observations", shape.obs), ("actions", shape.action)):
            own, recorded = recording.layout_json(layout), self.header[name]
            if own != recorded:
                raise ValueError(
                    f"{name}: these envs have {_described(own)}, but the record {path} has"
                    f" {_described(recorded)}"
                )

    def __iter__(self) -> Iterator[StepResult]:
        return self

    def __next__(self) -> StepResult:
        if self.pool.is_closed or (self.until is not None and self.num_batches >= self.until):
            raise StopIteration
        for event in self._next_events():
            if event.kind == recording.CLOSED:
                self.complete = True
                continue
            places = [k for k, i in enumerate(event.ids) if i in self._place]
            if not places and event.ids:
                continue
            if self._given_up:
                self._catch_up(event, places)
            batch = self._handlers[event.kind](event, places)
            if batch is not None:
                self.num_batches += 1
                return batch
        if self._deaths and not self.complete and self._asked:
            ids, self._asked = list(self._asked), {}
            batch = self._lives.fetch_exactly(self._own(ids))
            self._rename(batch)
            return batch
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Close the pool."""
        if not self.pool.is_closed:
            self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "pool"):
            self.close()

    # -------------------------------------------------------------------------------- requests

    def _own(self, ids: Sequence[int]) -> IdArray:
        """The ids that these envs have here."""
        everything: IdArray = self._lives.everything
        own = np.array([self._place[i] for i in ids], dtype=np.intp)
        whole = len(own) == len(everything) and bool((own == everything).all())
        return everything if whole else own

    def _to_send(self, event: Event, places: list[int]) -> list[int]:
        """Those of these places of a request to which it is to be sent."""
        send = []
        for k in places:
            i = event.ids[k]
            if (i, self._number[i]) in self._unanswered:
                self._unsent.add(i)
            else:
                self._unsent.discard(i)
                send.append(k)
            self._number[i] += 1
        return send

    def _send_steps(self, event: Event, places: list[int]) -> None:
        self._asked.update((event.ids[k], "step") for k in places)
        places = self._to_send(event, places)
        if not places:
            return
        ids = [event.ids[k] for k in places]
        layout = self._block.shape.action
        actions: Any
        if event.kind == recording.PLAIN_STEPS:
            actions = [event.data[k] for k in places]
        elif spaces.is_leaf(layout):
            actions = event.data[0][places]
        else:
            leaves = spaces.leaves(layout)
            actions = [
                spaces.join(
                    layout,
                    [leaf.one(column, k) for leaf, column in zip(leaves, event.data, strict=True)],
                )
                for k in places
            ]
        self._lives.send_steps(self._own(ids), actions)

    def _send_resets(self, event: Event, places: list[int]) -> None:
        self._asked.update((event.ids[k], "reset") for k in places)
        places = self._to_send(event, places)
        if not places:
            return
        ids = [event.ids[k] for k in places]
        requests = []
        for k, i in zip(places, ids, strict=True):
            own = {} if event.data is None else dict(event.data[k])
            root = self._roots.pop(i, None)
            if root is not None and "seed" not in own:
                own["seed"] = root
            requests.append(Request("reset", kwargs=own))
        self._lives.send_resets(self._own(ids), requests)

    def _cancel(self, event: Event, places: list[int]) -> None:
        for k in places:
            i = event.ids[k]
            carried_out = event.data[k]
            flying = self._asked.pop(i, None) is not None
            if flying and carried_out and i not in self._due:
                self._given_up.add(i)  # should it not turn out to have killed its process
                continue
            # Or a row that was on its way to the caller when the call was broken off.
            self._lives.give_up(self._own([i]), landed=not flying)
            self._settle(i)

    def _catch_up(self, event: Event, places: list[int]) -> None:
        """Carry out what was given up, but where it turns out to have been the env's last."""
        for k in places:
            i = event.ids[k]
            if i in self._given_up:
                self._given_up.discard(i)
                if i not in self._unsent and self._has_lived_on(i, event):
                    self._fetch_error(i)
                self._lives.give_up(self._own([i]), landed=True)

    def _has_lived_on(self, i: int, event: Event) -> bool:
        """Whether env ``i`` answers anything more before it is made anew."""
        for later in itertools.chain([event], self._ahead, self._read_ahead()):
            if i not in later.ids or later.kind in _ASKING:
                continue
            if later.kind in (recording.RAISED, recording.TAKEN):
                return any(fault.env_id == i and fault.met for fault in later.data)
            return later.kind == recording.ROWS
        return False

    def _read_ahead(self) -> Iterator[Event]:
        for event in self._events:
            self._ahead.append(event)
            yield event

    def _next_events(self) -> Iterator[Event]:
        while True:
            event = self._ahead.popleft() if self._ahead else next(self._events, None)
            if event is None:
                return
            yield event

    def _make_anew(self, event: Event, places: list[int]) -> None:
        for k in places:
            i = event.ids[k]
            if i in self._asked:
                self._due.add(i)  # its row comes first
            else:
                self._lives.restart(self._own([i]))

    def _settle(self, i: int) -> None:
        if i in self._due:
            self._due.discard(i)
            self._lives.restart(self._own([i]))

    def _ask(self, event: Event, places: list[int]) -> None:
        kind, own, failed = event.data
        ids = [event.ids[k] for k in places]
        if kind == "apply":
            warnings.warn(
                f"the run applied {own[0][0][0]} to {len(event.ids)} envs, which is not replayed:"
                " a record holds no functions",
                UserWarning,
                stacklevel=4,
            )
            return
        requests = [Request(kind, tuple(own[k][0]), own[k][1]) for k in places]
        if kind == "seed":
            for k, i in enumerate(ids):
                root = self._roots.pop(i, None)
                if root is not None and requests[k].args[0] is None:
                    requests[k] = Request("seed", (root,))
                self._episode[i] += 1
                self._step[i] = 0
        ask = self._lives.ask_seeds if kind == "seed" else self._lives.ask
        try:
            ask(self._own(ids), requests)
        except EnvError as error:
            wrong = [self.env_ids[k] for k in error.env_ids if self.env_ids[k] not in failed]
            if wrong:
                raise self._differs(wrong[0], f"{kind} raised, but not in the run") from error

    # ------------------------------------------------------------------------------------ rows

    def _hand_out(self, event: Event, places: list[int]) -> StepResult:
        written: Batch = event.data
        ids = [event.ids[k] for k in places]
        own = self._own(ids)
        told = {i: written.told[i][1] for i in ids if i in written.told}
        finals = {i: self._block.last_obs(self._place[i]) for i in told if "final_obs" in told[i]}
        lost = [i for i in ids if i in written.told and written.told[i][0]]
        if lost:
            self._lives.put_lost(np.array([self._place[i] for i in lost], dtype=np.intp))
        try:
            batch = self._lives.fetch_exactly(own)
        except EnvError as error:
            i = self.env_ids[error.env_id]
            first = error.message.partition("\n")[0].partition(": ")[2]
            raise self._differs(i, f"{first}; in the run it did not", ahead=True) from error
        self._check(batch, written, ids, places)
        for k, i in enumerate(ids):
            info = batch[4][k]
            # A lost step came with the first row of the next episode: that is no row of a reset.
            of_step = not written.marked or LOST_EPISODE in told.get(i, {})
            if self._asked.pop(i, "") == "reset" and of_step:
                info.pop("is_reset", None)
            if i in told:
                info.update({key: v for key, v in told[i].items() if key != LOST_EPISODE})
                if i in finals:
                    info["final_obs"] = finals[i]
                batch[3][k] |= LOST_EPISODE in told[i]
            if "final_obs" in info:
                self._episode[i] += 1
                self._step[i] = 0
            self._settle(i)
        self._rename(batch)
        return batch

    def _rename(self, batch: StepResult) -> None:
        for info in batch[4]:
            info["env_id"] = self.env_ids[info["env_id"]]

    def _check(self, batch: StepResult, written: Batch, ids: list[int], places: list[int]) -> None:
        """Compare each row with the record, and count it."""
        obs, reward, terminated, truncated, infos = batch
        parts = _parts(self._layout, obs, columns=self.header["columns"])
        leaves = spaces.leaves(self._layout)
        digests = digest.fold(digest.of_observations(leaves, parts, len(ids)))
        flags = terminated.astype(np.uint8) + 2 * truncated.astype(np.uint8)
        for n, (k, i) in enumerate(zip(places, ids, strict=True)):
            if self._asked.get(i) == "reset" or "is_reset" in infos[n]:
                self._episode[i] += 1
                self._step[i] = 0
            else:
                self._step[i] += i in self._asked
            if flags[n] != written.flags[k]:
                was = (bool(written.flags[k] & 1), bool(written.flags[k] & 2))
                now = (bool(terminated[n]), bool(truncated[n]))
                raise self._differs(i, f"(terminated, truncated) is {now}, was {was}")
            now_reward = np.asarray(reward[n], np.float64).reshape(-1)
            was_reward = np.asarray(written.reward[k], np.float64).reshape(-1)
            if now_reward.tobytes() != was_reward.tobytes():
                now_text, was_text = _number(now_reward), _number(was_reward)
                raise self._differs(i, f"reward is {now_text}, was {was_text}")
            if digests[n] != written.digests[k]:
                shown = _row_of(self._layout, parts, n)
                raise self._differs(
                    i,
                    f"obs is {shown!r:.300}, of digest {int(digests[n]):08x};"
                    f" the digest was {int(written.digests[k]):08x}",
                )

    # ---------------------------------------------------------------------------------- errors

    def _differs(self, i: int, how: str, *, ahead: bool = False) -> ReplayError:
        """The error of a replay that does not do what the run did; ``ahead``: in the next step."""
        episode, step = self._episode[i], self._step[i]
        if ahead and self._asked.get(i) == "reset":
            episode, step = episode + 1, 0
        elif ahead:
            step += 1
        where = f"step {step}" if step else "reset"
        text = f"env {i}: episode {episode}, {where}: {how}; {_WHY}"
        return ReplayError(text, i, episode, step)

    def _fetch_error(self, i: int) -> EnvError | None:
        """Fetch the row of env ``i``: the error that comes in its place, if any."""
        try:
            self._lives.fetch_exactly(self._own([i]))
        except EnvError as error:
            return error
        return None

    def _meet(self, fault: Fault) -> EnvError:
        """The error of the run, met again where an env raised it."""
        i = fault.env_id
        if not fault.met and not (self._deaths and fault.kind in _DEATHS and i in self._asked):
            if i in self._asked:
                self._lives.give_up(self._own([i]))
            return _told(fault)
        error = self._fetch_error(i)
        if error is None and not fault.met:  # it was killed from without
            return _told(fault)
        first = fault.text.partition("\n")[0]
        if error is None:
            raise self._differs(
                i, f"it did not raise what it raised in the run: {first}", ahead=True
            )
        met = self._renamed(error, i)
        now = met.message.partition("\n")[0]
        if fault.met and _ADDRESS.sub("0x", now) != _ADDRESS.sub("0x", first):
            raise self._differs(i, f"raised {now!r}, was {first!r}", ahead=True) from error
        return met

    def _renamed(self, error: EnvError, i: int) -> EnvError:
        """The error, with the id that the env had in the run."""
        error.message = error.message.replace(f"env {self._place[i]}:", f"env {i}:", 1)
        error.env_ids = (i,)
        return error

    def _faults(self, event: Event, places: list[int]) -> list[EnvError]:
        met = []
        for k in places:
            fault = event.data[k]
            met.append(self._meet(fault))
            if self._asked.pop(fault.env_id, None) == "step":
                self._step[fault.env_id] += 1
            self._settle(fault.env_id)
        return met

    def _take(self, event: Event, places: list[int]) -> None:
        self._faults(event, places)

    def _raise(self, event: Event, places: list[int]) -> None:
        raise combine(self._faults(event, places))


class _Asked:
    """A ``reset_fn`` that returns what the one of the run did."""

    def __init__(
        self,
        known: Mapping[tuple[int, int], Sequence[tuple[int | None, Any]]],
        env_ids: Sequence[int],
        otherwise: ResetFn | None,
    ) -> None:
        self._known = known
        self._env_ids = list(env_ids)
        self._otherwise = otherwise
        self._times: dict[tuple[int, int], int] = {}

    def __call__(self, env_id: int, episode: int) -> tuple[int | None, dict[str, Any] | None]:
        i = self._env_ids[env_id]
        key = (i, episode)
        time = self._times.get(key, 0)
        self._times[key] = time + 1
        known = self._known.get(key, ())
        if known:
            return known[min(time, len(known) - 1)]
        if self._otherwise is None:
            raise ValueError(
                f"the record does not hold what reset_fn returned for env {i}, episode {episode};"
                " pass reset_fn to replay"
            )
        return self._otherwise(i, episode)


def _asked_in(
    path: str | os.PathLike[str],
) -> dict[tuple[int, int], list[tuple[int | None, Any]]]:
    """By env and episode, what ``reset_fn`` returned."""
    found: dict[tuple[int, int], list[tuple[int | None, Any]]] = {}
    with contextlib.suppress(ValueError):  # corrupt: said where the replay comes to it
        for event in recording.read_events(path):
            told = event.data.told if event.kind == recording.ROWS else {}
            for i, (_, _, asked) in told.items():
                for episode, seed, options in asked:
                    found.setdefault((i, episode), []).append((seed, options))
    return found


def _unanswered_in(path: str | os.PathLike[str]) -> set[tuple[int, int]]:
    """The requests, by env and number, that were its last: it died, or never got to them."""
    found: set[tuple[int, int]] = set()
    count: dict[int, int] = {}
    pending: dict[int, list[int]] = {}  # of each env, the last of which may be under way
    flying: set[int] = set()

    def lose(i: int, numbers: Sequence[int]) -> None:
        found.update((i, number) for number in numbers)

    with contextlib.suppress(ValueError):  # corrupt: said where the replay comes to it
        for event in recording.read_events(path):
            for k, i in enumerate(event.ids):
                own = pending.setdefault(i, [])
                if event.kind in _REQUESTS:
                    own.append(count.setdefault(i, 0))
                    count[i] += 1
                    flying.add(i)
                elif event.kind == recording.CANCELLED:
                    if i in flying and not event.data[k]:
                        lose(i, [own.pop()])
                    flying.discard(i)
                elif event.kind == recording.MADE:
                    last = [own.pop()] if i in flying else []  # its row is still to come
                    lose(i, own)
                    own[:] = last
                elif event.kind != recording.ASKS:
                    if event.kind != recording.ROWS and not event.data[k].met:
                        lose(i, own)
                    own.clear()
                    flying.discard(i)
    for i, own in pending.items():
        lose(i, own)
    return found


def _told(fault: Fault) -> EnvError:
    """The error of the run, as it was told."""
    return _DEATHS.get(fault.kind, EnvError)(fault.text, fault.env_ids)


def _parts(layout: Any, obs: Any, *, columns: bool) -> list[Any]:
    """A batch of observations, leaf by leaf."""
    if spaces.is_leaf(layout):
        return [obs]
    if columns:
        return spaces.split(layout, obs, "obs")
    rows = [spaces.split(layout, one, "obs") for one in obs]
    parts: list[Any] = []
    for n, leaf in enumerate(spaces.leaves(layout)):
        own = [row[n] for row in rows]
        if leaf.dtype is None:
            parts.append(own)
        else:
            parts.append(np.array(own, leaf.dtype).reshape(len(own), *leaf.shape))
    return parts


def _row_of(layout: Any, parts: list[Any], k: int) -> Any:
    return spaces.join(layout, [part[k] for part in parts])


def _number(values: Any) -> Any:
    return values[0] if len(values) == 1 else values.tolist()


def _described(layout: Sequence[Any]) -> str:
    shown = [
        f"{path or 'values'} of "
        + (f"shape {tuple(shape)} and dtype {np.dtype(dtype)}" if dtype else "no fixed shape")
        for path, shape, dtype, _ in layout
    ]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")
