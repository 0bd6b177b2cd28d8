"""check_env finds every defect and names it; what Stable-Baselines3 refuses is refused here too."""

from __future__ import annotations

import random
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3.common.vec_env as sb3
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import envpool_py.sb3 as own
from envpool_py.cli import main
from envpool_py.sb3.checks import EnvCheckError
from envpool_py.sb3.common.env_checker import check_env
from tests.sb3.envs import GoalEnv, MaskedEnv, ReuseEnv, WalkEnv


class Good(gym.Env):
    """Right in all; what is put in its place makes it wrong in one thing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Any = spaces.Box(-1, 1, (3,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def step(self, _: Any) -> Any:
        self.t += 1
        return self.obs(), 1.0, False, self.t >= 5, {}


def with_spaces(space: Any = Good.observation_space, action: Any = Good.action_space) -> gym.Env:
    """An env that draws from its spaces."""

    class Env(Good):
        observation_space = space
        action_space = action

        def obs(self) -> Any:
            self.observation_space.seed(int(self.np_random.integers(1 << 30)))
            return self.observation_space.sample()

    return Env()


def with_methods(**methods: Any) -> gym.Env:
    return type("Env", (Good,), methods)()


def steps(**changed: Any) -> Callable[..., Any]:
    """A step with another reward, terminated, truncated or info."""

    def step(self: Any, _: Any) -> Any:
        usual = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        return (self.obs(), *(usual | changed).values())

    return step


def resets(result: Any) -> Callable[..., Any]:
    def reset(self: Any, *, seed: Any = None, options: Any = None) -> Any:
        gym.Env.reset(self, seed=seed, options=options)
        self.t = 0
        return result

    return reset


def observes(value: Any, space: Any = None) -> gym.Env:
    return with_methods(
        obs=lambda _: value,
        observation_space=Good.observation_space if space is None else space,
    )


def no_seed(self: Any) -> Any:
    return self.obs(), {}


def raises(*_: Any, **__: Any) -> Any:
    raise ValueError("boom")


ZERO = np.zeros(3, np.float32)
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})
BOX3 = Good.observation_space


class OtherReward(GoalEnv):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, -3.0, *rest)


class OneGoal(GoalEnv):
    def compute_reward(self, achieved: Any, desired: Any, _: Any) -> Any:
        return -np.float64(np.linalg.norm(achieved - desired) > 0.2)


class Spaceless(gym.Env):
    pass


class Actionless(gym.Env):
    observation_space = Good.observation_space


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "no env": (object, "must inherit from gymnasium.Env, got object"),
    "no observation space": (
        Spaceless,
        "observation_space: there is none",
    ),
    "no action space": (
        Actionless,
        "action_space: there is none",
    ),
    "a list for a space": (
        lambda: with_methods(observation_space=[1, 2]),
        r"observation_space: it must be one of gymnasium.spaces, got \[1, 2\]",
    ),
    "a number for a space": (lambda: with_methods(action_space=4), "action_space: .* got 4"),
    "no seed": (lambda: with_methods(reset=no_seed), r"reset\(\) must take a seed"),
    "unbounded actions": (
        lambda: with_spaces(action=spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        "action_space: .* unbounded",
    ),
    "reset of one value": (
        lambda: with_methods(reset=resets(ZERO)),
        r"reset\(seed=0\) must return a tuple \(obs, info\), got ndarray",
    ),
    "reset of three": (lambda: with_methods(reset=resets((ZERO, {}, 1))), "got 3 values"),
    "reset without dict": (lambda: with_methods(reset=resets((ZERO, []))), "info dict, got list"),
    "a tuple": (lambda: observes((ZERO,)), "must be a single value, got a tuple"),
    "no int": (lambda: observes(1.0, spaces.Discrete(3)), "must be an int, got float"),
    "a list": (lambda: observes([0.0] * 3), "must be a NumPy array, got list"),
    "another shape": (
        lambda: observes(np.zeros((2, 3), np.float32)),
        r"has shape \(2, 3\), but observation_space has \(3,\)",
    ),
    "another dtype": (
        lambda: observes(np.zeros(3)),
        r"has dtype float64, but observation_space has float32; .astype\(np.float32\) casts it",
    ),
    "out of bounds": (
        lambda: observes(np.array([0, 5, -7], np.float32)),
        r"out of bounds at 2 places: -1.0 <= obs\[1\] <= 1.0, got 5.0; .*obs\[2\] .*got -7.0",
    ),
    "out of a Discrete": (lambda: observes(9, spaces.Discrete(3)), "is not in observation_space"),
    "no dict": (lambda: observes(ZERO, DICT), "must be a dict, got ndarray"),
    "other keys": (
        lambda: observes({"a": ZERO[:2], "c": 0}, DICT),
        r"has the keys \['a', 'c'\], but observation_space has \['a', 'b'\]",
    ),
    "within a dict": (
        lambda: observes({"a": ZERO, "b": 0}, DICT),
        r"the observation\['a'\] has shape \(3,\), but observation_space has \(2,\)",
    ),
    "four values": (
        lambda: with_methods(step=lambda self, _: (self.obs(), 1.0, False, {})),
        r"step\(\) must return a tuple \(obs, reward, .*\), got 4 values",
    ),
    "a float32 reward": (
        lambda: with_methods(step=steps(reward=np.float32(1))),
        r"the reward must be a float, got float32; float\(reward\) makes one",
    ),
    "terminated": (
        lambda: with_methods(step=steps(terminated=np.False_)),
        r"terminated must be a bool, got bool",
    ),
    "truncated": (lambda: with_methods(step=steps(truncated=0)), "truncated must .*got int"),
    "no info": (lambda: with_methods(step=steps(info=None)), "info must be a dict"),
    "a goal without Dict": (
        lambda: with_methods(compute_reward=lambda *_: 1.0),
        "observation_space: a goal env needs a Dict",
    ),
    "goal keys": (
        lambda: with_methods(
            compute_reward=lambda *_: 1.0,
            observation_space=DICT,
            obs=lambda _: {"a": ZERO[:2], "b": 0},
        ),
        "the observation has no observation, achieved_goal, desired_goal",
    ),
    "goal reward": (OtherReward, r"step\(\) gave the reward -3.0, but compute_reward\(\) "),
    "goals one by one": (OneGoal, r"compute_reward\(\) of 2 goals has shape \(\), not \(2,\)"),
}
"""Of each thing that Stable-Baselines3 checks."""


@pytest.mark.parametrize("case", ERRORS)
def test_errors_that_stable_baselines3_finds_too(case: str) -> None:
    make, text = ERRORS[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((AssertionError, TypeError)):
            sb3_check_env(make())
        with pytest.raises(EnvCheckError, match=text):
            check_env(make())


def test_the_seed_that_reset_does_not_take_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match="must take a seed"):
        check_env(with_methods(reset=no_seed), warn=False)


def image(shape: tuple = (64, 64, 3), low: int = 0, high: int = 255, dtype: Any = np.uint8) -> Any:
    return spaces.Box(low, high, shape, dtype)


WARNINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "an observation from 1": (
        lambda: with_spaces(spaces.Discrete(3, start=1)),
        "observation_space: a Discrete that starts at 1",
    ),
    "an entry from 2": (
        lambda: with_spaces(spaces.Dict({"k": spaces.MultiDiscrete([3, 3], start=[0, 2])})),
        r"observation_space\['k'\]: a MultiDiscrete that starts at \[0 2\]",
    ),
    "an action from 1": (
        lambda: with_spaces(action=spaces.Discrete(3, start=1)),
        "action_space: a Discrete that starts at 1",
    ),
    "a Dict within a Dict": (
        lambda: with_spaces(spaces.Dict({"in": DICT})),
        r"observation_space\['in'\]: a Dict within a Dict",
    ),
    "two dimensions of MultiDiscrete": (
        lambda: with_spaces(spaces.MultiDiscrete([[3, 4], [5, 6]])),
        r"observation_space: a MultiDiscrete of shape \(2, 2\)",
    ),
    "a Tuple": (lambda: with_spaces(spaces.Tuple((BOX3,))), "observation_space: a Tuple"),
    "a OneOf": (
        lambda: with_spaces(spaces.OneOf((BOX3, spaces.Discrete(2)))),
        "observation_space: a OneOf, which no policy takes",
    ),
    "a Sequence": (lambda: with_spaces(spaces.Sequence(BOX3)), "observation_space: a Sequence"),
    "a Sequence in a Dict": (
        lambda: with_spaces(spaces.Dict({"s": spaces.Sequence(BOX3)})),
        r"observation_space\['s'\]: a Sequence",
    ),
    "a Graph": (
        lambda: with_spaces(spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))),
        "observation_space: a Graph",
    ),
    "two dimensions of action": (
        lambda: with_spaces(action=spaces.MultiDiscrete([[3, 4], [5, 6]])),
        r"action_space: a MultiDiscrete of shape \(2, 2\)",
    ),
    "actions in a Dict": (lambda: with_spaces(action=DICT), "action_space: a Dict"),
    "a float image": (
        lambda: with_spaces(image(dtype=np.float32)),
        r"shape \(64, 64, 3\) is that of an image, but dtype is float32",
    ),
    "image bounds": (lambda: with_spaces(image(high=200)), "its bounds are not 0 and 255"),
    "a small image": (lambda: with_spaces(image((20, 64, 3))), "images of 20x64 are too small"),
    "channels in between": (
        lambda: with_spaces(image((64, 3, 64))),
        "the second dimension is the smallest",
    ),
    "a matrix": (
        lambda: with_spaces(spaces.Box(-1, 1, (2, 2), np.float32)),
        r"shape \(2, 2\) is neither that of a vector nor that of an image",
    ),
    "wide actions": (
        lambda: with_spaces(action=spaces.Box(-2, 1, (2,), np.float32)),
        "action_space: from -2 to 1, but policies learn best from -1 to 1",
    ),
    "actions of double": (
        lambda: with_spaces(action=spaces.Box(-1, 1, (2,), np.float64)),
        "action_space: dtype is float64",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings_that_stable_baselines3_gives_too(case: str) -> None:
    make, text = WARNINGS[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb3_check_env(make())
        assert caught
    assert [message for message in warned(make()) if re.search(text, message)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(), warn=False)


@pytest.mark.parametrize(
    "make",
    [
        Good,
        WalkEnv,
        MaskedEnv,
        GoalEnv,
        lambda: gym.make("CartPole-v1"),
        lambda: gym.make("FrozenLake-v1"),
        lambda: gym.make("CliffWalking-v1"),  # without chance, and without an end
        lambda: own.Monitor(gym.make("CartPole-v1")),
    ],
)
def test_good_envs_pass_without_a_word(make: Callable[[], gym.Env]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make())


def test_an_env_can_be_used_on() -> None:
    closed = []
    env = with_methods(close=lambda _: closed.append(1))
    check_env(env)
    assert not closed
    check_env(env, skip_render_check=False)
    assert len(closed) == 2


# ------------------------------------------------------------ what Stable-Baselines3 does not see


class Global(Good):
    def obs(self) -> Any:
        return np.random.uniform(-1, 1, 3).astype(np.float32)  # noqa: NPY002


class PythonRandom(Good):
    def obs(self) -> Any:
        return np.full(3, random.random(), np.float32)


class Unseeded(Good):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        del seed, options
        self.t = 0
        return self.obs(), {}


class Fixed(Good):
    """Seeds itself, always alike in the first two resets."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        gym.Env.reset(self, seed=None if seed is None else 7, options=options)
        self.t = 0
        return self.obs(), {}


