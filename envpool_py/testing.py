"""The contract of an ``EnvWorker``, as tests for custom worker classes to inherit.

.. code-block:: python

    from envpool_py.testing import EnvWorkerContract

    class TestMyWorker(EnvWorkerContract):
        def make_worker(self, env_fn):
            return MyWorker(env_fn)

The methods are plain ``test_...`` functions with ``assert``; pytest collects them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from unittest import TestCase

import gymnasium as gym
import numpy as np

from envpool_py.pool.base import BaseVectorEnv
from envpool_py.worker import EnvWorker, Request

__all__ = ["CountingEnv", "EnvWorkerContract"]

_raises = TestCase().assertRaises  # no pytest is needed to import this module


class CountingEnv(gym.Env[Any, Any]):
    """A deterministic env whose rows show a stale or lost reply, or one of another env.

    The observation is ``[episode, step, last action, first random number]``, float64; the reward is
    the number of steps in the episode, which has ``length`` steps. Action 3 raises a ``KeyError``.
    """

    def __init__(self, length: int = 5) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gym.spaces.Discrete(4)
        self.length = length
        self._row = np.array([-1.0, 0.0, 0.0, 0.0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode, or episode 0 if a seed is given."""
        super().reset(seed=seed)
        episode = self._row[0] + 1 if seed is None else 0
        self._row[:] = episode, 0, 0, self.np_random.random()
        return self._row.copy(), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        if action == 3:
            raise KeyError("action 3")
        step = int(self._row[1]) + 1
        self._row[1:3] = step, action
        return self._row.copy(), float(step), step >= self.length, False, {"step": step}

    def double(self, value: int, *, plus: int = 0) -> int:
        """Return ``2 * value + plus``."""
        return 2 * value + plus

    def render(self) -> Any:
        """Return the number of the step as text."""
        return f"step {self._row[1]:.0f}"


class EnvWorkerContract(ABC):
    """The tests that every worker class must pass; inherit it and override ``make_worker``."""

    @abstractmethod
    def make_worker(self, env_fn: Callable[[], Any]) -> EnvWorker:
        """Return a new worker for the env that ``env_fn`` makes."""

    def test_a_worker_equals_its_env_stepped_by_hand(self) -> None:
        with contextlib.closing(self.make_worker(CountingEnv)) as worker:
            env = CountingEnv()
            for seed, options in ((7, None), (None, {"level": 3}), (8, None)):
                obs, info = worker.reset(seed=seed, options=options)
                np.testing.assert_array_equal(obs, env.reset(seed=seed)[0])
                assert info == {"options": options}
                for action in (0, 2, 1):
                    row, want = worker.step(action), env.step(action)
                    np.testing.assert_array_equal(row[0], want[0])
                    assert tuple(row[1:]) == want[1:]
            assert worker.seed(5) == [5]  # it resets the env
            env.reset(seed=5)
            np.testing.assert_array_equal(worker.reset()[0], env.reset()[0])
            worker.close()  # twice

    def test_attributes_methods_and_rendering(self) -> None:
        worker = self.make_worker(lambda: gym.wrappers.TimeLimit(CountingEnv(), 9))
        with contextlib.closing(worker):
            assert worker.get_env_attr("length") == 5
            assert worker.get_env_attr("_max_episode_steps") == 9
            worker.set_env_attr("length", 2)
            assert worker.get_env_attr("length") == 2
            assert worker.call("double", 4, plus=1) == 9
            worker.reset()
            assert worker.render() == "step 0"

    def test_a_worker_goes_on_after_an_error_and_a_cancel(self) -> None:
        with contextlib.closing(self.make_worker(CountingEnv)) as worker:
            worker.reset(seed=0)
            wrong = ("step", 3, KeyError), ("get_attr", "nothing", AttributeError)
            for kind, argument, error in wrong:
                worker.send(Request(kind, (argument,)))
                with _raises(error, msg=kind):
                    worker.recv()
            assert worker.reset(seed=0)[0][1] == 0
            worker.send(Request("step", (0,)))
            worker.cancel()  # drops the reply
            obs, info = worker.reset(seed=0)
            assert (obs[1], info) == (0, {"options": None})

    def test_a_sync_pool(self) -> None:
        with BaseVectorEnv([CountingEnv] * 3, self.make_worker) as pool:
            envs = [CountingEnv() for _ in range(3)]
            obs, info = pool.reset(seed=10)
            expected = [env.reset(seed=10 + i)[0] for i, env in enumerate(envs)]
            np.testing.assert_array_equal(obs, np.stack(expected))
            assert [row["env_id"] for row in info] == [0, 1, 2]
            for ids, actions in (([0, 1, 2], [0, 1, 2]), ([2, 0], [1, 2]), ([1], [0])):
                batch = pool.step(np.array(actions), ids)
                rows = [envs[i].step(action) for i, action in zip(ids, actions, strict=True)]
                wanted = list(zip(*rows, strict=True))
                for n in range(4):
                    np.testing.assert_array_equal(batch[n], np.stack(wanted[n]))
                assert [row["env_id"] for row in batch[4]] == ids

    def test_an_async_pool(self) -> None:
        with BaseVectorEnv([CountingEnv] * 4, self.make_worker, wait_num=2) as pool:
            endless = 1 << 62  # one env may be stepped many times before another finishes
            envs = [CountingEnv(length=endless) for _ in range(4)]
            pool.set_env_attr("length", endless)
            pool.reset(seed=0)
            for i, env in enumerate(envs):
                env.reset(seed=i)
            ids = np.arange(4)
            taken = np.zeros(4, dtype=int)
            while taken.sum() < 80 or not taken.all():  # an env may be late on a busy machine
                obs, reward, *_ = pool.step(ids % 3, ids)
                ids = pool.batch_ids
                assert 2 <= len(ids) == len(set(ids.tolist()))
                rows = [envs[i].step(i % 3) for i in ids.tolist()]
                np.testing.assert_array_equal(obs, np.stack([row[0] for row in rows]))
                np.testing.assert_array_equal(reward, [row[1] for row in rows])
                taken[ids] += 1
            pool.drain()
            assert pool.waiting_id == []

    def test_a_failing_env_in_a_pool(self) -> None:
        with BaseVectorEnv([CountingEnv] * 3, self.make_worker) as pool:
            pool.reset(seed=0)
            with _raises(KeyError) as raised:
                pool.step([0, 3, 0])
            assert vars(raised.exception)["env_ids"] == (1,)
            kept = pool.recv()
            assert [row["env_id"] for row in kept[4]] == [0, 2]
            obs, _ = pool.reset(1)
            assert obs[0][1] == 0
            assert pool.step([0, 0, 0])[1].tolist() == [2, 1, 2]
