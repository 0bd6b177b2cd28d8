"""Equal to Gymnasium's SyncVectorEnv, step by step: every space and autoreset mode."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import NUM_ENVS, RandomEnv, in_process
from tests.support import envs
from tests.support.places import paired
from tests.support.reference import same

SPACES = {name: space() for name, space in envs.SPACES.items() if not name.startswith("box-")}
SPACES["scalar"] = spaces.Box(-1, 1, (), np.float32)
SPACES["tuple"] = spaces.Tuple(
    [envs.box("int16", (2,)), spaces.Tuple([spaces.Discrete(7, start=2)])]
)
SPACES["empty"] = spaces.Dict({})


def run(ours, theirs, steps=18):
    """Step both, compare everything, and close ours; some episodes must end."""
    mode = theirs.metadata["autoreset_mode"]
    rng = np.random.default_rng(0)
    theirs.action_space.seed(0)
    assert same(ours.reset(seed=3), theirs.reset(seed=3))
    ended = 0
    for step in range(steps):
        actions = theirs.action_space.sample()
        expected = theirs.step(actions)
        if step % 2:
            ours.step_async(actions)
            got = ours.step_wait(timeout=20 if step % 4 == 1 else None)
        else:
            got = ours.step(actions)
        assert same(got, expected), (step, got, expected)
        over = expected[2] | expected[3]
        ended += int(over.sum())
        mask = rng.random(NUM_ENVS) < 0.1
        if mode is AutoresetMode.DISABLED:
            mask |= over
        if mask.any():
            seed = [int(rng.integers(99)), None, 7] if rng.random() < 0.5 else None
            told = {"reset_mask": mask} | ({"a": 1} if rng.random() < 0.5 else {})
            mine = dict(told)
            assert same(ours.reset(seed=seed, options=mine), theirs.reset(seed=seed, options=told))
            assert mine.keys() >= {"reset_mask"}, "the caller's dict was changed"
    assert same(ours.reset(options={"b": 2}), theirs.reset(options={"b": 2}))
    assert same(ours.render(), theirs.render())
    assert ours.np_random_seed == theirs.np_random_seed
    ours.close()
    assert ours.pool.is_closed
    assert ended > 5


@pytest.mark.parametrize(("name", "mode"), paired([*SPACES], [*AutoresetMode]))
def test_every_space_of_observations_and_actions(name, mode):
    # Gymnasium's own envs cannot take the actions of an empty Dict.
    action = None if name == "empty" else SPACES[name]
    fns = [functools.partial(RandomEnv, SPACES[name], action)] * NUM_ENVS
    theirs = SyncVectorEnv(fns, autoreset_mode=mode)
    ours = in_process(fns, mode, shared_memory=False)
    for attribute in ("num_envs", "metadata", "render_mode", "closed", "spec"):
        assert same(getattr(ours, attribute), getattr(theirs, attribute)), attribute
    for attribute in ("observation_space", "action_space"):
        for each in (attribute, f"single_{attribute}"):
            assert getattr(ours, each) == getattr(theirs, each)
    run(ours, theirs)
    assert "autoreset_mode" not in RandomEnv.metadata


def test_vector_rewards():
    fns = [functools.partial(envs.VectorRewardEnv, tag) for tag in range(NUM_ENVS)]
    ours, by_hand = in_process(fns), [fn() for fn in fns]
    for env in (ours, *by_hand):
        env.reset()
    for timeout in (20, None):
        ours.step_async([0] * NUM_ENVS)
        assert same(ours.step_wait(timeout)[1], np.array([env.step(0)[1] for env in by_hand]))
    ours.close()


def test_a_batch_is_the_callers_own_with_copy_alone():
    fns = [functools.partial(RandomEnv, SPACES["scalar"])] * NUM_ENVS
    for copy in (True, False):
        ours = VectorEnv(fns, context="fork", copy=copy)
        first = ours.reset(seed=0)[0]
        if copy:
            kept = first.copy()
            first += 5
            masked = ours.reset(options={"reset_mask": np.array([False, False, True])})[0]
            assert same(masked[:2], kept[:2])
        held = ours.step([0, 0, 0])
        copies = [part.copy() for part in held[:4]]
        ours.step([0, 0, 0])
        assert same(held[0], copies[0]) == copy
        assert all(map(same, held[1:4], copies[1:]))
        del first, held  # views of the pool's memory
        ours.close()
