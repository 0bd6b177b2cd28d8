"""The work that is measured: which envs, how many of them, how many rows to a batch."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envpool_py.bench.settings import LOOP, Running, Setting, draw_actions, start

EPISODE = 100
"""Steps in an episode of a synthetic env; it ends by truncation."""

GYM, PARALLEL, TURNS = "gym", "parallel", "turns"
"""Whose API an env has: Gymnasium's, or PettingZoo's for agents that act at once or in turns."""

ROLLOUTS = "rollouts"
"""A batch is a rollout, which is no batch of ``WORKLOADS``: ``docs/build/cores.py`` measures it."""

ROLLOUT = 128
"""Steps of each env in a rollout."""


class Synthetic(gym.Env):
    """Does no work by itself. ``work``, ``observe`` and ``describe`` take the number of the step.

    They wait or compute, return the observation and return the info.
    """

    def __init__(
        self,
        space: spaces.Space | None = None,
        work: Callable[[int], Any] = lambda _: None,
        observe: Callable[[int], Any] = lambda t: np.full(4, t, np.float32),
        describe: Callable[[int], dict] = lambda _: {},
    ) -> None:
        self.observation_space = space or _vector(4)
        self.action_space = spaces.Discrete(2)
        self._work, self._observe, self._describe = work, observe, describe
        self._t = 0

    @classmethod
    def make(cls, *args: Any, **options: Any) -> gym.Env:
        """Make one with the wrappers that ``gymnasium.make`` puts around any env."""
        make = functools.partial(cls, *args, **options)
        return gym.make(gym.envs.registration.EnvSpec("A-v0", make, max_episode_steps=EPISODE))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._observe(0), self._describe(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step, whatever the action."""
        del action
        self._t += 1
        self._work(self._t)
        return self._observe(self._t), 1.0, False, False, self._describe(self._t)


def _vector(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _spin(microseconds: float, _seed: int) -> gym.Env:
    def work(_: int) -> None:
        end = time.thread_time_ns() + round(1000 * microseconds)
        while time.thread_time_ns() < end:
            pass

    return Synthetic.make(work=work)


def _sleep(seed: int) -> gym.Env:
    """Sleeps 1 ms at least, 2.7 ms on average, 34 ms once in an episode.

    The quantiles of a Pareto distribution, in another order in each env: episodes take as long.
    """
    times = 0.001 * (1 - (np.arange(EPISODE) + 0.5) / EPISODE) ** (-1 / 1.5)
    order = np.random.default_rng(seed).permutation(times).tolist()
    return Synthetic.make(work=lambda t: time.sleep(order[t - 1]))


def _wait(seconds: float, _seed: int) -> gym.Env:
    return Synthetic.make(work=lambda _: time.sleep(seconds))


def _image(shape: tuple[int, ...], seed: int) -> gym.Env:
    background = np.random.default_rng(seed).integers(0, 128, shape, np.uint8)

    def observe(t: int) -> Any:
        image, at = background.copy(), t % 64
        image[at : at + 8, at : at + 8] = 255
        return image

    return Synthetic.make(spaces.Box(0, 255, shape, np.uint8), observe=observe)


def _dict(_seed: int) -> gym.Env:
    leaves = {"position": _vector(3), "velocity": _vector(3), "range": _vector(32)}
    others = {"touch": spaces.MultiBinary(4), "task": spaces.Discrete(10)}

    def observe(t: int) -> dict:
        found = {name: np.full(leaf.shape, t, np.float32) for name, leaf in leaves.items()}
        return {**found, "touch": np.full(4, t % 2, np.int8), "task": np.int64(t % 10)}

    return Synthetic.make(spaces.Dict({**leaves, **others}), observe=observe)


def _info(_seed: int) -> gym.Env:
    floats = ("x", "y", "z", "speed", "cost", "energy")

    def describe(t: int) -> dict:
        found = {name: float(t) for name in floats}
        return {**found, "lap": t // 10, "lives": 3, "score": 7 * t, "touching": t % 2 == 0}

    return Synthetic.make(describe=describe)


def _registered(env_id: str, _seed: int) -> gym.Env:
    return gym.make(env_id)


KINDS: dict[str, Callable[[int], gym.Env]] = {
    "cartpole": functools.partial(_registered, "CartPole-v1"),
    "spin-10": functools.partial(_spin, 10),
    "spin-100": functools.partial(_spin, 100),
    "spin-1000": functools.partial(_spin, 1000),
    "image-84": functools.partial(_image, (84, 84, 4)),
    "image-210": functools.partial(_image, (210, 160, 3)),
    "dict": _dict,
    "info": _info,
    "sleep": _sleep,
    "wait": functools.partial(_wait, 0.002),
    "pong": functools.partial(_registered, "ale_py:ALE/Pong-v5"),
    "halfcheetah": functools.partial(_registered, "HalfCheetah-v5"),
}
"""What makes an env of a number that differs between envs."""

ENVPOOL: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {}),
    "halfcheetah": ("HalfCheetah-v5", {}),
    "pong": (
        "Pong-v5",  # frames as ALE/Pong-v5 returns them
        {
            "img_height": 210,
            "img_width": 160,
            "gray_scale": False,
            "stack_num": 1,
            "noop_max": 1,
            "repeat_action_probability": 0.25,
            "full_action_space": False,
        },
    ),
}
"""Kinds that EnvPool has in C++: its id and options."""

