"""One local Ray for all of these tests; after each of them no actor is left."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envpool_py import RayVectorEnv
from tests.ray.cluster import actors, local_ray
from tests.support import envs
from tests.support.helpers import children, descriptors, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Ray's own warnings pass."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture(scope="session", autouse=True)
def ray_is_there() -> Iterator[None]:
    """Start Ray, and have it open what it keeps open, before a test looks at what it leaves."""
    with local_ray():
        with RayVectorEnv([envs.CountEnv] * 2, envs_per_actor=1, num_cpus=0.01) as pool:
            pool.reset()
        yield


def open_files() -> set[str]:
    """Return what this process has open; Ray opens and closes sockets as it pleases."""
    return {what for what in descriptors().values() if not what.startswith("socket")}


@pytest.fixture(autouse=True)
def nothing_left(ray_is_there: None) -> Iterator[None]:
    """Check that the test leaves no actor, no child process, no descriptor and no thread."""
    del ray_is_there

    def there() -> set[object]:
        return {*actors(), *children(), *open_files(), *threading.enumerate()}

    before = there()
    yield
    gc.collect()
    assert wait_until(lambda: there() <= before, 10), there() - before
