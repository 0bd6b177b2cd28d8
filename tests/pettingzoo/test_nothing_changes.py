"""Every call of the pools of PettingZoo's envs: see ``tests/test_nothing_changes.py``."""

import numpy as np
import pytest

from envpool_py.pettingzoo import ParallelVectorEnv, SB3MultiAgentVecEnv
from tests.pettingzoo.envs import MeadowEnv, PlainMeadowEnv
from tests.support.reference import same
from tests.support.watched import Watched


def actions(found):
    return {agent: np.zeros(2, int) for agent in found.target.agents}


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_a_parallel_vector_env(backend):
    options = {"autoreset_mode": "same_step", "measure": True}
    with ParallelVectorEnv([MeadowEnv] * 2, backend, **options) as env:
        found = Watched(env)
        for _ in range(2):
            found.reset(seed=[1, 2], options=[{"total": 1}, {"total": 2}])
            for _ in range(12):
                found.step(actions(found))
                found.group({agent: np.zeros(2) for agent in env.possible_agents}, "hunter")
            found.send(actions(found))
            found.recv()
            found.send_reset([1], options={"total": 3})
            found.drain()
            found.state()
            found.render()
            found.render_grid()
            found.seed(3)
            found.reset()
            for name in ("agents", "batch_ids", "restarts", "stats"):
                value = getattr(found, name)
                _ = value() if callable(value) else value
        assert found.changed() == set()


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_a_vec_env(backend):
    results = []
    for spoils in (False, True):
        found = drive_vec_env(backend, spoils=spoils)
        assert spoils or found.changed() == set()
        results.append(found.results())
    assert same(*results)


def drive_vec_env(backend, *, spoils):
    with SB3MultiAgentVecEnv([PlainMeadowEnv] * 2, backend=backend) as env:
        found = Watched(env, spoils=spoils)
        found.set_options([{"total": 1}, {"total": 2}])
        for _ in range(2):
            found.seed([1, 2])
            found.reset()
            for _ in range(12):
                found.step(env.action_masks().argmax(axis=1))
                found.action_masks()
                found.env_method("action_masks")
            found.step_async(np.zeros(env.num_envs, int))
            found.step_wait()
            found.get_images()
    return found
