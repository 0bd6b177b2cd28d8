"""Step by step against Stable-Baselines3's own classes."""

import warnings

import gymnasium as gym
import numpy as np
import stable_baselines3.common.vec_env as sb3

import envpool_py.sb3 as own
from tests.support.reference import same


def plain(value):
    """A value without times, which no two runs share; equal in both libraries."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key != "t"}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if isinstance(value, gym.Space):
        return value, str(value)  # the order of a Dict
    if type(value).__name__ == "RunningMeanStd":
        return [np.asarray(value.mean), np.asarray(value.var), value.count]
    return value


def assert_same(ours, theirs, where=""):
    """Equal in structure, type of number and every bit."""
    assert same(plain(ours), plain(theirs)), f"{where}: {ours} is not {theirs}"


def theirs_like(ours, env_fns):
    """Their DummyVecEnv, with the float64 rewards of their SubprocVecEnv unless ours is a Dummy.

    Their SubprocVecEnv itself returns infos as tuples.
    """
    theirs = sb3.DummyVecEnv(env_fns)
    if not isinstance(ours.unwrapped, own.DummyVecEnv):
        theirs.buf_rews = theirs.buf_rews.astype(np.float64)
    return theirs


BUFFERS = {"buf_obs", "buf_rews", "buf_dones", "buf_infos", "keys"}
"""Attributes of theirs that ours of processes lack."""
INTERNAL = {"class_attributes", "actions", "envs", "obs_spaces"}
"""Attributes of theirs that ours lack, or that two instances do not share."""
DIFFERENT = {"venv", "t_start", "reset_infos", "stacked_obs"}
"""Attributes that two instances do not share; wrappers of theirs keep stale reset_infos."""


def assert_same_attributes(ours, theirs):
    """Ours has all public attributes that theirs has, with the same values."""
    for name in vars(theirs).keys() - INTERNAL - (set() if hasattr(ours, "envs") else BUFFERS):
        if name[0] != "_":
            assert hasattr(ours, name), name
            if name not in DIFFERENT:
                assert_same(getattr(ours, name), getattr(theirs, name), name)


def outcome(call, *args, **kwargs):
    """Return what a call returns or raises, and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            result = error
    return result, [str(each.message) for each in caught]


def asked(venv):
    """What every request to the envs returns."""
    venv.set_attr("mark", 4, indices=0)
    return [
        venv.get_attr("mark", [0]),
        venv.env_method("has_wrapper_attr", "mark"),
        venv.env_method("get_wrapper_attr", name="mark", indices=[0]),
        [venv.has_attr(name) for name in ("mark", "render_mode", "nothing")],
        venv.env_is_wrapped(gym.wrappers.TimeLimit),
        [venv.get_images(), venv.render()] if venv.render_mode == "rgb_array" else None,
    ]


def walk_together(ours, theirs, steps=60, seed=3):
    """Seed, reset and step both alike, and compare all they have; the number of episodes."""
    assert list(ours.seed(seed)) == list(theirs.seed(seed))
    for venv in (ours, theirs):
        venv.set_options({"level": 2})
        venv.action_space.seed(seed)
    assert_same(ours.reset(), theirs.reset(), "reset")
    ended = 0
    for step in range(steps):
        assert_same(ours.unwrapped.reset_infos, theirs.unwrapped.reset_infos, "reset_infos")
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        drawn = np.array([ours.action_space.sample() for _ in range(theirs.num_envs)])
        assert_same(actions, drawn, "seeded alike, which seeding the envs does not change")
        result = ours.step(actions)
        assert_same(result, theirs.step(actions), f"step {step}")
        ended += int(result[2].sum())
        if step == steps // 2:
            assert_same(ours.reset(), theirs.reset(), "second reset")
    assert_same_attributes(ours, theirs)
    assert_same(asked(ours), asked(theirs))
    return ended
