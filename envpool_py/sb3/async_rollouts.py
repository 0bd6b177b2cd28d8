"""``AsyncRollouts``: on-policy algorithms of Stable-Baselines3 that do not wait for the slowest.

The loop is that of Stable-Baselines3. Its ``env.step`` runs ahead: an env that is ready gets its
next action at once, and ``step`` returns as soon as all envs have made the step. By then the policy
has chosen the next actions of all envs, which the loop's ``policy(obs)`` returns.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from typing_extensions import Unpack  # typing has it from Python 3.11 on

from envpool_py.env.spaces import map_tree, take
from envpool_py.errors import EnvError
from envpool_py.pool.arguments import check_wait_num
from envpool_py.sb3.partial_steps import Overlay, PartialSteps, put_rows

#: The classes whose ``collect_rollouts`` does nothing with the envs but what is replaced here.
_KNOWN_LOOPS = {
    "stable_baselines3.common.on_policy_algorithm.OnPolicyAlgorithm",
    "sb3_contrib.ppo_mask.ppo_mask.MaskablePPO",
}


class _OfAlgorithms(TypedDict, total=False):
    """The keywords of ``PPO``, ``A2C``, ``TRPO`` and ``MaskablePPO``."""

    policy: str | type[Any]
    env: Any
    learning_rate: float | Callable[[float], float]
    n_steps: int
    batch_size: int | None
    n_epochs: int
    gamma: float
    gae_lambda: float
    clip_range: float | Callable[[float], float]
    clip_range_vf: float | Callable[[float], float] | None
    normalize_advantage: bool
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    rms_prop_eps: float
    use_rms_prop: bool
    use_sde: bool
    sde_sample_freq: int
    rollout_buffer_class: type[Any] | None
    rollout_buffer_kwargs: dict[str, Any] | None
    target_kl: float | None
    cg_max_steps: int
    cg_damping: float
    line_search_shrinking_factor: float
    line_search_max_iter: int
    n_critic_updates: int
    sub_sampling_factor: int
    stats_window_size: int
    tensorboard_log: str | None
    policy_kwargs: dict[str, Any] | None
    verbose: int
    seed: int | None
    device: torch.device | str
    _init_setup_model: bool


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
        wait_num: how many envs the policy waits for. None: those that are ready, and, with ``k``
            ready, the next one if it comes within the ``k``-th part of the time of a policy call;
            or all envs, if rollouts so take less time, which is measured. With ``num_envs`` the
            weights are those of the algorithm without this class, bit for bit.
        *args: as for the algorithm.
        **kwargs: likewise; a class with keywords of its own needs an ``__init__`` that names them,
            for type checkers.

    Raises:
        TypeError: the class has no on-policy algorithm after it, or one that defines its own
            ``collect_rollouts``, as the recurrent one does.
        UnsuitableEnvError: another VecEnv, or a wrapper that cannot step some envs alone.
        ValueError: ``wait_num`` is out of range.
    """

    wait_num: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mro = cls.__mro__
        if OnPolicyAlgorithm in mro and mro.index(OnPolicyAlgorithm) < mro.index(AsyncRollouts):
            raise TypeError(f"{cls.__name__}: name AsyncRollouts before the algorithm")

    @classmethod
    def _check_loop(cls) -> None:
        after = cls.__mro__[cls.__mro__.index(AsyncRollouts) + 1 :]
        name = cls.__name__
        if OnPolicyAlgorithm not in after:
            raise TypeError(f"{name}: AsyncRollouts needs an on-policy algorithm after it, as PPO")
        owner = next(base for base in after if "collect_rollouts" in vars(base))
        if f"{owner.__module__}.{owner.__name__}" not in _KNOWN_LOOPS:
            text = "it works with PPO, A2C, TRPO, MaskablePPO, and subclasses that inherit theirs"
            raise TypeError(
                f"{name}: {owner.__name__} defines its own collect_rollouts, which AsyncRollouts"
                f" does not know; {text}; use {owner.__name__} without AsyncRollouts"
            )

    def __init__(
        self, *args: Any, wait_num: int | None = None, **kwargs: Unpack[_OfAlgorithms]
    ) -> None:
        self._check_loop()
        self.wait_num = wait_num
        self._rollouts = 0
        self._seconds = [0.0, 0.0]  # of rollouts that wait for no env, and for all
        super().__init__(*args, **kwargs)  # type: ignore[misc]
        model: Any = self
        if model.env is not None:
            self._check(model.env)

    def _check(self, env: Any) -> PartialSteps:
        check_wait_num(self.wait_num, env.num_envs)
        return PartialSteps(env)

    def collect_rollouts(
        self,
        env: Any,
        callback: Any,
        rollout_buffer: Any,
        n_rollout_steps: int,
        *args: Any,
        **kwargs: Any,
    ) -> bool:
        """Fill the rollout buffer; False: the callback has ended it. EnvError if an env failed."""
        model: Any = self
        partial = self._check(env)
        whole = self._takes_all() if self.wait_num is None else self.wait_num == env.num_envs
        loop = super().collect_rollouts.__func__  # type: ignore[misc]
        with contextlib.nullcontext() if whole else partial:
            steps: Any = _WholeSteps(model.policy, env)
            if not whole:
                steps = _Steps(model, env, partial, n_rollout_steps, self.wait_num)
            args = steps.env, callback, rollout_buffer, n_rollout_steps, *args
            try:
                goes_on: bool = loop(Overlay(model, policy=steps.policy), *args, **kwargs)
                if goes_on:
                    earlier = self._seconds[whole] or steps.seconds
                    self._seconds[whole] = 0.7 * earlier + 0.3 * steps.seconds
                else:
                    steps.end(model)
            except BaseException:
                model._last_obs = None  # noqa: SLF001 - the next learn() resets the envs
                raise
        return goes_on

    def _takes_all(self) -> bool:
        """Whether this rollout waits for all envs: where that is faster, and now and then.

        Partial batches gain nothing if all steps take the same time, and each costs a policy call:
        they have to save a tenth.
        """
        self._rollouts += 1
        return (0.9 * self._seconds[1] < self._seconds[0]) != (self._rollouts % 8 == 0)


