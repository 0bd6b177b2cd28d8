"""What users of AsyncVectorEnv rely on, as in Gymnasium's own tests of its vector envs."""

import functools
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector.utils import batch_differing_spaces

from envpool_py import DummyVectorEnv
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import BOX, RandomEnv, in_process
from tests.support import envs as support
from tests.support.reference import same

CARTS = [functools.partial(gym.make, "CartPole-v1")] * 3


@pytest.fixture
def carts():
    """Three CartPoles that have been reset."""
    envs = VectorEnv(CARTS, context="fork", num_processes=2)
    envs.reset(seed=7)
    yield envs
    envs.close()


def of(*own):
    return [functools.partial(RandomEnv, space) for space in own]


WIDER = [spaces.Box(0, i, (5,)) for i in (1, 2, 3)]
UNEQUAL = [spaces.Box(0, 1, (i,)) for i in (1, 2)]
CUSTOM = spaces.Box(0, np.repeat([1, 2, 3], 5).reshape(3, 5), (3, 5)), WIDER[0]


@pytest.mark.parametrize("mode", ["different", CUSTOM], ids=["different", "own"])
def test_observation_modes(mode):
    envs = in_process(of(*WIDER), observation_mode=mode)
    assert envs.observation_space == batch_differing_spaces(WIDER)
    assert envs.single_observation_space == WIDER[0]
    assert envs.reset()[0] in envs.observation_space
    assert envs.step([0, 0, 0])[0] in envs.observation_space


