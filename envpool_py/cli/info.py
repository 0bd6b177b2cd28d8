"""``envpool-py info``: the facts about this installation that a bug report needs."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import select
import sys

import envpool_py
from envpool_py.cli.arguments import add_json, installed_version, print_json
from envpool_py.worker.limits import usable_cores

HELP = "print versions and system facts, for a bug report"

_PACKAGES = ["gymnasium", "numpy", "cloudpickle", "rich", "pettingzoo", "stable-baselines3"]
_PACKAGES += ["torch", "ale-py", "mujoco", "ray", "tianshou"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    default, *others = multiprocessing.get_all_start_methods()
    facts = {
        "envpool-py": envpool_py.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cores": f"{len(usable_cores())} usable of {os.cpu_count()}",
        "start methods": ", ".join([f"{default} (default)", *others]),
        "system calls": ", ".join(
            f"{name}: {'yes' if hasattr(module, name) else 'no'}"
            for module, name in ((os, "memfd_create"), (os, "pidfd_open"), (select, "epoll"))
        ),
    }
    facts |= {name: installed_version(name) or "not installed" for name in _PACKAGES}
    if args.json:
        print_json(facts)
    else:
        sys.stdout.writelines(f"{name:<18} {value}\n" for name, value in facts.items())
    return 0
