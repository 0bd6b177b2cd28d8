"""`replay`: a recorded run is repeated row for row; the error says which row differs."""

from __future__ import annotations

import functools
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import envpool_py
from envpool_py import EnvError, ReplayError, WorkerDiedError
from tests import envs
from tests.faults.helpers import EACH, MODES
from tests.places import PLACES
from tests.reference import same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envpool_py import BaseVectorEnv

RANDOM = [functools.partial(envs.RandomEnv, tag) for tag in range(3)]
FAULTY = [functools.partial(envs.FaultEnv, tag, 3) for tag in range(3)]


class Log:
    """A pool whose batches, and errors, are kept."""

    def __init__(self, pool: BaseVectorEnv) -> None:
        self.pool = pool
        self.batches: list[tuple] = []

    def reset(self, *args: Any, **kwargs: Any) -> None:
        obs, infos = self.pool.reset(*args, **kwargs)
        count = len(infos)
        flags = np.zeros(count, dtype=bool)
        shape = getattr(self.pool, "reward_shape", ())
        self.batches.append((obs, np.zeros((count, *shape)), flags, flags, infos))

    def keep(self, batch: tuple) -> tuple:
        self.batches.append(batch)
        return batch

    def step(self, *args: Any) -> tuple:
        return self.keep(self.pool.step(*args))

    def recv(self) -> tuple:
        return self.keep(self.pool.recv())


def drive(log: Log, steps: int, act: Callable[[int], Any], *, resets: bool) -> None:
    """Step a pool, sync or async, whichever envs are there; reset what ends where `resets`."""
    ids = np.arange(len(log.pool))
    for _ in range(steps):
        batch = log.step([act(int(i)) for i in ids], ids)
        ids = np.array([info["env_id"] for info in batch[4]])
        ended = batch[2] | batch[3]
        if resets and ended.any():
            log.reset(ids[ended])
    if log.pool.waiting_id:
        log.keep(log.pool.drain())


@pytest.mark.parametrize(
    ("wait_num", "mode"), [(None, None), (2, "next_step"), (None, "same_step"), (2, "same_step")]
)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed", "shmem-fork-caller"])
def test_every_row_comes_again(
    place: str, wait_num: int | None, mode: str | None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    options = {"wait_num": wait_num, "autoreset_mode": mode, "record": tmp_path / "run"}
    with PLACES[place](RANDOM, **options) as pool:
        log = Log(pool)
        log.reset(seed=7, options=[{"scale": 2.0}, None, {"scale": 0.5}])
        drive(log, 25, lambda _: int(rng.integers(4)), resets=mode is None)
        pool.send_reset([1], seed=11)
        pool.send([2], [0])
        for _ in range(2):
            if pool.waiting_id:
                log.recv()
    again = envpool_py.replay(tmp_path / "run", RANDOM)
    assert same(log.batches, list(again))
    assert again.complete
    assert again.pool.is_closed


@pytest.mark.parametrize("backend", ["subproc", "shmem"])
def test_on_another_backend(backend: str, tmp_path: Path) -> None:
    with PLACES["dummy"](RANDOM, wait_num=1, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=7)
        drive(log, 12, lambda i: i, resets=True)
    again = envpool_py.replay(tmp_path / "run", RANDOM, backend=backend, num_processes=2)
    assert same(log.batches, list(again))


# "every-dtype" stands for the boxes; the elements of the other two take pickle.
LEFT_OUT = {*(f"box-{dtype}" for dtype in envs.DTYPES), "mixed", "custom"}
SPACES: list[Any] = [("shmem-fork-packed", name, False) for name in envs.SPACES.keys() - LEFT_OUT]
SPACES = [
    *sorted(SPACES),
    *(("dummy", name, True) for name in ("dict", "tuple", "nested", "every-dtype")),
]


@pytest.mark.parametrize(("place", "name", "columns"), SPACES)
def test_every_kind_of_space(place: str, name: str, columns: bool, tmp_path: Path) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(3)]
    rng = np.random.default_rng(1)
    with PLACES[place](
        fns, record=tmp_path / "run", columns=columns, autoreset_mode="same_step"
    ) as pool:
        log = Log(pool)
        log.reset(seed=1)
        drive(log, 6, lambda i: envs.draw(pool.action_space[i], rng), resets=False)
        log.step([envs.draw(pool.action_space[2], rng), None], [2, 0])
    with envpool_py.replay(tmp_path / "run", fns) as again:
        assert same(log.batches, list(again))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_seeds_of_episodes_come_again(place: str, mode: str | None, tmp_path: Path) -> None:
    options = {"episode_seeds": True, "autoreset_mode": mode, "record": tmp_path / "run"}
    with PLACES[place](RANDOM, **options) as pool:
        log = Log(pool)
        log.reset()  # nobody has chosen these seeds
        drive(log, 15, lambda _: 1, resets=mode is None)
        log.reset([1], seed=5)
        drive(log, 15, lambda _: 1, resets=mode is None)
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", RANDOM)))


