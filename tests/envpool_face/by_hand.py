"""Envs stepped one by one, with Gymnasium's next-step autoreset: what a batch must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support import envs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.envs import Gate


class SeededEnv(envs.CountEnv):
    """Its first seed is its tag, so that envs of one callable differ."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if self.resets == 0 and seed is not None:
            self.tag = seed
        return super().reset(seed=seed, options=options)


class SeededGateEnv(SeededEnv):
    """Action 1 waits at the gate of its tag."""

    def __init__(self, gates: list[Gate]) -> None:
        super().__init__()
        self.gates = gates

    def step(self, action: Any) -> tuple:
        if int(action) == envs.BLOCK:
            self.gates[self.tag].wait()
        return super().step(action)


class SeededFaultEnv(SeededEnv):
    """Action 1 raises, 2 kills the process, 3 hangs."""

    def step(self, action: Any) -> tuple:
        if action == 1:
            raise LookupError("boom")
        if action == 2:
            envs.DIE["SIGKILL"]()
        while action == 3:
            envs.signal.pause()
        return super().step(action)


class ByHand:
    """``num_envs`` envs in this process."""

    def __init__(self, make_env: Callable[[], Any], num_envs: int, seed: int | None = 0) -> None:
        self.envs = [make_env() for _ in range(num_envs)]
        self.seeds = [None if seed is None else seed + i for i in range(num_envs)]
        self.over = [False] * num_envs
        self.elapsed = [0] * num_envs

    def reset(self, i: int) -> tuple:
        """Return (obs, reward, terminated, truncated, info, elapsed), as ``step``."""
        own = {} if self.seeds[i] is None else {"seed": self.seeds[i]}
        self.seeds[i] = None
        obs, info = self.envs[i].reset(**own)
        self.over[i], self.elapsed[i] = False, 0
        return obs, 0.0, False, False, dict(info), 0

    def step(self, i: int, action: Any) -> tuple:
        if self.over[i]:
            return self.reset(i)
        obs, reward, terminated, truncated, info = self.envs[i].step(action)
        self.over[i] = terminated or truncated
        self.elapsed[i] += 1
        return obs, reward, terminated, truncated, dict(info), self.elapsed[i]


def same(given: Any, own: Any, *, strict: bool = True) -> None:
    """Assert that two values, maybe trees, are equal; if ``strict`` in shape and dtype too."""
    if isinstance(own, dict):
        assert list(given) == list(own)
        for key in own:
            same(given[key], own[key], strict=strict)
    elif isinstance(own, tuple):
        assert len(given) == len(own)
        for one, other in zip(given, own, strict=True):
            same(one, other, strict=strict)
    else:
        np.testing.assert_array_equal(given, own, strict=strict)


def row_of(batch: Any, k: int) -> Any:
    """Return row ``k`` of a tree of arrays, without the masks."""
    if isinstance(batch, dict):
        return {key: row_of(each, k) for key, each in batch.items() if key[0] != "_"}
    if isinstance(batch, tuple):
        return tuple(row_of(each, k) for each in batch)
    return batch[k]


def check_row(batch: tuple, k: int, row: tuple) -> None:
    """Assert that row ``k`` of what ``recv`` returned equals one that was stepped by hand."""
    obs, reward, terminated, truncated, info = batch
    assert reward.dtype == np.float32
    assert terminated.dtype == truncated.dtype == np.bool_
    assert info["elapsed_step"].dtype == info["env_id"].dtype == np.int32
    own_obs, own_reward, own_terminated, own_truncated, own_info, own_elapsed = row
    same(row_of(obs, k), own_obs)
    assert reward[k] == np.float32(own_reward)
    assert (terminated[k], truncated[k]) == (own_terminated, own_truncated)
    assert info["elapsed_step"][k] == own_elapsed
    for key, value in own_info.items():
        same(row_of(info[key], k), value, strict=False)
        assert info.get(f"_{key}", np.ones(len(reward)))[k]
    for key, value in info.items():
        if key[0] != "_" and key not in {*own_info, "env_id", "players", "elapsed_step"}:
            assert not info[f"_{key}"][k], f"{key} is {value[k]} in a row without it"
