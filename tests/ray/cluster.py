"""A local Ray with few resources, and the actors that run on it."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """Have a Ray that takes little memory and many small actors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=80 * 2**20,
        )
    try:
        yield
    finally:
        ray.shutdown()


def actors() -> set[int]:
    """Return the processes of actors with envs that run on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"EnvActor" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found
