"""Which envs are in flight, which are ready, and the order in which a pool names them."""

import pytest

from envpool_py import DummyVectorEnv
from tests.support.envs import CountEnv


def test_the_order_of_sending_and_returning():
    with DummyVectorEnv([CountEnv] * 4) as pool:
        pool.reset()
        pool.send([0, 0], [3, 1])
        pool.send([0], [2])
        assert (pool.waiting_id, pool.ready_id) == ([3, 1, 2], [0])
        with pytest.raises(ValueError, match="env 0: not in flight; send actions first"):
            pool.step(None, id=[1, 0])
        pool.step(None, id=[1])
        assert (pool.waiting_id, pool.ready_id) == ([3, 2], [0, 1])
        for _ in range(400):  # longer than the log
            pool.step([0], [0])
        assert (pool.waiting_id, pool.ready_id) == ([3, 2], [1, 0])
        pool.send([0, 0], [1, 0])
        pool.step(None, id=[2, 3])
        assert (pool.waiting_id, pool.ready_id) == ([1, 0], [2, 3])
        pool.drain()
