"""`replay`: a recorded run is repeated row for row; the error says which row differs."""

import contextlib
import functools

import numpy as np
import pytest

import envpool_py
from envpool_py import EnvError, ReplayError, WorkerDiedError
from tests.faults.helpers import MODES
from tests.record.runs import RANDOM, Run, failing
from tests.support import envs
from tests.support.helpers import descriptors
from tests.support.places import PLACES
from tests.support.reference import same

FAULTY = [functools.partial(envs.FaultEnv, tag, 3) for tag in range(3)]


@pytest.fixture
def path(tmp_path):
    """Where a run is recorded."""
    return tmp_path / "run"


def comparable(outcome):
    """Return a batch, or what must be equal of two errors."""
    if not isinstance(outcome, EnvError):
        return outcome
    classes = [type(outcome).__name__, *map(str, type(outcome).__mro__[1:])]
    return [str(outcome).splitlines()[0], outcome.env_ids, classes]


def outcomes(again):
    """Return the batches and the errors of a replay."""
    found = []
    while True:
        try:
            found.append(next(again))
        except StopIteration:
            return found
        except EnvError as error:
            found.append(error)


def check_replay(run, path, fns, **options):
    """Assert that a replay has the batches and the errors of the run."""
    again = envpool_py.replay(path, fns, **options)
    assert same(list(map(comparable, run.batches)), list(map(comparable, outcomes(again))))
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
        ("shmem-fork", 2, None, {}),
        ("shmem-fork-packed", None, "next_step", {}),
        ("shmem-fork-packed", 2, "same_step", {"backend": "shmem", "num_processes": 1}),
        ("shmem-fork-caller", 2, "next_step", {}),
    ],
)
def test_every_row_comes_again(place, wait_num, mode, options, path):
    with repeated(path, place, wait_num=wait_num, autoreset_mode=mode) as run:
        run.reset(seed=7, options=[{"scale": 2.0}, None, {"scale": 0.5}])
        run.drive(25)
        run.pool.send_reset([1], seed=11)
        run.pool.send([2], [0])
        while run.pool.waiting_id:
            run.recv()
    check_replay(run, path, RANDOM, **options)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        *((name, False) for name in ("nested", "every-dtype", "text", "graph", "sequence")),
        *(("one-of", False), ("tuple", True), ("nested", True), ("every-dtype", True)),
    ],
)
def test_every_kind_of_space(name, columns, path):
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(3)]
    with repeated(path, "dummy", fns, columns=columns, autoreset_mode="same_step") as run:
        run.reset(seed=1)
        run.drive(6)
        run.step([run.pool.action_space[2].sample(), None], [2, 0])  # None is an action as well


RNG = np.random.default_rng()


def moody(env_id, episode):
    """Return other seeds each time."""
    return int(RNG.integers(1 << 40)), {"scale": 1.0 + env_id + episode}


@pytest.mark.parametrize("schedule", [{"episode_seeds": True}, {"reset_fn": moody}], ids=list)
@pytest.mark.parametrize("mode", MODES)
def test_seeds_of_episodes_come_again(mode, schedule, path):
    with repeated(path, "shmem-fork-packed", autoreset_mode=mode, **schedule) as run:
        run.reset()  # the caller has not chosen these seeds
        run.drive(15)
        run.reset([1], seed=5)
        run.drive(15)
    infos = [info for batch in run.batches for info in batch[4]]
    assert not any("reset_fn" in key for info in infos for key in info)


def test_a_reset_fn_whose_result_is_not_recorded_must_be_given(path):
    def reset_fn(env_id, episode):
        return 3, {"scale": 2.0, "odd": {env_id, episode}}  # a record can hold no set

    with PLACES["dummy"](RANDOM, reset_fn=reset_fn, record=path) as pool:
        run = Run(pool)
        run.reset()
    with (
        envpool_py.replay(path, RANDOM) as again,
        pytest.raises(ReplayError, match="env 0, episode 0; pass reset_fn to replay"),
    ):
        next(again)
    check_replay(run, path, RANDOM, reset_fn=reset_fn)


