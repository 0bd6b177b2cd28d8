"""Step by step against Stable-Baselines3's own classes."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal in structure, type of number and every bit; times apart, which no two runs share."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for key in theirs:
            if key != "t":
                assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs), where
        assert len(ours) == len(theirs), where
        for n, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{n}]")
    elif isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray), where
        assert ours.dtype == theirs.dtype, where
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        assert ours == theirs, where


def innermost(venv: Any) -> Any:
    """The VecEnv within all wrappers; wrappers of Stable-Baselines3 keep stale reset_infos."""
    while "venv" in vars(venv):
        venv = venv.venv
    return venv


def walk_together(ours: Any, theirs: Any, steps: int = 60, seed: int = 3) -> int:
    """Seed, reset and step both alike, and compare all they return; the number of episodes."""
    spaces_ours = [getattr(ours, name) for name in ("observation_space", "action_space")]
    assert spaces_ours == [theirs.observation_space, theirs.action_space]
    assert ours.num_envs == theirs.num_envs
    assert ours.render_mode == theirs.render_mode
    assert list(ours.seed(seed)) == list(theirs.seed(seed))
    for venv in (ours, theirs):
        venv.set_options({"level": 2})
        venv.action_space.seed(seed)
    assert_same(ours.reset(), theirs.reset(), "reset")
    ended = 0
    for step in range(steps):
        assert_same(innermost(ours).reset_infos, innermost(theirs).reset_infos, "reset_infos")
        actions = np.array([theirs.action_space.sample() for _ in range(theirs.num_envs)])
        result = ours.step(actions)
        assert_same(result, theirs.step(actions), f"step {step}")
        ended += int(result[2].sum())
        if step == steps // 2:
            assert_same(ours.reset(), theirs.reset(), "second reset")
    return ended
