"""What a pool says of rows and of steps after the end: once, of all envs, with the caller's line.

`tests/unit/test_spaces.py` has what `validate` finds wrong with a row.
"""

import functools
import inspect
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import BaseVectorEnv, EnvError
from tests.backends.test_worker_contract import ThreadWorker
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK, paired


def line():
    """Return the number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno


def short(*lengths):
    return [functools.partial(envs.CountEnv, tag, length) for tag, length in enumerate(lengths)]


@pytest.mark.filterwarnings("error:.* stepped after:UserWarning")
@pytest.mark.parametrize("place", BACKENDS)
def test_a_step_after_the_end_is_warned_of_once(place):
    with PLACES[place](short(9, 2, 3, 9)) as pool:
        pool.reset()
        for _ in range(2):
            pool.step([0] * 4)
        here = line() + 2
        with pytest.warns(UserWarning, match="env 1: stepped after its episode ended") as caught:
            row = pool.step([0] * 4)
        (warning,) = caught
        assert str(warning.message).endswith('call reset(1), or pass autoreset_mode="same_step"')
        assert (warning.filename, warning.lineno) == (__file__, here)
        assert (row[0][1].tolist(), row[1][1]) == ([1, 0, 3], 1003)  # it reached the env
        pool.step([0] * 4)  # env 2 too, and env 1 again
    with PLACES[place](short(1, 9, 1), wait_num=3, timeout=60.0) as pool:
        pool.reset()
        pool.step([0] * 3)
        text = r"envs 0, 2: stepped after their episodes ended; call reset\(ids\) with these ids"
        with pytest.warns(UserWarning, match=text):
            pool.step([0] * 3)


@pytest.mark.filterwarnings("error:.* stepped after:UserWarning")
@pytest.mark.parametrize(("place", "mode"), paired(QUICK, [None, "next_step", "same_step"]))
def test_envs_that_are_reset_are_not_warned_of(place, mode):
    with PLACES[place](short(2, 3, 4), autoreset_mode=mode) as pool:
        pool.reset()
        for _ in range(7):
            _, _, terminated, truncated, _ = pool.step([0] * 3)
            if mode is None:
                pool.reset(terminated | truncated)


#: Makes an env that observes float64, from its first step on more digits than its space holds.
DIGITS = functools.partial(
    envs.ChangedEnv,
    step=lambda _env, _action, row: ({"x": row[0][:2] / 3 + 0.1}, *row[1:4], {}),
    reset=lambda _, row: ({"x": row[0][:2] / 2}, {}),
    space=spaces.Dict({"x": spaces.Box(0, 9, (2,), np.float32)}),
)


@pytest.mark.parametrize(("place", "validate"), paired(BACKENDS, ["first", "always"]))
def test_a_cast_that_loses_digits_is_warned_of_once(place, validate):
    with PLACES[place]([DIGITS] * 2, validate=validate) as pool:
        pool.reset()
        text = "envs 0 to 1: obs.* has dtype float64, but observation_space has float32: digits are"
        with pytest.warns(UserWarning, match=text):
            pool.step([0] * 2)
        pool.step([0] * 2)
    with PLACES[place]([DIGITS], validate="off") as pool:
        pool.reset()
        pool.step([0])


def test_a_custom_worker_warns_too(recwarn):
    # Recorded from here, because without the GIL a thread warns those that it was started by.
    with BaseVectorEnv(short(1), ThreadWorker) as pool:
        pool.reset()
        pool.step([0])
        assert not recwarn.list
        pool.step([0])
    assert "stepped after its episode ended" in str(recwarn.pop(UserWarning).message)


BOX = spaces.Box(0, 1, (2, 2), np.float32)
NAN = np.array([[0, 0], [np.nan, 0]], np.float32)
# A space, an observation that is not in it, and what is said of it.
WRONG = {
    "nan": (BOX, NAN, r"obs\[1, 0\] is nan"),
    "text": (spaces.Text(3), "long text", r"obs is 'long text', which is not in observation_sp"),
}


def shows(name, reset=99, step=99):
    """Return two env_fns; env 1 shows what is wrong from that reset and that step on."""
    space, wrong, _ = WRONG[name]
    good = envs.draw(space, np.random.default_rng(0))

    def on_reset(env, row):
        return wrong if env.tag and env.resets >= reset else good, row[1]

    def on_step(env, _, row):
        return wrong if env.tag and env.steps >= step else good, *row[1:]

    make = functools.partial(envs.ChangedEnv, length=3, step=on_step, reset=on_reset, space=space)
    return [functools.partial(make, tag) for tag in range(2)]


def nan(_, __, row):
    return row[0], float("nan"), *row[2:]


def low(by):
    """Return an env_fn whose env observes so much less than its space has."""

    def lower(_, *row):
        return row[-1][0] - [by, 0, 0], *row[-1][1:]

    return functools.partial(envs.ChangedEnv, step=lower, reset=lower)


@pytest.mark.parametrize("place", BACKENDS)
def test_a_warning_about_rows_names_all_envs_and_the_line(place):
    silence = 'pass validate="off" to silence this'
    nans = functools.partial(envs.ChangedEnv, step=nan)
    with (
        PLACES[place]([nans, low(9), low(9), nans]) as pool,
        PLACES[place]([low(3), low(4)]) as other,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        first = line()
        pool.reset()
        pool.step([0] * 4)
        pool.step([0] * 4)
        other.reset()
    assert [str(each.message) for each in caught] == [
        f"envs 1 to 2: obs[0] is -9, but observation_space has -1 to 1000000; {silence}",
        f"envs 0, 3: reward is nan; {silence}",
        f"envs 0 to 1: obs[0] is -3, but observation_space has -1 to 1000000 in env 0; {silence}",
    ]
    lines = [(__file__, first + k) for k in (1, 2, 4)]
    assert [(each.filename, each.lineno) for each in caught] == lines


@pytest.mark.parametrize(("place", "name"), paired(BACKENDS, [*WRONG]))
def test_always_is_an_error_of_that_env(place, name):
    with PLACES[place](shows(name, reset=2, step=2), validate="always") as pool:
        pool.reset()
        pool.step([0, 0])
        with pytest.raises(EnvError, match=f"env 1: step raised ValueError: {WRONG[name][2]}"):
            pool.step([0, 0])
        pool.drain()
        with pytest.raises(ValueError, match=f"env 1: reset raised ValueError: {WRONG[name][2]}"):
            pool.reset()


@pytest.mark.parametrize(("validate", "since"), [("off", 1), ("first", 2)])
def test_later_rows_pass_and_with_off_all(validate, since):
    with PLACES["dummy"](shows("nan", reset=since, step=since), validate=validate) as pool:
        for n in range(1, 3):
            assert np.isnan(pool.reset()[0][1]).any() == (n >= since)
            pool.step([0, 0])
            assert np.isnan(pool.step([0, 0])[0][1]).any()


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_automatic_resets_are_looked_at_too(mode):
    with PLACES["dummy"](shows("nan", 2), validate="always", autoreset_mode=mode) as pool:
        pool.reset()
        for _ in range(3):
            pool.step([0, 0])
        with pytest.raises(EnvError, match=r"env 1: reset raised ValueError: obs\[1, 0\] is nan"):
            pool.step([0, 0])
