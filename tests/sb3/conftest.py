"""The VecEnvs under test, by backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import envpool_py.sb3 as own

BACKENDS: dict[str, Callable[..., own.PoolVecEnv]] = {
    "dummy": own.DummyVecEnv,
    "subproc": functools.partial(own.SubprocVecEnv, start_method="fork", num_processes=2),
    "shmem": functools.partial(own.ShmemVecEnv, start_method="fork"),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Callable[..., own.PoolVecEnv]:
    """The class of a VecEnv, for tests of what holds for each."""
    return BACKENDS[request.param]


@pytest.fixture(autouse=True)
def closed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all VecEnvs that the test has made."""
    made: list[own.PoolVecEnv] = []
    begin = own.PoolVecEnv.__init__

    def noted(venv: own.PoolVecEnv, pool: Any) -> None:
        made.append(venv)
        begin(venv, pool)

    monkeypatch.setattr(own.PoolVecEnv, "__init__", noted)
    yield
    for venv in made:
        if hasattr(venv, "pool"):  # else it was refused
            venv.pool.close()


@pytest.fixture
def make(backend: Callable[..., Any]) -> Callable[..., own.PoolVecEnv]:
    """Make a VecEnv of the backend."""
    return backend
