"""``SB3MultiAgentVecEnv``: rows against raw envs stepped by hand, and algorithms learning on it."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from envpool_py import EnvError
from envpool_py.pettingzoo import SB3MultiAgentVecEnv
from envpool_py.sb3.common.vec_env import base_vec_env
from tests.pettingzoo.by_hand import ParallelByHand, zeros
from tests.pettingzoo.envs import FaultyMeadowEnv, MatchEnv, MeadowEnv, PlainMeadowEnv
from tests.pettingzoo.places import ACTS, BACKENDS, KAZ, make_parallel
from tests.support.reference import alike as same

NUM = 3


def make(name: str) -> Any:
    return PlainMeadowEnv() if name == "plain_meadow" else make_parallel(name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["plain_meadow", "simple_spread", KAZ])
def test_rows_are_those_of_the_raw_envs(name: str, backend: str, sides: list[Any]) -> None:
    hands = [ParallelByHand(make(name), "same_step", acts=ACTS.get(name)) for _ in range(NUM)]
    agents = hands[0].agents
    space = hands[0].env.observation_space(agents[0])
    venv = SB3MultiAgentVecEnv([functools.partial(make, name)] * NUM, backend)
    assert venv.num_envs == NUM * len(agents)
    assert venv.seed(5) == [5 + i for i in range(NUM) for _ in agents]
    obs = venv.reset()
    rows = [hand.reset(5 + i) for i, hand in enumerate(hands)]
    rng = np.random.default_rng(0)
    deaths = ends = 0
    for _ in range(60):
        for r in range(venv.num_envs):
            i, agent = r // len(agents), agents[r % len(agents)]
            assert same(obs[r], rows[i]["obs"][agent] if rows[i]["alive"][agent] else zeros(space))
            mask = venv.env_method("action_masks", indices=r)[0]
            assert same(mask, rows[i]["mask"][agent] | (not rows[i]["alive"][agent]))
        actions = np.zeros(venv.num_envs, np.int64)
        for i, hand in enumerate(hands):
            chosen = hand.choose(rows[i], rng)
            actions[i * len(agents) :][: len(agents)] = [chosen.get(a, 3) for a in agents]
            rows[i] = hand.step(chosen)
        obs, rewards, dones, infos = venv.step(actions)
        assert rewards.dtype == np.float32
        assert dones.dtype == np.bool_
        for r, info in enumerate(infos):
            i, agent = r // len(agents), agents[r % len(agents)]
            row = rows[i]
            died = row["valid"][agent] and (row["terminated"][agent] or row["truncated"][agent])
            born = row["alive"][agent] and not row["valid"][agent]
            assert dones[r] == (died or row["env_done"] or born)
            assert rewards[r] == np.float32(row["rewards"][agent])
            own = row["final_infos"] if row["env_done"] else row["infos"]
            last = row["final_obs"][agent] if row["env_done"] else row["obs"][agent]
            if born and not row["env_done"]:
                last = zeros(space)
            expected = {
                **own.get(agent, {}),
                "active": row["valid"][agent],
                "TimeLimit.truncated": died
                and row["truncated"][agent]
                and not row["terminated"][agent],
                **({"terminal_observation": last} if dones[r] else {}),
            }
            assert same(info, expected)
            deaths += died and not row["env_done"]
            ends += row["env_done"]
    assert ends
    assert deaths or name == "simple_spread"
    assert sides == [] or name == "plain_meadow", "only infos that are not empty are pickled"
    venv.close()
    for hand in hands:
        hand.env.close()


@pytest.fixture
def venv() -> Any:
    made = SB3MultiAgentVecEnv([PlainMeadowEnv] * 2, "dummy")
    yield made
    made.close()


def test_rows_are_mapped_to_their_envs(venv: Any) -> None:
    assert isinstance(venv, VecEnv)
    assert (venv.observation_space, venv.action_space) == (PlainMeadowEnv.seen, PlainMeadowEnv.acts)
    assert venv.render_mode == "rgb_array"
    assert venv.possible_agents == MeadowEnv.possible_agents
    venv.set_attr("level", 7, indices=[5])
    assert venv.get_attr("level") == [1] * 4 + [7] * 4
    assert venv.get_attr("level", indices=[4, 0, 7]) == [7, 1, 7]
    assert venv.env_is_wrapped(gym.Wrapper) == [False] * 8
    assert venv.env_is_wrapped(PlainMeadowEnv, indices=[1, 2]) == [True] * 2
    assert not venv.has_attr("nothing_of_the_kind")
    with pytest.raises(AttributeError):
        venv.get_attr("nothing_of_the_kind")
    venv.seed(1)
    venv.reset()
    assert [image.shape for image in venv.get_images()] == [(4, 6, 3)] * 2
    assert [int(state[0]) for state in venv.env_method("state")] == [0] * 8
    assert venv.env_method("bits", 2, indices=[1])[0].shape == (2,)
    first = venv.env_method("bits", 30)  # which is called once for each env
    assert all(same(first[0], one) for one in first[:4])
    assert not same(first[0], first[4])
    assert is_masking_supported(venv)
    assert get_action_masks(venv).shape == (8, 4)
    assert same(get_action_masks(venv), venv.action_masks())


def test_seeds_and_options_serve_one_reset(venv: Any) -> None:
    venv.seed(3)
    venv.set_options({"total": 5})
    first = venv.reset()
    assert first[0][1] == 5
    second = venv.reset()
    assert second[0][1] == 0
    assert venv.seed([3, 4]) == [3] * 4 + [4] * 4
    again = venv.reset()
    assert same(again[:, 2], first[:, 2])
    assert venv.seed([3] * 4 + [4] * 4) == [3] * 4 + [4] * 4
    assert same(venv.reset()[:, 2], first[:, 2])
    with pytest.raises(ValueError, match="got 3 seeds for 2 envs"):
        venv.seed([1, 2, 3])


def test_different_spaces_are_refused() -> None:
    with pytest.raises(base_vec_env.UnsuitableEnvError, match="'fawn_0' has the spaces") as caught:
        SB3MultiAgentVecEnv([MeadowEnv] * 2, "dummy")
    assert "pad_" in str(caught.value)


def test_wrong_calls(venv: Any) -> None:
    with pytest.raises(NoAsyncCallError):
        venv.step_wait()
    with pytest.raises(gym.error.ResetNeeded):
        venv.step(np.zeros(8, int))
    venv.reset()
    with pytest.raises(ValueError, match="got 7 actions for 8 envs"):
        venv.step(np.zeros(7, int))
    with pytest.warns(UserWarning, match="got 9 actions for 8 envs"):
        venv.step(np.zeros(9, int))
    venv.step_async(np.zeros(8, int))
    with pytest.raises(AlreadyPendingCallError):
        venv.step_async(np.zeros(8, int))
    with pytest.raises(AlreadyPendingCallError):
        venv.get_attr("level")
    venv.reset()  # gives the step up
    venv.close()
    venv.close()
    with pytest.raises(ClosedEnvironmentError):
        venv.reset()
    for name in ("autoreset_mode", "wait_num"):
        with pytest.raises(TypeError, match=name):
            SB3MultiAgentVecEnv([PlainMeadowEnv], "dummy", **{name: 1})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_one_env(backend: str) -> None:
    venv = SB3MultiAgentVecEnv([PlainMeadowEnv, FaultyMeadowEnv], backend)
    venv.reset()
    venv.set_attr("level", 2, indices=[4])
    venv.step(np.zeros(8, int))
    venv.step(np.zeros(8, int))
    with pytest.raises(ValueError, match="env 1: step raised ValueError: the meadow burns") as info:
        venv.step(np.zeros(8, int))
    assert isinstance(info.value, EnvError)
    venv.reset()
    venv.step(np.zeros(8, int))
    venv.close()


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_a_shared_policy_learns(algorithm: Any) -> None:
    torch.set_num_threads(1)  # networks as small as these only lose by more
    venv = SB3MultiAgentVecEnv([MatchEnv] * 4, num_processes=2)
    model = algorithm(
        "MlpPolicy",
        VecMonitor(venv),
        n_steps=64,
        batch_size=384,
        n_epochs=6,
        learning_rate=1e-2,
        gamma=0.5,
        seed=1,
        device="cpu",
    )
    model.learn(2_400)
    # A random policy gets a third of 10 points where nothing is masked, and half of it otherwise.
    mean, _ = evaluate_policy(model, VecMonitor(venv), n_eval_episodes=24, warn=False)
    assert mean > 8
    venv.close()
