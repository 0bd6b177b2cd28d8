"""The file of episodes against what was put in."""

import contextlib
import itertools
import json
import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, Episode, EpisodeWriter, RandomPolicy, load, save
from envpool_py.collector.growing import GrowingArray
from tests.support import envs
from tests.support.episodes import SEED, equal, fingerprint, rows_of
from tests.support.reference import in_columns

DISCRETE = spaces.Discrete(2)


def make_episodes(name, number=5):
    """Collect episodes, in the order in which they ended; return them and the env's two spaces."""
    make = envs.VectorRewardEnv if name == "vectors" else partial(envs.SpaceEnv, name=name)
    with DummyVectorEnv([partial(make, i, length=2 + i) for i in range(2)], wait_num=1) as pool:
        random = RandomPolicy(pool, 0)

        def policy(obs, env_ids):
            return random(obs, env_ids), {"log/prob": env_ids / 8, "two": np.eye(2)[env_ids]}

        collector = AsyncCollector(pool, policy, seed=SEED, keep_infos=True)
        both = pool.observation_space[0], pool.action_space[0]
        return list(collector.episodes(number)), both


def in_order(episodes):
    return sorted(episodes, key=lambda episode: (episode.env_id, episode.episode_id))


KINDS = ("every-dtype", "box-scalar", "box-empty", "discrete-start", "multi-discrete-2d")
KINDS += ("multi-binary", "text", "tuple", "nested", "vectors")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_gives_back_what_was_put_in(tmp_path, name, mmap):
    episodes, both = make_episodes(name)
    episodes[1] = replace(episodes[1], failed=True)
    save(tmp_path / "a", episodes, *both, {"what": [1, "x"]})
    found = load(tmp_path / "a", mmap=mmap)
    assert found.metadata == {"what": [1, "x"]}
    assert (found.observation_space, found.action_space) == both
    rows = []
    for one, other in zip(in_order(episodes), found, strict=True):
        for part in ("env_id", "episode_id", "env_seed", "seed", "infos", "extras", "failed"):
            assert equal(getattr(one, part), getattr(other, part)), part
        outcome, read_outcome = ((e.rewards, e.terminated, e.truncated) for e in (one, other))
        assert equal(outcome, tuple(map(np.asarray, read_outcome)))
        obs, read_obs = (rows_of(e.obs, len(one) + 1) for e in (one, other))
        actions, read_actions = (rows_of(e.actions, len(one)) for e in (one, other))
        assert equal(obs + actions, read_obs + read_actions)
        ids = [(one.env_id, one.episode_id, one.env_id / 8)] * len(one)
        columns = obs[:-1], actions, obs[1:], one.infos[:-1], one.infos[1:], *outcome, ids
        rows += zip(*columns, strict=True)
    steps = found.transitions()
    assert len(steps) == found.num_steps == len(rows)
    trees = [rows_of(tree, len(rows)) for tree in (steps.obs, steps.actions, steps.next_obs)]
    outcomes = steps.rewards, steps.terminated, steps.truncated
    ids = zip(steps.env_id, steps.episode_id, steps.extras["log/prob"], strict=True)
    columns = *trees, steps.infos, steps.next_infos, *outcomes, ids
    assert equal(rows, list(zip(*columns, strict=True)))


def test_a_file_is_read_by_numpy_alone_and_as_a_sequence(tmp_path):
    episodes, both = make_episodes("nested")
    save(tmp_path / "a", episodes, *both)
    arrays = {path.stem: np.load(path) for path in (tmp_path / "a").glob("*.npy")}
    assert {"observations%2Fb%2F1%2Fflags", "actions%2Fa", "extras%2Flog~1prob"} <= arrays.keys()
    assert json.loads((tmp_path / "a" / "metadata.json").read_text())["version"] == 3
    for row, episode in zip(arrays["episodes"], episodes, strict=True):
        start, first, length = row["start"], row["observation_start"], len(episode)
        assert (row["env_id"], row["length"]) == (episode.env_id, length)
        assert row["return"] == episode.rewards.sum()
        assert np.array_equal(arrays["rewards"][start : start + length], episode.rewards)
        images = arrays["observations%2Fc%2Fimage"][first : first + length + 1]
        assert np.array_equal(images, episode.obs["c"]["image"])
    found = load(tmp_path / "a")
    assert [e.env_id for e in [*found[1:4], found[-1], found[4]]] == [0, 0, 1, 1, 1]
    assert found.lengths.tolist() == [2, 2, 2, 3, 3]
    assert found.env_seeds.tolist() == [SEED, SEED, SEED, SEED + 1, SEED + 1]
    assert found.seeds.tolist() == [SEED, -1, -1, SEED + 1, -1]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([3, np.inf]), dtype=np.float64),
        spaces.Box(np.float32(0.1), np.float32(0.7), (2, 2)),
        spaces.Box(2**60, 2**61, (2,), np.uint64),
        spaces.Text(5, charset="xyz", min_length=0),
        spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(2, dtype=np.int8))]),
        spaces.Dict({"a/b": DISCRETE, "a": spaces.Dict({"b": DISCRETE}), "~1": DISCRETE}),
    ],
)
def test_spaces_and_keys_survive_json_and_paths(tmp_path, space):
    rows = [envs.draw(space, np.random.default_rng(k)) for k in range(2)]
    trees = in_columns(space, rows), in_columns(space, rows[:1])
    episode = Episode(0, 0, None, 1, *trees, np.ones(1), np.array([True]), np.array([False]))
    save(tmp_path / "a", [episode], space, space)
    (found,) = read = load(tmp_path / "a")
    assert repr(read.observation_space) == repr(space)
    assert read.observation_space == space
    assert equal(rows + rows[:1], rows_of(found.obs, 2) + rows_of(found.actions, 1))
    assert found.env_seed is None


