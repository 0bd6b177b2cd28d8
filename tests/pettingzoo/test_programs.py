"""Whole programs: the examples, ``envpool-py collect``, and what an import brings."""

import importlib
import re
import runpy
import sys

import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.collector import load
from tests.pettingzoo.envs import make_aec
from tests.support.helpers import ROOT, run_python
from tests.support.reference import alike as same

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
def test_example(line, last, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", line.split())
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else it keeps a thread
    runpy.run_path(str(ROOT / "examples" / f"{sys.argv[0]}.py"), run_name="__main__")
    assert re.match(last, capsys.readouterr().out.splitlines()[-1])


def collect(name, path, *more):
    args = ["--episodes", "7", "--num-envs", "3", "--seed", "5", "--out", str(path), *more]
    assert main(["collect", name, *args]) == 0
    return list(load(path))


def test_collected_episodes_are_those_of_the_raw_env(tmp_path):
    episodes = collect("classic/connect_four-v3", tmp_path / "a.npz")
    assert len(episodes) == 7
    raw = make_aec("classic/connect_four-v3")
    for episode in episodes:
        raw.reset()
        for t, action in enumerate(episode.actions):
            obs = raw.last()[0]
            assert str(episode.observations["agent_id"][t]) == raw.agent_selection
            assert same(np.asarray(episode.observations["obs"][t]), obs["observation"])
            assert obs["action_mask"][action], "a random action is a legal one"
            raw.step(int(action))
            assert episode.rewards[t].tolist() == [raw.rewards[a] for a in raw.possible_agents]
        assert all(raw.terminations.values())
        assert episode.terminated.tolist()[-1]
    # They depend on the seed alone, and not on which envs are in a batch.
    more = ["--wait-num", "1", "--num-processes", "1"]
    again = collect("classic/connect_four-v3", tmp_path / "b.npz", *more)
    both = [sorted(list(map(int, one.actions)) for one in own) for own in (episodes, again)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("name", "more", "status", "text"),
    [
        ("mpe2.simple_spread_v3", (), 0, "episodes"),
        ("mpe2:simple_adversary_v3", (), 0, "episodes"),
        ("butterfly/pistonball-v6", (), 0, "episodes"),
        ("mpe2.simple_adversary_v3", ("--out", "a.npz"), 2, "SpaceOfSomeAgent"),
        ("classic/tictactoe-v99", (), 2, "no env is named 'classic/tictactoe-v99'"),
    ],
)
def test_names(name, more, status, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = ["--episodes", "1", "--num-envs", "1", "--env-kwarg", "max_cycles=4", *more]
    assert main(["collect", name, *args]) == status
    assert text in capsys.readouterr()[status // 2]


def test_an_import_brings_pettingzoo_alone(monkeypatch):
    brought = run_python("-c", "import sys, envpool_py.pettingzoo; print(*sys.modules)").split()
    top = {name.split(".")[0] for name in brought}
    assert "pettingzoo" in top
    assert not top & {"stable_baselines3", "torch", "tianshou", "pygame", "ray"}
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "envpool_py.pettingzoo")
    text = r'PettingZoo is missing; pip install "envpool_py\[pettingzoo\]"'
    with pytest.raises(ImportError, match=text):
        importlib.import_module("envpool_py.pettingzoo")
