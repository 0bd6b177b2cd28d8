"""``envpool-py check``: its stages, and the report."""

import json
import random
import re
import threading

import numpy as np
import pytest
from gymnasium import spaces, wrappers

from envpool_py.cli.env_checks import stages, stages_beside
from tests.support import envs
from tests.support.checked import Good, changed, raises


class Reproducible(Good):
    """Draws from a generator of its own, and never from ``np_random``."""

    def reset(self, *, seed=None, options=None):
        self.own = self.own if seed is None else np.random.default_rng(seed)
        self.t, self.options = 0, options
        return self.obs(), {}

    def obs(self):
        return self.own.uniform(-1, 1, 3).astype(np.float32)


def returning(change):
    """Its steps return what ``change(env, row)`` makes of a right row."""

    def step(self, action):
        return change(self, Good.step(self, action))

    return changed(step=step)


def only_one(self, action):
    assert action == 1, "the mask was not heeded"
    return Good.step(self, action)


def one_seed(self, seed=None, options=None):
    return Good.reset(self, seed=None if seed is None else 7, options=options)


def raising(_):
    return changed(step=raises)()


def long_error(_):
    raise ValueError("long " * 30)


MAKING, EPISODE, GENERATORS = "making envs", "a whole episode", "global generators"
STAGES = [MAKING, "spaces", "training", "options", EPISODE, "seeds"]
BESIDE = "two at once"
STAGES += [GENERATORS, "rendering", BESIDE, "closing"]

MASKED = changed(step=only_one, action_masks=lambda _: np.array([False, True]))
LOCK, ENV = threading.Lock(), Good()
NO_OPTIONS = changed(reset=lambda self, *, seed=None: Good.reset(self, seed=seed))
NUMPY_DRAWS = changed(obs=lambda _: np.random.uniform(-1, 1, 3).astype(np.float32))  # noqa: NPY002
RANDOM_DRAWS = changed(obs=lambda _: np.full(3, random.random(), np.float32))
LOPSIDED = changed(action_space=spaces.Box(-2, 1, (2,), np.float32))
CLOSES_ONCE = changed(close=lambda self: delattr(self, "t"))
UNSEEDED = changed(reset=lambda self, **_: Good.reset(self))
LOCKED = returning(lambda _, row: (*row[:4], {"lock": LOCK}))
REUSED = returning(lambda env, row: (*row[:4], vars(env)))
LATE_PLACE = returning(lambda env, row: (row[0] * (np.nan if env.t == 4 else 1), *row[1:]))
LATE_REWARD = returning(lambda env, row: (row[0], np.nan if env.t == 4 else 1.0, *row[2:]))