def test_what_was_written_is_there_at_once_and_is_appended_to(tmp_path):
    episodes, both = make_episodes("nested", 6)
    path = tmp_path / "a"
    with contextlib.suppress(LookupError), EpisodeWriter(path, *both, {"a": 1, "b": 1}) as writer:
        assert len(load(path)) == load(path).num_steps == len(load(path).transitions()) == 0
        for n, episode in enumerate(episodes[:3], 1):
            writer.write(episode)
            assert fingerprint(load(path)) == fingerprint(episodes[:n])
        raise LookupError  # it keeps what was written
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write(episodes[3])
    with pytest.raises(FileExistsError, match="holds episodes; append to them"):
        EpisodeWriter(path, *both)
    with pytest.raises(ValueError, match="have the observation_space"):
        EpisodeWriter(path, DISCRETE, DISCRETE, append=True)
    with EpisodeWriter(path, *both, {"b": 2}, append=True) as writer:
        assert (writer.num_episodes, writer.num_steps) == (3, sum(map(len, episodes[:3])))
        for episode in episodes[3:]:
            writer.write(episode)
    found = load(path)
    assert fingerprint(found) == fingerprint(episodes)
    assert found.metadata == {"a": 1, "b": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_without_episodes_is_begun_again(tmp_path):
    """With other spaces and extras: nothing of an episode that was not finished is left."""
    (first, *_), both = make_episodes("nested")
    tmp_path.joinpath("metadata.tmp").touch()  # killed while it was made
    with EpisodeWriter(tmp_path, *both) as writer:
        writer.write(first)
    np.save(tmp_path / "episodes.npy", np.load(tmp_path / "episodes.npy")[:0])
    assert len(load(tmp_path)) == 0
    good = row_episode(np.zeros((3, 4), np.float32))
    save(tmp_path, [good], BOX, DISCRETE)
    assert fingerprint(load(tmp_path)) == fingerprint([good])


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_half_an_episode_does_not_count(tmp_path, keep, monkeypatch):
    """A kill between any two writes: some arrays have the episode, the index has not."""
    episodes, both = make_episodes("nested")
    put, calls = GrowingArray.put, itertools.count()

    def put_or_die(*args):
        if next(calls) == keep:
            raise KeyboardInterrupt
        put(*args)

    with EpisodeWriter(tmp_path / "a", *both) as writer:
        for episode in episodes[:3]:
            writer.write(episode)
        monkeypatch.setattr(GrowingArray, "put", put_or_die)
        with pytest.raises(KeyboardInterrupt):
            writer.write(episodes[3])
        assert fingerprint(load(tmp_path / "a")) == fingerprint(episodes[:3])
        writer.write(episodes[4])
    assert fingerprint(load(tmp_path / "a")) == fingerprint([*episodes[:3], episodes[4]])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"actions": (np.zeros(2),) * 2}, ValueError, "actions has 2 parts"),
        ({"truncated": np.ones(3, bool)}, ValueError, r"truncated has shape \(3,\), but an ep"),
        ({"rewards": np.ones((2, 3))}, ValueError, r"rewards has shape \(2, 3\), but an e"),
        ({"extras": {"v": np.ones(2)}}, ValueError, "env 0: got the arrays .*extras/v"),
        ({"seed": 1 << 63}, ValueError, "seed must be below"),
        ({"infos": ({}, {"a": Path("b")})}, TypeError, "env 0: the infos can't be written without"),
    ],
)
def test_an_episode_that_is_refused_leaves_no_trace(tmp_path, changes, error, text):
    (good, again), both = make_episodes("tuple", 2)
    with EpisodeWriter(tmp_path / "a", *both) as writer:
        writer.write(good)
        with pytest.raises(error, match=text):
            writer.write(replace(good, **changes))
        writer.write(again)
    assert fingerprint(load(tmp_path / "a")) == fingerprint([good, again])