class ScaledEnv(envs.RandomEnv):
    """Has an attribute and a method by which the pool changes what comes next."""

    scale = 1.0

    def draw(self, times):
        self.np_random.random(times)

    def step(self, action):
        return super().step(action * self.scale)


def test_attributes_calls_and_seeds_are_done_again(path):
    fns = [functools.partial(ScaledEnv, tag) for tag in range(3)]
    with repeated(path, "shmem-fork-packed", fns) as run:
        run.pool.seed(3)
        run.reset()
        run.pool.set_env_attr("scale", 5.0, [1])
        run.step([1, 1, 1])
        run.pool.call("draw", 3, id=[2])
        with pytest.raises(AttributeError):
            run.pool.call("nothing")
        run.step([1, 1, 1])


def test_a_function_that_was_applied_is_warned_of(path):
    with PLACES["dummy"](RANDOM, record=path) as pool:
        pool.apply(lambda env: env.tag)
        pool.reset(seed=1)
    with pytest.warns(UserWarning, match="applied .*<lambda> to 3 envs, which is not replayed"):
        assert len(list(envpool_py.replay(path, RANDOM))) == 1


@pytest.mark.parametrize("wait_num", [None, 1])
def test_one_env_alone(wait_num, path):
    made = []

    def make(tag):
        made.append(tag)
        return RANDOM[tag]()

    with repeated(path, "shmem-fork", wait_num=wait_num, autoreset_mode="same_step") as run:
        run.reset(seed=7)
        run.drive(20)
    fns = [functools.partial(make, tag) for tag in range(3)]
    again = Run(run.pool)
    again.batches = list(envpool_py.replay(path, fns, env_ids=[1]))
    assert made == [1]
    assert len(again.batches) == 21
    assert same(run.rows_of(1), again.rows_of(1))


def test_until_leaves_the_pool_open(path):
    with repeated(path, "dummy") as run:
        run.reset(seed=7)
        run.drive(10)
    with envpool_py.replay(path, RANDOM, until=4) as again:
        assert same(run.batches[:4], list(again))
        assert again.pool.get_env_attr("tag") == [0, 1, 2]
        again.until = None
        assert same(run.batches[4:], list(again))


# --------------------------------------------------------------------------------------- errors


def test_an_exception_is_raised_again(path):
    with repeated(path, "shmem-fork-packed", FAULTY) as run:
        run.reset(seed=1)
        run.step(["", "", ""])
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom"):
            run.step(["", "value", "os"])
        run.recv()
        run.reset([1, 2])
        run.step(["", "", ""])
        with pytest.raises(EnvError):
            run.reset([0], options={"fault": "slot"})
    assert run.batches[2].env_ids == (1, 2)
    one = outcomes(envpool_py.replay(path, FAULTY, env_ids=2))
    assert isinstance(one[2], FileNotFoundError)
    assert str(one[2]).startswith("env 2: step raised FileNotFoundError")


