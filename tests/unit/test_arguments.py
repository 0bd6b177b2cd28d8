"""The arguments of pools: what each form of ids, seeds and options means, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envpool_py import env_ids, seeding
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


def of_three(ids):
    return env_ids.resolve(ids, 3)


def of_4_and_7(seed):
    return seeding.per_env(seed, [4, 7])


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
    (of_three, ([0, 7],), IndexError, "env id 7 is out of range: this pool has envs 0 to 2"),
    (of_three, (-1,), IndexError, "env id -1 is out of range"),
    (of_three, (np.array([2, 0, 2], np.int8),), ValueError, "env id 2 is given twice"),
    (of_three, ([1, np.int64(1)],), ValueError, "env id 1 is given twice"),
    (of_three, ("1",), TypeError, "must be integers, got '1'"),
    (of_three, (np.array([0.5]),), TypeError, r"must be integers, got array\(\[0\.5"),
    (of_three, (True,), TypeError, "must be integers, got True"),
    (of_three, ([[0], [1]],), TypeError, r"must be one-dimensional, got shape \(2, 1\)"),
    (of_three, (np.ones(4, bool),), IndexError, "mask has 4 entries, but the pool has 3 envs"),
    (of_4_and_7, (np.array([1, 2, 3]),), ValueError, "got 3 seeds for 2 envs"),
    (of_4_and_7, (1.5,), TypeError, r"got float 1\.5"),
    (of_4_and_7, (True,), TypeError, "got bool True"),
    (of_4_and_7, ([1, "c"],), TypeError, "env 7: .*got str 'c'"),
    (of_4_and_7, (-1,), ValueError, "must be 0 or more, got -1"),
    (of_4_and_7, ([0, -5],), ValueError, "env 7: .*got -5"),
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


# What a user may write for four envs, and the ids it means, in order; `tests/support/session.py`
# writes them in the usual forms.
IDS = [
    (None, [0, 1, 2, 3]),
    (2, [2]),
    ([np.int64(1), np.int16(0)], [1, 0]),
    (range(1, 3), [1, 2]),
    (np.array([3, 1], np.uint8), [3, 1]),
    (np.array([2, 1]), [2, 1]),
    (np.array([True, False, False, True]), [0, 3]),
    (slice(None, None, -2), [3, 1]),
    (slice(2, 99), [2, 3]),
    ([], []),
]


@pytest.mark.parametrize(("written", "meant"), IDS)
def test_forms_of_ids(written, meant):
    found = env_ids.resolve(written, 4)
    assert found.dtype == np.intp
    assert found.tolist() == meant
    assert not np.shares_memory(found, written), "it is the caller's to change"


# What a user may write for envs 0 to 3, and the seeds it means.
SEEDS = [
    (None, [None] * 4),
    (5, [5, 6, 7, 8]),
    (np.array(5), [5, 6, 7, 8]),
    (np.uint8(254), [254, 255, 256, 257]),
    (range(4), [0, 1, 2, 3]),
    (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
    ([np.int64(4), np.uint8(3), None, 1], [4, 3, None, 1]),
]


@pytest.mark.parametrize(("written", "meant"), SEEDS)
def test_forms_of_seeds(written, meant):
    found = seeding.per_env(written, [0, 1, 2, 3])
    assert found == meant
    assert {type(seed) for seed in found} <= {int, type(None)}
    if np.ndim(written) == 0:  # one for all: seed + env_id, for subsets too
        assert seeding.per_env(written, [3, 1]) == [meant[3], meant[1]]


def test_a_seed_sequence():
    sequence = np.random.SeedSequence(5)
    children = [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(5).spawn(4)]
    assert seeding.per_env(sequence, [2, 0]) == [children[2], children[0]]
    assert len({*children, *seeding.per_env(sequence.spawn(2)[1], [0, 1])}) == 6
    assert seeding.per_env([sequence, 3], [0, 1]) == [int(sequence.generate_state(1)[0]), 3]


def test_seeds_of_episodes():
    words = [np.random.SeedSequence(7, spawn_key=(k,)).generate_state(1)[0] for k in range(1, 50)]
    assert [seeding.of_episode(7, k) for k in range(50)] == [7, *words]
