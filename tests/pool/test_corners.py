"""Corners that users come to: what goes wrong at the edge of a call, and what must not."""

from __future__ import annotations

import errno
import functools
import gc
import os
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import DummyVectorEnv, EnvError, ShmemVectorEnv, SubprocVectorEnv, shm
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, PROCESSES
from tests.support.reference import same

FNS = [functools.partial(envs.CountEnv, tag) for tag in range(3)]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("place", BACKENDS)
def test_final_observations_that_are_objects_in_part_fit_their_space(
    place: str, columns: bool
) -> None:
    vector = gym.spaces.Box(-1, 99, (2,), np.float32)
    make = functools.partial(
        envs.ChangedEnv,
        length=1,
        step=lambda _, a, row: ({"vector": [0.5] * (2 + a), "text": "over"}, *row[1:]),
        reset=lambda _, row: ({"vector": [0, 0], "text": "begun"}, row[1]),
        space=gym.spaces.Dict({"vector": vector, "text": gym.spaces.Text(9)}),
    )
    with PLACES[place]([make], autoreset_mode="same_step", columns=columns) as pool:
        pool.reset()
        final = pool.step([0])[4][0]["final_obs"]
        assert same(final, {"vector": np.full(2, 0.5, np.float32), "text": "over"})
        with pytest.raises(EnvError, match=r"vector.*has shape \(3,\)"):
            pool.step([1])


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", BACKENDS)
def test_an_env_may_use_our_words_in_its_info(place: str, mode: str | None) -> None:
    own = {"final_obs": "mine", "is_reset": True, "env_id": "mine"}
    make = functools.partial(envs.ChangedEnv, step=lambda env, action, row: (*row[:4], own))  # noqa: ARG005
    with PLACES[place]([make], autoreset_mode=mode) as pool:
        pool.reset()
        info = pool.step([0])[4][0]
        assert info == {"final_obs": "mine", "is_reset": True, "env_id": 0}  # that one is ours


@pytest.mark.parametrize("place", BACKENDS)
def test_a_timeout_may_be_endless(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        for timeout in (float("inf"), 1e8):
            pool.timeout = timeout
            assert len(pool.step([0, 0, 0])[0]) == 3


@pytest.mark.parametrize("place", PROCESSES)
def test_a_forked_copy_says_that_it_is_one(place: str) -> None:
    with PLACES[place](FNS) as pool:
        pool.reset()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                pool.step([0, 0, 0])
            except RuntimeError as error:
                code = 0 if "was made in process" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert pool.reset()[0].shape == (3, 3)


def test_an_unclosed_pool_is_closed_where_warnings_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: unraisable.append(str(it.exc_value)))
    pool = ShmemVectorEnv(FNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del pool
        gc.collect()
    assert unraisable == ["unclosed ShmemVectorEnv"]  # and no process is left: see conftest


def test_a_seed_of_reset_fn_may_be_numpys() -> None:
    with DummyVectorEnv(FNS[:1], reset_fn=lambda i, k: (np.int64(5 + i + k), None)) as pool:
        assert pool.reset()[1][0]["seed"] == 5
        assert pool.reset()[1][0]["seed"] == 6


def test_an_unpicklable_action_is_named_by_its_env() -> None:
    fns = [functools.partial(envs.FaultEnv, tag) for tag in range(3)]
    with SubprocVectorEnv(fns, num_processes=1) as pool:
        pool.reset()
        with pytest.raises(TypeError, match="env 2: the arguments of step cannot be pickled"):
            pool.step(["", "", (i for i in range(3))])
        assert pool.step([""] * 3)[0][:, 2].tolist() == [1, 1, 1]


def test_a_refused_memfd_is_replaced_by_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EPERM, "seccomp")

    monkeypatch.setattr(shm.os, "memfd_create", refused)
    with ShmemVectorEnv(FNS) as pool:
        assert pool.reset()[0][:, 0].tolist() == [0, 1, 2]
