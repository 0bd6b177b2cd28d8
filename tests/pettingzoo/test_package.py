"""The sub-package as a whole: its names, what it imports, and processes that are not forked."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from envpool_py import ShmemVectorEnv
from envpool_py.pettingzoo import ParallelVectorEnv, PettingZooEnv
from tests.pettingzoo.envs import MeadowEnv
from tests.pettingzoo.places import make_aec
from tests.support.helpers import ROOT
from tests.support.reference import alike as same


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_pettingzoo_the_extra_is_named() -> None:
    done = run("import sys; sys.modules['pettingzoo'] = None; import envpool_py.pettingzoo")
    assert done.returncode == 1
    assert 'PettingZoo is missing; pip install "envpool_py[pettingzoo]"' in done.stderr


def test_it_brings_neither_torch_nor_its_algorithms() -> None:
    done = run("import sys, envpool_py.pettingzoo; print(*sys.modules)")
    top = {name.split(".")[0] for name in done.stdout.split()}
    assert "pettingzoo" in top
    assert not top & {"stable_baselines3", "torch", "tianshou", "pygame", "ray"}


def turns() -> Any:
    return PettingZooEnv(make_aec("table"))


def test_processes_that_are_not_forked() -> None:
    with ShmemVectorEnv([turns] * 2, context="spawn", num_processes=1) as pool:
        obs, _ = pool.reset(seed=1)
        assert obs[0]["agent_id"] == "player_0"
        assert pool.action_space[1]("player_3").n == 5
    with ParallelVectorEnv([MeadowEnv] * 2, context="forkserver", num_processes=1) as pool:
        obs, _ = pool.reset(seed=1)
        assert same(obs["hunter_1"][1], MeadowEnv().reset(seed=2)[0]["hunter_1"])
