"""What an env may return, in the midst of plain rows and at a reset; what is wrong is its error.

An env gives plain rows first, so that they go the quick way, then one of another form, then plain
ones again. `tests/unit/test_spaces.py` has every cast of an observation.
"""

import collections
import functools
import pickle
import threading
import types
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from envpool_py import EnvError, ShmemVectorEnv, WorkerDiedError
from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, PROCESSES, QUICK, paired
from tests.support.reference import HandStepped, check, check_reset, same
from tests.support.session import Session, script

SPACE = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
PLAIN = "plain"


def obs(change):
    return lambda row: (change(row[0]), *row[1:])


def reward(value):
    return lambda row: (row[0], value, *row[2:])


def flags(terminated, truncated):
    return lambda row: (*row[:2], terminated, truncated, row[4])


def info(value):
    return lambda row: (*row[:4], value)


FORMS = {
    "a list": list,
    "big endian": obs(lambda array: array.astype(">f4")),
    "wider": obs(lambda array: array + np.float64(0.1)),
    "ints": obs(lambda array: array.astype(int)),
    "numbers": obs(lambda array: array.tolist()),
    "strided": obs(lambda array: np.repeat(array, 2)[::2]),
    "read-only": obs(lambda array: np.broadcast_to(array, array.shape)),
    "int": reward(1),
    "float32": reward(np.float32(0.1)),
    "0-d": reward(np.array(2.5)),
    "bool": reward(True),
    "2**53": reward(2**53),
    "-inf": reward(float("-inf")),
    "ended by np.bool_": flags(np.True_, np.False_),
    "truncated": flags(False, True),
    "both": flags(True, True),
    "ints as flags": flags(0, 1),
    "0-d flags": flags(np.array(True), np.array(False)),
    "numbers in the info": info({"a": 1, "b": np.float32(2)}),
    "text in the info": info({"a": "b"}),
    "an array in the info": info({"a": np.arange(3)}),
    "a subclass of dict": info(collections.OrderedDict(a=1)),
}
# ... and rows of which the pool says what is wrong with them
WRONG = {
    "longer": (obs(lambda array: np.append(array, array)), r"obs has shape \(6,\)"),
    "broadcastable": (obs(lambda array: array[:1]), r"obs has shape \(1,\)"),
    "no obs": (obs(lambda _: None), "obs is None"),
    "too large": (obs(lambda _: np.array([1e300, 0, 0])), "can't hold without loss"),
    "text": (obs(lambda _: "far"), "obs .*float32"),
    "four": (lambda row: row[:4], "got 4 values"),
    "none": (lambda _: None, "got NoneType"),
    "generator": (iter, "got tuple_iterator"),
    "reward": (reward("much"), "reward must be a number"),
    "complex reward": (reward(np.array([1j])), "reward must be a number"),
    "vector": (reward([1, 2]), r"reward has shape \(2,\), but that of env 0 has shape \(\)"),
    "flags": (flags(False, [True, False]), "truncated must be a bool, got list"),
    "flags in an array": (flags(np.array([True, False]), False), "terminated must be a bool"),
    "flag 2": (flags(2, False), "terminated must be a bool, got int 2"),
    "float flag": (flags(False, 1.0), "truncated must be a bool, got float"),
    "matrix": (reward([[1, 2]]), r"reward has shape \(1, 2\), but reward_space has \(\)"),
    "info": (info(None), "info dict, got NoneType"),
}
LOCKED = {"a lock in the info": (info({"lock": threading.Lock()}), "cannot be pickled")}
"""Wrong where the row leaves its process."""
WRONG_RESETS = {
    "obs alone": (lambda row: row[0], r"reset\(\) must return \(obs, info\), got ndarray"),
    "info list": (lambda row: (row[0], [row[1]]), "got info a list of 1"),
    "nothing": (lambda _: None, "got NoneType"),
    "obs short": (lambda row: (row[0][:2], row[1]), r"obs has shape \(2,\)"),
    "obs too large": (lambda row: (row[0] + 1e300, row[1]), "can't hold without loss"),
}


def changed_step(_, name, row):
    plain = row[0].astype(np.float32), row[1], False, False, {}
    change = FORMS.get(name) or {**WRONG, **LOCKED}.get(name, (tuple,))[0]
    return change(plain)


def changed_reset(_, row):
    name = (row[1].pop("options") or {}).get("spoil")
    return WRONG_RESETS[name][0](row) if name else (row[0], {})


def make(tag):
    """Make an env whose actions, and option `spoil` of a reset, are names of the tables above."""
    env = envs.ChangedEnv(tag, step=changed_step, reset=changed_reset, space=SPACE)
    del env.action_space
    return env


FNS = [functools.partial(make, tag) for tag in range(3)]


