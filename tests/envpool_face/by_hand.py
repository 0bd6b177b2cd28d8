"""Envs stepped one by one, with Gymnasium's next-step autoreset: what a batch must equal."""

import gymnasium as gym
import numpy as np

from tests.support import envs
from tests.support.reference import HandStepped, check_obs, same

RAISE, DIE, HANG, WAIT = 1, 2, 3, 4
DUMMY = {"backend": "dummy"}


class SeededEnv(envs.CountEnv):
    """Its first seed is its tag, so that envs of one callable differ; does what the action says.

    WAIT: it waits at the gate of its tag.
    """

    def __init__(self, gates=()):
        super().__init__()
        self.gates = gates

    def reset(self, *, seed=None, options=None):
        if self.resets == 0 and seed is not None:
            self.tag = seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == RAISE:
            raise LookupError("boom")
        if action == DIE:
            envs.DIE["SIGKILL"]()
        if action == WAIT:
            self.gates[self.tag].wait()
        while action == HANG:
            envs.signal.pause()
        return super().step(action)


class ByHand(HandStepped):
    """Envs with the seeds of `make`; the infos of their rows have `elapsed_step`."""

    def __init__(self, make_env, num_envs, seed):
        super().__init__([make_env] * num_envs, "next_step")
        self.seeds = dict(enumerate(range(seed, seed + num_envs)))
        self.elapsed = [0] * num_envs

    def _reset(self, i, **kwargs):
        seed = self.seeds.pop(i, None)
        if kwargs.get("seed") is None:
            kwargs["seed"] = seed
        row = super()._reset(i, **kwargs)
        self.elapsed[i] = row.info["elapsed_step"] = 0
        return row

    def _step(self, i, action):
        row = super()._step(i, action)
        if "elapsed_step" not in row.info:
            self.elapsed[i] += 1
            row.info["elapsed_step"] = self.elapsed[i]
        return row


def check(batch, rows, space):
    """Assert that what `recv`, or with two parts `reset`, returned are these rows."""
    check_obs(batch[0], [row.obs for row in rows], space, columns=True)
    for part, name, dtype in zip(
        batch[1:-1],
        ("reward", "terminated", "truncated"),
        ("float32", "bool", "bool"),
        strict=False,
    ):
        assert same(part, np.array([getattr(row, name) for row in rows], dtype)), name
    info = dict(batch[-1])
    for name in ("env_id", "elapsed_step"):
        assert same(info.pop(name), np.array([row.info[name] for row in rows], np.int32)), name
    assert same(info.pop("players")["env_id"], batch[-1]["env_id"])
    by_gymnasium, own = gym.vector.VectorEnv(), {}
    by_gymnasium.num_envs = len(rows)
    ours = ("env_id", "elapsed_step", "is_reset", "seed")  # seeds may be None beside an int
    for k, row in enumerate(rows):
        told = {key: value for key, value in row.info.items() if key not in ours}
        own = by_gymnasium._add_info(own, told, k)
    assert same({key: value for key, value in info.items() if key not in ("seed", "_seed")}, own)
