"""Equal to Gymnasium's SyncVectorEnv, step by step: every space, autoreset mode and pool."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import RandomEnv
from tests.support import envs
from tests.support.reference import same

NUM_ENVS = 3
SPACES = {name: space() for name, space in envs.SPACES.items() if not name.startswith("box-")}
SPACES["scalar"] = spaces.Box(-1, 1, (), np.float32)
SPACES["tuple"] = spaces.Tuple(
    (envs.box("int16", (2,)), spaces.Tuple((spaces.Discrete(7, start=2),)))
)
SPACES["empty"] = spaces.Dict({})


def env_fns(space, action=None):
    return [functools.partial(RandomEnv, space, action)] * NUM_ENVS


def in_process(fns, mode, **options):
    """Make our envs without processes; `tests/backends` shows that these make no difference."""
    pool = DummyVectorEnv(fns, **VectorEnv.pool_options({"autoreset_mode": mode}))
    return VectorEnv(pool, **options)


def run(ours, theirs, steps=30):
    """Step both, compare everything, close ours, and return how many episodes ended."""
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
    assert ours.np_random_seed == theirs.np_random_seed
    ours.close()
    assert ours.pool.is_closed
    return ended


@pytest.mark.parametrize("name", SPACES)
def test_every_space_of_observations_and_actions(name):
    # Gymnasium's own envs cannot take the actions of an empty Dict.
    fns = env_fns(SPACES[name], None if name == "empty" else SPACES[name])
    for mode in AutoresetMode:
        theirs = SyncVectorEnv(fns, autoreset_mode=mode)
        ours = in_process(fns, mode, shared_memory=False)
        for attribute in ("num_envs", "metadata", "render_mode", "closed", "spec"):
            assert same(getattr(ours, attribute), getattr(theirs, attribute)), attribute
        for attribute in ("observation_space", "action_space"):
            assert getattr(ours, attribute) == getattr(theirs, attribute)
            single = f"single_{attribute}"
            assert getattr(ours, single) == getattr(theirs, single)
        assert run(ours, theirs) > 5


POOLS = {
    "plain": (DummyVectorEnv, {}),
    "shmem": (ShmemVectorEnv, {"context": "fork"}),
    "caller": (
        ShmemVectorEnv,
        {"context": "fork", "num_processes": 1, "caller_steps": True, "columns": True},
    ),
    "spawn": (ShmemVectorEnv, {"context": "spawn", "num_processes": 1}),
    "forkserver": (ShmemVectorEnv, {"context": "forkserver", "num_processes": 1}),
}


@pytest.mark.parametrize("pool", POOLS)
def test_over_any_pool(pool):
    make, options = POOLS[pool]
    for name, mode, copy in (
        ("one-of", AutoresetMode.SAME_STEP, True),
        ("dict", AutoresetMode.NEXT_STEP, False),
    ):
        fns = env_fns(SPACES[name])
        ours = VectorEnv(make(fns, autoreset_mode=mode, **options), copy=copy)
        assert ours.metadata["autoreset_mode"] is mode
        assert run(ours, SyncVectorEnv(fns, autoreset_mode=mode)) > 5


def test_vector_rewards_that_no_space_declares():
    fns = [functools.partial(envs.VectorRewardEnv, tag) for tag in range(NUM_ENVS)]
    ours, by_hand = in_process(fns, AutoresetMode.NEXT_STEP), [fn() for fn in fns]
    ours.reset()
    for env in by_hand:
        env.reset()
    for timeout in (20, None):
        ours.step_async([0] * NUM_ENVS)
        rewards = ours.step_wait(timeout)[1]
        np.testing.assert_array_equal(rewards, [env.step(0)[1] for env in by_hand], strict=True)
    ours.close()


def test_a_batch_is_the_callers_own_with_copy_alone():
    ours = VectorEnv(env_fns(SPACES["scalar"]), context="fork")
    first = ours.reset(seed=0)[0]
    kept = first.copy()
    first += 5
    masked = ours.reset(options={"reset_mask": np.array([False, False, True])})[0]
    assert same(masked[:2], kept[:2])
    held = ours.step([0, 0, 0])
    copies = [part.copy() for part in held[:4]]
    ours.step([0, 0, 0])
    assert all(map(same, held[:4], copies))
    ours.close()
    ours = VectorEnv(env_fns(SPACES["scalar"]), copy=False, context="fork")
    ours.reset(seed=0)
    view = ours.step([0, 0, 0])[0]
    assert np.shares_memory(view, ours.step([0, 0, 0])[0])
    del view
    ours.close()
