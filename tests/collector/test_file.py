"""The file of episodes against what was put in."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py.collector import (
    AsyncCollector,
    Episode,
    EpisodeWriter,
    RandomPolicy,
    load,
    save,
)
from envpool_py.collector.file import check_path
from tests.support.envs import (
    SPACES,
    CountEnv,
    SpaceEnv,
    VectorRewardEnv,
    draw,
)
from tests.support.episodes import SEED, equal, fingerprint, rows_of

STORABLE = [
    name
    for name in SPACES
    if name not in ("mixed", "graph", "custom", "custom-arrays", "one-of")
    and not name.startswith("sequence")
]


def make_episodes(name: str, number: int = 5) -> tuple[list[Episode], spaces.Space]:
    """Collect episodes of a SpaceEnv, in the order in which they ended."""
    env_fns = [partial(SpaceEnv, i, name, 2 + i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED)
        return list(collector.episodes(number)), pool.observation_space[0]


@pytest.mark.parametrize(
    ("name", "compress", "mmap"),
    [
        *((name, False, False) for name in STORABLE),
        *((name, True, mmap) for name in ("nested", "text") for mmap in (False, True)),
        *((name, False, True) for name in ("nested", "text")),
    ],
)
def test_a_file_gives_back_what_was_put_in(
    tmp_path: Path, name: str, compress: bool, mmap: bool
) -> None:
    episodes, space = make_episodes(name)
    path = tmp_path / "a.npz"
    save(path, episodes, space, space, {"what": [1, "x"]}, compress=compress)
    found = load(path, mmap=mmap)
    assert found.metadata == {"what": [1, "x"]}
    assert found.observation_space == space
    assert found.action_space == space
    assert len(found) == 5
    assert found.num_steps == sum(map(len, episodes))
    expected = sorted(episodes, key=lambda e: (e.env_id, e.episode_id))
    for one, other in zip(expected, found, strict=True):
        assert (one.env_id, one.episode_id, one.seed) == (
            other.env_id,
            other.episode_id,
            other.seed,
        )
        assert one.total_reward == other.total_reward
        for part in ("observations", "actions"):
            count = len(one) + (part == "observations")
            left, right = (rows_of(getattr(e, part), count) for e in (one, other))
            assert all(map(equal, left, right)), part
        for part in ("rewards", "terminated", "truncated"):
            assert equal(getattr(one, part), np.asarray(getattr(other, part))), part


def test_a_file_is_read_by_numpy_alone(tmp_path: Path) -> None:
    episodes, space = make_episodes("nested")
    save(tmp_path / "a.npz", episodes, space, space)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert {"observations/b/1/flags", "observations/c/image", "actions/a"} <= arrays.keys()
    assert json.loads(str(arrays["metadata"]))["version"] == 1
    episodes.sort(key=lambda e: (e.env_id, e.episode_id))
    for n, episode in enumerate(episodes):
        start, length = arrays["episodes/start"][n], arrays["episodes/length"][n]
        first = arrays["episodes/observation_start"][n]
        assert length == len(episode)
        assert arrays["episodes/env_id"][n] == episode.env_id
        assert arrays["episodes/return"][n] == episode.rewards.sum()
        assert np.array_equal(arrays["rewards"][start : start + length], episode.rewards)
        assert np.array_equal(
            arrays["observations/c/image"][first : first + length + 1],
            episode.observations["c"]["image"],
        )


def test_transitions(tmp_path: Path) -> None:
    env_fns = [partial(CountEnv, i, 2 + i) for i in range(3)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        episodes = AsyncCollector(pool, RandomPolicy(pool, 0), seed=SEED).episodes(7)
        save(tmp_path / "a.npz", episodes, pool.observation_space[0], pool.action_space[0])
    rows = load(tmp_path / "a.npz").transitions()
    assert len(rows.rewards) == len(rows.observations) == len(rows.next_observations) == 20
    for k in range(20):
        tag, episode, t = rows.observations[k]
        assert (tag, episode) == (rows.env_ids[k], rows.episode_ids[k])
        assert rows.next_observations[k].tolist() == [tag, episode, t + 1]
        assert rows.rewards[k] == tag * 1000 + episode * 100 + t + 1
        assert (rows.terminated[k] or rows.truncated[k]) == (t + 1 == 2 + tag)


def test_episodes_of_a_file_are_a_sequence(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    save(tmp_path / "a.npz", episodes, space, space)
    found = load(tmp_path / "a.npz")
    assert [e.env_id for e in found[1:4]] == [0, 0, 1]
    assert found[-1].env_id == found[4].env_id == 1
    assert found.returns.tolist() == [e.total_reward for e in found]
    assert found.lengths.tolist() == [2, 2, 2, 3, 3]
    assert repr(found) == "<5 episodes, 12 steps>"
    with pytest.raises(IndexError):
        found[5]


def test_equal_episodes_make_equal_files(tmp_path: Path) -> None:
    episodes, space = make_episodes("dict")
    save(tmp_path / "a.npz", episodes, space, space)
    save(tmp_path / "b.npz", reversed(episodes), space, space)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_vector_rewards_and_no_seed_in_a_file(tmp_path: Path) -> None:
    with DummyVectorEnv([partial(VectorRewardEnv, i, 3) for i in range(2)]) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(3))
        save(tmp_path / "a.npz", episodes, pool.observation_space[0], pool.action_space[0])
    found = load(tmp_path / "a.npz")
    assert found.rewards.shape == (9, 3)
    assert found.returns.shape == (3, 3)
    assert found.seeds.tolist() == [-1, -1, -1]
    assert found[0].seed is None


def test_keys_that_a_path_could_not_hold(tmp_path: Path) -> None:
    space = spaces.Dict(
        {
            "a/b": spaces.Discrete(3),
            "a": spaces.Dict({"b": spaces.Discrete(3)}),
            "~1": spaces.Discrete(3),
        }
    )
    rows = {"a/b": np.array([1, 1]), "a": {"b": np.array([2, 2])}, "~1": np.array([0, 0])}
    actions = {"a/b": np.array([1]), "a": {"b": np.array([2])}, "~1": np.array([0])}
    flags = np.array([True]), np.array([False])
    save(tmp_path / "a.npz", [Episode(0, 0, 1, rows, actions, np.ones(1), *flags)], space, space)
    (found,) = load(tmp_path / "a.npz")
    assert equal(found.observations, rows)
    assert equal(found.actions, actions)


def test_a_writer_that_aborts_leaves_what_was_there(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    path = tmp_path / "a.npz"
    save(path, episodes, space, space)
    before = path.read_bytes()
    with pytest.raises(LookupError):  # noqa: PT012, SIM117 - it is the block that raises
        with EpisodeWriter(path, space, space) as writer:
            writer.write(episodes[0])
            raise LookupError
    with EpisodeWriter(path, space, space):
        pass  # no episode: nothing to put in place
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_there_before_the_writer_closes(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    writer = EpisodeWriter(tmp_path / "a.npz", space, space)
    writer.write(episodes[0])
    assert not (tmp_path / "a.npz").exists()
    writer.close()
    writer.close()
    assert len(load(tmp_path / "a.npz")) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def test_a_write_that_was_broken_off_leaves_no_trace(tmp_path: Path) -> None:
    episodes, space = make_episodes("tuple", 3)
    spoilt = Episode(0, 9, 1, episodes[0].observations, episodes[0].actions[:2], *[np.ones(2)] * 3)
    wrong = Episode(
        0, 9, 1, episodes[0].observations, episodes[0].actions, np.ones((2, 3)), *[np.ones(2)] * 2
    )
    with EpisodeWriter(tmp_path / "a.npz", space, space) as writer:
        writer.write(episodes[0])
        with pytest.raises(ValueError, match="actions has 2 parts"):
            writer.write(spoilt)
        with pytest.raises(ValueError, match=r"rewards: got rows of shape \(3,\)"):
            writer.write(wrong)
        for episode in episodes[1:]:
            writer.write(episode)
    found = load(tmp_path / "a.npz")
    expected = sorted(episodes, key=lambda e: (e.env_id, e.episode_id))
    assert fingerprint(found) == fingerprint(expected)


@pytest.mark.parametrize("name", ["mixed", "graph", "sequence", "one-of", "custom"])
def test_spaces_without_a_form_of_arrays_are_refused(tmp_path: Path, name: str) -> None:
    space = SPACES[name]()
    with pytest.raises(TypeError, match="has no form of arrays"):
        EpisodeWriter(tmp_path / "a.npz", space, space)
    assert not list(tmp_path.iterdir())


def test_metadata_that_json_cannot_hold_is_refused_at_once(tmp_path: Path) -> None:
    space = spaces.Discrete(2)
    with pytest.raises(TypeError):
        EpisodeWriter(tmp_path / "a.npz", space, space, {"array": np.zeros(2)})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([3, np.inf]), dtype=np.float64),
        spaces.Box(np.float32(0.1), np.float32(0.7), (2, 2)),
        spaces.Box(2**60, 2**61, (2,), np.uint64),
        spaces.Text(5, charset="xyz", min_length=0),
        spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(2, dtype=np.int8))]),
    ],
)
def test_spaces_survive_json(tmp_path: Path, space: spaces.Space) -> None:
    rows = [draw(space, np.random.default_rng(k)) for k in range(2)]
    flags = np.array([True]), np.array([False])
    columns = [
        {key: np.array([row[key] for row in some]) for key in space}
        if isinstance(space, spaces.Dict)
        else np.array(some)
        for some in (rows, rows[:1])
    ]
    save(tmp_path / "a.npz", [Episode(0, 0, 1, *columns, np.ones(1), *flags)], space, space)
    found = load(tmp_path / "a.npz")
    assert found.observation_space == space
    assert found.observation_space.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(found.observation_space) == list(space)


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match="not a file of episodes"):
        load(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="it has no metadata"):
        load(tmp_path / "other.npz")
    np.savez(
        tmp_path / "later.npz",
        metadata=np.array(json.dumps({"format": "envpool_py episodes", "version": 99})),
    )
    with pytest.raises(ValueError, match="version 99"):
        load(tmp_path / "later.npz")
    np.savez(tmp_path / "strange.npz", metadata=np.array(json.dumps({"format": "x"})))
    with pytest.raises(ValueError, match="the format is 'x'"):
        load(tmp_path / "strange.npz")


def test_paths_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory"):
        check_path(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        check_path(tmp_path / "none" / "a.npz")
    with pytest.raises(OSError, match="is not a regular file"):
        check_path("/dev/null")
    check_path(tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_a_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    (tmp_path / "link.npz").symlink_to(tmp_path / "target.npz")
    save(tmp_path / "link.npz", episodes, space, space)
    assert (tmp_path / "link.npz").is_symlink()
    assert len(load(tmp_path / "target.npz")) == 5


def test_a_seed_too_large_to_store(tmp_path: Path) -> None:
    flags = np.array([True]), np.array([False])
    space = spaces.Discrete(2)
    episode = Episode(0, 0, 1 << 63, np.zeros(2), np.zeros(1), np.ones(1), *flags)
    with (
        EpisodeWriter(tmp_path / "a.npz", space, space) as writer,
        pytest.raises(ValueError, match="seed must be below"),
    ):
        writer.write(episode)