@pytest.mark.parametrize(
    ("place", "death"), [("shmem-fork-packed", "SIGKILL"), ("shmem-fork", "os._exit")]
)
def test_a_death_is_raised_and_not_carried_out(place, death, path):
    with repeated(path, place, FAULTY) as run:
        run.reset(seed=1)
        with pytest.raises(WorkerDiedError):
            run.step(["", death, ""])
        if run.pool.waiting_id:
            run.recv()
        run.pool.restart([1])
        run.reset()
        run.step(["", "", ""])
    processes = {"backend": "shmem", "context": "fork"}
    check_replay(run, path, FAULTY, **processes, num_processes=1)
    again = outcomes(envpool_py.replay(path, FAULTY, **processes, deaths=True))
    assert isinstance(again[1], WorkerDiedError)
    assert run.batches[1].message.splitlines()[0].partition(";")[0] in str(again[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["restart", "replay"])
def test_a_run_with_restarts_comes_again(on_error, mode, path):
    faults = {2: "value", 4: "os", 6: "SIGKILL", 9: "slot", 12: "os._exit"}
    options = {"on_error": on_error, "restart_backoff": 0.0, "autoreset_mode": mode}
    with repeated(path, "shmem-fork-packed", FAULTY, **options) as run:
        run.reset(seed=1)
        run.drive(16, lambda i, n: faults.get(n, "") if i == 1 else "")


@pytest.mark.parametrize("at", [-1, 3])  # in the first reset, in the third step
def test_episode_seeds_go_on_behind_a_death(at, path):
    fns = failing(path.parent, {1: (at, "os._exit")})
    options = {"episode_seeds": True, "on_error": "restart", "autoreset_mode": "same_step"}
    with repeated(path, "shmem-fork", fns, **options) as run:
        run.reset()
        run.drive(20)
        assert path.with_name("1").exists()  # it has died


@pytest.mark.parametrize(("place", "backend"), [("shmem-fork-caller", "dummy"), ("dummy", "shmem")])
def test_a_cancelled_step(place, backend, path):
    with repeated(path, place) as run:
        run.reset(seed=1)
        run.pool.send([1, 2, 3])
        run.pool.cancel([1])
        run.recv()
        run.reset([1])  # goes on with the stream, which the step has moved or not
        run.step([1, 1, 1])
    check_replay(run, path, RANDOM, backend=backend)


def test_a_cancelled_step_that_killed_its_process(path):
    with repeated(path, "shmem-fork-packed", FAULTY) as run:
        run.reset(seed=1)
        run.pool.send(["SIGKILL"], [1])
        run.pool.cancel([1])
        run.pool.workers[1].process.join()
        with pytest.raises(WorkerDiedError):
            run.reset([1])
        run.pool.restart([1])
        run.reset(run.pool.ready_id)


# -------------------------------------------------------------------------------------- differing


def drifting(drift):
    """Return three env_fns; step 2 of episode 1 of env 1 is as ``drift`` says."""

    def step(env, _, row):
        if (env.tag, env.episode, env.t) != (1, 1, 2):
            return row
        if "raise" in drift:
            raise KeyError("drift")
        obs, reward, terminated, *_ = row
        obs = obs + drift.get("obs", 0)
        return obs, reward + drift.get("reward", 0), terminated, "flag" in drift, {}

    return [functools.partial(envs.ChangedEnv, tag, 4, step=step) for tag in range(3)]


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
    drift = dict(before)
    fns = drifting(drift)
    with PLACES["dummy"](fns, record=path, autoreset_mode="next_step") as pool:
        pool.reset(seed=1)
        with contextlib.suppress(KeyError):
            for _ in range(9):
                pool.step([0, 0, 0])
    drift.clear()
    drift.update(after)
    with (
        envpool_py.replay(path, fns) as again,
        pytest.raises(ReplayError, match=rf"^env 1: episode 1, step 2: {text}") as caught,
    ):
        list(again)
    assert (caught.value.env_id, caught.value.episode, caught.value.step) == (1, 1, 2)
    assert again.num_batches == 7
    assert str(path) not in descriptors().values()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"env_fns": RANDOM[:2]}, ValueError, "got 2 env_fns, but the record .* is of 3 envs"),
        ({"env_fns": FAULTY}, ValueError, r"observations: these .*\(3,\) and dtype int64"),
        ({"backend": "cluster"}, ValueError, "backend must be a pool class or one of dummy"),
        ({"until": -1}, ValueError, "until must be a number of batches"),
        ({"env_ids": [3]}, IndexError, "env id 3 is out of range"),
        ({"env_ids": []}, ValueError, "env_ids is empty"),
        ({"step_timeout": 1}, TypeError, "DummyVectorEnv does not take step_timeout"),
    ],
)
def test_wrong_arguments(arguments, error, text, path):
    with PLACES["dummy"](RANDOM, record=path) as pool:
        pool.reset(seed=1)
    with pytest.raises(error, match=text):
        envpool_py.replay(path, **{"env_fns": RANDOM, **arguments})
