"""A wrapper of gymnasium.wrappers.vector over ours."""

import functools

import numpy as np
from gymnasium.wrappers import vector as wrappers

from tests.gymnasium_face.envs import in_process
from tests.support.envs import CountEnv


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
