"""``WorkerGroup``: many workers as one, the batch hooks of a worker class.

The pool speaks to its workers through this interface alone, by env ids and whole batches:

* ``pack_steps`` and ``pack`` make requests ready, which is where a user's own code may run; what
  they return begins the requests, and does not wait for their end;
* ``wait`` blocks until some have ended and appends their ids to ``finished``, in the order in which
  they ended; what they left is then in ``block`` (rows), ``replies`` or ``errors``;
* ``cancel`` gives up requests: what they still bring is dropped, however late it comes;
* ``died`` lists envs whose process has ended, for the pool to take note of.

This class loops over the per-env methods, for a worker class that has nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import spaces
from envpool_py.errors import (
    EnvError,
    WorkerDiedError,
    combine,
    env_error,
    from_signal_handler,
)
from envpool_py.ids import IdArray
from envpool_py.rows import Block, Shape
from envpool_py.spaces import Array
from envpool_py.worker.base import EnvWorker, Request
from envpool_py.worker.execute import SAME_STEP, EnvFacts, reward_shape

#: Requests whose reply is a row.
ROW_KINDS = frozenset({"step", "reset"})


class WorkerGroup:
    """The loop over ``send`` and ``recv``.

    Args:
        workers: all workers of a pool; the position of a worker is its env id.
    """

    block: Block
    #: Whether who steps the envs has the block as well: then ``post_actions`` can be called.
    shares_block = False

    def __init__(self, workers: Sequence[EnvWorker]) -> None:
        self.workers = workers
        #: The process that alone can use the workers; None: any fork of it can.
        self.pid: int | None = None
        self.facts: list[EnvFacts] = []
        self.finished: list[int] = []
        self.replies: dict[int, Any] = {}
        self.errors: dict[int, EnvError] = {}
        #: The envs whose process has ended, and nobody has taken note.
        self.died: list[int] = []
        #: What is strange about rows that came all the same, for the pool to warn of.
        self.complaints: list[str] = []
        #: What each env was told of the pool's options; it is told again when it is made anew.
        self.configured: dict[int, Request] = {}
        #: Whether rows are wanted as they end, or all together; the pool says.
        self.prompt = True
        #: Envs whose request or reply may be lost, because ``wait`` was interrupted just then.
        self.torn: Sequence[int] = ()
        #: Whether requests were given up since the last ones were begun, by a signal handler maybe.
        self.cancelled_meanwhile = False
        #: Whether it is closed: by a signal handler or another thread, while a call was under way.
        self.closed = False
        #: Whether the envs are to be measured; set before ``start``.
        self.measuring = False
        #: What was measured; None where nobody asked, or the workers can't.
        self.meter: Any = None
        #: How often each env was made anew.
        self.restarts = np.zeros(len(workers), dtype=np.int64)
        self._under_way: dict[int, str] = {}  # env id -> kind, the oldest first
        self._cancelled: set[int] = set()

    def start(self, autoreset_mode: str | None = None, *, columns: bool = False) -> None:
        """Start everything and learn the envs' facts; ``block`` exists from here on.

        Args:
            autoreset_mode: what rows of automatic resets there will be.
            columns: whether batches of Dict and Tuple observations are to be arrays.

        Raises:
            ValueError: the spaces of the envs differ where rows are arrays.
        """
        self.facts = self.learn_facts()
        self.use_block(self.make_block(common_shape(self.facts, autoreset_mode, columns=columns)))

    def learn_facts(self) -> list[EnvFacts]:
        """Start everything, and ask the envs for their facts."""
        return [self._facts_of(i) for i in range(len(self.workers))]

    def _facts_of(self, i: int) -> EnvFacts:
        found: list[gym.Space[Any] | None] = []
        for name in ("observation_space", "action_space", "reward_space"):
            try:
                found.append(self.workers[i].get_env_attr(name))
            except AttributeError:
                found.append(None)
            except Exception as error:
                raise env_error(error, i, "get_attr") from error
        return EnvFacts(found[0], found[1], reward_shape(found[2]))

    def make_block(self, shape: Shape) -> Block:
        """A block of this shape."""
        return Block(shape)

    def use_block(self, block: Block) -> None:
        """Keep rows in ``block`` from now on."""
        self.block = block
        self.store = block.writer().store

    def pack_steps(self, ids: IdArray, actions: Any) -> Callable[[], None]:
        """Make a step of each env ready to be sent; calling what is returned sends it.

        Args:
            ids: shape ``(k,)``.
            actions: as ``spaces.batch_actions`` takes them.

        Raises:
            TypeError, ValueError: the actions are wrong.
        """
        listed = ids.tolist()
        layout = self.block.shape.action
        actions = spaces.list_actions(layout, actions, listed)
        return self.pack(listed, [Request("step", (action,)) for action in actions])

    def post_actions(self, ids: IdArray, columns: Sequence[Array]) -> None:
        """Send a step of each env; the actions go through the block.

        Args:
            ids: shape ``(k,)``.
            columns: for each leaf of the action one array ``(k, *shape)`` of the right dtype.
        """
        raise NotImplementedError

    def step_all(self, actions: Any) -> bool:  # noqa: ARG002 - a group that has no short way
        """Step all envs, none of which is in flight, and wait for their rows; the short way.

        Returns:
            False: it can't be taken, and nothing was done. True: what ``pack_steps``, the call of
            what that returns, and ``wait`` do; some may still be at work.
        """
        return False

    def pack(self, ids: Sequence[int], requests: Sequence[Request]) -> Callable[[], None]:
        """Make one request on each env ready to be sent; calling what is returned sends them.

        Raises:
            TypeError: a request can't be pickled, where it must be.
        """

        def post() -> None:
            for i, request in zip(ids, requests, strict=True):
                self._send_one(i, request)

        return post

    def send(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin one request on each env."""
        self.pack(ids, requests)()

    def _send_one(self, i: int, request: Request) -> None:
        worker = self.workers[i]
        if i in self._cancelled:
            self._cancelled.discard(i)
            worker.cancel()
        self._under_way[i] = request.kind
        try:
            worker.send(request)
        except Exception as error:  # noqa: BLE001 - it belongs to this env, and comes home with its row
            self._fail(i, error)

    def wait(self, wait_num: int, timeout: float | None, only: Sequence[int] | None = None) -> None:
        """Block until ``wait_num`` requests more have ended, or ``timeout`` seconds have passed.

        May return early with fewer: after a death, and where the system woke it.

        Args:
            wait_num: 1 or more.
            timeout: seconds; None waits for ever, 0 only looks.
            only: the ids that the caller wants; a group that executes in this call executes these
                alone.
        """
        ids = list(self._under_way) if only is None else [i for i in only if i in self._under_way]
        if not ids:
            return
        by_worker = {id(self.workers[i]): i for i in ids}
        ready = type(self.workers[0]).wait(
            [self.workers[i] for i in ids], min(wait_num, len(ids)), timeout
        )
        for worker in ready:
            i = by_worker[id(worker)]
            self.torn = (i,)
            try:
                reply = worker.recv()
                self.take(i, self._under_way[i], reply)
            except (Exception, SystemExit) as error:
                if from_signal_handler(error):
                    raise
                self._fail(i, error)
            else:
                self._under_way.pop(i)
                self.finished.append(i)
            self.torn = ()

    def take(self, i: int, kind: str, reply: Any) -> None:
        """Keep the reply to a request: a row in the block, anything else in ``replies``."""
        if kind == "step":
            side = self.store(i, reply)
        elif kind == "reset":
            obs, info = reply
            side = self.store(i, (obs, 0.0, False, False, info))
        else:
            self.replies[i] = reply
            return
        if side is not None:
            objects, info, odd = side
            self.block.put_side(i, (objects, None if info is None else dict(info), odd))

    def _fail(self, i: int, error: BaseException) -> None:
        kind = self._under_way.pop(i)
        self.finished.append(i)
        self.errors[i] = env_error(error, i, kind)

    def cancel(self, ids: Sequence[int]) -> None:
        """Give up the requests of these envs, and drop what they have left."""
        self.disown(ids)
        self.forget(ids)

    def disown(self, ids: Sequence[int]) -> None:
        """Have the answers to requests under way dropped when they come."""
        for i in ids:
            if self._under_way.pop(i, None) is not None:
                self._cancelled.add(i)

    def wake(self) -> None:
        """Have ``wait`` return, should it be under way: there may be nothing left to wait for."""

    def will_run(self, i: int) -> bool:  # noqa: ARG002 - a group that executes late knows better
        """Whether the request of env ``i`` is carried out although it is given up now."""
        return True

    def forget(self, ids: Iterable[int]) -> None:
        """Drop what ended requests of these envs have left."""
        gone = set(ids)
        self.finished[:] = [i for i in self.finished if i not in gone]
        for i in gone:
            self.replies.pop(i, None)
            self.errors.pop(i, None)
            self.block.drop_side(i)

    def end_stuck(self, ids: Sequence[int]) -> None:
        """End the processes of these envs that go on with a request that was given up."""

    def notice_deaths(self) -> None:
        """Add to ``died`` what has ended and nobody has waited for."""

    def prepare_restart(self, ids: Sequence[int]) -> bool:  # noqa: ARG002 - here nothing comes later
        """Begin what takes long in a restart; True once ``restart`` of these envs would not wait.

        Raises:
            OSError: a process can't be started.
        """
        return True

    def coming(self, i: int) -> bool:  # noqa: ARG002 - here nothing comes later
        """Whether a prepared restart of env ``i`` is under way; ``wait`` returns when it is not."""
        return False

    def restart(self, ids: Sequence[int]) -> list[int]:
        """Make these envs anew; return the ids of all envs that were made.

        Raises:
            EnvError: an env_fn raised.
        """
        self._ask(ids, [Request("rebuild")] * len(ids))
        self.restarts[list(ids)] += 1
        return list(ids)

    def _ask(self, ids: Sequence[int], requests: Sequence[Request]) -> None:
        """Carry out requests that bring no rows, beside rows that wait to be handed out."""
        # Of an earlier request, and not to be taken for the end of this one.
        earlier = {i: self.errors.pop(i) for i in ids if i in self.errors}
        # Those that the pool has yet to take note of; a wait would end at once for them.
        deaths = self.died[:]
        self.died.clear()
        try:
            self._ask_now(ids, requests, deaths)
        except EnvError:
            raise
        except BaseException:
            self.disown(ids)
            raise
        finally:
            self.errors.update(earlier)
            self.died[:0] = deaths

    def _ask_now(self, ids: Sequence[int], requests: Sequence[Request], deaths: list[int]) -> None:
        self.send(ids, requests)
        while missing := [i for i in ids if i not in self.replies and i not in self.errors]:
            self.wait(1, None, missing)
            for i in set(missing).intersection(self.died):
                if i not in self.replies and i not in self.errors:
                    self.errors[i] = self.death_of(i)
                    self.finished.append(i)
            deaths += self.died
            self.died.clear()
        failed = [self.errors.pop(i) for i in ids if i in self.errors]
        for i in ids:
            self.replies.pop(i, None)
            # The last of them: a row of the same env came before.
            del self.finished[len(self.finished) - 1 - self.finished[::-1].index(i)]
        if failed:
            raise combine(failed)

    def processes(self) -> list[list[int]]:
        """The ids of the envs of each process, or of each thread of execution."""
        return [[i] for i in range(len(self.workers))]

    def described(self) -> str:
        """What the pool's ``repr`` says of the workers."""
        return ""

    def death_of(self, i: int) -> EnvError:
        """The error of an env whose process has ended."""
        return WorkerDiedError(f"env {i}: the worker has ended", (i,))

    def close(self) -> list[EnvError]:
        """Close all workers; return what closing the envs raised."""
        self.closed = True
        errors = []
        for i, worker in enumerate(self.workers):
            try:
                worker.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed as well
                errors.append(env_error(error, i, "close"))
        return errors


