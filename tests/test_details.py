"""Details that no other test would miss: each was changed once, and all tests passed."""

import functools
import sys

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

import envpool_py
from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv
from envpool_py.cli import main
from envpool_py.collector import AsyncCollector, RandomPolicy
from envpool_py.collector.reader import Episodes
from envpool_py.gymnasium import make_vec
from envpool_py.record import file_format
from tests.support.envs import CountEnv


def test_the_spec_is_asked_for_again_after_it_was_set():
    with DummyVectorEnv([CountEnv]) as pool:
        assert pool.spec == [None]
        spec = EnvSpec("Details-v0", "tests.support.envs:CountEnv")
        pool.set_env_attr("spec", spec)
        assert pool.spec == [spec]
        pool.set_env_attr("metadata", {"own": 1})
        assert pool.metadata == [{"own": 1}]


@pytest.mark.parametrize(
    ("package", "module", "extra", "use"),
    [
        ("minari", "collector.to_minari", "minari", lambda: Episodes.to_minari(None, "a-v0")),
        ("torch", "sb3.async_rollouts", "sb3", lambda: envpool_py.sb3.AsyncRollouts),
    ],
)
def test_what_needs_an_extra_names_it(package, module, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"envpool_py.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"needs .*; pip install -e \"\.\[{extra}\]\""):
        use()


class RefusesSeed(CountEnv):
    def reset(self, *, seed=None, options=None):
        if seed == 7:
            raise ValueError("an unlucky seed")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("cls", [DummyVectorEnv, ShmemVectorEnv])
def test_a_failed_seed_leaves_no_rows(cls):
    with cls([functools.partial(RefusesSeed, tag) for tag in range(3)]) as pool:
        with pytest.raises(EnvError, match="env 1: seed raised ValueError: an unlucky seed"):
            pool.seed([1, 7, 3])
        assert pool.waiting_id == []
        obs, *_ = pool.step([0, 0], [0, 2])
        assert obs[:, [0, 2]].tolist() == [[0, 1], [2, 1]]


def test_collect_waits_for_half_of_the_envs(tmp_path):
    path = tmp_path / "a.record"
    options = f"--num-envs 6 --backend dummy --steps 30 --record {path}"
    assert main(["collect", "CartPole-v1", *options.split()]) == 0
    sizes = [len(ids) for kind, ids, _ in file_format.read(path)[1] if kind == file_format.ROWS]
    assert set(sizes[:4]) == {3}


class GrowsItsArgument(CountEnv):
    def __init__(self, values, render_mode=None):
        super().__init__(render_mode=render_mode)
        values["list"].append(1)


def test_the_arguments_in_a_registered_spec_are_not_changed():
    kwargs = {"values": {"list": []}}
    gym.register("Details-v1", entry_point=GrowsItsArgument, kwargs=kwargs)
    try:
        for _ in range(2):
            with make_vec("Details-v1", 2, "sync") as env:
                env.reset()
        assert gym.spec("Details-v1").kwargs == {"values": {"list": []}}
    finally:
        del gym.registry["Details-v1"]


def test_a_change_of_a_rollout_does_not_reach_the_next():
    with DummyVectorEnv([CountEnv] * 2) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0))
        first = collector.rollout(2)
        last = first.next_obs.copy()
        for array in (first.obs, first.next_obs, first.actions, first.rewards):
            array.fill(-1)
        second = collector.rollout(2)
    assert second.obs[0].tolist() == last.tolist()
