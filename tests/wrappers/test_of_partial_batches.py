"""Wrappers of pools on partial batches, beside the same wrapper of Gymnasium's around each env."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, ShmemVectorEnv, wrappers
from tests.support.envs import CountEnv
from tests.support.reference import same
from tests.wrappers.envs import env_fns

NUM = 5
MODES = [None, "next_step", "same_step"]


def play(pool, wait_num, seeds=range(NUM), steps=40):
    """Step a pool in partial batches; return for each env what its resets and steps returned."""
    rows, shape = [[] for _ in range(NUM)], pool.single_action_space.shape
    obs, infos = pool.reset(seed=list(seeds))
    for i in range(NUM):
        rows[i].append((row_of(obs, i),))
    if wait_num is None:
        pool.wait_num = NUM
    to_reset, stepped = np.array([], int), np.arange(NUM)
    step = 0
    while step < steps or min(map(len, rows)) <= 10:  # a busy machine may keep one env waiting
        step += 1
        pool.send_reset(to_reset)
        pool.send(np.full((len(stepped), *shape), 3), stepped)
        obs, reward, terminated, truncated, infos = pool.recv()
        ended = terminated | truncated
        for k, i in enumerate(pool.batch_ids.tolist()):
            row = row_of(obs, k)
            if "is_reset" in infos[k]:
                assert reward[k] == 0
                rows[i].append((row,))
                continue
            last = infos[k].get("final_obs", row)
            rows[i].append((last, reward[k], terminated[k], truncated[k]))
            if "final_obs" in infos[k]:
                rows[i].append((row,))
        to_reset = pool.batch_ids[ended if pool.autoreset_mode is None else ended & False]
        stepped = np.setdiff1d(pool.batch_ids, to_reset)
    pool.drain()
    return rows


def row_of(obs, k):
    return obs[k] if isinstance(obs, np.ndarray) else {key: part[k] for key, part in obs.items()}


def by_hand(env, seed, count):
    """Step an env until it has returned ``count`` rows."""
    rows, over = [(env.reset(seed=seed)[0],)], False
    while len(rows) < count:
        if over:
            rows.append((env.reset()[0],))
            over = False
        else:
            *row, _ = env.step(3)
            rows.append(tuple(row))
            over = row[2] or row[3]
    return rows


def check(pool, reference, wait_num):
    """Assert that each env's rows are those of the env that ``reference(i)`` makes."""
    with pool:
        found = play(pool, wait_num)
    for i, rows in enumerate(found):
        assert len(rows) > 10
        for row, expected in zip(rows, by_hand(reference(i), i, len(rows)), strict=True):
            assert same(row[0], expected[0]), (i, row, expected)
            assert row[1:] == expected[1:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait_num", [None, 2])
@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("name", ["float32", "uint8", "box-scalar"])
def test_frames(name, padding, wait_num, mode):
    fns = env_fns(name, NUM)
    pool = DummyVectorEnv(fns, wait_num=2, autoreset_mode=mode)
    stacked = wrappers.FrameStackObservation(pool, 3, padding_type=padding)

    def reference(i):
        return gym.wrappers.FrameStackObservation(fns[i](), 3, padding_type=padding)

    assert stacked.single_observation_space == reference(0).observation_space
    check(stacked, reference, wait_num)


class Pair(CountEnv):
    """Observes a dict of a position and an image, both of which count."""

    def __init__(self, tag, length):
        super().__init__(tag, length)
        parts = [("b", spaces.Box(-1, 99, (2,))), ("a", spaces.Box(0, 255, (2, 2, 1), np.uint8))]
        self.observation_space = spaces.Dict(parts)

    def observe(self):
        image = np.full((2, 2, 1), 5 * self.episode + self.t, np.uint8)
        return {"b": np.array([self.tag, self.t], np.float32), "a": image}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_frames_of_a_dict_joined_along_an_axis(mode, columns):
    fns = [lambda i=i: Pair(i, 2 + i % 3) for i in range(NUM)]
    pool = ShmemVectorEnv(fns, num_processes=2, wait_num=2, autoreset_mode=mode, columns=columns)
    stacked = wrappers.FrameStackObservation(pool, 2, padding_type="zero", axis=-1)
    assert list(stacked.single_observation_space.spaces) == ["b", "a"]
    assert stacked.single_observation_space["a"].shape == (2, 2, 2)

    class Joined(gym.ObservationWrapper):
        def observation(self, obs):
            return {key: np.concatenate(list(part), -1) for key, part in obs.items()}

    class Each(gym.Wrapper):  # Gymnasium's stacks whole dicts, each leaf along a new first axis
        def reset(self, **kwargs):
            obs, info = self.env.reset(**kwargs)
            self.before = {key: np.zeros_like(part) for key, part in obs.items()}
            return self.stack(obs), info

        def step(self, action):
            obs, *others = self.env.step(action)
            return self.stack(obs), *others

        def stack(self, obs):
            self.before, before = obs, self.before
            return {key: np.stack([before[key], part]) for key, part in obs.items()}

    check(stacked, lambda i: Joined(Each(fns[i]())), 2)


def test_frames_after_a_seed_begin_again_and_what_is_returned_never_changes():
    with DummyVectorEnv(env_fns("float32", 2)) as pool:
        envs = wrappers.FrameStackObservation(pool, 2)
        first = envs.reset(seed=0)[0]
        kept = first.copy()
        envs.step([0, 0])
        envs.seed(1)
        after = envs.step([0, 0])[0]
        assert np.array_equal(after[:, 0], after[:, 1])
        assert np.array_equal(first, kept)
        with pytest.raises(ValueError, match="stack_size=0"):
            wrappers.FrameStackObservation(pool, 0)
        with pytest.raises(ValueError, match="axis: got 2, but observations have shape"):
            wrappers.FrameStackObservation(pool, 2, axis=2)
    with DummyVectorEnv(env_fns("discrete", 2)) as pool, pytest.raises(TypeError, match="of a Box"):
        wrappers.FrameStackObservation(pool, 2)


class Slope(CountEnv):
    """Its reward is the action, and its observation too; the bounds are -1 and 1.5."""

    def __init__(self, tag, length):
        super().__init__(tag, length)
        self.observation_space = spaces.Box(-9, 9, (1,))
        self.action_space = spaces.Box(-1, 1.5, (1,))

    def reset(self, **kwargs):
        self.taken = 0.0
        return super().reset(**kwargs)

    def observe(self):
        return np.full(1, self.taken, np.float32)

    def step(self, action):
        self.taken = float(np.reshape(action, -1)[0])
        obs, reward, *others = super().step(0)
        return obs, reward - 2.5, *others


SLOPES = [lambda i=i: Slope(i, 3 + i % 2) for i in range(NUM)]


@pytest.mark.parametrize("mode", MODES)
def test_clipped_actions_and_rewards(mode):
    pool = DummyVectorEnv(SLOPES, wait_num=2, autoreset_mode=mode)
    clipped = wrappers.ClipReward(wrappers.ClipAction(pool), 0, 203.25)
    assert clipped.single_action_space == gym.wrappers.ClipAction(SLOPES[0]()).action_space

    def reference(i):
        return gym.wrappers.ClipReward(gym.wrappers.ClipAction(SLOPES[i]()), 0, 203.25)

    check(clipped, reference, 2)


def test_actions_in_every_form_are_clipped():
    with DummyVectorEnv(SLOPES[:2]) as pool:
        envs = wrappers.ClipAction(pool)
        envs.reset()
        for actions in ([[9.0], [-9]], np.array([[9.0], [-9]]), [np.float32([9]), (-9,)]):
            envs.send(actions)
            assert envs.recv()[0].tolist() == [[1.5], [-1]]
            envs.reset()
        for wrong in ("ab", 3, [[1.0]]):
            with pytest.raises((TypeError, ValueError), match="action"):
                envs.step(wrong)
        with pytest.raises(ValueError, match="min_reward=2 and max_reward=1"):
            wrappers.ClipReward(pool, 2, 1)
        with pytest.raises(ValueError, match="min_reward=None"):
            wrappers.ClipReward(pool)
    discrete = DummyVectorEnv(env_fns("discrete", 2))
    with discrete, pytest.raises(TypeError, match="ClipAction needs a Box"):
        wrappers.ClipAction(discrete)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait_num", [2, None])
def test_normalised_rewards(mode, wait_num, tmp_path):
    """Each reward is divided by the deviation of all returns so far, kept for each env by hand."""
    pool = DummyVectorEnv(SLOPES, wait_num=2, autoreset_mode=mode)
    batches = []

    class Raw(wrappers.VectorEnvWrapper):
        def _returned(self, batch):
            batches.append((self.venv.batch_ids, *batch))
            return batch

    envs = wrappers.NormalizeReward(Raw(pool), gamma=0.5)
    found = play(envs, wait_num)
    returns, seen = dict.fromkeys(range(NUM), 0.0), []
    expected = [[] for _ in range(NUM)]
    for ids, *batch in batches:
        rows = [] if len(batch) == 2 else list(zip(ids, *batch[1:], strict=True))
        rows = [row for row in rows if "is_reset" not in row[-1]]
        for i, reward, *_ in rows:
            returns[i] = 0.5 * returns[i] + reward
            seen.append(returns[i])
        for i, reward, terminated, truncated, _ in rows:
            # The prior: a mean of 0 and a variance of 1 with the weight of 1e-4 rows.
            total = len(seen) + 1e-4
            mean = sum(seen) / total
            var = (1e-4 * (1 + mean**2) + sum((x - mean) ** 2 for x in seen)) / total
            expected[i].append(reward / np.sqrt(var + 1e-8))
            if terminated or truncated:
                returns[i] = 0.0
    for i in range(NUM):
        own = [row[1] for row in found[i] if len(row) > 1]
        np.testing.assert_allclose(own, expected[i][: len(own)], rtol=1e-9)
    envs.save(tmp_path / "returns.npz")
    other = wrappers.NormalizeReward(pool)
    other.load(tmp_path / "returns.npz")
    assert vars(other.return_rms) == vars(envs.return_rms)
    envs.close()
    for wrong in ({"gamma": 1.5}, {"epsilon": 0}):
        with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
            wrappers.NormalizeReward(pool, **wrong)


def test_a_wrapper_declares_one_space_everywhere():
    with DummyVectorEnv(env_fns("uint8", 2)) as pool:
        inner = wrappers.VectorEnvNormObs(pool)
        envs = wrappers.RecordEpisodeStatistics(wrappers.FrameStackObservation(inner, 2))
        assert inner.single_observation_space == inner.observation_space[0]
        assert inner.single_observation_space != pool.single_observation_space
        assert envs.single_observation_space == envs.observation_space[0]
        assert envs.reset(seed=0)[0][0] in envs.single_observation_space
