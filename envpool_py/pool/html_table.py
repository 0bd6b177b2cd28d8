"""Show a pool in a notebook: its spaces, and the states of its envs."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from envpool_py.engine import states
from envpool_py.errors import name_ids

_TEXTS = {
    states.READY: "ready for a step",
    states.NEVER_RESET: "need a reset: never reset",
    states.RAISED: "need a reset: raised",
    states.INTERRUPTED: "need a reset: request cancelled",
    states.LOST: "need a reset: restarted",
    states.STEPPING: "in flight: stepping",
    states.RESETTING: "in flight: resetting",
    states.DEAD: "need restart(): process has ended",
}


def table(pool: Any, title: str | None = None) -> str:
    """Return a title (default: ``repr(pool)``), the spaces and the states of the envs as HTML."""
    facts: dict[str, Any] = {}
    if not pool.is_closed:
        facts["observation space"] = pool.observation_space[0]
        facts["action space"] = pool.action_space[0]
        facts["rows returned"] = pool.engine.counts[1]
        for state, text in _TEXTS.items():
            if ids := np.flatnonzero(pool.engine.states.state == state).tolist():
                facts[text] = name_ids(ids)
    rows = [f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in facts.items()]
    return f"<table><caption>{html.escape(title or repr(pool))}</caption>{''.join(rows)}</table>"
