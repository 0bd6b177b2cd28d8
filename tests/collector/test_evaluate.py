"""``evaluate``: each episode once, equal to hand-stepped envs for any pool."""

import operator
import os
import signal
import time
from functools import partial, reduce

import gymnasium as gym
import numpy as np
import pytest
import tqdm

import envpool_py
from envpool_py import DummyVectorEnv, EnvError, PettingZooEnv
from envpool_py.collector import AsyncCollector, Evaluation
from tests.faults.helpers import MODES, RESTART
from tests.pettingzoo.envs import TableEnv
from tests.support import envs
from tests.support.episodes import equal
from tests.support.helpers import wait_until
from tests.support.places import BACKENDS, PLACES, QUICK, paired, slow

tqdm.tqdm.get_lock()  # has a semaphore, which tqdm keeps for good


def policy(obs, _):
    return (np.abs(obs[:, 0]) * 10).astype(int) % 4


TASKS = [(seed, {"scale": scale}) for seed in (3, 1, 8) for scale in (0.5, 2.0, 3.0)]
TASKS += [(seed, None) for seed in range(20, 32)]


def by_hand(tasks):
    env, found = envs.RandomEnv(), []
    for seed, options in tasks:
        obs, _ = env.reset(seed=seed, options=options)
        rewards, ended = [], False
        while not ended:
            obs, reward, *flags, info = env.step(policy(obs[None], None)[0])
            rewards.append(reward)
            ended = any(flags)
        # Python's `sum` adds floats more exactly from 3.12 on.
        found.append((reduce(operator.add, rewards), len(rewards), *flags, info))
    return found


def rows(result):
    columns = (result.returns, result.lengths, result.terminated, result.truncated)
    return list(zip(*(column.tolist() for column in columns), result.infos, strict=True))


SIZES = [(30, 7), (4, 3), (16, 1), (1, None), (4, None)]


@pytest.mark.parametrize(("place", "sizes", "mode"), paired(QUICK, SIZES, MODES))
def test_equal_to_hand_stepped_envs_for_any_pool(place, sizes, mode):
    expected = by_hand(TASKS)
    num_envs, wait_num = sizes
    fns = [partial(envs.RandomEnv, i) for i in range(num_envs)]
    with PLACES[place](fns, wait_num=wait_num, autoreset_mode=mode) as pool:
        result = envpool_py.evaluate(pool, policy, tasks=TASKS)
        assert equal(rows(result), expected)
        assert not pool.waiting_id
        again = envpool_py.evaluate(pool, policy, tasks=TASKS[:3])
        assert equal(rows(again), expected[:3])


def test_episodes_have_the_seeds_from_seed_on():
    with DummyVectorEnv([envs.RandomEnv] * 3, wait_num=1) as pool:
        result = envpool_py.evaluate(pool, policy, episodes=5, seed=20)
        assert equal(rows(result), by_hand(TASKS[9:14]))
        assert np.array_equal(result.returns, envpool_py.evaluate(pool, policy, 5, seed=20).returns)
        mean, std = result.returns.mean(), result.returns.std()
        error = np.std(result.returns, ddof=1) / 5**0.5
        texts = f"return {mean:.4g}", f"error {error:.4g}", f"deviation {std:.4g}; mean length "
        text = f"5 episodes: mean {texts[0]}, standard {texts[1]}, standard {texts[2]}"
        assert text in repr(result)
        one = envpool_py.evaluate(pool, policy, episodes=1)
        text = f"<Evaluation of 1 episode: mean return {one.returns[0]:.4g}, st"
        assert repr(one).startswith(text)
        empty = envpool_py.evaluate(pool, policy, episodes=0)
        assert len(empty) == 0
        assert repr(empty) == "<Evaluation of 0 episodes>"


class CrashEnv(envs.RandomEnv):
    """Raises in its 8th step, the first ``times`` times of all lives."""

    def __init__(self, tag, path, times):
        super().__init__(tag)
        self.path, self.times, self.steps = path, times, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 8 and envs.count_call(self.path) <= self.times:
            raise ValueError("boom")
        return super().step(action)


