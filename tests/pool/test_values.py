"""Values: dtypes, casts that lose nothing, and that what was returned never changes."""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envpool_py import DummyVectorEnv, EnvError
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, check, check_reset, same

# ------------------------------------------------- casts; tests/unit/test_spaces.py has them all


def says(dtype: str) -> envs.ChangedEnv:
    """Make an env that observes what its action, or the option `obs` of a reset, says."""
    env = envs.ChangedEnv(
        step=lambda env, action, row: (action, *row[1:]),  # noqa: ARG005
        reset=lambda env, row: ((row[1]["options"] or {}).get("obs", [0, 0]), {}),  # noqa: ARG005
        space=envs.box(dtype, (2,)),
    )
    del env.action_space
    return env


@pytest.mark.parametrize("place", QUICK)
def test_casts_that_lose_nothing_are_made_and_others_refused_at_any_step(place: str) -> None:
    fns = [functools.partial(says, "float32")] * 2
    with PLACES[place](fns) as pool:
        pool.reset()
        for fine in (np.array([0.1, 2.0]), np.array([3, -4]), [1, 2.5], np.arange(8.0)[::4]):
            wanted = np.asarray([fine]).astype(np.float32)
            assert same(pool.step([fine], [1])[0], wanted)
            assert same(pool.reset([1], options={"obs": fine})[0], wanted)
        for wrong in (np.array([2**24 + 1, 0]), np.array([1e300, 0.0]), "no", b"ab"):
            with pytest.raises(EnvError, match=r"env 1: step raised .*float32"):
                pool.step([[3, -4], wrong])
            assert pool.drain()[0].tolist() == [[3.0, -4.0]]
            with pytest.raises(EnvError, match=r"env 1: reset raised .*float32"):
                pool.reset([1], options={"obs": wrong})
            pool.reset([1])


@pytest.mark.parametrize("place", QUICK)
def test_bytes_are_no_observation_at_any_step(place: str) -> None:
    fns = [functools.partial(says, "uint8")] * 2
    with PLACES[place](fns) as pool:
        pool.reset()
        pool.step([[1, 2], np.array([1, 2], np.uint8)])
        with pytest.raises(EnvError, match="env 1: step raised"):
            pool.step([[1, 2], b"ab"])


# --------------------------------------------------------------------------------- rewards, flags


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
    def give(_: Any, action: Any, row: tuple) -> tuple:
        return row[0], *GIVEN[int(action)], row[4]

    with PLACES[place]([functools.partial(envs.ChangedEnv, step=give)]) as pool:
        pool.reset()
        for action, (reward, terminated, truncated) in enumerate(GIVEN):
            batch = pool.step([action])
            assert same(batch[1], np.array([np.float64(reward)]))
            assert same(batch[2], np.array([bool(terminated)]))
            assert same(batch[3], np.array([bool(truncated)]))


@pytest.mark.parametrize("place", QUICK)
def test_vector_rewards_keep_their_shape(place: str) -> None:
    fns = [functools.partial(envs.VectorRewardEnv, tag, 2, as_list=tag == 2) for tag in range(3)]
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

SUBJECTS: dict[str, Callable[[int], Any]] = {
    "arrays and infos": envs.BufferEnv,
    "a declared tree": envs.TreeBufferEnv,
    "an undeclared tree": functools.partial(envs.TreeBufferEnv, declared=False),
    "state and reward": envs.ReturnsItsStateEnv,
    "box": functools.partial(envs.SpaceEnv, name="box-float32"),
    "nested": functools.partial(envs.SpaceEnv, name="nested"),
    "mixed": functools.partial(envs.SpaceEnv, name="mixed"),
}
ROWS_AND_COLUMNS = [*((name, False) for name in SUBJECTS), ("nested", True), ("mixed", True)]


@pytest.mark.parametrize(("subject", "columns"), ROWS_AND_COLUMNS)
@pytest.mark.parametrize("place", QUICK)
def test_what_was_returned_never_changes(place: str, subject: str, columns: bool) -> None:
    fns = [functools.partial(SUBJECTS[subject], tag) for tag in range(3)]
    hand = HandStepped(fns)
    space = getattr(hand.envs[0], "observation_space", None)
    rng = np.random.default_rng(0)
    held = []
    with PLACES[place](fns, columns=columns) as pool:
        resets = [(pool.reset(seed=1), hand.reset(seeds=[1, 2, 3]))]
        for step in range(12):
            ids = [[0, 1, 2], [2, 1], [0]][step % 3]
            actions = [envs.draw(hand.envs[0].action_space, rng) for _ in ids]
            held.append((pool.step(actions, ids), hand.step(actions, ids)))
            if step % 5 == 4:
                resets.append((pool.reset(), hand.reset()))
        for result, rows in resets:
            check_reset(result, rows, space, columns=columns)
        for batch, rows in held:
            check(batch, rows, space, columns=columns)
    for batch, rows in held:  # nor does closing the pool take it away
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
@pytest.mark.parametrize("place", BACKENDS)
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


@pytest.mark.parametrize("place", QUICK)
def test_the_caller_may_reuse_its_list_of_actions(place: str) -> None:
    fns = [functools.partial(envs.UndeclaredEnv, tag, "alike") for tag in range(2)]
    hand = HandStepped(fns)
    with PLACES[place](fns) as pool:
        pool.reset()
        hand.reset()
        for _ in range(3):
            actions = [np.arange(3), {"deep": [1, 2]}]
            wanted = hand.step(copy.deepcopy(actions))
            pool.send(actions)
            actions[0][...] = -99
            actions[1]["deep"].append(-99)
            actions[:] = [None, None]
            check(pool.recv(), wanted, None)


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


def test_an_object_of_any_kind_in_an_info_is_copied() -> None:
    queue = collections.deque([0])

    def change(env: Any, _: Any, row: tuple) -> tuple:
        queue[0] = env.t
        return *row[:4], {"queue": queue}

    with DummyVectorEnv([functools.partial(envs.ChangedEnv, step=change)]) as pool:
        pool.reset()
        first = pool.step([0])[4][0]["queue"]
        pool.step([0])
        assert list(first) == [1]
