"""``VecNormalize``: observations and rewards by their running mean and spread; saved and loaded.

Files are pickles, as Stable-Baselines3 writes them, or, under a name that ends in ``.npz``, arrays
and a line of JSON. Both are read without running any code that a file may bring.
"""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py.sb3 import unpickling
from envpool_py.sb3.common.preprocessing import is_image_space
from envpool_py.sb3.common.running_mean_std import RunningMeanStd
from envpool_py.sb3.common.vec_env.base_vec_env import (
    UnsuitableEnvError,
    VecEnvObs,
    VecEnvStepReturn,
    VecEnvWrapper,
)
from envpool_py.spaces import snapshot

# All that the constructor takes besides the VecEnv.
_SETTINGS = (
    "training",
    "norm_obs",
    "norm_reward",
    "clip_obs",
    "clip_reward",
    "gamma",
    "epsilon",
    "norm_obs_keys",
)
_ZIP = b"PK\x03\x04"


class VecNormalize(VecEnvWrapper):
    """Normalizes observations and rewards.

    An observation becomes ``(obs - mean) / sqrt(var + epsilon)``, a reward is divided by
    ``sqrt(var + epsilon)`` of the discounted returns; both are clipped, and float32. Terminal
    observations likewise.

    Args:
        venv: a VecEnv with Box observations, or with a Dict of which entries are normalized.
        training: whether the statistics go on.
        norm_obs: whether observations are normalized.
        norm_reward: whether rewards are normalized.
        clip_obs: the largest absolute value of an observation.
        clip_reward: of a reward.
        gamma: the discount of the returns.
        epsilon: added to variances, against a division by zero.
        norm_obs_keys: which entries of Dict observations; None is all.

    Attributes:
        obs_rms: the statistics of observations, a ``RunningMeanStd`` or a dict of them; there is
            none where ``norm_obs`` was False.
        ret_rms: those of the returns.
        returns: float64 ``(num_envs,)``, the discounted returns of the episodes that go on.
        old_obs: the latest observations as they were.
        old_reward: the latest rewards as they were.

    The other arguments are attributes, and may be set at any time.

    Raises:
        ValueError: what is to be normalized is no Box, or the keys are wrong.
    """

    venv: Any
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
            self._begin_obs()
        self.ret_rms = RunningMeanStd()
        self._forget()

    def _begin_obs(self) -> None:
        space = self.observation_space
        if isinstance(space, gym.spaces.Dict):
            if self.norm_obs_keys is None:
                self.norm_obs_keys = list(space.spaces)
            for key in self.norm_obs_keys:
                if key not in space.spaces:
                    raise ValueError(
                        f"norm_obs_keys: there is no {key!r}, the space has {list(space.spaces)}"
                    )
                if not isinstance(space[key], gym.spaces.Box):
                    raise UnsuitableEnvError(
                        f"observation space {key!r}: {space[key]} can't be normalized, only a Box;"
                        " name those that can in norm_obs_keys"
                    )
            self.obs_rms = {
                key: RunningMeanStd(shape=space[key].shape or ()) for key in self.norm_obs_keys
            }
            self.observation_space = gym.spaces.Dict(
                [
                    (key, self._normalized_space(part) if key in self.obs_rms else part)
                    for key, part in space.items()
                ]
            )
        elif isinstance(space, gym.spaces.Box):
            if self.norm_obs_keys is not None:
                raise ValueError(f"norm_obs_keys: {space} has no keys, only a Dict has")
            self.obs_rms = RunningMeanStd(shape=space.shape)
            self.observation_space = self._normalized_space(space)
        else:
            raise UnsuitableEnvError(f"observation_space is {space}, but Box or Dict is needed")

    def _normalized_space(self, space: Any) -> gym.Space[Any]:
        # Other bounds are left as Stable-Baselines3 leaves them: models are saved with them.
        if not is_image_space(space):
            return space  # type: ignore[no-any-return]
        return gym.spaces.Box(-self.clip_obs, self.clip_obs, space.shape, np.float32)

    def _forget(self) -> None:
        self.returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self.old_obs: Any = None
        self.old_reward: NDArray[Any] = np.array([])

    # ---------------------------------------------------------------------------- reset and step

    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations, normalized."""
        obs = self.venv.reset()
        self.old_obs = obs
        self.returns = np.zeros(self.num_envs)
        self._learn_obs(obs)
        return self.normalize_obs(obs)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step begun; return ``obs, rewards, dones, infos``."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_obs = obs
        self.old_reward = rewards
        self._learn_obs(obs)
        if self.training:
            self.returns = self.returns * self.gamma + rewards
            self.ret_rms.update(self.returns)
        for i in np.flatnonzero(dones).tolist():
            if "terminal_observation" in infos[i]:
                infos[i]["terminal_observation"] = self.normalize_obs(
                    infos[i]["terminal_observation"]
                )
        self.returns[dones] = 0
        return self.normalize_obs(obs), self.normalize_reward(rewards), dones, infos

    def _learn_obs(self, obs: Any) -> None:
        if not (self.training and self.norm_obs):
            return
        if isinstance(self.obs_rms, dict):
            for key, rms in self.obs_rms.items():
                rms.update(obs[key])
        else:
            self.obs_rms.update(obs)

    # ------------------------------------------------------------------------------- the formulas

    def normalize_obs(self, obs: Any) -> Any:
        """Observations normalized by the statistics, which stay as they are.

        Args:
            obs: one, or a batch.

        Returns:
            The caller's own; float32 where normalized.
        """
        return self._each_normalized(obs, self._normalized)

    def unnormalize_obs(self, obs: Any) -> Any:
        """Observations as they were before they were normalized, if nothing was clipped.

        Args:
            obs: one, or a batch.

        Returns:
            The caller's own; float64 where it was normalized.
        """
        return self._each_normalized(obs, self._unnormalized)

    def _each_normalized(self, obs: Any, change: Any) -> Any:
        if not self.norm_obs:
            return snapshot(obs)
        if not isinstance(self.obs_rms, dict):
            return change(obs, self.obs_rms)
        return {
            key: change(part, self.obs_rms[key]) if key in self.obs_rms else snapshot(part)
            for key, part in obs.items()
        }

    def _normalized(self, obs: NDArray[Any], rms: RunningMeanStd) -> NDArray[np.float32]:
        scaled = (obs - rms.mean) / np.sqrt(rms.var + self.epsilon)
        normalized: NDArray[np.float32] = np.clip(scaled, -self.clip_obs, self.clip_obs).astype(
            np.float32
        )
        return normalized

    def _unnormalized(self, obs: NDArray[Any], rms: RunningMeanStd) -> NDArray[Any]:
        original: NDArray[Any] = obs * np.sqrt(rms.var + self.epsilon) + rms.mean
        return original

    def normalize_reward(self, reward: NDArray[Any]) -> NDArray[np.float32]:
        """Rewards normalized by the statistics, which stay as they are.

        Args:
            reward: ``(num_envs,)``.

        Returns:
            float32 ``(num_envs,)``, the caller's own.
        """
        if self.norm_reward:
            scaled = reward / np.sqrt(self.ret_rms.var + self.epsilon)
            reward = np.clip(scaled, -self.clip_reward, self.clip_reward)
        return reward.astype(np.float32)

    def unnormalize_reward(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Rewards as they were before they were normalized, if nothing was clipped.

        Args:
            reward: ``(num_envs,)``.
        """
        if not self.norm_reward:
            return reward
        original: NDArray[Any] = reward * np.sqrt(self.ret_rms.var + self.epsilon)
        return original

    def get_original_obs(self) -> Any:
        """The observations of the latest step or reset as they were; the caller's own.

        Raises:
            ValueError: there was none.
        """
        if self.old_obs is None:
            raise ValueError("get_original_obs: nothing was reset or stepped yet")
        return snapshot(self.old_obs)

    def get_original_reward(self) -> NDArray[Any]:
        """The rewards of the latest step as they were, ``(num_envs,)``; the caller's own."""
        return self.old_reward.copy()

    # ------------------------------------------------------------------------------ saving, loading

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the VecEnv, and what belongs to its episodes."""
        dropped = ("venv", "returns", "old_obs", "old_reward")
        return {key: value for key, value in vars(self).items() if key not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What was unpickled needs ``set_venv`` before it is used."""
        for key in ("class_attributes", "reset_infos"):  # of Stable-Baselines3's
            state.pop(key, None)
        vars(self).update(state)
        if "norm_obs_keys" not in state:  # older than that argument
            space = state["observation_space"]
            self.norm_obs_keys = list(space.spaces) if isinstance(space, gym.spaces.Dict) else None
        self.venv = None
        self._forget()

    def set_venv(self, venv: Any) -> None:
        """Wrap a VecEnv: once, after unpickling.

        Args:
            venv: with observations of the shape of those before.

        Raises:
            ValueError: there is one already.
            UnsuitableEnvError: observations have another shape.
        """
        if self.venv is not None:
            raise ValueError("set_venv: there is a VecEnv already, and it is set once")
        _check_shapes(self.observation_space, venv.observation_space)
        self.venv = venv
        self.num_envs = venv.num_envs
        self.render_mode = venv.render_mode
        self._forget()

    def save(self, save_path: str | Path) -> None:
        """Write settings and statistics to a file.

        Args:
            save_path: where. Under a name that ends in ``.npz`` the file holds arrays and JSON
                alone; else it is a pickle.
        """
        path = Path(save_path)
        if path.suffix == ".npz":
            self._save_arrays(path)
        else:
            with path.open("wb") as file:
                pickle.dump(self, file)

    @staticmethod
    def load(load_path: str | Path, venv: Any, *, trusted: bool = False) -> VecNormalize:
        """Read a file that ``save`` wrote, or Stable-Baselines3's ``VecNormalize.save``.

        Args:
            load_path: where.
            venv: the VecEnv to wrap.
            trusted: let a pickle name any class, and so run any code. By default only what
                ``VecNormalize`` itself consists of is read.

        Raises:
            pickle.UnpicklingError: the file holds something else.
            UnsuitableEnvError: the observations of ``venv`` have another shape.
        """
        path = Path(load_path)
        with path.open("rb") as file:
            arrays = file.read(len(_ZIP)) == _ZIP
        if arrays:
            return VecNormalize._load_arrays(path, venv)
        loaded = _unpickled(path, trusted=trusted)
        if not isinstance(loaded, VecNormalize):
            raise pickle.UnpicklingError(
                f"{path}: holds a {type(loaded).__name__}, not a VecNormalize"
            )
        loaded.set_venv(venv)
        return loaded

    def _statistics(self) -> list[RunningMeanStd]:
        """All of them: those of the returns first, then of the observations."""
        if not hasattr(self, "obs_rms"):
            return [self.ret_rms]
        obs = self.obs_rms.values() if isinstance(self.obs_rms, dict) else [self.obs_rms]
        return [self.ret_rms, *obs]

    def _save_arrays(self, path: Path) -> None:
        arrays = {"settings": np.array(json.dumps({n: getattr(self, n) for n in _SETTINGS}))}
        for k, rms in enumerate(self._statistics()):
            arrays |= {f"mean{k}": rms.mean, f"var{k}": rms.var, f"count{k}": np.array(rms.count)}
        np.savez(path, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def _load_arrays(path: Path, venv: Any) -> VecNormalize:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        try:
            loaded = VecNormalize(venv, **json.loads(str(arrays["settings"])))
            for k, rms in enumerate(loaded._statistics()):
                if arrays[f"mean{k}"].shape != np.shape(rms.mean):
                    raise UnsuitableEnvError(
                        f"{path}: has statistics of shape {arrays[f'mean{k}'].shape}, but the"
                        f" observations have {np.shape(rms.mean)}"
                    )
                rms.mean, rms.var = arrays[f"mean{k}"], arrays[f"var{k}"]
                rms.count = float(arrays[f"count{k}"])
        except KeyError as error:
            raise ValueError(f"{path}: has no {error}; VecNormalize did not write it") from None
        return loaded

    def save_running_average(self, path: str | Path) -> None:
        """Write the statistics alone to a directory, as ``obs_rms.pkl`` and ``ret_rms.pkl``.

        Args:
            path: a directory; made if it is not there.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("obs_rms", "ret_rms"):
            if hasattr(self, name):
                (folder / f"{name}.pkl").write_bytes(pickle.dumps(getattr(self, name)))

    def load_running_average(self, path: str | Path) -> None:
        """Read what ``save_running_average`` wrote, that of older Stable-Baselines too.

        Args:
            path: the directory.

        Raises:
            pickle.UnpicklingError: a file holds something else than statistics.
            UnsuitableEnvError: the statistics have another shape.
        """
        for name in ("obs_rms", "ret_rms"):
            with contextlib.suppress(AttributeError):  # without norm_obs there is no obs_rms
                own = vars(self).get(name)
                if own is None:
                    continue
                loaded = _unpickled(Path(path) / f"{name}.pkl")
                if _shapes(loaded) != _shapes(own):
                    raise UnsuitableEnvError(
                        f"{name}.pkl has the shapes {_shapes(loaded)}, but {_shapes(own)} is needed"
                    )
                setattr(self, name, loaded)

    def __deepcopy__(self, memo: dict[int, Any]) -> VecNormalize:
        # The VecEnv is not copied: the copy has none until set_venv.
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        other.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return other


def _unpickled(path: Path, *, trusted: bool = False) -> Any:
    known = {"VecNormalize": VecNormalize, "RunningMeanStd": RunningMeanStd}
    with path.open("rb") as file:
        return unpickling.load(file, known, trusted=trusted)


def _shapes(rms: Any) -> Any:
    if isinstance(rms, dict):
        return {key: _shapes(part) for key, part in rms.items()}
    return np.shape(rms.mean) if isinstance(rms, RunningMeanStd) else type(rms).__name__


def _check_shapes(before: gym.Space[Any], now: gym.Space[Any], name: str = "") -> None:
    """Raise unless two observation spaces have the same keys and shapes."""
    what = f"observation space {name}".rstrip()
    if isinstance(before, gym.spaces.Dict):
        keys = list(now.spaces) if isinstance(now, gym.spaces.Dict) else None
        if keys is None or set(keys) != set(before.spaces):
            raise UnsuitableEnvError(
                f"{what}: the VecEnv has {now}, but the statistics are of {list(before.spaces)}"
            )
        for key, part in before.items():
            _check_shapes(part, now[key], f"{name}[{key!r}]")  # type: ignore[index]
    elif isinstance(before, gym.spaces.Box) and before.shape != now.shape:
        raise UnsuitableEnvError(
            f"{what}: the VecEnv has shape {now.shape}, but the statistics have {before.shape}"
        )
