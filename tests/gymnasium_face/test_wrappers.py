"""Wrappers of gymnasium.wrappers.vector give the same over ours as over SyncVectorEnv."""

import functools
import operator

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from gymnasium.wrappers import vector as wrappers

from tests.gymnasium_face.envs import NUM_ENVS, RandomEnv, in_process
from tests.support.envs import CountEnv
from tests.support.reference import same

PUSH = spaces.Box(-2, 2, (2,), np.float32)
VECTORS = spaces.Box(-1, 1, (4,), np.float64)
DOUBLE = functools.partial(operator.mul, 2)
WRAPPERS = {
    "DictInfoToList": {},
    "HumanRendering": {},
    "NormalizeObservation": {},
    "RecordEpisodeStatistics": {},
    "RecordVideo": {"video_folder": "videos", "step_trigger": (1).__eq__, "video_length": 2},
    "RescaleAction": {"min_action": -1.0, "max_action": 1.0},
    "TransformReward": {"func": DOUBLE},
    "VectorizeTransformObservation": {
        "wrapper": TransformObservation,
        "observation_space": None,
        "func": DOUBLE,
    },
}
"""One of each kind: of infos, frames, statistics, actions, rewards and single observations."""


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.filterwarnings("ignore:.*(auto-?reset|observation space|precision|videos):UserWarning")
def test_equal_over_ours(name, monkeypatch, tmp_path):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.chdir(tmp_path)
    wrap = functools.partial(getattr(wrappers, name), **WRAPPERS[name])
    fns = [functools.partial(RandomEnv, VECTORS, PUSH)] * NUM_ENVS
    for mode in AutoresetMode:
        ours, theirs = in_process(fns, mode), SyncVectorEnv(fns, autoreset_mode=mode)
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


def test_statistics_are_read_before_a_reset_of_some_envs():
    """As docs/gymnasium.md says: our reset leaves the mask in the dict, where the wrapper finds it.

    SyncVectorEnv takes it out of the dict, and the wrapper then starts all counts from zero.
    """
    fns = [functools.partial(CountEnv, tag, length) for tag, length in enumerate((2, 3))]
    envs = in_process(fns, "Disabled")
    envs = wrappers.RecordEpisodeStatistics(envs, stats_key="stats")
    envs.reset()
    found = []
    for _ in range(12):
        _, _, terminated, truncated, infos = envs.step(np.zeros(2, np.int64))
        over = terminated | truncated
        if over.any():
            assert infos["_stats"].tolist() == over.tolist()
            found += [(i, int(infos["stats"]["l"][i])) for i in np.flatnonzero(over).tolist()]
            envs.reset(options={"reset_mask": over})
            assert not infos["_stats"].any()  # too late: the wrapper has cleared it
    envs.close()
    assert sorted(found) == [(0, 2)] * 6 + [(1, 3)] * 4
