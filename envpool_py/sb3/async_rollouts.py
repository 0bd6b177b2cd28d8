"""``AsyncRollouts``: on-policy algorithms of Stable-Baselines3 that do not wait for the slowest."""

from __future__ import annotations

import functools
import importlib
import time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from envpool_py.env.spaces import map_tree, take
from envpool_py.pool.arguments import check_wait_num
from envpool_py.sb3.partial_steps import PartialSteps

#: The part of the time of a policy call for which a batch waits for more rows.
_LINGER = 0.25


class AsyncRollouts:
    """Collects rollouts in which an env that is ready takes its next step at once.

    A mixin for ``PPO``, ``A2C``, and ``TRPO`` and ``MaskablePPO`` of sb3-contrib::

        class AsyncPPO(AsyncRollouts, PPO): ...

    Each env makes ``n_steps`` steps under one policy, as before, so that no env is represented more
    than another; only envs that are faster go ahead of the others. The rollout buffer, callbacks,
    logs and saved models are those of Stable-Baselines3. ``on_step`` is called once for each step
    of all envs, with the rows of all envs, as soon as the slowest has made it. So the frequencies
    of callbacks keep their meaning. While it runs, other envs are in flight: a callback that calls
    methods of the envs must do so when a rollout starts or ends.

    The env is a VecEnv of ``envpool_py.sb3``, in any wrappers but ``VecVideoRecorder``. A wrapper
    of your own needs a class attribute ``per_env``: the names of its arrays with one row per env.
    ``VecNormalize`` updates its statistics with each partial batch.

    Args:
        *args: as for the algorithm.
        wait_num: how many envs the policy waits for; None: those that are ready within a quarter of
            the time that a call of the policy takes, at least one. ``num_envs``: all envs, which is
            best if all steps take the same time. The weights are then those of the algorithm
            without this class, bit for bit.
        **kwargs: as for the algorithm.

    Raises:
        TypeError: the class has no on-policy algorithm, or a recurrent one.
        UnsuitableEnvError: another VecEnv, or a wrapper that cannot step some envs alone.
        ValueError: ``wait_num`` is out of range.
    """

    wait_num: int | None = None

    def __init__(self, *args: Any, wait_num: int | None = None, **kwargs: Any) -> None:
        name = type(self).__name__
        if not isinstance(self, OnPolicyAlgorithm):
            raise TypeError(f"{name}: AsyncRollouts needs an on-policy algorithm after it, as PPO")
        self.wait_num = wait_num
        super().__init__(*args, **kwargs)
        if hasattr(self, "_last_lstm_states"):
            raise TypeError(f"{name}: recurrent policies are not supported; use RecurrentPPO alone")
        if self.env is not None:
            self._check(self.env)

    def _check(self, env: Any) -> PartialSteps:
        check_wait_num(self.wait_num, env.num_envs)
        return PartialSteps(env)

    def collect_rollouts(
        self: Any,
        env: Any,
        callback: Any,
        rollout_buffer: Any,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        """Fill the rollout buffer, as the method of the same name of Stable-Baselines3 does.

        Return False if the callback has ended the training. EnvError if an env failed.
        """
        assert self._last_obs is not None, "No previous observation was provided"  # noqa: S101
        partial = self._check(env)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        steps = _Steps(self, env, n_rollout_steps)
        if use_masking and hasattr(rollout_buffer, "action_masks"):
            steps.mask_actions()
        num_envs, n_steps = env.num_envs, 0
        callback.on_rollout_start()
        try:
            with partial:
                steps.act(partial, np.arange(num_envs))
                while n_steps < n_rollout_steps:
                    ids, *rows = partial.recv()
                    ready = steps.put(ids, *rows)
                    if len(ready):
                        steps.act(partial, ready)
                    # The rest is the loop of Stable-Baselines3, once for each step of all envs.
                    while n_steps < steps.made.min():
                        new_obs, rewards, dones, infos = steps.results(n_steps)
                        actions, values, log_probs, extra = steps.choices(n_steps)
                        self.num_timesteps += num_envs
                        callback.update_locals(locals())
                        if not callback.on_step():
                            for ids, *rows in partial.drain():
                                steps.put(ids, *rows)
                            self._last_obs, self._last_episode_starts = steps.latest()
                            return False
                        self._update_info_buffer(infos, dones)
                        self._bootstrap(rewards, dones, infos)
                        if isinstance(self.action_space, spaces.Discrete):
                            actions = actions.reshape(-1, 1)
                        last = self._last_obs, actions, rewards, self._last_episode_starts
                        rollout_buffer.add(*last, values, log_probs, **extra)
                        self._last_obs, self._last_episode_starts = new_obs, dones
                        n_steps += 1
        except BaseException:
            self._last_obs = None  # the next learn() resets the envs
            raise
        with torch.no_grad():
            values = self.policy.predict_values(obs_as_tensor(new_obs, self.device))
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _bootstrap(self: Any, rewards: Any, dones: Any, infos: Any) -> None:
        """Add the value of the last observation to the reward where an episode is truncated."""
        for i in np.flatnonzero(dones).tolist():
            terminal = infos[i].get("terminal_observation")
            if terminal is not None and infos[i].get("TimeLimit.truncated", False):
                with torch.no_grad():
                    value = self.policy.predict_values(self.policy.obs_to_tensor(terminal)[0])[0]
                rewards[i] += self.gamma * value


class _Steps:
    """The steps of one rollout, ``(n_steps, num_envs, ...)``, and the policy that makes them."""

    def __init__(self, model: Any, env: Any, n_steps: int) -> None:
        self._model, self._env, self._n_steps = model, env, n_steps
        shape = n_steps + 1, env.num_envs
        self._everyone = np.arange(env.num_envs)
        self.made = np.zeros(env.num_envs, np.intp)  # steps that each env has made
        first = model._last_obs  # noqa: SLF001 - its algorithm
        self._obs = map_tree(functools.partial(_room, n_steps + 1), first)
        map_tree(lambda parts, part: parts.__setitem__(0, part), self._obs, first)
        self._dones = np.zeros(shape, np.bool_)  # of the step before
        self._dones[0] = model._last_episode_starts  # noqa: SLF001
        self._rewards = np.zeros(shape, np.float32)
        self._infos = np.empty(shape, object)
        self._actions: Any = None
        self._values, self._log_probs = (np.zeros(shape, np.float32) for _ in range(2))
        self._masks: Any = None
        self._masked = False
        self._noise = _Noise(model, env.num_envs) if model.use_sde else None
        self._policy_seconds: float | None = None

    def mask_actions(self) -> None:
        """Ask the envs for action masks; ValueError if they have none."""
        utils = importlib.import_module("sb3_contrib.common.maskable.utils")
        if not utils.is_masking_supported(self._env):
            raise ValueError("the envs have no action_masks(); wrap them in ActionMasker")
        self._masked = True

    def act(self, partial: PartialSteps, ids: NDArray[np.intp]) -> None:
        """Choose the actions of these envs and send them."""
        model, at, begun = self._model, (self.made[ids], ids), time.perf_counter()
        extra = {}
        if self._masked:
            masks = np.stack(self._env.env_method("action_masks", indices=ids))
            if self._masks is None:
                self._masks = np.empty((*self._rewards.shape, *masks.shape[1:]), masks.dtype)
            self._masks[at] = extra["action_masks"] = masks
        if self._noise is not None:
            self._noise.choose(self.made[ids], ids)
        with torch.no_grad():
            t = self.made[0]
            whole = np.array_equal(ids, self._everyone) and (self.made == t).all()
            obs = take(self._obs, t if whole else at)
            chosen, values, log_probs = model.policy(obs_as_tensor(obs, model.device), **extra)
        actions = chosen.cpu().numpy()
        if self._actions is None:
            self._actions = np.empty((*self._rewards.shape, *actions.shape[1:]), actions.dtype)
        self._actions[at] = actions
        self._values[at], self._log_probs[at] = (
            values.cpu().numpy().ravel(),
            log_probs.cpu().numpy(),
        )
        space = model.action_space
        if isinstance(space, spaces.Box):
            if model.policy.squash_output:
                actions = model.policy.unscale_action(actions)
            else:
                actions = np.clip(actions, space.low, space.high)
        self._set_wait(partial.pool, time.perf_counter() - begun)
        partial.send(actions, ids)

    def _set_wait(self, pool: Any, seconds: float) -> None:
        """Say for how many rows the next batch waits; ``seconds``: of this call of the policy."""
        pool.wait_num, pool.timeout = self._model.wait_num, None
        if self._model.wait_num is None:
            known = seconds if self._policy_seconds is None else self._policy_seconds
            self._policy_seconds = min(seconds, 0.9 * known + 0.1 * seconds)
            pool.timeout = _LINGER * self._policy_seconds

    def put(
        self, ids: NDArray[np.intp], obs: Any, rewards: Any, dones: Any, infos: Any
    ) -> NDArray[np.intp]:
        """Store a batch; return the envs that have more steps to make."""
        at = self.made[ids], ids
        self._rewards[at], self._infos[at] = rewards, np.fromiter(infos, object, len(ids))
        self.made[ids] += 1
        at = self.made[ids], ids
        self._dones[at] = dones
        map_tree(lambda parts, part: parts.__setitem__(at, part), self._obs, obs)
        return ids[self.made[ids] < self._n_steps]

    def results(self, t: int) -> tuple[Any, NDArray[Any], NDArray[Any], list[Any]]:
        """What ``step`` would have returned for step ``t`` of all envs."""
        return take(self._obs, t + 1), self._rewards[t], self._dones[t + 1], self._infos[t].tolist()

    def choices(self, t: int) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Actions, values, log-probabilities and, if there are any, masks of step ``t``."""
        extra = {"action_masks": self._masks[t]} if self._masked else {}
        values, log_probs = (torch.from_numpy(each[t]) for each in (self._values, self._log_probs))
        return self._actions[t], values, log_probs, extra

    def latest(self) -> tuple[Any, NDArray[np.bool_]]:
        """The latest observation of each env, and whether it begins an episode."""
        at = self.made, self._everyone
        return take(self._obs, at), self._dones[at]


def _room(n_steps: int, first: NDArray[Any]) -> NDArray[Any]:
    """An empty array ``(n_steps, *first.shape)`` whose rows have the strides of ``first``.

    Convolutions depend on them in their last bits.
    """
    extent = sum((n - 1) * stride for n, stride in zip(first.shape, first.strides, strict=True))
    if min(first.strides) <= 0 or extent + first.itemsize != first.nbytes:  # it has gaps
        return np.empty((n_steps, *first.shape), first.dtype)
    room = np.empty((n_steps, first.size), first.dtype)
    strides = room.strides[0], *first.strides
    return np.lib.stride_tricks.as_strided(room, (n_steps, *first.shape), strides)


class _Noise:
    """State-dependent exploration: a noise matrix for each env, drawn again in its own steps."""

    def __init__(self, model: Any, num_envs: int) -> None:
        self._policy, self._every = model.policy, model.sde_sample_freq
        self._policy.reset_noise(num_envs)
        self._num_envs = num_envs
        self._matrices = self._policy.action_dist.exploration_matrices

    def choose(self, steps: NDArray[np.intp], ids: NDArray[np.intp]) -> None:
        """Set the matrices of these envs, which have made ``steps`` ``(k,)``."""
        dist = self._policy.action_dist
        due = ids[steps % self._every == 0] if self._every > 0 else ids[:0]
        if len(due):
            self._policy.reset_noise(len(due))
            self._matrices = self._matrices.clone()
            self._matrices[due] = dist.exploration_matrices
        dist.exploration_matrices = self._matrices[ids]
        if self._num_envs > 1 and len(ids) == 1:  # one row takes this matrix
            dist.exploration_mat = self._matrices[ids[0]]
