"""``copy=False``: each row holds until its env is sent on, and memory is used again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from tests.support.places import BACKENDS, PLACES

NUM_ENVS = 6


class Numbers(gym.Env[Any, Any]):
    """Its observations say which env and which of its steps they are of."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, i: int, kind: str) -> None:
        box = gym.spaces.Box(0, 1e6, (3,), np.float32)
        self.observation_space = (
            box if kind == "box" else gym.spaces.Dict({"at": box, "note": gym.spaces.Text(20)})
        )
        self._kind = kind
        self._value = 1000.0 * i

    def _obs(self) -> Any:
        self._value += 1
        at = np.full(3, self._value, np.float32)
        return at if self._kind == "box" else {"at": at, "note": f"{self._value:.0f}"}

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        del action
        return self._obs(), 0.0, False, False, {}


@pytest.mark.parametrize("place", BACKENDS)
@pytest.mark.parametrize(("kind", "columns"), [("box", False), ("dict", False), ("dict", True)])
def test_rows_hold_until_their_env_is_sent_on(place: str, kind: str, columns: bool) -> None:
    rng = np.random.default_rng(0)
    env_fns = [lambda i=i: Numbers(i, kind) for i in range(NUM_ENVS)]
    held: dict[int, tuple[Any, float]] = {}
    counts = [0] * NUM_ENVS
    addresses: list[int] = []

    def keep(obs: Any, infos: Any) -> None:
        whole = obs["at"] if columns else obs
        if kind == "box":
            addresses.append(whole.__array_interface__["data"][0])
        for k, info in enumerate(infos):
            i = info["env_id"]
            counts[i] += 1
            row = whole[k] if columns or kind == "box" else whole[k]["at"]
            held[i] = row, 1000.0 * i + counts[i]

    with PLACES[place](env_fns, wait_num=2, columns=columns, copy=False) as pool:
        keep(*pool.reset(list(range(NUM_ENVS))[::-1]))
        for _ in range(200):
            ready = pool.ready_id
            size = int(rng.integers(0, len(ready) + 1))
            chosen = rng.permutation(ready)[:size].tolist()
            for i in chosen:
                del held[i]
            kind_of_request = rng.integers(0, 4)
            if kind_of_request == 0:
                pool.send_reset(chosen)
            else:
                pool.send([0] * size, chosen)
            if pool.waiting_id:
                batch = pool.recv()
                keep(batch[0], batch[4])
            for row, expected in held.values():
                assert row.tolist() == [expected] * 3
        pool.drain()
    if kind == "box":
        assert len(set(addresses)) <= NUM_ENVS + 1  # the same memory again and again


def test_whole_batches_are_views_and_any_other_is_not() -> None:
    env_fns = [lambda i=i: Numbers(i, "box") for i in range(3)]
    with envpool_py.ShmemVectorEnv(env_fns, num_processes=1, copy=False) as pool:
        first, _ = pool.reset()
        part, _ = pool.reset([2, 0])
        assert np.shares_memory(pool.reset()[0], first)
        assert not np.shares_memory(part, first)
