"""What users of other libraries type on every pool: their keywords and names."""

import numpy as np
import pytest

import envpool_py
from tests.support import envs
from tests.support.places import BACKENDS, PLACES

CLASSES = (envpool_py.DummyVectorEnv, envpool_py.SubprocVectorEnv, envpool_py.ShmemVectorEnv)
FOREIGN = {
    "batch_size": "here it is wait_num",
    "n_envs": "here it is num_envs in envpool_py.make",
    "num_workers": "here it is num_processes",
    "vectorization_mode": "here it is backend in envpool_py.make, or a pool class",
    "asynchronous": "here it is ShmemVectorEnv, or backend='shmem' in envpool_py.make",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_keyword_of_another_library_is_an_error_that_names_ours(name):
    text = f"^{name} is an argument of other libraries; {FOREIGN[name]}"
    with pytest.raises(TypeError, match=text):
        envpool_py.make("CartPole-v1", **{name: 2})
    for pool in CLASSES:
        with pytest.raises(TypeError, match=text):
            pool([envs.CountEnv], **{name: 2})


@pytest.mark.parametrize("place", BACKENDS)
def test_single_spaces_and_ids_of_the_last_batch(place):
    with PLACES[place]([lambda i=i: envs.CountEnv(i) for i in range(4)], wait_num=2) as pool:
        assert pool.single_observation_space == envs.CountEnv().observation_space
        assert pool.single_action_space == envs.CountEnv().action_space
        assert pool.batch_ids.tolist() == []
        pool.reset([3, 1])
        pool.reset([0, 2])
        obs, ids = pool.step([0] * 4)[0], pool.batch_ids
        assert isinstance(ids, np.ndarray)
        assert ids.tolist() == obs[:, 0].tolist()
        ids[:] = 9
        assert pool.batch_ids.tolist() == obs[:, 0].tolist()