@pytest.mark.parametrize(
    ("place", "mode"), [*((place, "same_step") for place in QUICK), ("dummy", "next_step")]
)
def test_a_row_of_another_form_among_plain_ones(place, mode):
    hand = HandStepped(FNS, mode)
    with PLACES[place](FNS, autoreset_mode=mode) as pool:
        check_reset(pool.reset(), hand.reset(), SPACE)
        for name in FORMS:
            for names in ([PLAIN] * 3, [PLAIN, name, PLAIN], [PLAIN] * 3):
                check(pool.step(names), hand.step(names), SPACE)


@pytest.mark.parametrize("place", QUICK)
def test_what_is_wrong_is_the_error_of_its_env(place):
    of_steps = {**WRONG, **LOCKED} if place in PROCESSES else WRONG
    wrong = [("step", name, text, 2) for name, (_, text) in of_steps.items()]
    wrong += [("reset", name, text, 0) for name, (_, text) in WRONG_RESETS.items()]
    with PLACES[place](FNS) as pool:
        calls = {
            "step": lambda name: pool.step([PLAIN, name, PLAIN]),
            "reset": lambda name: pool.reset(options=[None, {"spoil": name}, None]),
        }
        for where, name, text, step in wrong:
            assert pool.reset()[0][:, [0, 2]].tolist() == [[0, 0], [1, 0], [2, 0]]
            pool.step([PLAIN] * 3)
            (before,) = pool.call("counts", id=1)
            with pytest.raises(EnvError, match=rf"env 1: {where} raised (.|\n)*{text}") as caught:
                calls[where](name)
            assert (caught.value.env_ids, caught.value.request) == ((1,), where)
            assert sorted(pool.drain()[0][:, [0, 2]].tolist()) == [[0, step], [2, step]]
            (after,) = pool.call("counts", id=1)
            assert sum(after) == sum(before) + 1, "it was asked once"
            with pytest.raises(ResetNeeded, match="env 1"):
                pool.step([PLAIN] * 3)


@pytest.mark.parametrize("place", BACKENDS)
def test_final_observations_that_are_objects_in_part_fit_their_space(place):
    vector = gym.spaces.Box(-1, 99, (2,), np.float32)
    env_fn = functools.partial(
        envs.ChangedEnv,
        length=1,
        step=lambda _, a, row: ({"vector": [0.5] * (2 + a), "text": "over"}, *row[1:]),
        reset=lambda _, row: ({"vector": [0, 0], "text": "begun"}, row[1]),
        space=gym.spaces.Dict({"vector": vector, "text": gym.spaces.Text(9)}),
    )
    with PLACES[place]([env_fn], autoreset_mode="same_step") as pool:
        pool.reset()
        final = pool.step([0])[4][0]["final_obs"]
        assert same(final, {"vector": np.full(2, 0.5, np.float32), "text": "over"})
        with pytest.raises(EnvError, match=r"vector.*has shape \(3,\)"):
            pool.step([1])


@pytest.mark.parametrize(
    ("place", "case"),
    paired(LOCAL, [((1, 1), False, ()), ((1,), True, (1,)), ((), False, ()), ((3,), True, (3,))]),
)
def test_one_element_is_a_scalar_unless_a_space_declares_its_shape(place, case):
    shape, declared, row = case

    def rewarded():
        value = np.full(shape, 2.5, np.float32)
        env = envs.ChangedEnv(step=lambda _env, _action, row: reward(value)(row))
        if declared:
            env.reward_space = gym.spaces.Box(-np.inf, np.inf, shape)
        return env

    with PLACES[place]([rewarded] * 2, validate="off") as pool:
        pool.reset()
        for _ in range(2):
            assert same(pool.step([0, 0])[1], np.full((2, *row), 2.5))
        assert pool.step([], [])[1].shape == (0, *row)


def tensor(value):
    """Return an object that has what the tensors of torch and the arrays of JAX have."""
    return types.SimpleNamespace(item=lambda: value)


FLAGS = {
    True: [[True], (1,), np.array([[True]]), np.uint8(1), tensor(True), tensor(1)],
    False: [[0], np.array([0]), np.False_, tensor(False), None],
}


def flagged(values):
    """Return an env_fn whose env has flags of these values, by their place in ``env.flags``."""

    def step(env, _, row):
        chosen = [env.flags.get(name) for name in ("terminated", "truncated")]
        return *row[:2], *(k is not None and values[k][0] for k in chosen), row[4]

    def make():
        env = envs.ChangedEnv(length=99, step=step)
        env.flags = {}
        return env

    return make


@pytest.mark.parametrize(("place", "mode"), paired(QUICK, [None, "same_step", "next_step"]))
def test_flags_of_one_element_and_none(place, mode):
    values = [(value, flag) for flag, some in FLAGS.items() for value in some]
    with PLACES[place]([flagged(values)] * 2, autoreset_mode=mode) as pool:
        for name in ("terminated", "truncated"):
            for k, (value, flag) in enumerate(values):
                pool.reset()
                pool.set_env_attr("flags", {name: k})
                is_first_none = value is None and name == "terminated"
                text = "envs 0 to 1: terminated is None, which is taken as False; pass validate="
                with pytest.warns(UserWarning, match=text) if is_first_none else nullcontext():
                    row = pool.step([0, 0])
                assert same(row[2 + (name == "truncated")], np.array([flag] * 2)), value
                assert same(row[3 - (name == "truncated")], np.array([False] * 2))
                assert ("final_obs" in row[4][0]) is (flag and mode == "same_step")


