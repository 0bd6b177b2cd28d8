"""Watch calls: what they return does not change later, and what they are given is not changed."""

import copy
import dataclasses

import gymnasium as gym
import numpy as np

from tests.support.envs import BufferEnv
from tests.support.reference import same


class GreedyEnv(BufferEnv):
    """Writes its results into the same objects, and changes all that it is given."""

    def __init__(self, tag=0, length=4, render_mode="rgb_array"):
        super().__init__(tag, length)
        self.render_mode = render_mode
        self.action_space = gym.spaces.Box(-100, 100, (2,), np.float64)
        self.frame = np.zeros((2, 2, 3), np.uint8)
        self.values = [0, np.zeros(2)]

    def reset(self, *, seed=None, options=None):
        if options:
            options["list"].append(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        action += 1000
        self.values[0] += 1
        self.values[1] += 1
        return super().step(0)

    def render(self):
        self.frame += 1
        return self.frame

    def extend(self, values, *, more=()):
        values.append(len(more))
        self.values[0] += 1
        return self.values


def extended(env, values):
    """Extend an argument, and return what the env keeps."""
    values.append(1)
    env.unwrapped.values[0] += 1
    return env.unwrapped.values


#: In this process, and in threads, these return the env's own objects.
LIVE = ("get_env_attr", "get_attr", "call", "apply", "env_method")


def spoil(value):
    """Change a value in every place, as a caller may who owns it."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        value[...] = 1
    elif isinstance(value, dict):
        spoil(list(value.values()))
        value["spoilt"] = True
    elif isinstance(value, (list, tuple, np.ndarray)):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.append("spoilt")


class Watched:
    """Wraps an object, and records the arguments and the results of its public calls.

    ``spoils``: each result is changed after it was recorded, as the caller may change it; later
    results must not depend on that.
    """

    def __init__(self, target, *, spoils=False):
        self.target = target
        self.used = set()
        self._seen = []
        self._spoils = spoils

    def note(self, what, value):
        parts = value
        if dataclasses.is_dataclass(value):
            parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        self._seen.append((what, parts, copy.deepcopy(parts)))
        return value

    def __getattr__(self, name):
        self.used.add(name)
        value = getattr(self.target, name)
        if not callable(value):
            self.note(name, value)
            return self._spoilt(name, value)

        def call(*args, **kwargs):
            self.note(f"an argument of {name}", [args, kwargs])
            result = value(*args, **kwargs)
            self.note(f"the result of {name}", result)
            return self._spoilt(name, result)

        return call

    def _spoilt(self, name, result):
        if self._spoils and name not in LIVE:
            spoil(result)
        return result

    def results(self):
        """Return what was returned, as it was then, without times."""
        untimed = [seen for seen in self._seen if "stats" not in seen[0]]
        return [(what, before) for what, _, before in untimed]

    def changed(self):
        """Return what has changed since."""
        return {what for what, value, before in self._seen if not same(value, before)}