WAITS = {"sleep", "wait"}
"""Kinds whose steps wait rather than compute, so that all envs can be stepped at once."""


class Game(NamedTuple):
    """A PettingZoo env whose agents have one space of discrete actions."""

    module: str
    options: dict[str, Any]
    masked: bool = False
    """Whether some actions are illegal; then agents act in turns only."""


GAMES = {
    "spread": Game("mpe2.simple_spread_v3", {}),
    # Discrete: AgileRL takes the dimension from an action of shape (1,), which the env refuses.
    "pistonball": Game("pettingzoo.butterfly.pistonball_v6", {"continuous": False}),
    "tictactoe": Game("pettingzoo.classic.tictactoe_v3", {}, masked=True),
}


class Workload(NamedTuple):
    """One piece of work: ``wait_num`` rows to a batch, or all of them."""

    env: str
    num_envs: int
    wait_num: int | None = None

    @property
    def name(self) -> str:
        """The name on the command line and in tables."""
        return f"{self.env}-x{self.num_envs}" + (f"-wait{self.wait_num}" if self.wait_num else "")

    @property
    def faces(self) -> tuple[str, ...]:
        """The APIs that the env has; the first one is measured as the bare env."""
        if self.env in KINDS:
            return (GYM,)
        return (TURNS,) if GAMES[self.env].masked else (PARALLEL, TURNS)


WORKLOADS = (
    *(Workload("cartpole", n) for n in (8, 64, 256, 1024)),
    Workload("cartpole", 64, 16),
    *(Workload(f"spin-{n}", 16) for n in (10, 100, 1000)),
    Workload("spin-100", 16, 4),
    Workload("image-84", 64),
    *(Workload(env, 16) for env in ("image-210", "dict", "info")),
    *(Workload("sleep", 32, wait_num) for wait_num in (None, 8)),
    *(Workload("pong", 16, wait_num) for wait_num in (None, 4)),
    Workload("halfcheetah", 16),
    *(Workload("spin-100", n, 8) for n in (64, 4096)),
)
AGENT_WORKLOADS = tuple(Workload(game, 16) for game in GAMES)
"""Measured only on request."""


def make_env(name: str, face: str, seed: int) -> Any:
    """Make one env; runs in worker processes."""
    if name in GAMES:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # no screen is needed
        module = importlib.import_module(GAMES[name].module)
        return (module.parallel_env if face == PARALLEL else module.env)(**GAMES[name].options)
    return KINDS[name](seed)


def env_fns(name: str, face: str, num_envs: int) -> list[Callable[[], Any]]:
    """One callable per env."""
    return [functools.partial(make_env, name, face, seed) for seed in range(num_envs)]


def batches(name: str, face: str, num_envs: int) -> list[Any]:
    """Batches of random actions, the same ones for every pool.

    Returns:
        The result of ``draw_actions``. For games arrays ``(num_envs, num_agents)``, ``(num_envs,)``
        in turns; if some actions are illegal, they are numbers for ``legal``.
    """
    if name in KINDS:
        return draw_actions(functools.partial(make_env, name, face, 0), num_envs)
    env = make_env(name, face, 0)
    agents = env.possible_agents
    num_actions = 1 << 16 if GAMES[name].masked else int(env.action_space(agents[0]).n)
    env.close()
    shape = (num_envs, len(agents)) if face == PARALLEL else (num_envs,)
    return list(np.random.default_rng(0).integers(0, num_actions, (64, *shape)))


def legal(mask: Any, number: Any) -> int:
    """Choose a legal action by a random number."""
    actions = np.flatnonzero(mask)
    return int(actions[number % len(actions)])


def bare(name: str, face: str) -> Running:
    """Step one env in a tight loop; a batch is a whole episode, as its parts differ in cost."""
    env, size = make_env(name, face, 0), EPISODE
    if face == GYM:
        return start(Setting(LOOP, size), [lambda: env] * size, batches(name, face, size))
    env.reset(seed=0)
    actions = itertools.cycle(itertools.chain(*batches(name, face, 16)))
    steps = (_steps_of_all if face == PARALLEL else _steps_in_turns)(env, actions, name)
    return Running(lambda: sum(itertools.islice(steps, size)), env.close)


def _steps_of_all(env: Any, actions: Iterator[Any], _name: str) -> Iterator[int]:
    agents = env.possible_agents
    for row in actions:
        env.step(dict(zip(agents, row.tolist(), strict=True)))
        if not env.agents:
            env.reset()
        yield len(agents)


def _steps_in_turns(env: Any, actions: Iterator[Any], name: str) -> Iterator[int]:
    for number in actions:
        seen, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.reset()
            seen = env.last()[0]
        env.step(legal(seen["action_mask"], number) if GAMES[name].masked else int(number))
        yield 1
