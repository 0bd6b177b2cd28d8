"""Envs in worker processes: the group that serves many of them.

What holds, whatever the envs do:

* a request is numbered by its token's generation: an answer to a request that was given up is
  dropped, however late it comes;
* every reply of a call is taken before an error of it is raised;
* the parent never blocks in a write: what a process does not take at once waits in an outbox, and
  reading goes on meanwhile, so two full pipes can't wait for each other;
* a process that ends is noticed by the process itself ending, not by a pipe;
* after SIGKILL of the parent the kernel kills every process and what it started;
* ``close`` takes ``GRACE`` seconds and a little, however many envs hang.
"""

from __future__ import annotations

import functools
import math
import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from envpool_py import shm, spaces
from envpool_py.errors import (
    EnvError,
    EnvTimeoutError,
    Failure,
    WorkerDiedError,
    combine,
    env_error,
    from_signal_handler,
    name_ids,
    unpack_failure,
)
from envpool_py.ids import IdArray
from envpool_py.rows import Block, Shape, nbytes
from envpool_py.spaces import Array
from envpool_py.worker import child, meter
from envpool_py.worker.base import Request
from envpool_py.worker.bells import DOZE, LOOKS, WORK_HERE, Bells
from envpool_py.worker.execute import EnvFacts
from envpool_py.worker.group import ROW_KINDS, WorkerGroup
from envpool_py.worker.lane import GARBLED, Lane, Poller, claim, release
from envpool_py.worker.limits import usable_cores
from envpool_py.worker.meter import Meter
from envpool_py.worker.options import (
    check_context,
    check_num_processes,
    check_num_threads,
    check_step_timeout,
)
from envpool_py.worker.pickling import pickled_fn, pickled_requests
from envpool_py.worker.tokens import ID_MASK, WAKE_UP, Tokens
from envpool_py.worker.watch import Overdue, Watch

#: Seconds that ``close`` gives all processes together to end by themselves.
GRACE = 5.0
#: Seconds that a process may live on once its stream is closed: one that ends has closed it too.
MUTE_FOR = 1.0
#: Seconds after which a pool says for which ``env_fn`` it is waiting.
SLOW_START = 60.0

# What to call a reply that can't be read.
_KINDS = {
    child.STEP_ROW: "step",
    child.RESET_ROW: "reset",
    child.SIDE: "step",
    child.REPLY: "reply",
}
_RESET = Request("reset")
_RING = child.FRAME.pack(child.RING, 0)
#: How often only the pipe of the results may be looked at before everything is.
_MOST_IN_A_ROW = 8
_READ = 1 << 14  # bytes: the ids of 4096 rows