@pytest.mark.parametrize(("place", "mode"), paired(["dummy", "shmem-fork"], MODES))
def test_a_lost_episode_is_run_again(place, mode, tmp_path):
    fns = [partial(CrashEnv, i, tmp_path / "calls", 4) for i in range(3)]
    options = {**RESTART, "autoreset_mode": mode, "wait_num": 1}
    with PLACES[place](fns, **options) as pool:
        result = envpool_py.evaluate(pool, policy, tasks=TASKS)
        assert pool.restarts.sum() == result.reruns.sum() == 4
    assert equal(rows(result), by_hand(TASKS))
    assert f"<Evaluation of {len(TASKS)} episodes, 4 run again: mean " in repr(result)


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, MODES))
def test_each_episode_is_reset_once(place, mode):
    fns = [partial(envs.CountEnv, i, 3) for i in range(3)]
    with PLACES[place](fns, autoreset_mode=mode) as pool:
        for wait_num in (1, 3):
            before = sum(resets for _, resets in pool.call("counts"))
            pool.wait_num = wait_num
            assert len(envpool_py.evaluate(pool, act, 20)) == 20
            assert sum(resets for _, resets in pool.call("counts")) == before + 20
        # Afterwards the pool resets its envs as before.
        pool.reset()
        for _ in range(3):
            row = pool.step([0] * 3)
        assert all("final_obs" in info for info in row[4]) is (mode == "same_step")
        assert row[0][:, 2].tolist() == [0 if mode == "same_step" else 3] * 3


@pytest.mark.parametrize("mode", MODES)
def test_a_record_of_an_evaluation_is_replayed(mode, tmp_path):
    path = tmp_path / "run.rec"
    fns = [partial(envs.CountEnv, i, 3) for i in range(2)]
    with DummyVectorEnv(fns, autoreset_mode=mode, record=path) as pool:
        envpool_py.evaluate(pool, act, 5)
        pool.reset()
        expected = pool.step([0] * 2)
    with envpool_py.replay(path, fns) as run:
        *_, last = run
    assert all(map(equal, last[:4], expected[:4]))


def act(_, env_ids):
    return 0 * env_ids


