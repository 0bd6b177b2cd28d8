"""`on_error="replay"`: a lost env is restored to its step; the run equals an undisturbed one."""

import contextlib
import functools

import pytest

from envpool_py import BaseVectorEnv, EnvError, WorkerDiedError
from tests.faults.helpers import MODES, PROCESSES, kill, mates_of, reset_pool
from tests.record.runs import Once, OwnWorker, Run, failing
from tests.support import envs
from tests.support.places import PLACES, slow
from tests.support.reference import same

REPLAY = {"on_error": "replay", "restart_backoff": 0.0}
FAULTY = [functools.partial(envs.FaultEnv, tag, 4) for tag in range(3)]


def rows(pool, steps):
    """Step every env so often; return the rows of each env, in none of which it was lost."""
    run = Run(pool)
    run.reset(seed=5)
    run.drive(steps)
    found = [run.rows_of(i) for i in range(3)]
    assert [info["env_error"] for own in found for *_, info in own if "env_error" in info] == []
    return found


def check_undisturbed(path, place, faults, steps=24, name=None, **options):
    """Assert that a run with these faults has the rows of one without, and says what it did."""
    with PLACES[place](failing(path, faults, name), **options, **REPLAY) as pool:
        found = rows(pool, steps)
    for i, own in enumerate(found):
        notes = [info.pop("env_replayed", "") for *_, info in own]
        assert i not in faults or next(filter(None, notes)).startswith(f"env {i}: ")
    of_rows = {key: options[key] for key in options.keys() - {"wait_num", "step_timeout"}}
    with PLACES["dummy"](failing(path, {}, name), **of_rows) as pool:
        assert same(found, rows(pool, steps))


def odd_resets(env_id, episode):
    """Seed only every other episode."""
    return (env_id + episode if episode % 2 else None), {"scale": 1.0 + episode}


# What fails once, in which step or, if negative, in which reset.
TWO = {0: (6, "SIGKILL"), 2: (9, "raise")}
RUNS = [
    ("dummy", {1: (9, "raise"), 2: (4, "raise")}, {"episode_seeds": True}),
    ("shmem-fork", {0: (6, "os._exit"), 1: (9, "raise"), 2: (12, "SIGSEGV")}, {"wait_num": 2}),
    ("shmem-fork-packed", TWO, {"wait_num": 2}),
    ("shmem-fork-caller", TWO, {"wait_num": 2}),
    ("shmem-fork-packed", TWO, {"episode_seeds": True}),
    ("shmem-fork-packed", {1: (20, "SIGKILL")}, {"reset_fn": odd_resets}),
    ("shmem-fork", {1: (-3, "SIGKILL")}, {}),
    *slow(("shmem-fork-packed", {1: (5, "hang")}, {"step_timeout": 0.6})),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("place", "faults", "options"), RUNS)
def test_the_run_is_as_if_nothing_had_happened(place, faults, options, mode, tmp_path):
    check_undisturbed(tmp_path, place, faults, autoreset_mode=mode, **options)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_that_raises_once(mode, tmp_path):
    restored = contextlib.nullcontext()
    if mode == "same_step":  # the row of the ended step was returned already
        restored = pytest.raises(AssertionError, match="env 1: reset raised ValueError: once")
    with restored:
        check_undisturbed(tmp_path, "shmem-fork", {1: (-3, "raise")}, autoreset_mode=mode)


@pytest.mark.parametrize("name", ["nested", "text", "every-dtype", "sequence", "custom"])
def test_every_kind_of_action(name, tmp_path):
    check_undisturbed(tmp_path, "shmem-fork-packed", {1: (3, "SIGKILL")}, 4, name)


@pytest.mark.parametrize("place", PROCESSES)
def test_idle_envs_of_a_dead_process_are_restored(place, tmp_path):
    fns = failing(tmp_path, {})
    with PLACES[place](fns, **REPLAY) as pool, PLACES["dummy"](fns) as undisturbed:
        pool.set_env_attr("mark", 3)
        for each in (pool, undisturbed):
            each.reset(seed=5)
            each.step([1, 2, 3])
        mates = mates_of(pool, 1)
        kill(pool, 1)
        with pytest.raises(WorkerDiedError):  # as with "restart": it died in this very call
            pool.get_env_attr("mark", mates[-1:])
        assert pool.get_env_attr("mark", mates[-1:]) == [3]
        batch = pool.step([0, 0, 0])
        assert same(batch[:4], undisturbed.step([0, 0, 0])[:4])
        assert [i for i in range(3) if "env_replayed" in batch[4][i]] == mates
        assert pool.get_env_attr("mark") == [3, 3, 3]
        kill(pool, 1)
        obs, infos = pool.reset([1])  # goes on with its stream
        assert same(obs, undisturbed.reset([1])[0])
        assert "killed by SIGKILL" in infos[0]["env_replayed"]


def test_a_mate_that_is_reset_first_does_not_take_the_past_with_it(tmp_path):
    fns = failing(tmp_path, {0: (4, "SIGKILL")})
    with (
        PLACES["shmem-fork"](fns, num_processes=1, wait_num=1, **REPLAY) as pool,
        PLACES["dummy"](failing(tmp_path, {})) as undisturbed,
    ):
        for each in (pool, undisturbed):
            each.reset(seed=1)
            for _ in range(3):
                each.step([0], [0])
        process = pool.workers[0].process
        pool.send([0], [0])
        process.join()
        pool.reset([1])  # before any call has found out what became of env 0
        batch = pool.step(None, [0])
        assert same(batch[:4], undisturbed.step([0], [0])[:4])
        assert "killed by SIGKILL" in batch[4][0]["env_replayed"]


