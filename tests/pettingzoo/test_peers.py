"""PettingZoo's tests, the examples, the command line, and an import."""

import re
import sys
import warnings

import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.envs import KAZ, make_aec
from tests.support.helpers import run_python
from tests.support.reference import alike as same

with warnings.catch_warnings():
    # They import an env in the way of old, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, seed_test


@pytest.mark.parametrize("name", ["simple_adversary", KAZ, "classic/tictactoe-v3"])
def test_a_wrapped_env_is_a_pettingzoo_env(name):
    env = PettingZooEnv(make_aec(name), heterogeneous=True)
    api_test(env, num_cycles=30)
    seed_test(lambda: PettingZooEnv(make_aec(name), heterogeneous=True), num_cycles=30)


EXAMPLES = [
    # Others may end in the same batch as the sixth: eight envs at the most.
    ("knights_async --episodes 6", "([6-9]|1[0-3]) episodes; an agent lived"),
    ("spread_ppo --num-envs 8 --steps 300", "after: "),
]
if sys.version_info >= (3, 11):  # tianshou 2.0.1 asks for it
    program = "tictactoe_self_play --epochs 1 --epoch-steps 48 --games 20"
    EXAMPLES.append((program, "trained, the first player wins"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("line", "last"), EXAMPLES)
def test_example(line, last, run_example, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else it keeps a thread
    assert re.match(last, run_example(*line.split()).splitlines()[-1])


def test_collected_episodes_are_those_of_the_raw_env(tmp_path):
    bare = "pettingzoo.classic.connect_four.connect_four:raw_env"  # which an illegal move ends
    line = f"collect {bare} --episodes 7 --num-envs 3 --seed 5 --out {tmp_path / 'a'}"
    assert main(line.split()) == 0
    episodes = load(tmp_path / "a")
    assert len(episodes) == 7
    raw = make_aec("classic/connect_four-v3")
    for episode in episodes:
        raw.reset()
        for t, action in enumerate(episode.actions):
            obs = raw.last()[0]
            assert str(episode.obs["agent_id"][t]) == raw.agent_selection
            assert same(np.asarray(episode.obs["obs"][t]), obs["observation"])
            assert obs["action_mask"][action], "a random action is a legal one"
            raw.step(int(action))
            assert episode.rewards[t].tolist() == [raw.rewards[a] for a in raw.possible_agents]
        assert all(raw.terminations.values())
        assert episode.terminated[-1]


@pytest.mark.parametrize(
    ("name", "more", "status", "text"),
    [
        ("mpe2:simple_adversary_v3", "", 0, "episodes"),
        ("butterfly/pistonball-v6", "", 0, "episodes"),
        ("mpe2.simple_adversary_v3", "--out a", 2, "SpaceOfSomeAgent"),
        ("classic/tictactoe-v99", "", 2, "no env is named 'classic/tictactoe-v99'"),
    ],
)
def test_names(name, more, status, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"collect {name} --episodes 1 --num-envs 1 --env-kwarg max_cycles=4 {more}"
    assert main(line.split()) == status
    assert text in capsys.readouterr()[status // 2]


def test_an_import_brings_pettingzoo_alone():
    brought = run_python("-c", "import sys, envpool_py.pettingzoo; print(*sys.modules)").split()
    assert "pettingzoo" in brought
    assert not {"stable_baselines3", "torch", "tianshou", "pygame", "ray"}.intersection(brought)
