"""`replay`: a recorded run is repeated row for row; the error says which row differs."""

import contextlib
import functools
import signal
from pathlib import Path

import numpy as np
import pytest

import envpool_py
from envpool_py import EnvError, ReplayError, WorkerDiedError
from envpool_py.worker import DummyEnvWorker
from tests.faults.helpers import MODES
from tests.record.runs import RANDOM, Once, Run, failing
from tests.support import envs
from tests.support.helpers import descriptors, wait_until
from tests.support.places import PLACES, paired
from tests.support.reference import same


class OwnWorker(DummyEnvWorker):
    """A custom worker, because it overrides `recv`."""

    def recv(self):
        return super().recv()


OWN_POOL = functools.partial(envpool_py.BaseVectorEnv, worker_fn=OwnWorker)
FAULTY = [functools.partial(envs.FaultEnv, tag, 3) for tag in range(3)]


@pytest.fixture
def path(tmp_path):
    """Where a run is recorded."""
    return tmp_path / "run"


def outcomes(again):
    """Return the batches and the errors of a replay."""
    run = Run(again.pool)
    with contextlib.suppress(StopIteration):
        while True:
            with contextlib.suppress(EnvError):
                run.keep(next, again)
    return run.batches


def check_replay(run, path, fns, **options):
    """Assert that a replay has the batches and the errors of the run."""
    again = envpool_py.replay(path, fns, **options)
    assert same(run.batches, outcomes(again))
    assert again.complete
    assert again.pool.is_closed


@contextlib.contextmanager
def repeated(path, place, fns=RANDOM, **options):
    """Record what the block does with a pool; a replay has the same batches and errors."""
    with PLACES[place](fns, record=path, **options) as pool:
        run = Run(pool)
        yield run
    check_replay(run, path, fns)


@pytest.mark.parametrize(
    ("place", "wait_num", "mode", "options"),
    [
        ("dummy", None, None, {}),
        ("dummy", 1, None, {"backend": "subproc", "num_processes": 2}),
        ("shmem-fork-packed", None, "next_step", {}),
        ("shmem-fork-packed", 2, "same_step", {"backend": "shmem", "num_processes": 1}),
        ("shmem-fork-caller", 2, "next_step", {"backend": OWN_POOL}),
    ],
)
def test_every_row_comes_again(place, wait_num, mode, options, path):
    with repeated(path, place, wait_num=wait_num, autoreset_mode=mode) as run:
        run.reset(seed=7, options=[{"scale": 2.0}, None, {"scale": 0.5}])
        run.drive(25)
        run.pool.send_reset([1], seed=11)
        run.pool.send([2], [0])
        while run.pool.waiting_id:
            run.keep(run.pool.recv)
    check_replay(run, path, RANDOM, **options)


KINDS = ("nested", "every-dtype", "text", "graph", "sequence", "one-of", "tuple")


@pytest.mark.parametrize(("name", "columns"), paired(KINDS, [True, False]))
def test_every_kind_of_space(name, columns, path):
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(3)]
    with repeated(path, "dummy", fns, columns=columns, autoreset_mode="same_step") as run:
        run.reset(seed=1)
        run.drive(6)
        run.step([run.pool.action_space[2].sample(), None], [2, 0])  # None is an action as well


# Where a process dies: not at all, in a reset, in a step.
@pytest.mark.parametrize(("mode", "at"), paired(MODES, [3, 0, -2]))
def test_seeds_of_episodes_come_again(mode, at, path):
    fns = failing(path.parent, {1: (at, "os._exit")})
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": mode}
    with repeated(path, "shmem-fork", fns, episode_seeds=True, **options) as run:
        run.reset()  # the caller has not chosen these seeds
        run.drive(15)
        run.reset([1], seed=5)
        run.drive(15)
    assert path.with_name("1").exists() == (at != 0)


def test_attributes_calls_and_seeds_are_done_again_and_functions_are_warned_of(path):
    with PLACES["shmem-fork-packed"](RANDOM, record=path) as pool:
        run = Run(pool)
        pool.seed(3)
        run.reset()
        pool.set_env_attr("state", np.full(3, 50.0), [1])
        run.step([1, 1, 1])
        pool.call("set_wrapper_attr", "state", np.full(3, 9.0), id=[2])
        with pytest.raises(AttributeError):
            pool.call("nothing")
        pool.apply(lambda env: env.tag)
        run.step([1, 1, 1])
    with pytest.warns(UserWarning, match="applied .*<lambda> to 3 envs, which is not replayed"):
        check_replay(run, path, RANDOM)


@pytest.mark.parametrize("wait_num", [None, 1])
def test_one_env_alone_and_up_to_a_batch(wait_num, path):
    with repeated(path, "shmem-fork", wait_num=wait_num, autoreset_mode="same_step") as run:
        run.reset(seed=7)
        run.drive(20)
    found = Run(run.pool)
    others = pytest.fail  # they are not made
    with envpool_py.replay(path, [others, RANDOM[1], others], env_ids=[1], until=4) as again:
        found.batches = list(again)
        assert len(found.batches) == 4
        assert again.pool.get_env_attr("tag") == [1]  # the pool is open
        again.until = None
        found.batches += again
    assert len(found.batches) == 21
    assert same(run.rows_of(1), found.rows_of(1))


