"""The file of episodes against what was put in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from envpool_py.collector.growing import GrowingArray
from tests.support.envs import (
    SPACES,
    ChangedEnv,
    CountEnv,
    RandomEnv,
    SpaceEnv,
    VectorRewardEnv,
    draw,
)
from tests.support.episodes import SEED, check_by_hand, equal, fingerprint, rows_of
from tests.support.helpers import ROOT

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
        *((name, True, False) for name in ("nested", "text")),
        *((name, False, True) for name in ("nested", "text", "box-empty")),
    ],
)
@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_a_file_gives_back_what_was_put_in(
    tmp_path: Path, file: str, name: str, compress: bool, mmap: bool
) -> None:
    episodes, space = make_episodes(name)
    path = tmp_path / file
    compress &= file == "a.npz"
    save(path, episodes, space, space, {"what": [1, "x"]}, compress=compress)
    found = load(path, mmap=mmap)
    assert found.metadata == {"what": [1, "x"]}
    assert found.observation_space == space
    assert found.action_space == space
    assert len(found) == 5
    assert found.num_steps == sum(map(len, episodes))
    expected = sorted(episodes, key=lambda e: (e.env_id, e.episode_id))
    for one, other in zip(expected, found, strict=True):
        for part in ("env_id", "episode_id", "env_seed", "seed", "infos"):
            assert getattr(one, part) == getattr(other, part), part
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
    assert json.loads(str(arrays["metadata"]))["version"] == 2
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
    assert found.seeds.tolist() == found.env_seeds.tolist() == [-1, -1, -1]
    assert found[0].seed is found[0].env_seed is None


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
    save(tmp_path / "a.npz", [Episode(0, 0, 1, 1, rows, actions, np.ones(1), *flags)], space, space)
    (found,) = load(tmp_path / "a.npz")
    assert equal(found.observations, rows)
    assert equal(found.actions, actions)


@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_a_writer_that_an_exception_leaves_keeps_what_was_written(
    tmp_path: Path, file: str
) -> None:
    episodes, space = make_episodes("discrete")
    with pytest.raises(LookupError):  # noqa: PT012, SIM117 - it is the block that raises
        with EpisodeWriter(tmp_path / file, space, space) as writer:
            writer.write(episodes[0])
            raise LookupError
    with EpisodeWriter(tmp_path / f"other-{file}", space, space):
        pass  # no episode: nothing to put in place
    writer.close()
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write(episodes[0])
    assert fingerprint(load(tmp_path / file)) == fingerprint(episodes[:1])
    assert list(tmp_path.iterdir()) == [tmp_path / file]


@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_what_was_written_is_there_before_the_writer_closes(tmp_path: Path, file: str) -> None:
    episodes, space = make_episodes("nested")
    path = tmp_path / file
    with EpisodeWriter(path, space, space, {"a": 1}) as writer:
        assert len(load(path)) == load(path).num_steps == len(load(path).transitions()) == 0
        for n, episode in enumerate(episodes, 1):
            writer.write(episode)
            assert fingerprint(load(path)) == fingerprint(episodes[:n])
            assert load(path, mmap=True).metadata == {"a": 1}
    assert fingerprint(load(path)) == fingerprint(episodes)


@pytest.mark.parametrize("file", ["a.npz", "folder", "unfinished.npz"])
def test_appending(tmp_path: Path, file: str) -> None:
    episodes, space = make_episodes("nested", 6)
    path = tmp_path / file
    with EpisodeWriter(path, space, space, {"a": 1, "b": 1}) as writer:
        for episode in episodes[:3]:
            writer.write(episode)
        if file == "unfinished.npz":  # as a killed program leaves it
            shutil.copytree(f"{path}.partial", tmp_path / "copy")
    if file == "unfinished.npz":
        path.unlink()
        (tmp_path / "copy").rename(f"{path}.partial")
    with pytest.raises(ValueError, match="have the observation_space"):
        EpisodeWriter(path, spaces.Discrete(9), space, append=True)
    with EpisodeWriter(path, space, space, {"b": 2}, append=True) as writer:
        assert (writer.num_episodes, writer.num_steps) == (3, sum(map(len, episodes[:3])))
        for episode in episodes[3:]:
            writer.write(episode)
    assert fingerprint(load(path)) == fingerprint(episodes)
    assert load(path).metadata == {"a": 1, "b": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_that_is_there_is_overwritten_unasked(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    save(tmp_path / "a.npz", episodes, space, space)
    save(tmp_path / "folder", episodes, space, space)
    with pytest.raises(FileExistsError, match="is there already; append to it"):
        EpisodeWriter(tmp_path / "folder", space, space)
    writer = EpisodeWriter(tmp_path / "a.npz", space, space)
    writer.write(episodes[0])
    with pytest.raises(FileExistsError, match="holds the episodes of an unfinished run; append"):
        EpisodeWriter(tmp_path / "a.npz", space, space)
    with pytest.warns(UserWarning, match="another run has not finished"):
        assert len(load(tmp_path / "a.npz")) == 5
    writer.close()
    assert len(load(tmp_path / "a.npz")) == 1


def test_extras_and_infos_in_a_file(tmp_path: Path) -> None:
    def policy(obs: np.ndarray, env_ids: np.ndarray) -> Any:
        return 0 * env_ids, {"log/prob": obs[:, 2] / 8, "hidden": np.stack([obs, obs], 1)}

    with DummyVectorEnv([partial(CountEnv, i, 2 + i) for i in range(2)], wait_num=1) as pool:
        collector = AsyncCollector(pool, policy, seed=SEED, keep_infos=True)
        episodes = list(collector.episodes(5))
        space, action_space = pool.observation_space[0], pool.action_space[0]
    save(tmp_path / "a.npz", episodes, space, action_space)
    found = load(tmp_path / "a.npz")
    episodes.sort(key=lambda e: (e.env_id, e.episode_id))
    for one, other in zip(episodes, found, strict=True):
        assert one.infos == other.infos
        assert equal(one.extras, other.extras)
    steps = found.transitions()
    assert len(steps) == len(steps.obs) == len(steps.next_obs) == sum(map(len, episodes))
    tag, episode, t = steps.obs.T
    assert np.array_equal((tag, episode), (steps.env_id, steps.episode_id))
    assert np.array_equal(steps.next_obs.T, (tag, episode, t + 1))
    assert np.array_equal(steps.reward, tag * 1000 + episode * 100 + t + 1)
    assert np.array_equal(steps.terminated | steps.truncated, t + 1 == 2 + tag)
    assert np.array_equal(steps.extras["log/prob"], steps.obs[:, 2] / 8)
    assert [info["step"] for info in steps.info] == steps.obs[:, 2].tolist()
    assert [info["step"] for info in steps.next_info] == steps.next_obs[:, 2].tolist()


def test_infos_that_need_pickle_are_refused(tmp_path: Path) -> None:
    def with_lock(env: CountEnv, row: tuple) -> tuple:
        return row[0], {**row[1], "lock": Path(str(env.tag))}

    with DummyVectorEnv([partial(ChangedEnv, 0, 2, reset=with_lock)]) as pool:
        policy = RandomPolicy(pool, 0)
        (episode,) = AsyncCollector(pool, policy, keep_infos=True).episodes(1)
        (chosen,) = AsyncCollector(pool, policy, keep_infos=["step"]).episodes(1)
        space = pool.observation_space[0], pool.action_space[0]
    with EpisodeWriter(tmp_path / "a.npz", *space) as writer:
        with pytest.raises(TypeError, match="env 0: the infos can't be written without pickle"):
            writer.write(episode)
        writer.write(chosen)
    assert load(tmp_path / "a.npz")[0].infos == ({"step": 0}, {"step": 1}, {"step": 2})


KILLED = """
import sys
from functools import partial
from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, EpisodeWriter, RandomPolicy
from tests.support.envs import RandomEnv

