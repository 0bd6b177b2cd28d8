"""Runs that the tests of records and replays repeat, and envs that fail once in them."""

import functools

import gymnasium as gym
import numpy as np

from envpool_py import EnvError
from tests.support import envs

RANDOM = [functools.partial(envs.RandomEnv, tag) for tag in range(3)]


class Run:
    """A pool whose batches are kept, those of resets and the errors too."""

    def __init__(self, pool):
        self.pool = pool
        self.batches = []

    def reset(self, *args, **kwargs):
        obs, infos = self.keep(self.pool.reset, *args, **kwargs)
        flags = np.zeros(len(infos), dtype=bool)
        self.batches[-1] = obs, np.zeros(len(infos)), flags, flags, infos

    def step(self, *args):
        return self.keep(self.pool.step, *args)

    def keep(self, call, *args, **kwargs):
        """Keep the batch that this call returns, or what must be equal of two errors."""
        try:
            self.batches.append(call(*args, **kwargs))
        except EnvError as error:
            classes = [each.__name__ for each in type(error).__mro__]
            self.batches.append([classes, str(error).splitlines()[0], error.env_ids])
            raise
        return self.batches[-1]

    def drive(self, steps, act=None):
        """Step every env so often, sync or async; reset the envs that end, if the pool does not.

        ``act(i, n)`` is the action of step ``n`` of env ``i``; without it they are drawn.
        """
        space = self.pool.action_space[0]
        act = act or (lambda i, n: envs.draw(space, np.random.default_rng([i, n])))
        ids, count = range(len(self.pool)), [0] * len(self.pool)
        while min(count) < steps or self.pool.waiting_id:
            ids = [i for i in ids if count[i] < steps]
            actions = [act(i, count[i]) for i in ids]
            batch = self.step(actions, ids) if ids else self.keep(self.pool.recv)
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

    def reset(self, **kwargs):
        self.resets += 1
        self.fail(-self.resets)
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        self.fail(self.steps)
        return super().step(action)

    def fail(self, number):
        if number == self.at and not self.path.exists():
            self.path.touch()
            if self.fault == "raise":
                raise ValueError("once")
            envs.FaultEnv().fault(self.fault)


def failing(path, faults, name=None):
    """Return three env_fns; ``faults`` says where, and how, an env fails once."""

    def make(tag):
        env = envs.SpaceEnv(tag, name) if name else envs.RandomEnv(tag)
        return Once(env, path / str(tag), *faults.get(tag, (0, "")))

    return [functools.partial(make, tag) for tag in range(3)]
