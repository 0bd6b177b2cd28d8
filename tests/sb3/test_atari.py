"""Finding 19: Atari wrappers, results of monitors and old gym envs, against Stable-Baselines3's."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import ale_py  # noqa: F401 - registers the games
import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.atari_wrappers as theirs
import stable_baselines3.common.env_util as sb3_env_util
import stable_baselines3.common.monitor as sb3_monitor
from gymnasium import spaces
from pandas.testing import assert_frame_equal

import envpool_py.sb3 as own
import envpool_py.sb3.common.atari_wrappers as ours
from envpool_py.sb3.common import monitor
from envpool_py.sb3.common.env_util import make_atari_env
from envpool_py.sb3.common.vec_env.patch_gym import _convert_space, _patch_env
from tests.sb3.reference import assert_same, walk_together


class Lives(gym.Env):
    """Like an Atari game: it loses lives, waits for FIRE, and ends at any time."""

    observation_space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, meanings: tuple[str, ...] = ("NOOP", "FIRE", "UP", "DOWN")) -> None:
        self.meanings = meanings
        self.ale = types.SimpleNamespace(lives=lambda: self.lives)

    def get_action_meanings(self) -> list[str]:
        return list(self.meanings)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.lives, self.options = 3, options
        return self._obs(), {"from": "reset"}

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (12, 10, 3), np.uint8)

    def step(self, action: Any) -> tuple:
        drawn = self.np_random.random()
        self.lives -= self.lives > 0 and drawn < 0.1
        reward = float(action) * 3 - 2
        is_over = self.lives == 0 and 0.1 < drawn < 0.5  # it goes on for some frames without a life
        return self._obs(), reward, is_over, drawn > 0.97, {"action": int(action)}


def walk(env: gym.Env, steps: int = 150) -> list[Any]:
    """Everything that the env returns in many episodes."""
    rng = np.random.default_rng(0)
    rows: list[Any] = [env.reset(seed=5)]
    for _ in range(steps):
        row = env.step(int(rng.integers(env.action_space.n)))
        rows.append([np.asarray(row[0]), *row[1:]])
        if row[2] or row[3]:
            rows.append(env.reset())
    return rows


WRAPPERS: dict[str, dict[str, Any]] = {
    "StickyActionEnv": {"action_repeat_probability": 0.4},
    "NoopResetEnv": {"noop_max": 9},
    "FireResetEnv": {},
    "EpisodicLifeEnv": {},
    "MaxAndSkipEnv": {},
    "MaxAndSkipEnv, one": {"skip": 1},
    "ClipRewardEnv": {},
    "WarpFrame": {"width": 8, "height": 6},
    "AtariWrapper": {},
    "AtariWrapper, other": {
        "noop_max": 0,
        "frame_skip": 1,
        "screen_size": 8,
        "terminal_on_life_loss": False,
        "clip_reward": False,
        "action_repeat_probability": 0.25,
    },
}


@pytest.mark.parametrize("case", WRAPPERS)
def test_wrappers_return_the_same(case: str) -> None:
    name = case.split(",", maxsplit=1)[0]
    envs = [getattr(module, name)(Lives(), **WRAPPERS[case]) for module in (ours, theirs)]
    assert envs[0].observation_space == envs[1].observation_space
    rows = [walk(env) for env in envs]
    assert len(rows[0]) > 155
    assert_same(rows[0], rows[1])


def test_make_atari_env(monkeypatch: pytest.MonkeyPatch) -> None:
    kwargs: dict[str, Any] = {"wrapper_kwargs": {"screen_size": 20}, "monitor_kwargs": {}}
    venvs = [
        make("BreakoutNoFrameskip-v4", 2, seed=3, **kwargs)
        for make in (make_atari_env, sb3_env_util.make_atari_env)
    ]
    assert venvs[0].observation_space.shape == (20, 20, 1)
    walk_together(*venvs, steps=30)
    for venv in venvs:
        venv.close()
    # A worker process that is spawned must register the games itself.
    options = {"vec_env_cls": own.SubprocVecEnv, "vec_env_kwargs": {"start_method": "spawn"}}
    venv = make_atari_env("BreakoutNoFrameskip-v4", **options)
    assert venv.reset().shape == (1, 84, 84, 1)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"ale_py.*envpool-py\[atari\]"):
        make_atari_env("BreakoutNoFrameskip-v4")


@pytest.mark.parametrize(
    ("name", "meanings"),
    [
        ("StickyActionEnv", ("FIRE", "NOOP")),
        ("NoopResetEnv", ("FIRE", "NOOP")),
        ("FireResetEnv", ("NOOP", "UP", "FIRE")),
        ("FireResetEnv", ("NOOP", "FIRE")),
    ],
)
def test_games_without_the_action(name: str, meanings: tuple[str, ...]) -> None:
    kwargs = {"action_repeat_probability": 0.1} if name == "StickyActionEnv" else {}
    for module in (ours, theirs):
        with pytest.raises(AssertionError):
            getattr(module, name)(Lives(meanings), **kwargs)
    with pytest.raises(AssertionError):
        ours.WarpFrame(gym.make("FrozenLake-v1"))


def test_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"envpool-py\[atari\]"):
        ours.WarpFrame(Lives())


def test_results_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path)
    for module in (monitor, sb3_monitor):
        with pytest.raises(module.LoadMonitorResultsError):
            module.load_results(folder)
    monitor.ResultsWriter(str(tmp_path / "empty"), {"t_start": 1e9}).close()
    assert_frame_equal(monitor.load_results(folder), sb3_monitor.load_results(folder))
    for name in ("a", "b"):
        env = monitor.Monitor(Lives(), str(tmp_path / name), info_keywords=("action",))
        walk(env, 60)
        env.close()
    found = monitor.load_results(folder)
    assert len(found) > 4
    assert_frame_equal(found, sb3_monitor.load_results(folder))
    files = monitor.get_monitor_files(folder)
    assert sorted(files) == sorted(sb3_monitor.get_monitor_files(folder))
    assert len(files) == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas.*envpool-py\[sb3\]"):
        monitor.load_results(folder)


def test_old_envs_are_converted_by_shimmy(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldEnv:
        def __init__(self, reset: Any) -> None:
            self.unwrapped = types.SimpleNamespace(reset=reset)

    env, space = Lives(), spaces.Discrete(2)
    assert _patch_env(env) is env
    assert _convert_space(space) is space
    old = [OldEnv(lambda seed: seed), OldEnv(lambda: None)]
    for convert, value in ((_patch_env, old[0]), (_convert_space, "space")):
        with pytest.raises(ValueError, match="but a gymnasium"):
            convert(value)
    monkeypatch.setitem(sys.modules, "gym", types.SimpleNamespace(Env=OldEnv, Space=str))
    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ImportError, match="needs Shimmy"):
        _patch_env(old[0])
    shimmy = types.SimpleNamespace(
        GymV26CompatibilityV0=lambda env: ("26", env),
        GymV21CompatibilityV0=lambda env: ("21", env),
        openai_gym_compatibility=types.SimpleNamespace(_convert_space=lambda space: ("s", space)),
    )
    monkeypatch.setitem(sys.modules, "shimmy", shimmy)
    with pytest.warns(UserWarning, match="converted by Shimmy"):
        assert [_patch_env(each) for each in old] == [("26", old[0]), ("21", old[1])]
    with pytest.warns(UserWarning, match="converted by Shimmy"):
        assert _convert_space("space") == ("s", "space")