def test_an_env_that_is_tried_again_when_its_process_ends_is_restored_once_more(tmp_path):
    """The process ended in a request of its mate that is new: its own was not at fault."""
    hung = tmp_path / "hung"
    fns = [
        lambda: Once(Once(envs.CountEnv(), hung, 1, "hang"), tmp_path / "raised", 1, "raise"),
        envs.CountEnv,
    ]
    options = {"wait_num": 1, "timeout": 0.01, "strict_timeout": True, "max_restarts": None}
    with PLACES["shmem-fork"](fns, num_processes=1, **options, **REPLAY) as pool:
        pool.reset(seed=1)
        pool.send([0], [0])
        while not hung.exists():  # it has raised, was restored, and is at it again
            assert len(pool.recv()[0]) == 0
        pool.send([0], [1])
        kill(pool, 0)
        obs, _, _, truncated, infos = pool.step(None, [0, 1])
        assert obs.tolist() == [[0, 0, 1], [0, 0, 1]]
        assert not truncated.any()
        assert not any("env_error" in info for info in infos)
        assert all("killed by SIGKILL" in info["env_replayed"] for info in infos)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["value", "SIGKILL"])
def test_an_env_that_fails_again_is_restarted(fault, mode):
    calls = []
    options = {"autoreset_mode": mode, "on_restart": lambda i, _: calls.append(i)}
    with reset_pool("shmem-fork", FAULTY, max_restarts=3, **options, **REPLAY) as pool:
        pool.step(["", "", ""])
        batch = pool.step(["", fault, ""])
        assert batch[3].tolist() == [False, True, False]
        assert "env_error" in batch[4][1]
        assert "env_replayed" not in batch[4][1]
        # Each restart counts; the second comes with the next reset.
        assert calls == ([1, 1] if mode == "same_step" else [1])
        if mode is None:
            pool.reset([1])
        batch = pool.step(["", "", ""])
        assert batch[0][1].tolist() == ([1, 0, 0] if mode == "next_step" else [1, 0, 1])
        with pytest.raises(EnvError, match="env 1: "):  # after the third restart
            pool.step(["", fault, ""])
        assert calls == [1, 1, 1]


def test_an_env_whose_seed_nobody_knows_is_restarted(tmp_path):
    with reset_pool("dummy", failing(tmp_path, {1: (3, "raise")}), **REPLAY) as pool:
        error = [pool.step([0, 0, 0])[4][1] for _ in range(3)][2]["env_error"]
        assert "replay: the reset since its last reset by the pool gave another row" in error
        assert "the env is not deterministic; before the replay it failed with" in error


@pytest.mark.parametrize("part", range(4))
def test_any_part_of_a_row_may_show_that_an_env_is_not_deterministic(part, tmp_path):
    raised = tmp_path / "raised"

    def step(_, __, row):
        """Change a part of the row once the env has failed."""
        return *row[:part], row[part] + raised.exists(), *row[part + 1 :]

    fns = [lambda: Once(envs.ChangedEnv(step=step), raised, 2, "raise")]
    with PLACES["dummy"](fns, **REPLAY) as pool:
        pool.reset(seed=1)
        pool.step([0])
        error = pool.step([0])[4][0]["env_error"]
        assert "replay: step 1 since its last reset by the pool gave another row" in error


def test_an_env_with_a_cancelled_step_is_not_restored(tmp_path):
    with PLACES["shmem-fork"](failing(tmp_path, {}), **REPLAY) as pool:
        pool.reset(seed=1)
        pool.send([0], [1])
        pool.cancel([1])
        pool.reset([1])  # from where the step has left the stream, or has not
        kill(pool, 1)
        batch = pool.step([0, 0, 0])
        assert "killed by SIGKILL" in batch[4][1]["env_error"]
        assert "not deterministic" not in batch[4][1]["env_error"]


def test_a_past_may_be_too_long_and_a_seeded_reset_begins_a_new_one(monkeypatch, tmp_path):
    monkeypatch.setattr("envpool_py.record.history.MAX_STEPS", 5)
    faults = {0: (8, "raise"), 1: (4, "raise"), 2: (12, "raise")}
    with PLACES["dummy"](failing(tmp_path, faults), **REPLAY) as pool:
        pool.reset(seed=1)
        infos = [pool.step([0, 0, 0])[4] for _ in range(8)]
        assert "env_replayed" in infos[3][1]
        assert "env_error" in infos[7][0]
        pool.reset(seed=2)
        infos = [pool.step([0, 0, 0])[4] for _ in range(4)]
        assert "env_replayed" in infos[3][2]


@pytest.mark.parametrize("restores", [False, True])
def test_custom_workers(restores, tmp_path, monkeypatch):
    monkeypatch.setattr(OwnWorker, "restores", restores)
    with BaseVectorEnv(failing(tmp_path, {1: (3, "raise")}), OwnWorker, **REPLAY) as pool:
        pool.reset(seed=5)
        infos = [pool.step([0, 0, 0])[4][1] for _ in range(3)]
        assert ("env_replayed" in infos[2], "env_error" in infos[2]) == (restores, not restores)


def test_restart_by_hand_makes_new_envs():
    with PLACES["shmem-fork-packed"](FAULTY, **REPLAY) as pool:
        pool.reset(seed=1)
        pool.step(["", "", ""])
        kill(pool, 1)
        pool.restart()
        assert pool.reset()[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
