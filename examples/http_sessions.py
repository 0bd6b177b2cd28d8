"""Step 64 sessions of an HTTP server, some of them slow and some failing, in threads.

    python examples/http_sessions.py
    python examples/http_sessions.py --processes

The server is in this program, for the example only: each session answers after 10 to 50 ms. Every
eighth session fails at times, with the status 500. Another eighth does not answer at times.
`step_timeout` and `on_error="restart"` keep the run going.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import logging
import sys
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import BaseVectorEnv, ShmemVectorEnv, ThreadVectorEnv

RANDOM = np.random.default_rng()


class Sessions(http.server.BaseHTTPRequestHandler):
    """Answers `/SESSION/ACTION` with an observation, a reward and whether the episode is over."""

    protocol_version = "HTTP/1.1"
    counts: dict[int, int] = {}  # noqa: RUF012 - one for the server

    def do_GET(self) -> None:
        """Answer one request."""
        session, action = map(int, self.path.strip("/").split("/"))
        count = self.counts[session] = 0 if action < 0 else self.counts[session] + 1
        time.sleep(RANDOM.uniform(0.01, 0.05))
        status = 200
        if action >= 0 and RANDOM.random() < 0.05:
            if session % 8 == 1:
                status = 500
            if session % 8 == 2:
                time.sleep(3)
        body = json.dumps([count, float(action), count == 20]).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the client has gone
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A server with a thread per connection."""

    daemon_threads = True
    request_queue_size = 128  # all sessions connect at once


class SessionEnv(gym.Env[Any, Any]):
    """One session of the server at `port`."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, port: int, session: int) -> None:
        self.session = session
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, action: int) -> tuple[Any, float, bool]:
        """Ask the server; return observation, reward and whether the episode is over."""
        self.connection.request("GET", f"/{self.session}/{action}")
        response = self.connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise ConnectionError(f"session {self.session}: status {response.status}")
        count, reward, over = json.loads(body)
        return np.array([count], np.float32), reward, over

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        return self.ask(-1)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send an action."""
        obs, reward, over = self.ask(int(action))
        return obs, reward, over, False, {}

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def make_pool(port: int, num_envs: int, processes: bool, **options: Any) -> BaseVectorEnv:
    """Make the pool: threads of this process, or one worker process per env."""
    env_fns = [lambda i=i: SessionEnv(port, i) for i in range(num_envs)]
    return (ShmemVectorEnv if processes else ThreadVectorEnv)(env_fns, **options)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--processes", action="store_true", help="one process per env, not threads")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()

    logging.basicConfig(format="%(message).100s", stream=sys.stdout)
    server = Server(("127.0.0.1", 0), Sessions)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"on_error": "restart", "step_timeout": 1.0, "autoreset_mode": "same_step"}
    options |= {"wait_num": max(args.num_envs // 4, 1), "max_restarts": None}
    with make_pool(server.server_port, args.num_envs, args.processes, **options) as pool:
        pool.reset()
        pool.send(np.zeros(args.num_envs, int))
        steps = timeouts = failures = 0
        start = time.perf_counter()
        while time.perf_counter() < start + args.seconds:
            infos = pool.recv()[4]
            steps += len(infos)
            errors = [info.get("final_info", info).get("env_error", "") for info in infos]
            timeouts += sum("step_timeout" in error for error in errors)
            failures += sum("status 500" in error for error in errors)
            pool.send(np.ones(len(infos), int), pool.batch_ids)
        seconds = time.perf_counter() - start
        restarts = int(pool.restarts.sum())
    server.shutdown()
    server.server_close()
    print(f"{steps / seconds:.0f} steps per second of {args.num_envs} sessions")
    print(f"reported: {failures} failures, {timeouts} timeouts; {restarts} restarts")


if __name__ == "__main__":
    main()
