"""Minari gives back what a file of episodes holds."""

import warnings
from functools import partial

import minari
import numpy as np
import pytest

from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, RandomPolicy, load, save
from tests.support.envs import CountEnv, SpaceEnv
from tests.support.episodes import SEED, equal, rows_of

# Minari recommends to name an author, an env, ...
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari.utils")


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def collected(path, env_fns, **options):
    with DummyVectorEnv(env_fns, wait_num=1, episode_seeds=True) as pool:
        random = RandomPolicy(pool, 0)

        def policy(obs, env_ids):
            return random(obs, env_ids), {"value": env_ids / 8}

        episodes = AsyncCollector(pool, policy, seed=SEED, **options).episodes(5)
        save(path, episodes, pool.observation_space[0], pool.action_space[0])
    return load(path)


@pytest.mark.parametrize("name", ["box-uint8", "discrete", "text", "nested"])
def test_minari_gives_back_what_the_file_holds(tmp_path, name):
    episodes = collected(tmp_path / "a", [partial(SpaceEnv, i, name, 2 + i) for i in range(2)])
    episodes.to_minari("tests/episodes-v0", algorithm_name="random")
    found = minari.load_dataset("tests/episodes-v0")
    assert found.observation_space == episodes.observation_space
    assert found.action_space == episodes.action_space
    assert found.total_steps == episodes.num_steps
    told = [each["seed"] for each in found.storage.get_episode_metadata(range(5))]
    assert told == [episode.seed for episode in episodes]
    for ours, theirs in zip(episodes, found.iterate_episodes(), strict=True):
        for one, other, count in (
            (ours.obs, as_arrays(theirs.observations), len(ours) + 1),
            (ours.actions, as_arrays(theirs.actions), len(ours)),
        ):
            assert all(map(equal, rows_of(one, count), rows_of(other, count)))
        assert np.array_equal(ours.rewards, theirs.rewards)
        assert np.array_equal(ours.terminated, theirs.terminations)
        assert np.array_equal(ours.truncated, theirs.truncations)
        assert np.array_equal(ours.extras["value"], theirs.infos["extras"]["value"])


def as_arrays(tree):
    """Minari has the texts of a column as a list."""
    if isinstance(tree, dict):
        return {key: as_arrays(part) for key, part in tree.items()}
    return tuple(map(as_arrays, tree)) if isinstance(tree, tuple) else np.asarray(tree)


def test_infos_in_minari(tmp_path):
    env_fns = [partial(CountEnv, i, 3) for i in range(2)]
    episodes = collected(tmp_path / "a", env_fns, keep_infos=True)
    # Resets tell "seed" and "options", steps "action".
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = episodes.to_minari("tests/infos-v0")
    [told] = [str(one.message) for one in caught if one.filename == __file__]
    assert told.startswith("infos: left out ['action', 'options', 'seed'], which some rows lack")
    for ours, theirs in zip(episodes, found.iterate_episodes(), strict=True):
        assert theirs.infos["step"].tolist() == [info["step"] for info in ours.infos]
        assert theirs.infos.keys() == {"tag", "episode", "step", "extras"}
