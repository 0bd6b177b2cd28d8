"""What users of Gymnasium's AsyncVectorEnv rely on, errors and their texts included.

The cases are those of Gymnasium's own tests of its vector envs, without what test_equal_to_sync
compares step by step.
"""

import functools
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces

from envpool_py import DummyVectorEnv
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import BOX, RandomEnv
from tests.support import envs as support
from tests.support.reference import same


def cart_pole(seed=0):
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    return env


CARTS = [functools.partial(cart_pole, seed) for seed in range(3)]


def of(*own):
    return [functools.partial(RandomEnv, space) for space in own]


@pytest.fixture
def maker():
    """Make vector envs, without processes if possible, that are closed at the end of the test."""
    made = []

    def make(env_fns=CARTS, **options):
        if not options:
            env_fns = DummyVectorEnv(env_fns, **VectorEnv.pool_options({}))
        else:
            options |= {"context": "fork", "num_processes": 2}
        made.append(VectorEnv(env_fns, **options))
        return made[-1]

    yield make
    for envs in made:
        if not envs.closed:
            envs.close(terminate=True)


@pytest.fixture
def carts(maker):
    """Three CartPoles that have been reset."""
    made = maker()
    made.reset(seed=7)
    return made


# -------------------------------------------------------------------- construction, attributes


