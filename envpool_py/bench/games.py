"""Envs of many agents: which there are, how they are made, and one of them by itself."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envpool_py.bench.job import Running

#: Whose envs a pool steps: Gymnasium's, or PettingZoo's, all agents at once or in turns.
GYM, PARALLEL, TURNS = "gym", "parallel", "turns"

#: Batches of actions that are drawn beforehand.
_BATCHES = 64

#: A bare env is stepped for about so long between two batches, seconds.
_BARE_BATCH = 0.005


class Game(NamedTuple):
    """An env of many agents, which all have the same space of discrete actions."""

    text: str
    module: str
    """Has ``env``, and ``parallel_env`` where agents act at once."""
    options: dict[str, Any]
    masked: bool = False
    """Whether some actions are illegal; then agents act in turns alone."""


GAMES = {
    "spread": Game("simple_spread", "mpe2.simple_spread_v3", {}),
    # Discrete: AgileRL takes the dimension from an action of shape (1,), which the env refuses.
    "pistonball": Game("pistonball", "pettingzoo.butterfly.pistonball_v6", {"continuous": False}),
    "tictactoe": Game("tic-tac-toe", "pettingzoo.classic.tictactoe_v3", {}, masked=True),
}


def faces(name: str) -> tuple[str, ...]:
    """As what an env can be stepped; the first is the one that is measured by itself."""
    if name not in GAMES:
        return (GYM,)
    return (TURNS,) if GAMES[name].masked else (PARALLEL, TURNS)


def make(name: str, face: str) -> Any:
    """Make one env; runs in worker processes."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
    game = GAMES[name]
    module = importlib.import_module(game.module)
    return (module.parallel_env if face == PARALLEL else module.env)(**game.options)


def env_fns(name: str, face: str, num_envs: int) -> list[Callable[[], Any]]:
    """One callable for each env."""
    return [functools.partial(make, name, face)] * num_envs


def draw_actions(name: str, face: str, num_envs: int) -> list[NDArray[np.int64]]:
    """Batches of random actions, the same ones for everybody.

    Returns:
        Arrays ``(num_envs, num_agents)`` for agents that act at once, ``(num_envs,)`` for turns;
        where some actions are illegal, they are numbers for ``legal``.
    """
    env = make(name, face)
    agents = env.possible_agents
    num_actions = 1 << 16 if GAMES[name].masked else int(env.action_space(agents[0]).n)
    env.close()
    shape = (num_envs, len(agents)) if face == PARALLEL else (num_envs,)
    rng = np.random.default_rng(0)
    return [rng.integers(0, num_actions, shape) for _ in range(_BATCHES)]


def legal(mask: Any, number: Any) -> int:
    """The legal action that a random number stands for."""
    actions = np.flatnonzero(mask)
    return int(actions[number % len(actions)])


def bare(name: str, face: str, batches: list[Any]) -> Running:
    """One env in a tight loop; a batch is as many steps as take a few milliseconds."""
    env = make(name, face)
    rows = itertools.cycle([row for batch in batches for row in batch.tolist()])
    env.reset(seed=0)
    masked = GAMES[name].masked
    advance_once = (
        _all_at_once(env, rows) if face == PARALLEL else _in_turns(env, rows, masked=masked)
    )

    def advance() -> int:
        clock = time.perf_counter
        end = clock() + _BARE_BATCH
        steps = advance_once()
        while clock() < end:
            steps += advance_once()
        return steps

    return Running(advance, env.close)


def _all_at_once(env: Any, rows: Iterator[Any]) -> Callable[[], int]:
    agents = env.possible_agents

    def advance() -> int:
        env.step(dict(zip(agents, next(rows), strict=True)))
        if not env.agents:
            env.reset()
        return len(agents)

    return advance


def _in_turns(env: Any, rows: Iterator[Any], *, masked: bool) -> Callable[[], int]:
    seen = env.last()[0]

    def advance() -> int:
        nonlocal seen
        number = next(rows)
        env.step(legal(seen["action_mask"], number) if masked else number)
        seen, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.reset()
            seen = env.last()[0]
        return 1

    return advance
