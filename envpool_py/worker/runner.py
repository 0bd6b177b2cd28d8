"""Step envs one after another and keep their rows: the code that runs most often of all.

Whoever steps envs whose rows lie in a block does it by one of these. What it does is what
``Executor.step`` and then the block's writer do. A row in which nothing is out of the ordinary (no
end of an episode, values of just the right types) takes a way of its own, and in one function for
all envs: there each look-up, call and store costs a hundredth of a cheap env's step, and so does
each line of memory that is touched. A row that is out of the ordinary only in that it ends an
episode has a way of its own too: short episodes end often. Any other row takes the long way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from envpool_py.rows import FINAL_ROW, FORM_SHIFT, RESET_ROW, Block, FinalInfo, Row, Side, Writer
from envpool_py.worker.execute import Executor, row_of_reset
from envpool_py.worker.tokens import ID_MASK
from envpool_py.worker.watch import Begin

_BOOLS = frozenset({bool, np.bool_})

#: Stands for the row of an env that is still to be stepped: an env may return anything else. It is
#: as long as a row: what can't be unpacked takes longest to be found none.
NOT_STEPPED: Any = [None] * 5


class _Later:
    """Stands for an env the next step of which is more than the env's own."""

    def step(self, action: Any) -> Any:  # noqa: ARG002 - the signature of an env's
        return NOT_STEPPED


class _Watched:
    """Stands for an env, and says of it that it is at work."""

    def __init__(self, env: Any, i: int, begin: Begin) -> None:
        self._env = env
        self._number = i + 1
        self._begin = begin

    def step(self, action: Any) -> Any:  # as Begin.watched, without a call
        begin = self._begin
        begin.times[1] = time.monotonic()
        begin.numbers[0] = self._number
        return self._env.step(action)


