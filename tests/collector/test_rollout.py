"""Rollouts of every kind of env, several in a row, against hand-stepped envs."""

import contextlib
import os
import signal
from functools import partial
from itertools import islice

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, evaluate
from envpool_py.collector import AsyncCollector, RandomPolicy
from envpool_py.env.spaces import take
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import SubprocVecEnv
from tests.faults.helpers import MODES, RESTART
from tests.support import envs
from tests.support.episodes import CELLS, SEED, SUBJECTS, equal, random_policy, rows_of
from tests.support.places import PLACES, QUICK, paired

T = 7


class ByHand:
    """One env, stepped by hand with the actions of rollouts; it is made again where it raises."""

    def __init__(self, env_fn, seed):
        self.env_fn, self.env = env_fn, env_fn()
        self.last, self.starts = self.env.reset(seed=seed)[0], True
        self.lost = 0

    def step(self, action):
        """The columns of a step, its last observation, and whether the episode ended."""
        obs, starts = self.last, self.starts
        try:
            self.last, *row, _ = self.env.step(action)
            row.append(False)
        except ValueError:
            self.env, self.lost = self.env_fn(), self.lost + 1
            row = [0.0, False, True, True]
        final = self.last
        self.starts = row[1] or row[2]
        if self.starts:
            self.last = self.env.reset()[0]
        return obs, row, starts, final


def check(rollout, by_hand, num_steps=T):
    """Every row is that of the envs stepped by hand; no step is missing or double."""
    n = len(by_hand)
    assert rollout.rewards.shape[:2] == rollout.terminated.shape == (num_steps, n)
    flags = (rollout.terminated, rollout.truncated, rollout.env_error, rollout.episode_starts)
    finals = {}
    next_obs = rows_of(rollout.next_obs, n)
    for i, hand in enumerate(by_hand):
        trees = rollout.obs, rollout.actions
        obs, actions = (rows_of(take(tree, np.s_[:, i]), num_steps) for tree in trees)
        for t, action in enumerate(actions):
            expected, row, starts, final = hand.step(action)
            assert equal(obs[t], expected)
            assert np.array_equal(rollout.rewards[t, i], row[0])
            assert [flag[t, i] for flag in flags] == [*row[1:], starts]
            if row[1] or row[2]:
                finals[t, i] = final
        assert equal(next_obs[i], hand.last)
    ended = rollout.terminated | rollout.truncated
    assert np.count_nonzero(ended) == len(finals)
    found = rows_of(rollout.final_obs, len(finals))
    assert equal(found, [finals[key] for key in sorted(finals)])
    return rollout


@pytest.mark.parametrize(("name", "columns", "autoreset_mode"), CELLS)
def test_every_kind_of_env_equals_hand_stepped_envs(name, columns, autoreset_mode):
    env_fns = [partial(SUBJECTS[name], tag) for tag in range(2)]
    pool = DummyVectorEnv(env_fns, wait_num=1, columns=columns, autoreset_mode=autoreset_mode)
    with pool:
        collector = AsyncCollector(pool, random_policy(pool), seed=SEED)
        by_hand = [ByHand(env_fn, SEED + i) for i, env_fn in enumerate(env_fns)]
        for _ in range(3):
            check(collector.rollout(T), by_hand)


@pytest.mark.parametrize(("place", "wait_num", "mode"), paired(QUICK, [1, None, 2, 1, 2], MODES))
def test_several_in_a_row_equal_hand_stepped_envs(place, wait_num, mode):
    env_fns = [partial(envs.RandomEnv, i) for i in range(3)]
    with PLACES[place](env_fns, wait_num=wait_num, autoreset_mode=mode) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 1), seed=SEED)
        by_hand = [ByHand(env_fn, SEED + i) for i, env_fn in enumerate(env_fns)]
        for num_steps in (1, 20) * 3:
            check(collector.rollout(num_steps), by_hand, num_steps)
            assert not pool.waiting_id
    assert collector.num_steps == 3 * 21 * 3


class FailsEnv(envs.CountEnv):
    """Fails in its second episode, in every life."""

    def __init__(self, tag, kill=False):
        super().__init__(tag, length=3 + tag)
        self.kill = kill

    def step(self, action):
        if self.tag != 1 and (self.episode, self.t) == (1, 2):
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError
        return super().step(action)


@pytest.mark.parametrize(
    ("place", "kill", "autoreset_mode"),
    [*paired(QUICK, [False], MODES), ("shmem-fork", True, "same_step")],
)
def test_a_lost_step_is_truncated_and_marked(place, kill, autoreset_mode):
    env_fns = [partial(FailsEnv, i, kill) for i in range(3)]
    by_hand = [ByHand(partial(FailsEnv, i), SEED + i) for i in range(3)]
    options = {**RESTART, "autoreset_mode": autoreset_mode, "wait_num": 2}
    with PLACES[place](env_fns, **options) as pool:
        collector = AsyncCollector(pool, lambda _, ids: 0 * ids, seed=SEED)
        lost = [check(collector.rollout(T), by_hand).env_error.sum() for _ in range(4)]
        assert sum(lost) == sum(hand.lost for hand in by_hand) == pool.restarts.sum() > 2


