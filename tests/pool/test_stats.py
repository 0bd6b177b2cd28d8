"""What a pool says of itself, against what envs note, and what a batch costs the caller."""

import cProfile
import functools
import time
from unittest import mock

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv
from envpool_py.testing import CountingEnv
from tests.backends.test_worker_contract import ThreadWorker
from tests.faults.helpers import kill
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES


class TimedEnv(envs.CountEnv):
    """One step in ten takes 4 ms, others 1 ms; a reset 3 ms. Keeps what each of them took."""

    def __init__(self):
        super().__init__(length=25)
        self.took = {"step": [], "reset": []}

    def spend(self, what, seconds):
        begun = time.perf_counter()
        time.sleep(seconds)
        self.took[what].append(time.perf_counter() - begun)

    def reset(self, **kwargs):
        self.spend("reset", 0.003)
        return super().reset(**kwargs)

    def step(self, action):
        self.spend("step", 0.004 if self.steps % 10 == 9 else 0.001)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "mode"),
    [*((place, "next_step") for place in BACKENDS), ("dummy", None), (LOCAL[1], "same_step")],
)
def test_what_envs_took(place, mode):
    begun = time.perf_counter()
    with PLACES[place]([TimedEnv] * 3, autoreset_mode=mode, measure=True) as pool:
        pool.reset()
        for _ in range(30):
            pool.step([0, 0, 0])
        pool.step([0], [1])
        took = pool.get_env_attr("took")
        stats = pool.stats()
        wall = time.perf_counter() - begun
    for i in range(3):
        steps, resets = took[i]["step"], took[i]["reset"]
        assert (stats.steps[i], stats.resets[i]) == (len(steps), len(resets))
        # The meter may be put off the core at any moment, but no time is counted twice.
        assert np.mean(steps) <= stats.step_mean[i]
        assert np.mean(resets) <= stats.reset_mean[i]
        metered = stats.step_mean[i] * len(steps) + stats.reset_mean[i] * len(resets)
        assert sum(steps) + sum(resets) <= metered <= wall
        for percent, found in ((50, stats.step_p50[i]), (99, stats.step_p99[i])):
            assert 0.93 * np.percentile(steps, percent, method="inverted_cdf") < found <= wall
        assert stats.step_p50[i] <= stats.step_p99[i]
        assert (sum(steps) + sum(resets)) / wall <= stats.busy[i] <= 1
    assert (stats.batches, stats.rows) == (32, 31 * 3 + 1)
    assert stats.batch_fill == pytest.approx(stats.rows / 32 / 3)
    assert stats.seconds <= wall
    alone = {"dummy": ((0, 1, 2),), "thread": ((0,), (1,), (2,))}
    assert stats.processes == alone.get(place, ((0, 1), (2,)))
    busy = [stats.busy[list(ids)].sum() for ids in stats.processes]
    np.testing.assert_allclose(stats.process_busy, busy)
    np.testing.assert_allclose(stats.process_busy + stats.process_idle, 1)
    assert f"{stats.steps.sum()} steps" in str(stats)
    assert "env 0: step " in str(stats)


@pytest.mark.parametrize("place", BACKENDS)
def test_counts_that_are_cleared_and_those_of_envs_that_raise_or_are_recreated(place):
    with PLACES[place]([CountingEnv] * 3, measure=True) as pool:
        empty = pool.stats()
        assert np.isnan([empty.batch_fill, *empty.step_p50, *empty.step_mean]).all()
        assert "0 steps" in str(empty)
        pool.reset()
        with pytest.raises(KeyError, match="env 1"):
            pool.step([0, 3, 0])
        pool.drain()
        assert pool.stats(clear=True).steps.tolist() == [1, 1, 1]
        pool.restart([1])
        pool.reset([1])
        pool.step([0], [1])
        stats = pool.stats()
        for counted in (stats.steps, stats.resets, stats.restarts):
            assert counted.tolist() == [0, 1, 0]
        assert (stats.batches, stats.rows) == (2, 2)


def test_a_new_process_counts_on():
    with ShmemVectorEnv([CountingEnv] * 2, num_processes=1, measure=True) as pool:
        for steps in ([1, 1], [2, 2]):
            pool.reset()
            pool.step([0, 0])
            assert pool.stats().steps.tolist() == steps
            kill(pool, 0)
            pool.restart()
        assert pool.stats().restarts.tolist() == [2, 2]


def test_refusals():
    pool = DummyVectorEnv([CountingEnv])
    with pool, pytest.raises(RuntimeError, match="measure=True"):
        pool.stats()
    pool = BaseVectorEnv([CountingEnv], ThreadWorker, measure=True)
    with pool, pytest.raises(NotImplementedError, match="ThreadWorker does not measure"):
        pool.stats()


@pytest.mark.parametrize(("wait_num", "limit"), [(16, 26), (8, 28)])
def test_calls_of_a_step(wait_num, limit):
    def without_info(_env, *args):
        return (*args[-1][:-1], {})

    counts = []
    fn = functools.partial(envs.ChangedEnv, 0, 1 << 30, step=without_info, reset=without_info)
    with ShmemVectorEnv([fn] * 16, num_processes=2, wait_num=wait_num) as pool:
        pool.reset(seed=0)
        while len(counts) < 10_000 and min(counts[30:], default=limit + 1) > limit:
            ids = None if wait_num == 16 else pool.batch_ids
            profile = cProfile.Profile(builtins=False)
            profile.runcall(pool.step, np.zeros(len(pool.batch_ids), np.int64), ids)
            # Python 3.14 counts builtins nevertheless; their code is a string.
            calls = [one for one in profile.getstats() if not isinstance(one.code, str)]
            counts.append(sum(function.callcount for function in calls))
        pool.drain()
    # A step that waits twice has more; on a busy machine most do.
    assert min(counts[30:]) <= limit, counts[:99]


@pytest.mark.parametrize("seed", [None, 7])
def test_resets_are_one_message_for_each_process(seed):
    with ShmemVectorEnv([envs.CountEnv] * 64, num_processes=2) as pool:
        sends = [mock.Mock(wraps=host.stream.send) for host in pool.engine.hosts.all]
        for host, send in zip(pool.engine.hosts.all, sends, strict=True):
            host.stream.send = send
        pool.reset(seed=seed)
        assert [send.call_count for send in sends] == [1, 1]
