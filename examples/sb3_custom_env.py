"""A custom env, checked and then trained on: Dict and image observations, and goals with HER.

python examples/sb3_custom_env.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, HerReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy

from envpool_py.sb3 import ShmemVecEnv, make_vec_env
from envpool_py.sb3.common.env_checker import check_env

MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])
PIXELS = 6  # of a cell, each way


class GridEnv(gym.Env):
    """An agent walks over a grid to a goal; the cost of a step is the distance to the goal.

    The observation is the position of agent and goal, the number of steps left, and an image.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, size: int = 6, max_steps: int = 20, render_mode: str | None = None) -> None:
        self.size, self.max_steps, self.render_mode = size, max_steps, render_mode
        place = spaces.Box(0, size - 1, (2,), np.float32)
        image = spaces.Box(0, 255, (1, size * PIXELS, size * PIXELS), np.uint8)
        self.observation_space: spaces.Space = spaces.Dict(
            {"agent": place, "goal": place, "image": image, "left": spaces.Discrete(max_steps + 1)}
        )
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        """Put agent and goal anywhere; ``options={"goal": (x, y)}`` puts the goal there."""
        super().reset(seed=seed)
        self.left = self.max_steps
        self.agent = self.np_random.integers(0, self.size, 2)
        self.goal = self.np_random.integers(0, self.size, 2)
        if options and "goal" in options:
            self.goal = np.asarray(options["goal"])
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        """Take one step; at the border the agent stays where it is."""
        self.left -= 1
        self.agent = np.clip(self.agent + MOVES[action], 0, self.size - 1)
        distance = float(np.linalg.norm(self.goal - self.agent))
        reached = distance < 1
        reward = 1.0 if reached else -0.1 * distance
        info = {"distance": distance, "is_success": reached}
        return self.observe(), reward, reached, self.left == 0, info

    def observe(self) -> Any:
        """Return new arrays each time, because the caller may still use the last ones."""
        return {
            "agent": self.agent.astype(np.float32),
            "goal": self.goal.astype(np.float32),
            "image": self.draw()[None],
            "left": self.left,
        }

    def draw(self) -> np.ndarray:
        """The grid from above, in grey."""
        cells = np.zeros((self.size, self.size), np.uint8)
        cells[tuple(self.goal)] = 128
        cells[tuple(self.agent)] = 255
        return cells.repeat(PIXELS, 0).repeat(PIXELS, 1)

    def render(self) -> Any:
        """The same in colour."""
        return self.draw()[..., None].repeat(3, -1)


class GoalGridEnv(GridEnv):
    """The same grid for hindsight: the reward is 0 at the goal, and -1 elsewhere."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        place = spaces.Box(0, self.size - 1, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )

    def observe(self) -> Any:
        """Where the agent is, which of all goals that would achieve, and which is desired."""
        agent = self.agent.astype(np.float32)
        return {
            "observation": agent,
            "achieved_goal": agent.copy(),
            "desired_goal": self.goal.astype(np.float32),
        }

    def step(self, action: Any) -> Any:
        """Take one step."""
        obs, _, reached, timeout, info = super().step(action)
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
        return obs, float(reward), reached, timeout, info

    def compute_reward(self, achieved: Any, desired: Any, _info: Any) -> Any:
        """Return the reward for a desired goal; takes one pair of goals or many."""
        return -(np.linalg.norm(achieved - desired, axis=-1) >= 1).astype(np.float32)


def train(name: str, model: Any, steps: int) -> None:
    """Show the mean return before and after."""
    before, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=30, deterministic=False)
    model.learn(steps)
    after, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=30, deterministic=False)
    print(f"{name}: mean return {before:.2f} before, {after:.2f} after {steps} steps")
    model.get_env().close()


def main() -> None:
    """Check both envs, then train on both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)

    for env_class in (GridEnv, GoalGridEnv):
        check_env(env_class())
        print(f"{env_class.__name__}: checked")

    def over_processes(env_class: type[GridEnv]) -> Any:
        return make_vec_env(
            env_class, 4, seed=0, vec_env_cls=ShmemVecEnv, vec_env_kwargs={"num_processes": 2}
        )

    common = {"seed": 0, "device": "cpu"}
    ppo = PPO("MultiInputPolicy", over_processes(GridEnv), n_steps=128, batch_size=128, **common)
    train("PPO, Dict and image", ppo, args.steps)
    dqn = DQN(
        "MultiInputPolicy",
        over_processes(GoalGridEnv),
        replay_buffer_class=HerReplayBuffer,
        learning_starts=200,
        learning_rate=1e-3,
        exploration_final_eps=0.1,
        target_update_interval=500,
        gamma=0.95,
        **common,
    )
    train("DQN with HER", dqn, args.steps)


if __name__ == "__main__":
    main()
