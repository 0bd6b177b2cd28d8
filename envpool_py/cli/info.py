"""``envpool-py info``: the facts about this installation that a bug report needs."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
from importlib import metadata

import envpool_py
from envpool_py.cli.arguments import report
from envpool_py.worker.cores_and_threads import usable_cores

HELP = "print versions and system facts, for a bug report"

_PACKAGES = ["gymnasium", "numpy", "cloudpickle", "rich", "pettingzoo", "stable-baselines3"]
_PACKAGES += ["torch", "ale-py", "mujoco", "ray", "tianshou"]


def add_options(_: argparse.ArgumentParser) -> None: ...


def run(args: argparse.Namespace) -> int:
    default, *others = multiprocessing.get_all_start_methods()
    facts = {
        "envpool-py": envpool_py.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cores": f"{len(usable_cores())} usable of {os.cpu_count()}",
        "start methods": ", ".join([f"{default} (default)", *others]),
    }
    for name in _PACKAGES:
        versions = [each.version for each in metadata.distributions(name=name)]
        facts[name] = versions[0] if versions else "not installed"
    lines = (f"{name:<18} {value}\n" for name, value in facts.items())
    report(args, facts, lambda: sys.stdout.writelines(lines))
    return 0
