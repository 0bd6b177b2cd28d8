"""`validate`: what is looked at in a row beyond its shape and dtype, and when."""

from __future__ import annotations

import array
import fcntl
import functools
import select
import termios
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import EnvError
from tests.support import envs
from tests.support.helpers import wait_until
from tests.support.places import BACKENDS, PLACES

BOX = spaces.Box(0, 1, (2, 2), np.float32)
NAN = np.array([[0, 0], [np.nan, 0]], np.float32)
# A space, an observation that is not in it, and what is said of it (tests/unit/test_checks.py).
WRONG: dict[str, tuple[spaces.Space, Any, str]] = {
    "nan": (BOX, NAN, r"obs\[1, 0\] is nan"),
    "a dict's leaf": (
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple((BOX,))}),
        {"a": 1, "b": (BOX.high * 1.5,)},
        r"obs\['b'\]\[0\]\[0, 0\] is 1.5, but observation_space has",
    ),
    "text": (spaces.Text(3), "long text", r"obs is 'long text', which is not in observation_sp"),
}


def shows(name: str, reset: int = 99, step: int = 99) -> list[Callable[[], Any]]:
    """Return two env_fns; env 1 shows what is wrong from that reset and that step on."""
    space, wrong, _ = WRONG[name]
    good = envs.draw(space, np.random.default_rng(0))

    def on_reset(env: envs.CountEnv, row: tuple) -> tuple:
        return wrong if env.tag and env.resets >= reset else good, row[1]

    def on_step(env: envs.CountEnv, _: Any, row: tuple) -> tuple:
        return wrong if env.tag and env.steps >= step else good, *row[1:]

    make = functools.partial(envs.ChangedEnv, length=3, step=on_step, reset=on_reset, space=space)
    return [functools.partial(make, tag) for tag in range(2)]


@pytest.mark.parametrize(
    ("place", "name"), [*((place, "nan") for place in BACKENDS), ("shmem-fork-packed", "text")]
)
def test_the_first_rows_are_warned_of(place: str, name: str) -> None:
    text = f'env 1: {WRONG[name][2]}(.|\n)*; pass validate="off" to silence this'
    with PLACES[place](shows(name, reset=1)) as pool:
        with pytest.warns(UserWarning, match=text) as warned:
            obs, _ = pool.reset()
        assert len(warned) == 1
        assert len(obs) == 2  # it is taken all the same
        pool.reset()
    with PLACES[place](shows(name, step=1)) as pool:
        pool.reset()
        with pytest.warns(UserWarning, match=text) as warned:
            pool.step([0, 0])
        assert len(warned) == 1
        pool.step([0, 0])


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("place", BACKENDS)
def test_always_is_an_error_of_that_env(place: str, name: str) -> None:
    with PLACES[place](shows(name, reset=2, step=2), validate="always") as pool:
        pool.reset()
        pool.step([0, 0])
        with pytest.raises(EnvError, match=f"env 1: step raised ValueError: {WRONG[name][2]}"):
            pool.step([0, 0])
        pool.drain()
        with pytest.raises(ValueError, match=f"env 1: reset raised ValueError: {WRONG[name][2]}"):
            pool.reset()


@pytest.mark.parametrize(("validate", "since"), [("off", 1), ("first", 2)])
@pytest.mark.parametrize("place", BACKENDS)
def test_later_rows_pass_and_with_off_all(place: str, validate: str, since: int) -> None:
    with PLACES[place](shows("nan", reset=since, step=since), validate=validate) as pool:
        for n in range(1, 3):
            assert np.isnan(pool.reset()[0][1]).any() == (n >= since)
            pool.step([0, 0])
            assert np.isnan(pool.step([0, 0])[0][1]).any()


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("place", BACKENDS)
def test_automatic_resets_are_looked_at_too(place: str, mode: str) -> None:
    fns = shows("nan", reset=2)
    with PLACES[place](fns, validate="always", autoreset_mode=mode) as pool:
        pool.reset()
        for _ in range(3):
            pool.step([0, 0])
        with pytest.raises(EnvError, match=r"env 1: reset raised ValueError: obs\[1, 0\] is nan"):
            pool.step([0, 0])


def unread(fd: int) -> int:
    """The bytes that wait in a pipe."""
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return size[0]


def test_what_is_warned_of_comes_with_its_row(
    gates: list[envs.Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that row is written after the parent was woken, before it reads."""

    def late_nan(_: Any, __: Any, row: tuple) -> tuple:
        gates[1].wait()
        return row[0], float("nan"), *row[2:]

    with PLACES["shmem-fork"](
        [envs.CountEnv, functools.partial(envs.ChangedEnv, 1, step=late_nan)]
    ) as pool:
        pool.reset()
        hosts: Any = pool.engine.hosts
        channel = hosts.processes.channel
        collect = channel.collect

        def read_late(chunks: list[bytes]) -> bool:
            monkeypatch.undo()
            gates[1].release()
            select.select([hosts.of(1).stream.fd], [], [])  # the complaint is there
            wait_until(lambda: unread(channel.results) > 8, 0.3)  # its row may come by the pipe
            return collect(chunks)

        monkeypatch.setattr(channel, "collect", read_late)
        with pytest.warns(UserWarning, match="env 1: reward is nan"):
            pool.step([0, 0])


@pytest.mark.parametrize("place", BACKENDS)
def test_a_warning_that_is_made_an_error_leaves_the_pool_usable(place: str) -> None:
    with PLACES[place](shows("nan", reset=1)) as pool:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="env 1: obs"):
                pool.reset()
        pool.reset()
        pool.step([0, 0])
