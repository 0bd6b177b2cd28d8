"""Bad input: a clear exception, before anything is stepped, and the pool goes on working."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import BaseVectorEnv, DummyVectorEnv, EnvError, ShmemVectorEnv, SubprocVectorEnv
from tests.support import envs
from tests.support.helpers import ROOT, no_process_left
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, check_reset

NUM = 3
FNS = [functools.partial(envs.CountEnv, tag, 50) for tag in range(NUM)]
SPACE = envs.CountEnv().observation_space


def unharmed(pool: BaseVectorEnv, counts: list[tuple[int, int]]) -> None:
    """Assert that nothing has been stepped or reset since `counts`, and that the pool works."""
    assert list(pool.waiting_id) == []
    assert pool.call("counts") == counts
    obs, info = pool.reset()
    assert obs[:, 0].tolist() == [0, 1, 2]
    assert [row["env_id"] for row in info] == [0, 1, 2]
    obs = pool.step([2, 2, 2])[0]
    assert obs[:, 2].tolist() == [1, 1, 1]


@pytest.fixture(params=QUICK)
def pool(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    with PLACES[request.param](FNS) as pool:
        pool.reset()
        yield pool


# ------------------------------------------------- what is sent; see `tests/unit` for every form


@pytest.mark.parametrize("actions", [[1, 2], np.zeros(4, np.int64), 5, [1, 2.5, 1], [object()] * 3])
def test_wrong_actions(pool: BaseVectorEnv, actions: Any) -> None:
    counts = pool.call("counts")
    for call in (pool.step, pool.send):
        with pytest.raises((TypeError, ValueError), match="action"):
            call(actions)
    with pytest.raises(ValueError, match="got 1 actions for 2 envs"):
        pool.step([1], [0, 2])
    unharmed(pool, counts)


@pytest.mark.parametrize(("name", "text"), [("box-float32", "shape"), ("nested", "env 1: action")])
@pytest.mark.parametrize("place", QUICK)
def test_wrong_actions_of_arrays_and_trees(place: str, name: str, text: str) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, name, 50) for tag in range(2)]
    good = [envs.draw(fns[0]().action_space, np.random.default_rng(i)) for i in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises((ValueError, TypeError), match=text):
            pool.step([good[0], 7])
        assert pool.call("counts") == [(0, 1)] * 2
        assert len(pool.step(good)[1]) == 2


def test_no_actions_in_a_synchronous_pool(pool: BaseVectorEnv) -> None:
    counts = pool.call("counts")
    with pytest.raises(ValueError, match="no env is in flight"):
        pool.step(None)
    unharmed(pool, counts)


def test_wrong_seeds_and_options(pool: BaseVectorEnv) -> None:
    counts = pool.call("counts")
    for seed, kind, text in (
        ([1, 2], ValueError, "got 2 seeds for 3 envs"),
        ([1, 2.5, 3], TypeError, r"env 1.*2\.5"),
        (-1, ValueError, "-1"),
    ):
        for call in (pool.reset, pool.send_reset, pool.seed):
            with pytest.raises(kind, match=text):
                call(seed=seed)
    for options, kind in (([{}, {}], ValueError), ([{}, 3, {}], TypeError), ("fast", TypeError)):
        for call in (pool.reset, pool.send_reset):
            with pytest.raises(kind, match="options"):
                call(options=options)
    unharmed(pool, counts)


# ------------------------------------------------------------------------- construction

WRONG: list[tuple[dict[str, Any], Any, str]] = [
    ({"wait_num": 4}, ValueError, r"wait_num.*4"),
    ({"timeout": 0}, ValueError, r"timeout.*0"),
    ({"colour": "red"}, TypeError, r"colour"),
    ({"autoreset_mode": "sometimes"}, ValueError, r"sometimes"),
    ({"validate": True}, ValueError, "validate"),
    ({"reset_fn": 5}, TypeError, r"reset_fn"),
]
WRONG_PROCESSES: list[tuple[dict[str, Any], Any, str]] = [
    ({"context": "thread"}, ValueError, r"thread"),
    ({"context": 5}, TypeError, r"context.*5|5"),
    ({"num_processes": 0}, ValueError, r"num_processes.*0"),
]
POOLS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


@pytest.mark.parametrize("kind", POOLS)
def test_wrong_arguments_of_the_constructor(kind: str) -> None:
    built: list[int] = []
    env_fns = [functools.partial(built.append, 1)] * 3
    for options, error, text in [*WRONG, *WRONG_PROCESSES]:
        if kind == "dummy" and (options, error, text) in WRONG_PROCESSES:
            error, text = TypeError, next(iter(options))  # noqa: PLW2901
        with no_process_left(), pytest.raises(error, match=text):
            POOLS[kind](env_fns, **options)
    assert built == []
    with no_process_left(), pytest.raises(TypeError, match="env 1: env_fn must be callable"):
        POOLS[kind]([*env_fns, "CartPole-v1"][2:])


@pytest.mark.parametrize("place", ["dummy", "shmem-fork-packed"])
def test_two_env_fns_that_return_one_instance(place: str) -> None:
    env = envs.CountEnv()

    def shared() -> gym.Env:
        return env

    # Under fork, envs 0 and 1 are the same instance only where they share a process.
    options = {} if place == "dummy" else {"num_processes": 1}
    place_options = {**PLACES[place].options, **options}
    text = r"env 1.*env 0|envs 0.*1"
    with no_process_left(), pytest.raises((ValueError, EnvError), match=text):
        PLACES[place].pool([shared, shared, envs.CountEnv], **place_options)


class OtherSpaceEnv(envs.CountEnv):
    """Env 2 has another space than the others, of the name given."""

    def __init__(self, tag: int, which: str) -> None:
        super().__init__(tag)
        self.observation_space = self.action_space = envs.box("float32")
        if tag == 2:
            setattr(self, which, envs.box("float64"))


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("place", BACKENDS)
def test_envs_whose_spaces_differ(place: str, which: str) -> None:
    fns = [functools.partial(OtherSpaceEnv, tag, which) for tag in range(3)]
    text = rf"env 2.*{which}|{which}.*env 2"
    with no_process_left(), pytest.raises((ValueError, EnvError), match=text):
        PLACES[place](fns)


class LowerBoundEnv(envs.CountEnv):
    """Its observation space has the shape and dtype of the others, and bounds of its own."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.observation_space = gym.spaces.Box(-1 - tag, 10**6, (3,), np.int64)
        self.action_space = gym.spaces.Discrete(100 + tag)