def test_an_exception_is_raised_again(path):
    with repeated(path, "shmem-fork-packed", FAULTY) as run:
        run.reset(seed=1)
        run.step(["", "", ""])
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
            run.step(["", "value", "os"])
        run.keep(run.pool.recv)
        run.reset([1, 2])
        run.step(["", "", ""])
        with pytest.raises(EnvError):
            run.reset([0], options={"fault": "slot"})
    assert run.batches[2][2] == (1, 2)
    classes, text, ids = outcomes(envpool_py.replay(path, FAULTY, env_ids=2))[2]
    assert "FileNotFoundError" in classes[1:]
    assert (text.partition(": [")[0], ids) == ("env 2: step raised FileNotFoundError", (2,))


@pytest.mark.parametrize(
    ("place", "death", "cancelled"),
    [("shmem-fork-packed", "SIGKILL", False), ("shmem-fork", "os._exit", True)],
)
def test_a_death_is_raised_and_not_carried_out(place, death, cancelled, path):
    with repeated(path, place, FAULTY) as run:
        run.reset(seed=1)
        if cancelled:
            run.pool.send([death], [1])
            run.pool.cancel([1])
            run.pool.workers[1].process.join()
            run.reset([1])  # starts the process again
        else:
            with pytest.raises(WorkerDiedError):
                run.step(["", death, ""])
        if run.pool.waiting_id:
            run.keep(run.pool.recv)
        run.pool.restart([1])
        run.reset()
        run.step(["", "", ""])
    processes = {"backend": "shmem", "context": "fork"}
    check_replay(run, path, FAULTY, **processes, num_processes=1)
    if not cancelled:
        with pytest.warns(UserWarning, match="env 1: repeats what ended it"):
            found = outcomes(envpool_py.replay(path, FAULTY, **processes, deaths=True))
        classes, text, _ = found[1]
        assert classes == run.batches[1][0]
        assert run.batches[1][1].partition(";")[0] in text


@pytest.mark.parametrize("mode", MODES)
def test_a_run_with_restarts_comes_again(mode, path):
    faults = {2: "value", 4: "os", 6: "SIGKILL", 9: "slot", 12: "os._exit"}
    options = {"on_error": "restart", "restart_backoff": 0.0, "autoreset_mode": mode}
    with repeated(path, "shmem-fork-packed", FAULTY, **options) as run:
        run.reset(seed=1)
        run.drive(16, lambda i, n: faults.get(n, "") if i == 1 else "")


@pytest.mark.parametrize(("place", "backend"), [("shmem-fork-caller", "dummy"), ("dummy", "shmem")])
def test_a_cancelled_step(place, backend, path):
    with repeated(path, place) as run:
        run.reset(seed=1)
        run.pool.send([1, 2, 3])
        run.pool.cancel([1])
        run.keep(run.pool.recv)
        run.reset([1])  # goes on with the stream, which the step has moved or not
        run.step([1, 1, 1])
    check_replay(run, path, RANDOM, backend=backend)


@pytest.mark.parametrize("place", ["dummy", "thread", "shmem-fork-caller"])
@pytest.mark.parametrize("at", ["step", "set_env_attr", "end"])
def test_an_interrupt_between_a_request_and_its_record(at, place, path, monkeypatch):
    def interrupt():
        signal.raise_signal(signal.SIGINT)

    def write(*args):
        interrupt()
        done(*args)

    with repeated(path, place) as run:
        pool, flight = run.pool, run.pool.engine.flight
        run.reset(seed=7)
        calls = {"step": lambda: pool.step([1, 2, 3])}
        if at == "end":
            done = flight.recorder._write
            monkeypatch.setattr(flight.recorder, "_write", write)
        else:
            name = "prepare_plain_requests" if at == "step" else "prepare_requests"
            of = getattr(flight.hosts, name)
            monkeypatch.setattr(
                flight.hosts, name, lambda *args, **kw: [interrupt, *of(*args, **kw)]
            )
        with pytest.raises(KeyboardInterrupt):
            calls.get(at, lambda: pool.set_env_attr("state", np.full(3, 50.0)))()
        monkeypatch.undo()
        if at != "step":
            run.step([1, 1, 1])
        run.reset()  # goes on with the stream, which the step has moved or not
        run.drive(5)


class WaitingEnv(envs.RandomEnv):
    """Its method raises at once in env 0; in the others it waits for a file."""

    def work(self, path):
        if self.tag == 0:
            raise LookupError
        wait_until(Path(path).exists)
        self.np_random.random()