class ReusedInfo(Good):
    info: dict = {}  # noqa: RUF012

    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        self.info["t"] = self.t
        return (*row, self.info)


class LastStepReused(Good):
    """Its buffer changes only with the reset after the end."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        if hasattr(self, "last"):
            self.last[:] = 0
        return obs, info

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if self.t <= 5:
            self.last = row[0]
        return row


class Late(Good):
    def step(self, action: Any) -> Any:
        obs, *row = super().step(action)
        return (np.full(3, np.nan, np.float32) if self.t == 4 else obs, *row)


class AfterEnd(Good):
    def step(self, action: Any) -> Any:
        if self.t >= 5:
            raise IndexError("no more")
        return super().step(action)


class Locked(Good):
    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        return (*row, {"lock": threading.Lock()})


class ClosesOnce(Good):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


def no_options(self: Any, *, seed: int | None = None) -> Any:
    return Good.reset(self, seed=seed)


FURTHER: dict[str, tuple[Any, str]] = {
    "no options": (lambda: with_methods(reset=no_options), r"reset\(\) takes no options"),
    "a seed by default": (
        lambda: with_methods(
            reset=lambda self, seed=3, options=None: Good.reset(self, seed=seed, options=options)
        ),
        "seed is 3 by default",
    ),
    "no determinism": (Unseeded, "gave two different runs"),
    "a seed without effect": (Fixed, "the seed has no effect"),
    "np.random": (Global, "draws from np.random"),
    "random": (PythonRandom, "draws from the random module"),
    "a reused observation": (ReuseEnv, r"the observation that reset\(\) returned was changed by"),
    "a reused info": (ReusedInfo, r"the info that step\(\) number 1 returned was changed by step"),
    "a reused last observation": (
        LastStepReused,
        r"the observation that step\(\) number 5 returned was changed by reset\(\)",
    ),
    "a step after the end": (AfterEnd, "a step after the end of an episode raised IndexError"),
    "pickling": (Locked, r"the info of step\(\) can't be sent from a worker process"),
}


def warned(env: Any) -> list[str]:
    """What check_env warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("case", FURTHER)
