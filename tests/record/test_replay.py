"""`replay`: a recorded run is repeated row for row; the error says which row differs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import envpool_py
from envpool_py import EnvError, ReplayError, WorkerDiedError
from tests.faults.helpers import MODES
from tests.record.runs import RANDOM, Run, failing
from tests.support import envs
from tests.support.places import PLACES
from tests.support.reference import same

if TYPE_CHECKING:
    from pathlib import Path

FAULTY = [functools.partial(envs.FaultEnv, tag, 3) for tag in range(3)]


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
def test_every_row_comes_again(
    place: str, wait_num: int | None, mode: str | None, options: dict, tmp_path: Path
) -> None:
    record = tmp_path / "run"
    with PLACES[place](RANDOM, wait_num=wait_num, autoreset_mode=mode, record=record) as pool:
        run = Run(pool)
        run.reset(seed=7, options=[{"scale": 2.0}, None, {"scale": 0.5}])
        run.drive(25)
        pool.send_reset([1], seed=11)
        pool.send([2], [0])
        while pool.waiting_id:
            run.recv()
    again = envpool_py.replay(record, RANDOM, **options)
    assert same(run.batches, list(again))
    assert again.complete
    assert again.pool.is_closed


SPACES = [
    *((name, False) for name in ("nested", "every-dtype", "text", "graph", "sequence", "one-of")),
    *((name, True) for name in ("tuple", "nested", "every-dtype")),
]


@pytest.mark.parametrize(("name", "columns"), SPACES)
def test_every_kind_of_space(name: str, columns: bool, tmp_path: Path) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(3)]
    options = {"columns": columns, "autoreset_mode": "same_step", "record": tmp_path / "run"}
    with PLACES["shmem-fork-packed"](fns, **options) as pool:
        run = Run(pool)
        run.reset(seed=1)
        run.drive(6)
        run.step([pool.action_space[2].sample(), None], [2, 0])  # None is an action as well
    with envpool_py.replay(tmp_path / "run", fns) as again:
        assert same(run.batches, list(again))


class Moody:
    """A `reset_fn` that never returns the same again."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, env_id: int, episode: int) -> tuple:
        return int(self.rng.integers(1 << 40)), {"scale": 1.0 + env_id + episode}


@pytest.mark.parametrize("schedule", [{"episode_seeds": True}, {"reset_fn": Moody()}], ids=list)
@pytest.mark.parametrize("mode", MODES)
def test_seeds_of_episodes_come_again(mode: str | None, schedule: dict, tmp_path: Path) -> None:
    with PLACES["shmem-fork-packed"](
        RANDOM, **schedule, autoreset_mode=mode, record=tmp_path / "run"
    ) as pool:
        run = Run(pool)
        run.reset()  # the caller has not chosen these seeds
        run.drive(15)
        run.reset([1], seed=5)
        run.drive(15)
    infos = [info for batch in run.batches for info in batch[4]]
    assert not any("reset_fn" in key for info in infos for key in info)
    assert same(run.batches, list(envpool_py.replay(tmp_path / "run", RANDOM)))


