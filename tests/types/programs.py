"""Programs of users: right ones, and some that misspell something; a comment names the line."""

ASYNC_ENV = """
from collections.abc import AsyncIterator
from typing import Any
from envpool_py import AsyncEnv, ThreadVectorEnv

class HttpEnv(AsyncEnv[str, str]):
    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        await super().reset(seed=seed)
        return "start", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "next", 1.0, True, False, {}

sessions = ThreadVectorEnv([HttpEnv] * 2).sessions()
"""
RIGHT = {
    "sync": """
import numpy as np
from envpool_py import ShmemVectorEnv, make

with make("CartPole-v1", 4, backend="shmem", num_processes="auto", caller_steps=None) as envs:
    obs, infos = envs.reset(seed=0)
    rewards: np.ndarray = np.zeros(4)
    for _ in range(10):
        obs, rewards, terminated, truncated, infos = envs.step(np.zeros(4, np.int64))
        total: float = rewards.sum().item()
        ended = np.flatnonzero(terminated | truncated)
        envs.reset(ended)
with ShmemVectorEnv([object] * 2, autoreset_mode="next_step", context="spawn") as pool:
    print(pool.num_envs, len(pool), pool.restarts.sum())
""",
    "partial": """
from envpool_py import SubprocVectorEnv, WorkerDiedError
from envpool_py.wrappers import NormalizeReward

with SubprocVectorEnv([object] * 4, wait_num=2, on_error="restart", max_restarts=None) as pool:
    envs = NormalizeReward(pool)
    envs.send_reset(seed=[1, 2, 3, 4])
    while envs.waiting_id:
        try:
            obs, rewards, terminated, truncated, infos = envs.recv()
        except WorkerDiedError as error:
            pool.restart(list(error.env_ids))
            continue
        if not terminated.any():
            envs.send([0] * len(rewards), id=envs.batch_ids)
""",
    "sb3": """
import numpy as np
import envpool_py.sb3
from envpool_py.sb3 import ShmemVecEnv, SubprocVecEnv, VecNormalize, make_vec_env

options = {"num_processes": 2, "on_error": "restart"}
venv = make_vec_env("CartPole-v1", 4, vec_env_cls=SubprocVecEnv, vec_env_kwargs=options)
normalized = VecNormalize(venv, norm_reward=False)
normalized.seed(3)
obs = normalized.reset()
obs, rewards, dones, infos = normalized.step(np.zeros(4, np.int64))
mean: float = rewards.mean().item()
lives = [info.get("lives") for info in infos if dones.any()]
normalized.close()
with envpool_py.sb3.ShmemVecEnv([object], start_method="fork", num_processes="auto") as other:
    other.reset()
""",
    "rollout": """
from typing import Any
import numpy as np
import envpool_py
from envpool_py import AsyncCollector, Rollout
from envpool_py.collector import EpisodeWriter, load

def masked(obs: Any, env_ids: Any, infos: Any) -> Any:
    return np.array([info["action_mask"].argmax() for info in infos])

class Recurrent:
    def start_episodes(self, env_ids: Any) -> None: ...

    def __call__(self, obs: Any, env_ids: Any) -> Any:
        return obs.argmax(1), {"value": obs.max(1)}

with envpool_py.make("CartPole-v1", 4) as pool:
    with AsyncCollector(pool, masked, keep_infos=True) as collector:
        rollout: Rollout = collector.rollout(16)
        returns = rollout.rewards.sum(), rollout.next_obs, rollout.next_infos
        for batch in collector.steps(8):
            used = batch.obs, batch.actions, batch.rewards, batch.next_obs, batch.infos
            break
        collector.policy = Recurrent()
        for episode in collector.episodes(3):
            length = len(episode.obs) - len(episode.rewards)
""",
    "evaluation": """
import numpy as np
import envpool_py
from envpool_py import EnvError, evaluate

pool = envpool_py.make("CartPole-v1", 4, autoreset_mode=None)
tasks: list[tuple[int | None, dict[str, float] | None]] = [(3, None), (None, {"level": 1.0})]
try:
    found = evaluate(pool, lambda obs, env_ids: obs.argmax(1), tasks=tasks, on_failure="record")
    again = evaluate(pool, lambda obs, env_ids, infos: [0] * len(infos), 3)
    mean: float = float(np.nanmean(found.returns))
    texts = [error for error, failed in zip(found.errors, found.failed) if failed]
except EnvError as error:
    print(error.env_ids, error.finished)
finally:
    pool.close()
""",
    "sessions": ASYNC_ENV
    + """
async def conversation(task: int) -> str:
    async with sessions.open(options={"task": task}, wait=10, env_ids=[0, 1]) as env:
        await env.step("go", timeout=30)
        return f"{task} {env.episode_return}"

async def later() -> AsyncIterator[int]:
    yield 1

async def main() -> None:
    async for task, value, error in sessions.stream(conversation, later()):
        print(task + 1, value.upper() if value is not None else error)
    outcomes = await sessions.map(conversation, range(3), on_failure="record")
    values: list[str | None] = [one.value for one in outcomes]
    session = await sessions.open()
    session.close()
""",
}
MISSPELT = {
    "a task of another type": ASYNC_ENV
    + """
async def conversation(task: int) -> int:
    return task

async def main() -> None:
    await sessions.map(conversation, ["a"])  # wrong
    await sessions.map(conversation, [1], on_failure="recrod")  # wrong
    (await sessions.map(conversation, [1]))[0].values  # wrong
""",
    "a name of the package": """
import envpool_py
envpool_py.ShmemVectorEnvs  # wrong
""",
    "a name of a package in it": """
import envpool_py
envpool_py.sb3.SubprocVectorEnv  # wrong
""",
    "a method in a with block": """
from envpool_py import make
with make("CartPole-v1", 4) as envs:
    envs.rest()  # wrong
""",
    "a method of a VecEnv": """
from envpool_py.sb3 import DummyVecEnv
with DummyVecEnv([object]) as venv:
    venv.step_wait_all()  # wrong
""",
    "on_error": """
from envpool_py import ShmemVectorEnv
ShmemVectorEnv([object], on_error="restrat")  # wrong
""",
    "autoreset_mode": """
from envpool_py import make
make("CartPole-v1", 4, autoreset_mode="samestep_")  # wrong
""",
    "backend": """
from envpool_py import make
make("CartPole-v1", 4, backend="shm")  # wrong
""",
    "mode of a rollout": """
from envpool_py import AsyncCollector, make
AsyncCollector(make("CartPole-v1"), lambda obs, env_ids: [0]).rollout(3, mode="variabel")  # wrong
""",
    "a column": """
from envpool_py import AsyncCollector, make
for batch in AsyncCollector(make("CartPole-v1"), lambda obs, env_ids: [0]).steps():
    batch.reward  # wrong
""",
    "an option": """
from envpool_py import evaluate, make
evaluate(make("CartPole-v1"), lambda obs, env_ids: [0], 3, on_failure="recrod")  # wrong
""",
}
