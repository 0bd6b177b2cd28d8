"""Values: dtypes, casts that lose nothing, and that what was returned never changes."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import PLACES, QUICK
from tests.support.reference import HandStepped, check, check_reset, same

# --------------------------------------------------------------------------------- casts


class SaysEnv(envs.CountEnv):
    """Observes what its action, or the option `obs` of a reset, says, in a space of choice."""

    def __init__(self, space: spaces.Space, first: Any) -> None:
        super().__init__(0, length=100)
        self.observation_space, self.first = space, first
        self.action_space = spaces.Text(9)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        return (options or {}).get("obs", self.first), {}

    def step(self, action: Any) -> tuple:
        return OBS[action], 1.0, False, False, {}


OBS: dict[str, Any] = {
    "float64, exact": np.array([1.5, -2.0]),
    "float64, 0.1 rounded to float32": np.array([0.1, 0.2], np.float32).astype(np.float64),
    "ints": np.array([3, -4]),
    "list": [1.0, 2.0],
    "tuple": (1, 2),
    "bools": np.array([True, False]),
    "large ints": np.array([2**24, -(2**24)]),
    "strided": np.arange(8, dtype=np.float32)[::4],
    "big endian": np.array([1.25, 2.5], ">f4"),
    "NaN and inf": np.array([np.nan, -np.inf], np.float32),
    "float64 NaN and inf": np.array([np.nan, np.inf]),
    "too precise int": np.array([2**24 + 1, 0]),
    "overflowing": np.array([1e300, 0.0]),
    "text": "no",
}
FINE = [name for name in OBS if name not in ("too precise int", "overflowing", "text")]


@pytest.mark.parametrize("place", QUICK)
def test_values_that_a_dtype_can_hold_are_taken(place: str) -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with PLACES[place]([functools.partial(SaysEnv, space, np.zeros(2, np.float32))]) as pool:
        pool.reset()
        for name in FINE:
            obs = pool.step([name])[0]
            assert same(obs, np.asarray([OBS[name]]).astype(np.float32)), name
            obs, _ = pool.reset(options={"obs": OBS[name]})
            assert same(obs, np.asarray([OBS[name]]).astype(np.float32)), name


@pytest.mark.parametrize("name", ["too precise int", "overflowing", "text"])
@pytest.mark.parametrize("place", QUICK)
def test_values_that_a_dtype_cannot_hold_are_refused(place: str, name: str) -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    fns = [functools.partial(SaysEnv, space, np.zeros(2, np.float32)) for _ in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        pool.step(["ints", "ints"])  # at any step, not the first alone
        with pytest.raises(EnvError, match=r"env 1: step raised .*float32"):
            pool.step(["ints", name])
        assert pool.drain()[0].tolist() == [[3.0, -4.0]]
        pool.reset([1])
        assert len(pool.step(["ints", "ints"])[1]) == 2


@pytest.mark.parametrize("place", QUICK)
def test_bytes_are_no_observation_at_any_step(place: str) -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    fns = [functools.partial(GivesBytesThird, space, np.zeros(2, np.uint8)) for _ in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        for _ in range(2):
            pool.step(["ints", "ints"])
        with pytest.raises(EnvError, match="step raised"):
            pool.step(["ints", "ints"])


class GivesBytesThird(SaysEnv):
    """Its third observation is bytes."""

    steps = 0

    def step(self, action: Any) -> tuple:
        self.steps += 1
        obs = b"ab" if self.steps == 3 else np.array([1, 2], np.uint8)
        return obs, *super().step(action)[1:]


INTEGERS = [
    # space, what is returned, what must arrive: None where it cannot
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1.0, 255.0]), [1, 255]),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 255]), [1, 255]),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 300]), None),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1, -1]), None),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1.0, 300.7]), None),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([1.0, np.nan]), None),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([256.0, 0.0]), None),
    (spaces.Box(-9, 9, (2,), np.int64), np.array([1.5, 2.0]), None),
    (spaces.Box(-9, 9, (2,), np.int64), np.array([1e30, 2.0]), None),
    (spaces.Box(-9, 9, (2,), np.int64), np.array([2**64 - 1, 0], np.uint64), None),
    (spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.array([-1, 0]), None),
    (spaces.Box(0, 1, (2,), bool), np.array([1, 0]), [True, False]),
    (spaces.Box(0, 1, (2,), bool), np.array([2, 0]), None),
    (spaces.MultiBinary(2), [True, False], [1, 0]),
    (spaces.MultiBinary(2), np.array([1.0, 0.0]), [1, 0]),
    (spaces.Discrete(5), 3, 3),
    (spaces.Discrete(5), np.int32(3), 3),
    (spaces.Discrete(5), np.array(3), 3),
    (spaces.Discrete(5), True, 1),
    (spaces.Discrete(5), 3.0, 3),
    (spaces.Discrete(5), 3.5, None),
    (spaces.Discrete(5), np.array([3]), None),
    (spaces.Discrete(5), None, None),
    (spaces.Box(-1, 1, (), np.float32), 0.5, 0.5),
    (spaces.Box(-1, 1, (), np.float32), np.array([0.5]), None),
]


@pytest.mark.parametrize(
    ("space", "given", "wanted"), INTEGERS, ids=[f"{s}-{g}" for s, g, _ in INTEGERS]
)
@pytest.mark.parametrize("place", ["dummy", "subproc-fork-packed", "shmem-fork-packed"])
def test_a_cast_loses_nothing(place: str, space: spaces.Space, given: Any, wanted: Any) -> None:
    space.seed(0)
    fns = [functools.partial(SaysEnv, space, space.sample())] * 2
    with PLACES[place](fns) as pool:
        pool.reset()
        if wanted is None:
            with pytest.raises(EnvError, match="env 1: reset raised"):
                pool.reset([1], options={"obs": given})
        else:
            obs, _ = pool.reset([1], options={"obs": given})
            assert same(obs, np.asarray([wanted], space.dtype))
        assert len(pool.reset()[0]) == 2


# --------------------------------------------------------------------------------- rewards, flags


class GivesEnv(envs.CountEnv):
    """Rewards and flags are what a table says."""

    def step(self, action: Any) -> tuple:
        obs, *_, info = super().step(action)
        reward, terminated, truncated = GIVEN[int(action)]
        return obs, reward, terminated, truncated, info


GIVEN: list[tuple[Any, Any, Any]] = [
    (1, False, False),
    (np.float32(0.1), np.bool_(True), False),
    (np.int8(-3), False, np.bool_(True)),
    (np.array(2.5), False, False),
    (True, False, False),
    (float("nan"), False, False),
    (float("-inf"), True, True),
    (2**53, np.False_, np.True_),
    (0.1, 1, 0),
    (np.float16(0.1), np.array(True), np.array(False)),
]


@pytest.mark.parametrize("place", QUICK)
def test_rewards_are_float64_and_flags_bool(place: str) -> None:
    with PLACES[place]([functools.partial(GivesEnv, 0, 99)]) as pool:
        pool.reset()
        for action, (reward, terminated, truncated) in enumerate(GIVEN):
            batch = pool.step([action])
            assert same(batch[1], np.array([np.float64(reward)]))
            assert same(batch[2], np.array([bool(terminated)]))
            assert same(batch[3], np.array([bool(truncated)]))


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("place", QUICK)
def test_vector_rewards_keep_their_shape(place: str, as_list: bool) -> None:
    fns = [functools.partial(envs.VectorRewardEnv, tag, 2, as_list) for tag in range(3)]
    with PLACES[place](fns, wait_num=2, autoreset_mode="next_step") as pool:
        pool.reset()
        pool.send([0, 0, 0])
        pool.drain()
        pool.send_reset([1])
        pool.send([0], [2])
        _, reward, _, _, info = pool.drain()
        by_id = {row["env_id"]: r for row, r in zip(info, reward, strict=True)}
        assert same(by_id[1], np.zeros(3))  # a reset's reward is 0 for each agent
        assert same(by_id[2], np.array([2002.0, -2002.0, 0.5]))


# --------------------------------------------------------------------------------- aliasing

REUSING = {
    "arrays and infos": envs.BufferEnv,
    "a declared tree": envs.TreeBufferEnv,
    "an undeclared tree": functools.partial(envs.TreeBufferEnv, declared=False),
    "state and reward": envs.ReturnsItsStateEnv,
}


@pytest.mark.parametrize("subject", REUSING)
@pytest.mark.parametrize("place", QUICK)
def test_what_was_returned_never_changes(place: str, subject: str) -> None:
    fns = [functools.partial(REUSING[subject], tag) for tag in range(3)]
    hand = HandStepped(fns)
    space = getattr(hand.envs[0], "observation_space", None)
    held = []
    with PLACES[place](fns) as pool:
        resets = [(pool.reset(seed=1), hand.reset(seeds=[1, 2, 3]))]
        for step in range(12):
            ids = [[0, 1, 2], [2, 1], [0]][step % 3]
            actions = [np.int64(step)] * len(ids)
            held.append((pool.step(actions, ids), hand.step(actions, ids)))
            if step % 5 == 4:
                resets.append((pool.reset(), hand.reset()))
        for result, rows in resets:
            check_reset(result, rows, space)
        for batch, rows in held:
            check(batch, rows, space)
    for batch, rows in held:  # nor does closing the pool take it away
        check(batch, rows, space)


@pytest.mark.parametrize("name", ["box-float32", "dict", "tuple", "nested", "mixed", "discrete"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("place", QUICK)
def test_no_batch_shares_memory_with_a_later_one(place: str, columns: bool, name: str) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(3)]
    hand = HandStepped(fns)
    space = hand.envs[0].observation_space
    rng = np.random.default_rng(0)
    held = []
    with PLACES[place](fns, columns=columns) as pool:
        pool.reset(seed=2)
        hand.reset(seeds=[2, 3, 4])
        for step in range(9):
            ids = [[0, 1, 2], [1], [2, 0]][step % 3]
            actions = [envs.draw(space, rng) for _ in ids]
            held.append((pool.step(actions, ids), hand.step(actions, ids)))
        for batch, rows in held:
            check(batch, rows, space, columns=columns)


@pytest.mark.parametrize("place", QUICK)
def test_what_was_returned_is_the_callers_to_change(place: str) -> None:
    fns = [functools.partial(envs.BufferEnv, tag, 2) for tag in range(2)]
    hand = HandStepped(fns, "same_step")
    space = hand.envs[0].observation_space
    with PLACES[place](fns, autoreset_mode="same_step") as pool:
        obs, info = pool.reset()
        hand.reset()
        for _ in range(6):
            obs[...] = -1
            for row in info:
                row["array"][...] = 77
                row["list"].append(5)
                row.clear()
            batch = pool.step([0, 0])
            check(batch, hand.step([0, 0]), space)
            obs, reward, terminated, _, info = batch
            reward[...] = -1
            terminated[...] = True


@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
@pytest.mark.parametrize("place", QUICK)
def test_the_envs_own_info_is_left_alone(place: str, mode: str | None) -> None:
    fns = [functools.partial(envs.BufferEnv, tag, 2) for tag in range(2)]
    with PLACES[place](fns, autoreset_mode=mode) as pool:
        pool.reset()
        for _ in range(5):
            pool.step([0, 0])
            assert pool.call("told_keys") == [["array", "list", "step"]] * 2


@pytest.mark.parametrize("kind", ["box", "nested"])
@pytest.mark.parametrize("place", QUICK)
def test_an_action_is_the_envs_own(place: str, kind: str) -> None:
    fns = [functools.partial(envs.KeepsActionEnv, tag, kind) for tag in range(3)]
    hand = HandStepped(fns)
    space = hand.envs[0].action_space
    rng = np.random.default_rng(4)
    with PLACES[place](fns) as pool:
        pool.reset()
        hand.reset()
        for _ in range(6):
            actions = [envs.draw(space, rng) for _ in range(3)]
            check(pool.step(actions), hand.step(actions), space)
            actions = [envs.draw(space, rng) for _ in range(2)]
            check(pool.step(actions, [2, 0]), hand.step(actions, [2, 0]), space)


@pytest.mark.parametrize("place", QUICK)
def test_the_caller_may_reuse_its_array_of_actions(place: str) -> None:
    fns = [functools.partial(envs.KeepsActionEnv, tag) for tag in range(2)]
    hand = HandStepped(fns)
    space = hand.envs[0].action_space
    actions = np.zeros((2, 2, 3), np.float32)
    with PLACES[place](fns) as pool:
        pool.reset()
        hand.reset()
        for step in range(6):
            actions[...] = step
            wanted = hand.step(actions.copy())
            pool.send(actions)
            actions[...] = -99  # before recv, and after it
            check(pool.recv(), wanted, space)


@pytest.mark.parametrize("name", ["nested", "text", "undeclared"])
@pytest.mark.parametrize("place", QUICK)
def test_the_caller_may_reuse_its_list_of_actions(place: str, name: str) -> None:
    make = (
        functools.partial(envs.UndeclaredEnv, kind="alike")
        if name == "undeclared"
        else functools.partial(envs.SpaceEnv, name=name)
    )
    fns = [functools.partial(make, tag) for tag in range(2)]
    hand = HandStepped(fns)
    space = getattr(hand.envs[0], "observation_space", None)
    rng = np.random.default_rng(6)
    with PLACES[place](fns) as pool:
        pool.reset(seed=1)
        hand.reset(seeds=[1, 2])
        for _ in range(3):
            if name == "undeclared":
                actions = [np.arange(3), [1, 2]]
            else:
                actions = [envs.draw(space, rng) for _ in range(2)]
            wanted = hand.step(copy.deepcopy(actions))
            pool.send(actions)
            if name == "nested":
                actions[0]["b"][0][...] = -99
            elif name == "undeclared":
                actions[0][...] = -99
                actions[1].append(-99)
            actions[:] = [None, None]
            check(pool.recv(), wanted, space)


@pytest.mark.parametrize("place", QUICK)
def test_an_env_that_writes_into_its_action_does_not_write_into_the_callers(place: str) -> None:
    fns = [functools.partial(envs.EatsActionEnv, tag) for tag in range(2)]
    with PLACES[place](fns) as pool:
        pool.reset()
        actions = np.full((2, 2), 5, np.float32)
        pool.step(actions)
        assert (actions == 5).all()
        listed = [np.full(2, 6, np.float32), np.full(2, 7, np.float32)]
        pool.step(listed)
        assert [a.tolist() for a in listed] == [[6, 6], [7, 7]]


@pytest.mark.parametrize("name", ["box-float32", "dict", "text"])
@pytest.mark.parametrize("place", QUICK)
def test_without_copies_a_batch_holds_until_its_envs_are_stepped(place: str, name: str) -> None:
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag in range(4)]
    hand = HandStepped(fns)
    space = hand.envs[0].observation_space
    rng = np.random.default_rng(0)
    with PLACES[place](fns, copy=False) as pool:
        check_reset(pool.reset(seed=1), hand.reset(seeds=[1, 2, 3, 4]), space)
        for _ in range(4):
            halves = []
            for ids in ([0, 1], [2, 3]):
                actions = [envs.draw(space, rng) for _ in ids]
                halves.append((pool.step(actions, ids), hand.step(actions, ids)))
            for batch, rows in halves:
                check(batch, rows, space)
            actions = [envs.draw(space, rng) for _ in range(4)]
            check(pool.step(actions), hand.step(actions), space)


def test_infos_are_fresh_dicts() -> None:
    with DummyVectorEnv([functools.partial(envs.BufferEnv, 0)]) as pool:
        _, first = pool.reset()
        _, second = pool.reset()
        assert first[0] is not second[0]
        assert first[0]["array"] is not second[0]["array"]
