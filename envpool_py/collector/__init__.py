"""Asynchronous collection of whole episodes from a pool, and their file.

``AsyncCollector`` steps a pool with a policy and yields each episode when it ends; ``save`` and
``load`` write and read episodes as one ``.npz`` file without pickle.
"""

from __future__ import annotations

from envpool_py.collector.collect import AsyncCollector, shares
from envpool_py.collector.episode import Episode
from envpool_py.collector.file import Episodes, EpisodeWriter, Transitions, load, save
from envpool_py.collector.policy import Policy, RandomPolicy

__all__ = [
    "AsyncCollector",
    "Episode",
    "EpisodeWriter",
    "Episodes",
    "Policy",
    "RandomPolicy",
    "Transitions",
    "load",
    "save",
    "shares",
]
