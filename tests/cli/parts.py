"""What the tests of the command line name as ``module:callable``, and an env with an id."""

import os
import signal
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformReward

from tests.support.envs import ChangedEnv, CountEnv, FaultEnv, SpaceEnv

COUNT = "tests.cli.parts:EnvpoolPyTests/Count-v0"


def scaled(env):
    return TransformReward(env, lambda reward: 10.0 * float(reward))


def shifted(env):
    return TransformReward(env, lambda reward: float(reward) + 1.0)


def interrupted(env):
    """Its first step is ended by Ctrl-C."""
    return TransformReward(env, lambda _: os.kill(os.getpid(), signal.SIGINT))


def raise_in_third_episode(env, _, row):
    if (env.episode, env.t) == (2, 2):
        raise ValueError("boom")
    return row


def hang_in_third_episode(env, _, row):
    """Hang, and leave a mark then."""
    if env.episode == 2:
        Path(f"{os.environ['ENVPOOL_PY_MARKS']}/{os.getpid()}").touch()
        while True:
            signal.pause()
    return row


def failing(fault):
    """Every env fails in the second step of its second episode."""
    return ChangedEnv(0, 4, step=partial(fail_in_second_episode, fault))


def fail_in_second_episode(fault, env, _, row):
    if (env.episode, env.t) == (1, 2):
        FaultEnv().fault(fault)
    return row


class FilmedEnv(ChangedEnv):
    """Every env fails in the second step of its second episode, and draws itself."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as gymnasium.Env's

    def __init__(self, render_mode=None):
        super().__init__(0, 4, step=partial(fail_in_second_episode, "value"))
        self.render_mode = render_mode

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


raising = partial(ChangedEnv, 0, 4, step=raise_in_third_episode)
stuck = partial(ChangedEnv, 0, 4, step=hang_in_third_episode)


def refuses(obs, env_ids):
    """Say what it was called with."""
    raise LookupError(f"got {len(obs)} rows, of envs {env_ids.tolist()}")


def interrupts(obs, env_ids):
    """Ctrl-C in the first batch of two in which one episode has ended."""
    return 0 * env_ids if len(obs) != 1 else os.kill(os.getpid(), signal.SIGINT)


def stumbles(obs, env_ids):
    """Raise in the third episode."""
    return 0 * env_ids if (obs[:, 1] < 2).all() else refuses(obs, env_ids)


class NoPolicy:
    """Is made as a policy, and is none."""

    def __init__(self, *_):
        pass


class Parity:
    """A policy that is made of the pool and the seed."""

    def __init__(self, pool, seed):
        self.num_actions = [int(space.n) for space in pool.action_space]
        self.seed = seed

    def __call__(self, _, env_ids):
        return [(self.seed + i) % self.num_actions[i] for i in env_ids]


class Interrupts(Parity):
    """Interrupts its own process at its ninth call, as Ctrl-C would."""

    calls = 0

    def __call__(self, obs, env_ids):
        self.calls += 1
        if self.calls == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return super().__call__(obs, env_ids)


def space_env(name="dict", length=3):
    return SpaceEnv(0, name, length)


def needs_stiffness(stiffness):
    return CountEnv(int(stiffness))


def needs_stiffness_and_takes_more(stiffness, **_):
    return CountEnv(int(stiffness))


def count_env(length=4, fail=False):
    if fail:
        raise ValueError("asked to fail\nand this line is not shown")
    return CountEnv(0, length)


if "EnvpoolPyTests/Count-v0" not in gym.registry:
    gym.register("EnvpoolPyTests/Count-v0", entry_point=count_env, order_enforce=False)
