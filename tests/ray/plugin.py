"""A pytest plugin: every place of `tests.support.places` is Ray, for any test of a backend.

python -m pytest -p tests.ray.plugin tests/pool/test_values.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from envpool_py import RayVectorEnv
from tests.ray.cluster import local_ray
from tests.support import envs, places

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = {
    "ray": places.Place(RayVectorEnv, {"envs_per_actor": 1, "num_cpus": 0.01}, 3),
    "ray-packed": places.Place(RayVectorEnv, {"envs_per_actor": 2, "num_cpus": 0.01}, 3),
}


class Places(dict):
    """The places of Ray, also by the names of others."""

    def __getitem__(self, name: str) -> places.Place:
        return PLACES["ray-packed" if "packed" in name else "ray"]


places.PLACES = Places(PLACES)
places.QUICK = places.PROCESSES = places.BACKENDS = tuple(PLACES)


def other_name(item: pytest.Item) -> bool:
    """Whether a test is for a place that has another name too."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    texts = [value for value in params.values() if isinstance(value, str)]
    return any(t.startswith(("subproc", "shmem-spawn", "shmem-forkserver")) for t in texts)


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out what would be run twice."""
    left_out = [item for item in items if other_name(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def ray_is_there() -> Iterator[None]:
    """Start Ray, and have it open what it keeps open, before a test looks at what it leaves."""
    with local_ray():
        with PLACES["ray"]([envs.CountEnv] * 2) as pool:
            pool.reset()
        yield
