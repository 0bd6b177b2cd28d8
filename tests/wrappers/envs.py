"""Envs whose observations are random, of every form that a wrapper may meet."""

import contextlib
import functools

from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from tests.support import envs

POOLS = {"dummy": DummyVectorEnv, "shmem": ShmemVectorEnv}

ARRAYS = {
    **{dtype: envs.box(dtype) for dtype in ("float16", "float32", "float64", "uint8")},
    **{name: envs.SPACES[name]() for name in ("box-scalar", "discrete-start", "multi-binary")},
}
TREES = {name: envs.SPACES[name]() for name in ("dict", "tuple", "nested", "mixed")}
SPACES = {**ARRAYS, **TREES}


class SampleEnv(envs.SpaceEnv):
    """Observes samples of a space, drawn from the env's own stream; its infos are short.

    It declares that space, or another one, or with None no space.
    """

    def __init__(self, name, length=3, **declared):
        super().__init__(0, f"box-{name}" if name in envs.DTYPES else name, length)
        self.action_space = spaces.Discrete(2)
        if "declared" in declared:
            self.observation_space = declared["declared"]
        if self.observation_space is None:
            del self.observation_space

    def observe(self):
        return envs.draw(self.source, self.np_random)

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], {}

    def step(self, action):
        *row, _ = super().step(action)
        return *row, {"action": int(action)}


def env_fns(space, count=4, **kwargs):
    """Make env_fns of unequal episode lengths."""
    return [functools.partial(SampleEnv, space, 2 + i % 3, **kwargs) for i in range(count)]


@contextlib.contextmanager
def twins(kind, space, wrap, **options):
    """Two pools with the same envs; the second one is wrapped."""
    make = POOLS[kind]
    with make(env_fns(space), **options) as plain, make(env_fns(space), **options) as venv:
        yield plain, wrap(venv)
