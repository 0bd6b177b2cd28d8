"""Programs of users; a comment names each line with a mistake."""

PROGRAMS = {
    "pools": """
import numpy as np
from envpool_py import ShmemVectorEnv, SubprocVectorEnv, VectorEnvNormObs, WorkerDiedError
from envpool_py import make, replay
from envpool_py.collector import EpisodeWriter, load, save
from envpool_py.wrappers import NormalizeReward

with make("CartPole-v1", 4, backend="shmem", num_processes="auto", caller_steps=None) as envs:
    obs, infos = envs.reset(seed=0)
    for _ in range(10):
        obs, rewards, terminated, truncated, infos = envs.step(np.zeros(4, np.int64))
        ended = np.flatnonzero(terminated | truncated)
        envs.reset(ended)
with ShmemVectorEnv([object] * 2, autoreset_mode="next_step", context="spawn") as pool:
    print(pool.num_envs, len(pool), pool.restarts.sum())
with SubprocVectorEnv([object] * 4, wait_num=2, on_error="restart", max_restarts=None) as partial:
    scaled = NormalizeReward(partial)
    scaled.send_reset(seed=[1, 2, 3, 4])
    while scaled.waiting_id:
        try:
            obs, rewards, terminated, truncated, infos = scaled.recv()
        except WorkerDiedError as error:
            partial.restart(list(error.env_ids))
            continue
        if not terminated.any():
            scaled.send([0] * len(rewards), id=scaled.batch_ids)
with make("CartPole-v1", 2, record="a.record", start_method="fork") as recorded:
    normalized = VectorEnvNormObs(recorded)
    print(normalized.obs_rms.mean, normalized.wait_num, normalized.unwrapped.num_envs)
    save("episodes", [], recorded.single_observation_space, recorded.single_action_space)
repeated = replay("a.record", [object] * 2, until=10, backend="subproc", num_processes=2)
""",
    "collecting": """
from typing import Any
import numpy as np
import envpool_py
from envpool_py import AsyncCollector, EnvError, Rollout, evaluate

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

pool = envpool_py.make("CartPole-v1", 4, autoreset_mode=None)
tasks: list[tuple[int | None, dict[str, float] | None]] = [(3, None), (None, {"level": 1.0})]
try:
    found = evaluate(pool, lambda obs, env_ids: obs.argmax(1), tasks=tasks, on_failure="record")
    again = evaluate(pool, lambda obs, env_ids, infos: [0] * len(infos), 3)
    mean: float = float(np.nanmean(found.returns))
    texts = [error for error, failed in zip(found.errors, found.failed) if failed]
except EnvError as error:
    print(error.env_ids, error.finished)
""",
    "learning": """
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from envpool_py import PoolOptions, SB3MultiAgentVecEnv
from envpool_py.gymnasium import VectorEnv, make_vec
from envpool_py.sb3 import AsyncRollouts, DummyVecEnv, SubprocVecEnv, VecNormalize, make_vec_env
import envpool_py.sb3

class AsyncPPO(AsyncRollouts, PPO): ...

options: PoolOptions = {"on_error": "restart", "num_processes": "auto", "context": "fork"}
venv = VecNormalize(SubprocVecEnv([object] * 4, **options))
make_vec_env("CartPole-v1", 4, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"num_processes": 2})
make_vec("CartPole-v1", 4, vectorization_mode="async", vector_kwargs=options)
with envpool_py.sb3.ShmemVecEnv([object], start_method="fork", num_processes="auto") as other:
    print(VectorEnv([object] * 4, num_processes=2, on_error="restart").restarts.sum(), other.closed)
model = PPO("MlpPolicy", venv, verbose=0)
model.learn(100, callback=EvalCallback(make_vec_env("CartPole-v1", 4), eval_freq=50))
mean = evaluate_policy(model, DummyVecEnv([object], episode_seeds=True))
AsyncPPO("MlpPolicy", venv, n_steps=8, wait_num=2).learn(100)
with SB3MultiAgentVecEnv([object], "subproc", "auto", step_timeout=3.0) as agents:
    PPO("MlpPolicy", agents)
    print(agents.possible_agents, len(venv), venv.closed, venv.unwrapped.num_envs)
""",
    "envpool": """
import numpy as np
import envpool_py.envpool as envpool

with envpool.make("CartPole-v1", num_envs=4, batch_size=2, options={"backend": "shmem"}) as envs:
    obs, info = envs.reset()
    envs.async_reset()
    obs, reward, terminated, truncated, info = envs.recv()
    envs.send(np.zeros(len(reward), np.int32), info["env_id"])
    print(envs.config["num_envs"], envs.closed, terminated.any())
made = envpool.make_gymnasium("CartPole-v1", num_envs=2, options={"on_error": "restart"})
made.step(np.zeros(2))
timestep = envpool.make("CartPole-v1", "dm", num_envs=2).reset()
""",
    "agents": """
from envpool_py import ParallelVectorEnv, PettingZooEnv, PoolOptions, SubprocVectorEnv

options: PoolOptions = {"on_error": "restart", "num_processes": 2}
with ParallelVectorEnv([object], wait_num=1, **options) as envs:
    obs, info = envs.reset(seed=1)
    names: list[str] = envs.possible_agents
    obs, rewards, terminated, truncated, info = envs.step({name: [0] for name in names})
    envs.send_reset([0])
    print(envs.waiting_id, envs.batch_ids, envs.call("state", id=[0]), envs.autoreset_mode)
env = PettingZooEnv(object(), dead_steps="skip")
obs, env_rewards, dead, timeout, info = env.step(0)
pool = SubprocVectorEnv([lambda: PettingZooEnv(object())], start_method="spawn")
""",
    "sessions": """
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
    (await sessions.open()).close()
    await sessions.map(conversation, ["a"])  # wrong
    await sessions.map(conversation, [1], on_failure="recrod")  # wrong
    outcomes[0].values  # wrong
""",
    "an option, and a name, of each class": """
from envpool_py import AsyncCollector, ParallelVectorEnv, SB3MultiAgentVecEnv, ThreadVectorEnv
from envpool_py import PettingZooEnv, PoolOptions, SubprocVectorEnv, VectorEnvNormObs
from envpool_py import evaluate, make, replay
from envpool_py.gymnasium import VectorEnv
from envpool_py.sb3 import AsyncRollouts, DummyVecEnv, ShmemVecEnv, SubprocVecEnv
from envpool_py.wrappers import OldGymEnv
from stable_baselines3 import PPO
import envpool_py
import envpool_py.envpool as envpool
class AsyncPPO(AsyncRollouts, PPO): ...
fns = [object]
AsyncPPO("MlpPolicy", DummyVecEnv([object]), n_step=8)  # wrong
AsyncPPO("MlpPolicy", DummyVecEnv([object]), wait_nun=8)  # wrong
SubprocVecEnv(fns, on_error="restrat")  # wrong
ShmemVecEnv(fns, num_process=2)  # wrong
VectorEnv(fns, on_eror="restart")  # wrong
envpool.make("CartPole-v1", num_envs=2, options={"on_eror": "restart"})  # wrong
envpool.make("CartPole-v1", "gymnasum")  # wrong
ParallelVectorEnv(fns, on_eror="restart")  # wrong
SB3MultiAgentVecEnv(fns, on_eror="restart")  # wrong
ThreadVectorEnv(fns, context="fork")  # wrong
replay("a.record", fns, num_process=2)  # wrong
PettingZooEnv(object(), dead_steps="skips")  # wrong
options: PoolOptions = {"on_eror": "restart"}  # wrong
SubprocVectorEnv(fns, start_methods="fork")  # wrong
make("CartPole-v1", seed=3)  # wrong
make("CartPole-v1", 4, autoreset_mode="samestep_")  # wrong
make("CartPole-v1", 4, backend="shm")  # wrong
evaluate(make("CartPole-v1"), lambda obs, env_ids: [0], 3, on_failure="recrod")  # wrong
ParallelVectorEnv([object]).possible_agent()  # wrong
VectorEnvNormObs(make("CartPole-v1")).waiting_ids()  # wrong
envpool.make("CartPole-v1").async_resets()  # wrong
OldGymEnv(object()).stepp()  # wrong
make("CartPole-v1").single_observation_space.shapes()  # wrong
envpool_py.ShmemVectorEnvs  # wrong
envpool_py.sb3.SubprocVectorEnv  # wrong
with make("CartPole-v1", 4) as envs:
    envs.rest()  # wrong
for batch in AsyncCollector(envs, lambda obs, env_ids: [0]).steps():
    batch.reward  # wrong
""",
    "sb3, and its own classes": """
import gymnasium as gym
import numpy as np
from envpool_py.sb3.common.env_util import make_vec_env
from envpool_py.sb3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

env_fns = [lambda: gym.make("CartPole-v1")]
venv = make_vec_env("CartPole-v1", 4, vec_env_cls=SubprocVecEnv, vec_env_kwargs={})
normalized = VecNormalize(venv, norm_reward=False)
obs = normalized.reset()
obs, rewards, dones, infos = normalized.step(np.zeros(4, np.int64))
mean: float = rewards.mean().item()
stacked = VecFrameStack(DummyVecEnv(env_fns), 4, channels_order="last")
print(stacked.num_envs, SubprocVecEnv(env_fns, "spawn").get_attr("spec"), normalized.close())
DummyVecEnv(env_fns, on_eror="restart")  # wrong
SubprocVecEnv(env_fns, start_method="forks")  # wrong
make_vec_env("CartPole-v1", num_envs=2)  # wrong
VecNormalize(venv, norm_rewards=False)  # wrong
normalized.norm_rewards()  # wrong
VecFrameStack(venv, 4, channels_order="firts")  # wrong
venv.step_wait_all()  # wrong
rewards.means()  # wrong
infos[0].gets("lives")  # wrong
""",
    "gymnasium, and its own classes": """
import gymnasium as gym
import numpy as np
from envpool_py.gymnasium import VectorEnv as AsyncVectorEnv, make_vec

made = make_vec("CartPole-v1", 4, vectorization_mode="async", vector_kwargs={"copy": False})
env_fns = [lambda: gym.make("CartPole-v1")] * 4
envs = AsyncVectorEnv(env_fns, context="fork")
obs, infos = envs.reset(seed=3, options={"reset_mask": np.ones(4, np.bool_)})
obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
print(envs.num_envs, envs.call("render"), made.get_attr("spec"), envs.close())
AsyncVectorEnv(env_fns, shared_memorys=True)  # wrong
AsyncVectorEnv(env_fns, autoreset_mode="samestep_")  # wrong
AsyncVectorEnv(env_fns, context="forks")  # wrong
AsyncVectorEnv(env_fns, observation_mode="some")  # wrong
make_vec("CartPole-v1", 2, vectorization_mode="asynch")  # wrong
make_vec("CartPole-v1", 2, vector_kwargs={"copyy": False})  # wrong
made.single_action_spaces()  # wrong
envs.step_waits()  # wrong
(terminated | truncated).anys()  # wrong
""",
}
#: What resets and steps return; the type of an observation alone may be unknown.
REVEALED = """
import numpy as np
import envpool_py.envpool as envpool
from envpool_py import NormalizeReward, ParallelVectorEnv, PettingZooEnv, SB3MultiAgentVecEnv
from envpool_py import EnvError, make, replay
from envpool_py.gymnasium import VectorEnv, make_vec
from envpool_py.sb3 import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize, make_vec_env

for pool in (make("CartPole-v1", 2), NormalizeReward(make("CartPole-v1", 2))):
    reveal_type(pool.reset())
    reveal_type(pool.step([0]))
    reveal_type(pool.recv())
for envs in (VectorEnv([object]), make_vec("CartPole-v1", 2)):
    reveal_type(envs.reset())
    reveal_type(envs.step(0))
for venv in (DummyVecEnv([object]), SubprocVecEnv([object]), make_vec_env("CartPole-v1")):
    reveal_type(venv.reset())
    reveal_type(venv.step(np.zeros(2)))
    reveal_type(VecNormalize(venv).step(np.zeros(2)))
    reveal_type(VecMonitor(venv).step_wait())
reveal_type(envpool.make("CartPole-v1").reset())
reveal_type(envpool.make("CartPole-v1").step(0))
reveal_type(envpool.make_dm("CartPole-v1").reset().step_type)
reveal_type(envpool.make_dm("CartPole-v1").step(0).reward)
agents = ParallelVectorEnv([object])
reveal_type(agents.reset())
reveal_type(agents.step({}))
reveal_type(SB3MultiAgentVecEnv([object]).step(np.zeros(2)))
reveal_type(PettingZooEnv(object()).reset())
reveal_type(PettingZooEnv(object()).step(0))
reveal_type(next(replay("a.record", [object])))

async def main() -> None:
    async with make("CartPole-v1", 2).sessions() as sessions:
        session = await sessions.open()
        reveal_type(await session.step(0))
        reveal_type(session.episode_return)
"""
