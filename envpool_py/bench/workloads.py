"""The work that is measured: which env, how many of them, how many rows to a batch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envpool_py.bench import envs
from envpool_py.bench.games import GAMES

#: Actions that are drawn beforehand: about so many, and so many batches at least.
_ACTIONS = 1 << 12
_BATCHES = 8


class Kind(NamedTuple):
    """An env of the benchmark."""

    text: str
    make: Callable[[int], gym.Env[Any, Any]]
    waits: bool = False
    """Whether its steps wait rather than compute: then all envs can be stepped at once."""


def _registered(env_id: str) -> Callable[[int], gym.Env[Any, Any]]:
    def make(_seed: int) -> gym.Env[Any, Any]:
        if env_id.startswith("ALE/"):
            importlib.import_module("ale_py")  # registers them
        return gym.make(env_id)

    return make


def _spin(microseconds: float) -> Kind:
    return Kind(f"{microseconds} µs of CPU", lambda _: envs.make(envs.Spin, microseconds))


def _image(*shape: int) -> Kind:
    text = "x".join(map(str, shape))
    return Kind(f"uint8 image {text}", lambda seed: envs.make(envs.Image, shape, seed))


KINDS = {
    "cartpole": Kind("CartPole-v1", _registered("CartPole-v1")),
    "spin-10": _spin(10),
    "spin-100": _spin(100),
    "spin-1000": _spin(1000),
    "image-84": _image(84, 84, 4),
    "image-210": _image(210, 160, 3),
    "dict": Kind("Dict observation", lambda _: envs.make(envs.Dict)),
    "info": Kind("info of ten scalars", lambda _: envs.make(envs.Info)),
    "sleep": Kind("sleeping env, heavy tail", lambda seed: envs.make(envs.Sleep, seed), waits=True),
    "pong": Kind("ALE/Pong-v5", _registered("ALE/Pong-v5")),
    "halfcheetah": Kind("HalfCheetah-v5", _registered("HalfCheetah-v5")),
}


class Workload(NamedTuple):
    """One piece of work."""

    env: str
    """One of ``KINDS`` or of ``games.GAMES``, or any id that ``gymnasium.make`` takes."""
    num_envs: int
    wait_num: int | None = None
    """Rows that a batch waits for; None: all of them."""

    @property
    def name(self) -> str:
        """How it is called on the command line."""
        return f"{self.env}-x{self.num_envs}" + (f"-wait{self.wait_num}" if self.wait_num else "")

    @property
    def title(self) -> str:
        """How it is called in tables."""
        text = self.env
        if text in KINDS:
            text = KINDS[text].text
        elif text in GAMES:
            text = f"{GAMES[text].text}, steps of agents,"
        rows = f", wait_num={self.wait_num}" if self.wait_num else ""
        return f"{text} x {self.num_envs}{rows}"

    @property
    def waits(self) -> bool:
        """Whether its steps wait rather than compute."""
        return self.env in KINDS and KINDS[self.env].waits


WORKLOADS = (
    Workload("cartpole", 8),
    Workload("cartpole", 64),
    Workload("cartpole", 256),
    Workload("cartpole", 1024),
    Workload("cartpole", 64, 16),
    Workload("spin-10", 16),
    Workload("spin-100", 16),
    Workload("spin-1000", 16),
    Workload("spin-100", 16, 4),
    Workload("image-84", 64),
    Workload("image-210", 16),
    Workload("dict", 16),
    Workload("info", 16),
    Workload("sleep", 32),
    Workload("sleep", 32, 8),
    Workload("pong", 16),
    Workload("pong", 16, 4),
    Workload("halfcheetah", 16),
    Workload("spin-100", 64, 8),
    Workload("spin-100", 4096, 8),
)

#: Of PettingZoo's envs, which are not measured unless they are asked for.
AGENT_WORKLOADS = (Workload("spread", 16), Workload("pistonball", 16), Workload("tictactoe", 16))


def make_env(env: str, seed: int) -> gym.Env[Any, Any]:
    """Make one env of a workload; runs in worker processes.

    Args:
        env: one of ``KINDS``, or an id for ``gymnasium.make``.
        seed: what makes this env different from its siblings, where they differ at all.
    """
    make = KINDS[env].make if env in KINDS else _registered(env)
    return make(seed)


def env_fns(workload: Workload) -> list[Callable[[], gym.Env[Any, Any]]]:
    """One callable for each env."""
    return [functools.partial(make_env, workload.env, i) for i in range(workload.num_envs)]


def draw_actions(space: gym.Space[Any], num_envs: int) -> list[Any]:
    """Batches of random actions, the same ones for everybody.

    Returns:
        Arrays ``(num_envs, *shape)``; lists of ``num_envs`` actions where those are no arrays.
    """
    space.seed(0)
    batches: list[Any] = []
    for _ in range(max(_BATCHES, _ACTIONS // num_envs)):
        batch = [space.sample() for _ in range(num_envs)]
        batches.append(np.stack(batch) if space.shape is not None else batch)
    return batches
