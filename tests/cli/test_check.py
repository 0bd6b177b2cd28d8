"""``envpool-py check``: its stages, and the report."""

from __future__ import annotations

import json
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


class ReusedObs(Good):
    buffer = np.zeros(3, np.float32)

    def obs(self) -> Any:
        self.buffer[:] = super().obs()
        return self.buffer


class LastStepReused(Good):
    """Its buffer changes only with the reset after the end."""

    last = np.zeros(3)

    def reset(self, **kwargs: Any) -> Any:
        self.last[:] = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        row = super().step(action)
        self.last = row[0]
        return row


def with_info(value: Any) -> type[gym.Env]:
    """Every step's info is ``value``, with the number of the step where it is a dict of ints."""

    def step(self: Any, action: Any) -> Any:
        row = Good.step(self, action)
        if not value or "t" in value:
            value["t"] = self.t
        return (*row[:4], value)

    return changed(step=step)


def late(reward: float = 1.0, place: float = 0.0) -> type[gym.Env]:
    """Returns these in the fourth step of an episode."""

    def step(self: Any, action: Any) -> Any:
        obs, *others = Good.step(self, action)
        if self.t == 4:
            obs[0], others[0] = place, reward
        return (obs, *others)

    return changed(step=step)


def seeded(seed_of: Callable[[int | None], int | None]) -> type[gym.Env]:
    """Its reset takes another seed than it was given."""

    def reset(self: Any, *, seed: int | None = None, options: dict | None = None) -> Any:
        return Good.reset(self, seed=seed_of(seed), options=options)

    return changed(reset=reset)


class ClosesOnce(Good):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


def findings_of(*env_fns: Callable[[], Any]) -> dict[str, list[Finding]]:
    """The stages in which something was found."""
    return {name: findings for name, findings in stages(env_fns) if findings}


@pytest.mark.parametrize("env_fn", [Good, Reproducible, Masked])
def test_good_envs(env_fn: Any) -> None:
    assert findings_of(env_fn, env_fn) == {}


EPISODE, GENERATORS = "a whole episode", "global generators"
WARNINGS: list[tuple[Any, str, str]] = [
    (
        changed(reset=lambda self, *, seed=None: Good.reset(self, seed=seed)),
        "options",
        "does not provide an `options`",
    ),
    (seeded(lambda _: None), "seeds", "gave two different runs"),
    (seeded(lambda seed: None if seed is None else 7), "seeds", "the seed has no effect"),
    (
        changed(obs=lambda _: np.random.uniform(-1, 1, 3).astype(np.float32)),  # noqa: NPY002
        GENERATORS,
        "draws from np.random",
    ),
    (
        changed(obs=lambda _: np.full(3, random.random(), np.float32)),
        GENERATORS,
        "draws from the random module",
    ),
    (
        ReusedObs,
        EPISODE,
        r"the observation that reset\(\) returned was changed by step\(\) number 1",
    ),
    (
        with_info({}),
        EPISODE,
        r"the info that step\(\) number 1 returned was changed by step\(\) number 2",
    ),
    (
        LastStepReused,
        EPISODE,
        r"the observation that step\(\) number 5 returned was changed by reset\(\)",
    ),
    (
        with_info({"lock": threading.Lock()}),
        EPISODE,
        r"step\(\) number 1: .* can't be sent from a worker",
    ),
    (changed(metadata={}), "rendering", "metadata has no render_modes"),
    (
        changed(action_space=spaces.Box(-2, 1, (2,), np.float32)),
        "training",
        "action_space: from -2 to 1",
    ),
]


@pytest.mark.parametrize(("env_fn", "stage", "text"), WARNINGS, ids=[text for *_, text in WARNINGS])
def test_warnings(env_fn: Any, stage: str, text: str) -> None:
    found = findings_of(env_fn)
    assert any(f.level == "warning" and re.search(text, f.message) for f in found[stage])
    assert all(finding.level == "warning" for findings in found.values() for finding in findings)


