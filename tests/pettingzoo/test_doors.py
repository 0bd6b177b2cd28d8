"""The pools of PettingZoo's envs take the options that all others take, or refuse them."""

import functools

import numpy as np
import pytest

from envpool_py.cli import main
from envpool_py.pettingzoo import ParallelVectorEnv, SB3MultiAgentVecEnv
from tests.pettingzoo.envs import GhostsEnv, MeadowEnv
from tests.support import doors
from tests.support.doors import ARRAYS, IN_PROCESS, THREADS, WHOLE, Door

DECIDED = frozenset(("columns", "reset_first"))
VEC = DECIDED | ARRAYS | WHOLE
_PARALLEL = functools.partial(ParallelVectorEnv, [MeadowEnv] * 2)
_THREADS = functools.partial(_PARALLEL, backend="thread")
_VEC = functools.partial(SB3MultiAgentVecEnv, [GhostsEnv] * 2)
_DUMMY = functools.partial(_VEC, backend="dummy")
DOORS = {
    "ParallelVectorEnv": Door(_PARALLEL, DECIDED),
    "ParallelVectorEnv, thread": Door(_THREADS, DECIDED | THREADS, own={"num_threads"}),
    "SB3MultiAgentVecEnv": Door(_VEC, VEC, "same_step"),
    "SB3MultiAgentVecEnv, dummy": Door(_DUMMY, VEC | IN_PROCESS, "same_step"),
}


@pytest.mark.parametrize("door", DOORS)
def test_each_option_works_or_is_refused(door, tmp_path):
    doors.check_options(DOORS[door], tmp_path)
    doors.check_foreign(DOORS[door])
    if not door.endswith("Env"):  # processes would start in each mode
        doors.check_spellings(DOORS[door])


@pytest.mark.parametrize("door", ["ParallelVectorEnv", "SB3MultiAgentVecEnv"])
def test_processes(door):
    for better in doors.check_mistakes(door, DOORS[door].make):
        DOORS[door].make(**better).close()
    doors.check_both_names(DOORS[door])
    doors.check_revival(DOORS[door], context="fork")


class Tagged(MeadowEnv):
    """Shows its tag in its state and in its frames."""

    def state(self):
        return np.array([self.tag, 0.0, 0.0])

    def render(self):
        return np.full((2, 2, 3), self.tag, np.uint8)


def test_ids_have_two_names():
    env_fns = [functools.partial(Tagged, tag=i) for i in range(3)]
    actions = dict.fromkeys(["hunter_0", "hunter_1", "fawn_0"], np.zeros(2, int))
    make = functools.partial(ParallelVectorEnv, env_fns, "dummy")
    assert set(doors.check_ids(make, actions)) == set(doors.TAKE_IDS)


@pytest.mark.parametrize("env", ["classic/rps-v2", "tests.pettingzoo.envs:MeadowEnv"])
def test_check_says_what_checks_an_env_of_pettingzoo(env, capsys):
    assert main(["check", env]) in (1, 2)
    said = "".join(capsys.readouterr())
    assert "an env of PettingZoo; this command takes Gymnasium's; pettingzoo.test has" in said
