"""The algorithms of Stable-Baselines3 and sb3-contrib, over our VecEnvs; and the examples."""

import json
import re

import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from stable_baselines3 import PPO, SAC, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

import envpool_py.sb3 as own
from tests.sb3.conftest import BACKENDS, THEIRS
from tests.sb3.envs import WalkEnv
from tests.sb3.reference import assert_same

SMALL = {"device": "cpu", "seed": 0}
ON_POLICY = {**SMALL, "n_steps": 32, "batch_size": 32, "n_epochs": 2}
OFF_POLICY = {**SMALL, "learning_starts": 60, "batch_size": 16, "buffer_size": 500, "train_freq": 4}
HER = {**OFF_POLICY, "replay_buffer_class": HerReplayBuffer}
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
# The class, its settings, the kind of its policy, and the env.
ALGORITHMS = {
    "PPO": (PPO, ON_POLICY, "Mlp", WalkEnv),
    "SAC": (SAC, {**OFF_POLICY, "gradient_steps": 2}, "Mlp", lambda: WalkEnv(action="box")),
    "HER": (SAC, HER, "MultiInput", lambda: BitFlippingEnv(4, continuous=True)),
    "CNN": (PPO, ON_POLICY, "Cnn", lambda: WalkEnv(IMAGE)),
}
STEPS = 128


def model_of(name, venv):
    """A new model, of a small network."""
    algorithm, settings, policy, _ = ALGORITHMS[name]
    return algorithm(f"{policy}Policy", venv, policy_kwargs={"net_arch": [8]}, **settings)


def monitored(env_fn=WalkEnv, n=4):
    return [lambda: own.Monitor(env_fn())] * n


def weights(model):
    return {name: value.numpy().copy() for name, value in model.policy.state_dict().items()}


def wrapped(venv, packages):
    """A VecEnv in the wrappers of these packages, one of each."""
    kinds = [("VecFrameStack", 2), ("VecNormalize",), ("VecCheckNan", True)]
    if venv.observation_space == IMAGE:
        kinds = [("VecTransposeImage",)]
    for package, (name, *args) in zip(packages, kinds, strict=False):
        venv = getattr(package, name)(venv, *args)
    return venv


@pytest.mark.parametrize(
    ("name", "backend", "packages"),
    [
        ("HER", "dummy", ()),
        ("HER", "shmem", ()),
        ("CNN", "dummy", ()),
        ("PPO", "dummy", (own, own, own)),
        ("PPO", "shmem", (own, sb3)),
        ("SAC", "shmem", (sb3, own)),
        ("CNN", "dummy", (own,)),
    ],
)
def test_one_seed_gives_the_weights_that_theirs_gives(name, backend, packages):
    """Bit for bit: over ours in any wrapping, and over theirs of the same kind in theirs.

    Their SubprocVecEnv has float64 rewards, of which VecNormalize makes others than of float32.
    Stable-Baselines3 puts its VecTransposeImage around images, unless ours is there.
    """
    env_fns = monitored(ALGORITHMS[name][3])
    venv = wrapped(BACKENDS[backend](env_fns), packages)
    reference = wrapped(THEIRS[backend](env_fns), (sb3,) * len(packages))
    # Each learns at once, for all of them draw from one generator.
    ours, theirs = (model_of(name, each).learn(STEPS) for each in (venv, reference))
    assert_same(weights(ours), weights(theirs))
    before = weights(model_of(name, venv))
    assert any((before[key] != value).any() for key, value in weights(ours).items())
    returns = [[round(ep["r"], 4) for ep in model.ep_info_buffer] for model in (ours, theirs)]
    assert returns[0] == returns[1] != []
    reference.close()


COMPARISON = ("--num-envs", "2", "--seconds", "0.01", "--rounds", "1", "--ppo-steps", "64")
COMPARISON += ("--only", "SB3 DummyVecEnv", "ShmemVecEnv, 2 processes")


@pytest.mark.parametrize(
    ("name", "args", "text", "times"),
    [
        ("sb3_ppo", ("--steps", "512"), "mean return", 1),
        ("sb3_custom_env", ("--steps", "100"), r"checked|HER: mean return -\d+.\d+ before", 3),
        ("sb3_throughput", COMPARISON, "SB3 DummyVecEnv|ShmemVecEnv, 2 processes", 6),
        pytest.param("sb3_ppo", (), r"mean return (4[5-9]|500)", 1, marks=pytest.mark.soak),
    ],
)
def test_an_example(name, args, text, times, run_example):
    assert len(re.findall(text, run_example(name, *args))) == times


TURNS = [("rollouts", ("--steps", 32), {"whole", "async"})]
TURNS += [("evaluation", ("--episodes", 3, "--longest", 5), {"sb3", "ours"})]


@pytest.mark.parametrize(("name", "options", "keys"), TURNS)
def test_two_programs_are_measured_in_turns(name, options, keys, tmp_path, run_example):
    path = tmp_path / "a.json"
    few = ("--num-envs", 2, "--mean-ms", 1, "--rounds", 1, "--json", path)
    assert "ratio" in run_example(f"benchmark/{name}", *options, *few)
    rows = json.loads(path.read_text())
    assert rows
    assert all(row.keys() == keys and min(row.values()) > 0 for row in rows)
