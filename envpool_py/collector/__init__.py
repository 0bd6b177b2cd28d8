"""Collect whole episodes or batches of transitions from a pool, asynchronously; store episodes.

``AsyncCollector`` steps a pool with a policy. ``episodes`` yields each episode when it ends;
``steps`` yields batches of transitions; ``rollout`` returns steps of all envs under one policy, for
on-policy learners. ``evaluate`` runs each of some episodes exactly once. ``EpisodeWriter``,
``save`` and ``load`` write and read episodes without pickle.
"""

from __future__ import annotations

from envpool_py.collector.collect import AsyncCollector, shares
from envpool_py.collector.episode import Episode, Transitions
from envpool_py.collector.evaluation import Evaluation, evaluate
from envpool_py.collector.file import EpisodeWriter, save
from envpool_py.collector.policy import Policy, PolicyWithInfos, RandomPolicy
from envpool_py.collector.reader import Episodes, load
from envpool_py.collector.rollout import Rollout

__all__ = [
    "AsyncCollector",
    "Episode",
    "EpisodeWriter",
    "Episodes",
    "Evaluation",
    "Policy",
    "PolicyWithInfos",
    "RandomPolicy",
    "Rollout",
    "Transitions",
    "evaluate",
    "load",
    "save",
    "shares",
]
