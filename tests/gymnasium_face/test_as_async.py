"""What holds of Gymnasium's AsyncVectorEnv holds of ours.

The cases are those of Gymnasium's own tests of its vector envs. With GYMNASIUM_ASYNC=1 in the
environment they run on AsyncVectorEnv, which passes them too, but leaves descriptors open.
"""

from __future__ import annotations

import functools
import os
import re
import time
from multiprocessing import TimeoutError as MpTimeoutError
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces

from envpool_py import DummyVectorEnv
from envpool_py.gymnasium import VectorEnv
from tests.gymnasium_face.envs import SPACES, Letters, equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAKERS: dict[str, Callable[..., Any]] = {
    "ours": functools.partial(VectorEnv, context="fork"),
    "packed-no-shm": functools.partial(
        VectorEnv, context="fork", num_processes=2, shared_memory=False
    ),
}
if "GYMNASIUM_ASYNC" in os.environ:
    MAKERS = {
        "async": functools.partial(AsyncVectorEnv, context="fork"),
        "async-no-shm": functools.partial(AsyncVectorEnv, context="fork", shared_memory=False),
    }


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make vector envs of each kind, closed at the end of the test."""
    made = []

    def make(env_fns: Any, **options: Any) -> Any:
        made.append(MAKERS[request.param](env_fns, **options))
        return made[-1]

    make.shared_memory = not request.param.endswith("no-shm")
    make.ours = not request.param.startswith("async")
    yield make
    for envs in made:
        if not envs.closed:
            envs.close(terminate=True)


def cart_pole(seed: int = 0, **options: Any) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        env = gym.make("CartPole-v1", disable_env_checker=True, **options)
        env.action_space.seed(seed)
        env.reset(seed=seed)
        return env

    return make


CARTS = [cart_pole(i) for i in range(3)]


class Plain(gym.Env):
    """Samples its observations; a subclass says the rest."""

    def __init__(self, space: gym.Space | None = None, action: gym.Space | None = None) -> None:
        self.observation_space = spaces.Box(0, 1, (1,)) if space is None else space
        self.action_space = spaces.Discrete(5) if action is None else action
        self.metadata = {"render_modes": []}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.observation_space.seed(self.np_random_seed)
        return self.observation_space.sample(), {"options": options}

    def step(self, action: Any) -> tuple:
        # Gymnasium passes NumPy's scalars where a space has arrays without dimensions.
        assert isinstance(action, np.floating) or action in self.action_space
        return self.observation_space.sample(), 0, False, False, {}


class Counting(Plain):
    """Counts to max_count."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(5))
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        del options
        self.count = seed or 0
        return self.count, {}

    def step(self, action: Any) -> tuple:
        self.count += 1
        return self.count, action, self.count == self.max_count, False, {}


class Slow(Plain):
    """Sleeps for as long as the action says; resets take 0.3 s."""

    def __init__(self, pause: float) -> None:
        super().__init__(spaces.Box(0, 255, (64, 64, 3), np.uint8), spaces.Box(0, 1, ()))
        self.pause = pause

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        time.sleep(self.pause)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple:
        time.sleep(float(action))
        return super().step(action)


class Spoken(gym.Env):
    """Observes text that is in no space of Gymnasium's."""

    observation_space = action_space = Letters()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed, options=options)
        return "reset", {}

    def step(self, action: str) -> tuple:
        return f"step({action})", 0.0, False, False, {}


