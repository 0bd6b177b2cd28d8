"""The VecEnvs under test: in this process, and in others."""

import functools

import pytest

import envpool_py.sb3 as own

#: ``SubprocVecEnv`` is the same class with another pool, which has the same processes and memory.
BACKENDS = {
    "dummy": own.DummyVecEnv,
    "shmem": functools.partial(own.ShmemVecEnv, start_method="fork", num_processes=2),
}


@pytest.fixture(autouse=True)
def closed_in_the_end(monkeypatch):
    """Close all VecEnvs that the test has made."""
    made = []
    begin = own.PoolVecEnv.__init__

    def noted(venv, pool):
        made.append(venv)
        begin(venv, pool)

    monkeypatch.setattr(own.PoolVecEnv, "__init__", noted)
    yield
    for venv in made:
        if hasattr(venv, "pool"):  # else it was refused
            venv.pool.close()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two cores are there for all; and sums come out the same."""
    import torch  # noqa: PLC0415 - the quick tests read this file too, and must not import it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=BACKENDS)
def make(request):
    """Make a VecEnv, of each backend in turn."""
    return BACKENDS[request.param]
