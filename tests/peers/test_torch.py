"""PyTorch: tensors as actions, and its threads in worker processes."""

import pytest
import torch

from envpool_py import SubprocVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES


@pytest.mark.parametrize("place", BACKENDS)
def test_whatever_an_action_raises_at_the_door_nothing_is_sent(place):
    with PLACES[place]([envs.CountEnv] * 2) as pool:
        pool.reset()
        with pytest.raises(RuntimeError, match="grad"):
            pool.step(torch.zeros(2, requires_grad=True))
        assert pool.waiting_id == []
        assert len(pool.step(torch.zeros(2, dtype=torch.int64))[1]) == 2


@pytest.mark.parametrize(("context", "threads"), [("fork", 1), ("fork", 2), ("spawn", 1)])
def test_worker_processes_compute_with_one_thread_unless_told_otherwise(
    context, threads, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = {"threads_per_process": threads} if threads > 1 else {}
    with SubprocVectorEnv([envs.CountEnv], context=context, **options) as pool:
        assert pool.apply(lambda _: torch.get_num_threads()) == [threads]