def test_a_reset_fn_whose_result_is_not_recorded_must_be_given(tmp_path: Path) -> None:
    def reset_fn(env_id: int, episode: int) -> tuple:
        return 3, {"scale": 2.0, "odd": {env_id, episode}}  # a record can hold no set

    with PLACES["dummy"](RANDOM, reset_fn=reset_fn, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset()
    with (
        envpool_py.replay(tmp_path / "run", RANDOM) as again,
        pytest.raises(ReplayError, match="env 0, episode 0; pass reset_fn to replay"),
    ):
        next(again)
    again = envpool_py.replay(tmp_path / "run", RANDOM, reset_fn=reset_fn)
    assert same(run.batches, list(again))


class ScaledEnv(envs.RandomEnv):
    """Has an attribute and a method by which the pool changes what comes next."""

    scale = 1.0

    def draw(self, times: int) -> None:
        self.np_random.random(times)

    def step(self, action: Any) -> tuple:
        return super().step(action * self.scale)


def test_attributes_calls_and_seeds_are_done_again(tmp_path: Path) -> None:
    fns = [functools.partial(ScaledEnv, tag) for tag in range(3)]
    with PLACES["shmem-fork-packed"](fns, record=tmp_path / "run") as pool:
        run = Run(pool)
        pool.seed(3)
        run.reset()
        pool.set_env_attr("scale", 5.0, [1])
        run.step([1, 1, 1])
        pool.call("draw", 3, id=[2])
        with pytest.raises(AttributeError):
            pool.call("nothing")
        run.step([1, 1, 1])
    assert same(run.batches, list(envpool_py.replay(tmp_path / "run", fns)))


def test_a_function_that_was_applied_is_warned_of(tmp_path: Path) -> None:
    with PLACES["dummy"](RANDOM, record=tmp_path / "run") as pool:
        pool.reset(seed=1)
        pool.apply(lambda env: env.tag)
        pool.step([0, 0, 0])
    with pytest.warns(UserWarning, match="applied .*<lambda> to 3 envs, which is not replayed"):
        assert len(list(envpool_py.replay(tmp_path / "run", RANDOM))) == 2


@pytest.mark.parametrize("wait_num", [None, 1])
def test_one_env_alone(wait_num: int | None, tmp_path: Path) -> None:
    made = []

    def make(tag: int) -> Any:
        made.append(tag)
        return RANDOM[tag]()

    options = {"wait_num": wait_num, "autoreset_mode": "same_step", "record": tmp_path / "run"}
    with PLACES["shmem-fork"](RANDOM, **options) as pool:
        run = Run(pool)
        run.reset(seed=7)
        run.drive(20)
    fns = [functools.partial(make, tag) for tag in range(3)]
    again = Run(pool)
    again.batches = list(envpool_py.replay(tmp_path / "run", fns, env_ids=[1]))
    assert made == [1]
    assert len(again.batches) == 21
    assert same(run.rows_of(1), again.rows_of(1))


def test_until_leaves_the_pool_open(tmp_path: Path) -> None:
    with PLACES["dummy"](RANDOM, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset(seed=7)
        run.drive(10)
    with envpool_py.replay(tmp_path / "run", RANDOM, until=4) as again:
        assert same(run.batches[:4], list(again))
        assert not again.pool.is_closed
        assert again.pool.get_env_attr("tag") == [0, 1, 2]
        again.until = None
        assert same(run.batches[4:], list(again))


# --------------------------------------------------------------------------------------- errors


def outcomes(again: envpool_py.Replay) -> list[Any]:
    """Return the batches and the errors of a replay."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(again))
        except StopIteration:
            return found
        except EnvError as error:
            found.append(error)


def comparable(outcome: Any) -> Any:
    """Return a batch, or what must be equal of two errors."""
    if not isinstance(outcome, EnvError):
        return outcome
    classes = [type(outcome).__name__, *map(str, type(outcome).__mro__[1:])]
    return [str(outcome).splitlines()[0], outcome.env_ids, classes]


def agree(run: list[Any], again: list[Any]) -> bool:
    return same(list(map(comparable, run)), list(map(comparable, again)))


def test_an_exception_is_raised_again(tmp_path: Path) -> None:
    with PLACES["shmem-fork-packed"](FAULTY, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset(seed=1)
        run.step(["", "", ""])
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom") as caught:
            run.step(["", "value", "os"])
        run.batches.append(caught.value)
        run.recv()
        run.reset([1, 2])
        run.step(["", "", ""])
        with pytest.raises(EnvError) as caught:
            run.reset([0], options={"fault": "slot"})
        run.batches.append(caught.value)
    again = outcomes(envpool_py.replay(tmp_path / "run", FAULTY))
    assert agree(run.batches, again)
    assert again[2].env_ids == (1, 2)
    one = outcomes(envpool_py.replay(tmp_path / "run", FAULTY, env_ids=2))
    assert isinstance(one[2], FileNotFoundError)
    assert str(one[2]).startswith("env 2: step raised FileNotFoundError")


@pytest.mark.parametrize(
    ("place", "death"), [("shmem-fork-packed", "SIGKILL"), ("shmem-fork", "os._exit")]
)
def test_a_death_is_raised_and_not_carried_out(place: str, death: str, tmp_path: Path) -> None:
    with PLACES[place](FAULTY, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset(seed=1)
        with pytest.raises(WorkerDiedError) as caught:
            run.step(["", death, ""])
        run.batches.append(caught.value)
        if pool.waiting_id:
            run.recv()
        pool.restart([1])
        run.reset()
        run.step(["", "", ""])
    for options in ({}, {"backend": "shmem", "context": "fork", "num_processes": 1}):
        again = envpool_py.replay(tmp_path / "run", FAULTY, **options)
        assert agree(run.batches, outcomes(again))
    options = {"backend": "shmem", "context": "fork", "deaths": True}
    again = outcomes(envpool_py.replay(tmp_path / "run", FAULTY, **options))
    assert isinstance(again[1], WorkerDiedError)
    assert caught.value.message.splitlines()[0].partition(";")[0] in str(again[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["restart", "replay"])
def test_a_run_with_restarts_comes_again(on_error: str, mode: str | None, tmp_path: Path) -> None:
    faults = {2: "value", 4: "os", 6: "SIGKILL", 9: "slot", 12: "os._exit"}
    options = {"on_error": on_error, "restart_backoff": 0.0, "record": tmp_path / "run"}
    with PLACES["shmem-fork-packed"](FAULTY, autoreset_mode=mode, **options) as pool:
        run = Run(pool)
        run.reset(seed=1)
        run.drive(16, lambda i, n: faults.get(n, "") if i == 1 else "")
    assert same(run.batches, list(envpool_py.replay(tmp_path / "run", FAULTY)))


@pytest.mark.parametrize("at", [-1, 3])  # in the first reset, in the third step
def test_episode_seeds_go_on_behind_a_death(at: int, tmp_path: Path) -> None:
    fns = failing(tmp_path, {1: (at, "os._exit")})
    options = {"episode_seeds": True, "on_error": "restart", "autoreset_mode": "same_step"}
    with PLACES["shmem-fork"](fns, record=tmp_path / "run", **options) as pool:
        run = Run(pool)
        run.reset()
        run.drive(20)
    assert (tmp_path / "1").exists()
    assert same(run.batches, list(envpool_py.replay(tmp_path / "run", fns)))


@pytest.mark.parametrize(("place", "backend"), [("shmem-fork-caller", "dummy"), ("dummy", "shmem")])
def test_a_cancelled_step(place: str, backend: str, tmp_path: Path) -> None:
    with PLACES[place](RANDOM, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset(seed=1)
        pool.send([1, 2, 3])
        pool.cancel([1])
        run.recv()
        run.reset([1])  # goes on with the stream, which the step has moved or not
        run.step([1, 1, 1])
    assert same(run.batches, list(envpool_py.replay(tmp_path / "run", RANDOM, backend=backend)))


def test_a_cancelled_step_that_killed_its_process(tmp_path: Path) -> None:
    def died() -> bool:
        try:
            run.reset([1])
        except WorkerDiedError:
            return True
        return False

    with PLACES["shmem-fork-packed"](FAULTY, record=tmp_path / "run") as pool:
        run = Run(pool)
        run.reset(seed=1)
        pool.send(["SIGKILL"], [1])
        pool.cancel([1])
        while not died():  # whenever it is that the death is seen
            pass
        pool.restart([1])
        run.reset(pool.ready_id)
    again = outcomes(envpool_py.replay(tmp_path / "run", FAULTY))
    assert same([run.batches[0], run.batches[-1]], [again[0], again[-1]])


# -------------------------------------------------------------------------------------- differing


class Drifting(envs.CountEnv):
    """Returns another value in one step, if ``drift`` names it."""

    def __init__(self, tag: int, drift: dict[str, int]) -> None:
        super().__init__(tag)
        self.drift = drift

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        here = (self.episode, self.t) == (1, 2)
        if here and self.drift.get("raise"):
            raise KeyError("drift")
        obs = obs + here * self.drift.get("obs", 0)
        reward += here * self.drift.get("reward", 0)
        return obs, reward, terminated, truncated or (here and bool(self.drift.get("flag"))), info


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("obs", r"obs is array"),
        ("reward", r"reward is 1103.0, was 1102.0"),
        ("flag", r"\(terminated, truncated\) is \(False, True\), was \(False, False\)"),
        ("raise", r"step raised KeyError: 'drift'; in the run it did not"),
    ],
)
def test_the_error_says_what_differs(what: str, text: str, tmp_path: Path) -> None:
    drift: dict[str, int] = {}
    fns = [functools.partial(Drifting, tag, drift if tag == 1 else {}) for tag in range(3)]
    with PLACES["dummy"](fns, record=tmp_path / "run", autoreset_mode="next_step") as pool:
        pool.reset(seed=1)
        for _ in range(9):
            pool.step([0, 0, 0])
    drift[what] = 1
    with (
        envpool_py.replay(tmp_path / "run", fns) as again,
        pytest.raises(ReplayError, match=rf"^env 1: episode 1, step 2: {text}") as caught,
    ):
        list(again)
    assert (caught.value.env_id, caught.value.episode, caught.value.step) == (1, 1, 2)
    assert again.num_batches == 7


def test_an_exception_that_does_not_come_again(tmp_path: Path) -> None:
    drift = {"raise": 1}
    fns = [functools.partial(Drifting, 0, drift)]
    with PLACES["dummy"](fns, record=tmp_path / "run", autoreset_mode="same_step") as pool:
        pool.reset(seed=1)
        for _ in range(5):
            pool.step([0])
        with pytest.raises(KeyError):
            pool.step([0])
    drift.clear()
    with (
        envpool_py.replay(tmp_path / "run", fns) as again,
        pytest.raises(ReplayError, match="env 0: episode 1, step 2: it did not raise .*KeyError"),
    ):
        list(again)


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
def test_wrong_arguments(
    arguments: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with PLACES["dummy"](RANDOM, record=tmp_path / "run") as pool:
        pool.reset(seed=1)
    with pytest.raises(error, match=text):
        envpool_py.replay(tmp_path / "run", **{"env_fns": RANDOM, **arguments})