class ProcessGroup(WorkerGroup):
    """Many envs in several processes.

    Args:
        workers: ``SubprocEnvWorker``, equal in start method and in the use of shared memory.
        num_processes: None is one for each worker.
        num_threads: the threads of each process; None does not limit them.
        affinity: keep each process on one core.
        step_timeout: seconds that an env may take over one request; None is for ever.
    """

    workers: Sequence[Any]

    def __init__(
        self,
        workers: Sequence[Any],
        num_processes: int | None = None,
        *,
        num_threads: int | None = 1,
        affinity: bool = False,
        step_timeout: float | None = None,
    ) -> None:
        super().__init__(workers)
        num_envs = len(workers)
        if num_envs > ID_MASK:
            raise ValueError(f"got {num_envs} envs; a pool takes {ID_MASK} at the most")
        self.num_processes = check_num_processes(num_processes, num_envs)
        self._step_timeout = check_step_timeout(step_timeout)
        self._watch: Watch | None = None
        self._num_threads = check_num_threads(num_threads)
        self._affinity = affinity
        self.context = check_context(workers[0].context)
        self.shares_block = workers[0].share_memory
        #: Seconds for which to look for what happens before sleeping until it does; set before the
        #: start, and only where this process has a core beside those of the others.
        self.look_for = 0.0
        self._lanes: list[Lane] = []
        self._by_fd: dict[int, Lane] = {}
        self._by_death: dict[int, Lane] = {}
        self._deaths: dict[int, WorkerDiedError] = {}
        # The numbers of the processes that are being started anew, and what their envs raised.
        self._coming: set[int] = set()
        self._start_errors: dict[int, EnvError] = {}
        # Whether ``wait`` is to return: one of them has come, or requests were given up.
        self._to_return = False
        # Of those that took too long: for the request that did, the deaths for all later ones.
        self._overdue: dict[int, EnvTimeoutError] = {}
        self._home: IdArray = np.empty(0, dtype=np.intp)
        self._tokens = Tokens(num_envs)
        # By kind: the frames that ask all processes for that of all their envs.
        self._whole_frames: dict[int, list[bytes]] = {}
        self._bells: Bells | None = None
        # Whether the last step that each process was asked for is one of all its envs.
        self._ringable = False
        # By process, of a ring that it has not answered: the envs whose steps were given up, and
        # their tokens.
        self._rung_in_vain: dict[int, dict[int, int]] = {}
        # How often only the pipe of the results was looked at, since all was.
        self._read_in_a_row = 0
        self._unflushed: set[Lane] = set()
        # Those that have closed their streams, and when they are killed for it.
        self._mute: dict[Lane, float] = {}
        # What has been read and not yet worked on: ids, frames, ends.
        self._chunks: list[bytes] = []
        self._fresh: dict[Lane, None] = {}
        self._dying: list[Lane] = []
        self._close_errors: list[EnvError] = []
        self._attach = b""
        self._heard: dict[int, EnvFacts] = {}
        self.pid = os.getpid()
        # The threads that close, and that wait for what happens; 0 for none.
        self._closer = self._pumping = 0
        self._fds: list[int] = []  # ends that the processes hold: alive, results, memory
        self._own_fds: list[int] = []  # the other ends, the parent's alone
        self._memory: int | None = None
        self._meter_memory: int | None = None
        self._poller = Poller()

    # -------------------------------------------------------------------------------- start, end

    def learn_facts(self) -> list[EnvFacts]:
        """Start all processes at once, then learn the envs' facts from them.

        Raises:
            EnvError: an env_fn can't be pickled where the start method needs it, or raised.
            WorkerDiedError: a process ended before its envs were there.
        """
        method = self.context.get_start_method()
        env_fns = [worker.env_fn for worker in self.workers]
        self._sent_fns: Sequence[Any] = (
            env_fns if method == "fork" else [pickled_fn(fn, i) for i, fn in enumerate(env_fns)]
        )
        self._finalizer = Finalize(None, self.close, exitpriority=10)
        # Noted down one by one: should the next not be had, these are closed.
        theirs, ours = os.pipe()
        self._fds.append(theirs)
        self._own_fds.append(claim(ours))
        self._results, theirs = os.pipe()
        self._fds.append(theirs)
        self._own_fds.append(claim(self._results))
        os.set_blocking(self._results, False)
        if self.shares_block:
            self._memory = shm.create()
            self._fds.append(self._memory)
        if self.measuring:
            self._meter_memory = shm.create()
            self._fds.append(self._meter_memory)
            size = meter.nbytes(len(self.workers))
            self.meter = Meter(
                shm.allocate(self._meter_memory, size, "the meter"), len(self.workers)
            )
        if self._step_timeout is not None:
            self._watch = Watch(self.num_processes, self._step_timeout)
        elif self.shares_block and WORK_HERE and self.look_for:
            self._bells = Bells(self.num_processes)
        self._poller.watch(self._results)
        shares = np.array_split(np.arange(len(self.workers)), self.num_processes)
        self._home = np.repeat(np.arange(self.num_processes), [len(share) for share in shares])
        # A Ctrl-C while a process has no group of its own would end it as well.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for share in shares:
                self._lanes.append(self._start_lane(len(self._lanes), share.tolist()))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: cannot start worker process {len(self._lanes)} of"
                f" {self.num_processes}; fewer are needed with num_processes=",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for place, worker in enumerate(self.workers):
            worker.join(self, place)
        self._await_started(self._lanes)
        return [self._heard[i] for i in range(len(self.workers))]

    def _start_lane(self, number: int, ids: Sequence[int]) -> Lane:
        """Start process ``number``, and listen to it."""
        cores = usable_cores()
        alive, results, *_ = self._fds
        bells = None
        if self._bells is not None:
            self._ringable = False
            self._bells.forget(number)
            bells = child.Descriptor(self._bells.memory), number
        ways = child.Ways(
            child.Descriptor(results),
            None if self._memory is None else child.Descriptor(self._memory),
            child.Descriptor(alive),
            None if self._meter_memory is None else child.Descriptor(self._meter_memory),
            bells,
        )
        habits = child.Habits(
            child.LOOK_FOR if self.num_processes <= len(cores) else 0.0,
            self._num_threads,
            cores[number % len(cores)] if self._affinity else None,
            child.PUBLISH_SOON_AFTER if self.look_for else child.PUBLISH_AFTER,
        )
        watch = None
        if self._watch is not None:
            self._watch.forget(number)
            watch = child.Watch(
                child.Descriptor(self._watch.memory), child.Descriptor(self._watch.stacks), number
            )
        lane = Lane(self.context, ids, [self._sent_fns[i] for i in ids], ways, habits, watch)
        self._by_fd[lane.fd] = lane
        self._by_death[lane.death] = lane
        self._poller.watch(lane.fd)
        self._poller.watch(lane.death)
        return lane

    def _await_started(self, lanes: Sequence[Lane]) -> None:
        """Wait until the envs of these processes are made.

        Raises:
            EnvError: an env_fn raised.
            WorkerDiedError: a process ended meanwhile.
        """
        ids = {i for lane in lanes for i in lane.ids}
        warn_at = time.monotonic() + SLOW_START
        while True:
            failed = sorted(ids.intersection(self._start_errors))
            if failed:
                raise combine([self._start_errors.pop(i) for i in failed])
            ended = sorted(i for lane in lanes if lane.exit is not None for i in lane.ids)
            if ended:  # also one that had started
                raise self._deaths[ended[0]]
            if all(lane.started for lane in lanes):
                return
            left = warn_at - time.monotonic()
            if left <= 0:
                late = [i for lane in lanes if not lane.started for i in lane.ids]
                warnings.warn(
                    f"{name_ids(late)}: env_fn has not returned after {SLOW_START:g} seconds;"
                    " still waiting",
                    UserWarning,
                    stacklevel=2,
                )
                warn_at = math.inf
            self._pump(left if 0 < left < math.inf else None)

    def end_stuck(self, ids: Sequence[int]) -> None:
        """Kill the processes in which a given up request of these envs outlasts ``GRACE``."""
        deadline = time.monotonic() + GRACE
        given_up = self._tokens.given_up
        while stuck := [i for i in ids if i in given_up and self.lane_of(i).exit is None]:
            left = deadline - time.monotonic()
            if left > 0:
                self._pump(left)
                continue
            lane = self.lane_of(stuck[0])
            named = name_ids([i for i in stuck if i in lane.ids])
            lane.verdict = f"was killed: {named} did not end a request that was given up"
            lane.kill()
            if not lane.ends(5):
                raise EnvError(f"{named}: its process does not end", tuple(stuck), "restart")
            self._bury(lane)

    def restart(self, ids: Sequence[int]) -> list[int]:
        """Start ended processes anew, and make the envs of others anew where they are.

        Returns:
            The ids of the envs that were made: ``ids``, and all that shared an ended process with
            one of them.
        """
        self._begin_restart(ids)
        numbers = self._coming.intersection(self._home[list(ids)].tolist())
        lanes = [self._lanes[number] for number in sorted(numbers)]
        made = [i for lane in lanes for i in lane.ids]
        try:
            self._await_started(lanes)
        except BaseException:
            for lane in lanes:
                if lane.exit is None:  # half made, it has no use
                    lane.kill()
                    lane.ends(5)
                    self._bury(lane)
            raise
        finally:
            self._coming -= numbers
        for lane in lanes:
            if self._attach:
                self._write(lane, self._attach)
        self.block.forget_forms(made)
        self.restarts[made] += 1
        for i in made:
            self._deaths.pop(i, None)
            self._overdue.pop(i, None)
        self._ask(
            [i for i in made if i in self.configured],
            [self.configured[i] for i in made if i in self.configured],
        )
        return made + super().restart([i for i in ids if i not in made])

    def prepare_restart(self, ids: Sequence[int]) -> bool:
        """Begin to start what has ended; True once a restart of these envs would not wait."""
        self._begin_restart(ids)
        return not any(self.coming(i) for i in ids)

    def coming(self, i: int) -> bool:
        """Whether the process of env ``i`` is being started anew, and is not there yet."""
        lane = self.lane_of(i)
        failed = lane.exit is not None or not self._start_errors.keys().isdisjoint(lane.ids)
        return int(self._home[i]) in self._coming and not lane.started and not failed

    def notice_deaths(self) -> None:
        """Take note of processes that have ended since the last call."""
        self._read_in_a_row = _MOST_IN_A_ROW
        self._pump(0)

    def _begin_restart(self, ids: Sequence[int]) -> None:
        for number in sorted(set(self._home[list(ids)].tolist()) - self._coming):
            if self._lanes[number].exit is not None:
                self._lanes[number] = self._start_lane(number, self._lanes[number].ids)
                self._coming.add(number)

    def make_block(self, shape: Shape) -> Block:
        """A block of this shape, in shared memory if asked.

        Raises:
            MemoryError: the system refuses the memory.
        """
        if self._memory is None:
            return super().make_block(shape)
        shape = shape._replace(infos=True)
        memory = shm.allocate(self._memory, nbytes(shape), "observations and actions")
        attach = pickle.dumps(shape)
        self._attach = child.FRAME.pack(child.ATTACH, len(attach)) + attach
        for lane in self._lanes:
            self._write(lane, self._attach)
        return Block(shape, memory)

    def use_block(self, block: Block) -> None:
        """Keep rows in ``block`` from now on; it may be of more envs than these."""
        super().use_block(block)
        #: The ids of all envs here, in order; by this very array they are told quickest.
        self.everything = block.everything[: len(self.workers)]
        self._listed: list[int] = self.everything.tolist()

    def lane_of(self, i: int) -> Lane:
        """The process in which env ``i`` lives."""
        return self._lanes[int(self._home[i])]

    def close(self) -> list[EnvError]:
        """End all processes: ask, and after ``GRACE`` seconds kill.

        Returns:
            What closing the envs raised.
        """
        if self.closed or os.getpid() != self.pid:
            return []
        self.closed = True
        self._closer = threading.get_ident()
        try:
            frame = child.FRAME.pack(child.CLOSE, 0)
            for lane in self._living():
                self._write(lane, frame)
            self._await_thread(GRACE)
            self._await_exits(GRACE)
            for lane in self._living():
                lane.kill(signal.SIGTERM)
                lane.kill(signal.SIGCONT)
            self._await_exits(min(0.2, GRACE))
        finally:  # a second Ctrl-C is not patient
            for lane in self._living():
                lane.kill()
            self._await_exits(5)
            self._free()
        return self._close_errors

    def _await_thread(self, seconds: float) -> None:
        """Wait until a thread that is in a call has noticed; the ends of processes wake it."""
        deadline = time.monotonic() + seconds
        while self._pumping not in (0, self._closer):
            late = time.monotonic() - deadline
            if late > 0:
                for lane in self._living():
                    lane.kill()
            if late > 1:  # it does not wait: it is at work on what came, in the user's code perhaps
                return
            time.sleep(1e-3)

    def _free(self) -> None:
        """Free what the group holds, once its processes have ended."""
        self._finalizer_off()
        while self._own_fds:  # should a process have survived all this, the kernel has it now
            release(self._own_fds.pop())
        while self._fds:
            os.close(self._fds.pop())
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._bells is not None:
            self._bells.close()
            self._bells = None
        self._poller.close()
        # The mapping holds a descriptor of its own; the pool may be referenced for long.
        self.__dict__.pop("block", None)
        self.__dict__.pop("store", None)

    def _finalizer_off(self) -> None:
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer.cancel()

    def _living(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane.exit is None]

    def _await_exits(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._living():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._pump(left)

    # ----------------------------------------------------------------------------------- sending

    def pack_steps(self, ids: IdArray, actions: Any) -> Callable[[], None]:
        """Make a step of each env ready; the actions go through the block where they fit in it."""
        layout = self.block.shape.action
        listed = ids.tolist()
        if self.shares_block and self.block.fixed_actions:
            columns = spaces.batch_actions(layout, actions, listed)
            if columns is not None:
                return functools.partial(self.post_actions, ids, columns)
        rows = spaces.list_actions(layout, actions, listed)
        return self.pack(listed, [Request("step", (action,)) for action in rows])

    def post_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """As ``WorkerGroup``."""
        self.block.put_actions(ids, columns)
        self.post_steps(ids)

    def step_all(self, actions: Any) -> bool:
        """As ``WorkerGroup``."""
        if not self.begin_all(actions):
            return False
        if self.cancelled_meanwhile:
            self.give_up_again()
        self.block.prepare()
        self.wait_all(len(self.workers))
        return True

    def begin_all(self, actions: Any) -> bool:
        """Send a step of all envs, none in flight; the short way.

        Returns:
            False: it can't be taken, as something is left over to see to, or the actions are not
            the one array that the block has for them; and nothing was done.
        """
        if (
            self._chunks
            or self._fresh
            or self._dying
            or self._mute
            or self.died
            or not self.shares_block
            or not self.block.put_all_actions(actions)
        ):
            return False
        bells = self._bells
        if bells is None or not self._ringable:
            self._post_whole(child.STEP_PROMPT if self.prompt else child.STEP)
        else:
            self._rung_in_vain.clear()  # a frame came after them, and its answer
            for number in bells.ring_all():
                self._write(self._lanes[number], _RING)
        return True

    def give_up_again(self) -> None:
        """What was given up while it was being sent may have been sent after that."""
        self.disown(list(self._tokens.given_up))

    def pack(self, ids: Sequence[int], requests: Sequence[Request]) -> Callable[[], None]:
        """Pickle one request on each env, one message for each process.

        Raises:
            TypeError: a request can't be pickled.
        """
        pairs = list(zip(ids, requests, strict=True))
        if all(request == _RESET for _, request in pairs):
            return functools.partial(self._post, child.RESET, np.array(ids, dtype=np.intp))
        by_lane: dict[int, list[tuple[int, Request]]] = {}
        for i, request in pairs:
            if request.kind == "configure":
                self.configured[i] = request
            by_lane.setdefault(int(self._home[i]), []).append((self._tokens.of(i), request))
        frames = []
        for number, part in by_lane.items():
            body = pickled_requests(part)
            frames.append((number, child.FRAME.pack(child.REQUESTS, len(body)) + body))

        def post() -> None:
            for number, frame in frames:
                self._write(self._lanes[number], frame)

        return post

    def post_steps(self, ids: IdArray) -> None:
        """Send a step of each env, the action of which lies in the block."""
        self._post(child.STEP_PROMPT if self.prompt else child.STEP, ids)

    def _post_whole(self, kind: int) -> None:
        frames = self._whole_frames.get(kind)
        if frames is None:
            frames = [self._token_frame(kind, np.array(lane.ids)) for lane in self._lanes]
            self._whole_frames[kind] = frames
            for lane, frame in zip(self._lanes, frames, strict=True):
                self._tokens.know(frame[child.FRAME.size :], lane.ids)
        for lane, frame in zip(self._lanes, frames, strict=True):
            self._write(lane, frame)
        if kind != child.RESET:
            self._ringable = kind == child.STEP

    def _post(self, kind: int, ids: IdArray) -> None:
        """Send tokens alone."""
        lanes = self._lanes
        everything = self.everything
        if ids is everything or (len(ids) == len(everything) and (ids == everything).all()):
            self._post_whole(kind)
            return
        if kind != child.RESET:
            self._ringable = False
        if len(lanes) == 1:
            if len(ids):
                self._write(lanes[0], self._token_frame(kind, ids))
        elif len(lanes) <= 4:
            home = self._home[ids]
            for number, lane in enumerate(lanes):
                part = ids[home == number]
                if len(part):
                    self._write(lane, self._token_frame(kind, part))
        else:
            by_lane: dict[int, list[int]] = {}
            for i, number in zip(ids.tolist(), self._home[ids].tolist(), strict=True):
                by_lane.setdefault(number, []).append(i)
            for number, some in by_lane.items():
                self._write(lanes[number], self._token_frame(kind, np.array(some)))

    def _token_frame(self, kind: int, ids: IdArray) -> bytes:
        return child.FRAME.pack(kind, len(ids)) + self._tokens.pack(ids)

    def _write(self, lane: Lane, frame: bytes) -> None:
        if lane.exit is None and not lane.write(frame):
            self._write_later(lane)

    def _write_later(self, lane: Lane) -> None:
        if lane not in self._unflushed:
            self._unflushed.add(lane)
            self._poller.watch(lane.fd, write=True, known=True)

    # --------------------------------------------------------------------------------- receiving

    def wait(self, wait_num: int, timeout: float | None, only: Sequence[int] | None = None) -> None:  # noqa: ARG002
        """Block until ``wait_num`` requests more have ended, or ``timeout`` seconds have passed."""
        goal = len(self.finished) + wait_num
        deadline = None if timeout is None else time.monotonic() + timeout
        left = timeout
        if self._chunks or self._fresh or self._dying:  # an interrupt has left them
            self._take_in()
        while len(self.finished) < goal and not self.died and not self._to_return:
            self._pump(left)
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
        self._to_return = False

    def look(self) -> None:
        """Take in what there is, and leave to ``wait`` what ``wake`` has told."""
        self._take_in()  # what an interrupt has left
        self._pump(0)

    def wait_all(self, goal: int) -> None:
        """Wait until ``goal`` requests have ended; may return early, as ``wait``."""
        bells, finished = self._bells, self.finished
        # Most often it needs no more.
        if bells is not None and bells.all_answered() and not self._rung_in_vain:
            # Without a call in between: a signal handler sees both or none.
            bells.rung = {}
            finished += self._listed
        if len(finished) < goal:
            self.wait(goal - len(finished), None)

    def receive(self, i: int, kind: str) -> Any:
        """Wait for the end of env ``i``'s request of that kind; return or raise what it left."""
        while i not in self.finished and i not in self._deaths:
            self._pump(None)
        if i in self.finished:
            self.finished.remove(i)
            if i in self.errors:
                raise self.errors.pop(i)
            if i in self.replies:
                return self.replies.pop(i)
            batch = self.block.gather(np.array([i]), columns=False, copy=True)
            batch.infos[0].pop("env_id")
            obs, info = batch.obs[0], batch.infos[0]
            if kind == "reset":
                return obs, info
            return obs, batch.reward[0], batch.terminated[0], batch.truncated[0], info
        raise self.death_of(i)

    def _pump(self, timeout: float | None) -> None:
        """Wait for something to happen, and take in all that has.

        Safe to interrupt: what has been read is noted down before it is worked on, and ``torn``
        names the envs of what is just being worked on.
        """
        # In this order, which that of `close` mirrors: one of the two threads sees the other.
        self._pumping = thread = threading.get_ident()
        try:
            self._refuse_if_closed(thread)
            self._pump_in(thread, timeout)
        except Exception as error:
            # Has it been closed meanwhile, by a signal handler, there is nothing left to work on.
            if not from_signal_handler(error):
                self._refuse_if_closed(thread)
            raise
        finally:
            self._pumping = 0

    def _pump_in(self, thread: int, timeout: float | None) -> None:
        watch = self._watch
        if self.look_for and self._has_rows():
            return
        if self._mute and not self.closed:
            left = max(min(self._mute.values()) - time.monotonic(), 0.0)
            timeout = left if timeout is None else min(left, timeout)
        if watch is not None:
            timeout = watch.wait(timeout)
        events = self._events(timeout)
        self._refuse_if_closed(thread)
        for fd, _ in events:
            if fd == self._results:
                self._read_results()
            elif (lane := self._by_fd.get(fd)) is not None:
                if lane in self._unflushed and lane.flush():
                    self._unflushed.discard(lane)
                    self._poller.watch(fd, known=True)
                self._fresh[lane] = None
                lane.read()
                if lane.mute:
                    self._note_mute(lane)
            elif (lane := self._by_death.get(fd)) is not None and lane not in self._dying:
                self._dying.append(lane)
        self._take_in()
        if self._mute and not self.closed:
            self._end_mute()
        if watch is not None and not self.closed:
            sent = [-1 if lane.exit or not lane.started else lane.sent for lane in self._lanes]
            for overdue in watch.look(sent):
                self._end_stuck(watch, overdue)

    def _has_rows(self) -> bool:
        """Take in rows where some are there already, and look at nothing else then.

        A synchronous caller is sent no rows but those it waits for: the rest of what there is to
        see to is seen as soon as they are there, or cease. To another one they may come for ever.
        """
        if self._read_in_a_row == _MOST_IN_A_ROW:
            self._read_in_a_row = 0
            return False
        self._read_in_a_row += self.prompt
        bells = self._bells
        if bells is not None and bells.rung and self._take_answers(bells):
            return True
        found = self._read_results()
        if found:
            self._take_in()
        return found

    def _take_answers(self, bells: Bells, looks: int = 1) -> bool:
        """Take in what the bells say; return whether they say anything."""
        answers = bells.answered(looks)
        for number, whole in answers:
            ids = self._lanes[number].ids
            if number in self._rung_in_vain:
                vain = self._rung_in_vain.pop(number)
                for i, token in vain.items():
                    if self._tokens.given_up.get(i) == token:
                        del self._tokens.given_up[i]
                ids = [i for i in ids if i not in vain]
            if whole:
                self.finished.extend(ids)
        return bool(answers)

    def _events(self, timeout: float | None) -> list[tuple[int, int]]:
        """What is ready within ``timeout`` seconds; nothing, once the bells have had something.

        Looked for during ``look_for`` seconds, in which the core is given up at each look; then in
        sleep.
        """
        bells, poll = self._bells, self._poller.poll
        if self.look_for:
            clock = time.perf_counter
            end = clock() + (self.look_for if timeout is None else min(timeout, self.look_for))
            while True:
                if bells is not None and bells.rung and self._take_answers(bells, LOOKS):
                    return []
                if events := poll(0):
                    return events
                if clock() >= end:
                    break
                os.sched_yield()
        if bells is None or not bells.rung:
            return poll(timeout)
        bells.sleep(True)
        try:
            if self._take_answers(bells):
                return []
            events = poll(DOZE if timeout is None else min(timeout, DOZE))
            if events or self._take_answers(bells):
                return events
            return poll(timeout)
        finally:
            if self._bells is not None:  # closed meanwhile
                bells.sleep(False)

    def _note_mute(self, lane: Lane) -> None:
        """Listen to this process no longer: the end of a stream is news for ever."""
        self._unflushed.discard(lane)
        self._mute.setdefault(lane, time.monotonic() + MUTE_FOR)
        self._poller.forget(lane.fd)

    def _end_mute(self) -> None:
        """Kill the processes that have closed their streams, and live on."""
        now = time.monotonic()
        for lane, due in list(self._mute.items()):
            if due <= now and lane.exit is None:
                lane.verdict = lane.verdict or "was killed: it closed its connection to the pool"
                lane.kill()
                lane.ends(5)
                self._bury(lane)

    def _refuse_if_closed(self, thread: int) -> None:
        if self._closer not in (0, thread):
            raise ClosedEnvironmentError("the pool was closed by another thread")
        if self.closed and not self._fds:
            raise ClosedEnvironmentError("the pool was closed by a signal handler")

    def _end_stuck(self, watch: Watch, overdue: Overdue) -> None:
        """Kill a process in which an env takes too long, and say so to all of its envs."""
        lane = self._lanes[overdue.number]
        named = lane.ids if overdue.env_id is None else [overdue.env_id]
        did = "begin" if overdue.env_id is None else "end"
        fact = f"did not {did} its request within step_timeout={watch.limit} seconds"
        lane.verdict = f"was killed: {name_ids(named)} {fact}"
        # What it still answers, woken by the signal perhaps, comes too late.
        waiting = [i for i in named if i not in self.finished]
        self.cancel(waiting)
        stack = ""
        try:
            stack = watch.stack_of(lane.kill)
        finally:
            lane.kill()
        shown = f" here:\n\n{stack.rstrip()}" if stack else "; it did not show its Python stack"
        for i in waiting:
            text = f"env {i}: {fact}; its process was killed{shown}"
            self._overdue[i] = EnvTimeoutError(text, (i,))
        lane.ends(5)
        self._bury(lane)

    def _read_results(self) -> bool:
        """Read what is in the pipe of the results; return whether there was anything."""
        chunks = self._chunks
        count = len(chunks)
        try:
            while True:
                # In one call: no signal handler can come between the read and the list.
                chunks.extend(map(os.read, (self._results,), (_READ,)))
                if len(chunks[-1]) < _READ:
                    return True
        except BlockingIOError:
            return len(chunks) > count

    def _take_in(self) -> None:
        """Work on all that has been read."""
        chunks = self._chunks
        while chunks:
            listed = self._tokens.ids_in(chunks[0])
            if listed is None:
                self._end_all("something wrote into the pipe of the results")
                break
            self.torn = listed
            self.finished.extend(listed)
            del chunks[0]
            self.torn = ()
        if not (self._fresh or self._dying):
            return
        for lane in list(self._fresh):
            if lane.unread and lane.exit is None:
                lane.read()
            frames = lane.frames
            while frames:
                self.torn = (frames[0][0] & ID_MASK,)
                self._take_item(*frames[0])
                frames.popleft()
                self.torn = ()
            del self._fresh[lane]
        while self._dying:
            self._bury(self._dying[0])
            del self._dying[0]

    def _end_all(self, why: str) -> None:
        """Kill every process: nobody knows which of them did it, or what else has been lost."""
        for lane in self._living():
            lane.verdict = f"was killed: {why}"
            lane.kill()
        for lane in self._living():
            lane.ends(5)
        self._read_results()
        self._chunks.clear()
        for lane in self._living():
            self._bury(lane)

    def _end_garbled(self, i: int) -> None:
        """Kill the process of env ``i``: where its next message begins, nobody knows."""
        lane = self.lane_of(i)
        lane.verdict = "was killed: it sent what cannot be read"
        lane.kill()

    def _take_item(self, token: int, status: int, data: bytes) -> None:
        i = token & ID_MASK
        if status == child.HELLO:
            self._take_hello(i, data)
        elif status == GARBLED:
            self._end_garbled(i)
        elif status == child.COMPLAINT:
            self.complaints.append(f"env {i}: {data.decode(errors='replace')}")
        elif status == child.CLOSE_FAILURE:
            error = self._failure_in(i, data)
            if error is not None:
                self._close_errors.append(error)
        elif status == child.FAILURE and not self.lane_of(i).started:  # it knows no generation
            error = self._failure_in(i, data)
            if error is not None:
                self._start_errors[i] = error
        elif self._tokens.of(i) == token:
            self._tokens.given_up.pop(i, None)
            if status == child.STORED:
                pass
            elif status != child.FAILURE:
                self._take_reply(i, status, data)
            elif (error := self._failure_in(i, data)) is not None:
                self.errors[i] = error
            else:
                return
            self.finished.append(i)
        else:
            self._tokens.note_answer(token)

    def _take_hello(self, i: int, data: bytes) -> None:
        try:
            facts = pickle.loads(data)  # noqa: S301 - from our own worker process
        except Exception as error:  # unpickling a space runs the user's code
            if from_signal_handler(error):
                raise
            self._start_errors[i] = env_error(error, i, "env_fn")
            self._to_return |= bool(self._coming)
            return
        for place, fact in enumerate(facts):
            self._heard[i + place] = fact
        self.lane_of(i).started = True
        self._to_return |= bool(self._coming)

    def _failure_in(self, i: int, data: bytes) -> EnvError | None:
        """The error that env ``i`` tells of; None, and the end of its process, if it is none."""
        try:
            kind, *failure = pickle.loads(data)  # noqa: S301 - from our own worker process
            return unpack_failure(Failure(*failure), i, kind)
        except Exception as error:
            if from_signal_handler(error):
                raise
            self._end_garbled(i)
            return None

    def _take_reply(self, i: int, status: int, data: bytes) -> None:
        kind = _KINDS[status]
        try:
            value = pickle.loads(data)  # noqa: S301 - from our own worker process
            if kind in ROW_KINDS:
                side = value if status == child.SIDE else self.store(i, value)
                if side is not None:
                    self.block.put_side(i, side)
            else:
                self.replies[i] = value
        except Exception as error:  # unpickling runs the user's code
            if from_signal_handler(error):
                raise
            self.errors[i] = env_error(error, i, kind)

    def _bury(self, lane: Lane) -> None:
        """Take in what the process has left, and note its envs down as died."""
        if lane.fd in self._by_fd:
            if self._bells is not None:
                self._take_answers(self._bells)
                self._bells.forget(int(self._home[lane.ids[0]]))
                self._rung_in_vain.pop(int(self._home[lane.ids[0]]), None)
            self._read_results()
            self._fresh[lane] = None
            while lane.read():
                pass
            del self._by_fd[lane.fd]
            self._poller.forget(lane.fd)
            del self._by_death[lane.death]
            self._poller.forget(lane.death)
        if self._chunks or self._fresh:
            dying, self._dying = self._dying, []
            try:
                self._take_in()
            finally:
                self._dying = dying
        self._unflushed.discard(lane)
        self._mute.pop(lane, None)
        lane.bury()
        text = f"the worker process {lane.verdict or lane.exit}"
        if not lane.started:
            text += " while starting"
            if self.context.get_start_method() != "fork":
                text += (
                    f"; under {self.context.get_start_method()!r} the program needs"
                    ' `if __name__ == "__main__":`'
                )
        for i in lane.ids:
            self._tokens.given_up.pop(i, None)
            others = [other for other in lane.ids if other != i]
            shared = f"; it was also that of {name_ids(others)}" if others else ""
            self._deaths[i] = WorkerDiedError(f"env {i}: {text}{shared}", (i, *others))
        self.died.extend(lane.ids)

    def described(self) -> str:
        """The start method and the number of processes."""
        method = self.context.get_start_method()
        return f", num_processes={self.num_processes}, context={method!r}"

    def processes(self) -> list[list[int]]:
        """The ids of the envs of each process."""
        return [list(lane.ids) for lane in self._lanes]

    def death_of(self, i: int) -> EnvError:
        """A new error that says how env ``i``'s process ended."""
        if i in self._overdue:
            return self._overdue.pop(i)
        error = self._deaths[i]
        return WorkerDiedError(error.message, error.env_ids)

    def cancel(self, ids: Sequence[int]) -> None:
        """As ``WorkerGroup``; where a signal handler or a thread has closed it, nothing is left."""
        if not self.closed:
            super().cancel(ids)

    def wake(self) -> None:
        """Have ``wait`` return, should it be under way."""
        if self.closed:
            return
        self._to_return = True
        poll = select.poll()
        poll.register(self._fds[1], select.POLLOUT)
        if poll.poll(0):  # else it is full, and wakes whoever waits
            os.write(self._fds[1], WAKE_UP)

    def disown(self, ids: Sequence[int]) -> None:
        """Have the answers to requests under way dropped when they come."""
        answered = {*self.finished, *self.replies, *self.errors}
        for i in ids:
            self._tokens.give_up(i, answered=i in answered)
        self._ringable = False
        self._whole_frames.clear()
        rung = [] if self._bells is None else list(self._bells.rung)
        for number in rung:
            vain = self._rung_in_vain.setdefault(number, {})
            for i in self._tokens.given_up.keys() & self._lanes[number].ids:
                vain.setdefault(i, self._tokens.given_up[i])  # later ones are not the ring's
        for number in rung:
            self._write(self._lanes[number], _RING)  # it may not have been woken
        # A message cut in two can't be mended: that process has to go.
        for lane in self._living():
            if lane.torn:
                lane.kill()
            elif lane.full:
                self._write_later(lane)
