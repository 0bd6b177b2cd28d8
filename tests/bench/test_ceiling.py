"""The loops without a pool step what they say, by the rows of envs stepped by hand."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from envpool_py.bench import contestants, measure, workloads
from envpool_py.bench.drivers import ceiling
from envpool_py.bench.job import Job
from envpool_py.bench.plain_block import PlainBlock
from envpool_py.bench.workloads import Workload
from tests.bench import counting
from tests.support.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["ceiling-in-step", "ceiling-views", "ceiling-rows"])
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_they_step_each_env_once_a_batch(name: str, num_processes: int, tmp_path: Path) -> None:
    path = str(tmp_path / "counts")
    np.zeros(5, np.int64).tofile(path)
    env_fns = [functools.partial(counting.Counting, path, i) for i in range(5)]
    batches = workloads.draw_actions(gym.spaces.Discrete(2), 5)
    running = contestants.driver(name)(Job(name, "", 5, None, num_processes, 0.0), env_fns, batches)
    assert not np.fromfile(path, np.int64).any()
    for said in range(1, 20):
        assert running.advance() == 5
        assert np.fromfile(path, np.int64).tolist() == [said] * 5
    running.close()


def test_processes_that_never_meet_count_all_steps(tmp_path: Path) -> None:
    path = str(tmp_path / "counts")
    np.zeros(5, np.int64).tofile(path)
    env_fns = [functools.partial(counting.Counting, path, i) for i in range(5)]
    batches = workloads.draw_actions(gym.spaces.Discrete(2), 5)
    running = ceiling.apart(Job("", "", 5, None, 2, 0.0), env_fns, batches)
    assert not np.fromfile(path, np.int64).any()
    said = batches_here = 0
    deadline = time.monotonic() + 30
    while said - 3 * batches_here < 10:  # what the other process has done
        assert time.monotonic() < deadline
        said += running.advance()
        batches_here += 1
    running.close()
    counted = np.fromfile(path, np.int64).tolist()
    assert counted[:3] == [batches_here] * 3
    assert counted[3] == counted[4]
    assert sum(counted) >= said


@pytest.mark.parametrize("driver", [ceiling.views, ceiling.rows])
def test_the_rows_are_those_of_envs_stepped_by_hand(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workload("cartpole", 4)
    env_fns = workloads.env_fns(work)
    by_hand = [env_fn() for env_fn in env_fns]
    for i, env in enumerate(by_hand):
        env.reset(seed=i)
    batches = workloads.draw_actions(by_hand[0].action_space, 4)
    handed: list[Any] = []
    batch = PlainBlock.batch

    def hand_on(self: Any, *, copy: bool) -> Any:
        handed.append(batch(self, copy=copy))
        return handed[-1]

    monkeypatch.setattr(PlainBlock, "batch", hand_on)
    running = driver(Job("", "", 4, None, 2, 0.0), env_fns, batches)
    ends = 0
    for actions in batches[:60]:
        running.advance()
        obs, rewards, terminated, truncated, infos = handed[-1]
        for i, env in enumerate(by_hand):
            row = env.step(actions[i])
            if row[2] or row[3]:
                ends += 1
                row = (env.reset()[0], *row[1:])
            np.testing.assert_array_equal(obs[i], row[0])
            assert (rewards[i], terminated[i], truncated[i]) == row[1:4]
            assert infos[i] == {"env_id": i}
    running.close()
    assert ends > 5
    assert (handed[0][0] is handed[1][0]) is (driver is ceiling.views)


@pytest.mark.parametrize("kind", sorted(set(workloads.KINDS) - {"sleep", "pong"}))
def test_every_workload(kind: str) -> None:
    for contestant in contestants.CEILINGS:
        for wait_num in (None, 2):
            if contestants.why_not(contestant, Workload(kind, 3, wait_num), 256) is None:
                measured = measure.measure(Job(contestant.name, kind, 3, wait_num, 2, 0.0))
                assert measured.steps >= 2


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_the_rows_of_partial_batches_are_those_of_envs_stepped_by_hand(
    num_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_fns = workloads.env_fns(Workload("cartpole", 6))
    by_hand = [env_fn() for env_fn in env_fns]
    for i, env in enumerate(by_hand):
        env.reset(seed=i)
    batches = workloads.draw_actions(by_hand[0].action_space, 6)
    some = PlainBlock.some
    ends = 0

    def compared(self: Any, ids: Any) -> Any:
        nonlocal ends
        rows = some(self, ids)
        for i, obs, *rest, info in zip(ids, *rows, strict=True):
            row = by_hand[i].step(self.actions[i])
            if row[2] or row[3]:
                ends += 1
                row = (by_hand[i].reset()[0], *row[1:])
            np.testing.assert_array_equal(obs, row[0])
            assert tuple(rest) == row[1:4]
            assert info == {"env_id": i}
        return rows

    monkeypatch.setattr(PlainBlock, "some", compared)
    running = ceiling.partial(Job("", "", 6, 2, num_processes, 0.0), env_fns, batches)
    steps = 0
    while steps < 300:
        said = running.advance()
        assert 2 <= said <= 6
        steps += said
    running.close()
    assert ends > 5


def test_what_has_no_place_for_rows() -> None:
    (rows,) = [each for each in contestants.CEILINGS if each.name == "ceiling-rows"]
    assert contestants.why_not(rows, Workload("dict", 3), 256) is not None
    (some,) = [each for each in contestants.CEILINGS if each.name == "ceiling-partial"]
    assert contestants.why_not(some, Workload("cartpole", 3), 256) is not None
    assert contestants.why_not(some, Workload("cartpole", 3, 2), 256) is None
    with pytest.raises(TypeError, match="arrays"):
        measure.measure(Job("ceiling-rows", "dict", 3, None, 2, 0.0))


class _Ending(CartPoleEnv):
    """Ends the process in which it is stepped, but for one."""

    def __init__(self, spared: int) -> None:
        super().__init__()
        self._spared = spared

    def step(self, action: Any) -> Any:
        if os.getpid() != self._spared:
            os._exit(3)
        return super().step(action)


@pytest.mark.parametrize(
    ("driver", "text"),
    [(ceiling.in_step, "a process has ended, by 3"), (ceiling.partial, "all processes have ended")],
)
def test_a_process_that_ends_is_not_waited_for(driver: Any, text: str) -> None:
    env_fns = [functools.partial(_Ending, os.getpid())] * 2
    batches = workloads.draw_actions(gym.spaces.Discrete(2), 2)
    running = driver(Job("", "", 2, 2, 2, 0.0), env_fns, batches)
    with pytest.raises(RuntimeError, match=text):
        running.advance()
    with contextlib.suppress(RuntimeError):
        running.close()


@pytest.mark.parametrize("driver", [ceiling.apart, ceiling.partial])
def test_a_process_that_ends_beside_others_is_told_of_at_the_end(driver: Any) -> None:
    # The caller and the last of the others go on.
    env_fns = [CartPoleEnv, functools.partial(_Ending, os.getpid()), CartPoleEnv]
    batches = workloads.draw_actions(gym.spaces.Discrete(2), 3)
    before = set(multiprocessing.active_children())
    running = driver(Job("", "", 3, 1, 3, 0.0), env_fns, batches)
    # Now: it may have ended as soon as it is asked for a step, and is not among them any more.
    children = set(multiprocessing.active_children()) - before
    running.advance()
    first = min(children, key=lambda child: child.pid or 0)
    first.join(20)
    assert first.exitcode == 3
    running.advance()
    with pytest.raises(RuntimeError, match="a process has ended, by 3"):
        running.close()


@pytest.mark.parametrize("driver", ["apart", "in_step", "partial"])
def test_the_processes_end_with_the_caller(driver: str) -> None:
    script = textwrap.dedent(f"""
        import multiprocessing
        import sys
        from envpool_py.bench import workloads
        from envpool_py.bench.drivers import ceiling
        from envpool_py.bench.job import Job
        env_fns = workloads.env_fns(workloads.Workload("cartpole", 4))
        batches = workloads.draw_actions(env_fns[0]().action_space, 4)
        running = ceiling.{driver}(Job("", "", 4, 2, 2, 0.0), env_fns, batches)
        running.advance()
        print(multiprocessing.active_children()[0].pid, flush=True)
        sys.stdin.read()
        """)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as caller:
        assert caller.stdout is not None
        child = int(caller.stdout.readline())
        caller.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while _lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
