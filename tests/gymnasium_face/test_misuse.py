"""Arguments that would give wrong data are refused, and nothing is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv, SubprocVectorEnv
from envpool_py.gymnasium import VectorEnv, make_vec
from tests.support import envs


def fns(count: int = 2) -> list[Any]:
    return [lambda i=i: envs.CountEnv(i, 3) for i in range(count)]


@pytest.mark.parametrize("options", [{"wait_num": 1}, {"timeout": 0.1}])
def test_partial_batches_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a VectorEnv waits for all envs"):
        VectorEnv(fns(), **options)
    with pytest.raises(ValueError, match="a VectorEnv waits for all envs"):
        make_vec("CartPole-v1", 2, "async", vector_kwargs=options)


@pytest.mark.parametrize("mode", ["SameStep", "bogus"])
def test_a_pool_has_its_own_mode(mode: str) -> None:
    with DummyVectorEnv(fns()) as pool, pytest.raises(ValueError, match="options to the pool"):
        VectorEnv(pool, autoreset_mode=mode)


def test_make_vec_takes_max_concurrency() -> None:
    envs_ = make_vec("CartPole-v1", 4, "async", vector_kwargs={"max_concurrency": 2})
    assert len(envs_.pool.engine.hosts.processes.hosts) == 2
    envs_.close()


class SlowDictEnv(gym.Env[Any, Any]):
    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Dict(x=gym.spaces.Box(0, 1, (2,)))

    def reset(self, **_: Any) -> Any:
        return {"x": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        del action
        time.sleep(0.3)
        return {"x": np.ones(2, np.float32)}, 1.0, False, False, {}


def test_no_row_in_time_of_a_pool_without_columns() -> None:
    ours = VectorEnv(SubprocVectorEnv([SlowDictEnv] * 2))
    ours.reset()
    ours.step_async([1, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        ours.step_wait(timeout=0.01)
    assert (ours.step_wait()[0]["x"] == 1).all()
    ours.close()


class RaisesOrDiesEnv(envs.CountEnv):
    def step(self, action: Any) -> Any:
        if action == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 9:
            raise KeyError("nine")
        return super().step(action)


def test_an_error_after_a_restart_shows_nothing_of_the_death() -> None:
    ours = VectorEnv([lambda i=i: RaisesOrDiesEnv(i, 3) for i in range(2)], context="fork")
    ours.reset()
    with pytest.raises(Exception, match="SIGKILL"):
        ours.step([8, 0])
    ours.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(KeyError) as caught:
        ours.step([9, 0])
    assert "WorkerDiedError" not in str(caught.value)
    ours.close()