def test_further_warnings(case: str) -> None:
    make, text = FURTHER[case]
    assert [message for message in warned(make()) if re.search(text, message)]


FURTHER_ERRORS: dict[str, tuple[Any, str]] = {
    "a NaN late in an episode": (Late, r"step\(\) number 4: the observation is NaN at \[0\]"),
    "a reward of NaN": (
        lambda: with_methods(step=steps(reward=float("nan"))),
        "the reward is nan",
    ),
    "reset raises": (lambda: with_methods(reset=raises), r"reset\(.*\) raised ValueError: boom"),
    "step raises": (lambda: with_methods(step=raises), r"step\(\) raised ValueError: boom"),
    "an empty Dict": (
        lambda: with_spaces(spaces.Dict({})),
        "observation_space: An empty Dict observation space is not allowed",
    ),
    "close": (lambda: ClosesOnce, r"a second close\(\) raised RuntimeError: closed already"),
    "env_fn": (lambda: [Good, raises], "env 1: env_fn raised ValueError: boom"),
    "no env from env_fn": (lambda: lambda: 4, "env 0: env_fn must return an env, got int"),
    "other spaces": (
        lambda: [Good, lambda: with_spaces(DICT)],
        "env 1: observation_space is Dict.*, but that of env 0 is Box",
    ),
    "other render modes": (
        lambda: [WalkEnv, lambda: WalkEnv(render_mode="rgb_array")],
        "env 1: render_mode is rgb_array, but that of env 0 is None",
    ),
}


