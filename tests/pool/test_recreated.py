"""Recycled and swapped envs: equal, bit for bit, to envs that are made and seeded by hand."""

import functools
import json
import os
import time

import numpy as np
import pytest

from envpool_py import EnvError, seeding
from envpool_py.sb3.common.monitor import Monitor
from tests.faults import helpers
from tests.support import envs
from tests.support.places import PLACES, paired

PLACE = ("dummy", "shmem-fork-packed", "shmem-fork-caller")
RANDOM = [functools.partial(envs.RandomEnv, tag) for tag in range(3)]


class ByHand:
    """An env that is made again after ``recycle`` episodes, and reset when its episode ends."""

    def __init__(self, env_fn, recycle, seed):
        self.env_fn, self.recycle, self.root = env_fn, recycle, seed
        self.episode, self.env = 0, env_fn()
        self.obs = self.env.reset(seed=seed)[0]

    def step(self, action):
        obs, reward, terminated, truncated, _ = self.env.step(action)
        if terminated or truncated:
            self.episode += 1
            seed = None
            if self.episode % self.recycle == 0:
                self.env = self.env_fn()
                seed = seeding.of_restart(self.root, 0, self.episode)
            obs = self.env.reset(seed=seed)[0]
        return obs, reward, terminated, truncated


@pytest.mark.parametrize(("place", "recycle"), paired(PLACE, [1, 3]))
def test_recycled_envs(place, recycle):
    with PLACES[place](RANDOM, autoreset_mode="same_step", recycle=recycle) as pool:
        hands = [ByHand(fn, recycle, 5 + i) for i, fn in enumerate(RANDOM)]
        assert np.array_equal(pool.reset(seed=5)[0], [hand.obs for hand in hands])
        for step in range(60):
            actions = [(step + i) % 4 for i in range(3)]
            expected = list(zip(*map(ByHand.step, hands, actions), strict=True))
            for part, column in zip(pool.step(actions)[:4], expected, strict=True):
                assert np.array_equal(part, column)
        assert min(hand.episode for hand in hands) > 2 * recycle
        assert pool.restarts.tolist() == [0, 0, 0], "no failure is counted"


@pytest.mark.parametrize("place", PLACE)
def test_recycled_envs_are_closed_and_no_row_is_lost(place, tmp_path):
    class Counted(envs.CountEnv):
        def close(self):
            envs.count_call(tmp_path / "closed")

    fns = [functools.partial(Counted, tag, 2) for tag in range(3)]
    with PLACES[place](fns, autoreset_mode="next_step", recycle=2) as pool:
        pool.reset()
        rows = [pool.step([0, 0, 0]) for _ in range(12)]
    ended = [(row[2] | row[3]).tolist() for row in rows]
    assert ended == [[False] * 3, [True] * 3, [False] * 3] * 4
    # After the 2nd and the 4th episode, and at the end of the pool.
    assert envs.count_call(tmp_path / "closed") - 1 == 3 * 3


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_recycle_is_a_number_of_episodes(value):
    with pytest.raises((TypeError, ValueError), match="recycle must be"):
        PLACES["dummy"](RANDOM, recycle=value)


@pytest.mark.parametrize("place", PLACE)
def test_other_envs_in_the_same_places(place):
    others = [functools.partial(envs.RandomEnv, tag) for tag in (7, 8)]
    with PLACES[place](RANDOM, autoreset_mode="same_step") as pool:
        pool.reset(seed=1)
        pids = pool.apply(lambda _: os.getpid())
        pool.restart([2, 0], env_fns=others)
        assert pool.get_env_attr("tag") == [8, 1, 7]
        assert pool.apply(lambda _: os.getpid()) == pids
        hands = [ByHand(fn, 1 << 30, 3 + i) for i, fn in enumerate([others[1], others[0]])]
        assert np.array_equal(pool.reset([0, 2], seed=[3, 4])[0], [hand.obs for hand in hands])
        for _ in range(30):
            row = pool.step([1, 1], [0, 2])
            assert np.array_equal(row[0], [hand.step(1)[0] for hand in hands])
        if place != "dummy":
            helpers.kill(pool, 0)
            pool.restart([0])
            assert pool.get_env_attr("tag") == [8, 1, 7], "also when their process is new"


