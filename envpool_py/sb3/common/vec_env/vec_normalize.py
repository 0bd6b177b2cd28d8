"""``VecNormalize``: observations and rewards normalized by running statistics; saved and loaded.

Files are arrays and JSON or, under a name that ends in ``.pkl``, pickles, as Stable-Baselines3
writes them. Both are read without running any code of the file.
"""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.env.spaces import map_tree, snapshot, space_of
from envpool_py.record import untrusted_files
from envpool_py.record.untrusted_files import field, open_file, read_archive, text_of
from envpool_py.sb3.common.preprocessing import is_image_space
from envpool_py.sb3.common.running_mean_std import RunningMeanStd
from envpool_py.sb3.common.vec_env.base_vec_env import ObservationWrapper, require
from envpool_py.sb3.registration import register_if_imported
from envpool_py.sb3.unpickling import DamagedFileError, Part, parts_of, trust

#: All parameters of the constructor but the VecEnv: what an .npz file stores beside statistics.
_SETTINGS = ["training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon"]
_SETTINGS += ["norm_obs_keys"]
_MOMENTS = ("mean", "var", "count")
#: What is not saved, because it is of the wrapped VecEnv. The last two Stable-Baselines3 has.
_UNSAVED = ("venv", "returns", "old_obs", "old_reward", "reset_infos", "class_attributes")


