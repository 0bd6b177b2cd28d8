"""The tier of Ray: every place of `tests.support.places` but LOCAL is Ray, for any test.

`tests/conftest.py` has pytest import this for `pytest -m ray`.
"""

import gc
import threading
import warnings

import pytest
import ray

from envpool_py import RayVectorEnv
from envpool_py.worker import supervisor
from tests.ray.cluster import actors, idle, keep_actors
from tests.support import envs, places, session
from tests.support.helpers import ROOT, descriptors, wait_until

PLACE = places.Place(RayVectorEnv, {"envs_per_actor": 2, "num_cpus": 0.01}, 3)
"""Two actors, one of them with two envs."""


class Places(dict):
    """The place of Ray, also by the names of others."""

    def __missing__(self, name):
        return PLACE


places.PLACES = Places(ray=PLACE)
places.QUICK = places.PROCESSES = places.BACKENDS = ("ray",)
session.ROUNDS = 1  # of calls to an actor, which take long


def pytest_collection_modifyitems(items, config):
    """Keep the tests of Ray, and those of any backend; let warnings of its start pass."""
    kept, left_out = [], []
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        own = item.path.is_relative_to(ROOT / "tests/ray")
        (kept if own or "ray" in list(map(str, params)) else left_out).append(item)
        for ignored in (":ResourceWarning", ":FutureWarning", ".*env_fn has not returned after"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{ignored}"))
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def ray_is_there():
    """Start Ray, and have it open what it keeps open, before a test looks at what it leaves."""
    keep_actors()
    supervisor.GRACE = 20.0  # on a busy machine an actor may take more than 5 seconds to end
    options = {"num_cpus": 4, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", log_to_driver=False, logging_level="ERROR", **options)
    with PLACE([envs.CountEnv] * 2) as pool:
        pool.reset()
    yield
    ray.shutdown()
    idle.clear()
    with warnings.catch_warnings():
        # It does not wait for all its processes. Their Popen objects would warn when pytest ends.
        warnings.simplefilter("ignore")
        gc.unfreeze()
        gc.collect()


def there():
    """Return what a test must not leave; Ray opens and closes sockets as it pleases."""
    files = {what for what in descriptors().values() if not what.startswith("socket")}
    return {*actors(), *files, *threading.enumerate()}


@pytest.fixture(autouse=True)
def nothing_left_on_ray(ray_is_there):
    """Check that the test leaves no actor, no descriptor and no thread."""
    del ray_is_there
    gc.freeze()  # not to be looked through again after each test
    before = there()
    yield
    gc.collect()
    assert wait_until(lambda: there() <= before, 30), there() - before
