"""Wrappers of Atari envs, with the results of Stable-Baselines3's. ``WarpFrame`` needs OpenCV."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import MaxAndSkipObservation
from numpy.typing import NDArray

from envpool_py import extras
from envpool_py.sb3.common.vec_env.base_vec_env import require

NOOP, FIRE = 0, 1


class StickyActionEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats the last action with probability ``action_repeat_probability``."""

    def __init__(self, env: gym.Env[Any, Any], action_repeat_probability: float) -> None:
        super().__init__(env)
        self.action_repeat_probability = action_repeat_probability
        _require_action(env, NOOP, "NOOP")

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env; the last action is then no action."""
        self._sticky_action = NOOP
        return self.env.reset(**kwargs)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env by ``action``, or by the last action."""
        if self.np_random.random() >= self.action_repeat_probability:
            self._sticky_action = action
        return self.env.step(self._sticky_action)


class NoopResetEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Begins each episode with 1 to ``noop_max`` steps of no action."""

    def __init__(self, env: gym.Env[Any, Any], noop_max: int = 30) -> None:
        super().__init__(env)
        self.noop_max = noop_max
        self.override_num_noops: int | None = None
        self.noop_action = NOOP
        _require_action(env, NOOP, "NOOP")

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and step it by a random number of no actions."""
        obs, info = self.env.reset(**kwargs)
        noops = self.override_num_noops
        if noops is None:
            noops = int(self.unwrapped.np_random.integers(1, self.noop_max + 1))
        for _ in range(noops):
            obs, _, terminated, truncated, info = self.env.step(self.noop_action)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        return obs, info


class FireResetEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Begins each episode with actions 1 and 2, for envs that wait for the FIRE action."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        _require_action(env, FIRE, "FIRE", count=3)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and step it by both actions; the info is empty."""
        self.env.reset(**kwargs)
        for action in (FIRE, 2):
            obs, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                self.env.reset(**kwargs)
        return obs, {}


class EpisodicLifeEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episode with each lost life; only the end of the game resets the env."""

    env: Any

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; ``terminated`` after a lost life."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        lives = self.env.unwrapped.ale.lives()
        # Qbert has 0 lives for a few frames before the end of the game.
        lost = 0 < lives < self.lives
        self.lives = lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env after the end of the game; else make one step of no action."""
        is_over = self.was_real_done
        if not is_over:
            obs, _, terminated, truncated, info = self.env.step(NOOP)
            is_over = terminated or truncated
        if is_over:
            obs, info = self.env.reset(**kwargs)
        self.lives = self.env.unwrapped.ale.lives()
        return obs, info


class MaxAndSkipEnv(MaxAndSkipObservation[Any, Any, Any]):
    """Repeats each action ``skip`` times; the observation is the maximum of the last two frames."""

    def __init__(self, env: gym.Env[Any, Any], skip: int = 4) -> None:
        super().__init__(env, max(skip, 2))
        self._skip = skip  # Gymnasium's refuses 1


class ClipRewardEnv(gym.RewardWrapper[Any, Any]):
    """Rewards are their sign: 1, 0 or -1."""

    def reward(self, reward: Any) -> Any:
        """The sign of a reward."""
        return np.sign(float(reward))


class WarpFrame(gym.ObservationWrapper[Any, Any, Any]):
    """Observations are grey images ``(height, width, 1)``."""

    def __init__(self, env: gym.Env[Any, Any], width: int = 84, height: int = 84) -> None:
        super().__init__(env)
        self.width, self.height = width, height
        space: Any = env.observation_space
        require(isinstance(space, gym.spaces.Box), f"WarpFrame needs a Box, got {space}")
        self.observation_space = gym.spaces.Box(0, 255, (height, width, 1), space.dtype)
        self._cv2 = extras.load("cv2", f"WarpFrame needs OpenCV; {extras.hint('atari')}")

    def observation(self, frame: NDArray[Any]) -> NDArray[Any]:
        """The grey image of a colour image."""
        cv2, size = self._cv2, (self.width, self.height)
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        return np.expand_dims(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), -1)


class AtariWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """The usual preprocessing of Atari games, for envs without a frame skip: all wrappers above.

    ``noop_max=0``, ``frame_skip=1``, ``terminal_on_life_loss=False``, ``clip_reward=False`` and
    ``action_repeat_probability=0`` leave one out. The images have ``screen_size`` pixels each way.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
        action_repeat_probability: float = 0.0,
    ) -> None:
        if action_repeat_probability > 0:
            env = StickyActionEnv(env, action_repeat_probability)
        if noop_max > 0:
            env = NoopResetEnv(env, noop_max)
        if frame_skip > 1:
            env = MaxAndSkipEnv(env, frame_skip)
        if terminal_on_life_loss:
            env = EpisodicLifeEnv(env)
        if "FIRE" in env.unwrapped.get_action_meanings():  # type: ignore[attr-defined]
            env = FireResetEnv(env)
        env = WarpFrame(env, screen_size, screen_size)
        super().__init__(ClipRewardEnv(env) if clip_reward else env)


def _require_action(env: Any, number: int, meaning: str, count: int = 1) -> None:
    meanings = env.unwrapped.get_action_meanings()
    text = f"the actions are {meanings}, but action {number} must be {meaning}, of {count} or more"
    require(len(meanings) >= count and meanings[number] == meaning, text)
