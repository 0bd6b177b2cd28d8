"""What a step of a session costs: CPU per step, beside a bare asyncio program of the same work.

``python sessions.py [num_envs] [rounds]``. The envs answer at once, so that nothing but the pool
and asyncio takes time.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from envpool_py import AsyncEnv, ThreadVectorEnv

STEPS = 40


class Numbers(gym.Env[int, int]):
    """Blocking, with numbers in shared memory."""

    observation_space = gym.spaces.Discrete(10)
    action_space = gym.spaces.Discrete(10)
    row: Any = (1, 1.0, False, False, {})

    def reset(self, **_: Any) -> Any:
        """Begin."""
        return self.row[0], {}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - any does
        """Answer at once."""
        return self.row


class Text(Numbers):
    """Blocking, with text."""

    observation_space: Any = gym.spaces.Text(100)
    action_space: Any = gym.spaces.Text(100)
    row = ("answer", 1.0, False, False, {})


class CoroutineNumbers(AsyncEnv[int, int]):
    """Coroutines, with numbers."""

    observation_space = Numbers.observation_space
    action_space = Numbers.action_space
    row: Any = Numbers.row

    async def reset(self, **_: Any) -> Any:
        """Begin."""
        return self.row[0], {}

    async def step(self, action: Any) -> Any:  # noqa: ARG002 - any does
        """Answer at once."""
        return self.row


class CoroutineText(CoroutineNumbers):
    """Coroutines, with text."""

    observation_space: Any = Text.observation_space
    action_space: Any = Text.action_space
    row = Text.row


async def in_sessions(env: Any, action: Any, num_envs: int) -> tuple[float, float]:
    """Return the CPU seconds of the main thread, and of the process."""
    with ThreadVectorEnv([env] * num_envs) as pool:
        async with pool.sessions() as sessions:

            async def conversation(_: int) -> None:
                async with sessions.open() as session:
                    for _ in range(STEPS):
                        await session.step(action)

            await sessions.map(conversation, range(num_envs))
            main, process = time.thread_time(), time.process_time()
            await sessions.map(conversation, range(num_envs))
            return time.thread_time() - main, time.process_time() - process


async def bare(num_envs: int) -> tuple[float, float]:
    """Return the same of an asyncio program: conversations and envs exchange rows by queues."""

    async def env(requests: Any, answers: Any) -> None:
        while await requests.get() is not None:
            answers.put_nowait(Numbers.row)

    async def conversation() -> None:
        requests, answers = asyncio.Queue[Any](), asyncio.Queue[Any]()
        task = asyncio.create_task(env(requests, answers))
        for _ in range(STEPS):
            requests.put_nowait(1)
            await answers.get()
        requests.put_nowait(None)
        await task

    main, process = time.thread_time(), time.process_time()
    await asyncio.gather(*[conversation() for _ in range(num_envs)])
    return time.thread_time() - main, time.process_time() - process


def in_batches(num_envs: int) -> tuple[float, float]:
    """Return the same of whole batches of coroutine envs, without sessions."""
    with ThreadVectorEnv([CoroutineNumbers] * num_envs) as pool:
        pool.reset()
        actions = [1] * num_envs
        for _ in range(2):  # the first warms up, as in sessions
            main, process = time.thread_time(), time.process_time()
            for _ in range(STEPS):
                pool.step(actions)
        return time.thread_time() - main, time.process_time() - process


async def bare_batches(num_envs: int) -> tuple[float, float]:
    """Return the same of a program that sends to all envs, and waits for all."""
    answers = asyncio.Queue[Any]()

    async def run(env: Any, requests: Any) -> None:
        while (action := await requests.get()) is not None:
            answers.put_nowait(await env.step(action))

    queues = [asyncio.Queue[Any]() for _ in range(num_envs)]
    tasks = [asyncio.create_task(run(CoroutineNumbers(), each)) for each in queues]
    main, process = time.thread_time(), time.process_time()
    for _ in range(STEPS):
        for each in queues:
            each.put_nowait(1)
        for _ in queues:
            await answers.get()
    found = time.thread_time() - main, time.process_time() - process
    for each in queues:
        each.put_nowait(None)
    await asyncio.gather(*tasks)
    return found


def measured(num_envs: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the medians of each program in µs per step; the programs take turns."""
    programs: dict[str, Callable[[], tuple[float, float]]] = {
        "bare": lambda: asyncio.run(bare(num_envs)),
        "numbers": lambda: asyncio.run(in_sessions(Numbers, 1, num_envs)),
        "text": lambda: asyncio.run(in_sessions(Text, "act", num_envs)),
        "coroutine_numbers": lambda: asyncio.run(in_sessions(CoroutineNumbers, 1, num_envs)),
        "coroutine_text": lambda: asyncio.run(in_sessions(CoroutineText, "act", num_envs)),
        "bare_batches": lambda: asyncio.run(bare_batches(num_envs)),
        "coroutine_batches": lambda: in_batches(num_envs),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            found[name].append(program())
    scale = 1e6 / num_envs / STEPS
    return {
        name: (
            statistics.median(x for x, _ in own) * scale,
            statistics.median(y for _, y in own) * scale,
        )
        for name, own in found.items()
    }


def main(num_envs: int = 64, rounds: int = 5) -> None:
    """Print a table."""
    print(f"{num_envs} envs, µs of CPU per step: main thread, process")
    for name, (own, process) in measured(num_envs, rounds).items():
        print(f"{name:20} {own:6.1f} {process:6.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
