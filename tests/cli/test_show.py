"""``envpool-py show``: episodes, steps, restarts and errors of a record; any terminal, any file."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py.collector import Episode, load, save
from tests.faults.helpers import MODES
from tests.support import envs
from tests.support.helpers import ROOT

ENDS = np.array([False, True]), np.zeros(2, bool)
EPISODE = Episode(0, 0, None, None, np.zeros(3, int), np.zeros(2, int), np.ones(2), *ENDS)
SPACES = spaces.Discrete(2), spaces.Discrete(2)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_is_no_step(mode, tmp_path, cli):
    path = tmp_path / "a.record"
    env_fns = [partial(envs.CountEnv, 0, 3)]
    with DummyVectorEnv(env_fns, autoreset_mode=mode, record=path) as pool:
        pool.reset()
        while len(lengths := json.loads(cli(f"show {path} --json -").out)["lengths"]) < 3:
            _, _, terminated, truncated, _ = pool.step([0])
            if mode is None and (terminated | truncated)[0]:
                pool.reset()
    assert lengths == [3, 3, 3]
    assert "is a record, and is not overwritten" in cli(f"show {path} --json {path}").err
    assert json.loads(cli(f"show {path} --json -").out)["steps"] == 9


@pytest.mark.parametrize("fault", ["value", "os._exit"])
def test_restarts_are_those_that_collect_counts(fault, tmp_path, cli):
    path = tmp_path / "a.record"
    env = f"tests.cli.parts:failing --env-kwarg fault={fault}"
    # One env: of others, a restart might be under way at the end, or not be reported yet.
    limits = "--num-envs 1 --episodes 8 --num-processes 1 --seed 1"
    ended = cli(f"collect {env} {limits} --on-error restart --record {path} --out {tmp_path}/a")
    assert ended.status == 0
    found = json.loads(cli(f"show {path} --json -").out)
    assert found["restarts"] == len(found["errors"]) == int(ended.table()["restarts"][0]) > 0
    failed = json.loads(cli(f"show {tmp_path}/a --json -").out)["failed"]
    assert ended.table()["failed"] == [f"{failed}; return and length include them"]
    assert failed == load(tmp_path / "a").failed.sum() > 0


def test_no_episodes_and_letters_that_the_terminal_lacks(tmp_path, cli):
    path = tmp_path / "a"
    save(path, [], *SPACES)
    assert json.loads(cli(f"show {path} --json -").out)["returns"] == []
    save(path, [EPISODE], *SPACES, {"env_id": "Gr\u00f6\u00dfe-v0"})
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-m", "envpool_py", "show", str(path)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"Gr\xf6\xdfe-v0" in done.stdout


def test_a_damaged_file_is_named(tmp_path, cli):
    path = tmp_path / "a"
    save(path, [EPISODE], *SPACES)
    (path / "rewards.npy").unlink()
    ended = cli(f"show {path}")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith(f"envpool-py: {path}: damaged: ")
