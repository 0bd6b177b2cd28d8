"""``envpool-py collect`` with PettingZoo's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.collector import load
from tests.pettingzoo.places import make_aec
from tests.support.reference import alike as same


def collect(name: str, path: Path, *more: str) -> Any:
    args = ["--episodes", "7", "--num-envs", "3", "--seed", "5", "--out", str(path), *more]
    assert main(["collect", name, *args]) == 0
    return load(path)


def test_episodes_are_those_of_the_raw_env(tmp_path: Path, capsys: Any) -> None:
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
    assert "7" in capsys.readouterr().out


def test_it_depends_on_the_seed_alone(tmp_path: Path) -> None:
    def actions(*more: str) -> list[list[int]]:
        found = collect("classic/tictactoe-v3", tmp_path / f"{len(more)}.npz", *more)
        return sorted(list(map(int, episode.actions)) for episode in found)

    assert actions() == actions("--wait-num", "1", "--num-processes", "1")


@pytest.mark.parametrize(
    "name", ["mpe2.simple_spread_v3", "mpe2:simple_adversary_v3", "butterfly/pistonball-v6"]
)
def test_other_names(name: str, capsys: Any) -> None:
    args = ["--episodes", "1", "--num-envs", "1", "--env-kwarg", "max_cycles=4"]
    assert main(["collect", name, *args]) == 0
    assert "episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mpe2.simple_adversary_v3", "SpaceOfSomeAgent"),
        ("classic/tictactoe-v99", "no env is named 'classic/tictactoe-v99'"),
    ],
)
def test_what_cannot_be_collected(name: str, text: str, tmp_path: Path, capsys: Any) -> None:
    args = ["--episodes", "1", "--num-envs", "1", "--out", str(tmp_path / "a.npz")]
    assert main(["collect", name, *args]) == 2
    assert text in capsys.readouterr().err
