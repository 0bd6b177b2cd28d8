"""The benchmark of PettingZoo envs: every driver makes the steps that it says."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from envpool_py.bench import games, measure
from envpool_py.bench.contestants import AGENT_CONTESTANTS, BY_NAME, OURS
from envpool_py.bench.games import GAMES
from envpool_py.bench.job import Job
from envpool_py.bench.report import read
from envpool_py.cli import main
from tests.support.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Those that the tests ask for. SuperSuit and AgileRL are checked in the same way by hand, where
# they are installed: python -m tests.pettingzoo.counting LIBRARY
INSTALLED = [OURS] + (["tianshou"] if sys.version_info >= (3, 11) else [])
LEFT_OUT = {"tianshou-turns-shmem"}  # it fails, and the table says so


@pytest.mark.parametrize("library", INSTALLED)
def test_drivers_make_the_steps_that_they_say(library: str) -> None:
    # In a process of its own: peers leave descriptors open.
    done = subprocess.run(
        [sys.executable, "-m", "tests.pettingzoo.counting", library],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = {each.name for each in AGENT_CONTESTANTS if each.library == library}
    assert set(done.stdout.split()) == names - LEFT_OUT


@pytest.mark.parametrize("game", sorted(GAMES))
def test_every_game_with_every_pool_of_ours(game: str) -> None:
    names = [each.name for each in AGENT_CONTESTANTS if each.library == OURS]
    for name in ["bare", *names]:
        if name == "bare" or BY_NAME[name].plays in games.faces(game):
            measured = measure.measure(Job(name, game, 2, None, 2, 0.0))
            assert measured.steps >= 1
            assert measured.startup_seconds > 0


@pytest.mark.parametrize(
    ("game", "face", "shape"),
    [("spread", "parallel", (4, 3)), ("spread", "turns", (4,)), ("tictactoe", "turns", (4,))],
)
def test_actions_are_the_same_every_time(game: str, face: str, shape: tuple) -> None:
    one, two = (games.draw_actions(game, face, 4) for _ in range(2))
    assert all(batch.shape == shape for batch in one)
    assert [batch.tolist() for batch in one] == [batch.tolist() for batch in two]


@pytest.mark.parametrize("game", ["spread", "tictactoe"])
def test_the_bare_env_goes_from_episode_to_episode(game: str) -> None:
    face = games.faces(game)[0]
    running = games.bare(game, face, games.draw_actions(game, face, 2))
    width = 3 if game == "spread" else 1
    steps = [running.advance() for _ in range(8)]
    running.close()
    assert all(number >= width and number % width == 0 for number in steps)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    argv: list[Any] = ["bench", "--workload", "tictactoe", "--num-envs", 2, "--repeats", 1]
    argv += ["--seconds", 0.02, "--backend", "turns-dummy", "--json", file]
    assert main([*map(str, argv)]) == 0
    assert "tic-tac-toe, steps of agents, x 2" in capsys.readouterr().out
    results = read(file).results
    assert [each.contestant for each in results] == ["bare", "turns-dummy"]
    assert all(each.measurement and each.measurement.steps for each in results)
