"""Pools of actors take the options that all others take, or refuse them."""

import functools

import gymnasium as gym
import numpy as np
import pytest

from envpool_py import ParallelVectorEnv, RayVectorEnv, make
from tests.pettingzoo.envs import MeadowEnv
from tests.support import doors
from tests.support.doors import RAY, Door

CART = "CartPole-v1"
FNS = [functools.partial(gym.make, CART)] * 2
DOORS = {
    "RayVectorEnv": Door(functools.partial(RayVectorEnv, FNS, num_cpus=0.01), RAY),
    "make": Door(functools.partial(make, CART, 2, backend="ray", num_cpus=0.01), RAY),
    "ParallelVectorEnv": Door(
        functools.partial(ParallelVectorEnv, [MeadowEnv] * 2, "ray", num_cpus=0.01),
        RAY | {"columns", "reset_first"},
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_each_option_works_or_is_refused(door, tmp_path):
    # Others are tested with pools that start more quickly, or with the first of these.
    names = doors.OPTIONS if door == "RayVectorEnv" else DOORS[door].refuses
    doors.check_options(DOORS[door], tmp_path, names)
    doors.check_foreign(DOORS[door])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"num_processes": np.int64(2)}, 2),
        ({"num_processes": 9}, 3),
        ({"num_processes": None}, 3),
        ({"envs_per_actor": 2}, 2),
        ({"num_cpus": 1.5}, 2),  # as many as there is room for
        ({}, 3),
    ],
)
@pytest.mark.parametrize(
    "door",
    [
        functools.partial(RayVectorEnv, FNS[:1] * 3),
        functools.partial(make, CART, 3, backend="ray"),
    ],
)
def test_the_number_of_actors(options, count, door):
    with door(**{"num_cpus": 0.01, **options}) as pool:
        assert f"num_actors={count}" in repr(pool)
        sizes = {len(host.ids) for host in pool.engine.hosts.all}
        assert sizes <= {3 // count, -(-3 // count)}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_processes": 2, "envs_per_actor": 3}, TypeError, "are the same option"),
        ({"num_processes": 0}, ValueError, "num_processes must be 1 or more, got 0"),
        ({"envs_per_actor": 0}, ValueError, "envs_per_actor must be 1 or more, or 'auto'"),
        ({"envs_per_actor": "many"}, ValueError, "envs_per_actor must be 1 or more, or 'auto'"),
        ({"num_cpus": "two"}, TypeError, "num_cpus must be a number, got 'two'"),
        ({"num_gpus": float("nan")}, ValueError, "num_gpus must be 0 or more, got nan"),
        ({"resources": ["a"]}, TypeError, r"resources must be a dict of numbers, got \['a'\]"),
        ({"resources": {"a": -1}}, ValueError, "resources: a must be 0 or more, got -1"),
        ({"num_cpu": 2}, TypeError, r"does not take num_cpu; did you mean num_cpus\?"),
        ({"num_cpus": 5}, UserWarning, r"room for 0 of \d actors now, .*; pass a smaller num_pr"),
    ],
)
@pytest.mark.parametrize("door", ["RayVectorEnv", "make"])
def test_wrong_options(options, error, text, door):
    with pytest.raises(error, match=text):
        DOORS[door].make(**options)
