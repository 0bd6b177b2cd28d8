"""``SB3MultiAgentVecEnv``: rows against raw envs stepped by hand, and MaskablePPO on it."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

from envpool_py.pettingzoo import SB3MultiAgentVecEnv
from envpool_py.sb3 import VecMonitor
from envpool_py.sb3.common.vec_env import base_vec_env
from tests.pettingzoo.by_hand import ParallelByHand, zeros
from tests.pettingzoo.envs import ACTS, BURNS, KAZ, MeadowEnv, PlainMeadowEnv, make_parallel
from tests.support.reference import alike as same

NUM = 3


PLACES = [("plain_meadow", "dummy"), ("plain_meadow", "shmem"), (KAZ, "shmem")]


@pytest.mark.parametrize(("name", "backend"), PLACES)
def test_rows_are_those_of_the_raw_envs(name, backend, sides):
    hands = [ParallelByHand(make_parallel(name), "same_step", ACTS.get(name)) for _ in range(NUM)]
    agents = hands[0].agents
    absent = zeros(hands[0].env.observation_space(agents[0]))
    of_row = [(i, agent) for i in range(NUM) for agent in agents]
    rng, deaths = np.random.default_rng(0), 0
    venv = SB3MultiAgentVecEnv([functools.partial(make_parallel, name)] * NUM, backend)
    assert venv.num_envs == NUM * len(agents)
    venv.seed(5)
    obs = venv.reset()
    rows = [hand.reset(5 + i) for i, hand in enumerate(hands)]
    for _ in range(60):
        masks = venv.env_method("action_masks")
        for r, (i, agent) in enumerate(of_row):
            alive = rows[i].info["alive"][agent]
            assert same(obs[r], rows[i].obs[agent] if alive else absent)
            assert same(masks[r], rows[i].info["action_mask"][agent] | (not alive))
        chosen = [hand.choose(row, rng) for hand, row in zip(hands, rows, strict=True)]
        rows = [hand.step(actions) for hand, actions in zip(hands, chosen, strict=True)]
        # The actions of absent agents are ignored.
        actions = np.array([chosen[i].get(agent, 3) for i, agent in of_row])
        obs, rewards, dones, infos = venv.step(actions)
        assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)
        for r, (i, agent) in enumerate(of_row):
            row, told = rows[i], rows[i].info
            ended, valid = told["env_done"], told["valid"][agent]
            died = valid and (row.terminated[agent] or row.truncated[agent])
            expected = {
                **told["final_infos" if ended else "agent_infos"].get(agent, {}),
                "active": valid,
                "TimeLimit.truncated": died and not row.terminated[agent],
            }
            if died:
                last = (told["final_obs"] if ended else row.obs)[agent]
                expected["terminal_observation"] = last
            assert same(infos[r], expected)
            assert dones[r] == ("terminal_observation" in expected)
            assert rewards[r] == np.float32(row.rewards[agent])
            assert not ended or same(venv.reset_infos[r], told["agent_infos"].get(agent, {}))
            deaths += died and not ended
    assert all(hand.episodes > 1 for hand in hands)
    assert deaths
    assert sides == [] or name == "plain_meadow", "only infos that are not empty are pickled"
    venv.close()
    for hand in hands:
        hand.env.close()


def test_a_monitor_counts_each_life_once():
    """As an env stepped by hand; a dead agent's row is not done again at the end of its env."""
    hand, rng = ParallelByHand(PlainMeadowEnv(), "same_step", None), np.random.default_rng(0)
    row, lives, episodes = hand.reset(5), [], []
    current = {agent: [0.0, 0] for agent in hand.agents}
    venv = VecMonitor(SB3MultiAgentVecEnv([PlainMeadowEnv], "dummy"))
    venv.seed(5)
    venv.reset()
    for _ in range(60):
        chosen = hand.choose(row, rng)
        row = hand.step(chosen)
        for agent in hand.agents:
            valid = row.info["valid"][agent]
            current[agent][0] += row.rewards[agent]  # this env gives one to who appears, too
            current[agent][1] += valid
            if valid and (row.terminated[agent] or row.truncated[agent]):
                lives.append(current[agent])
                current[agent] = [0.0, 0]
        *_, infos = venv.step(np.array([chosen.get(agent, 0) for agent in hand.agents]))
        episodes += [info["episode"] for info in infos if "episode" in info]
    venv.close()
    assert len(lives) > 10
    assert [each["l"] for each in episodes] == [length for _, length in lives]
    returns = [each["r"] for each in episodes]
    np.testing.assert_allclose(returns, [total for total, _ in lives], rtol=1e-4, atol=1e-6)