@pytest.mark.parametrize("place", BACKENDS)
def test_spaces_may_differ_in_their_bounds(place: str) -> None:
    fns = [functools.partial(LowerBoundEnv, tag) for tag in range(3)]
    hand = HandStepped(fns)
    with PLACES[place](fns) as pool:
        assert pool.observation_space == [env.observation_space for env in hand.envs]
        assert pool.action_space == [env.action_space for env in hand.envs]
        check_reset(pool.reset(), hand.reset(), SPACE)


@pytest.mark.parametrize("make", [envs.NoResetEnv, envs.NoStepEnv, envs.return_none, int])
@pytest.mark.parametrize("place", BACKENDS)
def test_what_is_no_env(place: str, make: Callable[[], Any]) -> None:
    text = r"env 1: env_fn .*(reset|step)"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        PLACES[place]([envs.CountEnv, make])
    assert isinstance(caught.value, TypeError)
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("name", ["wait_num", "timeout"])
@pytest.mark.parametrize("value", [0, -1, "2"])
def test_wrong_values_may_not_be_set_later(pool: BaseVectorEnv, name: str, value: Any) -> None:
    before = getattr(pool, name)
    with pytest.raises((ValueError, TypeError), match=name):
        setattr(pool, name, value)
    if name == "wait_num":
        with pytest.raises(ValueError, match=r"wait_num.*4"):
            pool.wait_num = 4
    assert getattr(pool, name) == before
    unharmed(pool, pool.call("counts"))


# ------------------------------ what resets return; see test_rows_change.py for that of steps


RESETS: dict[str, Callable[[np.ndarray, dict], Any]] = {
    "obs alone": lambda obs, info: obs,  # noqa: ARG005
    "info list": lambda obs, info: (obs, [info]),
    "info None": lambda obs, info: (obs, None),  # noqa: ARG005
    "three": lambda obs, info: (obs, info, None),
    "nothing": lambda obs, info: None,  # noqa: ARG005
    "obs short": lambda obs, info: (obs[:2], info),
    "obs fraction": lambda obs, info: (obs + 0.5, info),
}


@pytest.mark.parametrize("name", RESETS)
@pytest.mark.parametrize("place", BACKENDS)
def test_a_spoilt_reset_is_the_error_of_its_env(place: str, name: str) -> None:
    def reset(_: Any, row: tuple) -> Any:
        return RESETS[name](*row) if row[1]["options"] else row

    fns = [functools.partial(envs.ChangedEnv, tag, reset=reset) for tag in range(3)]
    with PLACES[place](fns) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 1: reset raised ") as caught:
            pool.reset([0, 1], options=[None, {"spoil": True}])
        assert caught.value.env_ids == (1,)
        assert caught.value.request == "reset"
        with pytest.raises(ResetNeeded, match="env 1"):
            pool.step([2], [1])
        pool.drain()
        obs, _ = pool.reset()
        assert obs[:, 0].tolist() == [0, 1, 2]
        assert pool.step([2, 2, 2])[0][:, 2].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------------------- order


