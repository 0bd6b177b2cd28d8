"""``env_type="dm"``: the interface of ``dm_env``, for batches."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envpool_py import extras
from envpool_py.envpool.face import EnvPool
from envpool_py.envpool.specs import NEEDED, is_name, specs, state

dm_env = extras.load("dm_env", NEEDED)


class DMEnvPool(EnvPool, dm_env.Environment):  # type: ignore[misc, name-defined]
    """``env_type="dm"``.

    ``reset``, ``step`` and ``recv`` return a ``dm_env.TimeStep`` of arrays: ``step_type`` int32
    ``(k,)`` (0 first, 1 mid, 2 last), ``reward`` and ``discount`` float32 ``(k,)``, and an
    ``observation`` with the fields ``env_id``, ``obs`` (for a Dict space its keys) and the infos:
    ``name``, and ``name_mask``, which says the rows that have it. A field cannot be ``_name``.
    """

    def __init__(self, pool: Any, *args: Any) -> None:
        space = pool.single_observation_space
        for key in space.spaces if isinstance(space, gym.spaces.Dict) else ():
            if not is_name(key) or key in ("env_id", "players"):
                raise ValueError(f"env_type='dm': {key!r} cannot be a field of the observation")
        super().__init__(pool, *args)
        self.observation_spec()  # an error if a space has none
        self.action_spec()

    def reward_spec(self) -> Any:
        """The reward as ``dm_env.specs``."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> Any:
        """The discount as ``dm_env.specs``."""
        return specs.BoundedArray((), np.float32, 0, 1, "discount")

    def observation_spec(self) -> Any:
        """The observation as ``dm_env.specs``, without the infos."""
        return self.spec.observation_spec()

    def action_spec(self) -> Any:
        """The action as ``dm_env.specs``."""
        return self.spec.action_spec()

    def _result(self, batch: Any, info: Any, *, reset: bool) -> Any:  # noqa: ARG002
        obs, reward, terminated, truncated = batch
        over, begun = terminated | truncated, info.pop("elapsed_step") > 0
        step_type = np.where(over, 2, begun).astype(np.int32)
        floats = reward.astype(np.float32), (~over).astype(np.float32)
        return dm_env.TimeStep(step_type, *floats, state(info["env_id"], obs, info))
