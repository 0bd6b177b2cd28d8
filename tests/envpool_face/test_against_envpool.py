"""The same calls on EnvPool itself: the same types, ids and reset rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import envpool as theirs
import numpy as np
import pytest

from envpool_py import envpool as ours

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered:UserWarning")

TASKS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")
OPTIONS = {"num_envs": 4, "num_threads": 2, "seed": 3, "max_episode_steps": 12}


def types(value: Any) -> Any:
    """Return the keys, dtypes and shapes in a tree."""
    if hasattr(value, "_fields"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: types(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(map(types, value))
    return str(value.dtype), value.shape


def run(library: Any, calls: Callable[[Any, list], None], *args: Any, **options: Any) -> list:
    """Return what the calls note."""
    notes: list[Any] = []
    pool = library.make(*args, **{**OPTIONS, **options})
    try:
        calls(pool, notes)
    finally:
        pool.close()
    return notes


def sync(pool: Any, notes: list) -> None:
    actions = np.zeros((4, *pool.action_space.shape), pool.action_space.dtype)
    notes += [types(pool.reset()), pool.is_async, len(pool), types(pool.all_env_ids)]
    batch = pool.step(actions, np.array([2, 0, 3, 1], np.int32))
    notes += [types(batch), batch[4]["env_id"].tolist()]
    pool.send(actions[:2], np.array([1, 0], np.int32))
    batch = pool.recv()
    notes += [types(batch), batch[4]["env_id"].tolist(), batch[4]["elapsed_step"].tolist()]
    obs, info = pool.reset(np.array([1, 2], np.int32))
    notes += [types((obs, info)), info["env_id"].tolist(), info["elapsed_step"].tolist()]
    notes.append(types(pool.reset(options={"reset_mask": np.arange(4) < 2})))
    pool.reset()
    over = np.zeros(4, dtype=bool)
    for _ in range(30):
        _, reward, terminated, truncated, info = pool.step(actions)
        notes += [(info["elapsed_step"][over] == 0).all(), (reward[over] == 0).all()]
        notes += [(terminated | truncated)[over].any(), (info["elapsed_step"][~over] > 0).all()]
        over = terminated | truncated


def partial(pool: Any, notes: list) -> None:
    pool.async_reset()
    ids = []
    for _ in range(2):
        batch = pool.recv()
        notes.append(types(batch))
        ids += batch[4]["env_id"].tolist()
    notes += [sorted(ids), pool.is_async]
    last = batch[4]["env_id"]
    batch = pool.step(np.zeros((2, *pool.action_space.shape), pool.action_space.dtype), last)
    notes += [types(batch), set(batch[4]["env_id"]) == set(last), batch[4]["elapsed_step"].tolist()]


def time_steps(pool: Any, notes: list) -> None:
    spec = pool.action_spec()
    notes += [types(pool.reset()), pool.observation_spec()._fields, spec.shape]
    actions = np.zeros((4, *spec.shape), spec.dtype)
    last = np.zeros(4, dtype=bool)
    for _ in range(30):
        step = pool.step(actions)
        notes += [types(step), (step.step_type[last] == 0).all(), (step.step_type[~last] > 0).all()]
        notes += [((step.discount == 0) == (step.step_type == 2)).all()]
        last = step.step_type == 2


@pytest.mark.parametrize("task", TASKS)
def test_sync(task: str) -> None:
    assert run(ours, sync, task, "gymnasium") == run(theirs, sync, task, "gymnasium")


@pytest.mark.parametrize("task", TASKS)
def test_partial_batches(task: str) -> None:
    both = [run(one, partial, task, "gym", batch_size=2) for one in (ours, theirs)]
    assert both[0] == both[1]


@pytest.mark.parametrize("task", TASKS)
def test_dm(task: str) -> None:
    assert run(ours, time_steps, task, "dm") == run(theirs, time_steps, task, "dm")
