"""Normalise observations by the running mean and variance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from envpool_py.wrappers import statistics
from envpool_py.wrappers.statistics import Statistics
from envpool_py.wrappers.vector import VectorEnvWrapper


class VectorEnvNormObs(VectorEnvWrapper):
    """Normalises every observation that the pool returns, once.

    A batch first updates the statistics, unless ``update_obs_rms`` is false, and is then
    normalised: ``(obs - mean) / sqrt(var + eps)``, within ``clip_max``. ``final_obs`` of an
    automatic reset is treated in the same way, so the statistics are the same in every
    ``autoreset_mode``. An observation dropped by ``seed`` does not count.

    An observation that is one array of numbers is normalised, whatever its space. In Dict and Tuple
    observations each Box leaf has its own statistics, at any depth; other leaves (Discrete,
    MultiBinary, Text, ...) do not change. Set None in place of statistics to skip a Box leaf::

        pool.set_obs_rms({"position": RunningMeanStd(), "image": None})

    A floating dtype is kept, any other becomes float64; the statistics are float64 always.
    ``observation_space`` is that of the normalised observations.

    Args:
        venv: the pool to wrap, or a wrapper around it; or another library's vector env that has
            ``reset(id)``, ``step(action, id)`` and an ``observation_space``, as EnvPool's has.
        update_obs_rms: whether observations update the statistics; an attribute that may be set.

    Attributes:
        obs_rms: the statistics: a ``RunningMeanStd`` for an observation that is one array; for Dict
            and Tuple spaces a dict or tuple of them; None for a part that is not normalised.

    Raises:
        TypeError: ``venv`` has no such methods, or its observation space has nothing to normalise.
    """

    def __init__(self, venv: Any, update_obs_rms: bool = True) -> None:
        missing = [n for n in ("reset", "step", "observation_space") if not hasattr(venv, n)]
        if missing:
            raise TypeError(f"venv: got {venv!r:.80}, which has no {', '.join(missing)}")
        self.venv = venv
        self.update_obs_rms = update_obs_rms
        self.set_obs_rms(statistics.for_space(self._spaces()[0]))

    def _spaces(self) -> Sequence[gym.Space[Any] | None]:
        """The observation space of each env; a vector env of another library has one for all."""
        spaces = self.venv.observation_space
        return spaces if isinstance(spaces, list) else [spaces]

    def observations(self, obs: Any) -> Any:
        """Update the statistics with a batch; return the batch normalised."""
        return statistics.normalise(self.obs_rms, obs, update=self.update_obs_rms)

    @property
    def obs_rms(self) -> Any:
        """The statistics, in the form of the observations; assigning to it is ``set_obs_rms``."""
        return self._obs_rms

    @obs_rms.setter
    def obs_rms(self, obs_rms: Statistics) -> None:
        self.set_obs_rms(obs_rms)

    def get_obs_rms(self) -> Statistics:
        """Return the statistics, not a copy."""
        return self._obs_rms

    def set_obs_rms(self, obs_rms: Statistics) -> None:
        """Use these statistics from now on, by reference.

        Two pools can share theirs::

            test_pool = VectorEnvNormObs(test_pool, update_obs_rms=False)
            test_pool.set_obs_rms(train_pool.get_obs_rms())

        None, or None in any place, leaves observations, or that leaf, unchanged. TypeError for no
        statistics, or of another kind than the observation space, ValueError for other keys, or
        another length or shape, than the space has.
        """
        for i, space in enumerate(self._spaces()):
            statistics.check(obs_rms, space, f"env {i}: obs_rms")
        self._obs_rms = obs_rms
        spaces = [statistics.normalised_space(obs_rms, space) for space in self._spaces()]
        is_pool = isinstance(self.venv.observation_space, list)
        self.observation_space = spaces if is_pool else spaces[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to an .npz file of plain arrays, at just this path.

        OSError if the file can't be written; an existing file does not change then.
        """
        statistics.save(self._obs_rms, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read statistics that ``save`` wrote, into the present ones: pools that share them too.

        Nothing in the file is unpickled. OSError if it can't be read; ValueError if it is no such
        file, or holds statistics of other observations: the present ones do not change then.
        """
        statistics.load(self._obs_rms, self._spaces()[0], path)