@pytest.mark.parametrize("place", PLACE)
def test_an_env_fn_that_does_not_fit_leaves_its_env_dead_until_one_fits(place):
    with PLACES[place](RANDOM) as pool:
        pool.reset(seed=1)
        hand = RANDOM[2]()
        hand.reset(seed=3)
        for wrong, text in (
            (envs.CountEnv, "env 1: env_fn raised ValueError: its observation_space is"),
            (lambda: 1 / 0, "env 1: env_fn raised ZeroDivisionError"),
        ):
            with pytest.raises(EnvError, match=text):
                pool.restart([0, 1], env_fns=[RANDOM[0], wrong])
            for ids in ([1], [0, 1, 2]):
                with pytest.raises(EnvError, match=text):
                    pool.reset(ids)
                pool.cancel()
            for ask in (
                functools.partial(pool.get_env_attr, "tag"),
                functools.partial(pool.set_env_attr, "other", 9),
                functools.partial(pool.call, "has_wrapper_attr", "tag"),
            ):
                with pytest.raises(EnvError, match=text):
                    ask()
            assert pool.get_env_attr("tag", [0, 2]) == [0, 2], "the others answer"
        if place == "shmem-fork-packed":
            helpers.kill(pool, 1)
            with pytest.raises(ZeroDivisionError, match="env 1: "):
                pool.reset([1])
        for fns, error in (([RANDOM[0]], ValueError), (RANDOM[0], TypeError), ([3, 4], TypeError)):
            with pytest.raises(error, match="env_f"):
                pool.restart([0, 1], env_fns=fns)
        pool.restart([1], env_fns=[RANDOM[1]])
        assert pool.get_env_attr("tag") == [0, 1, 2]
        pool.reset()
        assert pool.step([2, 2, 2])[0].shape == (3, 3)


@pytest.mark.parametrize(("place", "mode"), paired(PLACE, ["same_step", "next_step", None]))
def test_the_error_of_an_env_fn_at_recycling_arrives_as_that_error(place, mode, tmp_path):
    refuses = tmp_path / "refuses"

    def make(tag):
        if refuses.exists():
            raise OSError("the license server refuses")
        return envs.CountEnv(tag, 2)

    text = r"env 0: env_fn raised OSError: the license server refuses \(test_recreated.py:\d+\)"
    fns = [functools.partial(make, tag) for tag in range(3)]
    with PLACES[place](fns, recycle=1, autoreset_mode=mode) as pool:
        pool.reset()
        pool.step([0] * 3)
        refuses.touch()
        assert pool.step([0], [0])[2].tolist() == [True]
        if mode == "same_step":  # its error belongs to the next step, not to a call in between
            with pytest.raises(AttributeError, match="env 0: call raised"):
                pool.call("no_such_method", id=[0])
        with pytest.raises(EnvError, match=text):
            pool.reset([0]) if mode is None else pool.step([0], [0])
        with pytest.raises(EnvError, match=text):
            pool.reset([0])
        refuses.unlink()
        assert pool.reset([0])[0].tolist() == [[0, 0, 0]]
        assert pool.step([0] * 3)[0][0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("place", ["dummy", "thread", "shmem-fork-packed"])
def test_an_info_that_holds_itself(place):
    class Circular(envs.CountEnv):
        def step(self, action):
            row = super().step(action)
            row[4]["whole"] = row[4]
            return row

    with PLACES[place]([Circular] * 3) as pool:
        pool.reset()
        info = pool.step([0] * 3)[4][0]["whole"]
        assert info["whole"]["whole"]["step"] == 1


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        *(("shmem-fork", fault) for fault in ("value", "SIGKILL", "by hand")),
        *(("dummy", "value"), ("thread", "by hand")),
    ],
)
def test_the_file_of_a_monitor_goes_on_after_a_restart(place, fault, tmp_path):
    """A new pool empties the file, as Stable-Baselines3 does."""
    path = tmp_path / "monitor.csv"
    make = functools.partial(monitored, str(path))
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": "same_step"}
    for _ in range(2):
        began = []
        with PLACES[place]([make], **options) as pool:
            pool.reset()
            for k in range(3):
                began.append(time.time())
                pool.step(["over"])
                if k < 2 and fault == "by hand":
                    pool.restart([0])
                    pool.reset()
                elif k < 2:
                    pool.step([fault])
        lines = path.read_text().splitlines()
        assert [line.partition(",")[0] for line in lines[1:]] == ["r", "0.0", "0.0", "0.0"]
        start = json.loads(lines[0].removeprefix("#"))["t_start"]
        for line, step in zip(lines[2:], began, strict=True):
            assert start + float(line.split(",")[2]) > step - 1e-5, "one clock for all rows"


def monitored(path):
    return Monitor(Overs(0), path)


class Overs(envs.FaultEnv):
    def step(self, action):
        obs, _, _, truncated, info = super().step("" if action == "over" else action)
        return obs, 0.0, action == "over", truncated, info
