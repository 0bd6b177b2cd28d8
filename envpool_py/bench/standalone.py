"""The script that a measured process runs: ``python standalone.py JSON``.

The JSON is ``{"job": ..., "ours": bool}``, ``{"profile": ...}`` or ``{"versions": true}``. The
answer is one line of JSON on stdout; whatever else is printed goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

_BENCH = Path(__file__).resolve().parent
_PACKAGE = _BENCH.parent

#: Whose versions are of interest.
_PACKAGES = (
    "gymnasium",
    "numpy",
    "stable-baselines3",
    "tianshou",
    "pufferlib",
    "torchrl",
    "pettingzoo",
    "mpe2",
    "supersuit",
    "agilerl",
    "torch",
    "ale-py",
    "mujoco",
)


def find_package(*, whole: bool) -> None:
    """Make ``envpool_py.bench`` importable, and the rest of the package only if it is asked for.

    A peer may lack what the rest needs, and its processes should not carry it.
    """
    # Where the script is, Python would find our `table` and `plot` in place of somebody's own.
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _BENCH]
    sys.path.append(str(Path.cwd()))
    if whole:
        sys.path.insert(0, str(_PACKAGE.parent))
    elif "envpool_py" not in sys.modules:
        package = types.ModuleType("envpool_py")  # without what its __init__ imports
        package.__path__ = [str(_PACKAGE)]
        sys.modules["envpool_py"] = package


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def allow_files() -> None:
    """Let this process have as many files open as it may: many envs need many pipes."""
    resource = importlib.import_module("resource")  # which Windows has not
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def carry_out(told: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for."""
    if "versions" in told:
        return versions()
    from envpool_py.bench import measure, profile  # noqa: PLC0415 - found only now
    from envpool_py.bench.job import Job  # noqa: PLC0415

    if sys.platform == "linux":
        multiprocessing.set_start_method("fork")  # everybody's, so that starts can be compared
        allow_files()
    if "profile" in told:
        return profile.profile(**told["profile"])._asdict()
    return measure.measure(Job(**told["job"]))._asdict()


def main() -> None:
    """Answer."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer.write(json.dumps(carry_out(told)) + "\n")
    answer.close()


told: dict[str, Any] = json.loads(sys.argv[1])
find_package(whole=bool(told.get("ours")))  # in processes that are spawned too: they import this
if __name__ == "__main__":
    main()
