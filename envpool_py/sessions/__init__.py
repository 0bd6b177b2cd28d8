"""Sessions of a pool: one coroutine steps one env. ``pool.sessions()`` makes them."""

from envpool_py.sessions.outcomes import Outcome, Outcomes
from envpool_py.sessions.sessions import Session, Sessions

__all__ = ["Outcome", "Outcomes", "Session", "Sessions"]
