"""The file of episodes against what was put in."""

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, Episode, EpisodeWriter, RandomPolicy, load, save
from envpool_py.collector.file import check_path
from envpool_py.collector.growing import GrowingArray
from tests.support.envs import SPACES, RandomEnv, SpaceEnv, VectorRewardEnv, draw
from tests.support.episodes import SEED, check_by_hand, equal, fingerprint, rows_of
from tests.support.helpers import ROOT
from tests.support.reference import in_columns

DISCRETE = spaces.Discrete(2)


def make_episodes(name, number=5):
    """Collect episodes of a SpaceEnv, with infos and extras, in the order in which they ended."""
    env_fns = [partial(SpaceEnv, i, name, 2 + i) for i in range(2)]
    with DummyVectorEnv(env_fns, wait_num=1) as pool:
        random = RandomPolicy(pool, 0)

        def policy(obs, env_ids):
            return random(obs, env_ids), {"log/prob": env_ids / 8, "two": np.eye(2)[env_ids]}

        collector = AsyncCollector(pool, policy, seed=SEED, keep_infos=True)
        return list(collector.episodes(number)), pool.observation_space[0]


def in_order(episodes):
    return sorted(episodes, key=lambda episode: (episode.env_id, episode.episode_id))


def one_step(space):
    """Return an episode of one step in a space, which is that of its actions too."""
    rows = [draw(space, np.random.default_rng(k)) for k in range(2)]
    trees = in_columns(space, rows), in_columns(space, rows[:1])
    return Episode(0, 0, 1, 1, *trees, np.ones(1), np.array([True]), np.array([False]))


KINDS = ("every-dtype", "box-scalar", "box-empty", "discrete-start", "multi-discrete-2d")
KINDS += ("multi-binary", "text", "tuple", "nested")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("file", "options", "mmap"),
    [
        ("a.npz", {}, False),
        ("a.npz", {"compress": True}, False),
        ("folder", {}, False),
        ("folder", {}, True),
    ],
)
def test_a_file_gives_back_what_was_put_in(tmp_path, file, name, options, mmap):
    episodes, space = make_episodes(name)
    save(tmp_path / file, episodes, space, space, {"what": [1, "x"]}, **options)
    found = load(tmp_path / file, mmap=mmap)
    assert found.metadata == {"what": [1, "x"]}
    assert found.observation_space == found.action_space == space
    steps = found.transitions()
    assert len(steps) == found.num_steps == sum(map(len, episodes))
    trees = [rows_of(tree, len(steps)) for tree in (steps.obs, steps.action, steps.next_obs)]
    row = 0
    for one, other in zip(in_order(episodes), found, strict=True):
        for part in ("env_id", "episode_id", "env_seed", "seed", "infos", "extras"):
            assert equal(getattr(one, part), getattr(other, part)), part
        for part in ("rewards", "terminated", "truncated"):
            assert equal(getattr(one, part), np.asarray(getattr(other, part))), part
        obs, read_obs = (rows_of(e.observations, len(one) + 1) for e in (one, other))
        actions, read_actions = (rows_of(e.actions, len(one)) for e in (one, other))
        assert all(map(equal, obs + actions, read_obs + read_actions))
        for t in range(len(one)):
            expected = [obs[t], actions[t], obs[t + 1]]
            assert all(map(equal, expected, [tree[row] for tree in trees]))
            assert (steps.env_id[row], steps.episode_id[row]) == (one.env_id, one.episode_id)
            outcome = one.rewards[t], one.terminated[t], one.truncated[t]
            assert (steps.reward[row], steps.terminated[row], steps.truncated[row]) == outcome
            assert equal((steps.info[row], steps.next_info[row]), one.infos[t : t + 2])
            assert steps.extras["log/prob"][row] == one.env_id / 8
            row += 1


def test_a_file_is_read_by_numpy_alone(tmp_path):
    episodes, space = make_episodes("nested")
    save(tmp_path / "a.npz", episodes, space, space)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert {"observations/b/1/flags", "actions/a", "extras/log~1prob"} <= arrays.keys()
    assert json.loads(str(arrays["metadata"]))["version"] == 2
    for n, episode in enumerate(in_order(episodes)):
        start, length = arrays["episodes/start"][n], arrays["episodes/length"][n]
        first = arrays["episodes/observation_start"][n]
        assert length == len(episode)
        assert arrays["episodes/env_id"][n] == episode.env_id
        assert arrays["episodes/return"][n] == episode.rewards.sum()
        assert np.array_equal(arrays["rewards"][start : start + length], episode.rewards)
        images = arrays["observations/c/image"][first : first + length + 1]
        assert np.array_equal(images, episode.observations["c"]["image"])


