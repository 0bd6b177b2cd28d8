"""``envpool-py check``: its stages, and the report."""

import json
import random
import re
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envpool_py.cli.env_checks import stages
from tests.support.checked import Good, changed, raises


class Reproducible(Good):
    """Draws from a generator of its own, and never from ``np_random``."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.own = np.random.default_rng(seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def obs(self):
        return self.own.uniform(-1, 1, 3).astype(np.float32)


class LastStepReused(Good):
    """Its buffer changes only with the reset after the end."""

    last = np.zeros(3)

    def reset(self, **kwargs):
        self.last[:] = 0
        return super().reset(**kwargs)

    def step(self, action):
        row = super().step(action)
        self.last = row[0]
        return row


class ClosesOnce(Good):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


def only_one(self, action):
    assert action == 1, "the mask was not heeded"
    return Good.step(self, action)


def with_info(value):
    """Every step's info is ``value``, with the number of the step where it is a dict of ints."""

    def step(self, action):
        row = Good.step(self, action)
        if not value or "t" in value:
            value["t"] = self.t
        return (*row[:4], value)

    return changed(step=step)


def late(reward=1.0, place=0.0):
    """Returns these in the fourth step of an episode."""

    def step(self, action):
        obs, *others = Good.step(self, action)
        if self.t == 4:
            obs[0], others[0] = place, reward
        return (obs, *others)

    return changed(step=step)


def seeded(seed_of):
    """Its reset takes another seed than it was given."""

    def reset(self, *, seed=None, options=None):
        return Good.reset(self, seed=seed_of(seed), options=options)

    return changed(reset=reset)


MAKING, EPISODE, GENERATORS = "making envs", "a whole episode", "global generators"
STAGES = [MAKING, "spaces", "training", "options", EPISODE, "seeds"]
STAGES += [GENERATORS, "rendering", "closing"]

MASKED = changed(step=only_one, action_masks=lambda _: np.array([False, True]))
LOCK = threading.Lock()
ENV = Good()
NO_OPTIONS = changed(reset=lambda self, *, seed=None: Good.reset(self, seed=seed))
NUMPY_DRAWS = changed(obs=lambda _: np.random.uniform(-1, 1, 3).astype(np.float32))  # noqa: NPY002
RANDOM_DRAWS = changed(obs=lambda _: np.full(3, random.random(), np.float32))
LOPSIDED = changed(action_space=spaces.Box(-2, 1, (2,), np.float32))

# The envs, the stage, and what it finds.
WARNINGS = [
    ([NO_OPTIONS], "options", "does not provide an `options`"),
    ([seeded(lambda _: None)], "seeds", "gave two different runs"),
    ([seeded(lambda seed: None if seed is None else 7)], "seeds", "the seed has no effect"),
    ([NUMPY_DRAWS], GENERATORS, "draws from np.random"),
    ([RANDOM_DRAWS], GENERATORS, "draws from the random module"),
    ([with_info({})], EPISODE, r"info that step\(\) number 1 returned was changed by .* number 2"),
    ([LastStepReused], EPISODE, r"observation that step\(\) number 5 .* was changed by reset\(\)"),
    ([with_info({"lock": LOCK})], EPISODE, r"step\(\) number 1: .* can't be sent from a worker"),
    ([changed(metadata={})], "rendering", "metadata has no render_modes"),
    ([LOPSIDED], "training", "action_space: from -2 to 1"),
    ([lambda: LOCK and Good()], MAKING, "env_fn can't be sent to a process: TypeError"),
]
ERRORS = [
    ([changed(observation_space=spaces.Dict({}))], "spaces", "An empty Dict observation space"),
    ([changed(reset=lambda self: (self.obs(), {}))], "training", "reset.. must take a seed"),
    ([changed(step=raises)], "training", "ValueError: boom"),
    ([late(place=np.nan)], EPISODE, r"step\(\) number 4: obs\[0\] is nan"),
    ([late(place=3.0)], EPISODE, r"number 4: obs\[0\] is 3.0, but"),
    ([late(np.nan)], EPISODE, "number 4: reward is nan"),
    ([lambda: changed(render=raises)("rgb_array")], "rendering", "ValueError: boom"),
    ([ClosesOnce], "closing", r"a second close\(\): RuntimeError: closed already"),
    ([Good, raises], MAKING, "env 1: env_fn raised ValueError: boom"),
    ([lambda: 4], MAKING, "env 0: env_fn must return an env, got int"),
    ([Good, lambda: Good("rgb_array")], MAKING, "env 1: render_mode is rgb_array, but that of env"),
    (
        [Good, changed(observation_space=spaces.Discrete(2))],
        MAKING,
        r"env 1: observation_space is Discrete\(2\), but that of env 0 is Box",
    ),
    (
        [lambda: ENV, lambda: gym.wrappers.TimeLimit(ENV, 3)],
        MAKING,
        "env 1: env_fn returned the instance of another env",
    ),
]


@pytest.mark.parametrize("env_fn", [Good, Reproducible, MASKED])
def test_good_envs(env_fn):
    assert not any(findings for _, findings in stages([env_fn, env_fn]))


@pytest.mark.parametrize(
    ("level", "env_fns", "stage", "text"),
    [("warning", *each) for each in WARNINGS] + [("error", *each) for each in ERRORS],
)
def test_findings(level, env_fns, stage, text):
    """All stages are carried out after an error, and do not report the same error again."""
    found = dict(stages(env_fns))
    assert list(found) == (STAGES[:1] if "got int" in text else STAGES)
    assert any(each.level == level and re.search(text, each.message) for each in found[stage])
    errors = [
        each.message for findings in found.values() for each in findings if each[0] == "error"
    ]
    assert len(set(errors)) == len(errors)
    assert level == "error" or not errors


def test_ctrl_c_says_which_stage_it_ended():
    def hangs(*_):
        raise KeyboardInterrupt

    found = {}
    with pytest.raises(KeyboardInterrupt):
        found.update(stages([changed(step=hangs)]))
    assert [*found] == STAGES[:3]
    assert found["training"][0].message.startswith("it ran until Ctrl-C (test_check.py:")


@pytest.mark.parametrize(("second", "count"), [(None, 2), (raises, 1)])
def test_all_envs_are_closed(second, count):
    closed = []
    env_fn = changed(close=lambda self: closed.append(id(self)))
    list(stages([env_fn, second or env_fn]))
    assert len(set(closed)) == count


def raising(_):
    return changed(step=raises)()


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        ("CliffWalking-v1 --strict", 0, ["note: no episode has ended in", "0 errors, 0 warnings"]),
        ("Pendulum-v1", 0, ["warning: action_space: from -2 to 2", "0 errors, 1 warning\n"]),
        ("Pendulum-v1 --strict", 1, ["0 errors, 1 warning\n"]),
        (
            f"CartPole-v1 --wrapper {__name__}:raising --env-kwarg sutton_barto_reward=True",
            1,
            ["error: ValueError: boom", "1 error,"],
        ),
    ],
)
def test_the_report(arguments, status, texts, cli):
    ended = cli(f"check {arguments}")
    assert ended.status == status
    assert all(text in ended.out for text in texts)
    assert list(dict.fromkeys(re.findall(r"^([a-z ]+?)  +\w+", ended.out, re.MULTILINE))) == STAGES
    ended = cli(f"check {arguments} --json")
    assert ended.status == status
    found = json.loads(ended.out)
    assert [each["stage"] for each in found["stages"]] == STAGES
    levels = [each["level"] for stage in found["stages"] for each in stage["findings"]]
    assert (levels.count("error"), levels.count("warning")) == (found["errors"], found["warnings"])
