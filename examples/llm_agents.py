"""Agents with a language model over an HTTP server: one conversation per task, 64 at a time.

    python examples/llm_agents.py
    python examples/llm_agents.py --kind processes --tasks 300

The server runs in a second process, for the example only. It answers after 0.1 to 1 seconds, 3 % of
all requests with the status 503, and 3 % not at all. The model is a function that waits. Every task
has one outcome: the return of its episode, or what failed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import heapq
import http.client
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from envpool_py import BaseVectorEnv, ShmemVectorEnv, ThreadVectorEnv

TIMEOUT = 2.0
THINKING = 0.05


def plan(task: int, step: int) -> tuple[float, int]:
    """Return the seconds after which the server answers, and the status; 0: no answer."""
    lot = random.Random(1000 * task + step)  # noqa: S311
    seconds = lot.uniform(0.1, 1.0)
    status = lot.choices([200, 503, 0], [0.94, 0.03, 0.03])[0]
    return (seconds, status) if step else (0.0, 200)


def num_steps(task: int) -> int:
    """Return the steps of the episode of a task."""
    return 3 + task % 5


class SessionEnv(gym.Env[Any, Any]):
    """One session of the server. Its methods are coroutines."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, step: int) -> None:
        """Ask the server; use the client that you like: httpx, aiohttp ..."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):  # also after a cancel: no late answer is left
            writer.write(f"GET /{self.task}/{step} HTTP/1.0\r\n\r\n".encode())
            status = int((await reader.readline()).split()[1])
        if status != 200:
            raise ConnectionError(f"status {status}")

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        """Begin the task of the options."""
        super().reset(seed=seed)
        self.task, self.step_number = options["task"], 0
        await self.ask(0)
        return f"task {self.task}", {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        """Send an action."""
        self.step_number += 1
        await self.ask(self.step_number)
        over = self.step_number == num_steps(self.task)
        return f"answer to {action}", 1.0, over, False, {}


class BlockingSessionEnv(SessionEnv):
    """The same with methods that block, for threads and processes."""

    def ask(self, step: int) -> None:  # type: ignore[override]
        """Ask the server; the socket's timeout ends a thread that the pool has abandoned."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * TIMEOUT)
        with contextlib.closing(connection):
            connection.request("GET", f"/{self.task}/{step}")
            status = connection.getresponse().status
        if status != 200:
            raise ConnectionError(f"status {status}")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin the task of the options."""
        gym.Env.reset(self, seed=seed)
        self.task, self.step_number = options["task"], 0
        self.ask(0)
        return f"task {self.task}", {}

    def step(self, action: Any) -> Any:
        """Send an action."""
        self.step_number += 1
        self.ask(self.step_number)
        over = self.step_number == num_steps(self.task)
        return f"answer to {action}", 1.0, over, False, {}


async def ask_model(obs: str) -> str:
    """Return what a language model answers."""
    await asyncio.sleep(THINKING)
    return f"after {obs}"[:50]


async def run(pool: BaseVectorEnv, tasks: int) -> Any:
    """Return the outcomes of all tasks."""
    async with pool.sessions() as sessions:

        async def conversation(task: int) -> float:
            async with sessions.open(options={"task": task}) as env:
                while not env.done:
                    action = await ask_model(env.obs)
                    await env.step(action, timeout=TIMEOUT)
                return float(env.episode_return)

        return await sessions.map(conversation, range(tasks), on_failure="record")


def best_seconds(tasks: int, num_envs: int) -> float:
    """Return how long the tasks take if nothing but server and model takes time."""
    free_at = [0.0] * num_envs
    for task in range(tasks):
        seconds = 0.0
        for step in range(1, num_steps(task) + 1):
            waits, status = plan(task, step)
            seconds += THINKING + (waits if status else TIMEOUT)
            if status != 200:
                break
        heapq.heappush(free_at, heapq.heappop(free_at) + seconds)
    return max(free_at)


async def serve() -> None:
    """Run the server and print its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            task, step = map(int, (await reader.readline()).split()[1].strip(b"/").split(b"/"))
            seconds, status = plan(task, step)
            await asyncio.sleep(seconds)
            if status:
                writer.write(f"HTTP/1.0 {status} -\r\n\r\n".encode())
            else:
                await reader.read()  # until the client has gone

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Run the server in another process; the value is its port."""
    command = [sys.executable, __file__, "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, start_new_session=True) as process:  # noqa: S603
        try:
            yield int(process.stdout.readline() if process.stdout else 0)
        finally:
            process.kill()


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=["coroutines", "threads", "processes"])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--serve", action="store_true", help="run only the server")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return
    env = BlockingSessionEnv if args.kind in ("threads", "processes") else SessionEnv
    make = ShmemVectorEnv if args.kind == "processes" else ThreadVectorEnv
    with server() as port, make([lambda: env(port)] * args.num_envs) as pool:
        start, cpu = time.perf_counter(), time.process_time()
        outcomes = asyncio.run(run(pool, args.tasks))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    failures = collections.Counter(type(one.error).__name__ for one in outcomes if one.error)
    print(f"{len(outcomes)} outcomes in {seconds:.1f} seconds, failures: {dict(failures)}")
    best = best_seconds(args.tasks, args.num_envs)
    print(f"{best / seconds:.1%} of the best speed, {cpu / seconds:.1%} of a core")


if __name__ == "__main__":
    main()
