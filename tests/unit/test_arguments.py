"""The arguments of a pool: what is accepted, and what is refused in which words."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envpool_py.env.common_spec import common_space
from envpool_py.options import (
    BatchOptions,
    EnvOptions,
    ProcessOptions,
    RecoveryOptions,
    check_timeout,
    split,
)
from envpool_py.pool import arguments
from tests.support.envs import CountEnv


def resets(reset_fn, validate, episode_seeds):
    EnvOptions(reset_fn=reset_fn, validate=validate, episode_seeds=episode_seeds)


def processes(name, value):
    ProcessOptions(**{name: value})


def mode(name):
    return EnvOptions(autoreset_mode=name).autoreset_mode


def options(given):
    return arguments.reset_requests([4, 5, 6], None, given, {})


WAIT, TIMEOUT, POLICY = arguments.check_wait_num, check_timeout, RecoveryOptions
ENV_FNS, SPACE = arguments.check_env_fns, common_space
TWO_SPACES = [gym.spaces.Discrete(2), None]
# What is called, its arguments, and the error.
WRONG = [
    (WAIT, (0, 3), ValueError, "wait_num.*0"),
    (WAIT, (4, 3), ValueError, "wait_num.*4"),
    (WAIT, (True, 3), TypeError, "wait_num.*True"),
    (TIMEOUT, ("timeout", np.nan), ValueError, "timeout.*nan"),
    (TIMEOUT, ("timeout", "1"), TypeError, "timeout.*'1'"),
    (mode, ("sometimes",), ValueError, "autoreset_mode.*'sometimes'"),
    (resets, (5, "first", False), TypeError, "reset_fn.*int"),
    (resets, (print, "first", True), ValueError, "episode_seeds and reset_fn"),
    (resets, (None, True, False), ValueError, "validate must be .* got True"),
    (processes, ("num_processes", 0), ValueError, "num_processes.*0"),
    (processes, ("threads_per_process", "x"), TypeError, "threads_per_process.*'x'"),
    (processes, ("step_timeout", 0), ValueError, "step_timeout.*0"),
    *((POLICY, (o, None, 0.0, None), ValueError, f"on_error.*'{o}'") for o in ("ignore", "replay")),
    (POLICY, ("restart", 0, 0.0, None), ValueError, "max_restarts.*0"),
    (POLICY, ("restart", 1, -1.0, None), ValueError, "restart_backoff.*-1"),
    (POLICY, ("restart", 1, 0.0, 5), TypeError, "on_restart.*int"),
    (POLICY, ("raise", 10, 0.0, print), ValueError, "on_restart need on_error='restart'"),
    (POLICY, ("raise", 1), ValueError, "max_restarts and on_restart need"),
    (POLICY, ("raise", None), ValueError, "max_restarts and on_restart need"),
    (ENV_FNS, ([],), ValueError, "env_fns is empty"),
    (ENV_FNS, (CountEnv,), TypeError, "env_fns must be a sequence"),
    (ENV_FNS, ([CountEnv, CountEnv()],), TypeError, "env 1: .* got CountEnv; pass a callable"),
    (SPACE, ("action_space", TWO_SPACES), ValueError, "env 1: action_space is None, but .* env 0"),
    (options, ([{}, {}],), ValueError, "got 2 options for 3 envs"),
    (options, ("fast",), TypeError, "str 'fast'"),
    (options, ([{}, 3, {}],), TypeError, "env 5: options.*int"),
]


@pytest.mark.parametrize(("check", "given", "error", "text"), WRONG)
def test_what_is_refused(check, given, error, text):
    with pytest.raises(error, match=text):
        check(*given)


def test_what_is_accepted():
    assert ENV_FNS(iter([print])) == [print]
    assert WAIT(None, 3) == WAIT(np.int8(3), 3) == 3
    assert TIMEOUT("t", float("inf")) == float("inf")
    assert TIMEOUT("t", None) is POLICY("restart", None).max_restarts is None
    assert mode(None) is mode(AutoresetMode.DISABLED) is None
    assert mode("next_step") == mode(AutoresetMode.NEXT_STEP) == "next_step"
    assert mode("same_step") == mode(AutoresetMode.SAME_STEP) == "same_step"


def test_keywords_are_split():
    options = split({"columns": True, "affinity": True})
    assert (options.pool.columns, options.process.affinity) == (True, True)
    assert options.process.given() == ["affinity"]
    assert options.env == EnvOptions()


def test_the_file_of_a_record(tmp_path):
    assert BatchOptions(record=str(tmp_path / "new")).record == str(tmp_path / "new")
    (tmp_path / "old").symlink_to("nowhere")
    for path, error in [
        *((5, TypeError), (b"x", TypeError), (tmp_path / "old", FileExistsError)),
        (tmp_path / "none" / "file", FileNotFoundError),
    ]:
        with pytest.raises(error, match="record"):
            BatchOptions(record=path)