def odd_info(env, row):
    """Return the row with an info of one of several forms, in a random order."""
    rng = np.random.default_rng([env.tag, env.steps, env.resets])
    x = float(rng.normal())
    kinds = [
        {"x": x, "n": env.steps, "alive": x > 0},
        {"x": np.float64(x), "speed": np.float32(x), "at": np.array([x, -x])},
        {},
        {"x": env.steps, "n": x},
        {"x": x, "name": "a name"},
        {"x": x, "huge": 10**30, "n": env.steps},
    ]
    return *row[:-1], kinds[rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, 5])]


@pytest.mark.parametrize("mode", [None, "next_step", "same_step"])
@pytest.mark.parametrize("place", PROCESSES[-1:])
def test_forms_that_change_from_row_to_row(place, mode):
    steps = {"step": lambda env, _, row: odd_info(env, row), "reset": odd_info}
    fns = [functools.partial(envs.ChangedEnv, tag, 2, **steps) for tag in range(4)]
    Session(PLACES[place], fns, mode).run(script(1, rounds=8))


COUNTING = functools.partial(
    envs.ChangedEnv,
    step=lambda env, _, row: (*row[:4], {"steps": env.steps, "half": env.steps / 2}),
    reset=lambda env, row: (row[0], {"first": env.steps}),
)
"""Makes an env with numbers in its infos."""


def test_infos_of_numbers_are_not_pickled(monkeypatch):
    with ShmemVectorEnv([COUNTING] * 4, num_processes=2) as pool, monkeypatch.context() as patch:
        assert [info["first"] for info in pool.reset()[1]] == [0] * 4
        pool.step([0] * 4)
        patch.setattr(pickle, "loads", None)  # the forms themselves, which are pickled, have come
        for count in range(2, 20):
            infos = pool.step([0] * 4)[4].tolist()
            assert infos == [{"env_id": i, "steps": count, "half": count / 2} for i in range(4)]


def test_forms_outlive_rows_that_are_cancelled_and_processes_that_end():
    with ShmemVectorEnv([COUNTING] * 2, num_processes=1) as pool:
        pool.reset()
        pool.send([0, 0])
        pool.cancel()  # the rows that brought a form are dropped
        pool.reset()
        infos = pool.step([0, 0])[4]
        pool.workers[0].process.kill()
        with pytest.raises(WorkerDiedError):
            pool.step([0, 0])
        pool.restart()
        assert [info["steps"] for info in infos] == [2, 2]
        # The forms come in another order now: that of a step before that of a second reset.
        pool.reset()
        assert [info["steps"] for info in pool.step([0, 0])[4]] == [1, 1]


BY_NAME = {
    "step": lambda _env, _action, row: ({"at": row[0]}, *row[1:]),
    "reset": lambda _, row: ({"at": row[0]}, row[1]),
    "space": gym.spaces.Dict(at=envs.CountEnv().observation_space),
}


@pytest.mark.parametrize(("place", "columns"), paired(BACKENDS, [False, True]))
def test_without_copies_whole_batches_are_views_and_partial_batches_are_copies(place, columns):
    def at(obs):
        return obs["at"] if columns else obs

    rng, kept = np.random.default_rng(0), []
    own = BY_NAME if columns else {}
    fns = [functools.partial(envs.ChangedEnv, tag, 1000, **own) for tag in range(6)]
    with PLACES[place](fns, wait_num=2, columns=columns, copy=False) as pool:
        obs = at(pool.reset([5, 4, 3, 2, 1, 0])[0])
        assert obs.tolist() == [[i, 0, 0] for i in (5, 4, 3, 2, 1, 0)]
        kept.append((obs, obs.copy()))
        for _ in range(40):
            chosen = [int(i) for i in rng.permutation(pool.ready_id) if rng.random() < 0.5]
            if rng.integers(0, 4) == 0:
                pool.send_reset(chosen)
            else:
                pool.send([0] * len(chosen), chosen)
            if pool.waiting_id:
                obs = at(pool.recv()[0])
                assert obs[:, 0].tolist() == pool.batch_ids.tolist()
                kept.append((obs, obs.copy()))
        pool.drain()
        assert all(np.array_equal(*pair) for pair in kept)
        pool.wait_num = None
        view = at(pool.reset()[0])
        episodes = view[:, 1].tolist()
        for t in range(3):
            assert view.tolist() == [[i, episodes[i], t] for i in range(6)]
            pool.step([0] * 6)
