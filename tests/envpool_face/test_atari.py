"""EnvPool's Atari ids, options and infos."""

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import AtariInfo, envpool
from envpool_py.sb3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv
from tests.envpool_face.envs import DUMMY

GAME = {"obs_type": "ram", "repeat_action_probability": 0.0, "frameskip": 4}


def test_ids_and_options_of_envpool_name_what_to_pass_here():
    with pytest.raises(gym.error.NameNotFound, match=r"pass 'ale_py:ALE/Breakout-v5'$"):
        envpool.make("Breakout-v5", num_envs=2)
    with pytest.raises(gym.error.NameNotFound, match=r"'ale_py:ALE/Pong-v5'; .*EpisodicLifeEnv"):
        envpool.make_gymnasium("Pong-v5", episodic_life=True)
    options = {"stack_num": 4, "reward_clip": True, "img_height": 84}
    text = "does not take img_height, reward_clip, stack_num; .*AtariPreprocessing; .*ClipReward"
    with pytest.raises(TypeError, match=text):
        envpool.make("ale_py:ALE/Pong-v5", **options)
    with pytest.raises(gym.error.NameNotFound, match="CartPola.*write 'module:CartPola-v1'"):
        envpool.make("CartPola-v1")


def test_infos_are_those_of_the_game_below_clipped_rewards_and_lives():
    options = {**DUMMY, "wrappers": [AtariInfo, EpisodicLifeEnv, ClipRewardEnv]}
    pool = envpool.make_gymnasium("ale_py:ALE/Breakout-v5", seed=7, **GAME, options=options)
    game = gym.make("ale_py:ALE/Breakout-v5", **GAME)
    game.reset(seed=7)
    info = pool.reset()[1]
    assert (info["lives"].tolist(), info["terminated"].tolist()) == ([5], [0])
    rng, lost, over, ended = np.random.default_rng(0), 0, False, False
    while not over:
        # The row after a lost life is the one of a step of no action.
        action = 0 if ended else int(rng.integers(1, 4))
        _, reward, terminated, _, own = game.step(action)
        _, clipped, ended, _, info = pool.step(np.array([action]))
        after_a_life = info["elapsed_step"][0] == 0
        over = terminated
        assert info["lives"][0] == own["lives"] == game.unwrapped.ale.lives()
        assert (info["reward"][0], info["terminated"][0]) == (reward, terminated)
        assert clipped[0] == (0 if after_a_life else np.sign(reward))
        ended = bool(ended[0])
        lost += ended
    assert lost == 5
    pool.close()
    game.close()
    with pytest.raises(TypeError, match="AtariInfo needs an Atari game"):
        AtariInfo(gym.make("CartPole-v1"))