class Failing(Plain):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if seed == 1:
            raise ValueError("Error in reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple:
        if action >= 1:
            raise ValueError(f"Error in step with {action}")
        return super().step(action)


# -------------------------------------------------------------------- construction, attributes


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_metadata_is_a_copy(maker: Any, mode: AutoresetMode) -> None:
    assert maker(CARTS, autoreset_mode=mode).metadata["autoreset_mode"] is mode
    assert maker(CARTS, autoreset_mode=mode.value).metadata["autoreset_mode"] is mode
    assert "autoreset_mode" not in cart_pole()().metadata


def test_attributes(maker: Any) -> None:
    envs = maker(CARTS)
    name = type(envs).__name__
    assert repr(envs) == f"{name}(num_envs=3)"
    envs.spec = gym.spec("CartPole-v1")
    assert repr(envs) == f"{name}(CartPole-v1, num_envs=3)"
    assert envs.unwrapped is envs
    assert isinstance(envs, gym.vector.VectorEnv)
    assert envs.render_mode is None
    assert not envs.closed


def test_shapes_and_dtypes(maker: Any) -> None:
    envs = maker(CARTS)
    assert isinstance(envs.observation_space, spaces.Box)
    assert isinstance(envs.action_space, spaces.MultiDiscrete)
    obs, infos = envs.reset()
    assert obs in envs.observation_space
    assert infos == {}
    for actions in (envs.action_space.sample(), [envs.single_action_space.sample()] * 3):
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        assert obs in envs.observation_space
        assert rewards.dtype == np.float64
        assert terminated.dtype == truncated.dtype == np.bool_
        assert rewards.shape == terminated.shape == truncated.shape == (3,)
        assert infos == {}


@pytest.mark.parametrize("name", sorted(SPACES.keys() - {"empty"}))
def test_every_space_as_observation_and_action(maker: Any, name: str) -> None:
    try:
        envs = maker([functools.partial(Plain, SPACES[name], SPACES[name])] * 3)
    except TypeError as error:
        if maker.ours or "has a dynamic shape" not in str(error):
            raise  # ours takes every space, with shared memory on
        return
    assert envs.observation_space == envs.action_space
    assert envs.reset()[0] in envs.observation_space
    assert envs.step(envs.action_space.sample())[0] in envs.observation_space


def test_a_custom_space(maker: Any) -> None:
    if maker.shared_memory:
        with pytest.raises(ValueError, match="shared_memory=True"):
            maker([Spoken] * 4)
        return
    envs = maker([Spoken] * 4)
    assert isinstance(envs.single_action_space, Letters)
    assert isinstance(envs.action_space, spaces.Tuple)
    assert envs.reset()[0] == ("reset",) * 4
    assert envs.step(("a", "b", "c", "d"))[0] == ("step(a)", "step(b)", "step(c)", "step(d)")


def test_envs_of_different_spaces(maker: Any) -> None:
    with pytest.raises(RuntimeError):
        maker([*CARTS, lambda: gym.make("FrozenLake-v1")])
    with pytest.raises(RuntimeError):
        maker([Plain, lambda: Plain(action=spaces.Discrete(4))])
    with pytest.raises(RuntimeError):
        maker([Plain, lambda: Plain(action=spaces.Box(0, 1))])


MIXED = [spaces.Box(0, 1, (3,)), spaces.Discrete(5), spaces.Dict({"a": spaces.Discrete(2)})]
WIDER = [spaces.Box(0, i, (5,)) for i in (1, 2, 3)]
LONGER = [spaces.Box(0, 1, (i,)) for i in (1, 2, 3)]
CUSTOM = spaces.Box(0, np.repeat([1, 2, 3], 5).reshape(3, 5), (3, 5)), WIDER[0]


@pytest.mark.parametrize("mode", ["same", "different", CUSTOM])
def test_observation_modes(maker: Any, mode: Any) -> None:
    def of(own: list[gym.Space]) -> Any:
        return maker([functools.partial(Plain, space) for space in own], observation_mode=mode)

    for own in (MIXED, LONGER):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            of(own)
    if mode == "same":
        text = "the sub-environments observation spaces are not equivalent"
        with pytest.raises(RuntimeError, match=f"{text}.*use `observation_mode='different'` inst"):
            of(WIDER)
        return
    envs = of(WIDER)
    assert envs.observation_space == batch_differing_spaces(WIDER)
    assert envs.single_observation_space == WIDER[0]
    assert envs.reset()[0] in envs.observation_space
    assert envs.step([0, 0, 0])[0] in envs.observation_space


def test_wrong_arguments(maker: Any) -> None:
    text = "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and"
    with pytest.raises(ValueError, match=re.escape(text)):
        maker(CARTS, observation_mode="invalid")
    with pytest.raises(TypeError, match="Expected both elements of observation_mode to be Spaces"):
        maker(CARTS, observation_mode=(1, 2))
    with pytest.raises(ValueError, match="is not a valid AutoresetMode"):
        maker(CARTS, autoreset_mode="Now")
    for wrong in (2.5, "2", 2.0):
        with pytest.raises(ValueError, match="`max_concurrency` must be an integer or None, got"):
            maker(CARTS, max_concurrency=wrong)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="`max_concurrency` must be a positive or None, got"):
            maker(CARTS, max_concurrency=wrong)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_max_concurrency(maker: Any, most: int) -> None:
    envs = maker([functools.partial(Slow, 0.0)] * 4, max_concurrency=most)
    envs.reset()
    begun = time.perf_counter()
    envs.step(np.full(4, 0.1, np.float32))
    assert time.perf_counter() - begun >= 0.1 * -(-4 // most)


# ------------------------------------------------------------------------------- reset and step


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_equal_to_sync(maker: Any, mode: AutoresetMode) -> None:
    envs, sync = maker(CARTS, autoreset_mode=mode), SyncVectorEnv(CARTS, autoreset_mode=mode)
    assert envs.observation_space == sync.observation_space
    assert equal(envs.reset(seed=0), sync.reset(seed=0))
    envs.action_space.seed(3)
    for _ in range(60):
        actions = envs.action_space.sample()
        assert actions in sync.action_space
        assert equal(envs.step(actions), sync.step(actions))


def play(envs: Any, resets: bool = False) -> list[tuple]:
    """Play Counting envs for some steps; return what came back, with `resets` masked resets."""
    envs.set_attr("max_count", [2, 3, 3])
    got: list[tuple] = [envs.reset()]
    for _ in range(4):
        got.append(envs.step([1, 2, 3]))
        over = got[-1][2]
        if resets and over.any():
            got.append(envs.reset(options={"reset_mask": over}))
    return got


OBSERVED = {
    AutoresetMode.NEXT_STEP: [[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 3, 3], [1, 0, 0]],
    AutoresetMode.SAME_STEP: [[0, 0, 0], [1, 1, 1], [0, 2, 2], [1, 0, 0], [0, 1, 1]],
    AutoresetMode.DISABLED: [
        *([0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 2, 2], [1, 3, 3], [1, 0, 0], [2, 1, 1], [0, 1, 1])
    ],
}


@pytest.mark.parametrize("mode", OBSERVED)
def test_autoreset_by_hand(maker: Any, mode: AutoresetMode) -> None:
    envs = maker([Counting] * 3, autoreset_mode=mode)
    got = play(envs, resets=mode is AutoresetMode.DISABLED)
    assert [batch[0].tolist() for batch in got] == OBSERVED[mode]
    if mode is AutoresetMode.NEXT_STEP:
        assert [batch[1].tolist() for batch in got[1:]] == [[1, 2, 3]] * 2 + [[0, 2, 3], [1, 0, 0]]
    if mode is AutoresetMode.SAME_STEP:
        infos = [batch[4] for batch in got[1:]]
        assert infos[0] == {}
        assert infos[1]["final_obs"].tolist() == [2, None, None]
        assert infos[2]["final_obs"].tolist() == [None, 3, 3]
        assert infos[2]["_final_obs"].tolist() == [False, True, True]
        assert infos[2]["final_info"] == {}
        assert infos[2]["_final_info"].tolist() == [False, True, True]


def test_a_reset_after_the_end_of_an_episode_drops_the_automatic_one(maker: Any) -> None:
    if not maker.ours and not maker.shared_memory:
        pytest.skip("a fault of Gymnasium's: its next step is swallowed")
    envs = maker([Counting] * 3)
    envs.set_attr("max_count", 2)
    envs.reset()
    envs.step([0, 0, 0])
    assert envs.step([0, 0, 0])[2].all()
    envs.reset()
    assert envs.step([0, 0, 0])[0].tolist() == [1, 1, 1]


def test_masks_of_resets(maker: Any) -> None:
    envs = maker(CARTS, autoreset_mode=AutoresetMode.DISABLED)
    first = envs.reset(seed=[0, 1, 2], options={"reset_mask": np.ones(3, bool)})[0]
    stepped = envs.step([0, 1, 0])[0]
    mask = np.array([True, True, False])
    again = envs.reset(seed=[0, 1, 0], options={"reset_mask": mask})[0]
    assert equal(again[:2], first[:2])
    assert equal(again[2], stepped[2])
    assert envs.np_random_seed == (0, 1, 2)
    for wrong, error, text in (
        ([True, True, True], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, "must have shape `(3,)`, got (1,)"),
        (np.ones((1, 3), bool), ValueError, "must have shape `(3,)`, got (1, 3)"),
        (np.array([1, 1, 0]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "must contain a boolean array with at least one True"),
    ):
        with pytest.raises(error, match=re.escape(f"`options['reset_mask']` {text}")):
            envs.reset(options={"reset_mask": wrong})
    with pytest.raises(ValueError, match=re.escape("must match num_envs=3 but got length=2.")):
        envs.reset(seed=[1, 2])


def test_final_infos(maker: Any) -> None:
    class Env(Plain):
        def reset(self, **_: Any) -> tuple:
            return 0, {"reset": True}

        def step(self, action: Any) -> tuple:
            return (action if action < 3 else 0), 0, bool(action >= 3), False, {"action": action}

    envs = maker([lambda: Env(spaces.Discrete(4), spaces.Discrete(4))])
    assert equal(envs.reset()[1], {"reset": np.array([True]), "_reset": np.array([True])})
    for action in (1, 2, 3):
        obs, _, terminated, _, infos = envs.step([action])
        assert obs == [action % 3]
        assert terminated == [action == 3]
        assert infos["action"] == [action]
    assert envs.step([0])[4]["reset"] == [True]


def test_half_floats(maker: Any) -> None:
    envs = maker([functools.partial(Plain, SPACES["half"])] * 2)
    assert envs.reset(seed=0)[0].dtype == np.float16
    assert envs.step([0, 0])[0].shape == (2, 2)


def test_large_observations(maker: Any) -> None:
    space = spaces.Box(0, 255, (128, 128, 3), np.uint8)
    envs = maker([functools.partial(Plain, space)] * 2, max_concurrency=1)
    envs.reset_async()
    assert envs.reset_wait(timeout=20)[0].shape == (2, 128, 128, 3)


@pytest.mark.parametrize("copy", [True, False])
def test_a_returned_batch_may_be_changed(maker: Any, copy: bool) -> None:
    envs = maker(CARTS, copy=copy)
    obs, _ = envs.reset()
    obs[0] = 0
    envs.step([0, 0, 0])
    del obs


def test_wrong_numbers_of_actions(maker: Any) -> None:
    envs = maker(CARTS)
    envs.reset()
    with pytest.raises(TypeError):
        envs.step(1)
    if maker.ours:  # Gymnasium's has sent some actions by then
        for wrong in ([0, 1], [0, 1, 0, 1]):
            with pytest.raises(ValueError, match="actions for 3 envs"):
                envs.step(wrong)
        envs.step([0, 1, 0])


# ------------------------------------------------------------------------- calls and attributes


def test_render(maker: Any) -> None:
    envs = maker([cart_pole(i, render_mode="rgb_array") for i in range(2)])
    assert envs.render_mode == "rgb_array"
    envs.reset()
    frames = envs.render()
    assert isinstance(frames, tuple)
    assert [frame.dtype for frame in frames] == [np.uint8] * 2


def test_call_get_attr_set_attr(maker: Any) -> None:
    envs = maker(CARTS)
    envs.reset(seed=7)
    assert envs.call("gravity") == (9.8,) * 3
    assert envs.call("get_wrapper_attr", "gravity") == (9.8,) * 3
    envs.set_attr("gravity", [9.81, 3.72, 8.87])
    assert envs.get_attr("gravity") == (9.81, 3.72, 8.87)
    envs.set_attr("gravity", 1.62)
    envs.set_attr("mood", (1, "a", None))
    assert envs.get_attr("gravity") == (1.62,) * 3
    assert envs.get_attr("mood") == (1, "a", None)
    with pytest.raises(ValueError, match="Values must be a list or tuple with length equal to the"):
        envs.set_attr("gravity", [1.0])
    assert envs.np_random_seed == (7, 8, 9)
    assert all(isinstance(one, np.random.Generator) for one in envs.np_random)
    envs.reset(seed=None)
    assert envs.np_random_seed == (7, 8, 9)


def test_seeds_before_the_first_reset(maker: Any) -> None:
    assert maker(CARTS).np_random_seed == (0, 1, 2)


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_calls_that_are_refused(maker: Any, name: str) -> None:
    envs = maker(CARTS)
    text = f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
    with pytest.warns() if not maker.ours else _nothing(), pytest.raises(ValueError, match=text):
        envs.call(name)
    envs.close(terminate=True)


class _nothing:  # noqa: N801 - as contextlib's
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


# --------------------------------------------------------------------------------- asynchronous


def test_timeouts(maker: Any) -> None:
    envs = maker([functools.partial(Slow, 0.3)] * 2)
    envs.reset_async()
    with pytest.raises(MpTimeoutError, match=re.escape("timed out after 0.1 second(s)")):
        envs.reset_wait(timeout=0.1)
    envs.close(terminate=True)
    envs = maker([functools.partial(Slow, 0.0)] * 2)
    envs.reset()
    envs.step_async(np.array([0.1, 0.3], np.float32))
    with pytest.raises(MpTimeoutError, match=re.escape("timed out after 0.1 second(s)")):
        envs.step_wait(timeout=0.1)
    envs.close(terminate=True)


@pytest.mark.parametrize("call", ["reset", "step", "call"])
def test_waiting_for_nothing(maker: Any, call: str) -> None:
    envs = maker(CARTS)
    envs.reset()
    text = f"Calling `{call}_wait` without any prior call to `{call}_async`."
    with pytest.raises(NoAsyncCallError, match=re.escape(text)) as caught:
        getattr(envs, f"{call}_wait")()
    assert caught.value.name == call


@pytest.mark.parametrize("call", ["reset_async", "step_async", "call_async", "set_attr"])
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_a_second_call_while_one_is_pending(maker: Any, pending: str, call: str) -> None:
    envs = maker(CARTS)
    envs.reset()
    begin = {
        "reset_async": envs.reset_async,
        "step_async": lambda: envs.step_async([0, 0, 0]),
        "call_async": lambda: envs.call_async("gravity"),
        "set_attr": lambda: envs.set_attr("gravity", 1.0),
    }
    begin[f"{pending}_async"]()
    text = f"Calling `{call}` while waiting for a pending call to `{pending}` to complete"
    with pytest.raises(AlreadyPendingCallError, match=re.escape(text)) as caught:
        begin[call]()
    assert caught.value.name == pending
    text = f"Calling `close` while waiting for a pending call to `{pending}` to complete."
    with pytest.warns(UserWarning, match=re.escape(text)):
        envs.close(terminate=True)


def test_calls_after_close(maker: Any) -> None:
    envs = maker(CARTS)
    envs.close()
    envs.close()
    assert envs.closed
    for call in (
        envs.reset,
        lambda: envs.step([0, 0, 0]),
        lambda: envs.call("gravity"),
        lambda: envs.set_attr("gravity", 1.0),
        envs.render,
        envs.reset_wait,
    ):
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close\\(\\)`."):
            call()


def test_an_error_of_an_env_keeps_its_type(maker: Any) -> None:
    for fail in (lambda e: e.reset(seed=[1, 0]), lambda e: e.step([0, 2])):
        envs = maker([Failing] * 2)
        envs.reset(seed=[0, 0])
        # Gymnasium logs the traceback; ours is in the message of the error.
        warned = _nothing() if maker.ours else pytest.warns()
        with warned, pytest.raises(ValueError, match="Error in ") as caught:
            fail(envs)
        if maker.ours:
            assert "Traceback" in str(caught.value)
        envs.close(terminate=not maker.ours)


def test_a_step_before_the_first_reset_reaches_the_env(maker: Any) -> None:
    envs = maker([Plain] * 2)
    assert envs.step([0, 0])[0].shape == (2, 1)


def test_a_custom_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="EnvWorker"):
        VectorEnv(CARTS, worker=lambda *_: None)
    with DummyVectorEnv(CARTS) as pool, pytest.raises(ValueError, match="options to the pool"):
        VectorEnv(pool, num_processes=2)