def test_episodes_of_a_file_are_a_sequence(tmp_path):
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


def test_equal_episodes_make_equal_files(tmp_path):
    episodes, space = make_episodes("dict")
    save(tmp_path / "a.npz", episodes, space, space)
    save(tmp_path / "b.npz", reversed(episodes), space, space)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_vector_rewards_and_no_seed_in_a_file(tmp_path):
    with DummyVectorEnv([partial(VectorRewardEnv, i, 3) for i in range(2)]) as pool:
        episodes = list(AsyncCollector(pool, RandomPolicy(pool, 0)).episodes(3))
        save(tmp_path / "a.npz", episodes, pool.observation_space[0], pool.action_space[0])
    found = load(tmp_path / "a.npz")
    assert found.rewards.shape == (9, 3)
    assert found.returns.shape == (3, 3)
    assert found.seeds.tolist() == found.env_seeds.tolist() == [-1, -1, -1]
    assert found[0].seed is found[0].env_seed is None


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
    episode = one_step(space)
    save(tmp_path / "a.npz", [episode], space, space)
    found = load(tmp_path / "a.npz")
    assert found.observation_space == space
    assert found.observation_space.dtype == space.dtype
    trees = [(e.observations, e.actions) for e in (episode, found[0])]
    assert equal(*[rows_of(obs, 2) + rows_of(actions, 1) for obs, actions in trees])
    if isinstance(space, spaces.Dict):
        assert list(found.observation_space) == list(space)


# ------------------------------------------------------------------------------ the writer


@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_what_was_written_is_there_before_the_writer_closes(tmp_path, file):
    episodes, space = make_episodes("nested")
    path = tmp_path / file
    with contextlib.suppress(LookupError), EpisodeWriter(path, space, space, {"a": 1}) as writer:
        assert len(load(path)) == load(path).num_steps == len(load(path).transitions()) == 0
        for n, episode in enumerate(episodes, 1):
            writer.write(episode)
            assert fingerprint(load(path)) == fingerprint(episodes[:n])
            assert load(path, mmap=True).metadata == {"a": 1}
        raise LookupError  # it keeps what was written
    with EpisodeWriter(tmp_path / f"other-{file}", space, space):
        pass  # no episode: nothing to put in place
    writer.close()
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.write(episodes[0])
    assert fingerprint(load(path)) == fingerprint(episodes)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file", ["a.npz", "folder", "unfinished.npz"])
