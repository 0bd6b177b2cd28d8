"""Chaos: kills, stops, exceptions and slow envs at random; every row is accounted for."""

import dataclasses
import functools
import os
import random
import signal
import time

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ShmemVectorEnv
from envpool_py.worker.host import Life

FINE, RAISE, KILL, STOP, SLOW = range(5)
NUM = 48


def length_of(tag, episode):
    return 3 + (7 * tag + 5 * episode) % 11


def obs_of(tag, episode, t):
    """Return what env `tag` observes there, in a run without any fault."""
    return [tag, episode, t, (tag * 1_000_003 + episode * 10_007 + t * 101) % 65_521]


class ChaosEnv(gym.Env):
    """Does as its action says; where it is, is known from its episode's number and its steps."""

    def __init__(self, tag):
        self.observation_space = gym.spaces.Box(-1, 10**7, (4,), np.int64)
        self.action_space = gym.spaces.Discrete(5)
        self.tag, self.episode, self.t = tag, -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = options["episode"], 0
        return np.array(obs_of(self.tag, self.episode, 0)), {}

    def step(self, action):
        if action == RAISE:
            raise ArithmeticError("as asked")
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        if action == SLOW:
            time.sleep(0.003)
        self.t += 1
        ended = self.t == length_of(self.tag, self.episode)
        obs = np.array(obs_of(self.tag, self.episode, self.t))
        return obs, float(self.t), ended, False, {"t": self.t}


@dataclasses.dataclass
class Ledger:
    """The model of one env: which row must come next."""

    tag: int
    mode: str | None
    episode: int = -1
    t: int = 0
    over: bool = True  # the next row is that of a reset
    asked: int = 0
    rows: int = 0
    lost: int = 0

    def enter(self, obs, reward, terminated, truncated, info):
        """Check the row against what must come now, and note it down."""
        self.rows += 1
        assert info["env_id"] == self.tag
        if self.over:
            assert info["is_reset"] is True
            assert (reward, terminated, truncated) == (0.0, False, False)
            self.begin(obs)
            return
        assert "is_reset" not in info
        if "env_error" in info:
            assert (reward, terminated, truncated) == (0.0, False, True)
            self.lost += 1
        else:
            self.t += 1
            ended = self.t == length_of(self.tag, self.episode)
            assert (reward, terminated, truncated) == (float(self.t), ended, False)
        here = obs_of(self.tag, self.episode, self.t)
        if not (terminated or truncated):
            assert obs == here
        elif self.mode == "same_step":
            assert info["final_obs"].tolist() == here
            self.begin(obs)
        else:
            assert obs == here
            self.over = True

    def begin(self, obs):
        self.episode, self.t, self.over = self.episode + 1, 0, False
        assert obs == obs_of(self.tag, self.episode, 0)


def enter(ledgers, batch):
    for obs, reward, terminated, truncated, info in zip(*batch, strict=True):
        values = (obs.tolist(), float(reward), bool(terminated), bool(truncated), info)
        ledgers[info["env_id"]].enter(*values)
    return len(batch[1])


def strike(pool, rng):
    """Kill or stop a process from outside, whatever it is doing.

    One that is still making its envs is only killed: how long that takes is not bounded.
    """
    host = pool.engine.hosts.of(rng.randrange(NUM))
    chosen = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
    if host.life in (Life.STARTING, Life.RUNNING):
        os.kill(host.process.pid, chosen if host.life is Life.RUNNING else signal.SIGKILL)


@pytest.mark.parametrize(
    ("steps", "stops", "backoff"),
    [
        (15_000, 0.05, 1e-5),
        # Some hundred restarts of each env: a back-off that doubles each time would take days.
        pytest.param(1_000_000, 0.01, 0.0, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
def test_every_row_is_accounted_for(mode, steps, stops, backoff):
    rng = random.Random(7)
    weights = [1000.0, 3.0, 1.0, stops, 1.0]
    ledgers = [Ledger(tag, mode) for tag in range(NUM)]
    restarted = []
    with ShmemVectorEnv(
        [functools.partial(ChaosEnv, tag) for tag in range(NUM)],
        wait_num=16,
        num_processes=6,
        context="fork",
        autoreset_mode=mode,
        reset_fn=lambda env_id, episode: (env_id + episode, {"episode": episode}),
        step_timeout=0.25,
        on_error="restart",
        max_restarts=None,
        restart_backoff=backoff,
        on_restart=lambda i, _: restarted.append(i),
    ) as pool:
        obs, infos = pool.reset()
        for ledger in ledgers:
            assert "env_error" not in infos[ledger.tag]
            ledger.begin(obs[ledger.tag].tolist())
        done = 0
        while done < steps:
            ready = [i for i in pool.ready_id if rng.random() < 0.9]
            resets = [i for i in ready if mode is None and ledgers[i].over]
            others = [i for i in ready if i not in resets]
            pool.send(np.array(rng.choices(range(5), weights, k=len(others))), others)
            pool.send_reset(resets)
            for i in ready:
                ledgers[i].asked += 1
            if rng.random() < 0.01:
                strike(pool, rng)
            if pool.waiting_id:
                done += enter(ledgers, pool.recv())
        enter(ledgers, pool.drain())
        assert pool.waiting_id == []
    lost = sum(ledger.lost for ledger in ledgers)
    assert 30 < lost <= len(restarted) + NUM
    for ledger in ledgers:
        assert ledger.rows == ledger.asked, "a row for each request, none twice and none missing"
        assert ledger.rows > 20
