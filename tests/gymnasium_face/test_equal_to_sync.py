"""Equal to Gymnasium's SyncVectorEnv, step by step: every space, autoreset mode and backend."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import SPACES, RandomEnv, equal
from tests.support.envs import Cards, VectorRewardEnv

NUM_ENVS = 3
MODES = list(AutoresetMode)


def env_fns(space: gym.Space, action: gym.Space | None = None) -> list:
    return [functools.partial(RandomEnv, space, action)] * NUM_ENVS


def in_process(fns: list, mode: AutoresetMode) -> VectorEnv:
    """Make our envs without processes; `tests/backends` shows that these make no difference."""
    return VectorEnv(DummyVectorEnv(fns, **VectorEnv.pool_options({"autoreset_mode": mode})))


def run(ours: Any, theirs: Any, steps: int, *, parts: bool = False) -> int:
    """Step both, compare everything, and return how many episodes ended."""
    mode = theirs.metadata["autoreset_mode"]
    rng = np.random.default_rng(0)
    theirs.action_space.seed(0)
    assert equal(ours.reset(seed=3), theirs.reset(seed=3))
    ended = 0
    for step in range(steps):
        actions = theirs.action_space.sample()
        expected = theirs.step(actions)
        if parts and step % 2:
            ours.step_async(actions)
            got = ours.step_wait(timeout=20)
        else:
            got = ours.step(actions)
        assert equal(got, expected), (step, got, expected)
        over = expected[2] | expected[3]
        ended += int(over.sum())
        mask = rng.random(NUM_ENVS) < 0.1
        if mode is AutoresetMode.DISABLED:
            mask |= over
        if mask.any():
            seed = [int(rng.integers(99)), None, 7] if rng.random() < 0.5 else None
            told = {"reset_mask": mask} | ({"a": 1} if rng.random() < 0.5 else {})
            mine = dict(told)
            assert equal(ours.reset(seed=seed, options=mine), theirs.reset(seed=seed, options=told))
            assert mine.keys() >= {"reset_mask"}, "the caller's dict was changed"
    assert equal(ours.reset(options={"b": 2}), theirs.reset(options={"b": 2}))
    assert ours.np_random_seed == theirs.np_random_seed
    return ended


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_of_observations_and_actions(name: str, mode: AutoresetMode) -> None:
    # Gymnasium's own envs cannot take the actions of an empty Dict.
    fns = env_fns(SPACES[name], None if name == "empty" else SPACES[name])
    theirs = SyncVectorEnv(fns, autoreset_mode=mode)
    ours = in_process(fns, mode)
    for attribute in ("num_envs", "metadata", "render_mode", "closed", "spec"):
        assert equal(getattr(ours, attribute), getattr(theirs, attribute)), attribute
    for attribute in ("observation_space", "action_space"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
        single = f"single_{attribute}"
        assert getattr(ours, single) == getattr(theirs, single)
    assert run(ours, theirs, 60, parts=True) > 10
    ours.close()


def test_a_custom_space_without_shared_memory() -> None:
    fns = env_fns(spaces.Dict({"l": Cards(5), "x": spaces.Box(0, 1)}), Cards(9))
    mode = AutoresetMode.SAME_STEP
    ours = VectorEnv(fns, shared_memory=False, autoreset_mode=mode, context="fork")
    run(ours, SyncVectorEnv(fns, autoreset_mode=mode), 30)
    ours.close()
    with pytest.raises(ValueError, match="shared_memory=False"):
        VectorEnv(fns, context="fork")


POOLS = {
    "plain": DummyVectorEnv,
    "shmem": functools.partial(ShmemVectorEnv, context="fork"),
    "caller": functools.partial(
        ShmemVectorEnv, context="fork", num_processes=1, caller_steps=True, columns=True
    ),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_over_any_pool(pool: str, copy: bool) -> None:
    fns = env_fns(SPACES["mixed"] if copy else SPACES["dict"])
    mode = AutoresetMode.SAME_STEP if copy else AutoresetMode.NEXT_STEP
    ours = VectorEnv(POOLS[pool](fns, autoreset_mode=mode), copy=copy)
    assert ours.metadata["autoreset_mode"] is mode
    assert run(ours, SyncVectorEnv(fns, autoreset_mode=mode), 40, parts=True) > 5
    ours.close()
    assert ours.pool.is_closed


def test_vector_rewards_that_no_space_declares() -> None:
    fns = [functools.partial(VectorRewardEnv, tag) for tag in range(NUM_ENVS)]
    ours, by_hand = in_process(fns, AutoresetMode.NEXT_STEP), [fn() for fn in fns]
    ours.reset()
    for env in by_hand:
        env.reset()
    for k in range(2):
        ours.step_async([0] * NUM_ENVS)
        rewards = ours.step_wait()[1] if k else ours.step_wait(timeout=20)[1]
        np.testing.assert_array_equal(rewards, [env.step(0)[1] for env in by_hand], strict=True)
    ours.close()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods(context: str) -> None:
    fns = env_fns(SPACES["tuple"])
    ours = VectorEnv(fns, context=context, num_processes=1)
    assert run(ours, SyncVectorEnv(fns), 30) > 3
    ours.close()


def test_a_batch_is_the_callers_own_with_copy_alone() -> None:
    ours = VectorEnv(env_fns(SPACES["box"]), context="fork")
    first = ours.reset(seed=0)[0]
    kept = first.copy()
    first += 5
    masked = ours.reset(options={"reset_mask": np.array([False, False, True])})[0]
    assert equal(masked[:2], kept[:2])
    held = ours.step([0, 0, 0])
    copies = [part.copy() for part in held[:4]]
    ours.step([0, 0, 0])
    assert all(map(equal, held[:4], copies))
    ours.close()
    ours = VectorEnv(env_fns(SPACES["box"]), copy=False, context="fork")
    ours.reset(seed=0)
    view = ours.step([0, 0, 0])[0]
    assert np.shares_memory(view, ours.step([0, 0, 0])[0])
    del view
    ours.close()
