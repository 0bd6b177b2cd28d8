"""How much a batch costs the caller: Python functions that it goes through, and messages."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envpool_py import ShmemVectorEnv
from tests.support import envs

NUM_ENVS = 16
BARE = functools.partial(
    envs.ChangedEnv,
    length=1 << 30,
    step=lambda env, action, row: (*row[:4], {}),  # noqa: ARG005
    reset=lambda env, row: (row[0], {}),  # noqa: ARG005
)
"""Makes an env without infos, whose episode does not end."""


def calls_of(act: Callable[[], Any]) -> list[str]:
    """Return the Python functions that are called in this thread."""
    called: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:  # noqa: ARG001 - the signature of a profiler
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    gc.disable()  # what the collector calls is not the pool's
    try:
        sys.setprofile(note)
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return called


@pytest.mark.parametrize(("wait_num", "limit"), [(NUM_ENVS, 26), (NUM_ENVS // 2, 28)])
def test_calls_of_a_step(wait_num: int, limit: int) -> None:
    with ShmemVectorEnv([BARE] * NUM_ENVS, num_processes=2, wait_num=wait_num) as pool:
        pool.reset(seed=0)
        counts = []
        for _ in range(80):
            ids = None if wait_num == NUM_ENVS else pool.batch_ids
            step = functools.partial(pool.step, np.zeros(len(pool.batch_ids), np.int64), ids)
            counts.append(calls_of(step))
        pool.drain()
    median = sorted(counts[30:], key=len)[25]
    assert len(median) <= limit, median


@pytest.mark.parametrize("seed", [None, 7])
def test_resets_are_one_message_for_each_process(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = os.write

    def count(fd: int, data: bytes) -> int:
        written.append(len(data))
        return write(fd, data)

    with ShmemVectorEnv([envs.CountEnv] * 64, num_processes=2) as pool:
        monkeypatch.setattr(os, "write", count)
        pool.reset(seed=seed)
        monkeypatch.undo()
    assert len(written) == 2