def test_appending(tmp_path, file):
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
        EpisodeWriter(path, DISCRETE, space, append=True)
    with EpisodeWriter(path, space, space, {"b": 2}, append=True) as writer:
        assert (writer.num_episodes, writer.num_steps) == (3, sum(map(len, episodes[:3])))
        for episode in episodes[3:]:
            writer.write(episode)
    assert fingerprint(load(path)) == fingerprint(episodes)
    assert load(path).metadata == {"a": 1, "b": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_that_is_there_is_overwritten_unasked(tmp_path):
    episodes, space = make_episodes("discrete")
    path = tmp_path / "a.npz"
    path.symlink_to(tmp_path / "target.npz")
    save(path, episodes, space, space)
    assert path.is_symlink()  # its file is replaced, and the link stays
    assert len(load(tmp_path / "target.npz")) == 5
    save(tmp_path / "folder", episodes, space, space)
    with pytest.raises(FileExistsError, match="is there already; append to it"):
        EpisodeWriter(tmp_path / "folder", space, space)
    writer = EpisodeWriter(tmp_path / "target.npz", space, space)
    writer.write(episodes[0])
    with pytest.raises(FileExistsError, match="holds the episodes of an unfinished run; append"):
        EpisodeWriter(path, space, space)
    with pytest.warns(UserWarning, match="another run has not finished"):
        assert len(load(tmp_path / "target.npz")) == 5
    writer.close()
    assert len(load(path)) == 1


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
        for episode in collector.episodes(int(sys.argv[2])):
            writer.write(episode)
            print(episode.env_id, episode.episode_id, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["a.npz", "folder"])
def test_a_killed_program_leaves_its_episodes(tmp_path, file):
    path = tmp_path / file
    program = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen([*program, "100000000"], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(30)]
        process.kill()
        lines += process.stdout.readlines()
    told = {tuple(map(int, line.split())) for line in lines if line.endswith(b"\n")}
    found = load(path)
    written = {(e.env_id, e.episode_id) for e in found}
    assert written >= told
    assert len(written) <= len(told) + 1  # the kill may come before the last print
    check_by_hand(found, [partial(RandomEnv, i) for i in range(4)])
    assert all(len(episode.infos) == len(episode) + 1 for episode in found)
    # The file goes on from there.
    subprocess.run([*program, "8"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert len(load(path)) == len(found) + 8


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_half_an_episode_does_not_count(tmp_path, keep):
    """A kill between any two writes: some arrays have the episode, the index has not."""
    episodes, space = make_episodes("nested")
    with EpisodeWriter(tmp_path / "a", space, space) as writer:
        for episode in episodes[:3]:
            writer.write(episode)
        real, writes = GrowingArray.put, []

        def dies(array, first, rows):
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


def test_a_file_of_the_first_version(tmp_path):
    episodes, space = make_episodes("discrete")
    save(tmp_path / "a.npz", episodes, space, space)
    arrays = dict(np.load(tmp_path / "a.npz"))
    head = {**json.loads(str(arrays["metadata"])), "version": 1}
    arrays |= {"metadata": np.array(json.dumps(head)), "episodes/seed": arrays["episodes/env_seed"]}
    for new in ("infos", "episodes/info_start", "episodes/info_bytes", "episodes/env_seed"):
        del arrays[new]
    np.savez(tmp_path / "a.npz", **arrays)
    found = load(tmp_path / "a.npz")
    assert fingerprint(found) == fingerprint(episodes)
    assert found.env_seeds.tolist() == [SEED, SEED, SEED, SEED + 1, SEED + 1]
    assert set(found.seeds.tolist()) == {-1}


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"actions": (np.zeros(1),) * 2}, ValueError, "actions has 2 parts"),
        ({"truncated": np.ones(3, bool)}, ValueError, "truncated has 3 rows, but an episode of"),
        ({"rewards": np.ones((1, 3))}, ValueError, r"rewards: got rows of shape \(3,\)"),
        ({"extras": {"v": np.ones(1)}}, ValueError, "env 0: got the arrays .*extras/v"),
        ({"seed": 1 << 63}, ValueError, "seed must be below"),
        ({"infos": ({}, {"a": Path("b")})}, TypeError, "env 0: the infos can't be written without"),
    ],
)
def test_an_episode_that_is_refused_leaves_no_trace(tmp_path, changes, error, text):
    space = SPACES["tuple"]()
    good = one_step(space)
    again = replace(good, episode_id=1)
    with EpisodeWriter(tmp_path / "a.npz", space, space) as writer:
        writer.write(good)
        with pytest.raises(error, match=text):
            writer.write(replace(good, **changes))
        writer.write(again)
    assert fingerprint(load(tmp_path / "a.npz")) == fingerprint([good, again])


@pytest.mark.parametrize("name", ["mixed", "graph", "sequence", "one-of", "custom"])
def test_spaces_without_a_form_of_arrays_are_refused(tmp_path, name):
    space = SPACES[name]()
    with pytest.raises(TypeError, match="has no form of arrays"):
        EpisodeWriter(tmp_path / "a.npz", space, space)
    assert not list(tmp_path.iterdir())


def head(**facts):
    return {"metadata": np.array(json.dumps(facts))}


def test_files_that_are_none_of_ours(tmp_path):
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "later.npz", **head(format="envpool_py episodes", version=99))
    np.savez(tmp_path / "strange.npz", **head(format="x"))
    for name, error, text in [
        ("none.npz", FileNotFoundError, "none.npz"),
        ("text.npz", ValueError, "not a file of episodes"),
        ("other.npz", ValueError, "it has no metadata"),
        ("", ValueError, "it has no metadata.json"),
        ("later.npz", ValueError, "version 99"),
        ("strange.npz", ValueError, "the format is 'x'"),
    ]:
        with pytest.raises(error, match=text):
            load(tmp_path / name)


def test_wrong_arguments(tmp_path):
    check_path(tmp_path / "a.npz")
    for path, error, text in [
        (tmp_path, IsADirectoryError, "is a directory"),
        (tmp_path / "none" / "a.npz", FileNotFoundError, "there is no directory"),
        ("/dev/null", OSError, "is not a regular file"),
    ]:
        with pytest.raises(error, match=text):
            check_path(path)
    with pytest.raises(ValueError, match=r"only a path that ends in .npz can be compressed"):
        EpisodeWriter(tmp_path / "a", DISCRETE, DISCRETE, compress=True)
    with pytest.raises(TypeError, match="not JSON serializable"):
        EpisodeWriter(tmp_path / "a.npz", DISCRETE, DISCRETE, {"array": np.zeros(2)})
    assert not list(tmp_path.iterdir())
