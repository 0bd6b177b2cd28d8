"""Bad input: a clear exception, before anything is stepped, and the pool goes on working."""

from __future__ import annotations

import functools
import operator
import re
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from envpool_py import BaseVectorEnv, DummyVectorEnv, EnvError, ShmemVectorEnv, SubprocVectorEnv
from tests.faults.helpers import run_script
from tests.support import envs
from tests.support.helpers import no_process_left
from tests.support.places import BACKENDS, PLACES
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


@pytest.fixture(params=BACKENDS)
def pool(request: pytest.FixtureRequest) -> Iterator[BaseVectorEnv]:
    with PLACES[request.param](FNS) as pool:
        pool.reset()
        yield pool


# ------------------------------------------------- what is sent; see `tests/unit` for every form


def test_wrong_actions_seeds_and_options(pool: BaseVectorEnv) -> None:
    counts = pool.call("counts")
    for actions in ([1, 2], np.zeros(4, np.int64), 5, [1, 2.5, 1], [object()] * 3):
        for call in (pool.step, pool.send):
            with pytest.raises((TypeError, ValueError), match="action"):
                call(actions)
    with pytest.raises(ValueError, match="got 1 actions for 2 envs"):
        pool.step([1], [0, 2])
    for call in (pool.reset, pool.send_reset, pool.seed):
        with pytest.raises(ValueError, match="got 2 seeds for 3 envs"):
            call(seed=[1, 2])
    for call in (pool.reset, pool.send_reset):
        with pytest.raises(TypeError, match="options"):
            call(options=[{}, 3, {}])
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


@pytest.mark.parametrize("place", BACKENDS)
def test_spaces_may_differ_in_their_bounds_alone(place: str) -> None:
    lower = [gym.spaces.Box(-1 - tag, 10**6, (3,), np.int64) for tag in range(3)]
    fns = [functools.partial(envs.ChangedEnv, tag, space=lower[tag]) for tag in range(3)]
    with PLACES[place](fns) as pool:
        assert pool.observation_space == lower
        check_reset(pool.reset(), HandStepped(fns).reset(), SPACE)

    def with_other_actions() -> gym.Env:
        env = envs.CountEnv(2)
        env.action_space = envs.box("float32")
        return env

    other_space = functools.partial(envs.ChangedEnv, 2, space=envs.box("int32", (3,)))
    for which, fn in (("observation_space", other_space), ("action_space", with_other_actions)):
        text = f"env 2.*{which}|{which}.*env 2"
        with no_process_left(), pytest.raises((ValueError, EnvError), match=text):
            PLACES[place]([*fns[:2], fn])


# As PettingZoo's parallel envs: the space of each agent is what a method returns.
AGENTS_ENV = type("AgentsEnv", (), dict.fromkeys(["reset", "step", "observation_space"], print))
NO_ENVS: list[tuple[Callable[[], Any], str]] = [
    (int, "which has no reset and no step"),
    (functools.partial(types.SimpleNamespace, step=print), "which has no reset"),
    (functools.partial(types.SimpleNamespace, reset=print), "which has no step"),
    (AGENTS_ENV, "whose observation_space is a method"),
]


@pytest.mark.parametrize(("make", "what"), NO_ENVS)
@pytest.mark.parametrize("place", BACKENDS)
def test_what_is_no_env(place: str, make: Callable[[], Any], what: str) -> None:
    text = f"env 1: env_fn .*{what}"
    with no_process_left(), pytest.raises(EnvError, match=text) as caught:
        PLACES[place]([envs.CountEnv, make])
    assert isinstance(caught.value, TypeError)
    assert caught.value.env_ids == (1,)


def test_wrong_values_may_not_be_set_later(pool: BaseVectorEnv) -> None:
    for name, value in (("wait_num", 0), ("wait_num", 4), ("timeout", 0), ("timeout", "2")):
        before = getattr(pool, name)
        with pytest.raises((ValueError, TypeError), match=rf"{name}.*{value}"):
            setattr(pool, name, value)
        assert getattr(pool, name) == before
    unharmed(pool, pool.call("counts"))


# ---------------------------------------------------------------------------------- order


@pytest.mark.parametrize("place", BACKENDS)
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


USES: list[Callable[[BaseVectorEnv], Any]] = [
    lambda pool: pool.step([2, 2, 2]),
    lambda pool: pool.step(None),
    lambda pool: pool.send([2, 2, 2]),
    lambda pool: pool.get_env_attr("tag"),
    lambda pool: pool.set_env_attr("tag", 3),
    lambda pool: pool.call("counts"),
    *map(operator.methodcaller, ("reset", "recv", "send_reset", "drain", "seed", "render")),
    operator.methodcaller("__enter__"),
]


@pytest.mark.parametrize("place", BACKENDS)
def test_use_after_close(place: str) -> None:
    pool = PLACES[place](FNS)
    pool.reset()
    pool.close()
    for use in USES:
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
        """Known by no import."""

    with SubprocVectorEnv([lambda: LocalEnv(level)], context=context) as pool:
        assert pool.reset()[0].tolist() == [[3, 0, 0]]


UNGUARDED = """
    import sys

    from gymnasium.envs.classic_control import CartPoleEnv

    import envpool_py

    envpool_py.ShmemVectorEnv([CartPoleEnv] * 2, context=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_no_main_guard(tmp_path: Path, context: str) -> None:
    done = run_script(tmp_path, UNGUARDED, context)
    assert done.returncode == 1
    text = r"WorkerDiedError: env [01]: the worker process exited with code 1"  # both do
    assert re.search(text, done.stderr)
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stdout == ""
