"""Every wrapper of gymnasium.wrappers.vector gives the same over ours as over SyncVectorEnv."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformAction, TransformObservation, TransformReward
from gymnasium.wrappers import vector as wrappers

from tests.gymnasium_face.envs import RandomEnv, equal
from tests.gymnasium_face.test_equal_to_sync import in_process

if TYPE_CHECKING:
    from pathlib import Path

NUM_ENVS = 3
BOX = spaces.Box(-1, 1, (4,), np.float64)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
PUSH = spaces.Box(-2, 2, (2,), np.float32)

WRAPPERS: dict[str, tuple[gym.Space, Any]] = {
    "TransformObservation": (BOX, lambda e: wrappers.TransformObservation(e, lambda obs: obs * 2)),
    "VectorizeTransformObservation": (
        BOX,
        lambda e: wrappers.VectorizeTransformObservation(
            e, TransformObservation, func=lambda obs: obs + 1, observation_space=None
        ),
    ),
    "FilterObservation": (DICT, lambda e: wrappers.FilterObservation(e, ["a"])),
    "FlattenObservation": (DICT, wrappers.FlattenObservation),
    "GrayscaleObservation": (IMAGE, wrappers.GrayscaleObservation),
    "ResizeObservation": (IMAGE, lambda e: wrappers.ResizeObservation(e, (4, 4))),
    "ReshapeObservation": (BOX, lambda e: wrappers.ReshapeObservation(e, (2, 2))),
    "RescaleObservation": (BOX, lambda e: wrappers.RescaleObservation(e, 0.0, 1.0)),
    "DtypeObservation": (BOX, lambda e: wrappers.DtypeObservation(e, np.float32)),
    "NormalizeObservation": (BOX, wrappers.NormalizeObservation),
    "TransformAction": (BOX, lambda e: wrappers.TransformAction(e, lambda a: a / 2)),
    "VectorizeTransformAction": (
        BOX,
        lambda e: wrappers.VectorizeTransformAction(
            e, TransformAction, func=lambda a: a / 2, action_space=PUSH
        ),
    ),
    "ClipAction": (BOX, wrappers.ClipAction),
    "RescaleAction": (BOX, lambda e: wrappers.RescaleAction(e, -1.0, 1.0)),
    "TransformReward": (BOX, lambda e: wrappers.TransformReward(e, lambda r: r * 3)),
    "VectorizeTransformReward": (
        BOX,
        lambda e: wrappers.VectorizeTransformReward(e, TransformReward, func=lambda r: r * 3),
    ),
    "ClipReward": (BOX, lambda e: wrappers.ClipReward(e, 0.2, 0.7)),
    "NormalizeReward": (BOX, wrappers.NormalizeReward),
    "DictInfoToList": (BOX, wrappers.DictInfoToList),
    "RecordEpisodeStatistics": (BOX, wrappers.RecordEpisodeStatistics),
    "HumanRendering": (BOX, wrappers.HumanRendering),
}
CONVERSIONS = {"ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
"""What needs torch or jax, which these tests do not import: they convert what they are given."""


def test_no_wrapper_is_left_out() -> None:
    assert {*WRAPPERS, "RecordVideo", *CONVERSIONS} == set(wrappers.__all__)


def both(space: gym.Space, mode: AutoresetMode) -> tuple[Any, Any]:
    fns = [functools.partial(RandomEnv, space, PUSH)] * NUM_ENVS
    return in_process(fns, mode), SyncVectorEnv(fns, autoreset_mode=mode)


def without_times(batch: tuple) -> tuple:
    """Leave out what RecordEpisodeStatistics measures with a clock."""
    if isinstance(batch[-1], dict) and "episode" in batch[-1]:
        del batch[-1]["episode"]["t"]
    return batch


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.filterwarnings(
    "ignore:.*(autoreset|observation space|precision lowered).*:UserWarning"
)
def test_equal_over_ours(name: str, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    space, wrap = WRAPPERS[name]
    ours, theirs = both(space, mode)
    try:
        theirs = wrap(theirs)
    except (AssertionError, TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            wrap(ours)
        ours.close()
        return
    ours = wrap(ours)
    theirs.action_space.seed(0)
    for attribute in ("observation_space", "action_space", "single_observation_space"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    assert equal(ours.metadata, theirs.metadata)
    assert equal(ours.reset(seed=5), theirs.reset(seed=5))
    for _ in range(6 if name == "HumanRendering" else 40):
        actions = theirs.action_space.sample()
        # A wrapper may change its argument.
        got, expected = ours.step(actions.copy()), theirs.step(actions)
        assert equal(without_times(got), without_times(expected))
        over = expected[2] | expected[3]
        if mode is AutoresetMode.DISABLED and over.any():
            mine, other = ({"reset_mask": over.copy()} for _ in range(2))
            # Gymnasium's own envs drop the mask from the dict, so that this wrapper of theirs
            # takes the reset of some envs for one of all.
            if name == "RecordEpisodeStatistics":
                mine = {}
                ours.reset(options=mine)
                theirs.reset(options={})
            else:
                assert equal(ours.reset(options=mine), theirs.reset(options=other))
    ours.close()
    theirs.close()


def test_the_statistics_of_a_partial_reset() -> None:
    ours, theirs = both(BOX, AutoresetMode.DISABLED)
    theirs.close()
    ours = wrappers.RecordEpisodeStatistics(ours)
    ours.reset(seed=0)
    total = ours.step(ours.action_space.sample())[1]
    ours.reset(options={"reset_mask": np.array([True, False, False])})
    assert ours.episode_returns.tolist() == [0.0, *total[1:]]
    ours.close()


def test_record_video(tmp_path: Path) -> None:
    frames: list[list[np.ndarray]] = []
    for k, envs in enumerate(both(BOX, AutoresetMode.NEXT_STEP)):
        video = wrappers.RecordVideo(envs, str(tmp_path / str(k)), episode_trigger=bool)
        video.reset(seed=0)
        envs.set_attr("level", [1, 2, 3])
        frames.append([])
        for _ in range(20):
            video.step(np.zeros((NUM_ENVS, 2), np.float32))
            frames[-1] += video.recorded_frames[-1:]
        assert len(frames[-1]) >= 10
        video.close()
    assert all(map(equal, *frames))
    assert len(frames[0]) == len(frames[1])
    names = [sorted(path.name for path in (tmp_path / str(k)).iterdir()) for k in range(2)]
    assert names[0] == names[1] != []