class VecNormalize(ObservationWrapper):
    """Normalizes observations and rewards.

    An observation becomes ``(obs - mean) / sqrt(var + epsilon)``, a reward is divided by
    ``sqrt(var + epsilon)`` of the returns, discounted by ``gamma``; both are float32, from
    ``-clip_obs`` to ``clip_obs`` and from ``-clip_reward`` to ``clip_reward``. Terminal
    observations are normalized too. ``norm_obs`` and ``norm_reward`` switch this off. Observations
    are of a Box, or of a Dict, of which ``norm_obs_keys`` are normalized; None is all.

    Only ``reset`` and ``step`` update the statistics, and only if ``training``. The arguments are
    attributes, and may be set at any time.

    Attributes:
        obs_rms: the statistics of observations, a ``RunningMeanStd`` or a dict of them; missing
            where ``norm_obs`` was False.
        ret_rms: the statistics of the returns.
        returns: float64 ``(num_envs,)``, the discounted returns of the current episodes.
        old_obs, old_reward: the latest ones before they were normalized.

    UnsuitableEnvError if the keys are wrong, or an observation to normalize is no Box.
    """

    obs_rms: Any

    def __init__(
        self,
        venv: Any,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        norm_obs_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(venv)
        self.training = training
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward
        self.clip_obs = clip_obs
        self.clip_reward = clip_reward
        self.gamma = gamma
        self.epsilon = epsilon
        self.norm_obs_keys = None if norm_obs_keys is None else list(norm_obs_keys)
        if norm_obs:
            self._start_obs_statistics()
        self.ret_rms = RunningMeanStd()
        self._forget_episodes()

    def _start_obs_statistics(self) -> None:
        space, keys = self.observation_space, self.norm_obs_keys
        if isinstance(space, gym.spaces.Dict):
            self.norm_obs_keys = keys = list(space.spaces) if keys is None else keys
            text = f"norm_obs_keys is {keys}, but the space has {list(space.spaces)}"
            require(space.spaces.keys() >= set(keys), text)
            parts = {key: self._normalized_space(space[key], f"[{key!r}]") for key in keys}
            self.obs_rms = {key: RunningMeanStd(shape=part.shape) for key, part in parts.items()}
            self.observation_space = space_of({**space.spaces, **parts})
        else:
            require(keys is None, f"norm_obs_keys is applicable only to a Dict, and not to {space}")
            self.observation_space = part = self._normalized_space(space)
            self.obs_rms = RunningMeanStd(shape=part.shape)

    def _normalized_space(self, space: Any, key: str = "") -> Any:
        text = (
            f"observation_space{key} is {space}: VecNormalize only supports Box; explicitly pass"
            " the observation keys of a Dict in norm_obs_keys"
        )
        require(isinstance(space, gym.spaces.Box), text)
        # Stable-Baselines3 keeps the bounds of what is no image, and models are saved with them.
        if is_image_space(space):
            return gym.spaces.Box(-self.clip_obs, self.clip_obs, space.shape, np.float32)
        return space

    def _forget_episodes(self) -> None:
        self.returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self.old_obs: Any = None
        self.old_reward: NDArray[Any] = np.array([])

    def _after_reset(self, obs: Any) -> Any:
        self.old_obs = obs
        self.returns = np.zeros(self.num_envs)
        self._update_obs_statistics()
        return self.normalize_obs(obs)

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        self.old_obs, self.old_reward = obs, rewards
        self._update_obs_statistics()
        if self.training:
            self.returns = self.returns * self.gamma + rewards
            self.ret_rms.update(self.returns)
        self.returns[dones] = 0
        return super()._after_step(obs, self.normalize_reward(rewards), dones, infos)

    def _update_obs_statistics(self) -> None:
        if self.training and self.norm_obs:
            map_tree(lambda rms, part: rms.update(part), self.obs_rms, self.old_obs)

    def normalize_obs(self, obs: Any) -> Any:
        """A copy of one observation, or of a batch, normalized: float32."""
        return self._map(lambda rms, x: self._normalize_obs(x, rms).astype(np.float32), obs)

    observations = normalize_obs

    def unnormalize_obs(self, obs: Any) -> Any:
        """The inverse of ``normalize_obs``, but for clipping: a copy, float64."""
        return self._map(lambda rms, x: self._unnormalize_obs(x, rms), obs)

    def _map(self, change: Callable[[RunningMeanStd, Any], Any], obs: Any) -> Any:
        if not self.norm_obs:
            return snapshot(obs)
        changed = map_tree(change, self.obs_rms, obs)
        return {**snapshot(obs), **changed} if isinstance(changed, dict) else changed

    def _deviation(self, rms: RunningMeanStd) -> Any:
        return np.sqrt(rms.var + self.epsilon)

    # Subclasses of Stable-Baselines3's class call these two.
    def _normalize_obs(self, obs: NDArray[Any], obs_rms: RunningMeanStd) -> Any:
        scaled = (obs - obs_rms.mean) / self._deviation(obs_rms)
        return np.clip(scaled, -self.clip_obs, self.clip_obs)

    def _unnormalize_obs(self, obs: NDArray[Any], obs_rms: RunningMeanStd) -> Any:
        return obs * self._deviation(obs_rms) + obs_rms.mean

    def normalize_reward(self, reward: NDArray[Any]) -> NDArray[np.float32]:
        """A copy of rewards ``(num_envs,)`` normalized: float32."""
        if self.norm_reward:
            scaled = reward / self._deviation(self.ret_rms)
            reward = np.clip(scaled, -self.clip_reward, self.clip_reward)
        return reward.astype(np.float32)

    def unnormalize_reward(self, reward: NDArray[Any]) -> Any:
        """The inverse of ``normalize_reward``, but for clipping: ``(num_envs,)``."""
        return reward * self._deviation(self.ret_rms) if self.norm_reward else reward

    def get_original_obs(self) -> Any:
        """A copy of the latest observations, not normalized, in their dtype; ValueError if none."""
        if self.old_obs is None:
            raise ValueError("get_original_obs: nothing was reset or stepped yet")
        return snapshot(self.old_obs)

    def get_original_reward(self) -> NDArray[Any]:
        """A copy of the latest rewards ``(num_envs,)``, in their own dtype, not normalized."""
        return self.old_reward.copy()

    # Of copies and pickles: they have no VecEnv until set_venv.
    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in _UNSAVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({key: state[key] for key in state if key not in _UNSAVED})
        if "norm_obs_keys" not in state:  # a file from before that argument
            space = state["observation_space"]
            self.norm_obs_keys = list(space.spaces) if isinstance(space, gym.spaces.Dict) else None
        self.venv = None
        self._forget_episodes()

    def set_venv(self, venv: Any) -> None:
        """Wrap a VecEnv: once, after unpickling or copying.

        ValueError if there is a VecEnv already, or the observations have another shape.
        """
        if self.venv is not None:
            raise ValueError("set_venv: there is a VecEnv already, and it is set once")
        _check_shapes(venv.observation_space, self.observation_space)
        register_if_imported()
        self.venv = venv
        self.num_envs = venv.num_envs
        self.render_mode = venv.render_mode
        self._forget_episodes()

    def save(self, save_path: str | Path) -> None:
        """Write settings and statistics: arrays and JSON, in the format of NumPy's ``.npz``.

        A name that ends in ``.pkl`` or ``.pickle`` gives a pickle, which Stable-Baselines3 reads.
        """
        path = Path(save_path)
        if path.suffix in (".pkl", ".pickle"):
            path.write_bytes(pickle.dumps(self))
            return
        settings = json.dumps({name: getattr(self, name) for name in _SETTINGS})
        arrays = {"settings": np.array(settings)}
        for k, rms in enumerate(_statistics_in(vars(self))):
            arrays |= {f"{name}{k}": np.array(value) for name, value in vars(rms).items()}
        with path.open("wb") as file:  # NumPy would add a suffix to a path
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(load_path: str | Path, venv: Any, *, trusted: bool = False) -> VecNormalize:
        """Read a file that ``save`` wrote, ours or Stable-Baselines3's, and wrap ``venv``.

        No code of the file is run, and nothing outside the result is changed; with ``trusted`` a
        pickle may hold a subclass, and run any code. ValueError if the file is damaged or holds
        something else, UnsuitableEnvError if the observations have another shape.
        """
        path = Path(load_path)
        with open_file(path) as file:
            is_archive = zipfile.is_zipfile(file)
        if trusted and not is_archive:
            loaded = trust(path)
            if not isinstance(loaded, VecNormalize):
                raise DamagedFileError(f"{path}: holds a {type(loaded)}, no VecNormalize")
            loaded.set_venv(venv)
            return loaded
        settings, statistics = (_of_archive if is_archive else _of_pickle)(path)
        # Statistics of observations are kept while norm_obs is False; of no keys there are none.
        has_obs = len(statistics) > 1 or settings.get("norm_obs_keys") == []
        loaded = VecNormalize(venv, **{**settings, "norm_obs": has_obs})
        loaded.norm_obs = settings.get("norm_obs", True)
        own = _statistics_in(vars(loaded))
        complete = len(own) == len(statistics) and (has_obs or not loaded.norm_obs)
        require(complete, f"{path}: lacks statistics of the observations")
        for rms, saved in zip(own, statistics, strict=True):
            _check_shapes(rms, saved)
            vars(rms).update(vars(saved))
        return loaded


def _statistics_in(state: Mapping[str, Any]) -> list[Any]:
    """All statistics: of the returns first, then of the observations, by their keys."""
    obs = state.get("obs_rms", {})
    if isinstance(obs, dict):
        obs = [obs[key] for key in state.get("norm_obs_keys") or obs if key in obs]
    else:
        obs = [obs]
    return [state.get("ret_rms"), *obs]


def _of_archive(path: Path) -> tuple[dict[str, Any], list[RunningMeanStd]]:
    with field(f"{path}: damaged"):
        arrays = read_archive(path)
        with field("settings"):
            settings = json.loads(text_of(arrays["settings"]))
        numbers = range(sum(name.startswith("mean") for name in arrays))
        statistics = [_statistics_of(*(arrays[f"{name}{k}"] for name in _MOMENTS)) for k in numbers]
        return _checked(settings), statistics


def _of_pickle(path: Path) -> tuple[dict[str, Any], list[RunningMeanStd]]:
    """The settings and the statistics of a pickle, without running its code."""
    found = parts_of(path)
    try:
        with field(str(path)):
            is_ours = isinstance(found, Part) and found.name.endswith(".VecNormalize")
            untrusted_files.require(is_ours, f"holds a {type(found).__name__}, no VecNormalize")
            state = vars(found)
            moments = ([getattr(x, name, None) for name in _MOMENTS] for x in _statistics_in(state))
            statistics = [_statistics_of(*each) for each in moments]
            return _checked({name: state[name] for name in _SETTINGS if name in state}), statistics
    except ValueError as error:
        raise DamagedFileError(str(error)) from error


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file; ValueError for a name or a type that no setting has."""
    for name, value in settings.items():
        if name in ("training", "norm_obs", "norm_reward"):
            known = type(value) is bool
        elif name == "norm_obs_keys":
            known = value is None or (type(value) is list and {str}.issuperset(map(type, value)))
        else:
            is_small = type(value) is int and abs(value) <= sys.float_info.max
            known = name in _SETTINGS and (is_small or type(value) is float)
        untrusted_files.require(known, f"{name:.80}: no setting, or of a wrong type")
    return settings


def _statistics_of(mean: Any, var: Any, count: Any) -> RunningMeanStd:
    found = RunningMeanStd()
    with field("statistics"):
        arrays = [np.array(moment) for moment in (mean, var, count)]
        untrusted_files.require(all(a.dtype.kind in "biuf" for a in arrays), "no real numbers")
        found.mean, found.var = (array.astype(np.float64) for array in arrays[:2])
        found.count = float(arrays[2])
        untrusted_files.require(found.mean.shape == found.var.shape, "mean and var differ in shape")
    return found


def _check_shapes(found: Any, needed: Any) -> None:
    text = f"observation_space has the shapes {_shapes(found)}, but {_shapes(needed)} is needed"
    require(_shapes(found) == _shapes(needed), text)


def _shapes(value: Any) -> Any:
    """The shapes of a space, of an array or of statistics; a dict of them for a dict."""
    if isinstance(value, gym.spaces.Dict):
        value = dict(value.spaces)
    return map_tree(lambda part: getattr(part, "shape", type(part).__name__), value)
