"""Each way to step envs makes the steps that it says, and is what its name says."""

import multiprocessing

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.bench import settings
from envpool_py.bench.settings import ASYNC, LOOP, NAMES, SYNC, Setting
from tests.bench import counting
from tests.support.envs import CountEnv

SHMEM = Setting("shmem", 4, 2)
VIEWS = Setting("shmem", 4, 1, caller_steps=True, copy=False)
OURS = [SHMEM, VIEWS, SHMEM._replace(pool="subproc"), Setting("dummy", 4)]


@pytest.mark.parametrize(
    "setting",
    [
        *(Setting(name, 4) for name in (LOOP, SYNC, ASYNC)),
        *OURS,
        *(each._replace(wait_num=2) for each in OURS),
    ],
    ids=lambda setting: setting.text,
)
def test_the_steps_are_made(setting, tmp_path):
    def check():
        def start(env_fns, batches):
            return settings.start(setting, env_fns, batches)

        counting.check(start, str(tmp_path / "counts"), 4, setting.wait_num)

    # In a process of its own: others' pools leave descriptors open.
    process = multiprocessing.get_context("fork").Process(target=check)
    process.start()
    process.join(40)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(("wait_num", "rows"), [(None, {4}), (2, {2, 3, 4})])
def test_the_pool_that_make_chooses(wait_num, rows):
    setting = Setting("make", 4, wait_num=wait_num)
    running = settings.start(setting, [CountEnv] * 4, [[0] * 4] * 2)
    assert {running.advance() for _ in range(9)} <= rows
    running.close()


@pytest.mark.parametrize(
    ("setting", "text", "kind"),
    [
        (Setting("dummy", 3), "dummy", "DummyVectorEnv"),
        (Setting("subproc", 3, 2), "subproc, num_processes=2", "SubprocVectorEnv"),
        (
            Setting("shmem", 3, 1, 2, caller_steps=True, copy=False),
            "shmem, num_processes=1, wait_num=2, caller_steps=True, copy=False",
            "ShmemVectorEnv",
        ),
    ],
)
def test_the_options_reach_the_pool(setting, text, kind):
    assert setting.text == text
    with settings.make_pool(setting, [CountEnv] * 3) as pool:
        assert type(pool).__name__ == kind
        assert pool.wait_num == (setting.wait_num or 3)
        for option in set(text.split(", ")[1:]) - {"copy=False"}:
            assert option in repr(pool)
        one, two = pool.reset()[0], pool.reset()[0]
        assert np.shares_memory(one, two) is not setting.copy


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


@pytest.mark.parametrize(
    "space", [gym.spaces.Box(-1, 1, (2, 3)), gym.spaces.Dict({"a": gym.spaces.Discrete(2)})]
)
def test_actions_are_the_same_for_every_pool(space):
    def env_fn():
        env = CountEnv()
        env.action_space = space
        return env

    batches = settings.draw_actions(env_fn, 3)
    assert len(batches) >= 8
    assert all(len(batch) == 3 and action in space for batch in batches for action in batch)
    assert repr(batches) == repr(settings.draw_actions(env_fn, 3))
