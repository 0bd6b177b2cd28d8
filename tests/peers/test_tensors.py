"""Actions that are torch tensors."""

from __future__ import annotations

import pytest
import torch

from tests.support import envs
from tests.support.places import PLACES, QUICK


@pytest.mark.parametrize("place", QUICK)
def test_whatever_an_action_raises_at_the_door_nothing_is_sent(place: str) -> None:
    with PLACES[place]([envs.CountEnv] * 2) as pool:
        pool.reset()
        with pytest.raises(RuntimeError, match="grad"):
            pool.step(torch.zeros(2, requires_grad=True))
        assert pool.waiting_id == []
        assert len(pool.step(torch.zeros(2, dtype=torch.int64))[1]) == 2
