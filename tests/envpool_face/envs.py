"""The env of these tests."""

from gymnasium import spaces

from tests.support import envs

WAIT = 1
DUMMY = {"backend": "dummy"}


class SeededEnv(envs.FaultEnv):
    """Its first seed is its tag, so that envs of one callable differ.

    With the action WAIT it waits at the gate of its tag.
    """

    def __init__(self, gates=()):
        super().__init__(length=4)
        self.action_space = spaces.Discrete(9)
        self.gates = gates

    def reset(self, *, seed=None, options=None):
        if self.resets == 0 and seed is not None:
            self.tag = seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == WAIT:
            self.gates[self.tag].wait()
        return super().step("")
