"""Each way to step envs makes the steps that it says, and is what its name says."""

import multiprocessing
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.bench import settings
from envpool_py.bench.settings import ASYNC, LOOP, MAKE, NAMES, SYNC, Setting
from tests.support.envs import CountEnv

SHMEM = Setting("shmem", 4, 2)
VIEWS = Setting("shmem", 4, 1, caller_steps=True, copy=False)
OURS = [SHMEM, VIEWS, SHMEM._replace(pool="subproc"), Setting("dummy", 4), Setting("thread", 4)]


class Counting(CountEnv):
    """Counts its steps in a file, at its place, so that another process can read the number."""

    def __init__(self, path, place):
        super().__init__(length=3)
        self.made = np.memmap(path, np.int64, "r+")[place : place + 1]

    def step(self, action):
        assert action in self.action_space
        assert self.t < 3, "stepped without a reset"
        self.made += 1
        return super().step(action)


def check(setting, path):
    """Assert that a setting makes the steps that it says."""
    np.zeros(4, np.int64).tofile(path)
    batches = list(np.random.default_rng(0).integers(0, 2, (8, 4)))
    running = settings.start(setting, [partial(Counting, path, i) for i in range(4)], batches)
    assert not np.fromfile(path, np.int64).any(), "stepped before it was asked to"
    said = [running.advance() for _ in range(20)]
    counted = np.fromfile(path, np.int64)
    running.close()
    if setting.pool != MAKE:
        assert running.num_processes == setting.started_processes
    assert ("num_envs=4" in running.made) is (setting.pool not in (LOOP, SYNC, ASYNC))
    if setting.wait_num is None:
        # Batches in which envs are only reset come for all envs at once.
        assert counted.tolist() == [sum(said) // 4] * 4
        assert set(said) <= {4, 0}
        assert sum(said) >= 60
    else:
        assert 20 <= sum(said) <= np.fromfile(path, np.int64).sum() <= sum(said) + 4


ALL = [Setting(name, 4) for name in (LOOP, SYNC, ASYNC)] + OURS
ALL += [each._replace(wait_num=2) for each in OURS]


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.text)
def test_the_steps_are_made(setting, tmp_path):
    # In a process of its own: others' pools leave descriptors open.
    context = multiprocessing.get_context("fork")
    process = context.Process(target=check, args=(setting, tmp_path / "counts"))
    process.start()
    process.join(120)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(("wait_num", "rows"), [(None, {4}), (2, {2, 3, 4})])
def test_the_pool_that_make_chooses(wait_num, rows):
    setting = Setting("make", 4, wait_num=wait_num)
    running = settings.start(setting, [CountEnv] * 4, [[0] * 4] * 2)
    assert {running.advance() for _ in range(9)} <= rows
    running.close()


def test_the_options_reach_the_pool():
    setting = Setting("shmem", 3, 1, 2, caller_steps=True, copy=False)
    options = "num_processes=1, wait_num=2, caller_steps=True"
    assert setting.text == "1 proc + caller, wait 2, no copy"
    with settings.make_pool(setting, [CountEnv] * 3) as pool:
        assert type(pool).__name__ == "ShmemVectorEnv"
        assert pool.wait_num == 2
        assert all(option in repr(pool) for option in options.split(", "))
        assert np.shares_memory(pool.reset()[0], pool.reset()[0])


@pytest.mark.parametrize("num_cores", [1, 2, 8])
@pytest.mark.parametrize("wait_num", [None, 2])
def test_all_settings(num_cores, wait_num):
    found = settings.all_settings(4, num_cores, wait_num)
    assert {each.pool for each in found} == set(NAMES)
    assert len({each.text for each in found}) == len(found)
    for each in found:
        theirs = each.pool in (LOOP, SYNC, ASYNC)
        assert each.wait_num == (None if theirs else wait_num)
        assert each.started_processes <= 4
    assert any(each.caller_steps for each in found)
    if wait_num:  # one leaves a core to a policy; there are 4 envs
        counts = {each.num_processes for each in found if not each.caller_steps}
        assert counts >= {4, min(num_cores, 4), max(1, min(num_cores, 4) - 1)}
    assert not any(each.caller_steps for each in settings.all_settings(1, num_cores))


BOX, DICT = gym.spaces.Box(-1, 1, (2, 3)), gym.spaces.Dict({"a": gym.spaces.Discrete(2)})


@pytest.mark.parametrize("space", [BOX, DICT])
def test_actions_are_the_same_for_every_pool(space):
    def env_fn():
        env = CountEnv()
        env.action_space = space
        return env

    batches = settings.draw_actions(env_fn, 3)
    assert len(batches) >= 8
    assert all(len(batch) == 3 and action in space for batch in batches for action in batch)
    assert repr(batches) == repr(settings.draw_actions(env_fn, 3))