# The envs, the stage, and what it finds.
WARNINGS = [
    ([NO_OPTIONS], "options", "does not provide an `options`"),
    ([UNSEEDED], "seeds", "gave two different runs"),
    ([changed(reset=one_seed)], "seeds", "the seed has no effect"),
    ([NUMPY_DRAWS], GENERATORS, "draws from np.random"),
    ([RANDOM_DRAWS], GENERATORS, "draws from the random module"),
    ([REUSED], EPISODE, r"info that step\(\) number 1 returned was changed by .* number 2"),
    ([LOCKED], EPISODE, r"step\(\) number 1: .* can't be sent from a worker"),
    ([changed(metadata={})], "rendering", "metadata has no render_modes"),
    ([LOPSIDED], "training", "action_space: from -2 to 1"),
    ([envs.SharingEnv] * 2, BESIDE, "env 1, stepped in turn with env 0, changes what env 0 ret"),
    ([lambda: LOCK and Good()], MAKING, "env_fn can't be sent to a process: TypeError"),
]
ERRORS = [
    ([changed(observation_space=spaces.Dict({}))], "spaces", "An empty Dict observation space"),
    ([changed(step=raises)], "training", "ValueError: boom"),
    ([LATE_PLACE], EPISODE, r"step\(\) number 4: obs\[0\] is nan"),
    ([LATE_REWARD], EPISODE, "number 4: reward is nan"),
    ([lambda: changed(render=raises)("rgb_array")], "rendering", "ValueError: boom"),
    ([CLOSES_ONCE], "closing", r"a second close\(\): AttributeError"),
    ([Good, raises], MAKING, "env 1: env_fn raised ValueError: boom"),
    ([lambda: 4], MAKING, "env 0: env_fn must return an env, got int"),
    ([Good, lambda: Good("rgb_array")], MAKING, "env 1: render_mode is rgb_array, but that of env"),
    ([lambda: ENV, lambda: wrappers.TimeLimit(ENV, 3)], MAKING, "the instance of another env"),
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
    errors = [each.message for own in found.values() for each in own if each.level == "error"]
    assert len(set(errors)) == len(errors)
    assert level == "error" or not errors


def broken_reset(_, *, seed=None, options=None):
    return len(3 if seed else 4), options


FOUR = returning(lambda _, row: (row[0], 1.0, row[2], row[4]))


@pytest.mark.parametrize(
    ("env_fn", "text"),
    [
        (changed(reset=broken_reset), r"TypeError: object of type 'int' has no len\(\) \(test_"),
        (FOUR, r"EnvCheckError: step\(\) must return a tuple .*, got 4 values"),
    ],
)
def test_one_fault_is_one_error_in_its_own_words(env_fn, text):
    found = dict(stages([env_fn]))
    errors = [stage for stage, own in found.items() if any(each.level != "note" for each in own)]
    assert errors == ["training"]
    assert re.match(text, found["training"][0].message)
    assert "because of the error in 'training'" in found[EPISODE][0].message


def test_nan_is_equal_to_itself():
    nan = returning(lambda _, row: (row[0] * np.nan, np.nan, *row[2:]))
    assert dict(stages([nan]))["seeds"] == []


@pytest.mark.parametrize(("length", "has_ended"), [(1000, True), (1001, False)])
def test_an_episode_of_just_as_many_steps_as_are_tried(length, has_ended):
    ends = returning(lambda env, row: (*row[:2], env.t >= length, False, {}))
    notes = [] if has_ended else [("note", "no episode has ended in 1000 steps")]
    assert dict(stages([ends]))[EPISODE] == notes


def beside(fault, limit=60.0):
    env_fn = changed(step=lambda *_: envs.FaultEnv().fault(fault))
    return dict(stages_beside([env_fn] * 2, limit))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("SIGSEGV", r"SIGSEGV at envs\.py:\d+"),
        ("SIGKILL", "SIGKILL; perhaps the system was out of memory"),
        ("os._exit", "exited with code 37"),
        ("hang", r"it has not ended within 5 seconds at envs\.py:\d+"),
    ],
)
def test_a_crash_or_a_hang_is_a_finding_with_its_line(fault, text):
    found = beside(fault, 5.0 if fault == "hang" else 60.0)
    assert list(found) == STAGES[:3]
    ((level, message),) = found["training"]
    assert level == "error"
    assert re.fullmatch(text, message)


def test_stages_in_another_process_are_those_in_this_one():
    assert dict(stages_beside([Good, raises], 60.0)) == dict(stages([Good, raises]))


def test_ctrl_c_says_which_stage_it_ended():
    def hangs(*_):
        raise KeyboardInterrupt

    found = {}
    with pytest.raises(KeyboardInterrupt):
        found.update(stages([changed(step=hangs)]))
    assert [*found] == STAGES[:3]
    assert found["training"][0].message.startswith("it ran until Ctrl-C (test_check.py:")


def test_long_findings_are_wrapped_on_a_terminal(cli, monkeypatch):
    line = f"check CartPole-v1 --wrapper {__name__}:long_error"
    assert f"env_fn raised ValueError: {'long ' * 30}" in cli(line).out
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = cli(line).out.splitlines()
    assert max(map(len, shown)) <= 80
    assert any(each.startswith(" " * 19 + "long") for each in shown)


RAISING = f"CartPole-v1 --wrapper {__name__}:raising"


def test_all_envs_are_closed():
    closed = []
    env_fn = changed(close=lambda self: closed.append(id(self)))
    list(stages([env_fn, env_fn, raises]))
    assert len(set(closed)) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "strict", "texts"),
    [
        ("CliffWalking-v1", 0, 0, ["note: no episode has ended in", "0 errors, 0 warnings"]),
        ("Pendulum-v1", 0, 1, ["warning: action_space: from -2 to 2", "0 errors, 1 warning\n"]),
        (RAISING, 1, 1, ["error: ValueError: boom", "1 error,"]),
    ],
)
def test_the_report(arguments, status, strict, texts, cli):
    ended = cli(f"check {arguments} --strict")
    assert ended.status == strict
    assert all(text in ended.out for text in texts)
    assert list(dict.fromkeys(re.findall(r"^([a-z ]+?)  +\w+", ended.out, re.MULTILINE))) == STAGES
    ended = cli(f"check {arguments} --json -")
    assert ended.status == status
    found = json.loads(ended.out)
    assert [each["stage"] for each in found["stages"]] == STAGES
    levels = [each["level"] for stage in found["stages"] for each in stage["findings"]]
    assert (levels.count("error"), levels.count("warning")) == (found["errors"], found["warnings"])
