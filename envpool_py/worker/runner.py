"""Step envs one after another and keep their rows: the code that runs most often of all.

Whoever steps envs whose rows lie in a block does it by one of these. What it does is what
``Executor.step`` and then the block's writer do. A row in which nothing is out of the ordinary (no
end of an episode, values of just the right types) takes a way of its own, and in one function for
all envs: there each look-up, call and store costs a hundredth of a cheap env's step, and so does
each line of memory that is touched. Any other row takes the long way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from envpool_py.rows import FORM_SHIFT, Block, Cells, Side, Writer
from envpool_py.worker.execute import Executor
from envpool_py.worker.tokens import ID_MASK
from envpool_py.worker.watch import Begin

#: Stands for the row of an env that is still to be stepped: an env may return anything else.
NOT_STEPPED: Any = object()


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
        self._action_of = block.action_reader()
        self._store = writer.store
        self._keep_side = keep_side
        self._scalar_rewards = not block.shape.reward
        # Of each env whose next step is nothing but the env's own.
        self._quick: list[Any] = [None] * block.shape.num_envs
        #: ``run(tokens, done, due)`` steps the envs of these tokens, and notes each token in
        #: ``done`` once its row is in the block. It returns when there are no more, and from
        #: ``due`` on, a time of ``time.perf_counter``; None is never. It raises what an env or the
        #: writer raises, for the token that was taken last; it can be called again for the others.
        self.run = self._make_run(block, writer, begin)

    def forget(self, i: int) -> None:
        """Something else than a step happens to env ``i``."""
        self._quick[i] = None

    def forget_all(self) -> None:
        """No env is to be stepped without a look at what happened to it."""
        self._quick[:] = [None] * len(self._quick)

    def _make_run(
        self, block: Block, writer: Writer, begin: Begin | None
    ) -> Callable[[Iterator[int], list[int], float | None], None]:
        quick, action_of, take_long_way = self._quick, self._action_of, self._take_long_way
        keep_side, pack_info = self._keep_side, writer.pack_info
        cells = block.cells()
        flat, rewards, words = cells.flat, cells.rewards, cells.words
        unit = cells.mark_unit << FORM_SHIFT
        store_obs = writer.store_leaves if cells.views is None else _store_array(cells)
        clock, monotonic = time.perf_counter, time.monotonic
        since, who = (None, None) if begin is None else (begin.times, begin.numbers)
        np_false, np_float = np.False_, np.float64

        def run(tokens: Iterator[int], done: list[int], due: float | None) -> None:
            for token in tokens:
                i = token & ID_MASK
                if since is not None and who is not None:  # as Begin.watched, without a call
                    since[1] = monotonic()
                    who[0] = i + 1
                env = quick[i]
                row = NOT_STEPPED
                plain = False
                if env is not None:
                    row = env.step(action_of(i))  # looked up each time: an env may rebind it
                    try:
                        obs, reward, terminated, truncated, info = row
                        if (
                            type(row) is tuple
                            and (terminated is False or terminated is np_false)
                            and (truncated is False or truncated is np_false)
                            and type(info) is dict
                            and (type(reward) is float or type(reward) is np_float)
                            # An env with turns may be over for all.
                            and (not info or "env_done" not in info)
                        ):
                            objects = None
                            if flat is None:
                                objects = store_obs(i, obs)
                            else:
                                flat[i][:] = obs  # which takes nothing but this shape and dtype
                            rewards[i] = reward
                            form = pack_info(i, info) if info else 0
                            words[i] = form * unit
                            if objects is None and (form or not info):
                                done.append(token)
                            else:
                                keep_side(token, (objects, None if form else info or None, None))
                            plain = True
                    except (TypeError, ValueError, NotImplementedError):
                        plain = False
                if not plain:
                    take_long_way(token, done, row)
                if due is not None and clock() > due:
                    return

        return run

    def _take_long_way(self, token: int, done: list[int], row: Any) -> None:
        """Keep the row that the env's step has returned, and step it first if it has not yet."""
        i = token & ID_MASK
        executor = self._executors[i]
        self._quick[i] = None
        row = executor.step(self._action_of(i)) if row is NOT_STEPPED else executor.finish(row)
        side = self._store(i, row)
        if side is None:
            done.append(token)
        else:
            self._keep_side(token, side)
        executor.note_kept()
        if executor.quick and self._scalar_rewards:
            self._quick[i] = executor.env


def _store_array(cells: Cells) -> Callable[[int, Any], None]:
    """A function that stores an observation that is an array, and raises TypeError if unlike."""
    views, dtype, dims = cells.views, cells.dtype, cells.dims
    assert views is not None  # noqa: S101 - for the type checker

    def store(i: int, obs: Any) -> None:
        if type(obs) is not np.ndarray or obs.dtype is not dtype or obs.shape != dims:
            raise TypeError
        views[i][...] = obs

    return store


def taken_last(tokens: Sequence[int], left: Iterator[int]) -> int:
    """The token that an iterator over the sequence ``tokens`` has given last."""
    return tokens[len(tokens) - 1 - length_hint(left)]
