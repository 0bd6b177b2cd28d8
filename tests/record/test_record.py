"""`record="FILE"`: all finished rows are in the file, whatever happens; reading it is safe."""

import functools
import gc
import multiprocessing
import os
import pathlib
import pickle
import resource
import signal

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

import envpool_py
from envpool_py import DummyVectorEnv, EnvError
from envpool_py.record import plain_codec as plain
from tests.faults.helpers import limited
from tests.record.runs import RANDOM
from tests.support import envs
from tests.support.places import PLACES


def record(path):
    """Record two steps; return the observations."""
    with DummyVectorEnv(RANDOM, record=path) as pool:
        batches = pool.reset(seed=3), pool.step([0, 1, 2]), pool.step([0, 1, 2])
        return [batch[0].tolist() for batch in batches]


def test_only_its_owner_may_read_it(tmp_path):
    umask = os.umask(0)
    record(tmp_path / "run")
    os.umask(umask)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_or_appears_is_left_alone(tmp_path):
    def make():
        (tmp_path / "new").write_text("precious")
        return envs.CountEnv()

    (tmp_path / "run").write_text("precious")
    with pytest.raises(FileExistsError, match=r"run exists and is not overwritten; remove it"):
        DummyVectorEnv([pytest.fail], record=tmp_path / "run")
    with pytest.raises(FileExistsError):  # the env has written it
        DummyVectorEnv([make], record=tmp_path / "new")
    with pytest.raises(EnvError):
        DummyVectorEnv([envs.raise_in_constructor], record=tmp_path / "other")
    assert {file.read_text() for file in tmp_path.iterdir()} == {"precious"}


def test_a_pool_without_a_request_leaves_no_record(tmp_path):
    """It may be one that an interrupt has prevented its constructor from returning."""
    for _ in range(2):
        pool = DummyVectorEnv(RANDOM, record=tmp_path / "run")
        assert (tmp_path / "run").exists()
        pool.loop = pool  # a cycle: only the collector can find it
        del pool
        with pytest.warns(ResourceWarning, match="unclosed DummyVectorEnv"):
            gc.collect()


def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path):
    with DummyVectorEnv(RANDOM, record=tmp_path / "run") as pool:
        found = [pool.reset(seed=3)[0].tolist()]
        with (
            limited(resource.RLIMIT_FSIZE, (tmp_path / "run").stat().st_size + 200),
            pytest.warns(RuntimeWarning, match="run ends here, the pool goes on without"),
        ):
            found.extend(pool.step([0, 0, 0])[0].tolist() for _ in range(20))
    again = envpool_py.replay(tmp_path / "run", RANDOM)
    rows = [batch[0].tolist() for batch in again]
    assert 1 < len(rows) < 21
    assert rows == found[: len(rows)]
    assert not again.complete


VALUES = [
    None, True, False, 0, -1, 127, 128, -129, 2**80, -(2**63), 0.1, -0.0, float("inf"), 1 - 2j,
    "", "é\ud800", b"\x00\xff", [], (), {}, [1, (2, {"a": [None]})], {3: "x", (1, 2): 4.5},
    np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 3), np.float16), np.array(True),
    np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("text"), np.array(["ab", ""]),
    np.datetime64("2024-02-29"), np.array([], dtype="U"), np.str_(""), np.bytes_(b"a\0"),
    np.array("", "U"), np.array([b"", b"a"]), np.array([], "M8[s]"), {"a": [np.str_("")]},
    spaces.GraphInstance(np.ones((2, 2), np.float32), None, None),
]  # fmt: skip


def test_plain_values_come_back_unchanged():
    for value in VALUES:
        data = plain.encode(value)
        back = plain.decode(data)
        assert (type(back), repr(back)) == (type(value), repr(value))
        assert data_equivalence(back, value, exact=True), value
        with pytest.raises(ValueError, match="no plain value"):
            plain.decode(data[:-1])


def test_what_can_not_be_recorded_names_its_env(tmp_path):
    fns = [functools.partial(envs.SpaceEnv, tag, "custom") for tag in range(2)]
    card = envs.Card("a", 1)
    with PLACES["shmem-fork-packed"](fns, record=tmp_path / "run") as pool:
        pool.reset(seed=1)
        for call, text in [
            (lambda: pool.reset(options=[None, {"a": {1}}]), "1: reset can't be .* holds a set"),
            (lambda: pool.step([None, card]), "1: action can't be recorded: it holds a Card"),
            (lambda: pool.set_env_attr("a", np.array([card])), "0: set_attr .* a ndarray"),
            (lambda: pool.call("add", np.zeros(2, [("a", int)]), id=1), "1: call .* a ndarray"),
        ]:
            with pytest.raises(TypeError, match=f"env {text}"):
                call()
        assert not pool.waiting_id  # nothing was sent
        assert pool.step([None, None])[4][1]["step"] == 1
    assert len(list(envpool_py.replay(tmp_path / "run", fns))) == 2


def test_what_was_finished_and_the_call_that_killed_the_program_are_there(tmp_path):
    def run():
        with DummyVectorEnv([envs.FaultEnv], record=tmp_path / "run") as pool:
            pool.reset(seed=1)
            pool.step([""])
            pool.step(["SIGKILL"])

    def replay(*, deaths=True):
        again = envpool_py.replay(tmp_path / "run", [envs.FaultEnv], deaths=deaths)
        return [batch[0].tolist() for batch in again]

    for program in (run, replay):
        process = multiprocessing.get_context("fork").Process(target=program)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert replay(deaths=False) == [[[0, 0, 0]], [[0, 0, 1]]]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "spoilt"])
def test_a_file_that_is_damaged_anywhere_reads_as_what_came_before(damage, tmp_path):
    found = record(tmp_path / "run")
    data = (tmp_path / "run").read_bytes()
    counts = []
    for at in range(0, len(data), 3):
        rest = bytes([data[at] ^ 0x41]) + data[at + 1 :] if damage == "spoilt" else b""
        (tmp_path / "bad").write_bytes(data[:at] + rest)
        rows = []
        try:
            again = envpool_py.replay(tmp_path / "bad", RANDOM)
            rows.extend(batch[0].tolist() for batch in again)
            assert not again.complete
        except ValueError as error:
            text = str(error)
            assert "not a record of a pool" in text or f"{tmp_path}/bad: the chunk at byte" in text
        assert rows == found[: len(rows)]
        counts.append(len(rows))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_neither_a_pickle_nor_an_object_is_loaded():
    """All kinds of chunks are read as plain values: tests/test_hostile_files.py changes each."""
    bomb = pickle.dumps(pathlib.Path("trace"))
    for data in (bomb, b'[null,[{"array":["|O",[1]]}]]\n' + bomb):
        with pytest.raises(ValueError, match="no plain value"):
            plain.decode(data)