with DummyVectorEnv([partial(RandomEnv, i) for i in range(4)], wait_num=2) as pool:
    collector = AsyncCollector(pool, RandomPolicy(pool, 0), seed=7, keep_infos=True)
    spaces = pool.observation_space[0], pool.action_space[0]
    with EpisodeWriter(sys.argv[1], *spaces, append=True) as writer:
        for n, episode in enumerate(collector.episodes(int(sys.argv[2])), 1):
            writer.write(episode)
            sys.stdout.write(f"{n} {episode.env_id} {episode.episode_id}\\n")
            sys.stdout.flush()
"""


def check_killed(path: Path, rng: np.random.Generator) -> None:
    """Kill a program that collects at a random moment: what it had written is in the file."""
    program = [sys.executable, "-c", KILLED, str(path), "100000000"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        lines += process.stdout.readlines()
    told = [tuple(map(int, line.split()[1:])) for line in lines if line.endswith(b"\n")]
    found = load(path)
    written = {(e.env_id, e.episode_id) for e in found}
    assert written >= set(told)
    assert len(written) <= len(told) + 1  # the kill may come before the last print
    check_by_hand(found, [partial(RandomEnv, i) for i in range(4)])
    assert all(len(episode.infos) == len(episode) + 1 for episode in found)
    # The file goes on from there.
    program[-1] = "8"
    subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert len(load(path)) == len(found) + 8


@pytest.mark.slow
@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_a_killed_program_leaves_its_episodes(tmp_path: Path, file: str) -> None:
    check_killed(tmp_path / file, np.random.default_rng(0))


@pytest.mark.soak
def test_fifty_killed_programs_leave_their_episodes(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    for n in range(50):
        check_killed(tmp_path / (f"{n}.npz" if n % 2 else str(n)), rng)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_half_an_episode_does_not_count(tmp_path: Path, keep: int) -> None:
    """A kill between any two writes: some arrays have the episode, the index has not."""
    episodes, space = make_episodes("nested")
    with EpisodeWriter(tmp_path / "a", space, space) as writer:
        for episode in episodes[:3]:
            writer.write(episode)
        real, writes = GrowingArray.put, []

        def dies(array: GrowingArray, first: int, rows: np.ndarray) -> None:
            if len(writes) == keep:
                raise KeyboardInterrupt
            writes.append(None)
            real(array, first, rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GrowingArray, "put", dies)
            with pytest.raises(KeyboardInterrupt):
                writer.write(episodes[3])
        assert fingerprint(load(tmp_path / "a")) == fingerprint(episodes[:3])
        writer.write(episodes[4])
    assert fingerprint(load(tmp_path / "a")) == fingerprint([*episodes[:3], episodes[4]])


def test_a_file_of_the_first_version(tmp_path: Path) -> None:
    episodes, space = make_episodes("discrete")
    save(tmp_path / "a.npz", episodes, space, space)
    arrays = dict(np.load(tmp_path / "a.npz"))
    head = {**json.loads(str(arrays["metadata"])), "version": 1}
    new = ("infos", "episodes/info_start", "episodes/info_bytes", "episodes/env_seed")
    arrays["episodes/seed"] = arrays["episodes/env_seed"]
    kept = {name: array for name, array in arrays.items() if name not in new}
    np.savez(tmp_path / "a.npz", **{**kept, "metadata": np.array(json.dumps(head))})
    found = load(tmp_path / "a.npz")
    assert fingerprint(found) == fingerprint(episodes)
    assert found.env_seeds.tolist() == [SEED, SEED, SEED, SEED + 1, SEED + 1]
    assert set(found.seeds.tolist()) == {-1}


def test_a_write_that_was_broken_off_leaves_no_trace(tmp_path: Path) -> None:
    episodes, space = make_episodes("tuple", 3)
    spoilt = replace(episodes[0], actions=episodes[0].actions[:2])
    wrong = replace(episodes[0], rewards=np.ones((len(episodes[0]), 3)))
    extra = replace(episodes[0], extras={"v": np.ones(len(episodes[0]))})
    with EpisodeWriter(tmp_path / "a.npz", space, space) as writer:
        writer.write(episodes[0])
        with pytest.raises(ValueError, match="actions has 2 parts"):
            writer.write(spoilt)
        with pytest.raises(ValueError, match="terminated has 1 rows, but an episode of"):
            writer.write(replace(episodes[0], terminated=np.ones(1, bool)))
        with pytest.raises(ValueError, match=r"rewards: got rows of shape \(3,\)"):
            writer.write(wrong)
        with pytest.raises(ValueError, match="env 0: got the arrays .*extras/v"):
            writer.write(extra)
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
    save(tmp_path / "a.npz", [Episode(0, 0, 1, 1, *columns, np.ones(1), *flags)], space, space)
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
    with pytest.raises(ValueError, match="it has no metadata.json"):
        load(tmp_path)
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
    with pytest.raises(ValueError, match=r"only a path that ends in .npz can be compressed"):
        EpisodeWriter(tmp_path / "a", spaces.Discrete(2), spaces.Discrete(2), compress=True)
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
    episode = Episode(0, 0, 1 << 63, None, np.zeros(2), np.zeros(1), np.ones(1), *flags)
    with (
        EpisodeWriter(tmp_path / "a.npz", space, space) as writer,
        pytest.raises(ValueError, match="seed must be below"),
    ):
        writer.write(episode)