def test_attributes(maker):
    envs = maker(autoreset_mode="SameStep")
    assert isinstance(envs, gym.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in cart_pole().metadata
    assert repr(envs) == "VectorEnv(num_envs=3)"
    envs.spec = gym.spec("CartPole-v1")
    assert repr(envs) == "VectorEnv(CartPole-v1, num_envs=3)"


WIDER = [spaces.Box(0, i, (5,)) for i in (1, 2, 3)]
UNEQUAL = [spaces.Box(0, 1, (i,)) for i in (1, 2)]
CUSTOM = spaces.Box(0, np.repeat([1, 2, 3], 5).reshape(3, 5), (3, 5)), WIDER[0]


@pytest.mark.parametrize("mode", ["different", CUSTOM], ids=["different", "own"])
def test_observation_modes(maker, mode):
    with pytest.raises(RuntimeError):
        VectorEnv(of(*UNEQUAL), context="fork", observation_mode=mode)
    envs = maker(of(*WIDER), observation_mode=mode)
    assert envs.observation_space == batch_differing_spaces(WIDER)
    assert envs.single_observation_space == WIDER[0]
    assert envs.reset()[0] in envs.observation_space
    assert envs.step([0, 0, 0])[0] in envs.observation_space


def of_actions(*spaces):
    return [functools.partial(RandomEnv, BOX, space) for space in spaces]


CARDS = support.Cards(5)
PENDING = "a VectorEnv waits for all envs"
WRONG = [
    ({"env_fns": of(*UNEQUAL)}, RuntimeError, "shapes and dtypes must agree"),
    ({"env_fns": of(BOX, spaces.Dict(x=BOX))}, RuntimeError, "shapes and dtypes must agree"),
    ({"env_fns": of(spaces.Dict(x=CARDS))}, ValueError, "pass `shared_memory=False`"),
    (
        {"env_fns": of(CARDS), "observation_mode": (CARDS, CARDS), "shared_memory": False},
        NotImplementedError,
        "doesn't support Generic Gymnasium Spaces",
    ),
    ({"env_fns": of(*WIDER)}, RuntimeError, "use `observation_mode='different'` instead"),
    ({"env_fns": of_actions(spaces.Discrete(5), spaces.Discrete(4))}, RuntimeError, "Discrete"),
    ({"observation_mode": "invalid"}, ValueError, "expected: 'same' or 'different' or tuple of si"),
    ({"autoreset_mode": "Now"}, ValueError, "is not a valid AutoresetMode"),
    ({"max_concurrency": 2.5}, ValueError, "`max_concurrency` must be an integer or None, got"),
    ({"max_concurrency": 0}, ValueError, "`max_concurrency` must be a positive or None, got 0"),
    ({"worker": print}, ValueError, "EnvWorker"),
    ({"wait_num": 1}, ValueError, PENDING),
    ({"timeout": 0.1}, ValueError, PENDING),
    ({"n_envs": 3}, TypeError, "here it is num_envs"),
    ({"env_fns": "CartPole-v1"}, TypeError, "envpool_py.make\\('CartPole-v1', num_envs\\)"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        VectorEnv(**{"env_fns": CARTS, "context": "fork", **options})


def test_a_pool_has_its_own_options():
    with DummyVectorEnv([support.CountEnv] * 2) as pool:
        for options in ({"autoreset_mode": "SameStep"}, {"num_processes": 2}, {"context": "fork"}):
            with pytest.raises(ValueError, match="options to the pool"):
                VectorEnv(pool, **options)
        pool.wait_num = 1
        with pytest.raises(ValueError, match=PENDING):
            VectorEnv(pool)
        assert not pool.is_closed


# ------------------------------------------------------------------------------- wrong calls


def masked(mask):
    return lambda envs: envs.reset(options={"reset_mask": mask})


MASK = "`options['reset_mask']` must"
MISUSE = [
    (lambda e: e.reset(seed=[1, 2]), ValueError, "match num_envs=3 but got length=2."),
    (lambda e: e.reset(seed="abc"), TypeError, "seed must be an int"),
    (lambda e: e.reset(options=3), TypeError, "options must be a dict or one for each"),
    (masked([True] * 3), TypeError, f"{MASK} be a numpy array, got <class 'list'>"),
    (masked(np.ones((1, 3), bool)), ValueError, f"{MASK} have shape `(3,)`, got (1, 3)"),
    (masked(np.ones(3, np.int64)), TypeError, f"{MASK} have `dtype=np.bool_`, got int64"),
    (masked(np.zeros(3, bool)), ValueError, f"{MASK} contain a boolean array with at least one Tr"),
    (lambda e: e.step(None), TypeError, "expected 3 actions, one per env; got None"),
    (lambda e: e.step_async(1), TypeError, "expected 3 actions, one per env; got int"),
    (lambda e: e.step([0, 1]), ValueError, "got 2 actions for 3 envs"),
    (lambda e: e.step_async([0] * 4), ValueError, "got 4 actions for 3 envs"),
    (lambda e: e.step([0, 0, 0.5]), ValueError, "can't hold without loss"),
    (lambda e: e.call("nothing_of_this_name"), AttributeError, "nothing_of_this_name"),
    (
        lambda e: e.set_attr("gravity", [1.0]),
        ValueError,
        "Values must be a list or tuple with length equal to the number of environments. Got `1`",
    ),
    *(
        (
            lambda e, name=name: e.call(name),
            ValueError,
            f"Trying to call function `{name}` with `call`, use `{name}` directly instead.",
        )
        for name in ("reset", "step", "close")
    ),
    *(
        (
            lambda e, name=name: getattr(e, f"{name}_wait")(),
            NoAsyncCallError,
            f"Calling `{name}_wait` without any prior call to `{name}_async`.",
        )
        for name in ("reset", "step", "call")
    ),
]


def test_wrong_calls_say_what_is_wrong_and_leave_nothing_pending(carts):
    for call, error, text in MISUSE:
        with pytest.raises(error, match=re.escape(text)):
            call(carts)
        assert len(carts.step([0, 1, 0])) == 5, text


def test_stepping_an_ended_env_that_nobody_resets(maker):
    fns = [functools.partial(support.CountEnv, tag, 2 + tag) for tag in range(3)]
    envs = maker(fns, autoreset_mode="Disabled")
    envs.reset()
    envs.step([0] * 3)
    over = envs.step([0] * 3)[2]
    text = "env 0: the episode has ended, and autoreset_mode is DISABLED; call reset(options={'res"
    for step in (envs.step, envs.step_async):
        with pytest.raises(AssertionError, match=re.escape(text)):
            step([0] * 3)
    envs.reset(options={"reset_mask": over})
    assert envs.step([0] * 3)[2].tolist() == [False, True, False]


BEGIN = {
    "reset_async": lambda e: e.reset_async(),
    "step_async": lambda e: e.step_async([0, 0, 0]),
    "call_async": lambda e: e.call_async("gravity"),
    "set_attr": lambda e: e.set_attr("gravity", 1.0),
}


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_a_second_call_while_one_is_pending(carts, pending):
    for close in (False, True):
        BEGIN[f"{pending}_async"](carts)
        for name, begin in BEGIN.items():
            text = f"Calling `{name}` while waiting for a pending call to `{pending}` to complete"
            with pytest.raises(AlreadyPendingCallError, match=re.escape(text)) as caught:
                begin(carts)
            assert caught.value.name == pending
        with pytest.raises(AlreadyPendingCallError, match="^envs 0 to 2: "):
            carts.pool.step([0, 0, 0])
        if not close:
            getattr(carts, f"{pending}_wait")()
    text = f"Calling `close` while waiting for a pending call to `{pending}` to complete."
    with pytest.warns(UserWarning, match=re.escape(text)):
        carts.close(terminate=True)


@pytest.mark.parametrize("by_pool", [False, True])
def test_calls_after_close(carts, by_pool):
    (carts.pool if by_pool else carts).close()
    calls = [*BEGIN.values(), lambda e: e.step([0] * 3), lambda e: e.render()]
    for call in [*calls, lambda e: e.reset_wait(), lambda e: e.call_wait()]:
        with pytest.raises(ClosedEnvironmentError, match=r"`VectorEnv`, after a call to `close\("):
            call(carts)
    carts.close()
    assert carts.closed


# ------------------------------------------------------------------------- calls and attributes


def test_call_get_attr_set_attr(carts):
    assert carts.call("gravity") == (9.8,) * 3
    assert carts.call("get_wrapper_attr", "gravity") == (9.8,) * 3
    carts.set_attr("gravity", [9.81, 3.72, 8.87])
    assert carts.get_attr("gravity") == (9.81, 3.72, 8.87)
    carts.set_attr("gravity", 1.62)
    carts.set_attr("mood", (1, "a", None))
    assert carts.get_attr("gravity") == (1.62,) * 3
    assert carts.get_attr("mood") == (1, "a", None)


def test_seeds_and_generators(maker):
    envs = maker()
    assert envs.np_random_seed == (0, 1, 2)  # of the resets that CARTS make
    envs.reset(seed=7)
    envs.reset(seed=None)
    assert envs.np_random_seed == (7, 8, 9)
    assert all(isinstance(one, np.random.Generator) for one in envs.np_random)


def test_resets_at_unusual_times(maker):
    envs = maker([functools.partial(support.CountEnv, 0, 1)] * 2)
    assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]  # without a reset
    assert envs.reset(options={"reset_mask": np.array([True, False])})[0][:, 2].tolist() == [0, 1]
    assert envs.step([0, 0])[2].tolist() == [True, False]
    envs.reset()  # in place of the automatic one
    assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_final_observations_have_the_dtype_of_the_space(maker):
    class Plain(RandomEnv):
        def step(self, action):  # noqa: ARG002 - Gymnasium's
            return 2, 0.0, True, False, {}

    envs = maker([functools.partial(Plain, spaces.Discrete(3))], autoreset_mode="SameStep")
    envs.reset()
    assert same(envs.step([0])[4]["final_obs"][0], np.int64(2))
