"""Every wrapper of gymnasium.wrappers.vector gives the same over ours as over SyncVectorEnv."""

import functools
import operator

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformAction, TransformObservation, TransformReward
from gymnasium.wrappers import vector as wrappers

from tests.gymnasium_face.envs import RandomEnv
from tests.gymnasium_face.test_equal_to_sync import NUM_ENVS, in_process
from tests.support.reference import same

PUSH = spaces.Box(-2, 2, (2,), np.float32)
SPACES = {
    "box": spaces.Box(-1, 1, (4,), np.float64),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
}
double = functools.partial(operator.mul, 2)
WRAPPERS = {
    "TransformObservation": ("box", {"func": double}),
    "VectorizeTransformObservation": (
        "box",
        {"wrapper": TransformObservation, "func": double, "observation_space": None},
    ),
    "FilterObservation": ("dict", {"filter_keys": ["a"]}),
    "FlattenObservation": ("dict", {}),
    "GrayscaleObservation": ("image", {}),
    "ResizeObservation": ("image", {"shape": (4, 4)}),
    "ReshapeObservation": ("box", {"shape": (2, 2)}),
    "RescaleObservation": ("box", {"min_obs": 0.0, "max_obs": 1.0}),
    "DtypeObservation": ("box", {"dtype": np.float32}),
    "NormalizeObservation": ("box", {}),
    "TransformAction": ("box", {"func": double}),
    "VectorizeTransformAction": (
        "box",
        {"wrapper": TransformAction, "func": double, "action_space": PUSH},
    ),
    "ClipAction": ("box", {}),
    "RescaleAction": ("box", {"min_action": -1.0, "max_action": 1.0}),
    "TransformReward": ("box", {"func": double}),
    "VectorizeTransformReward": ("box", {"wrapper": TransformReward, "func": double}),
    "ClipReward": ("box", {"min_reward": 0.2, "max_reward": 0.7}),
    "NormalizeReward": ("box", {}),
    "DictInfoToList": ("box", {}),
    "RecordEpisodeStatistics": ("box", {}),
    "HumanRendering": ("box", {}),
}
CONVERSIONS = {"ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"}
"""What needs torch or jax, which these tests do not import: they convert what they are given."""


def both(space, mode=AutoresetMode.NEXT_STEP):
    fns = [functools.partial(RandomEnv, SPACES[space], PUSH)] * NUM_ENVS
    return in_process(fns, mode), SyncVectorEnv(fns, autoreset_mode=mode)


@pytest.mark.parametrize("name", sorted({*wrappers.__all__} - {"RecordVideo", *CONVERSIONS}))
@pytest.mark.filterwarnings(
    "ignore:.*(autoreset|observation space|precision lowered).*:UserWarning"
)
def test_equal_over_ours(name, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    space, options = WRAPPERS[name]
    wrap = functools.partial(getattr(wrappers, name), **options)
    for mode in AutoresetMode:
        ours, theirs = both(space, mode)
        try:
            theirs = wrap(theirs)
        except (AssertionError, TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                wrap(ours)
            ours.close()
            continue
        ours = wrap(ours)
        theirs.action_space.seed(0)
        for attribute in ("observation_space", "action_space", "single_observation_space"):
            assert getattr(ours, attribute) == getattr(theirs, attribute)
        assert same(ours.metadata, theirs.metadata)
        assert same(ours.reset(seed=5), theirs.reset(seed=5))
        for _ in range(6 if name == "HumanRendering" else 20):
            actions = theirs.action_space.sample()
            got, expected = ours.step(actions.copy()), theirs.step(actions)  # some change them
            for info in (got[4], expected[4]):
                if "episode" in info:
                    del info["episode"]["t"]  # measured with a clock
            assert same(got, expected)
            over = expected[2] | expected[3]
            if mode is AutoresetMode.DISABLED and over.any():
                # Gymnasium's own envs drop the mask from the dict, so that this wrapper of theirs
                # takes the reset of some envs for one of all.
                if name == "RecordEpisodeStatistics":
                    over[:] = True
                mine, other = ({"reset_mask": over.copy()} for _ in range(2))
                assert same(ours.reset(options=mine), theirs.reset(options=other))
        ours.close()
        theirs.close()


def test_the_statistics_of_a_partial_reset():
    ours = wrappers.RecordEpisodeStatistics(both("box", AutoresetMode.DISABLED)[0])
    ours.reset(seed=0)
    total = ours.step(ours.action_space.sample())[1]
    ours.reset(options={"reset_mask": np.array([True, False, False])})
    assert ours.episode_returns.tolist() == [0.0, *total[1:]]
    ours.close()


def test_record_video(tmp_path):
    frames = []
    for k, envs in enumerate(both("box")):
        video = wrappers.RecordVideo(envs, str(tmp_path / str(k)), episode_trigger=bool)
        video.reset(seed=0)
        envs.set_attr("level", [1, 2, 3])
        frames.append([])
        for _ in range(20):
            video.step(np.zeros((NUM_ENVS, 2), np.float32))
            frames[-1] += video.recorded_frames[-1:]
        video.close()
    assert same(*frames)
    assert len(frames[0]) >= 10
    names = [sorted(path.name for path in (tmp_path / str(k)).iterdir()) for k in range(2)]
    assert names[0] == names[1] != []
