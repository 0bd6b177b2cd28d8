"""`envpool-py collect`, killed at random moments: its folder holds whole episodes."""

import subprocess
import sys
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from envpool_py.collector import load
from tests.support.episodes import check_by_hand
from tests.support.helpers import ROOT

pytestmark = pytest.mark.soak

COLLECT = "collect CartPole-v1 --num-envs 4 --num-processes 2 --episodes 10000000 --seed 3"


def test_fifty_killed_commands_leave_their_episodes(tmp_path):
    rng, kept = np.random.default_rng(), 0
    for number in range(50):
        out = tmp_path / str(number)
        program = [sys.executable, "-m", "envpool_py.cli", *COLLECT.split(), "--out", str(out)]
        with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not (out / "metadata.json").exists():  # it has begun
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.5))
            process.kill()
        episodes = load(out)
        check_by_hand(episodes, [partial(gym.make, "CartPole-v1")] * 4, seed=3)
        kept += len(episodes) > 0
    assert kept > 10
