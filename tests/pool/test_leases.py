"""``copy=False``: each row holds until its env is sent on, and memory is used again."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from envpool_py import ShmemVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES
from tests.support.reference import HandStepped, alike

NUM = 6


def row_of(obs: Any, k: int) -> Any:
    """Return row `k` of observations in columns, without a copy."""
    if isinstance(obs, dict):
        return {key: row_of(part, k) for key, part in obs.items()}
    return tuple(row_of(part, k) for part in obs) if isinstance(obs, tuple) else obs[k]


@pytest.mark.parametrize("place", BACKENDS)
@pytest.mark.parametrize(("name", "columns"), [("box-int64", False), ("mixed", True)])
def test_rows_hold_until_their_env_is_sent_on(place: str, name: str, columns: bool) -> None:
    rng = np.random.default_rng(0)
    fns = [functools.partial(envs.SpaceEnv, tag, name, 1000) for tag in range(NUM)]
    hand = HandStepped(fns)
    action = envs.draw(hand.envs[0].action_space, rng)
    held: dict[int, Any] = {}
    addresses: set[int] = set()

    def keep(obs: Any, infos: Any) -> None:
        if not columns:
            addresses.add(obs.__array_interface__["data"][0])
        held.update((info["env_id"], row_of(obs, k)) for k, info in enumerate(infos))

    with PLACES[place](fns, wait_num=2, columns=columns, copy=False) as pool:
        keep(*pool.reset(list(range(NUM))[::-1], seed=0))
        expected = {row.env_id: row.obs for row in hand.reset(seeds=list(range(NUM)))}
        for _ in range(40):
            chosen = [int(i) for i in rng.permutation(pool.ready_id) if rng.random() < 0.5]
            for i in chosen:
                del held[i]
            if rng.integers(0, 4) == 0:
                pool.send_reset(chosen)
                rows = hand.reset(chosen)
            else:
                pool.send([action] * len(chosen), chosen)
                rows = hand.step([action] * len(chosen), chosen)
            expected |= {row.env_id: row.obs for row in rows}
            if pool.waiting_id:
                batch = pool.recv()
                keep(batch[0], batch[4])
            assert all(alike(row, expected[i]) for i, row in held.items())
        pool.drain()
    assert len(addresses) <= NUM + 1  # the same memory again and again


def test_whole_batches_are_views_and_any_other_is_not() -> None:
    with ShmemVectorEnv([envs.CountEnv] * 3, num_processes=1, copy=False) as pool:
        first, _ = pool.reset()
        part, _ = pool.reset([2, 0])
        assert np.shares_memory(pool.reset()[0], first)
        assert not np.shares_memory(part, first)
