"""Envs whose observations are random, of every form that a wrapper may meet."""

from functools import partial

from gymnasium import spaces

from tests.support import envs


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
    return [partial(SampleEnv, space, 2 + i % 3, **kwargs) for i in range(count)]
