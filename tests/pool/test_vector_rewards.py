"""Vector rewards that no space declares: on every backend, in every mode."""

from functools import partial

import numpy as np
import pytest

from envpool_py import EnvError, replay
from envpool_py.collector import AsyncCollector, RandomPolicy, evaluate
from tests.support.envs import ChangedEnv, CountEnv, VectorRewardEnv
from tests.support.places import BACKENDS, PLACES, QUICK, paired
from tests.support.reference import same

MODES = [None, "same_step", "next_step"]


class UndeclaredEnv(VectorRewardEnv):
    """Gives the first ``size`` rewards; raises in the steps and the resets that are named."""

    def __init__(self, tag, length=4, size=3, fails=(), bad_resets=()):
        super().__init__(tag, length, as_list=tag == 1)
        del self.reward_space
        self.size, self.fails, self.bad_resets = size, fails, bad_resets

    def reset(self, **kwargs):
        row = super().reset(**kwargs)
        if self.episode in self.bad_resets:
            raise ValueError("no reset")
        return row

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.t in self.fails:
            raise ValueError("fails")
        return obs, reward[: self.size], *rest


LENGTHS = (2, 4, 3)
UNDECLARED = [partial(UndeclaredEnv, tag, length) for tag, length in enumerate(LENGTHS)]
DECLARED = [partial(VectorRewardEnv, tag, length) for tag, length in enumerate(LENGTHS)]


def row(tag, episode, t):
    reward = tag * 1000.0 + episode * 100 + t
    return [reward, -reward, 0.5]


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, MODES))
def test_batches_equal_those_of_envs_that_declare_them(place, mode):
    pools = [PLACES[place](fns, autoreset_mode=mode) for fns in (UNDECLARED, DECLARED)]
    for pool in pools:
        pool.reset()
    for _ in range(9):
        ours, theirs = (pool.step([0] * 3) for pool in pools)
        assert same(ours[1], theirs[1])
        assert ours[1].shape == (3, 3)
        if mode is None:
            for pool in pools:
                pool.reset((ours[2] | ours[3]).nonzero()[0])
    assert pools[0].step([], [])[1].shape == (0, 3)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, MODES))
def test_rows_without_a_reward_are_zeros_among_vectors(place, mode):
    fns = [UNDECLARED[0], partial(UndeclaredEnv, 1, 4, fails=[1]), UNDECLARED[2]]
    with PLACES[place](fns, autoreset_mode=mode, on_error="restart") as pool:
        pool.send_reset()
        assert same(pool.drain()[1], np.zeros(3))  # nothing is known yet
        pool.send([0, 0], id=[0, 1])
        pool.send_reset([2])
        batch = pool.drain()
        rewards = dict(zip(pool.batch_ids.tolist(), batch[1].tolist(), strict=True))
        assert rewards == {0: row(0, 0, 1), 1: [0, 0, 0], 2: [0, 0, 0]}
        assert {info["env_id"] for info in batch[4] if "env_error" in str(info)} == {1}
        pool.send_reset()
        assert same(pool.drain()[1], np.zeros((3, 3)))


BARE = partial(ChangedEnv, 1, step=lambda _env, _action, row: (*row[:4], {}))
"""Makes an env with scalar rewards whose rows have nothing to mark."""
OTHERS = [partial(UndeclaredEnv, 1, size=2), partial(CountEnv, 1), BARE]


@pytest.mark.parametrize(("place", "other"), paired(QUICK, OTHERS))
def test_two_envs_with_different_rewards_are_an_error_that_names_both(place, other):
    size = "(2,)" if other.func is UndeclaredEnv else "()"
    with PLACES[place]([UNDECLARED[0], other]) as pool:
        pool.reset()
        with pytest.raises(ValueError, match="reward has shape") as caught:
            pool.step([0, 0])
        assert isinstance(caught.value, EnvError)
        text = str(caught.value)
        assert "env 0" in text
        assert "env 1" in text
        assert size in text
        assert "(3,)" in text
        assert len(pool.drain()[1]) == 1  # the row of the other one is kept
        # Alone, the first shape of the pool decides.
        pool.reset()
    with PLACES[place]([other, UNDECLARED[0]]) as pool:
        pool.reset()
        pool.step([0], [1])
        with pytest.raises(EnvError, match=r"env 0: .* but that of env 1 has shape \(3,\)"):
            pool.step([0], [0])


@pytest.mark.parametrize("place", BACKENDS)
def test_the_last_reward_of_an_episode_whose_automatic_reset_fails(place):
    with PLACES[place](
        [partial(UndeclaredEnv, 0, 1, bad_resets=[1])], autoreset_mode="same_step"
    ) as pool:
        pool.reset()
        batch = pool.step([0])
        assert batch[1].tolist() == [row(0, 0, 1)]
        assert batch[2].tolist() == [True]
        with pytest.raises(EnvError, match="no reset"):
            pool.step([0])


@pytest.mark.parametrize("place", BACKENDS)
def test_a_record_of_them_is_replayed_whole_and_env_by_env(place, tmp_path):
    path = tmp_path / "run.rec"
    with PLACES[place](UNDECLARED, autoreset_mode="next_step", record=path) as pool:
        pool.reset()
        rewards = [pool.step([0] * 3)[1] for _ in range(6)]
    with replay(path, UNDECLARED) as again:
        found = [batch[1] for batch in again][1:]
    assert all(map(same, found, rewards))
    for i in range(3):
        with replay(path, UNDECLARED, env_ids=i) as alone:
            assert sum(1 for _ in alone) == 7


@pytest.mark.parametrize(("place", "mode"), paired(BACKENDS, MODES))
def test_the_collector(place, mode):
    """Batches of resets, which come first, have scalars."""
    for wait_num in (1, 3):
        found = []
        for fns in (UNDECLARED, DECLARED):
            with PLACES[place](fns, autoreset_mode=mode, wait_num=wait_num) as pool:
                policy = RandomPolicy(pool, 0)
                collector = AsyncCollector(pool, policy)
                episodes = [*collector.episodes(6)]
                batches = [next(collector.steps(5))]
                rollout = collector.rollout(4)
                evaluated = evaluate(pool, policy, episodes=5)
            assert all(each.rewards.shape == (len(each), 3) for each in episodes)
            assert all(batch.rewards.shape == (5, 3) for batch in batches)
            episodes = sorted((e.env_id, e.episode_id, e.rewards.tolist()) for e in episodes)
            found.append((episodes, rollout.rewards.tolist(), evaluated.returns.shape))
        if wait_num == 3:  # else the timing decides which env runs which task
            assert found[0] == found[1]
        assert found[0][2] == (5, 3)
