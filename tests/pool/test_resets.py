"""Resets: the seeds of episodes and of action spaces, and automatic resets that raise.

`tests/backends/test_matrix.py` has calls of `reset` and `seed` in any order, and each mode's rows.
"""

import functools
import itertools
import sys

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES
from tests.support.reference import same

NUM = 4
FNS = [functools.partial(envs.RandomEnv, tag) for tag in range(NUM)]


def test_action_spaces_are_seeded_with_their_envs():
    with DummyVectorEnv(FNS) as pool:
        # Tianshou's Collector keeps the list of spaces from its construction on.
        kept = pool.action_space

        def samples():
            return [[space.sample() for _ in range(20)] for space in kept]

        pool.seed(11)
        by_seed = samples()
        assert len({repr(one) for one in by_seed}) == NUM, "each env samples its own actions"
        pool.reset(seed=11)
        assert samples() == by_seed
        pool.seed(12)
        assert samples() != by_seed
        pool.seed(11)
        assert samples() == by_seed


def first_obs(pool, steps, seed):
    """First observations of successive episodes, `steps[k]` steps after each other."""
    found = [pool.reset(seed=seed)[0]]
    for count in steps:
        for _ in range(count):
            pool.step([1] * NUM)
        found.append(pool.reset()[0])
    return found


def test_with_episode_seeds_an_episode_does_not_depend_on_what_came_before():
    found = []
    for place in BACKENDS:
        with PLACES[place](FNS, episode_seeds=True) as pool:
            found.append(first_obs(pool, [1, 1, 1], seed=5))
            assert not same(first_obs(pool, [7, 2, 9], seed=6), found[-1])
            assert same(first_obs(pool, [7, 2, 9], seed=5), found[-1])  # it begins again
    assert same(found[0], found[-1])
    flat = [row.tobytes() for obs in found[0] for row in obs]
    assert len(set(flat)) == len(flat), "all episodes of all envs differ"


@pytest.mark.parametrize("place", BACKENDS)
def test_reset_fn_may_be_a_closure_and_serves_sent_resets(place):
    base = np.int64(70)

    def closure(env_id, episode):
        return base + env_id if episode < 2 else None, None if episode else {"first": True}

    with PLACES[place]([envs.CountEnv] * NUM, reset_fn=closure) as pool:
        assert [info["options"] for info in pool.reset()[1]] == [{"first": True}] * NUM
        for seed in (72, None):
            pool.send_reset([2])
            info = pool.recv()[4][0]
            assert (info["seed"], info["options"]) == (seed, None)


# ------------------------------------------------------------------- automatic resets that raise

FAULTS = {
    "raises": lambda: envs.raise_in_constructor("no such episode"),
    "exits": sys.exit,
    "brings no info": lambda: None,
    "cannot be pickled": lambda: {"generator": (i for i in range(3))},
}


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        *itertools.product(LOCAL, list(FAULTS)[:-1]),
        *((place, "cannot be pickled") for place in PROCESSES),
    ],
)
@pytest.mark.parametrize("bad", [2, 3])
def test_the_error_of_a_same_step_reset_comes_after_the_ended_row(place, fault, bad):
    def reset(env, row):
        return row[0], FAULTS[fault]() if (env.tag, env.resets) == (1, bad) else {}

    def step(_, action, row):
        return *row[:2], row[2] or row[3], False, {"action": action} if bad == 2 else {}

    fns = [functools.partial(envs.ChangedEnv, i, 3, step=step, reset=reset) for i in range(3)]
    actions = [4, 5, 6]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        for _ in range(3 * bad - 4):
            pool.step(actions)
        obs, reward, terminated, truncated, infos = pool.step(actions)
        assert terminated.all()
        assert not truncated.any()
        begun = bad - 1
        assert obs.tolist() == [[0, begun, 0], [1, begun - 1, 3], [2, begun, 0]]  # env 1: its last
        assert reward.tolist() == [i * 1000 + (begun - 1) * 100 + 3 for i in range(3)]
        for i, info in enumerate(infos):
            assert (info["env_id"], info["final_obs"].tolist()) == (i, [i, begun - 1, 3])
            assert same(info["final_info"], {"action": np.int64(4 + i)} if bad == 2 else {})
        assert len(pool.step([0, 0], [0, 2])[1]) == 2  # calls that do not name it go on
        if bad == 3:  # a reset that names it replaces the one that raised
            assert pool.reset([1])[0].tolist() == [[1, bad, 0]]
            assert len(pool.step(actions)[1]) == 3
            return
        with pytest.raises(EnvError, match="env 1: reset raised") as caught:
            pool.step(actions)
        assert caught.value.env_ids == (1,)
        assert pool.recv()[0][:, 1:].tolist() == [[begun, 2], [begun, 2]]
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        assert pool.reset([1])[0].tolist() == [[1, bad, 0]]
        assert pool.step([3], [1])[0].tolist() == [[1, bad, 1]]


@pytest.mark.parametrize("place", BACKENDS)
def test_a_next_step_reset_that_raises_is_the_error_of_that_step(place):
    fns = [functools.partial(envs.FailsToResetEnv, tag, 1) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode="next_step") as pool:
        pool.reset()
        assert pool.step([0, 0])[2].all()
        with pytest.raises(EnvError, match="env 1: .*no second episode"):
            pool.step([0], [1])
        pool.call("heal")
        assert pool.step([0], [0])[4][0]["is_reset"]
        assert pool.reset([1])[0].tolist() == [[1, 1, 0]]


@pytest.mark.parametrize("as_list", [False, True])
def test_an_ended_row_that_an_interrupt_swallowed_does_not_answer_a_reset(as_list):
    def reset(env, row):
        if env.resets == 2:
            raise KeyboardInterrupt
        return envs.raise_in_constructor("no third reset") if env.resets == 3 else row

    fns = [functools.partial(envs.ChangedEnv, tag, 2, reset=reset) for tag in range(2)]
    actions = np.array([5, 5], dtype=np.int64)
    given = actions.tolist() if as_list else actions
    with DummyVectorEnv(fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step(given)
        with pytest.raises(KeyboardInterrupt):
            pool.step(given)
        with pytest.raises(AttributeError, match="nothing_of_this_name"):
            pool.get_env_attr("nothing_of_this_name", id=[0])
        with pytest.raises(EnvError, match="env 0: reset raised ValueError: no third reset"):
            pool.reset([0])
        assert pool.reset([0])[0].tolist() == [[0, 3, 0]]