def row_episode(obs, actions=(1, 0), **changes):
    ends = np.array([False, True]), np.zeros(2, bool)
    return replace(Episode(0, 0, None, None, obs, np.array(actions), np.ones(2), *ends), **changes)


BOX, TEXT = spaces.Box(-1, 1, (4,)), spaces.Text(3, charset="ab\0")


@pytest.mark.parametrize(
    ("space", "obs", "changes", "text"),
    [
        (BOX, np.zeros((3, 4)), {"actions": [1.7, 0.7]}, "actions has dtype float64 and values"),
        (BOX, np.zeros((3, 7)), {}, r"observations has shape \(3, 7\), but .* has \(3, 4\)"),
        (BOX, np.zeros((2, 4)), {}, r"observations has shape \(2, 4\), but .* has \(3, 4\)"),
        (BOX, np.full((3, 4), 1e60), {}, "can't hold without loss"),
        (TEXT, ["abba", "a", "b"], {}, "observations: 'abba' is longer than 3"),
        (TEXT, ["a\0", "a", "b"], {}, "ends in a NUL character"),
        (TEXT, ["a", "b"], {}, "observations has 2 texts, but .* has 3"),
        (BOX, np.zeros((3, 4)), {"terminated": [0, 2]}, "terminated has dtype int64 and values"),
        (BOX, np.zeros((3, 4)), {"extras": {"v": np.array([0, 300])}}, "values that .* int8"),
        (BOX, np.zeros((3, 4)), {"extras": {"v": np.zeros((2, 2))}}, r"v has shape \(2, 2\)"),
    ],
)
def test_nothing_is_stored_that_its_space_cannot_hold(tmp_path, space, obs, changes, text):
    """Neither in the first episode, which makes the arrays, nor later; the writer goes on."""
    extras = {"extras": {"v": np.array([1, -1], np.int8)}}
    good = row_episode(["", "a", "b\0a"] if space is TEXT else np.zeros((3, 4)), **extras)
    for before in [1] if "extras" in changes else [0, 1]:
        with EpisodeWriter(tmp_path / str(before), space, DISCRETE) as writer:
            for _ in range(before):
                writer.write(good)
            with pytest.raises((ValueError, TypeError), match=f"env 0: .*{text}"):
                writer.write(row_episode(obs, **{**extras, **changes}))
            writer.write(good)
        for found in load(tmp_path / str(before)):
            assert np.asarray(found.obs).tolist() == np.asarray(good.obs).tolist()
            assert found.actions.tolist() == [1, 0]
            assert found.extras["v"].dtype == np.int8


def test_a_second_writer_is_refused(tmp_path):
    path, good = tmp_path / "a", row_episode(np.zeros((3, 4)))

    def second():
        with pytest.raises(OSError, match="another EpisodeWriter is writing there"):
            EpisodeWriter(path, BOX, DISCRETE, append=True)

    with EpisodeWriter(path, BOX, DISCRETE) as writer:
        second()  # before the first episode too
        writer.write(good)
        second()
        process = multiprocessing.get_context("fork").Process(target=second)
        process.start()
        process.join()
        assert process.exitcode == 0
        writer.write(good)
    with EpisodeWriter(path, BOX, DISCRETE, append=True) as writer:
        writer.write(good)
    assert len(load(path)) == 3


def test_files_that_are_none_of_ours(tmp_path):
    np.savez(tmp_path / "earlier.npz", a=np.zeros(3))
    for name, head in (("later", {"format": "envpool_py episodes", "version": 99}), ("other", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.json").write_text(json.dumps(head))
    for name, text in [
        ("earlier.npz", "not a folder of episodes"),
        ("other", "the format is not"),
        ("", "it has no metadata.json"),
        ("later", "version 99"),
    ]:
        with pytest.raises(ValueError, match=text):
            load(tmp_path / name)
        with pytest.raises((ValueError, FileExistsError)):
            EpisodeWriter(tmp_path / name, BOX, DISCRETE)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_wrong_arguments(tmp_path):
    custom = envs.SPACES["custom"]()
    for text, space, options in [
        ("has no form of arrays", custom, {}),
        ("not JSON serializable", DISCRETE, {"metadata": {"a": np.zeros(2)}}),
    ]:
        with pytest.raises(TypeError, match=text):
            EpisodeWriter(tmp_path / "a", space, space, **options)
    assert not list(tmp_path.iterdir())
