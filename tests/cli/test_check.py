"""``envpool-py check``: its stages, and the report."""

from __future__ import annotations

import random
import re
import threading
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.cli import main
from envpool_py.cli.env_checks import Finding, stages
from tests.support.checked import Good, changed, raises

if TYPE_CHECKING:
    from collections.abc import Callable


class Reproducible(Good):
    """Draws from a generator of its own, and never from ``np_random``."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        if seed is not None:
            self.own = np.random.default_rng(seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def obs(self) -> Any:
        return self.own.uniform(-1, 1, 3).astype(np.float32)


class Masked(Good):
    def step(self, action: Any) -> Any:
        assert action == 1, "the mask was not heeded"
        return super().step(action)

    def action_masks(self) -> np.ndarray:
        return np.array([False, True])


class Global(Good):
    def obs(self) -> Any:
        return np.random.uniform(-1, 1, 3).astype(np.float32)  # noqa: NPY002


class PythonRandom(Good):
    def obs(self) -> Any:
        return np.full(3, random.random(), np.float32)


class Unseeded(Good):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        del seed
        return super().reset(options=options)


class Fixed(Good):
    """Seeds itself, always alike."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return super().reset(seed=None if seed is None else 7, options=options)


class ReusedObs(Good):
    buffer = np.zeros(3, np.float32)

    def obs(self) -> Any:
        self.buffer[:] = super().obs()
        return self.buffer


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
        self.last = row[0]
        return row


class Late(Good):
    def __init__(self, reward: float = 1.0, place: float = 0.0) -> None:
        super().__init__()
        self.reward, self.place = reward, place

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.t == 4:
            obs[0], reward = self.place, self.reward
        return (obs, reward, *rest)


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


def findings_of(*env_fns: Callable[[], Any]) -> dict[str, list[Finding]]:
    """The stages in which something was found."""
    return {name: findings for name, findings in stages(env_fns) if findings}


@pytest.mark.parametrize("env_fn", [Good, Reproducible, Masked])
def test_good_envs(env_fn: Any) -> None:
    assert findings_of(env_fn, env_fn) == {}


