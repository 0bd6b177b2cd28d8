"""Runs that the tests of records and replays repeat, and envs that fail once in them."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np

from envpool_py import EnvError
from envpool_py.worker import DummyEnvWorker
from tests.support import envs

RANDOM = [functools.partial(envs.RandomEnv, tag) for tag in range(3)]


class Run:
    """A pool whose batches are kept, those of resets and the errors too."""

    def __init__(self, pool):
        self.pool = pool
        self.batches = []

    def reset(self, *args, **kwargs):
        obs, infos = self._asked(self.pool.reset, *args, **kwargs)
        flags = np.zeros(len(infos), dtype=bool)
        rewards = np.zeros((len(infos), *self.pool.engine.block.spec.reward))
        self.keep((obs, rewards, flags, flags, infos))

    def step(self, *args):
        return self.keep(self._asked(self.pool.step, *args))

    def recv(self):
        return self.keep(self._asked(self.pool.recv))

    def keep(self, batch):
        self.batches.append(batch)
        return batch

    def _asked(self, call, *args, **kwargs):
        try:
            return call(*args, **kwargs)
        except EnvError as error:
            self.batches.append(error)
            raise

    def drive(self, steps, act=None):
        """Step every env so often, sync or async; reset the envs that end, if the pool does not.

        ``act(i, n)`` is the action of step ``n`` of env ``i``; without it they are drawn.
        """
        num = len(self.pool)
        if act is None:
            rng = np.random.default_rng(2)
            space = self.pool.action_space[0]
            drawn = [[envs.draw(space, rng) for _ in range(steps)] for _ in range(num)]
            act = lambda i, n: drawn[i][n]  # noqa: E731
        count = [0] * num
        ids = list(range(num))
        while min(count) < steps or self.pool.waiting_id:
            ids = [i for i in ids if count[i] < steps]
            batch = self.step([act(i, count[i]) for i in ids], ids) if ids else self.recv()
            for i in ids:
                count[i] += 1
            ids = [info["env_id"] for info in batch[4]]
            ended = np.flatnonzero(batch[2] | batch[3])
            if self.pool.autoreset_mode is None and len(ended):
                self.reset([ids[k] for k in ended])

    def rows_of(self, i):
        """Return the rows of env ``i``, in order."""
        return [
            tuple(part[k] for part in batch)
            for batch in self.batches
            for k, info in enumerate(batch[4])
            if info["env_id"] == i
        ]


class Once(gym.Wrapper):
    """Fails in step `at` since it was made, or in reset `-at`, but only once in all.

    A file says that it has; so a new process knows as well.
    """

    def __init__(self, env, path, at, fault):
        super().__init__(env)
        self.path, self.at, self.fault = path, at, fault
        self.steps = self.resets = 0

    def _fail(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.fault in envs.DIE:
            envs.DIE[self.fault]()
        while self.fault == "hang":
            signal.pause()
        raise ValueError("once")

    def reset(self, **kwargs):
        self.resets += 1
        if -self.resets == self.at:
            self._fail()
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            self._fail()
        return super().step(action)


def make(tag, name, path, at, fault):
    env = envs.RandomEnv(tag) if name == "random" else envs.SpaceEnv(tag, name)
    return Once(env, path, at, fault) if fault else env


def failing(path, faults, name="random"):
    """Return three env_fns; ``faults`` says where, and how, an env fails once."""
    return [
        functools.partial(make, tag, name, str(path / f"{tag}"), *faults.get(tag, (0, "")))
        for tag in range(3)
    ]


class PlainWorker(DummyEnvWorker):
    """A custom worker: nothing but `send`, `recv` and `close`."""

    def recv(self):
        return super().recv()
