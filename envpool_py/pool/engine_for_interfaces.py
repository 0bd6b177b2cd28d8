"""``EngineForInterfaces``: what interfaces over a pool ask beyond its public methods.

Modules outside ``pool`` and ``engine`` reach the engine through ``pool._inner`` alone. Its methods
do not refuse a second call at the same time; to have that, call them under ``one_at_a_time``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envpool_py.engine.engine import Engine
from envpool_py.engine.env_states import INTERRUPTED, STEPPING
from envpool_py.env.block import StepResult
from envpool_py.env.request import Request
from envpool_py.env_ids import IdArray, Selection
from envpool_py.errors import EnvError
from envpool_py.interrupts import suppressed
from envpool_py.record import digest


class EngineForInterfaces:
    """Questions and requests of the interfaces over a pool, and of ``replay``.

    Attributes:
        env_options: the options of the pool that its envs get.
        block_spec: the layouts of observations and actions, see ``Spec``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.env_options, self.block_spec = engine.options.env, engine.block.spec

    def check_free(self, ids: IdArray) -> None:
        """Raise AlreadyPendingCallError for an env in flight, EnvError if its process has ended."""
        self._engine.states.check_free(ids)

    def check_not_cancelled(self, ids: IdArray) -> None:
        """Raise ResetNeeded if the request of one of these envs was cancelled by an interrupt."""
        states = self._engine.states
        if INTERRUPTED in states.state[ids]:
            states.check_step(Selection(ids))

    def wait(self, num_rows: int, deadline: float | None) -> int:
        """Wait until ``deadline`` for ``num_rows`` results, or all in flight; return the number."""
        flight = self._engine.flight
        return len(flight.wait(min(num_rows, flight.states.num_in_flight), deadline, None))

    def cap_batch_size(self) -> None:
        """Never return more than ``wait_num`` rows in a batch; keep other results for the next."""
        self._engine.caps_batch_size = True

    def usage_marker(self) -> tuple[int, int, bytes]:
        """Return what changes with each batch returned, each request sent and each one cancelled.

        Requests without a row, such as ``call``, do not count.
        """
        states = self._engine.states
        return self._engine.num_returned[0], states.num_in_flight, states.tokens.tobytes()

    def episode_of(self, i: int) -> tuple[int | None, int]:
        """Return the last seed of env ``i``, as far as known, and the number of its episode."""
        positions = self._engine.flight.positions
        return positions.root_seeds[i], max(positions.last_returned(i)[0], 0)

    def is_over(self, i: int) -> bool:
        """Return whether the episode of env ``i``, which is not in flight, has ended."""
        return self._engine.flight.positions.of(i)[1]

    def failed(self, ids: IdArray) -> NDArray[np.bool_]:
        """Whether the rows of these envs in the last batch report failures; infos may seem to."""
        reported = self._engine.recovery.reported
        return np.array([i in reported for i in ids.tolist()], np.bool_)

    @contextlib.contextmanager
    def single_episodes(self, *, retries: bool) -> Iterator[None]:
        """No automatic reset follows the episodes that resets begin within the block.

        Without ``retries`` the first failure of an env, in its reset too, is reported by a row.
        """
        recovery = self._engine.recovery
        self._engine.no_autoreset, recovery.retries_resets = True, retries
        try:
            yield
        finally:
            self._engine.no_autoreset, recovery.retries_resets = False, True

    def refill_budget(self, i: int) -> None:
        """Let env ``i`` fail ``max_restarts`` times again."""
        self._engine.recovery.recreation.failures[i] = 0

    def begin_call(self, requests: Sequence[Request]) -> Callable[[float | None], list[Any]]:
        """Send each env a request without a row; no env accepts another one until it has ended.

        Return the function that ends it: it waits at most ``timeout`` seconds for the replies and
        returns them. It raises EnvError, or TimeoutError, which cancels the requests.
        """
        call = self._engine.prepare_call(self._engine.all.ids, requests)
        try:
            call.send(hold=True)
        except BaseException:
            call.cancel()
            raise

        def end(timeout: float | None) -> list[Any]:
            try:
                return call.wait(timeout)
            finally:
                call.cancel()

        return end

    def fetch(self, requests: Mapping[int, Request]) -> StepResult:
        """Send the envs these steps and resets, as they were recorded, and return the rows."""
        engine = self._engine
        for i, request in requests.items():
            env = Selection(np.array([i]))
            if request.kind == "step":
                engine.send_steps(env, request.args)
            elif request.kind == "lost_step":
                engine.flight.send(env, STEPPING, [request])
            else:
                engine.claim_reset(env.ids)  # a cancelled step may have ended its process
                engine.send_resets(env, [request])
        return engine.fetch(Selection(np.array(list(requests), dtype=np.intp)))

    def carry_out(self, i: int, request: Request) -> None:
        """Carry out a recorded request without a row on env ``i``."""
        self._engine.ask(np.array([i]), [request])

    def begin_replay(self, roots: Sequence[int | None] = ()) -> None:
        """Keep returned observations from now on; ``roots``: the seed of each env in the run."""
        self._engine.batches.keep_last_obs()
        self._engine.flight.positions.root_seeds.update(enumerate(roots))
        self._engine.recovery.recreation.send_options(range(len(roots)))

    def recreate(self, i: int, life: Mapping[str, Any]) -> None:
        """Recreate env ``i``; ``life``: the seed and the episode with which it goes on."""
        self._engine.requested_restarts.restart(np.array([i]))
        self._engine.recovery.recreation.send_options([i], **life)

    def last_obs(self, i: int) -> Any:
        """Return a copy of the last observation of env ``i`` that was returned."""
        return self._engine.batches.last_obs(i)

    def last_obs_digest(self, i: int) -> int:
        """Return the digest of the last observation of env ``i`` that was returned."""
        parts = self._engine.batches.last_obs_parts(i)
        return digest.of_observations(self._engine.block.obs_leaves, parts, 1)[0]


def drained_rows(pool: Any) -> Iterator[StepResult]:
    """Wait for all that is in flight, and yield the rows that are good; errors are dropped."""
    while pool.waiting_id:
        with suppressed(EnvError):
            yield pool.drain()