@pytest.mark.parametrize("place", QUICK)
def test_a_step_before_the_first_reset(place: str) -> None:
    with PLACES[place](FNS) as pool:
        with pytest.raises(ResetNeeded, match=r"env.* 0"):
            pool.step([2, 2, 2])
        pool.reset([1])
        with pytest.raises(ResetNeeded, match=r"env.* 2"):
            pool.step([2, 2], [1, 2])
        with pytest.raises(ResetNeeded, match=r"env.* 0"):
            pool.send([2], [0])
        assert pool.call("counts") == [(0, 0), (0, 1), (0, 0)]
        assert pool.step([2], [1])[0].tolist() == [[1, 0, 1]]
        pool.seed(4)  # counts as a reset
        assert pool.step([2, 2, 2])[0][:, 2].tolist() == [1, 1, 1]


USES: dict[str, Callable[[BaseVectorEnv], Any]] = {
    "reset": lambda pool: pool.reset(),
    "step": lambda pool: pool.step([2, 2, 2]),
    "fetch": lambda pool: pool.step(None),
    "send": lambda pool: pool.send([2, 2, 2]),
    "recv": lambda pool: pool.recv(),
    "send_reset": lambda pool: pool.send_reset(),
    "drain": lambda pool: pool.drain(),
    "seed": lambda pool: pool.seed(3),
    "get_env_attr": lambda pool: pool.get_env_attr("tag"),
    "set_env_attr": lambda pool: pool.set_env_attr("tag", 3),
    "call": lambda pool: pool.call("counts"),
    "render": lambda pool: pool.render(),
    "enter": lambda pool: pool.__enter__(),
}


@pytest.mark.parametrize("place", BACKENDS)
def test_use_after_close(place: str) -> None:
    pool = PLACES[place](FNS)
    pool.reset()
    pool.close()
    for use in USES.values():
        with pytest.raises(ClosedEnvironmentError, match=rf"{type(pool).__name__}.*closed"):
            use(pool)
    assert pool.is_closed
    assert len(pool) == pool.env_num == 3
    assert pool.observation_space[0] == SPACE
    assert "closed" in repr(pool)


# ----------------------------------------------------------------------- start methods


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_env_fn_that_cannot_be_pickled(context: str) -> None:
    lock = threading.Lock()

    def make() -> gym.Env:
        with lock:
            return envs.CountEnv()

    text = r"env 1: env_fn cannot be pickled: .*lock"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        ShmemVectorEnv([envs.CountEnv, make], context=context)
    assert caught.value.env_ids == (1,)


def test_under_fork_env_fns_are_not_pickled() -> None:
    lock = threading.Lock()

    def make() -> gym.Env:
        with lock:
            return envs.CountEnv(7)

    with ShmemVectorEnv([make, make], context="fork") as pool:
        assert pool.reset()[0][:, 0].tolist() == [7, 7]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_closures_and_lambdas_reach_every_start_method(context: str) -> None:
    level = 3

    class LocalEnv(envs.CountEnv):
        def observe(self) -> np.ndarray:
            return np.array([level, self.episode, self.t])

    with SubprocVectorEnv([lambda: LocalEnv(0)], context=context) as pool:
        assert pool.reset()[0].tolist() == [[3, 0, 0]]


UNGUARDED = """
    from gymnasium.envs.classic_control import CartPoleEnv

    import envpool_py

    pool = envpool_py.{pool}([CartPoleEnv] * 2, context="{context}")
    print(pool.reset()[0].shape)
    pool.close()
"""
GUARDED = """
    from gymnasium.envs.classic_control import CartPoleEnv

    import envpool_py

    if __name__ == "__main__":
        with envpool_py.{pool}([CartPoleEnv] * 2, context="{context}") as pool:
            print(pool.reset()[0].shape)
"""


def run_script(path: Path, text: str, **names: str) -> subprocess.CompletedProcess:
    path.write_text(textwrap.dedent(text).format(**names))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_no_main_guard(tmp_path: Path, context: str) -> None:
    names = {"pool": "ShmemVectorEnv", "context": context}
    done = run_script(tmp_path / "unguarded.py", UNGUARDED, **names)
    assert done.returncode == 1
    text = r"WorkerDiedError: env [01]: the worker process exited with code 1"  # both do
    assert re.search(text, done.stderr)
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_a_main_guard(tmp_path: Path, context: str) -> None:
    names = {"pool": "SubprocVectorEnv", "context": context}
    done = run_script(tmp_path / "guarded.py", GUARDED, **names)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(2, 4)\n", "")