@pytest.mark.parametrize("autoreset_mode", MODES)
def test_a_policy_acts_once_per_step_and_is_told_of_new_episodes(autoreset_mode):
    """Its recurrent state, one row per env, is that of a loop over each env alone."""

    class Recurrent:
        state = np.full(3, -1.0)

        def start_episodes(self, env_ids):
            assert len(set(env_ids)) == len(env_ids)
            self.state[env_ids] = 0

        def __call__(self, obs, env_ids, infos):
            assert len(set(env_ids.tolist())) == len(env_ids)
            assert obs[:, 0].tolist() == env_ids.tolist()
            assert [info["env_id"] for info in infos] == env_ids.tolist()
            assert [info["step"] for info in infos] == obs[:, 2].tolist()
            assert self.state[env_ids].tolist() == obs[:, 2].tolist()
            self.state[env_ids] += 1
            extras = {"state": self.state[env_ids], "step": obs[:, 2]}
            return obs[:, 2] % 5, extras

    env_fns = [partial(envs.CountEnv, i, 3 + i) for i in range(3)]
    with PLACES["shmem-fork-packed"](env_fns, wait_num=1, autoreset_mode=autoreset_mode) as pool:
        collector = AsyncCollector(pool, Recurrent(), keep_infos=["action", "step"])
        for _ in range(3):
            rollout = collector.rollout(T)
            assert np.array_equal(rollout.extras["state"], rollout.extras["step"] + 1)
            assert np.array_equal(rollout.obs[..., 2], rollout.extras["step"])
            assert np.array_equal(rollout.actions, rollout.obs[..., 2] % 5)
            told = [(info["action"], info["step"]) for info in rollout.next_infos.ravel()]
            steps = rollout.obs[..., 2].ravel()
            assert told == [(t % 5, t + 1) for t in steps]
            assert np.array_equal(rollout.episode_starts, rollout.obs[..., 2] == 0)
        assert len([*collector.episodes(6), *islice(collector.steps(4), 6)]) == 12
        assert len(evaluate(pool, Recurrent(), 7)) == 7


def test_with_whole_batches_a_policy_gets_whole_batches_in_order():
    asked = []

    def policy(_, env_ids):
        asked.append(env_ids.tolist())
        return 0 * env_ids

    with DummyVectorEnv(
        [partial(envs.CountEnv, i) for i in range(3)], autoreset_mode="same_step"
    ) as pool:
        collector = AsyncCollector(pool, policy)
        collector.rollout(3)
        assert repr(collector.rollout(3)) == "<Rollout of 3 envs: 9 steps, 3 episodes ended>"
    assert asked == [[0, 1, 2]] * 6


FORK = PLACES["shmem-fork"]
DOORS = {
    "pool": (partial(FORK, wait_num=1), {}),
    "pool that waits for all": (FORK, {"wait_num": 1}),
    "Gymnasium": (partial(VectorEnv, context="fork"), {"wait_num": 1}),
    "SB3": (partial(SubprocVecEnv, start_method="fork"), {"wait_num": 1}),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_fast_env_goes_on_alone(door, tmp_path):
    """Env 0 cannot finish its first step before env 1 has made all of its own."""
    make, options = DOORS[door]
    gate = tmp_path / "gate"

    class Gated(envs.CountEnv):
        def step(self, action):
            if self.tag == 0 and not self.steps:
                os.open(gate, os.O_RDONLY)  # blocks until env 1 opens the other end
            if self.tag == 1 and self.steps == T - 1:
                os.close(os.open(gate, os.O_WRONLY))
            return super().step(action)

    os.mkfifo(gate)
    with contextlib.closing(make([partial(Gated, i, 50) for i in range(2)])) as venv:
        pool = getattr(venv, "pool", venv)
        before = pool.wait_num
        rollout = AsyncCollector(pool, lambda _, ids: 0 * ids, **options).rollout(T)
        assert pool.wait_num == before
    assert rollout.obs[..., 2].T.tolist() == [list(range(T))] * 2


def test_wrong_arguments():
    with DummyVectorEnv([envs.CountEnv]) as pool:
        collector = AsyncCollector(pool, lambda _, ids: 0 * ids)
        with pytest.raises(ValueError, match="num_steps must be 1 or more, got 0"):
            collector.rollout(0)
        for wait_num, text in (
            (1, "wait_num: this pool steps its envs in this process"),
            (2, "but got 2"),
        ):
            with pytest.raises(ValueError, match=text):
                AsyncCollector(pool, lambda _, ids: 0 * ids, wait_num=wait_num)


def test_an_automatic_reset_that_fails_joins_no_episodes():
    def zeros(_, env_ids):
        return np.zeros(len(env_ids), int)

    fns = [envs.FailsToResetEnv] * 2
    with DummyVectorEnv(fns, autoreset_mode="same_step", **RESTART) as pool:
        rollout = AsyncCollector(pool, zeros).rollout(20)
    assert rollout.env_error.any()
    assert rollout.truncated[rollout.env_error].all()
    done, counts = (rollout.terminated | rollout.truncated)[:-1], rollout.obs[..., 2]
    assert np.array_equal(rollout.episode_starts[1:], done)
    # The lost step is from the last observation of the episode before, and an episode of its own.
    begun = done & ~rollout.env_error[1:]
    assert np.array_equal(counts[1:], np.where(begun, 0, counts[:-1] + 1))