MAKING = "making envs"
STAGES = [MAKING, "spaces", "training", "options", EPISODE, "seeds"]
STAGES += [GENERATORS, "rendering", "closing"]
ERRORS: list[tuple[list[Any], str, str]] = [
    ([changed(observation_space=spaces.Dict({}))], "spaces", "An empty Dict observation space"),
    ([changed(reset=lambda self: (self.obs(), {}))], "training", "reset.. must take a seed"),
    ([changed(reset=raises)], "training", "ValueError: boom"),
    ([changed(step=raises)], "training", "ValueError: boom"),
    ([late(place=np.nan)], EPISODE, r"step\(\) number 4: obs\[0\] is nan"),
    ([late(place=3.0)], EPISODE, r"number 4: obs\[0\] is 3.0, but"),
    ([late(np.nan)], EPISODE, "number 4: reward is nan"),
    ([lambda: changed(render=raises)("rgb_array")], "rendering", "ValueError: boom"),
    ([ClosesOnce], "closing", r"a second close\(\): RuntimeError: closed already"),
    ([Good, raises], MAKING, "env 1: env_fn raised ValueError: boom"),
    ([lambda: 4], MAKING, "env 0: env_fn must return an env, got int"),
    (
        [Good, changed(observation_space=spaces.Discrete(2))],
        MAKING,
        r"env 1: observation_space is Discrete\(2\), but that of env 0 is Box",
    ),
    (
        [Good, lambda: Good("rgb_array")],
        MAKING,
        "env 1: render_mode is rgb_array, but that of env 0 is None",
    ),
]


@pytest.mark.parametrize(("env_fns", "stage", "text"), ERRORS)
def test_errors_do_not_end_the_check(env_fns: list[Any], stage: str, text: str) -> None:
    """The other stages are carried out, and do not report the same error again."""
    found = dict(stages(env_fns))
    assert list(found) == STAGES[: 1 if env_fns[0]() == 4 else None]
    errors = [
        (name, finding.message)
        for name, findings in found.items()
        for finding in findings
        if finding.level == "error"
    ]
    assert any(name == stage and re.search(text, error) for name, error in errors), errors
    assert len({error for _, error in errors}) == len(errors)


def test_ctrl_c_says_which_stage_it_ended() -> None:
    def hangs(*_: Any) -> Any:
        raise KeyboardInterrupt

    found: dict[str, list[Finding]] = {}
    with pytest.raises(KeyboardInterrupt):
        found.update(stages([changed(step=hangs)]))
    assert [*found] == STAGES[:3]
    assert found["training"][0].message.startswith("it ran until Ctrl-C (test_check.py:")


def test_the_same_instance_twice() -> None:
    env = Good()
    wrapped = gym.wrappers.TimeLimit(env, 3)
    [finding] = findings_of(lambda: env, lambda: wrapped)["making envs"]
    assert finding == ("error", "env 1: env_fn returned the instance of another env")


def test_an_env_fn_that_can_not_be_pickled() -> None:
    lock = threading.Lock()
    [finding] = findings_of(lambda: lock and Good())[MAKING]
    assert finding.level == "warning"
    assert "env_fn can't be sent to a process: TypeError" in finding.message


def test_all_envs_are_closed() -> None:
    closed: list[int] = []
    env_fn = changed(close=lambda self: closed.append(id(self)))
    list(stages([env_fn, env_fn]))
    assert len(set(closed)) == 2
    closed.clear()
    list(stages([env_fn, raises]))
    assert len(set(closed)) == 1


def raising(_: gym.Env) -> gym.Env:
    return changed(step=raises)()


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        ("CartPole-v1", 0, ["CartPole-v1: 0 errors, 0 warnings"]),
        ("CliffWalking-v1 --strict", 0, ["note: no episode has ended in"]),
        ("Pendulum-v1", 0, ["warning: action_space: from -2 to 2", "0 errors, 1 warning\n"]),
        ("Pendulum-v1 --strict", 1, ["0 errors, 1 warning\n"]),
        (
            f"CartPole-v1 --wrapper {__name__}:raising --env-kwarg sutton_barto_reward=True",
            1,
            ["error: ValueError: boom", "1 error,"],
        ),
    ],
)
def test_the_report(
    arguments: str, status: int, texts: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main(["check", *arguments.split()]) == status
    out = capsys.readouterr().out
    assert all(text in out for text in texts)
    assert list(dict.fromkeys(re.findall(r"^([a-z ]+?)  +\w+", out, re.MULTILINE))) == STAGES
    assert main(["check", *arguments.split(), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert [each["stage"] for each in found["stages"]] == STAGES
    levels = [each["level"] for stage in found["stages"] for each in stage["findings"]]
    assert (levels.count("error"), levels.count("warning")) == (found["errors"], found["warnings"])
