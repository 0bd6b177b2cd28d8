"""What a user sees of a failure: log lines, counts, short errors with the line of the user."""

import functools
import logging
import re

import numpy as np
import pytest

from envpool_py.engine import flight
from tests.faults.helpers import reset_pool
from tests.support import envs
from tests.support.places import PLACES

SOME = ["dummy", "shmem-fork-packed"]
SPREAD = pytest.mark.parametrize("place", SOME)


def lose_a_sensor(env, _, row):
    if env.steps == 8:
        raise RuntimeError("sensor lost")
    return row


LONG = pytest.param("shmem-fork-packed", 500, marks=pytest.mark.soak)


@pytest.mark.parametrize(("place", "times"), [*((each, 12) for each in SOME), LONG])
def test_failures_with_episodes_between_them_do_not_end_the_run(place, times, caplog):
    """Each env is made again after its 8th step; the budget of 10 is full after each episode."""
    fns = [functools.partial(envs.ChangedEnv, tag, 3, step=lose_a_sensor) for tag in range(4)]
    with PLACES[place](fns, on_error="restart", autoreset_mode="same_step") as pool:
        pool.reset()
        lost = np.zeros(4, int)
        for _ in range(8 * times):
            lost += ["env_error" in info for info in pool.step([0] * 4)[4]]
        assert lost.tolist() == pool.restarts.tolist() == [times] * 4
        assert "on_error='restart'" in repr(pool)
        assert f"{times * 4} restarts" in repr(pool)
    text = r"env \d restarted \(restart \d+ of this env, (\d+) of the pool\): "
    text += r"step raised RuntimeError: sensor lost \(test_seen.py:\d+\)"
    found = [re.fullmatch(text, record.getMessage()) for record in caplog.records]
    assert all(found)
    assert {(each.name, each.levelno) for each in caplog.records} == {("envpool_py", 30)}
    expected = [1, 2, 3, *range(10, 100, 10), *range(100, 1000, 100), *range(1000, 2001, 1000)]
    assert [int(each[1]) for each in found] == [n for n in expected if n <= times * 4]


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