WARNINGS: dict[str, tuple[Any, str, str]] = {
    "no options": (changed(reset=no_options), "options", "does not provide an `options`"),
    "no determinism": (Unseeded, "seeds", "gave two different runs"),
    "a seed without effect": (Fixed, "seeds", "the seed has no effect"),
    "np.random": (Global, "global generators", "draws from np.random"),
    "random": (PythonRandom, "global generators", "draws from the random module"),
    "a reused observation": (
        ReusedObs,
        "a whole episode",
        r"the observation that reset\(\) returned was changed by step\(\) number 1",
    ),
    "a reused info": (
        ReusedInfo,
        "a whole episode",
        r"the info that step\(\) number 1 returned was changed by step\(\) number 2",
    ),
    "a reused last observation": (
        LastStepReused,
        "a whole episode",
        r"the observation that step\(\) number 5 returned was changed by reset\(\)",
    ),
    "pickling": (Locked, "a whole episode", r"step\(\) number 1: .* can't be sent from a worker"),
    "no render modes": (changed(metadata={}), "rendering", "metadata has no render_modes"),
    "actions": (
        changed(action_space=spaces.Box(-2, 1, (2,), np.float32)),
        "training",
        "action_space: from -2 to 1",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings(case: str) -> None:
    env_fn, stage, text = WARNINGS[case]
    found = findings_of(env_fn)
    assert any(f.level == "warning" and re.search(text, f.message) for f in found[stage])
    assert all(finding.level == "warning" for findings in found.values() for finding in findings)


ERRORS: dict[str, tuple[list[Any], str, str]] = {
    "an empty Dict": (
        [changed(observation_space=spaces.Dict({}))],
        "spaces",
        "An empty Dict observation space is not allowed",
    ),
    "no seed": (
        [changed(reset=lambda self: (self.obs(), {}))],
        "training",
        r"TypeError: reset\(\) must take a seed",
    ),
    "reset raises": ([changed(reset=raises)], "training", "ValueError: boom"),
    "step raises": ([changed(step=raises)], "training", "ValueError: boom"),
    "a NaN late in an episode": (
        [lambda: Late(place=np.nan)],
        "a whole episode",
        r"step\(\) number 4: obs\[0\] is nan",
    ),
    "bounds": ([lambda: Late(place=3.0)], "a whole episode", r"number 4: obs\[0\] is 3.0, but"),
    "a reward of NaN": ([lambda: Late(np.nan)], "a whole episode", "number 4: reward is nan"),
    "render": (
        [lambda: changed(render=raises)("rgb_array")],
        "rendering",
        "ValueError: boom",
    ),
    "close": ([ClosesOnce], "closing", r"a second close\(\): RuntimeError: closed already"),
    "env_fn": ([Good, raises], "making envs", "env 1: env_fn raised ValueError: boom"),
    "no env": ([lambda: 4], "making envs", "env 0: env_fn must return an env, got int"),
    "other spaces": (
        [Good, changed(observation_space=spaces.Discrete(2))],
        "making envs",
        r"env 1: observation_space is Discrete\(2\), but that of env 0 is Box",
    ),
    "other render modes": (
        [Good, lambda: Good("rgb_array")],
        "making envs",
        "env 1: render_mode is rgb_array, but that of env 0 is None",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_the_check(case: str) -> None:
    env_fns, stage, text = ERRORS[case]
    *_, (last, findings) = stages(env_fns)
    assert last == stage
    errors = [finding.message for finding in findings if finding.level == "error"]
    assert any(re.search(text, error) for error in errors), errors


def test_the_same_instance_twice() -> None:
    env = Good()
    wrapped = gym.wrappers.TimeLimit(env, 3)
    [finding] = findings_of(lambda: env, lambda: wrapped)["making envs"]
    assert finding == ("error", "env 1: env_fn returned the instance of another env")


def test_an_env_fn_that_can_not_be_pickled() -> None:
    lock = threading.Lock()

    def env_fn() -> gym.Env:
        assert lock
        return Good()

    [finding] = findings_of(env_fn)["making envs"]
    assert finding.level == "warning"
    assert "env_fn can't be sent to a process: TypeError" in finding.message


def test_all_envs_are_closed() -> None:
    closed: list[int] = []
    env_fn = changed(close=lambda self: closed.append(id(self)))
    list(stages([env_fn, env_fn]))
    assert len(set(closed)) == 2
    closed.clear()
    *_, _last = stages([env_fn, raises])
    assert len(closed) == 1


# ----------------------------------------------------------------------------- the report

STAGES = ["making envs", "spaces", "training", "options", "a whole episode", "seeds"]
STAGES += ["global generators", "rendering", "closing"]


def test_the_report_of_a_good_env(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "CartPole-v1"]) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1: 0 errors, 0 warnings" in out
    assert re.findall(r"^([a-z ]+?) +ok$", out, re.MULTILINE) == STAGES


def test_an_episode_that_does_not_end_is_a_note(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "CliffWalking-v1", "--strict"]) == 0
    assert "note: no episode has ended in" in capsys.readouterr().out


def test_the_report_of_warnings(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "Pendulum-v1"]) == 0
    assert "warning: action_space: from -2 to 2" in capsys.readouterr().out
    assert main(["check", "Pendulum-v1", "--strict"]) == 1


def raising(_: gym.Env) -> gym.Env:
    return changed(step=raises)()


def test_the_report_of_an_error(capsys: pytest.CaptureFixture) -> None:
    wrapper = ("--wrapper", f"{__name__}:raising")
    assert main(["check", "CartPole-v1", *wrapper, "--env-kwarg", "sutton_barto_reward=True"]) == 1
    out = capsys.readouterr().out
    assert "error: ValueError: boom" in out
    assert "1 error," in out
    assert "closing" not in out


def test_bad_input(capsys: pytest.CaptureFixture) -> None:
    assert main(["check", "Nothing-v0"]) == 2
    assert "no env has the id 'Nothing-v0'" in capsys.readouterr().err
