"""``AsyncEnv``: a base class with which type checkers take ``async def reset`` and ``step``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gymnasium as gym

Obs = TypeVar("Obs")
Action = TypeVar("Action")

if TYPE_CHECKING:

    class _Env(Generic[Obs, Action]):  # of gym.Env, what coroutines do not contradict
        observation_space: gym.Space[Obs]
        action_space: gym.Space[Action]
        metadata: dict[str, Any]
        render_mode: str | None
        np_random: Any

        def close(self) -> Any: ...
else:
    _Env = gym.Env


class AsyncEnv(_Env[Obs, Action]):
    """A ``gymnasium.Env`` whose ``reset`` and ``step`` are coroutines; ``AsyncEnv[Obs, Action]``.

    You need it for type checkers only: a ``gymnasium.Env`` with ``async def`` runs as well.
    """

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Seed ``np_random``: begin your reset with ``await super().reset(seed=seed)``."""
        gym.Env.reset(self, seed=seed, options=options)  # type: ignore[arg-type]
        return None, {}  # type: ignore[return-value]

    async def step(self, action: Action) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Step the env: ``obs, reward, terminated, truncated, info``."""
        raise NotImplementedError