class Moody:
    """A `reset_fn` that never returns the same again."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, env_id: int, episode: int) -> tuple:
        return int(self.rng.integers(1 << 40)), {"scale": 1.0 + env_id + episode}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_what_a_reset_fn_returned_is_used_again(
    place: str, mode: str | None, tmp_path: Path
) -> None:
    options = {"reset_fn": Moody(), "autoreset_mode": mode, "record": tmp_path / "run"}
    with PLACES[place](RANDOM, **options) as pool:
        log = Log(pool)
        log.reset()
        drive(log, 25, lambda _: 1, resets=mode is None)
        assert not any("reset_fn" in key for b in log.batches for i in b[4] for key in i)
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", RANDOM)))


def test_a_reset_fn_whose_result_is_not_recorded_must_be_given(tmp_path: Path) -> None:
    def reset_fn(env_id: int, episode: int) -> tuple:
        return 3, {"scale": 2.0, "odd": {env_id, episode}}  # a set is nothing a record holds

    with PLACES["dummy"](RANDOM, reset_fn=reset_fn, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset()
    with (
        envpool_py.replay(tmp_path / "run", RANDOM) as again,
        pytest.raises(ReplayError, match="env 0, episode 0; pass reset_fn to replay"),
    ):
        next(again)
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", RANDOM, reset_fn=reset_fn)))


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_attributes_calls_and_seeds_are_done_again(place: str, tmp_path: Path) -> None:
    fns = [functools.partial(ScaledEnv, tag) for tag in range(3)]
    with PLACES[place](fns, record=tmp_path / "run") as pool:
        log = Log(pool)
        pool.seed(3)
        log.reset()
        pool.set_env_attr("scale", 5.0, [1])
        log.step([1, 1, 1])
        pool.call("draw", 3, id=[2])
        with pytest.raises(AttributeError):
            pool.call("nothing")
        log.step([1, 1, 1])
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", fns)))


class ScaledEnv(envs.RandomEnv):
    """Has an attribute and a method by which the pool changes what comes next."""

    scale = 1.0

    def draw(self, times: int) -> None:
        self.np_random.random(times)

    def step(self, action: Any) -> tuple:
        return super().step(action * self.scale)


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
        log = Log(pool)
        log.reset(seed=7)
        drive(log, 20, lambda i: i, resets=False)
    fns = [functools.partial(make, tag) for tag in range(3)]
    again = list(envpool_py.replay(tmp_path / "run", fns, env_ids=[1]))
    assert made == [1]
    rows = [(b, k) for b in log.batches for k, info in enumerate(b[4]) if info["env_id"] == 1]
    assert len(rows) == len(again)
    for (batch, k), one in zip(rows, again, strict=True):
        assert same(tuple(part[[k]] for part in batch), one)


def test_until_leaves_the_pool_open(tmp_path: Path) -> None:
    with PLACES["dummy"](RANDOM, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=7)
        drive(log, 10, lambda i: i, resets=True)
    with envpool_py.replay(tmp_path / "run", RANDOM, until=4) as again:
        assert same(log.batches[:4], list(again))
        assert not again.pool.is_closed
        assert again.pool.get_env_attr("tag") == [0, 1, 2]
        again.until = None
        assert same(log.batches[4:], list(again))


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


def agree(run: list[Any], again: list[Any]) -> bool:
    assert len(run) == len(again)
    for one, other in zip(run, again, strict=True):
        if isinstance(one, EnvError):
            assert str(one).splitlines()[0] == str(other).splitlines()[0]
            assert one.env_ids == other.env_ids
            assert [type(one).__name__, *map(str, type(one).__mro__[1:])] == [
                type(other).__name__,
                *map(str, type(other).__mro__[1:]),
            ]
        else:
            assert same(one, other)
    return True


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_an_exception_is_raised_again(place: str, tmp_path: Path) -> None:
    with PLACES[place](FAULTY, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        log.step(["", "", ""])
        with pytest.raises(ValueError, match="env 1: step raised ValueError: boom") as caught:
            log.step(["", "value", "os"])
        log.batches.append(caught.value)
        log.recv()
        log.reset([1, 2])
        log.step(["", "", ""])
        with pytest.raises(EnvError) as caught:
            log.reset([0], options={"fault": "slot"})
        log.batches.append(caught.value)
    again = outcomes(envpool_py.replay(tmp_path / "run", FAULTY))
    assert agree(log.batches, again)
    assert again[2].env_ids == (1, 2)
    one = outcomes(envpool_py.replay(tmp_path / "run", FAULTY, env_ids=2))
    assert isinstance(one[2], FileNotFoundError)
    assert str(one[2]).startswith("env 2: step raised FileNotFoundError")


@pytest.mark.parametrize(
    ("place", "death"),
    [("shmem-fork-packed", "SIGKILL"), ("shmem-fork", "os._exit"), ("subproc-fork", "SIGSEGV")],
)
def test_a_death_is_raised_and_not_carried_out_again(
    place: str, death: str, tmp_path: Path
) -> None:
    with PLACES[place](FAULTY, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        with pytest.raises(WorkerDiedError) as caught:
            log.step(["", death, ""])
        log.batches.append(caught.value)
        if pool.waiting_id:
            log.recv()
        pool.restart([1])
        log.reset()
        log.step(["", "", ""])
    assert agree(log.batches, outcomes(envpool_py.replay(tmp_path / "run", FAULTY)))
    again = outcomes(
        envpool_py.replay(tmp_path / "run", FAULTY, backend="shmem", context="fork", deaths=True)
    )
    assert isinstance(again[1], WorkerDiedError)
    assert caught.value.message.splitlines()[0].partition(";")[0] in str(again[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["restart", "replay"])
@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_a_run_with_restarts_comes_again(
    place: str, on_error: str, mode: str | None, tmp_path: Path
) -> None:
    options = {"on_error": on_error, "restart_backoff": 0.0, "record": tmp_path / "run"}
    with PLACES[place](FAULTY, autoreset_mode=mode, **options) as pool:
        log = Log(pool)
        log.reset(seed=1)
        faults = {2: "value", 4: "os", 9: "slot"}
        if place != "dummy":
            faults |= {6: "SIGKILL", 12: "os._exit"}
        for n in range(16):
            batch = log.step(["", faults.get(n, ""), ""])
            ended = np.flatnonzero(batch[2] | batch[3])
            if mode is None and len(ended):
                log.reset(ended)
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", FAULTY)))


@pytest.mark.parametrize("place", EACH)
def test_a_cancelled_step(place: str, tmp_path: Path) -> None:
    with PLACES[place](RANDOM, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        pool.send([1, 2, 3])
        pool.cancel([1])
        log.recv()
        log.reset([1])  # goes on with the stream, which the step has moved or not
        log.step([1, 1, 1])
    assert same(log.batches, list(envpool_py.replay(tmp_path / "run", RANDOM)))


def died(log: Log, i: int) -> bool:
    try:
        log.reset([i])
    except WorkerDiedError:
        return True
    return False


def test_a_cancelled_step_that_killed_its_process(tmp_path: Path) -> None:
    with PLACES["shmem-fork-packed"](FAULTY, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        pool.send(["SIGKILL"], [1])
        pool.cancel([1])
        while not died(log, 1):  # whenever it is that the death is seen
            pass
        pool.restart([1])
        ids = pool.ready_id
        log.reset(ids)
    again = outcomes(envpool_py.replay(tmp_path / "run", FAULTY))
    assert same([log.batches[0], log.batches[-1]], [again[0], again[-1]])


def test_a_death_does_not_end_the_other_envs_of_its_process(tmp_path: Path) -> None:
    with PLACES["shmem-fork"](FAULTY, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        with pytest.raises(WorkerDiedError) as caught:
            log.step(["", "SIGKILL", ""])
        log.batches.append(caught.value)
        log.recv()
        log.step(["", ""], [0, 2])
        pool.restart([1])
        log.reset([1])
        log.step(["", "", ""])
    again = envpool_py.replay(
        tmp_path / "run", FAULTY, backend="shmem", context="fork", num_processes=1
    )
    assert agree(log.batches, outcomes(again))


@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_what_was_never_carried_out_is_not_carried_out_now(backend: str, tmp_path: Path) -> None:
    with envpool_py.DummyVectorEnv(RANDOM, record=tmp_path / "run") as pool:
        log = Log(pool)
        log.reset(seed=1)
        pool.send([0, 0], [0, 1])
        pool.cancel([1])
        log.recv()
        log.reset([1])
        log.step([0, 0, 0])
    options = {} if backend == "dummy" else {"context": "fork"}
    again = envpool_py.replay(tmp_path / "run", RANDOM, backend=backend, **options)
    assert same(log.batches, outcomes(again))


class Mortal(envs.RandomEnv):
    """Its first reset, or third step, ends its process, once; every other step ends its episode."""

    def __init__(self, when: str, mark: str) -> None:
        super().__init__(0)
        self.when, self.mark, self.taken = when, mark, 0

    def die(self) -> None:
        if not os.path.exists(self.mark):  # noqa: PTH110
            pathlib.Path(self.mark).touch()
            os._exit(3)

    def reset(self, **kwargs: Any) -> Any:
        if self.when == "reset":
            self.die()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.when == "step" and self.taken == 3:
            self.die()
        obs, reward, _, _, info = super().step(action)
        return obs, reward, True, False, info


@pytest.mark.parametrize("when", ["reset", "step"])
@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_episode_seeds_go_on_behind_a_death(backend: str, when: str, tmp_path: Path) -> None:
    fns = [functools.partial(Mortal, when, str(tmp_path / "mark"))]
    with PLACES["shmem-fork"](
        fns,
        record=tmp_path / "run",
        episode_seeds=True,
        on_error="restart",
        autoreset_mode="same_step",
    ) as pool:
        log = Log(pool)
        log.reset()
        for _ in range(5):
            log.step([0])
    assert (tmp_path / "mark").exists()
    options = {} if backend == "dummy" else {"context": "fork"}
    again = envpool_py.replay(tmp_path / "run", fns, backend=backend, **options)
    assert same(log.batches, outcomes(again))


# -------------------------------------------------------------------------------------- differing


class Drifting(envs.CountEnv):
    """Changes what it says from one construction to the next."""

    def __init__(self, tag: int, drift: dict[str, int]) -> None:
        super().__init__(tag)
        self.drift = drift

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        here = (self.episode, self.t) == (1, 2)
        if here and self.drift.get("raise"):
            message = "drift"
            raise KeyError(message)
        obs = obs + here * self.drift.get("obs", 0)
        reward += here * self.drift.get("reward", 0)
        return obs, reward, terminated, truncated or (here and bool(self.drift.get("flag"))), info


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("obs", r"obs is array\(\[1, 1, 2\]\) of digest|obs is array"),
        ("reward", r"reward is 1103.0, was 1102.0"),
        ("flag", r"\(terminated, truncated\) is \(False, True\), was \(False, False\)"),
        ("raise", r"step raised KeyError: 'drift'; in the run it did not"),
    ],
)
def test_what_differs_is_named(what: str, text: str, tmp_path: Path) -> None:
    drift: dict[str, int] = {}
    fns = [functools.partial(Drifting, tag, drift if tag == 1 else {}) for tag in range(3)]
    with PLACES["dummy"](fns, record=tmp_path / "run", autoreset_mode="next_step") as pool:
        pool.reset(seed=1)
        for _ in range(9):
            pool.step([0, 0, 0])
    drift[what] = 1
    with (
        envpool_py.replay(tmp_path / "run", fns) as again,
        pytest.raises(ReplayError, match=rf"^env 1: episode 1, step 2: ({text})") as caught,
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
        (
            {"env_fns": FAULTY},
            ValueError,
            r"observations: these envs have .*\(3,\) and dtype int64",
        ),
        ({"backend": "ray"}, ValueError, "backend must be a pool class or one of dummy"),
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
