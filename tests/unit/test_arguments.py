"""The arguments of a pool: what is taken, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envpool_py import arguments
from tests.support import envs

WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "wait_num 0": (lambda: arguments.check_wait_num(0, 3), ValueError, r"wait_num.*0"),
    "wait_num negative": (lambda: arguments.check_wait_num(-1, 3), ValueError, r"wait_num.*-1"),
    "wait_num too high": (lambda: arguments.check_wait_num(4, 3), ValueError, r"wait_num.*4"),
    "wait_num float": (lambda: arguments.check_wait_num(1.5, 3), TypeError, r"wait_num.*1\.5"),
    "wait_num text": (lambda: arguments.check_wait_num("2", 3), TypeError, r"wait_num.*'2'"),
    "wait_num bool": (lambda: arguments.check_wait_num(True, 3), TypeError, r"wait_num.*True"),
    "timeout 0": (lambda: arguments.check_timeout("timeout", 0), ValueError, r"timeout.*0"),
    "timeout negative": (lambda: arguments.check_timeout("t", -1.0), ValueError, r"t .*-1"),
    "timeout NaN": (lambda: arguments.check_timeout("t", np.nan), ValueError, r"t .*nan"),
    "timeout text": (lambda: arguments.check_timeout("t", "1"), TypeError, r"t .*'1'"),
    "mode": (lambda: arguments.check_autoreset_mode("sometimes"), ValueError, r"sometimes"),
    "mode number": (lambda: arguments.check_autoreset_mode(3), ValueError, r"autoreset_mode.*3"),
    "mode bool": (lambda: arguments.check_autoreset_mode(True), ValueError, "autoreset_mode"),
    "mode with a blank": (
        lambda: arguments.check_autoreset_mode("same_step "),
        ValueError,
        "autoreset_mode.*'same_step '",
    ),
    "reset_fn": (
        lambda: arguments.check_resets(5, "first", episode_seeds=False),
        TypeError,
        "reset_fn",
    ),
    "two seeders": (
        lambda: arguments.check_resets(print, "first", episode_seeds=True),
        ValueError,
        "episode_seeds and reset_fn",
    ),
    "validate": (
        lambda: arguments.check_resets(None, True, episode_seeds=False),
        ValueError,
        "validate must be 'first', 'always' or 'off', got True",
    ),
    "num_processes 0": (
        lambda: arguments.check_worker_options({"num_processes": 0}),
        ValueError,
        r"num_processes.*0",
    ),
    "num_processes float": (
        lambda: arguments.check_worker_options({"num_processes": 1.5}),
        TypeError,
        r"num_processes.*1\.5",
    ),
    "num_threads 0": (
        lambda: arguments.check_worker_options({"num_threads": 0}),
        ValueError,
        r"num_threads.*0",
    ),
    "num_threads text": (
        lambda: arguments.check_worker_options({"num_threads": "x"}),
        TypeError,
        r"num_threads.*'x'",
    ),
    "on_error": (
        lambda: arguments.check_policy("ignore", None, 0.0, None),
        ValueError,
        "on_error.*'ignore'",
    ),
    "max_restarts": (
        lambda: arguments.check_policy("restart", 0, 0.0, None),
        ValueError,
        "max_restarts.*0",
    ),
    "restart_backoff": (
        lambda: arguments.check_policy("restart", 1, -1.0, None),
        ValueError,
        "restart_backoff.*-1",
    ),
    "on_restart": (
        lambda: arguments.check_policy("restart", 1, 0.0, 5),
        TypeError,
        "on_restart.*int",
    ),
    "on_restart never called": (
        lambda: arguments.check_policy("raise", 1, 0.0, print),
        ValueError,
        "never called",
    ),
    "no env_fns": (lambda: arguments.check_env_fns(()), ValueError, "env_fns is empty"),
    "env_fns int": (lambda: arguments.check_env_fns(5), TypeError, "int"),
    "env_fns None": (lambda: arguments.check_env_fns(None), TypeError, "None"),
    "env_fns class": (lambda: arguments.check_env_fns(envs.CountEnv), TypeError, "sequence"),
    "an env": (
        lambda: arguments.check_env_fns([envs.CountEnv, envs.CountEnv()]),
        TypeError,
        "env 1: env_fn must be callable, got CountEnv; pass a callable",
    ),
    "an id": (
        lambda: arguments.check_env_fns([envs.CountEnv, "CartPole-v1"]),
        TypeError,
        "env 1: env_fn must be callable, got str",
    ),
    "options for two": (lambda: options([{}, {}]), ValueError, "got 2 options for 3 envs"),
    "options int": (lambda: options(5), TypeError, "int 5"),
    "options text": (lambda: options("fast"), TypeError, "str 'fast'"),
    "an option": (lambda: options([{}, 3, {}]), TypeError, "env 5: options.*int"),
    "spaces": (
        lambda: arguments.common_space("action_space", [gym.spaces.Discrete(2), None]),
        ValueError,
        "env 1: action_space is None, but that of env 0 is Discrete",
    ),
}


def options(given: Any) -> list[Any]:
    return arguments.reset_requests([4, 5, 6], None, given, {})


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str) -> None:
    call, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        call()


def test_what_is_taken() -> None:
    assert arguments.check_env_fns(iter([print])) == [print]
    assert arguments.check_wait_num(None, 3) == arguments.check_wait_num(np.int8(3), 3) == 3
    assert arguments.check_timeout("t", float("inf")) == float("inf")
    assert arguments.check_timeout("t", None) is None
    assert arguments.check_policy("raise", None, 0.0, None) is None
    modes = [None, "next_step", "same_step", *AutoresetMode]
    meant = {None: None, AutoresetMode.DISABLED: None}
    meant |= dict.fromkeys(["next_step", AutoresetMode.NEXT_STEP], "next_step")
    meant |= dict.fromkeys(["same_step", AutoresetMode.SAME_STEP], "same_step")
    assert [arguments.check_autoreset_mode(mode) for mode in modes] == [meant[m] for m in modes]


def test_each_reset_has_its_own_seed_and_options() -> None:
    requests = arguments.reset_requests([4, 5], [7, None], [None, {"a": 1}], {"extra": 2})
    assert [request.kwargs for request in requests] == [
        {"extra": 2, "seed": 7},
        {"extra": 2, "options": {"a": 1}},
    ]
    shared = {"a": 1}
    one, other = arguments.reset_requests([0, 1], None, shared, {})
    assert one.kwargs["options"] == shared
    assert one.kwargs["options"] is not other.kwargs["options"] is not shared


def test_the_file_of_a_record(tmp_path: Path) -> None:
    assert arguments.check_record(None) is None
    assert arguments.check_record(str(tmp_path / "new")) == tmp_path / "new"
    (tmp_path / "old").symlink_to("nowhere")
    for path, error in [(5, TypeError), (b"x", TypeError), (tmp_path / "old", FileExistsError)]:
        with pytest.raises(error, match="record"):
            arguments.check_record(path)
    with pytest.raises(FileNotFoundError, match="is no directory"):
        arguments.check_record(tmp_path / "none" / "file")
