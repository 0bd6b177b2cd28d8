"""The step loop: step envs one after another, and write their rows into the block.

The code that runs most often of all, in every worker process and for envs in the caller's process.
For each field of a row there is a fast test of the usual case, and a slow function for the rest.
What the block cannot hold is handed to ``send`` before the row's mark says that there is more.

What holds: a row is whole once its token is reported as done; an error leaves other rows alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from envpool_py import info_codec, spaces
from envpool_py.block import BESIDE, FINAL, FORM, RESET_ROW, Beside, Block
from envpool_py.errors import from_signal_handler
from envpool_py.obs_writer import UNFIT, actions_of, fit_of, is_flat, put_of, refuse_signals, view
from envpool_py.stats import StepTimes
from envpool_py.watchdog import Heartbeat
from envpool_py.worker.base import ROW_KINDS, Request
from envpool_py.worker.channel import ASK, ID_MASK, RESET
from envpool_py.worker.executor import Executor, FinalInfo, ResetInfo, Row, checked_row

#: The final observation lies in the block; stands for it in an info.
IN_BLOCK: Any = object()
#: Requests that may take longer than a step.
UNTIMED = frozenset({"rebuild", "run"})


class RowWriter:
    """Steps the envs of one process.

    Args:
        block: where actions and rows are.
        executors: of the envs, by id; an env may be replaced.
        send: ``send(token, beside)`` takes what the block cannot hold of a result.
        fail: ``fail(token, kind, error)`` takes the error of a request of that kind, or raises it.
        pack_infos: write infos that are numbers into the block; else all go to ``send``.
        heartbeat: says which env is at work; None where nobody looks.
    """

    def __init__(
        self,
        block: Block,
        executors: Mapping[int, Executor],
        send: Callable[[int, Beside], object],
        fail: Callable[[int, str, BaseException], object],
        *,
        pack_infos: bool,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._block = block
        self._executors = executors
        self._send = send
        self._fail = fail
        self._heartbeat = heartbeat
        self._schedules = block.schedules if block.spec.scheduled else None
        self._put = put_of(block.spec.obs, block.obs)
        self._fit = fit_of(block.spec.obs, block.obs, "obs")
        self._put_final = put_of(block.spec.obs, block.finals) if block.finals else None
        self._fit_final = fit_of(block.spec.obs, block.finals, "final_obs")
        # One int64 for flags and mark of a row: written in one store.
        self._words = view(block.ends.view(np.int64).reshape(len(block.ends), -1)[:, -1])
        self._terminated, self._truncated, self._one = _units(block)
        self._pack = info_codec.Packer(view(block.info_rows), view(block.info_tables)).pack
        self._pack_infos = pack_infos
        #: What the block cannot hold of the row that is being written.
        self._beside: Beside = {}
        #: For each env what is stepped: the env itself where its next step is no more than that.
        self._steppers: list[Any] = [None] * block.spec.num_envs
        for i, executor in executors.items():
            self._adopt(i, executor)
        self._run = self._make_run()

    def _adopt(self, i: int, executor: Executor) -> None:
        """Begin with the env of an executor."""
        times = StepTimes(self._block.times[i]) if len(self._block.times) else None
        executor.observe(i, times, self._heartbeat)
        executor.warn = self._warn
        self._steppers[i] = executor.stepper

    def refresh(self) -> None:
        """Look again at what the next step of each env is."""
        for i, executor in self._executors.items():
            self._steppers[i] = executor.stepper

    # ------------------------------------------------------------------------------ the step loop

    def carry_out(
        self, tokens: Sequence[int], todo: Iterator[int], due: float, limit: int | None = None
    ) -> None:
        """Carry out the steps and resets that ``todo`` still gives.

        Args:
            tokens: the sequence that ``todo`` is an iterator over.
            todo: what is left of it is there for the next call.
            due: a time of ``time.perf_counter`` at which to return early; 0 for none.
            limit: how many to carry out at the most.
        """
        some = todo if limit is None else itertools.islice(todo, limit)
        while True:
            try:
                self._run(some, due)
            except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
                token = tokens[len(tokens) - 1 - length_hint(todo)]
                self.note_error(token, "reset" if token & RESET else "step", error)
                if due and time.perf_counter() > due:
                    break
            else:
                break
        if self._heartbeat is not None:
            self._heartbeat.end()

    def answer(self, token: int, request: Request) -> None:
        """Carry out any request."""
        i = token & ID_MASK
        executor = self._executors[i]
        heartbeat = self._heartbeat
        try:
            if heartbeat is not None:
                heartbeat.begin(i, timed=request.kind not in UNTIMED)
            if request.kind in ROW_KINDS:
                self._steppers[i] = _Once(executor, request)
                self._run(iter((token & ~RESET,)), 0)
                return
            self._beside["reply"] = executor(request)
            if self._schedules is not None:
                self._schedules.put(i, executor.place)
            self._send_beside(token)
            self._mark(token)
            if request.kind == "rebuild":
                self._adopt(i, executor)
        except BaseException as error:  # noqa: BLE001 - SystemExit of an env included
            self.note_error(token, request.kind, error)
        finally:
            # The request may have changed the env.
            self._steppers[i] = executor.stepper
            if heartbeat is not None:
                heartbeat.end()

    def _make_run(self) -> Callable[[Iterator[int], float], None]:
        """The loop, with what it needs in local variables: it is most of what a cheap env costs."""
        block, steppers, put, fit = self._block, self._steppers, self._put, self._fit
        actions = actions_of(block.spec.action, block.action_leaves, block.actions)
        flat = None
        if spaces.is_leaf(block.spec.obs) and block.obs[0] is not None:
            flat = list(map(view, block.obs[0])) if is_flat(block.obs_leaves[0]) else None
        rewards: Any = block.reward if block.spec.reward else view(block.reward)
        words, beside, more = self._words, self._beside, BESIDE * self._one
        keep_info, convert, finish = self._keep_info, self._reward, self._finish
        begin, send, clock = self._begin_episode, self._send_beside, time.perf_counter
        np_false = np.False_

        def run(todo: Iterator[int], due: float) -> None:
            for token in todo:
                i = token & ID_MASK
                # Looked up each time: an env may rebind its step.
                row = begin(i) if token & RESET else steppers[i].step(actions[i])
                try:
                    obs, reward, terminated, truncated, info = row
                except (TypeError, ValueError):
                    row = checked_row(row)
                    raise
                if flat is not None:
                    try:
                        flat[i][:] = obs
                    except UNFIT as error:
                        refuse_signals(error)
                        fit(i, obs)
                elif (put is None or not put(i, obs)) and (objects := fit(i, obs)):
                    beside["objects"] = objects
                rewards[i] = reward if type(reward) is float else convert(reward)
                if (
                    (terminated is False or terminated is np_false)
                    and (truncated is False or truncated is np_false)
                    and type(info) is dict
                    and type(row) is tuple
                ):
                    if not info and not beside:
                        words[i] = 0
                        if due and clock() > due:
                            return
                        continue
                    word = keep_info(i, info) if info else 0
                else:
                    word = finish(token, row)
                if beside:
                    send(token)
                    word |= more
                words[i] = word
                if due and clock() > due:
                    return

        return run

    def _begin_episode(self, i: int) -> Row:
        """The row of a plain reset."""
        if self._heartbeat is not None:
            self._heartbeat.begin(i)
        obs, info = self._executors[i].reset()
        self._steppers[i] = self._executors[i].stepper
        return obs, 0.0, False, False, ResetInfo(info)

    # -------------------------------------------------------------- what is not usual, by field

    def _finish(self, token: int, row: Row) -> int:
        """The word of a row that ends an episode, or is otherwise more than a plain step's."""
        i = token & ID_MASK
        executor = self._executors[i]
        if type(row) is not tuple or type(row[4]) is not ResetInfo:
            row = executor.finish(row, self._keep_final, i)
        self._steppers[i] = executor.stepper
        _, _, terminated, truncated, info = row
        if self._schedules is not None:
            self._schedules.put(i, executor.place)
        word = self._terminated if _flag(terminated, "terminated") else 0
        if truncated is not False and _flag(truncated, "truncated"):
            word += self._truncated
        if type(info) is ResetInfo:
            word += RESET_ROW * self._one
            return word + (self._keep_info(i, dict(info)) if info else 0)
        if type(info) is FinalInfo:
            if (  # most often: the infos are empty, and the observations fit
                len(info) == 2
                and info["final_obs"] is IN_BLOCK
                and not info["final_info"]
                and self._put is not None
                and self._put(i, row[0])
            ):
                return word + FINAL * self._one
            return word + self._same_step(token, row)
        return word + (self._keep_info(i, info) if info else 0)

    def _same_step(self, token: int, row: Row) -> int:
        """The mark of a row that ended an episode, with the first observation of the next."""
        i = token & ID_MASK
        obs, reward, terminated, truncated, info = row
        last, final_info = info["final_obs"], info["final_info"]
        try:
            return self._write_final(token, obs, info)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if from_signal_handler(error):
                raise
            self._beside.clear()
            ended = (last, reward, terminated, truncated, final_info)
            _, _, _, _, info = self._executors[i].postpone(error, ended)
            self._steppers[i] = self._executors[i].stepper
            return self._write_final(token, last, info)

    def _write_final(self, token: int, obs: Any, info: dict[str, Any]) -> int:
        i, beside, block = token & ID_MASK, self._beside, self._block
        last = info["final_obs"]
        own: dict[str, Any] = {}
        if len(info) > 2 or info["final_info"]:
            own.update(info)
            del own["final_obs"]
            if not own["final_info"]:
                del own["final_info"]
        if obs is IN_BLOCK:
            for array, final in zip(block.obs, block.finals, strict=True):
                assert array is not None  # noqa: S101 - final observations are in the block
                array[i] = final[i]
        elif (self._put is None or not self._put(i, obs)) and (objects := self._fit(i, obs)):
            beside["objects"] = objects
        if last is not IN_BLOCK:
            name = "observation_space"
            beside["final_obs"] = spaces.fit_tree(block.spec.obs, last, "final_obs", name)
        word = FINAL * self._one + (self._keep_info(i, own) if own else 0)
        if beside:  # now, so that what cannot be sent of it belongs to the reset
            self._send_beside(token)
            word += BESIDE * self._one
        return word

    def _keep_final(self, i: int, obs: Any) -> Any:
        """Keep the observation that ends an episode, before the env is reset."""
        if not self._block.finals:
            return spaces.snapshot(obs)
        if self._put_final is None or not self._put_final(i, obs):
            self._fit_final(i, obs)
        return IN_BLOCK

    def _keep_info(self, i: int, info: dict[str, Any]) -> int:
        """Keep the info of a row; return what it adds to the row's word."""
        if self._pack_infos and type(info) is dict:
            form = self._pack(i, info)
            if form:
                return form * FORM * self._one
        self._beside["info"] = info
        return 0

    def _reward(self, reward: Any) -> Any:
        """A reward that is no float, as the block holds it."""
        shape = self._block.spec.reward
        if isinstance(reward, (float, int, np.floating, np.integer, np.bool_)):
            return float(reward)  # a scalar fills the row of a vector reward: that of a reset
        try:
            array = np.asarray(reward)
        except (TypeError, ValueError) as error:
            refuse_signals(error)
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"reward must be a number, got {type(reward).__name__} {reward!r:.80}")
        if array.shape == shape:
            return array if shape else float(array)
        if shape:
            raise ValueError(f"reward has shape {array.shape}, but reward_space has {shape}")
        self._beside["reward"] = np.array(array, dtype=np.float64)
        return 0.0

    def _warn(self, text: str) -> None:
        """There is something strange about the row that is being written."""
        self._beside.setdefault("warnings", []).append(text)

    # ------------------------------------------------------------------------------ what goes out

    def _send_beside(self, token: int) -> None:
        own = dict(self._beside)
        self._beside.clear()
        self._send(token, own)

    def note_error(self, token: int, kind: str, error: BaseException) -> None:
        """A request failed with an error, which lies beside its row."""
        i = token & ID_MASK
        self._beside.clear()
        executor = self._executors[i]
        if self._schedules is not None:
            # Of a reset that has reached the env the row may not fit.
            self._schedules.put(i, executor.place)
        self._fail(token, executor.failing(kind), error)
        self._steppers[i] = executor.stepper
        self._mark(token)

    def _mark(self, token: int) -> None:
        """All that there is of a result lies beside the block."""
        if not token & ASK:  # the row of an env may be there when it is asked for something else
            self._block.mark[token & ID_MASK] = BESIDE


class _Once:
    """Stands for an env whose next row comes from a request with arguments."""

    def __init__(self, executor: Executor, request: Request) -> None:
        self._executor = executor
        self._request = request

    def step(self, action: Any) -> Any:  # noqa: ARG002 - the signature of an env's
        request = self._request
        if request.kind == "step":
            return self._executor.raw_step(*request.args)
        obs, info = self._executor.reset(*request.args, **request.kwargs)
        return obs, 0.0, False, False, ResetInfo(info)


def _units(block: Block) -> tuple[int, int, int]:
    """What a word is with one flag only, or with a mark of 1 only."""
    one = np.zeros(3, block.ends.dtype)
    for k, name in enumerate(("terminated", "truncated", "mark")):
        one[name][k] = 1
    terminated, truncated, mark = one.view(np.int64).reshape(3, -1)[:, -1].tolist()
    return terminated, truncated, mark


def _flag(value: Any, name: str) -> bool:
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype == np.bool_:
        return bool(value.reshape(())[()])
    raise TypeError(f"{name} must be a bool, got {type(value).__name__} {value!r:.80}")
