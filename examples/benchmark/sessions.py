"""What a step of a session costs: CPU per step, beside a bare asyncio program of the same work.

``python sessions.py [num_envs] [rounds]``. The envs answer at once, so that nothing but the pool
and asyncio takes time.
"""

import asyncio
import statistics
import sys
import time
from typing import Any

import gymnasium as gym

from envpool_py import AsyncEnv, ThreadVectorEnv

STEPS = 100


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
    """Return the same of a program whose conversations and envs exchange rows by queues."""

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


def main(num_envs: int = 64, rounds: int = 5) -> None:
    """Print a table of medians; the programs take turns."""
    kinds = ((Numbers, 1), (Text, "act"), (CoroutineNumbers, 1), (CoroutineText, "act"))
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        found.setdefault("bare asyncio", []).append(asyncio.run(bare(num_envs)))
        for env, action in kinds:
            one = asyncio.run(in_sessions(env, action, num_envs))
            found.setdefault(str(env.__doc__).rstrip("."), []).append(one)
    print(f"{num_envs} envs, µs of CPU per step: main thread, process")
    for name, pairs in found.items():
        own, process = (
            statistics.median(pair) / num_envs / STEPS * 1e6 for pair in zip(*pairs, strict=True)
        )
        print(f"{name:42} {own:6.0f} {process:6.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
