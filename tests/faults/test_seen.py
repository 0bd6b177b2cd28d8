"""What a user sees of a failure: log lines, counts, short errors with the line of the user."""

import functools
import logging
import re

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.engine import flight
from tests.faults.helpers import reset_pool
from tests.support import envs
from tests.support.places import PLACES

SOME = ["dummy", "shmem-fork-packed"]
SPREAD = pytest.mark.parametrize("place", SOME)


class Flaky(gym.Wrapper):
    """Raises in every 50th step, as a sensor that is lost does."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps % 50 == 0:
            raise RuntimeError("sensor lost")
        return super().step(action)


def flaky():
    return Flaky(gym.make("CartPole-v1"))


LONG = pytest.param("shmem-fork-packed", 25_000, marks=pytest.mark.soak)


@pytest.mark.parametrize(("place", "batches"), [*((each, 600) for each in SOME), LONG])
def test_failures_with_episodes_between_them_do_not_end_the_run(place, batches, caplog):
    """Each env is made again after its 50th step; the budget of 10 is full after each episode."""
    with PLACES[place]([flaky] * 4, on_error="restart", autoreset_mode="same_step") as pool:
        pool.reset(seed=0)
        rng, lost = np.random.default_rng(0), np.zeros(4, int)
        for _ in range(batches):
            infos = pool.step(rng.integers(0, 2, 4))[4]
            lost += ["env_error" in info for info in infos]
        assert lost.tolist() == pool.restarts.tolist() == [batches // 50] * 4
        assert "on_error='restart'" in repr(pool)
        assert f"{batches // 50 * 4} restarts" in repr(pool)
    text = r"env \d restarted \(restart \d+ of this env, (\d+) of the pool\): "
    text += r"step raised RuntimeError: sensor lost \(test_seen.py:\d+\)"
    found = [re.fullmatch(text, record.getMessage()) for record in caplog.records]
    assert all(found)
    assert {(each.name, each.levelno) for each in caplog.records} == {("envpool_py", 30)}
    expected = [1, 2, 3, *range(10, 100, 10), *range(100, 1000, 100), *range(1000, 2001, 1000)]
    assert [int(each[1]) for each in found] == [n for n in expected if n <= batches // 50 * 4]


@SPREAD
def test_if_no_env_ever_worked_the_error_is_raised_at_once(place, tmp_path):
    def reset(*_):
        envs.count_call(tmp_path / "resets")
        raise FileNotFoundError("robot.xml")

    fns = [functools.partial(envs.ChangedEnv, tag, reset=reset) for tag in range(2)]
    with PLACES[place](fns, on_error="restart", restart_backoff=20.0) as pool:
        with pytest.raises(FileNotFoundError, match=r"envs 0 to 1: reset raised .*: robot.xml"):
            pool.reset()
        assert envs.count_call(tmp_path / "resets") - 1 <= 3, "each once, one perhaps again"


@pytest.mark.parametrize(("place", "times"), [("dummy", 2), ("shmem-fork-packed", 100)])
def test_a_first_reset_that_fails_while_others_work_is_tried_again(place, times, tmp_path):
    def reset(env, row):
        if env.tag == 1 and envs.count_call(tmp_path / "resets") <= times:
            raise ConnectionError("503")
        return row

    fns = [functools.partial(envs.ChangedEnv, tag, reset=reset) for tag in range(3)]
    options = {"on_error": "restart", "restart_backoff": 0.001, "max_restarts": 3}
    with PLACES[place](fns, **options) as pool:
        if times == 2:
            obs, infos = pool.reset()
            assert obs[:, 0].tolist() == [0, 1, 2]
            assert ["503" in info.get("env_error", "") for info in infos] == [False, True, False]
        else:
            with pytest.raises(ConnectionError, match="env 1 failed again after 3 restarts"):
                pool.reset()
            obs = pool.step(None, id=[0, 2])[0]
            assert obs[:, 0].tolist() == [0, 2], "the rows of the others are kept"
        assert pool.restarts.tolist() == [0, min(times, 3), 0]


@pytest.mark.parametrize("wait_num", [None, 1])
def test_an_env_that_hangs_is_named_in_the_log(wait_num, gates, monkeypatch, caplog):
    fns = [functools.partial(envs.GateEnv, tag, gates[tag]) for tag in range(3)]
    with reset_pool("shmem-fork", fns, wait_num=wait_num) as pool:
        pool.timeout, pool.strict_timeout = 0.05, True
        pool.send([0, envs.BLOCK, 0])
        with gates[1].held():
            pool.step(None, [0, 2])
            monkeypatch.setattr(flight, "HANGS_AFTER", 0.2)
            pool.engine.flight._next_hang_check = 0.0
            while not caplog.records:
                pool.recv()
        pool.timeout = None
        pool.drain()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert (
        caplog.records[0].getMessage().startswith("env 1: no result for 0.2 seconds; with step_t")
    )