@pytest.mark.parametrize("case", FURTHER_ERRORS)
def test_further_errors(case: str) -> None:
    make, text = FURTHER_ERRORS[case]
    with pytest.raises(EnvCheckError, match=text):
        check_env(make(), warn=False)


def test_the_same_instance_twice() -> None:
    env = Good()
    with pytest.raises(EnvCheckError, match="env 1: env_fn returned the instance that env 0 has"):
        check_env([lambda: env, lambda: own.Monitor(env)])


def test_what_an_env_raised_is_the_cause() -> None:
    with pytest.raises(EnvCheckError) as caught:
        check_env(with_methods(step=raises))
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_env_fn_that_can_not_be_pickled() -> None:
    lock = threading.Lock()

    def env_fn() -> gym.Env:
        assert lock
        return Good()

    with pytest.warns(UserWarning, match="env 0: env_fn can't be sent to a worker process"):
        check_env(env_fn)


# ------------------------------------------------------------------------------------ VecEnvs


@pytest.mark.parametrize("package", [own, sb3])
def test_a_good_vec_env_passes(package: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        venv = package.VecNormalize(package.DummyVecEnv([WalkEnv] * 3))
        check_env(venv)


class Wrong(own.VecEnvWrapper):
    """Changes what comes out of a step."""

    def __init__(self, venv: Any, change: Callable[[list], Any]) -> None:
        super().__init__(venv)
        self.change = change
        self.buffer = np.zeros((venv.num_envs, 3), np.float32)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        row = list(self.venv.step_wait())
        result = self.change(row)
        return tuple(row) if result is None else result


def put(place: int, value: Any) -> Callable[[list], None]:
    def change(row: list) -> None:
        row[place] = value

    return change


def forget(key: str) -> Callable[[list], None]:
    def change(row: list) -> None:
        for info in row[3]:
            info.pop(key, None)

    return change


WRONG_ROWS: dict[str, tuple[Callable[[list], Any], str]] = {
    "five values": (lambda row: (*row, {}), r"must return a tuple \(obs, .*\), got 5 values"),
    "rows": (put(0, np.zeros((1, 3), np.float32)), r"must be arrays of 2 rows, got shape \(1, 3\)"),
    "NaN in observations": (put(0, np.full((2, 3), np.nan, np.float32)), "env 0: obs is NaN at"),
    "rewards": (put(1, [0.0, 0.0]), r"rewards must be an array of shape \(2,\), got list"),
    "dones": (put(2, np.zeros(2, int)), "dones have dtype int64"),
    "infos": (put(3, [{}]), "infos must be a list of 2 dicts"),
    "an info": (put(3, [{}, None]), "env 1: the info must be a dict, got NoneType"),
    "NaN": (put(1, np.full(2, np.nan)), "the rewards are"),
    "terminal_observation": (
        forget("terminal_observation"),
        "env . is done, but has no terminal_observation",
    ),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_a_wrong_vec_env(case: str) -> None:
    change, text = WRONG_ROWS[case]
    venv = Wrong(own.DummyVecEnv([WalkEnv] * 2), change)
    with pytest.raises(EnvCheckError, match=text):
        check_env(venv)


def test_warnings_of_a_vec_env() -> None:
    venv = Wrong(own.DummyVecEnv([WalkEnv] * 2), forget("TimeLimit.truncated"))
    with pytest.warns(UserWarning, match="does not say TimeLimit.truncated"):
        check_env(venv)
    buffer = venv.buffer

    def reuse(row: list) -> None:
        buffer[:] = row[0]
        row[0] = buffer

    venv.change = reuse
    with pytest.warns(UserWarning, match="observations were changed by step"):
        check_env(venv)


def test_envs_of_a_vec_env_that_differ() -> None:
    """Stable-Baselines3 lets this pass, and casts."""

    class Other(Good):
        observation_space = spaces.Box(-1, 2, (3,), np.float32)

    with pytest.raises(EnvCheckError, match="env 1: observation_space is Box.*, but that of env 0"):
        check_env(sb3.DummyVecEnv([Good, Other]))


# ----------------------------------------------------------------------------- envpool-py check


def test_the_report_of_a_good_env(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "CartPole-v1"]) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1: 0 errors, 0 warnings" in out
    assert len(re.findall(r"^[a-z ]+ok$", out, re.MULTILINE)) >= 12


def test_the_report_of_warnings(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "Pendulum-v1"]) == 0
    assert "warning: action_space: from -2 to 2" in capsys.readouterr().out
    assert main(["check", "Pendulum-v1", "--strict"]) == 1


def raising(_: gym.Env) -> gym.Env:
    return with_methods(step=raises)


def test_the_report_of_an_error(capsys: pytest.CaptureFixture) -> None:
    wrapper = ("--wrapper", f"{__name__}:raising")
    assert main(["check", "CartPole-v1", *wrapper, "--env-kwarg", "sutton_barto_reward=True"]) == 1
    out = capsys.readouterr().out
    assert "error: step() raised ValueError: boom" in out
    assert "1 error," in out
    assert "closing" not in out


def test_bad_input(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "Nothing-v0"]) == 2
    assert "no env has the id 'Nothing-v0'" in capsys.readouterr().err
