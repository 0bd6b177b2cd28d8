"""PettingZoo's tests, Tianshou's collecting, the examples, the command line, and an import."""

import operator
import re
import runpy
import sys
import warnings

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, ShmemVectorEnv
from envpool_py.cli import main
from envpool_py.collector import load
from envpool_py.pettingzoo import PettingZooEnv
from tests.pettingzoo.envs import KAZ, make_aec
from tests.support.helpers import ROOT, run_python
from tests.support.reference import alike as same

with warnings.catch_warnings():
    # They import an env in the way of old, which is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, seed_test

HAS_TIANSHOU = sys.version_info >= (3, 11)  # tianshou 2.0.1 asks for it
if HAS_TIANSHOU:
    from tianshou import env as their_env
    from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
    from tianshou.data import Collector, VectorReplayBuffer


@pytest.mark.parametrize("name", ["simple_adversary", KAZ, "classic/tictactoe-v3"])
def test_a_wrapped_env_is_a_pettingzoo_env(name):
    env = PettingZooEnv(make_aec(name), heterogeneous=True)
    api_test(env, num_cycles=30)
    seed_test(lambda: PettingZooEnv(make_aec(name), heterogeneous=True), num_cycles=30)


def collected(pool, env):
    """Return the buffer of a few steps of two players who choose at random."""
    np.random.seed(1)  # noqa: NPY002 - what Tianshou's random player draws from
    players = [MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=env.action_space)] * 2
    algorithm = MultiAgentOffPolicyAlgorithm(algorithms=players, env=env)
    buffer = VectorReplayBuffer(300, len(pool))
    Collector(algorithm, pool, buffer).collect(n_step=90, reset_before_collect=True)
    pool.close()
    return buffer


@pytest.mark.skipif(not HAS_TIANSHOU, reason="tianshou 2.0.1 asks for Python 3.11")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_the_buffer_of_tianshous_collector(kind):
    ours, theirs = (
        lambda cls=cls: cls(make_aec("classic/tictactoe-v3"))
        for cls in (PettingZooEnv, their_env.PettingZooEnv)
    )
    found = collected(kind([ours] * 3), ours())
    wanted = collected(their_env.DummyVectorEnv([theirs] * 3), theirs())
    assert len(found) == len(wanted) == 90
    assert found.obs.agent_id.tolist() == wanted.obs.agent_id.tolist()
    for name in ("obs.obs", "obs.mask", "obs_next.obs", "act", "terminated", "truncated"):
        part = operator.attrgetter(name)
        assert np.array_equal(np.asarray(part(found)), np.asarray(part(wanted))), name
    # Theirs keeps the rewards of an earlier episode after a reset: only ends are comparable.
    ends = np.flatnonzero(found.terminated)
    assert len(ends) >= 6
    assert np.array_equal(found.rew[ends], np.asarray(wanted.rew, float)[ends])
    assert not found.rew[~found.terminated].any(), "tic-tac-toe rewards its last move alone"


EXAMPLES = [
    # Others may end in the same batch as the sixth: eight envs at the most.
    ("knights_async --episodes 6", "([6-9]|1[0-3]) episodes; an agent lived"),
    ("spread_ppo --num-envs 8 --steps 300", "after: "),
]
if HAS_TIANSHOU:
    program = "tictactoe_self_play --epochs 1 --epoch-steps 48 --games 20"
    EXAMPLES.append((program, "trained, the first player wins"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("line", "last"), EXAMPLES)
def test_example(line, last, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", line.split())
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else it keeps a thread
    runpy.run_path(str(ROOT / "examples" / f"{sys.argv[0]}.py"), run_name="__main__")
    assert re.match(last, capsys.readouterr().out.splitlines()[-1])


def test_collected_episodes_are_those_of_the_raw_env(tmp_path):
    line = "collect classic/connect_four-v3 --episodes 7 --num-envs 3 --seed 5 --out"
    assert main([*line.split(), str(tmp_path / "a")]) == 0
    episodes = load(tmp_path / "a")
    assert len(episodes) == 7
    raw = make_aec("classic/connect_four-v3")
    for episode in episodes:
        raw.reset()
        for t, action in enumerate(episode.actions):
            obs = raw.last()[0]
            assert str(episode.obs["agent_id"][t]) == raw.agent_selection
            assert same(np.asarray(episode.obs["obs"][t]), obs["observation"])
            assert obs["action_mask"][action], "a random action is a legal one"
            raw.step(int(action))
            assert episode.rewards[t].tolist() == [raw.rewards[a] for a in raw.possible_agents]
        assert all(raw.terminations.values())
        assert episode.terminated[-1]


@pytest.mark.parametrize(
    ("name", "more", "status", "text"),
    [
        ("mpe2:simple_adversary_v3", "", 0, "episodes"),
        ("butterfly/pistonball-v6", "", 0, "episodes"),
        ("mpe2.simple_adversary_v3", "--out a", 2, "SpaceOfSomeAgent"),
        ("classic/tictactoe-v99", "", 2, "no env is named 'classic/tictactoe-v99'"),
    ],
)
def test_names(name, more, status, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"collect {name} --episodes 1 --num-envs 1 --env-kwarg max_cycles=4 {more}"
    assert main(line.split()) == status
    assert text in capsys.readouterr()[status // 2]


def test_an_import_brings_pettingzoo_alone():
    brought = run_python("-c", "import sys, envpool_py.pettingzoo; print(*sys.modules)").split()
    assert "pettingzoo" in brought
    assert not {"stable_baselines3", "torch", "tianshou", "pygame", "ray"}.intersection(brought)
