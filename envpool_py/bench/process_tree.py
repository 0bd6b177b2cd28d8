"""What a process and all its descendants use, as Linux tells it in ``/proc``.

Elsewhere there is nothing to read: times and sizes are None.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_NANO = 1e-9


def members(root: int) -> list[int]:
    """The process ``root`` and its descendants, as they are now."""
    children: dict[int, list[int]] = {}
    for entry in _entries(_PROC):
        with contextlib.suppress(OSError):  # it has ended
            # The name, in brackets, may hold spaces and brackets of its own.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:  # grows meanwhile
        found.extend(children.get(pid, []))
    return found


def cpu_seconds(pids: list[int]) -> float | None:
    """The CPU time that all threads of these processes have used so far, in seconds."""
    if not (_PROC / "self/schedstat").exists():
        return None
    total = 0
    for pid in pids:
        for task in _entries(_PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total * _NANO


def queued_seconds() -> float:
    """How long this thread could have run so far, but had no core, in seconds; 0 if unknown."""
    try:
        return int((_PROC / "thread-self/schedstat").read_text().split()[1]) * _NANO
    except OSError:
        return 0.0


def memory_bytes(pids: list[int]) -> int | None:
    """The memory of these processes; what several share is counted once (summed PSS)."""
    if not (_PROC / "self/smaps_rollup").exists():
        return None
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total


def machine_cpu_seconds() -> float | None:
    """The CPU time that all processes of the machine have used so far, in seconds."""
    try:
        with (_PROC / "stat").open() as lines:
            ticks = [int(field) for field in lines.readline().split()[1:8]]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq = ticks
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def available_bytes() -> int | None:
    """The memory that the machine could still give."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder that are numbers, none where it is gone."""
    try:
        return [entry for entry in folder.iterdir() if entry.name.isdigit()]
    except OSError:
        return []
