"""The VecEnvs under test: in this process, and in others."""

import functools
import importlib

import pytest
import stable_baselines3.common.vec_env as sb3

import envpool_py as ep
import envpool_py.sb3 as own

#: ``SubprocVecEnv`` is the same class under another name.
BACKENDS = {
    "dummy": own.DummyVecEnv,
    "shmem": functools.partial(own.ShmemVecEnv, start_method="fork", num_processes=2),
}
#: Stable-Baselines3's own, of the same kind.
THEIRS = {"dummy": sb3.DummyVecEnv}
THEIRS |= {"shmem": functools.partial(sb3.SubprocVecEnv, start_method="fork")}


@pytest.fixture(params=BACKENDS)
def make(request):
    """Make a VecEnv, of each backend in turn."""
    return BACKENDS[request.param]


@pytest.fixture(autouse=True)
def closed_in_the_end(monkeypatch):
    """Close the pools of all VecEnvs that the test has made."""
    pools, begin = [], own.PoolVecEnv.__init__

    def noted(venv, pool):
        pools.append(pool)
        begin(venv, pool)

    monkeypatch.setattr(own.PoolVecEnv, "__init__", noted)
    yield
    for pool in pools:
        if isinstance(pool, ep.BaseVectorEnv):
            pool.close()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Use one thread of torch, so that sums do not depend on their order."""
    importlib.import_module("torch").set_num_threads(1)  # the quick tests read this file too
