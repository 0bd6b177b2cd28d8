"""The algorithms of Stable-Baselines3 and sb3-contrib, over our VecEnvs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor as Sb3Monitor

import envpool_py.sb3 as own
from tests.sb3.conftest import BACKENDS
from tests.sb3.envs import GoalEnv, MaskedEnv, WalkEnv
from tests.sb3.reference import assert_same
from tests.sb3.test_vec_env import Native

SMALL = {"device": "cpu", "seed": 0}
OFF_POLICY = {**SMALL, "learning_starts": 60, "batch_size": 16, "buffer_size": 500, "train_freq": 4}
N = 4


# The class, its settings, and the actions it takes.
ALGORITHMS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "PPO": (PPO, {**SMALL, "n_steps": 32, "batch_size": 32, "n_epochs": 2}, "discrete"),
    "A2C": (A2C, {**SMALL, "n_steps": 8}, "box"),
    "DQN": (DQN, {**OFF_POLICY, "target_update_interval": 40}, "discrete"),
    "SAC": (SAC, {**OFF_POLICY, "gradient_steps": 2}, "box"),
}
STEPS = 256


def model_of(name: str, venv: Any) -> Any:
    """A new model, of a small network."""
    algorithm, settings, _ = ALGORITHMS[name]
    return algorithm("MlpPolicy", venv, policy_kwargs={"net_arch": [8]}, **settings)


def trained(name: str, venv: Any) -> Any:
    """A model that has learnt; at once, for all of them draw from one generator."""
    return model_of(name, venv).learn(STEPS)


def walkers(action: str, n: int = N) -> list[Any]:
    return [lambda: own.Monitor(WalkEnv(action=action))] * n


def weights(model: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


WRAPPINGS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda venv: venv,
    "theirs": lambda venv: sb3.VecCheckNan(sb3.VecNormalize(sb3.VecFrameStack(venv, 2)), True),
    "ours": lambda venv: own.VecCheckNan(own.VecNormalize(own.VecFrameStack(venv, 2)), True),
    "alike": lambda venv: sb3.VecNormalize(sb3.VecFrameStack(venv, 2)),
    "both": lambda venv: sb3.VecNormalize(own.VecFrameStack(venv, 2)),
}


@pytest.mark.parametrize(
    ("name", "wrapping"),
    [
        *[(name, "plain") for name in ALGORITHMS],
        *[("PPO", wrapping) for wrapping in ("ours", "theirs", "processes")],
        *[("SAC", wrapping) for wrapping in ("ours", "both")],
    ],
)
def test_one_seed_gives_the_weights_that_theirs_gives(name: str, wrapping: str) -> None:
    """Bit for bit: over ours in any wrapping, and over theirs in theirs."""
    action = ALGORITHMS[name][2]
    alike = {"ours": "theirs", "both": "alike", "processes": "plain"}.get(wrapping, wrapping)
    backend = "shmem" if wrapping == "processes" else "dummy"
    venv = WRAPPINGS.get(wrapping, WRAPPINGS["plain"])(BACKENDS[backend](walkers(action)))
    ours = trained(name, venv)
    theirs = trained(name, WRAPPINGS[alike](sb3.DummyVecEnv(walkers(action))))
    assert_same(weights(ours), weights(theirs))
    before = weights(model_of(name, venv))
    assert any((before[key] != value).any() for key, value in weights(ours).items())
    returns = [[round(ep["r"], 4) for ep in model.ep_info_buffer] for model in (ours, theirs)]
    assert returns[0] == returns[1] != []


@pytest.mark.parametrize(("name", "backend"), [("PPO", "shmem"), ("SAC", "dummy")])
def test_learn_save_load_evaluate(name: str, backend: str, tmp_path: Path) -> None:
    action = ALGORITHMS[name][2]
    make = BACKENDS[backend]
    venv = own.VecNormalize(make(walkers(action)))
    evaluated = own.VecNormalize(make(walkers(action, 2)), training=False, norm_reward=False)
    model = model_of(name, venv)
    assert model.get_vec_normalize_env() is venv
    assert model.get_env() is venv
    evaluation = EvalCallback(
        evaluated,
        eval_freq=STEPS // N // 2,
        n_eval_episodes=3,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    checkpoints = CheckpointCallback(STEPS // N, str(tmp_path), save_vecnormalize=True)
    model.learn(STEPS, callback=[evaluation, checkpoints])
    assert len(np.load(tmp_path / "evaluations.npz")["results"]) == 2
    # Their callback has put the statistics of training into ours.
    assert evaluated.obs_rms.count > 1
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=venv, device="cpu")
    assert_same(weights(loaded), weights(model))
    loaded.set_env(own.VecNormalize(make(walkers(action))))
    loaded.learn(STEPS // 2, reset_num_timesteps=False)
    assert (tmp_path / "best_model.zip").exists()
    [normalized] = tmp_path.glob("rl_model_vecnormalize_*.pkl")
    restored = own.VecNormalize.load(normalized, make(walkers(action, 2)))
    mean, _ = evaluate_policy(model, restored, n_eval_episodes=3)
    assert np.isfinite(mean)
    obs = restored.reset()
    assert model.predict(obs)[0].shape[0] == 2


def test_masked_actions(make: Any, tmp_path: Path) -> None:
    """The env asserts that no action is taken that its mask forbids."""
    venv = make([lambda: own.Monitor(MaskedEnv())] * 3)
    model = MaskablePPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=2, **SMALL)
    model.learn(200)
    mean, _ = evaluate_masked(model, venv, n_eval_episodes=3)
    assert mean == 8
    model.save(tmp_path / "model")
    MaskablePPO.load(tmp_path / "model", env=venv, device="cpu").learn(100)


def test_hindsight(make: Any) -> None:
    env_fns = [lambda: own.Monitor(GoalEnv())] * 2
    settings = {**OFF_POLICY, "replay_buffer_class": HerReplayBuffer}
    ours, theirs = (
        SAC("MultiInputPolicy", vec_env(env_fns), **settings).learn(120)
        for vec_env in (make, sb3.DummyVecEnv)
    )
    assert_same(weights(ours), weights(theirs))


def test_images_are_transposed_by_itself() -> None:
    """Stable-Baselines3 puts its own wrapper around images, unless ours is there."""

    class Images(WalkEnv):
        def __init__(self) -> None:
            super().__init__()
            self.drawn_from = self.observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)

    settings = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu", "seed": 0}
    models = []
    for wrap in (lambda venv: venv, own.VecTransposeImage, sb3.VecTransposeImage):
        models.append(PPO("CnnPolicy", wrap(own.DummyVecEnv([Images] * 2)), **settings))
        models[-1].learn(16)
        assert sb3.is_vecenv_wrapped(models[-1].get_env(), sb3.VecTransposeImage)
        assert own.is_vecenv_wrapped(models[-1].get_env(), own.VecTransposeImage)
    assert models[1].get_env().unwrapped is models[1].get_env().venv
    assert_same(weights(models[0]), weights(models[1]))
    assert_same(weights(models[0]), weights(models[2]))


def test_evaluation_sees_either_monitor() -> None:
    model = model_of("PPO", own.DummyVecEnv([WalkEnv]))
    venvs = [own.DummyVecEnv([lambda cls=cls: cls(WalkEnv())]) for cls in (own.Monitor, Sb3Monitor)]
    for venv in (*venvs, own.VecMonitor(own.DummyVecEnv([WalkEnv]))):
        evaluate_policy(model, venv, n_eval_episodes=2, warn=True)
    with pytest.warns(UserWarning, match="Monitor"):
        evaluate_policy(model, own.DummyVecEnv([WalkEnv]), n_eval_episodes=2)


def test_a_vec_env_of_a_users_own() -> None:
    """Derived from our VecEnv, it is one of theirs."""
    model = model_of("PPO", own.VecMonitor(Native(N)))
    model.learn(STEPS)
    assert model.ep_info_buffer