class Runner:
    """Steps envs by the actions in a block, and writes their rows there.

    Args:
        executors: those of the envs, by id.
        block: where actions and rows are.
        writer: writes rows that are out of the ordinary.
        keep_side: called with a token and what the block can't hold of its row.
        begin: where to say which env is stepped, and since when; None: nobody wants to know.
    """

    def __init__(
        self,
        executors: Mapping[int, Executor],
        block: Block,
        writer: Writer,
        keep_side: Callable[[int, Side], object],
        begin: Begin | None = None,
    ) -> None:
        self._executors = executors
        self._actions = block.own_actions()
        self._store, self._store_leaves, self._pack_info = writer
        self._keep_side = keep_side
        self._block = block
        self._cells = block.cells()
        self._scalar_rewards = not block.shape.reward
        self._begin = begin
        # What to step: the env itself where its next step is nothing but its own.
        self._later: list[Any] = [
            self._seen(i, _Later()) if i in executors else None for i in range(block.shape.num_envs)
        ]
        self._quick = list(self._later)
        #: ``run(tokens, done, due)`` steps the envs of these tokens, and notes each token in
        #: ``done`` once its row is in the block. It returns when there are no more, and from
        #: ``due`` on, a time of ``time.perf_counter``; None is never. It raises what an env or the
        #: writer raises, for the token that was taken last; it can be called again for the others.
        self.run = self._make_run()

    def _seen(self, i: int, env: Any) -> Any:
        """``env``, which stands in the place of env ``i``, as the watch is to see it."""
        return env if self._begin is None else _Watched(env, i, self._begin)

    def forget(self, i: int) -> None:
        """Something else than a step happens to env ``i``."""
        self._quick[i] = self._later[i]

    def forget_all(self) -> None:
        """No env is to be stepped without a look at what happened to it."""
        self._quick[:] = self._later

    def _make_run(  # noqa: C901 - each call would cost as much as what it does
        self,
    ) -> Callable[[Iterator[int], list[int], float | None], None]:
        quick, actions = self._quick, self._actions
        keep_end, keep_any = self._keep_end, self._keep_any
        keep_side, pack_info, store_leaves = self._keep_side, self._pack_info, self._store_leaves
        cells = self._cells
        put_obs, flat, rewards, words = cells.put_obs, cells.flat, cells.rewards, cells.words
        unit = cells.units.mark << FORM_SHIFT
        clock = time.perf_counter
        np_false, np_float = np.False_, np.float64

        def run(tokens: Iterator[int], done: list[int], due: float | None) -> None:
            for token in tokens:
                i = token & ID_MASK
                row = quick[i].step(actions[i])  # looked up each time: an env may rebind it
                try:
                    obs, reward, terminated, truncated, info = row
                    if (
                        type(row) is not tuple
                        or type(info) is not dict
                        or not (type(reward) is float or type(reward) is np_float)
                    ):
                        kept = ended = False
                    elif not (
                        (terminated is False or terminated is np_false)
                        and (truncated is False or truncated is np_false)
                    ):
                        kept, ended = False, not info
                    elif not info and flat is not None:
                        flat[i][:] = obs  # which takes nothing but this shape and dtype
                        rewards[i] = reward
                        words[i] = 0
                        done.append(token)
                        if due is None:
                            continue
                        kept = True
                    elif "env_done" not in info:  # an env with turns may be over for all
                        objects = None
                        if flat is not None:
                            flat[i][:] = obs
                        elif put_obs is None:
                            objects = store_leaves(i, obs)
                        elif not put_obs(i, obs):
                            raise TypeError  # noqa: TRY301 - as flat ones do
                        rewards[i] = reward
                        form = pack_info(i, info) if info else None
                        words[i] = form * unit if form else 0
                        if objects is None and form != 0:
                            done.append(token)
                        else:
                            keep_side(token, (objects, info if form == 0 else None, None))
                        kept = True
                    else:
                        kept = ended = False
                except (TypeError, ValueError, NotImplementedError):
                    kept = ended = False
                if not (kept or (ended and keep_end(token, done, row))):
                    keep_any(token, done, row)
                if due is not None and clock() > due:
                    return

        return run

    def _keep_end(self, token: int, done: list[int], row: Any) -> bool:
        """Keep the last row of an episode, whose info is empty, and the reset that rides on it.

        Returns:
            False: the row is out of the ordinary in other ways as well, and the env was not reset.
        """
        i = token & ID_MASK
        obs, reward, terminated, truncated, _ = row
        cells, executor = self._cells, self._executors[i]
        put_obs, put_final, units = cells.put_obs, cells.put_final, cells.units
        if put_obs is None or type(terminated) not in _BOOLS or type(truncated) not in _BOOLS:
            return False
        if not (terminated or truncated) or not (put_final or put_obs)(i, obs):
            return False
        word = terminated * units.terminated + truncated * units.truncated
        if put_final is None:
            executor.note_end()
            if not executor.quick:
                self.forget(i)
        else:
            try:
                first, info = executor.begin_episode()
            except BaseException:
                self.forget(i)  # the next step is to raise this
                executor.note_ended(self._ended_row(i, row))
                raise
            form: int | None = None
            if not put_obs(i, first):
                form = 0
            elif info:  # a key of the ended step's own is not the reset's to give
                form = 0 if "final_info" in info else self._pack_info(i, info)
            if form == 0:
                ended = self._ended_row(i, row)
                executor.note_ended(ended)
                told = FinalInfo(info, final_obs=ended[0], final_info={})
                self.forget(i)  # should this raise, the next step is to do so again
                self._keep(token, done, (first, *ended[1:4], told))
                self._quick[i] = self._seen(i, executor.env)
                return True
            word += (FINAL_ROW | (form or 0) << FORM_SHIFT) * units.mark
        cells.rewards[i] = reward
        cells.words[i] = word
        done.append(token)
        return True

    def _keep_any(self, token: int, done: list[int], row: Any) -> None:
        """Keep the row that the env's step has returned, and step it first if it has not yet."""
        i = token & ID_MASK
        executor = self._executors[i]
        self.forget(i)
        if row is not NOT_STEPPED:
            self._keep(token, done, executor.finish(row))
        elif (first := executor.take_due_reset()) is None:
            self._keep(token, done, executor.step(self._actions[i]))
        elif not self._keep_reset(token, done, *first):
            self._keep(token, done, row_of_reset(*first))
        if executor.quick and self._scalar_rewards:
            self._quick[i] = self._seen(i, executor.env)

    def _keep_reset(self, token: int, done: list[int], obs: Any, info: dict[str, Any]) -> bool:
        """Keep the row of a reset in place of a step, if it is plain; return whether it is."""
        i = token & ID_MASK
        cells = self._cells
        if info or cells.put_obs is None or not self._scalar_rewards or not cells.put_obs(i, obs):
            return False
        cells.rewards[i] = 0.0
        cells.words[i] = RESET_ROW * cells.units.mark
        done.append(token)
        return True

    def _keep(self, token: int, done: list[int], row: Row) -> None:
        i = token & ID_MASK
        side = self._store(i, row)
        if side is None:
            done.append(token)
        else:
            self._keep_side(token, side)
        self._executors[i].note_kept()

    def _ended_row(self, i: int, row: Row) -> Row:
        """The last row of an episode again, from where its observation has been put.

        The reset may have changed that in its own place.
        """
        return self._block.final_of(i), row[1], row[2], row[3], {}


def taken_last(tokens: Sequence[int], left: Iterator[int]) -> int:
    """The token that an iterator over the sequence ``tokens`` has given last."""
    return tokens[len(tokens) - 1 - length_hint(left)]