@pytest.mark.parametrize("place", ["thread", "shmem-fork"])
def test_a_call_that_is_interrupted_when_one_env_has_raised(place, path, monkeypatch):
    go = path.with_name("go")

    def take():
        done()
        if any(one.is_answered for one in flight.asked.values()):
            go.touch()
            signal.raise_signal(signal.SIGINT)

    fns = [functools.partial(WaitingEnv, tag) for tag in range(3)]
    with repeated(path, place, fns) as run:
        run.reset(seed=7)
        flight = run.pool.engine.flight
        done = flight.take_replies
        monkeypatch.setattr(flight, "take_replies", take)
        with pytest.raises(KeyboardInterrupt):
            run.pool.call("work", str(go))
        monkeypatch.undo()
        run.step([1, 1, 1])


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"obs": 1}, r"obs is array"),
        ({}, {"reward": 1}, r"reward is 1103.0, was 1102.0"),
        ({}, {"flag": 1}, r"\(terminated, truncated\) is \(False, True\), was \(False, False\)"),
        ({}, {"raise": 1}, r"step raised KeyError: 'drift'; in the run it did not"),
        ({"raise": 1}, {}, r"it did not raise .*KeyError"),
    ],
)
def test_the_error_says_what_differs(before, after, text, path):
    def step(env, _, row):
        """Change step 2 of episode 1 of env 1."""
        if (env.tag, env.episode, env.t) != (1, 1, 2):
            return row
        if "raise" in drift:
            raise KeyError("drift")
        obs, reward, *_ = row
        changed = obs + drift.get("obs", 0), reward + drift.get("reward", 0)
        return *changed, False, "flag" in drift, {}

    fns = [functools.partial(envs.ChangedEnv, tag, 4, step=step) for tag in range(3)]
    drift = before
    with PLACES["dummy"](fns, record=path, autoreset_mode="next_step") as pool:
        pool.reset(seed=1)
        with contextlib.suppress(KeyError):
            for _ in range(9):
                pool.step([0, 0, 0])
    drift = after
    with (
        envpool_py.replay(path, fns) as again,
        pytest.raises(ReplayError, match=rf"^env 1: episode 1, step 2: {text}") as caught,
    ):
        list(again)
    assert (caught.value.env_id, caught.value.episode, caught.value.step) == (1, 1, 2)
    assert again.num_batches == 7
    assert str(path) not in descriptors().values()


def test_wrong_arguments(path):
    with PLACES["dummy"](RANDOM, record=path) as pool:
        pool.reset()
    for fns, text in [
        (RANDOM[:2], "got 2 env_fns, but the record .* is of 3 envs"),
        (FAULTY, r"observations: these .*\(3,\) and dtype int64"),
    ]:
        with pytest.raises(ValueError, match=text):
            envpool_py.replay(path, fns)


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_recycled_and_swapped_envs_come_again(place, path):
    others = [functools.partial(envs.RandomEnv, tag) for tag in (7, 8)]
    with PLACES[place](RANDOM, record=path, autoreset_mode="same_step", recycle=2) as pool:
        run = Run(pool)
        run.reset(seed=3)
        run.drive(15)
        with pytest.raises(ValueError, match="action_space|observation_space"):
            pool.restart([1], env_fns=[envs.CountEnv])
        for other in others:
            pool.restart([1], env_fns=[other])
            run.reset([1])  # seeded by the pool
            run.drive(15)
    check_replay(run, path, RANDOM, swaps={1: [envs.CountEnv, *others]})
    replay = envpool_py.replay(path, RANDOM)
    with pytest.raises(ValueError, match="env 1: the run put another env in its place"):
        list(replay)
    replay.close()


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_env_whose_restart_failed_is_recreated_by_its_reset(place, path):
    down = path.with_name("down")

    def make():
        if down.exists():
            raise ConnectionError
        return envs.RandomEnv()

    with PLACES[place]([make] * 3, record=path) as pool:
        run = Run(pool)
        run.reset(seed=1)
        down.touch()
        with pytest.raises(ConnectionError):
            pool.restart([1])
        down.unlink()
        run.reset()
        run.step([1, 1, 1])
    check_replay(run, path, [make] * 3)


PLACES_OF_ERRORS = [((1, 2), 5), ((1, 3), 6), ((2, 0), -3)]
"""Episode and step, and the same as a number for `Once`, of episodes of three steps."""


@pytest.mark.parametrize(
    ("on_error", "place", "mode"),
    paired(["raise", "restart"], PLACES_OF_ERRORS, [None, None, *MODES[1:], *MODES[1:]]),
)
def test_the_place_of_an_error(on_error, place, mode, path):
    mark, found = path.with_name("mark"), []
    fns = [lambda: Once(envs.CountEnv(0, 3), mark, place[1], "raise")]
    with PLACES["dummy"](fns, record=path, autoreset_mode=mode, on_error=on_error) as pool:
        pool.reset(seed=1)
        for _ in range(12):
            try:
                _, _, terminated, truncated, _ = pool.step([0])
                over = bool(terminated | truncated) and mode is None
            except ValueError:
                over = True
            while over:
                with contextlib.suppress(ValueError):
                    pool.reset()
                    over = False
    mark.unlink()  # it is there: the env has failed
    with envpool_py.replay(path, fns) as again, contextlib.suppress(StopIteration):
        while True:
            try:
                next(again)
                found += again.recovered_at[len(found) :]
            except EnvError as error:
                found.append(again.failed_at[error.env_id])
    assert found == [place[0]]
