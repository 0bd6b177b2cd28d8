"""The same calls on EnvPool itself: the same types, ids and reset rows."""

import contextlib

import envpool as theirs
import numpy as np
import pytest

from envpool_py import envpool as ours

pytestmark = pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered:UserWarning")

TASKS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")


def types(value):
    """Return the keys, dtypes and shapes in a tree."""
    if hasattr(value, "_fields"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: types(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(map(types, value))
    return str(value.dtype), value.shape


def sync(pool):
    actions = np.zeros((4, *pool.action_space.shape), pool.action_space.dtype)
    yield types(pool.reset()), pool.is_async, len(pool), types(pool.all_env_ids)
    pool.send(actions, np.array([2, 0, 3, 1], np.int32))
    batches = [pool.recv(), pool.step(actions[:2], np.array([1, 0], np.int32))]
    for batch in [*batches, pool.reset(np.array([1, 2], np.int32))]:
        yield types(batch), [batch[-1][key].tolist() for key in ("env_id", "elapsed_step")]
    yield types(pool.reset(options={"reset_mask": np.arange(4) < 2}))
    pool.reset()
    over = np.zeros(4, dtype=bool)
    for _ in range(30):
        _, reward, terminated, truncated, info = pool.step(actions)
        yield (info["elapsed_step"][over] == 0).all(), (reward[over] == 0).all()
        yield (terminated | truncated)[over].any(), (info["elapsed_step"][~over] > 0).all()
        over = terminated | truncated


def partial(pool):
    pool.async_reset()
    batches = [pool.recv(), pool.recv()]
    ids = [batch[4]["env_id"] for batch in batches]
    batch = pool.step(np.zeros((2, *pool.action_space.shape), pool.action_space.dtype), ids[1])
    yield set(batch[4]["env_id"]) == set(ids[1]), batch[4]["elapsed_step"].tolist(), pool.is_async
    yield [types(each) for each in (*batches, batch)], sorted(np.concatenate(ids).tolist())


def time_steps(pool):
    spec = pool.action_spec()
    yield types(pool.reset()), pool.observation_spec()._fields, spec.shape
    actions = np.zeros((4, *spec.shape), spec.dtype)
    last = np.zeros(4, dtype=bool)
    for _ in range(30):
        step = pool.step(actions)
        yield types(step), (step.step_type[last] == 0).all(), (step.step_type[~last] > 0).all()
        yield ((step.discount == 0) == (step.step_type == 2)).all()
        last = step.step_type == 2


@pytest.mark.parametrize(
    ("calls", "env_type", "options"),
    [(sync, "gymnasium", {}), (partial, "gym", {"batch_size": 2}), (time_steps, "dm", {})],
)
def test_equal_to_envpool(calls, env_type, options):
    options |= {"num_envs": 4, "num_threads": 2, "seed": 3, "max_episode_steps": 12}
    for task in TASKS:
        pools = [library.make(task, env_type, **options) for library in (ours, theirs)]
        for found, expected in zip(*map(calls, pools), strict=True):
            assert found == expected, task
        for pool in pools:
            pool.close()


@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_spec_and_render_are_those_of_envpool(env_type):
    """Its scripts read `spec` with any `env_type`; the specs are dm_env's."""
    found = []
    for library in (theirs, ours):
        with contextlib.closing(library.make("CartPole-v1", env_type, num_envs=2)) as pool:
            spec = pool.spec
            obs, action = spec.observation_spec(), spec.action_spec()
            assert spec.observation_space == spec.gymnasium_observation_space
            assert spec.action_space == spec.gymnasium_action_space
            assert obs._fields == ("env_id", "players", "obs")
            assert obs.players._fields == ("env_id",)
            types = type(obs.obs).__name__, type(action).__name__
            found.append([*types, obs.obs.shape, obs.obs.dtype, action.num_values])
            found[-1] += [spec.reward_threshold, spec.config.num_envs, str(spec.action_space)]
            with pytest.raises(RuntimeError, match="render_mode"):
                pool.render()
    assert found[0] == found[1]


def test_images_have_the_form_of_envpools():
    found = []
    for library in (theirs, ours):
        options = {"num_envs": 3, "render_mode": "rgb_array"}
        with contextlib.closing(library.make_gymnasium("CartPole-v1", **options)) as pool:
            pool.reset()
            images = [pool.render(), pool.render([2, 0])]
            found.append([(each.dtype, each.ndim, len(each), each.shape[-1]) for each in images])
    assert found[0] == found[1]