@pytest.fixture
def venv():
    made = SB3MultiAgentVecEnv([PlainMeadowEnv] * 2, "dummy", on_error="restart")
    yield made
    made.close()


def test_rows_are_mapped_to_their_envs(venv):
    own = PlainMeadowEnv.seen["fawn"], PlainMeadowEnv.acts["fawn"]
    assert (venv.observation_space, venv.action_space) == own
    assert (venv.render_mode, venv.metadata["name"]) == ("rgb_array", "meadow_v0")
    venv.set_attr("level", 7, indices=[5])
    assert venv.get_attr("level") == [1] * 4 + [7] * 4
    assert venv.get_attr("level", indices=[4, 0, 7]) == [7, 1, 7]
    assert venv.env_is_wrapped(gym.Wrapper) == [False] * 8
    assert venv.env_is_wrapped(PlainMeadowEnv, indices=[1, 2]) == [True] * 2
    assert venv.has_attr("level")
    assert not venv.has_attr("nothing_of_the_kind")
    venv.seed(1)
    venv.reset()
    assert [image.shape for image in venv.get_images()] == [(4, 6, 3)] * 2
    first = venv.env_method("see", "fawn_0")  # which is called once for each env
    assert all(same(first[0], one) for one in first[:4])
    assert not same(first[0], first[4])
    assert is_masking_supported(venv)
    masks = get_action_masks(venv)
    assert masks.shape == (8, 4)
    assert same(venv.env_method("action_masks", indices=[5])[0], masks[5])


def test_seeds_and_options_serve_one_reset(venv):
    assert venv.seed(3) == [3] * 4 + [4] * 4
    venv.set_options([{"total": 5}, None])
    first = venv.reset()
    assert (first[0][1], first[4][1]) == (5, 0)
    assert venv.reset_infos[0].keys() == {"t"}
    assert venv.reset()[0][1] == 0
    for seeds in ([3, 4], [3] * 4 + [4] * 4):
        assert venv.seed(seeds) == [3] * 4 + [4] * 4
        venv.set_options([{"total": 2}] * 4 + [{"total": 6}] * 4)
        again = venv.reset()
        assert same(again[:, 2], first[:, 2])
        assert (again[0][1], again[4][1]) == (2, 6)
    with pytest.raises(ValueError, match="got 3 seeds for 2 envs"):
        venv.seed([1, 2, 3])
    assert len(set(venv.seed())) == 2, "drawn at random"


def test_wrong_calls(venv):
    with pytest.raises(gym.error.ResetNeeded):
        venv.step(np.zeros(8, int))
    venv.reset()
    with pytest.raises(TypeError, match="expected 8, one per row; got None"):
        venv.step(None)
    with pytest.raises(ValueError, match="got 7 actions for 8 envs"):
        venv.step(np.zeros(7, int))
    with pytest.warns(UserWarning, match="got 9 actions for 8 envs"):
        venv.step_async(np.zeros(9, int))
    for request in (lambda: venv.step_async(np.zeros(8, int)), venv.get_images):
        with pytest.raises(gym.error.AlreadyPendingCallError):
            request()
    with pytest.raises(ValueError, match="wait_num must be None"):
        SB3MultiAgentVecEnv([PlainMeadowEnv], "dummy", wait_num=1)
    with pytest.raises(base_vec_env.UnsuitableEnvError, match="'fawn_0' has the spaces .*pad_"):
        SB3MultiAgentVecEnv([MeadowEnv] * 2, "dummy")


def test_an_error_ends_the_episode_of_its_env(venv):
    venv.reset()
    venv.set_attr("level", BURNS, indices=[4])
    _, rewards, dones, infos = venv.step(np.zeros(8, int))
    assert dones.tolist() == [False] * 4 + [True] * 3 + [False]  # fawn_1 was not born yet
    assert not rewards[4:].any()
    assert [info.get("env_error") for info in infos[:4]] == [None] * 4
    assert all("the meadow burns" in info["env_error"] for info in infos[4:])
    assert [info["active"] for info in infos[4:]] == [True, True, True, False]
    venv.step(np.zeros(8, int))
