"""64 envs over a local HTTP server that fails and hangs: no run ends early."""

import asyncio
import contextlib
import functools
import gc
import http.client
import http.server
import random
import threading

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ShmemVectorEnv, ThreadVectorEnv
from tests.support.helpers import wait_until

pytestmark = [
    pytest.mark.soak,
    # Of sockets that an abandoned thread had open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROWS = 2000


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers 5 % of all requests with an error, and 2 % not at all."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        lot = random.random()
        if lot < 0.02:
            self.server.over.wait(5)  # longer than the limit of a step
            return
        self.send_response(503 if lot < 0.07 else 200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a connection that finds no room is tried again a second later


class HttpEnv(gym.Env):
    observation_space = gym.spaces.Box(0, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, tag, port):
        self.tag, self.port, self.count = tag, port, 0

    def ask(self):
        # A thread that was abandoned ends when the socket times out.
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=3)
        ) as one:
            one.request("GET", "/")
            with contextlib.closing(one.getresponse()) as response:
                status = response.status
        if status != 200:
            raise ConnectionError(f"status {status}")

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        self.ask()
        self.count = 0
        return np.array([self.tag, 0.0]), {}

    def step(self, _):
        self.ask()
        self.count += 1
        return np.array([self.tag, self.count]), 1.0, self.count == 20, False, {}


class AsyncHttpEnv(HttpEnv):
    async def ask(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            status = int((await reader.readline()).split()[1])
        finally:
            writer.close()
        if status != 200:
            raise ConnectionError(f"status {status}")

    async def reset(self, **_):
        await self.ask()
        self.count = 0
        return np.array([self.tag, 0.0]), {}

    async def step(self, _):
        await self.ask()
        self.count += 1
        return np.array([self.tag, self.count]), 1.0, self.count == 20, False, {}


@pytest.fixture(scope="module")
def port():
    server = Server(("127.0.0.1", 0), Handler)
    server.over = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("run", range(20))
@pytest.mark.parametrize(
    ("make", "env"),
    [
        pytest.param(ThreadVectorEnv, HttpEnv, id="threads"),
        pytest.param(ThreadVectorEnv, AsyncHttpEnv, id="coroutines"),
        pytest.param(functools.partial(ShmemVectorEnv, context="fork"), HttpEnv, id="processes"),
    ],
)
def test_every_run_ends(make, env, run, port):
    random.seed(run)
    threads = threading.active_count()
    fns = [functools.partial(env, i, port) for i in range(64)]
    options = {"on_error": "restart", "step_timeout": 1, "max_restarts": None}
    with make(fns, wait_num=8, autoreset_mode="same_step", **options) as pool:
        obs, infos = pool.reset()
        assert obs[:, 0].tolist() == list(range(64))
        failed, rows = sum("env_error" in info for info in infos), 0
        pool.send(np.zeros(64, np.int64))
        while rows < ROWS:
            obs, *_, infos = pool.recv()
            ids = [info["env_id"] for info in infos]
            assert obs[:, 0].tolist() == ids, "rows are the envs' own"
            failed += sum("env_error" in info for info in infos)
            rows += len(ids)
            pool.send(np.zeros(len(ids), np.int64), ids)
        assert failed > 0
        assert pool.restarts.sum() >= failed
    # An exception ends an abandoned thread at any line, so its socket may be garbage; errors that
    # the pool has keep its frames.
    del pool
    assert wait_until(lambda: gc.collect() >= 0 and threading.active_count() <= threads)
