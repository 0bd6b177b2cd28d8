"""No damaged or hostile file crashes, hangs or fills the memory: every field, every reader.

Each test reads a part of its corpus. ``python -m tests.test_hostile_files`` reads all of it.
"""

import json
import pickle
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from envpool_py import DummyVectorEnv
from envpool_py.collector import AsyncCollector, RandomPolicy, save
from envpool_py.sb3.common.vec_env.dummy_vec_env import DummyVecEnv
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize
from tests.record.runs import Run
from tests.support import envs, hostile_files
from tests.support.helpers import ROOT
from tests.support.hostile_reader import ENV_FNS, STATISTICS_ENV

PART = 36
"""A test reads the first files of a corpus, and of the others one of so many."""


def read_all(readers, files):
    """Read files in one process with limits; yield the reader, the file's name and the outcome."""
    command = [sys.executable, "-m", "tests.support.hostile_reader", ",".join(readers)]
    command += map(str, files)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [*map(json.loads, done.stdout.splitlines())]
    assert done.returncode == 0, f"after {found[-1:]}: {done.returncode} {done.stderr[-2000:]}"
    assert len(found) == len(readers) * len(files)
    return found


def check(folder, corpus, readers, part, free):
    """Read the corpus: each file is refused with its name, or read; those that match ``free``."""
    names, files = {}, []
    for number, (name, data) in enumerate(corpus):
        if number % part == 0 or number < 30:
            files.append(folder / f"{number}.npz")
            names[files[-1].name] = name
            if isinstance(data, bytes):
                files[-1].write_bytes(data)
            else:
                files[-1].mkdir()
                for each, content in data.items():
                    (files[-1] / each).write_bytes(content)
    assert len(files) >= 40
    for reader, file, outcome in read_all(readers, files):
        name = names[file]
        assert outcome in ("read", "refused"), f"{reader}: {name}: {outcome}"
        assert outcome == "refused" or re.match(free, name), f"{reader}: {name} is not refused"


def make_episodes():
    """Return episodes with nested spaces, infos and extras, and the two spaces."""
    with DummyVectorEnv([partial(envs.SpaceEnv, tag, "nested") for tag in range(2)]) as pool:
        random = RandomPolicy(pool, 0)

        def policy(obs, env_ids):
            return random(obs, env_ids), {"log": env_ids / 8}

        collector = AsyncCollector(pool, policy, seed=1, keep_infos=True)
        spaces = pool.observation_space[0], pool.action_space[0]
        return [list(collector.episodes(3)), *spaces]


DAMAGE = r"cut-|flip-|field-|end-"
#: Values that are free, and shapes that are.
FREE_OF_EPISODES = rf"{DAMAGE}|metadata:metadata/|extras|rewards.npy:|.*:(least|all-|greatest|nan)"
FREE_OF_EPISODES += r"|metadata:.*_space/.*\b(low|high|nvec|n|start)/"
FREE_STATISTICS = rf"{DAMAGE}|.*:(least|all-|greatest|nan|scalar)"
FREE_SETTINGS = r"(clip_obs|clip_reward|gamma|epsilon)[:/](float|huge|negative|overflow)"
FREE_SETTINGS += r"|norm_obs_keys[:/]null"
FREE_OF_STATISTICS = rf"{FREE_STATISTICS}|settings:({FREE_SETTINGS}|\w+/missing)|unknown"
UNREAD = "_options|_seeds|action_space|metadata|num_envs|observation_space|render_mode"
FREE_OF_PICKLES = rf"{FREE_STATISTICS}|{FREE_SETTINGS}|({UNREAD}):"
if pickle.DEFAULT_PROTOCOL >= 5:  # then only arrays that are not read have this name
    FREE_OF_PICKLES += "|_reconstruct-is"
FREE_OF_RECORDS = rf"{DAMAGE}|header:(env|roots|recycle)/|header:(pool|on_error)/text"
FREE_OF_RECORDS += r"|header:autoreset_mode/null|.-as-|[acmrxz]:"
FREE_OF_RECORDS += r"|[ios]:(0/null|missing|columns|1/3/array/1/3/missing)"


def read_folders_of_episodes(folder, part):
    save(folder / "good", *make_episodes())
    corpus = hostile_files.folders(folder / "good")
    check(folder, corpus, ["load", "mmap", "show"], part, FREE_OF_EPISODES)


def test_episodes_in_what_is_no_regular_file(tmp_path):
    episodes, folders = make_episodes(), []
    for name in ("metadata.json", "episodes.npy", "infos.npy"):
        for place in hostile_files.special_files(tmp_path / name):
            folders.append(tmp_path / f"{place.name}-{name}")
            save(folders[-1], *episodes)
            (folders[-1] / name).unlink()
            (folders[-1] / name).symlink_to(place)
    found = read_all(["load", "mmap", "show"], folders)
    assert {outcome for *_, outcome in found} == {"refused"}


def test_what_is_no_regular_file(tmp_path):
    files = hostile_files.special_files(tmp_path / "special")
    found = read_all(["load", "replay", "VecNormalize", "show", "replay command"], files)
    assert {outcome for *_, outcome in found} == {"refused"}


def save_statistics(path):
    venv = VecNormalize(DummyVecEnv([STATISTICS_ENV]))
    venv.reset()
    venv.save(path)
    venv.close()
    return path.read_bytes()


def read_archives_of_statistics(folder, part):
    corpus = hostile_files.archives(save_statistics(folder / "good.npz"), "settings")
    check(folder, corpus, ["VecNormalize"], min(part, 4), FREE_OF_STATISTICS)


def read_pickles_of_statistics(folder, part):
    corpus = hostile_files.pickles(save_statistics(folder / "good.pkl"))
    check(folder, corpus, ["VecNormalize"], min(part, 4), FREE_OF_PICKLES)


def read_records(folder, part):
    path, options = folder / "good", {"on_error": "restart", "autoreset_mode": "same_step"}
    with DummyVectorEnv(ENV_FNS, record=path, **options) as pool:
        run = Run(pool)
        run.reset(seed=1)
        run.drive(6)
        pool.set_env_attr("tag", 3, [1])
        pool.call("set_wrapper_attr", "tag", 4)
        pool.send([pool.action_space[0].sample()], [0])
        pool.cancel([0])
        run.reset([0])
    corpus = hostile_files.records(path.read_bytes())
    check(folder, corpus, ["replay", "show", "replay command"], part, FREE_OF_RECORDS)


CORPORA = [
    read_folders_of_episodes,
    read_archives_of_statistics,
    read_pickles_of_statistics,
    read_records,
]


@pytest.mark.parametrize("read", CORPORA)
def test_changed_files(read, tmp_path):
    read(tmp_path, PART)


if __name__ == "__main__":
    for read in CORPORA:
        with tempfile.TemporaryDirectory() as folder:
            read(Path(folder), 1)
        print(read.__name__)  # noqa: T201
