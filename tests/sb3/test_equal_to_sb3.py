"""The same seeds and actions: the same answers as Stable-Baselines3's classes, to the last bit."""

from __future__ import annotations

import functools

import pytest
import stable_baselines3.common.vec_env as sb3

import envpool_py.sb3 as own
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import ACTIONS, SPACES, walkers
from tests.sb3.reference import assert_same, walk_together


@pytest.mark.parametrize(
    ("backend", "kwargs"),
    [
        *(("dummy", {"obs": obs}) for obs in SPACES if obs != "nested"),
        *(("dummy", {"action": action}) for action in ACTIONS),
        ("shmem", {"obs": "dict"}),
        ("shmem", {"obs": "tuple", "action": "multi-discrete"}),
        ("shmem", {"obs": "discrete", "action": "box"}),
        ("subproc", {}),
    ],
)
def test_every_space(backend: str, kwargs: dict[str, str]) -> None:
    env_fns = walkers(**kwargs, render_mode="rgb_array")
    subproc = functools.partial(own.SubprocVecEnv, start_method="fork")
    ours = BACKENDS.get(backend, subproc)(env_fns)
    assert walk_together(ours, sb3.DummyVecEnv(env_fns)) > 20


WRAPPERS = {
    "VecNormalize": ({}, "box"),
    "VecNormalize-dict": ({"norm_obs_keys": ["z"]}, "dict"),
    "VecNormalize-all-keys": ({}, "vectors"),
    "VecNormalize-images": ({"norm_reward": False, "clip_obs": 2.0}, "image"),
    "VecNormalize-rewards": ({"norm_obs": False, "clip_reward": 0.5, "gamma": 0.5}, "discrete"),
    "VecNormalize-still": ({"training": False}, "box"),
    "VecFrameStack": ({"n_stack": 3}, "box"),
    "VecFrameStack-images": ({"n_stack": 2}, "image"),
    "VecFrameStack-first": ({"n_stack": 2, "channels_order": "first"}, "double"),
    "VecFrameStack-last": ({"n_stack": 2, "channels_order": "last"}, "double"),
    "VecFrameStack-keys": ({"n_stack": 4, "channels_order": {"z": "first", "b": None}}, "vectors"),
    "VecMonitor": ({"info_keywords": ("left",)}, "box"),
    "VecTransposeImage": ({}, "image"),
    "VecTransposeImage-dict": ({}, "dict"),
    "VecTransposeImage-skip": ({"skip": True}, "image"),
    "VecCheckNan": ({}, "box"),
    "VecExtractDictObs": ({"key": "z"}, "dict"),
}


@pytest.mark.parametrize(
    ("around", "case"),
    [
        *(("own", case) for case in WRAPPERS),
        *((around, case) for around in ("mixed", "theirs") for case in WRAPPERS if "-" not in case),
        *((around, "VecNormalize-dict") for around in ("mixed", "theirs")),
    ],
)
def test_wrappers_through_many_episodes(around: str, case: str) -> None:
    """Ours around our VecEnv and around theirs, and theirs around ours: all like theirs alone."""
    kwargs, obs = WRAPPERS[case]
    name = case.split("-", maxsplit=1)[0]
    env_fns = walkers(obs=obs)
    venv = (sb3 if around == "mixed" else own).DummyVecEnv(env_fns)
    tested = getattr(sb3 if around == "theirs" else own, name)(venv, **kwargs)
    reference = getattr(sb3, name)(sb3.DummyVecEnv(env_fns), **kwargs)
    assert walk_together(tested, reference) > 30


def test_statistics_of_vec_normalize() -> None:
    env_fns = walkers(obs="dict")
    ours = own.VecNormalize(own.DummyVecEnv(env_fns), norm_obs_keys=["z", "image"])
    theirs = sb3.VecNormalize(sb3.DummyVecEnv(env_fns), norm_obs_keys=["z", "image"])
    walk_together(ours, theirs)
    for one, other in (
        (ours.ret_rms, theirs.ret_rms),
        *((ours.obs_rms[key], theirs.obs_rms[key]) for key in ("z", "image")),
    ):
        assert_same([one.mean, one.var, one.count], [other.mean, other.var, other.count])
    assert_same(ours.returns, theirs.returns)
    obs, reward = ours.get_original_obs(), ours.get_original_reward()
    assert_same(obs, dict(theirs.get_original_obs()))
    assert_same(reward, theirs.get_original_reward())
    for name, value in (("obs", obs), ("reward", reward)):
        once = [getattr(venv, f"normalize_{name}")(value) for venv in (ours, theirs)]
        assert_same(*once)
        assert_same(
            getattr(ours, f"unnormalize_{name}")(once[0]),
            getattr(theirs, f"unnormalize_{name}")(once[1]),
        )
