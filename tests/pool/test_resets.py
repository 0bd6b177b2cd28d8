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
    drawn = []
    with DummyVectorEnv(FNS) as pool:
        kept = pool.action_space  # as Tianshou's Collector does
        assert kept[0] is not pool.workers[0].env.action_space, "the env may draw from its own"
        for seed in (pool.seed, lambda _: pool.seed(12), lambda seed: pool.reset(seed=seed)):
            seed(11)
            drawn.append([[space.sample() for _ in range(20)] for space in kept])
    assert drawn[0] == drawn[2] != drawn[1]
    assert len({repr(one) for one in drawn[0]}) == NUM, "each env samples its own actions"


def test_with_episode_seeds_an_episode_does_not_depend_on_what_came_before():
    def first_obs(lengths, seed):
        """Return the first observations of successive episodes of these lengths."""
        obs = [pool.reset(seed=seed)[0]]
        for length in lengths:
            for _ in range(length):
                pool.step([1] * NUM)
            obs.append(pool.reset()[0])
        return obs

    found = []
    for place in BACKENDS:
        with PLACES[place](FNS, episode_seeds=True) as pool:
            found.append(first_obs([1, 1, 1], seed=5))
            assert not same(first_obs([7, 2, 9], seed=6), found[-1])
            assert same(first_obs([7, 2, 9], seed=5), found[-1])  # it begins again
    assert same(found[0], found[-1])
    assert len(np.unique(found[0])) == np.size(found[0]), "all episodes of all envs differ"


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


FAULTS = {
    "raises": lambda: envs.raise_in_constructor("no such episode"),
    "exits": sys.exit,
    "brings no info": lambda: None,
    "cannot be pickled": lambda: {"generator": (i for i in range(3))},
}
CASES = list(itertools.product(LOCAL, ["raises", "exits", "brings no info"]))
CASES += [(place, "cannot be pickled") for place in PROCESSES]


@pytest.mark.parametrize(("place", "fault"), CASES)
def test_the_error_of_a_same_step_reset_comes_after_the_ended_row(place, fault):
    def reset(env, row):
        return row[0], FAULTS[fault]() if env.tag == 1 and env.resets in (2, 4) else {}

    def step(_, action, row):
        return *row[:2], row[2] or row[3], False, {"action": action}

    fns = [functools.partial(envs.ChangedEnv, i, 3, step=step, reset=reset) for i in range(3)]
    actions = [4, 5, 6]
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        pool.reset()
        pool.step(actions)
        pool.step(actions)
        obs, reward, terminated, truncated, infos = pool.step(actions)
        assert obs.tolist() == [[0, 1, 0], [1, 0, 3], [2, 1, 0]]  # that of env 1 is its last
        assert reward.tolist() == [3, 1003, 2003]
        assert (terminated.all(), truncated.any()) == (True, False)
        for i, info in enumerate(infos):
            final = {"final_obs": np.array([i, 0, 3]), "final_info": {"action": np.int64(4 + i)}}
            assert same(info, {**final, "env_id": i})
        assert len(pool.step([0, 0], [0, 2])[1]) == 2  # calls that do not name it go on
        with pytest.raises(EnvError, match="env 1: reset raised") as caught:
            pool.step(actions)
        assert caught.value.env_ids == (1,)
        assert pool.recv()[0].tolist() == [[0, 1, 2], [2, 1, 2]]
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([0], [1])
        assert pool.reset([1])[0].tolist() == [[1, 2, 0]]
        for _ in range(3):
            pool.step([3], [1])
        assert pool.reset([1])[0].tolist() == [[1, 4, 0]]  # it replaces the one that raised
        assert pool.step([3], [1])[0].tolist() == [[1, 4, 1]]


@pytest.mark.parametrize("actions", [[5, 5], np.array([5, 5])], ids=["list", "array"])
def test_an_ended_row_that_an_interrupt_swallowed_does_not_answer_a_reset(actions):
    def reset(env, row):
        if env.resets == 2:
            raise KeyboardInterrupt
        return envs.raise_in_constructor("no third reset") if env.resets == 3 else row

    fns = [functools.partial(envs.ChangedEnv, tag, 1, reset=reset) for tag in range(2)]
    with DummyVectorEnv(fns, autoreset_mode="same_step") as pool:
        pool.reset()
        with pytest.raises(KeyboardInterrupt):
            pool.step(actions)
        with pytest.raises(EnvError, match="env 0: reset raised ValueError: no third reset"):
            pool.reset([0])
        assert pool.reset([0])[0].tolist() == [[0, 3, 0]]
