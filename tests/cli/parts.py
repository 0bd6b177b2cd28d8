"""What the tests of the command line name as ``module:callable``, and envs with ids."""

import os
import signal
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

from tests.support.envs import ChangedEnv, CountEnv, SpaceEnv

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"

not_callable = 5


def scaled(env):
    return TransformReward(env, lambda reward: 10.0 * float(reward))


def shifted(env):
    return TransformReward(env, lambda reward: float(reward) + 1.0)


def raise_in_third_episode(env, _, row):
    if (env.episode, env.t) == (2, 2):
        raise ValueError("boom")
    return row


def hang_in_third_episode(env, _, row):
    """Hang, and leave a mark then."""
    if env.episode == 2:
        (Path(os.environ["ENVPOOL_PY_MARKS"]) / f"{os.getpid()}").touch()
        while True:
            signal.pause()
    return row


raising = partial(ChangedEnv, 0, 4, step=raise_in_third_episode)
stuck = partial(ChangedEnv, 0, 4, step=hang_in_third_episode)


def alternate(obs, env_ids):
    """Push the cart to where the pole leans."""
    assert len(obs) == len(env_ids)
    return (obs[:, 2] > 0).astype(np.int64)


def refuses(obs, env_ids):
    """Say what it was called with."""
    raise LookupError(f"got {len(obs)} rows, of envs {env_ids.tolist()}")


def stumbles(obs, env_ids):
    """Raise in the third episode."""
    if (obs[:, 1] == 2).any():
        raise LookupError("stumbled")
    return 0 * env_ids


class Parity:
    """A policy that is made of the pool and the seed."""

    def __init__(self, pool, seed):
        self.num_actions = [int(space.n) for space in pool.action_space]
        self.seed = seed

    def __call__(self, _, env_ids):
        return [(self.seed + i) % self.num_actions[i] for i in env_ids]


class Unmakeable:
    def __init__(self, *_):
        raise RuntimeError("no such weights")


class Interrupts:
    """Interrupts its own process at its ninth call, as Ctrl-C would."""

    calls = 0

    def __init__(self, *_):
        pass

    def __call__(self, _, env_ids):
        self.calls += 1
        if self.calls == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return 0 * env_ids


class Different(CountEnv):
    """No two of them have the same observation space."""

    made = 0

    def __init__(self):
        super().__init__()
        Different.made += 1
        self.observation_space = spaces.Box(-Different.made, 10**6, (3,), np.int64)


def space_env(name="dict", length=3):
    return SpaceEnv(0, name, length)


def count_env(length=4, fail=False):
    if fail:
        raise ValueError("asked to fail\nand this line is not shown")
    return CountEnv(0, length)


def with_size(size):
    return CountEnv(0, len(str(size)))


for kind, make in {"Count": count_env, "Space": space_env, "Different": Different}.items():
    if f"EnvpoolPyTests/{kind}-v0" not in gym.registry:
        gym.register(f"EnvpoolPyTests/{kind}-v0", entry_point=make, order_enforce=False)