class _WholeSteps:
    """The steps of a rollout in whole batches; ``seconds`` is their time, with the policy's."""

    def __init__(self, policy: Any, env: Any) -> None:
        self.seconds = 0.0
        self.policy = Overlay(policy, call=functools.partial(self._timed, policy))
        self.env = Overlay(env, step=functools.partial(self._timed, env.step))

    def _timed(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        self._result = function(*args, **kwargs)
        self.seconds += time.perf_counter() - begun
        return self._result

    def end(self, model: Any) -> None:
        """Set the latest observations, which Stable-Baselines3 does not do here."""
        model._last_obs, _, model._last_episode_starts, _ = self._result  # noqa: SLF001 - its algorithm


class _Steps:
    """The steps of a rollout in partial batches.

    Step ``t`` of env ``n`` is at ``[t, n]`` of each column. ``seconds`` is the time in which
    ``step`` has waited and chosen actions.
    """

    def __init__(
        self, model: Any, env: Any, partial: PartialSteps, n_steps: int, wait_num: int | None
    ) -> None:
        self._model, self._env, self._partial, self._n_steps = model, env, partial, n_steps
        self._num_envs, self._everyone = env.num_envs, np.arange(env.num_envs)
        self._made = np.zeros(self._num_envs, np.intp)  # steps that each env has made
        self._returned = 0  # steps of all envs that the loop has got
        self._started = self._masked = False
        self._columns: dict[str, Any] = {}
        self._put(0, obs=model._last_obs)  # noqa: SLF001 - its algorithm
        self._policy_seconds, self.seconds = 1.0, 0.0
        self._lingers = wait_num is None
        partial.pool.wait_num, partial.pool.timeout = wait_num or 1, None
        self.policy = Overlay(model.policy, call=self.choices, reset_noise=self.reset_noise)
        self.env = Overlay(env, step=self.step, env_method=self.env_method)

    # ------------------------------------------------------ what the loop has in place of its own

    def choices(self, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        """The actions, values and log-probabilities of the next step of all envs."""
        if not self._started:
            self._started = True
            self._act(self._everyone)
        names = ("actions", "values", "log_probs")
        return tuple(torch.from_numpy(self._columns[name][self._returned]) for name in names)

    def step(self, _: Any) -> tuple[Any, NDArray[Any], NDArray[Any], list[Any]]:
        """What ``env.step`` would have returned; other envs go ahead meanwhile."""
        begun = time.perf_counter()
        while self._made.min() == self._returned:
            if self._lingers:
                self._partial.linger(self._policy_seconds)
            ids = self._receive()
            ids = ids[self._made[ids] < self._n_steps]
            if len(ids):
                self._act(ids)
        self.seconds += time.perf_counter() - begun
        names = ("rewards", "dones", "infos")
        rewards, dones, infos = (self._columns[name][self._returned] for name in names)
        self._returned += 1
        return take(self._columns["obs"], self._returned), rewards, dones, infos.tolist()

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The masks of the next actions, or what another method of the envs returns."""
        if name != "action_masks":
            return self._env.env_method(name, *args, **kwargs)
        self._masked = True
        self.choices()
        return self._columns["action_masks"][self._returned]

    def reset_noise(self, num_envs: int) -> None:
        """Draw the noise of all envs; later each env draws its own in its own steps."""
        if not self._started:
            self._model.policy.reset_noise(num_envs)
            self._noise = self._model.policy.action_dist.exploration_matrices

    # ------------------------------------------------------------------------------------ the rows

    def _put(self, at: Any, **columns: Any) -> None:
        size = self._n_steps + 1, self._num_envs
        for name, rows in columns.items():
            if name not in self._columns:
                self._columns[name] = map_tree(
                    lambda part: np.empty((*size, *part.shape[1:]), part.dtype), rows
                )
            put_rows(self._columns[name], at, rows)

    def _receive(self) -> NDArray[np.intp]:
        ids, obs, rewards, dones, infos = self._partial.recv()
        rows = np.fromiter(infos, object, len(ids))
        self._put((self._made[ids], ids), rewards=rewards, dones=dones, infos=rows)
        self._made[ids] += 1
        self._put((self._made[ids], ids), obs=obs)
        return ids

    def _act(self, ids: NDArray[np.intp]) -> None:
        model, begun = self._model, time.perf_counter()
        if len(ids) == self._num_envs:
            ids = self._everyone
        at = self._made[ids], ids
        extra = {}
        if self._masked:
            with self._partial.asking():
                masks = self._env.env_method("action_masks", indices=ids)
            extra["action_masks"] = np.stack(masks)
        with torch.no_grad():
            if model.use_sde:
                self._set_noise(ids)
            obs = obs_as_tensor(take(self._columns["obs"], at), model.device)
            chosen = model.policy(obs, **extra)
        actions, values, log_probs = (each.cpu().numpy() for each in chosen)
        self._put(at, actions=actions, values=values, log_probs=log_probs, **extra)
        space = model.action_space
        if isinstance(space, spaces.Box):
            if model.policy.squash_output:
                actions = model.policy.unscale_action(actions)
            else:
                actions = np.clip(actions, space.low, space.high)
        seconds = time.perf_counter() - begun
        self._policy_seconds = min(seconds, 0.9 * self._policy_seconds + 0.1 * seconds)
        self._partial.send(actions, ids)

    def _set_noise(self, ids: NDArray[np.intp]) -> None:
        """State-dependent exploration: each env has its own noise matrix."""
        policy, every, made = self._model.policy, self._model.sde_sample_freq, self._made[ids]
        due = ids[(made > 0) & (made % every == 0)] if every > 0 else ids[:0]
        if len(due):
            policy.reset_noise(len(due))
            self._noise = self._noise.clone()
            self._noise[due] = policy.action_dist.exploration_matrices
        policy.action_dist.exploration_matrices = self._noise[ids]
        if self._num_envs > 1 and len(ids) == 1:  # one row takes this matrix
            policy.action_dist.exploration_mat = self._noise[ids[0]]

    def end(self, model: Any) -> None:
        """Receive what is in flight; set the latest observations, or None if an env has failed."""
        model._last_obs = None  # noqa: SLF001 - its algorithm
        with contextlib.suppress(EnvError):
            while self._partial.pool.waiting_id:
                self._receive()
            model._last_obs = take(self._columns["obs"], (self._made, self._everyone))  # noqa: SLF001
            model._last_episode_starts = self._columns["dones"][self._made - 1, self._everyone]  # noqa: SLF001
