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
    rows = []
    if not pool.is_closed:
        rows.append(("observation space", str(pool.observation_space[0])))
        rows.append(("action space", str(pool.action_space[0])))
        rows.append(("rows returned", str(pool.engine.counts[1])))
        for state, text in _TEXTS.items():
            ids = np.flatnonzero(pool.engine.states.state == state).tolist()
            if ids:
                rows.append((text, name_ids(ids)))
    body = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title or repr(pool))}</caption>{body}</table>"
