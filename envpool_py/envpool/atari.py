"""EnvPool's ids and options of Atari games: say what to pass here."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

_PREPROCESSING = "gymnasium.wrappers.AtariPreprocessing"
_SB3 = "envpool_py.sb3.common.atari_wrappers"
#: What does here what an option does there.
_WRAPPERS = dict.fromkeys(
    ("frame_skip", "noop_max", "img_height", "img_width", "gray_scale"), _PREPROCESSING
)
_WRAPPERS |= {
    "stack_num": "gymnasium.wrappers.FrameStackObservation",
    "episodic_life": f"{_SB3}.EpisodicLifeEnv",
    "reward_clip": f"{_SB3}.ClipRewardEnv",
    "use_fire_reset": f"{_SB3}.FireResetEnv",
}


def check(task_id: str, env_kwargs: Mapping[str, Any]) -> None:
    """Raise NameNotFound for EnvPool's id (``Breakout-v5``), TypeError for EnvPool's options."""
    name = task_id.rpartition(":")[2]
    text = ""
    if options := sorted(_WRAPPERS.keys() & env_kwargs.keys()):
        wrappers = "; ".join(f"{option}: {_WRAPPERS[option]}" for option in options)
        text = "; the options of EnvPool's games are wrappers here, which options={'wrappers':"
        text += f" [...]}} takes: {wrappers}"
    if name not in gym.registry:
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers the games
        if f"ALE/{name}" in gym.registry:
            here = f"pass 'ale_py:ALE/{name}'{text}"
            raise gym.error.NameNotFound(f"{task_id} is EnvPool's id of an Atari game; {here}")
    if text and name.startswith("ALE/"):
        raise TypeError(f"{task_id} does not take {', '.join(options)}{text}")
