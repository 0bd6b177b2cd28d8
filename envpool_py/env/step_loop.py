"""The step loop: step envs one after another, and write their rows into the block.

This is the code that runs most often, in every worker process and for envs in the caller's process.
Each field of a row has a fast test for the usual case, and a slow function for all other cases.
Values that the block cannot hold go to ``send`` before the row's mark announces them.

Invariants: a row is complete before its token is published; an error changes no other row; a copy
of the process that an env has forked writes nothing.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import length_hint
from types import SimpleNamespace
from typing import Any

import numpy as np

from envpool_py.env import spaces
from envpool_py.env.block import BESIDE, FINAL, FORM, OVER, RESET_ROW, Beside, Block
from envpool_py.env.block_io import actions_of, flat_rows, writer_of
from envpool_py.env.end_forked_copies import FORK_COUNT, STEP_LOOPS, EndOfCopy, end_copy
from envpool_py.env.executor import Abandoned, Executor, FinalInfo, ResetInfo, Row, checked_row
from envpool_py.env.heartbeat import Heartbeat
from envpool_py.env.info_codec import Packer
from envpool_py.env.request import ASK, ID_MASK, KINDS, RESET, Request
from envpool_py.interrupts import ordinary

#: Used in place of a final observation that is in the block.
IN_BLOCK: Any = object()
# Flags and mark of a row are one int64, so that one store writes them all: here with only
# ``terminated``, only ``truncated``, only a mark of 1.
_TERMINATED, _TRUNCATED, _ONE = (
    int.from_bytes(struct.pack("=??H4x", *ends), sys.byteorder)
    for ends in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
)


@dataclass(eq=False, repr=False)
class StepLoop:
    """Steps the envs of one process, or of one thread.

    Args:
        block: the memory of actions and rows.
        executors: the executor of each env, by id; an executor may replace its env.
        send: ``send(token, beside)`` takes the values of a result that the block cannot hold.
        fail: ``fail(token, kind, error)`` takes the error of a request of that kind, or raises it.
        heartbeat: notes which env is being stepped.
    """

    _block: Block
    _executors: Mapping[int, Executor]
    _send: Callable[[int, Beside], object]
    _fail: Callable[[int, str, BaseException], object]
    _heartbeat: Heartbeat = field(default_factory=Heartbeat)

    def __post_init__(self) -> None:
        block, ids = self._block, self._executors.keys()
        self._is_stepping = False  # whether an env may be in its step
        # The values of the current row that the block cannot hold.
        self._beside: Beside = {}
        # Stores the info of a row; returns the number of its form, 0 if it must go to ``send``.
        local = block.spec.local
        self._keep_info = block.keep_info if local else Packer(*block.info_memory).pack
        self._write = writer_of(block.spec.obs, iter(block.targets), "obs", self._beside, ids)
        if block.finals:
            finals, beside = iter(block.finals), self._beside
            self._write_final = writer_of(block.spec.obs, finals, "final_obs", beside, ids)
        self._words = block.results.view(np.int64).reshape(len(block.results), -1)[:, -1].data
        # For each env the object to step: the env itself if its next step needs nothing else.
        self._steppers: list[Any] = [None] * block.spec.num_envs
        for i, executor in self._executors.items():
            executor.env_id, executor.heartbeat = i, self._heartbeat
            executor.times = block.times[i].data if len(block.times) else None
            executor.warn = self._add_warning
            executor.save_final_obs = partial(self._keep_final, i)
            self._steppers[i] = executor.stepper
        self._actions = actions_of(block, ids)
        self._run = self._make_run()

    def carry_out(
        self, tokens: Sequence[int], todo: Iterator[int], due: float, limit: int | None = None
    ) -> None:
        """Carry out the remaining steps and resets of ``todo``, an iterator over ``tokens``.

        Return early at ``due``, a time of ``time.perf_counter`` (0: none), and after ``limit``
        tokens; ``todo`` then still has the remaining tokens.
        """
        forks = FORK_COUNT[0]
        some = todo if limit is None or limit >= length_hint(todo) else islice(todo, limit)
        self._is_stepping = True
        try:
            while True:
                try:
                    self._run(some, due)
                    break
                except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
                    end_copy(forks, error)
                    token = tokens[len(tokens) - 1 - length_hint(todo)]
                    self.note_error(token, "reset" if token & RESET else "step", error)
                    if due and time.perf_counter() > due:
                        break
        finally:
            self._is_stepping = False
        if self._heartbeat.env_cell is not None:
            self._heartbeat.end()

    def guard_rows(self) -> None:
        """In a copy of the process that an env has forked: let the next row end it."""
        if self._is_stepping and self._flat_rows is not None:
            self._flat_rows[:] = [EndOfCopy()] * len(self._flat_rows)

    def answer(self, token: int, request: Request) -> None:
        i, kind = token & ID_MASK, KINDS[request.kind]
        if request.kind == "step" and type(self._actions) is list:  # not in the block
            self._actions[i] = request.args[0]
            self.carry_out((token,), iter((token,)), 0)
            return
        executor = self._executors[i]
        try:
            self._heartbeat.begin(i, sets_up=kind.sets_up)
            result = executor.row_of(request) if kind.has_row else executor(request)
            self._heartbeat.leave()
            if kind.has_row:
                self._steppers[i] = SimpleNamespace(step=lambda _: result)
                self._run(iter((token,)), 0)
            else:
                self._send(token, {"reply": result, **self._beside})
                self._beside.clear()
                self._block.put_position(i, executor.position)
        except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
            self.note_error(token, request.kind, error)
        finally:
            # The request may have replaced the env.
            self._steppers[i] = executor.stepper
            self._heartbeat.end()

    def _make_run(self) -> Callable[[Iterator[int], float], None]:
        """Make the step loop; local variables make it fast, which matters for cheap envs."""
        block, steppers, write = self._block, self._steppers, self._write
        layout, ids = block.spec.obs, self._executors.keys()
        actions = self._actions
        flat: Any = flat_rows(layout, block.obs[0], ids) if spaces.is_leaf(layout) else None
        self._flat_rows = flat
        STEP_LOOPS.add(self)
        rewards: Any = block.reward if block.spec.reward else block.reward.data
        words, beside, more, form = self._words, self._beside, BESIDE * _ONE, FORM * _ONE
        keep_info, convert, word_of = self._keep_info, self._convert_reward, self._word_of
        reset, send, clock = self._reset_row, self._send_beside, time.perf_counter
        np_false, np_float, count = np.False_, np.float64, FORK_COUNT
        shares = len(self._executors) > 1 and not self._heartbeat.is_read
        current = self._heartbeat.env_cell if shares else None

        def run(todo: Iterator[int], due: float) -> None:
            timed, forks = due > 0, count[0]
            for token in todo:
                i = token & ID_MASK
                if current is not None:
                    current[0] = ~i  # for the log line of a hang
                # ``step`` is looked up each time, because an env may rebind it.
                row = reset(i) if token & RESET else steppers[i].step(actions[i])
                try:
                    obs, reward, terminated, truncated, info = row
                except (TypeError, ValueError):
                    checked_row(row)
                    raise
                if flat is None:  # else ``guard_rows`` ends a copy
                    if count[0] != forks:
                        end_copy(forks)
                    write(i, obs)
                else:
                    try:
                        flat[i][:] = obs
                    except ordinary(TypeError, ValueError, NotImplementedError):
                        write(i, obs)
                plain = type(reward) is float or type(reward) is np_float
                rewards[i] = reward if plain else convert(reward)
                if (
                    (terminated is False or terminated is np_false)
                    and (truncated is False or truncated is np_false)
                    and type(info) is dict
                    and type(row) is tuple
                ):
                    word = 0
                    if info:
                        word = keep_info(i, info) * form
                        if not word:
                            beside["info"] = info
                else:
                    word = word_of(token, row)
                if beside:
                    send(token)
                    word |= more
                words[i] = word
                if timed and clock() > due:
                    return

        return run

    def _reset_row(self, i: int) -> Row:
        self._heartbeat.begin(i)
        return self._executors[i].reset()

    def _word_of(self, token: int, row: Row) -> int:
        """Return the word (flags and mark) of a row that is not that of a plain step."""
        i = token & ID_MASK
        executor = self._executors[i]
        obs, _, terminated, truncated, info = executor.finish(row)
        self._block.put_position(i, executor.position)
        word: int = OVER * _ONE if executor.position[1] else 0
        word += terminated * _TERMINATED + truncated * _TRUNCATED
        if type(info) is FinalInfo:
            word += self._begin_episode(token, obs, info)
        else:
            word += RESET_ROW * _ONE if type(info) is ResetInfo else 0
            word += self._store_info(i, info) if info else 0
        self._steppers[i] = executor.stepper
        return word

    def _keep_final(self, i: int, obs: Any) -> Any:
        """Store the observation that ends an episode, before the env is reset."""
        if not self._block.finals:
            return spaces.snapshot(obs)
        self._write_final(i, obs)
        return IN_BLOCK

    def _begin_episode(self, token: int, obs: Any, info: dict[str, Any]) -> int:
        """Write the row that ends one episode and begins the next; return its mark."""
        last, final_info = info.pop("final_obs"), info.pop("final_info")
        if final_info:
            info["final_info"] = final_info
        try:
            return self._write_first(token, obs, info, last)
        except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
            for key in self._beside.keys() - {"reward"}:
                del self._beside[key]
            self._executors[token & ID_MASK].postpone(error)
            kept = {"final_info": final_info} if final_info else {}
            return self._write_first(token, last, kept, last)

    def _write_first(self, token: int, obs: Any, info: dict[str, Any], last: Any) -> int:
        i, block, beside = token & ID_MASK, self._block, self._beside
        beside.pop("objects", None)
        layout = block.spec.obs
        self._write(i, spaces.copy_row(layout, block.finals, i) if obs is IN_BLOCK else obs)
        if last is not IN_BLOCK:
            beside["final_obs"] = spaces.fit_tree(layout, last, "final_obs", "observation_space")
        word = FINAL * _ONE + (self._store_info(i, info) if info else 0)
        if beside:  # sent now, so that an error of pickling belongs to the reset
            self._send_beside(token)
            word += BESIDE * _ONE
        return word

    def _store_info(self, i: int, info: dict[str, Any]) -> int:
        """Store the info of a row; return the number to add to the row's word."""
        info = dict(info)
        form = self._keep_info(i, info)
        if not form:
            self._beside["info"] = info
        return form * FORM * _ONE

    def _convert_reward(self, reward: Any) -> Any:
        """Convert a reward that is no float to the form that the block holds."""
        if isinstance(reward, (float, int, np.floating, np.integer, np.bool_)):
            return float(reward)  # the 0.0 of a reset also fills the row of a vector reward
        shape = self._block.spec.reward
        try:
            array = np.asarray(reward)
        except ordinary(TypeError, ValueError):
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"reward must be a number, got {type(reward).__name__} {reward!r:.80}")
        if not shape and array.ndim == 1 and array.size > 1:  # no space declares it
            self._beside["reward"] = array.astype(np.float64)
            return 0.0
        return spaces.fit(array, shape, np.dtype(np.float64), "reward", "reward_space")

    def _add_warning(self, kind: str, text: str) -> None:
        self._beside.setdefault("warnings", {})[kind] = text

    def _send_beside(self, token: int) -> None:
        self._send(token, self._beside)
        self._beside.clear()

    def note_error(self, token: int, kind: str, error: BaseException) -> None:
        """Send the error of a request that failed, beside its row."""
        if isinstance(error, Abandoned):
            raise Abandoned  # another one: this frame refers to the error, which would refer to it
        self._heartbeat.leave()  # the env may have raised before it returned
        i = token & ID_MASK
        self._beside.clear()
        executor = self._executors[i]
        # A reset may have reached the env although its row was refused.
        self._block.put_position(i, executor.position)
        kind, executor.inner_call = executor.inner_call or kind, ""
        self._fail(token, kind, error)
        self._steppers[i] = executor.stepper
        if not token & ASK:  # a reply must not change the mark of a row that was not read yet
            self._block.mark[i] = BESIDE