def common_shape(
    facts: Sequence[EnvFacts], autoreset_mode: str | None = None, *, columns: bool = False
) -> Shape:
    """The shape of the block that holds the rows of all these envs.

    Spaces may differ in their bounds, and in anything where rows are objects.

    Raises:
        ValueError: they differ in shape, dtype or structure where rows are arrays.
    """
    observation = _common_layout(
        "observation_space", [fact.observation_space for fact in facts], columns=columns, coded=True
    )
    action = _common_layout("action_space", [fact.action_space for fact in facts], columns=columns)
    rewards = {fact.reward_shape for fact in facts}
    return Shape(
        len(facts),
        obs=observation,
        action=action,
        reward=rewards.pop() if len(rewards) == 1 else (),
        marks=autoreset_mode is not None,
        finals=autoreset_mode == SAME_STEP and spaces.is_fixed(observation),
    )


def _common_layout(
    name: str, own: Sequence[gym.Space[Any] | None], *, columns: bool, coded: bool = False
) -> Any:
    layouts = [spaces.layout_of(space, coded=coded) for space in own]
    other = next((i for i, layout in enumerate(layouts) if layout != layouts[0]), None)
    if other is None:
        return layouts[0]
    if coded:
        return _common_layout(name, own, columns=columns)
    if columns or any(spaces.is_leaf(layout) and layout.dtype is not None for layout in layouts):
        raise ValueError(
            f"env {other}: {name} is {own[other]}, but that of env 0 is {own[0]};"
            " shapes and dtypes must agree where rows are arrays"
        )
    return spaces.Leaf((), (), None)