ACTIONS = [functools.partial(RandomEnv, BOX, spaces.Discrete(n)) for n in (5, 4)]
WRONG = [
    ({"env_fns": of(*UNEQUAL)}, RuntimeError, "shapes and dtypes must agree"),
    ({"env_fns": of(spaces.Dict(x=support.Cards(5)))}, ValueError, "pass `shared_memory=False`"),
    ({"env_fns": of(*WIDER)}, RuntimeError, "use `observation_mode='different'` instead"),
    ({"env_fns": ACTIONS}, RuntimeError, "Discrete"),
    ({"observation_mode": "invalid"}, ValueError, "expected: 'same' or 'different' or tuple of si"),
    ({"autoreset_mode": "Now"}, ValueError, "autoreset_mode must be 'next_step'"),
    ({"max_concurrency": 2.5}, ValueError, "`max_concurrency` must be an integer or None, got"),
    ({"max_concurrency": 0}, ValueError, "`max_concurrency` must be a positive or None, got 0"),
    ({"max_concurrency": 2, "num_processes": 4}, TypeError, "are the same option; pass one of"),
    ({"context": "nope"}, ValueError, "cannot find context for 'nope': .* must be one of .*spawn"),
    ({"start_method": "nope"}, ValueError, "'nope': context, or start_method, must be one of"),
    ({"worker": print}, ValueError, "EnvWorker"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        VectorEnv(**{"env_fns": CARTS, **options})


def test_a_pool_has_its_own_options():
    with DummyVectorEnv([support.CountEnv] * 2) as pool:
        for options in ({"autoreset_mode": "same_step"}, {"num_processes": 1}, {"context": "fork"}):
            with pytest.raises(ValueError, match="options to the pool"):
                VectorEnv(pool, **options)
        pool.wait_num = 1
        with pytest.raises(ValueError, match="a VectorEnv waits for all envs"):
            VectorEnv(pool)
        assert not pool.is_closed


def masked(mask):
    return lambda envs: envs.reset(options={"reset_mask": mask})


MASK = "`options['reset_mask']` must"
MISUSE = [
    (lambda e: e.reset(seed=[1, 2]), ValueError, "match num_envs=3 but got length=2."),
    (masked([True] * 3), TypeError, f"{MASK} be a numpy array, got <class 'list'>"),
    (masked(np.ones((1, 3), bool)), ValueError, f"{MASK} have shape `(3,)`, got (1, 3)"),
    (masked(np.ones(3, np.int64)), TypeError, f"{MASK} have `dtype=np.bool_`, got int64"),
    (masked(np.zeros(3, bool)), ValueError, f"{MASK} contain a boolean array with at least one Tr"),
    (lambda e: e.step(None), TypeError, "expected 3 actions, one per env; got None"),
    (lambda e: e.step_async(1), TypeError, "expected 3 actions, one per env; got int"),
    (lambda e: e.step_async([0] * 4), ValueError, "got 4 actions for 3 envs"),
    (lambda e: e.call("nothing_of_this_name"), AttributeError, "nothing_of_this_name"),
    (lambda e: e.call("reset"), ValueError, "function `reset` with `call`, use `reset` directly"),
    (lambda e: e.set_attr("gravity", [1.0]), ValueError, "number of environments. Got `1` values"),
    (lambda e: e.reset_wait(), NoAsyncCallError, "`reset_wait` without any prior call to `reset_a"),
    (lambda e: e.step_wait(), NoAsyncCallError, "`step_wait` without any prior call to `step_asyn"),
    (lambda e: e.call_wait(), NoAsyncCallError, "`call_wait` without any prior call to `call_asyn"),
]


def test_wrong_calls_say_what_is_wrong_and_leave_nothing_pending(carts):
    for call, error, text in MISUSE:
        with pytest.raises(error, match=re.escape(text)):
            call(carts)
        assert len(carts.step([0, 1, 0])) == 5, text


def test_stepping_an_ended_env_that_nobody_resets():
    fns = [functools.partial(support.CountEnv, tag, 2 + tag) for tag in range(3)]
    envs = in_process(fns, "Disabled")
    envs.reset()
    envs.step([0] * 3)
    over = envs.step([0] * 3)[2]
    text = "env 0: the episode has ended, and autoreset_mode is DISABLED; call reset(options={'res"
    with pytest.raises(AssertionError, match=re.escape(text)):
        envs.step([0] * 3)
    envs.reset(options={"reset_mask": over})
    assert envs.step([0] * 3)[2].tolist() == [False, True, False]


BEGIN = {
    "reset": lambda e: e.reset_async(),
    "step": lambda e: e.step_async([0, 0, 0]),
    "call": lambda e: e.call_async("gravity"),
    "set_attr": lambda e: e.set_attr("gravity", 1.0),
}


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_a_second_call_while_one_is_pending(carts, pending):
    text = f"while waiting for a pending call to `{pending}` to complete."
    for close in (False, True):
        BEGIN[pending](carts)
        for name, begin in BEGIN.items():
            with pytest.raises(AlreadyPendingCallError, match=f"Calling `{name}.*{text}") as caught:
                begin(carts)
            assert caught.value.name == pending
        if not close:
            getattr(carts, f"{pending}_wait")()
    with pytest.warns(UserWarning, match=f"Calling `close` {text}"):
        carts.close(terminate=True)


@pytest.mark.parametrize("by_pool", [False, True])
def test_calls_after_close(carts, by_pool):
    (carts.pool if by_pool else carts).close()
    for call in (*BEGIN.values(), lambda e: e.step([0] * 3), lambda e: e.call_wait()):
        with pytest.raises(ClosedEnvironmentError, match=r"`VectorEnv`, after a call to `close\("):
            call(carts)
    carts.close()
    assert carts.closed


def test_call_get_attr_set_attr(carts):
    assert repr(carts) == "VectorEnv(num_envs=3)"
    assert carts.call("get_wrapper_attr", "gravity") == (9.8,) * 3
    carts.set_attr("gravity", [9.81, 3.72, 8.87])
    assert carts.get_attr("gravity") == (9.81, 3.72, 8.87)
    carts.set_attr("gravity", 1.62)
    assert carts.get_attr("gravity") == (1.62,) * 3
    carts.reset(seed=None)
    assert carts.np_random_seed == (7, 8, 9)
    assert all(isinstance(one, np.random.Generator) for one in carts.np_random)


def test_resets_at_unusual_times():
    envs = in_process([functools.partial(support.CountEnv, 0, 1)] * 2)
    assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]  # without a reset
    assert envs.reset(options={"reset_mask": np.array([True, False])})[0][:, 2].tolist() == [0, 1]
    assert envs.step([0, 0])[2].tolist() == [True, False]
    envs.reset()  # in place of the automatic one
    assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_final_observations_have_the_dtype_of_the_space():
    two = {"step": lambda _, __, row: (2, *row[1:]), "reset": lambda _, row: (0, row[1])}
    fns = [functools.partial(support.ChangedEnv, 0, 1, space=spaces.Discrete(3), **two)]
    envs = in_process(fns, "SameStep")
    envs.reset()
    assert same(envs.step([0])[4]["final_obs"][0], np.int64(2))