class FailingEnv(envs.CountEnv):
    """Fails with the tasks whose option says how; an episode has ``length`` steps."""

    def reset(self, *, seed=None, options=None):
        self.fault = (options or {}).get("fault")
        if self.fault == "reset":
            raise ValueError("no reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.t == 1 and self.fault == "step":
            raise ValueError("boom")
        if self.t == 1 and self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.t == 1 and self.fault == "hang":
            time.sleep(0.01)  # an abandoned thread ends here
        return super().step(action)


FAULTS = {
    # fault: where, further options of the pool, the text of the error
    "step": (QUICK, {}, "step raised ValueError: boom"),
    "reset": (BACKENDS, {}, "reset raised ValueError: no reset"),
    "kill": (["subproc-fork"], {}, "was killed by SIGKILL"),
    "hang": (["subproc-fork", "thread"], {"step_timeout": 3.0}, "within step_timeout"),
}


FAILURES = [
    case
    for fault in FAULTS
    for case in paired(FAULTS[fault][0], [fault], (None, 1) if fault == "hang" else (None, 1, 2))
]


@pytest.mark.parametrize(
    ("place", "fault", "budget", "mode"),
    [
        *((*case, MODES[n % 3]) for n, case in enumerate(FAILURES) if "hang" not in case),
        *slow(*((*case, MODES[n % 3]) for n, case in enumerate(FAILURES) if "hang" in case)),
    ],
)
def test_a_task_that_fails_is_a_result(place, fault, budget, mode):
    """At its first failure, with restarts too; each task has the whole budget."""
    _, options, text = FAULTS[fault]
    if budget is not None:
        options = {**options, **RESTART, "max_restarts": budget}
    bad = (7,) if fault == "hang" else (2, 3, 4)  # each hangs until it is timed out
    tasks = [(n, {"fault": fault} if n in bad else None) for n in range(10)]
    fns = [partial(FailingEnv, i, 3) for i in range(2)]
    with PLACES[place](fns, autoreset_mode=mode, wait_num=1, **options) as pool:
        found = envpool_py.evaluate(pool, act, tasks=tasks, on_failure="record")
        if budget is not None:
            assert pool.restarts.sum() == len(bad)
        again = envpool_py.evaluate(pool, act, 4, on_failure="record")
    assert found.failed.tolist() == [n in bad for n in range(10)]
    assert np.isnan(found.returns).tolist() == found.failed.tolist()
    assert found.lengths[~found.failed].tolist() == [3] * (10 - len(bad))
    for n, error in enumerate(found.errors):
        assert (text in error) if n in bad else error is None
    assert found.tasks.tolist() == [*range(10)]
    assert not found.reruns.any()
    assert f"10 episodes, {len(bad)} failed: mean return" in repr(found)
    assert not again.failed.any()


def test_failed_tasks_of_vector_rewards_and_of_no_task_at_all():
    class Vector(FailingEnv):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, [reward, 1.0], *rest

    with DummyVectorEnv([partial(Vector, 0, 3)]) as pool:
        bad = [(0, {"fault": "step"}), (1, None)]
        found = envpool_py.evaluate(pool, act, tasks=bad, on_failure="record")
        assert equal(np.isnan(found.returns), np.array([[True, True], [False, False]]))
        assert found.returns[1, 1] == 3
        assert repr(found) == "<Evaluation of 2 episodes, 1 failed>"
        found = envpool_py.evaluate(pool, act, tasks=bad[:1], on_failure="record")
        assert np.isnan(found.returns).tolist() == [True]
        assert repr(found) == "<Evaluation of 1 episode, 1 failed>"
        with pytest.raises(ValueError, match="on_failure must be 'raise' or 'record', got 'keep'"):
            envpool_py.evaluate(pool, act, 1, on_failure="keep")


def test_the_error_has_the_results_of_the_finished_tasks():
    tasks = [(n, {"fault": "step"} if n == 6 else None) for n in range(10)]
    with DummyVectorEnv([partial(FailingEnv, i, 3) for i in range(2)], wait_num=2) as pool:
        with pytest.raises(EnvError, match="task 6; pass on_failure=.record") as caught:
            envpool_py.evaluate(pool, act, tasks=tasks)
        found = caught.value.finished
        assert isinstance(found, Evaluation)
        assert found.tasks.tolist() == [0, 1, 2, 3, 4, 5]
        assert found.lengths.tolist() == [3] * 6
        assert not found.failed.any()
        assert found.errors == [None] * 6


class OnceEnv(FailingEnv):
    """Can be made once."""

    def __init__(self, tag, path):
        super().__init__(tag, 3)
        if tag == 0 and envs.count_call(path) > 1:
            raise ValueError("only once")


@pytest.mark.parametrize("alone", [False, True])
def test_an_env_that_can_not_be_recreated_leaves_its_tasks_to_the_others(alone, tmp_path):
    fns = [partial(OnceEnv, i, tmp_path / "calls") for i in range(1 if alone else 2)]
    tasks = [(n, {"fault": "kill"} if n == 0 else None) for n in range(6)]
    with PLACES["subproc-fork"](fns, wait_num=1) as pool:
        found = envpool_py.evaluate(pool, act, tasks=tasks, on_failure="record")
    assert found.failed.tolist() == [True] + [alone] * 5
    assert all("only once" in error for error in found.errors[1:] if error)


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_based_env_ends_with_its_last_agent(mode):
    """Its agents die one after another."""
    lengths = []
    for seed in range(3):
        env = PettingZooEnv(TableEnv(), dead_steps="skip")
        env.reset(seed=seed)
        row, length = env.step(0), 1
        while not row[4]["env_done"]:
            row, length = env.step(0), length + 1
        lengths.append(length)
    fns = [lambda: PettingZooEnv(TableEnv(), dead_steps="skip")] * 2
    with DummyVectorEnv(fns, autoreset_mode=mode) as pool:
        found = envpool_py.evaluate(pool, act, 3)
        episodes = sorted(AsyncCollector(pool, act, seed=0).episodes(2), key=lambda e: e.env_id)
    assert [len(episode) for episode in episodes] == lengths[:2]
    assert found.lengths.tolist() == lengths
    assert all(info["env_done"] for info in found.infos)


class NamedEnv(envs.RandomEnv):
    """Its infos have keys that a pool sets where an env has failed, or where an episode ends."""

    def step(self, action):
        *row, _ = super().step(action)
        return (*row, {"env_error": None, "final_obs": None})


@pytest.mark.parametrize(("mode", "on_failure"), paired(MODES, ["raise", "record"]))
def test_an_info_with_a_key_of_the_pools_is_no_failure(mode, on_failure):
    with DummyVectorEnv([NamedEnv] * 2, autoreset_mode=mode) as pool:
        found = envpool_py.evaluate(pool, policy, tasks=TASKS, on_failure=on_failure)
        assert equal([row[:4] for row in rows(found)], [row[:4] for row in by_hand(TASKS)])
        assert not found.failed.any()
        assert not found.reruns.any()
        collector = AsyncCollector(pool, policy)
        assert not collector.rollout(30).env_error.any()
        assert not any(episode.failed for episode in collector.episodes(4))


def test_what_is_in_flight_is_dropped():
    with DummyVectorEnv([envs.RandomEnv] * 3, wait_num=1) as pool:
        next(AsyncCollector(pool, policy).steps())
        assert equal(rows(envpool_py.evaluate(pool, policy, tasks=TASKS)), by_hand(TASKS))


def test_a_progress_bar_and_wrong_arguments(capsys, monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # its thread would stay
    with DummyVectorEnv([envs.RandomEnv] * 3) as pool:
        assert isinstance(envpool_py.evaluate(pool, policy, 5, progress=True), Evaluation)
        assert "5/5" in capsys.readouterr().err
        for given in ({}, {"episodes": 2, "tasks": TASKS}):
            with pytest.raises(ValueError, match="give episodes=, or tasks="):
                envpool_py.evaluate(pool, policy, **given)
        with pytest.raises(ValueError, match="episodes must be 0 or more, got -1"):
            envpool_py.evaluate(pool, policy, -1)
        with pytest.raises(TypeError, match=r"task 1 must be a \(seed, options\), got 5"):
            envpool_py.evaluate(pool, policy, tasks=[(1, None), 5])
        with pytest.raises(TypeError, match="policy must be callable, got a int"):
            envpool_py.evaluate(pool, 3, 5)
        for wrong in (lambda obs: obs, lambda *three, more: (three, more)):
            with pytest.raises(TypeError, match=r"is called as policy\(obs, env_ids\): "):
                AsyncCollector(pool, wrong)
    with pytest.raises(TypeError, match="pool must be a pool such as"):
        envpool_py.evaluate("pool", policy, 5)


class PairEnv(envs.CountEnv):
    """Acts by two numbers; its info has the last ones."""

    def __init__(self, tag):
        super().__init__(tag, 3)
        self.action_space = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Discrete(7)))

    def step(self, action):
        *row, info = super().step(0)
        return *row, {**info, "pair": tuple(map(int, action))}


def test_the_actions_in_columns_of_an_env_whose_process_ended_meanwhile():
    """Two envs, and two columns."""
    killed = []

    def policy(_, env_ids):
        if len(env_ids) == 2 and not killed:
            killed.append(pool.workers[0].process.kill())
            host = pool.engine.hosts.of(0)
            assert wait_until(lambda: pool.get_env_attr("tag", [1]) and host.life.name == "ENDED")
        return env_ids + 1, env_ids + 3

    with PLACES["subproc-fork"]([partial(PairEnv, i) for i in range(2)]) as pool:
        found = envpool_py.evaluate(pool, policy, 2, on_failure="record")
    assert killed
    assert found.failed.tolist() == [True, False]
    assert found.infos[1]["pair"] == (2, 4)
