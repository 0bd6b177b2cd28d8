"""The contract of a backend: whatever a caller does, row by row equal to hand-stepped raw envs.

A cell is a place of `places.PLACES` (backend, start method, one env per process or several), one
of `SUBJECTS` (every kind of space, undeclared ones, vector rewards, envs that reuse their memory)
and a mode of autoreset. A cell has a pool make every call of `session.CALLS` three times.
"""

import copy
import functools
import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.support import envs
from tests.support.places import BACKENDS, LOCAL, PLACES, QUICK, slow, soak
from tests.support.reference import HandStepped, same
from tests.support.session import Session, script


class DuckEnv:
    """No gymnasium.Env, no spaces, no close; its observation is its info as well."""

    def __init__(self, tag=0):
        self.tag, self.t = tag, 0

    def look(self, action):
        return {"tag": self.tag, "place": np.array([self.t, 0.5]), "action": action}

    def reset(self, *, seed=None, options=None):
        del seed, options
        self.t = 0
        seen = self.look(None)
        return seen, seen

    def step(self, action):
        self.t += 1
        seen = self.look(action)
        return seen, float(self.t), False, self.t >= 3, seen


class TreeBufferEnv(envs.BufferEnv):
    """As BufferEnv; the observation is a dict of reused arrays and a reused list or tuple."""

    def __init__(self, tag, declared=True):
        super().__init__(tag, length=2)
        self.tree = {"counts": self.buffer, "letters": ("a", "b") if declared else ["a", "b"]}
        letters = spaces.Sequence(spaces.Text(3))
        self.observation_space = spaces.Dict(counts=self.observation_space, letters=letters)
        if not declared:
            del self.observation_space
        self.declared = declared

    def observe(self):
        super().observe()
        if not self.declared:
            self.tree["letters"][0] = "abcdefgh"[self.t % 8]
        return self.tree


class ReturnsItsStateEnv(envs.CountEnv):
    """Its observation is the very array it steps on, and its reward an array it writes to."""

    def __init__(self, tag):
        super().__init__(tag, length=2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.reward_space = self.observation_space
        self.state, self.gain = np.zeros(2), np.zeros(2)

    def observe(self):
        self.state += 1.0 + self.tag
        return self.state

    def step(self, action):
        obs, _, *rest = super().step(action)
        self.gain += 1.0
        return obs, self.gain, *rest


class ObservingEnv(envs.CountEnv):
    """Observes what a function makes of the observation of a CountEnv."""

    def __init__(self, space, change, tag):
        super().__init__(tag, length=2)
        self.observation_space, self.change = space, change

    def observe(self):
        return self.change(super().observe())


def halve(value):
    """Halve the arrays in an action in place."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value *= 0.5
    elif isinstance(value, (tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            halve(part)


class KeepsActionEnv(gym.Env):
    """Changes its action, keeps it without a copy, and observes the one before."""

    def __init__(self, tag=0, name="box-float32"):
        self.tag = tag
        self.action_space, self.observation_space = envs.SPACES[name](), envs.SPACES[name]()
        self.kept = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.kept = [envs.draw(self.observation_space, np.random.default_rng(self.tag))]
        return self.kept[0], {}

    def step(self, action):
        halve(action)
        self.kept.append(action)
        return self.kept[-2], 0.0, False, False, {"kept": copy.deepcopy(self.kept)}


class RebindsEnv(envs.CountEnv):
    """Has another `step` from its third step on."""

    def step(self, action):
        if self.steps == 2:
            self.step = super().step
        obs, _, *rest = super().step(action)
        return obs, -1.0, *rest


COUNTS = envs.CountEnv().observation_space
HALF_EMPTY = spaces.Dict(a=COUNTS, b=spaces.Dict({}))
SHARED = np.zeros(3, np.int64)
"""A buffer of all envs, as one in their class."""
OUR_WORDS = {"final_obs": "mine", "final_info": 2.5, "is_reset": "mine", "env_id": "mine"}

# Episodes are short, so that many end between two resets.
SUBJECTS = {
    **{name: functools.partial(envs.SpaceEnv, name=name, length=2) for name in envs.KINDS},
    **{
        f"undeclared-{kind}": functools.partial(envs.UndeclaredEnv, kind=kind, length=2)
        for kind in envs.UNDECLARED
    },
    "no-gymnasium-env": DuckEnv,
    "reused-buffers": functools.partial(envs.BufferEnv, length=2),
    "shared-buffers": functools.partial(
        ObservingEnv, COUNTS, lambda obs: np.positive(obs, out=SHARED)
    ),
    "reused-trees": TreeBufferEnv,
    "reused-undeclared-trees": functools.partial(TreeBufferEnv, declared=False),
    "returned-state": ReturnsItsStateEnv,
    "kept-actions": KeepsActionEnv,
    "kept-trees-of-actions": functools.partial(KeepsActionEnv, name="nested"),
    "kept-sequences": functools.partial(KeepsActionEnv, name="sequence"),
    "kept-objects": functools.partial(KeepsActionEnv, name="mixed"),
    "rebound-step": functools.partial(RebindsEnv, length=9),
    "empty-dict": functools.partial(ObservingEnv, spaces.Dict({}), lambda _: {}),
    "empty-tuple": functools.partial(ObservingEnv, spaces.Tuple(()), lambda _: ()),
    "empty-part": functools.partial(ObservingEnv, HALF_EMPTY, lambda obs: {"a": obs, "b": {}}),
    "own-bounds": lambda tag: ObservingEnv(spaces.Box(-1 - tag, 99, (3,), np.int64), np.copy, tag),
    # The flags alone say that an ordinary episode is over.
    "own-env-done": functools.partial(
        envs.ChangedEnv,
        length=2,
        step=lambda _env, _action, row: (*row[:4], {"env_done": np.array([True, False])}),
    ),
    "our-words": functools.partial(
        envs.ChangedEnv,
        length=2,
        step=lambda _env, _action, row: (*row[:4], OUR_WORDS),
        reset=lambda _, row: (row[0], OUR_WORDS),
    ),
    "own-randomness": envs.RandomEnv,
    "episodes-of-one-step": functools.partial(envs.CountEnv, length=1),
    "vector-rewards": functools.partial(envs.VectorRewardEnv, length=2),
    "vector-rewards-as-lists": functools.partial(envs.VectorRewardEnv, as_list=True, length=2),
}
MODES = (None, "next_step", "same_step")
# Every kind of row; a start method changes how an env gets into its process, and not what it does.
FEW = ("box-float16", "nested", "mixed", "undeclared-object", "own-randomness", "vector-rewards")
ODD = ("reused-buffers", "reused-undeclared-trees", "shared-buffers")
ODD += ("kept-actions", "kept-objects", "rebound-step")


def cells():
    """Return the cells that run, the slow ones, and those that they stand for.

    The subjects of FEW run on each backend, those of ODD at a place that steps envs in another
    way; each subject, and each place, in one slow cell; modes change from cell to cell.
    """
    few = itertools.product(BACKENDS, (*FEW, "our-words", "no-gymnasium-env"))
    quick = [(place, name, MODES[n % 3]) for n, (place, name) in enumerate(few)]
    quick += [(QUICK[n % len(QUICK)], name, "same_step") for n, name in enumerate(ODD)]
    late = [(LOCAL[n % 3], name, MODES[n // 3 % 3]) for n, name in enumerate(SUBJECTS)]
    late += [(place, FEW[2 + n % 2], "same_step") for n, place in enumerate(PLACES)]
    whole = itertools.product(QUICK, SUBJECTS, MODES)
    kinds, seen = [], set()
    for group in (quick, late, whole):
        # Envs that share a buffer cannot be stepped by two threads at once.
        group = [c for c in group if "thread" not in c[0] or c[1] != "shared-buffers"]  # noqa: PLW2901
        kinds.append([cell for cell in group if cell not in seen])
        seen.update(group)
    return kinds


CELLS, SLOW_CELLS, OTHER_CELLS = cells()


def make_fns(subject, count):
    return [functools.partial(SUBJECTS[subject], tag) for tag in range(count)]


@pytest.mark.parametrize(
    ("place", "subject", "mode"), [*CELLS, *slow(*SLOW_CELLS), *soak(*OTHER_CELLS)]
)
def test_every_call_gives_what_raw_envs_give(place, subject, mode):
    where = PLACES[place]
    Session(where, make_fns(subject, where.num_envs), mode).run(script(len(subject)))


RESTART = {"on_error": "restart"}
TREES = ("tuple", "nested", "mixed", "empty-dict", "empty-part")
OPTIONS = [
    *((BACKENDS[n % len(BACKENDS)], tree, None, {"columns": True}) for n, tree in enumerate(TREES)),
    (QUICK[0], "reused-buffers", "next_step", {"measure": True}),
    (LOCAL[1], "own-env-done", "same_step", RESTART),
]


@pytest.mark.parametrize(("place", "subject", "mode", "options"), OPTIONS)
def test_options_that_change_no_row(place, subject, mode, options):
    Session(PLACES[place], make_fns(subject, 3), mode, **options).run(script(1))


@pytest.mark.parametrize("place", BACKENDS)
def test_envs_of_different_spaces_where_rows_are_objects(place):
    names = ["text", "graph", "one-of", "custom"]
    fns = [functools.partial(envs.SpaceEnv, tag, name) for tag, name in enumerate(names)]
    hand = HandStepped(fns)
    rng = np.random.default_rng(2)
    with PLACES[place](fns) as pool:
        assert pool.observation_space == [env.observation_space for env in hand.envs]
        obs, rows = pool.reset(seed=0)[0], hand.reset(seeds=[0, 1, 2, 3])
        for _ in range(3):
            assert (obs.dtype, obs.shape) == (object, (4,))
            assert same(obs.tolist(), [row.obs for row in rows])
            actions = [envs.draw(env.action_space, rng) for env in hand.envs]
            obs, rows = pool.step(actions)[0], hand.step(actions)


@pytest.mark.parametrize("place", BACKENDS)
def test_none_in_a_sequence_of_actions_is_that_envs_action(place):
    with PLACES[place](make_fns("discrete", 3)) as pool:
        pool.reset()
        for actions in ([np.int64(1), None, np.int64(2)], [None, None, None]):
            assert [info["action"] for info in pool.step(actions)[4]] == actions


@pytest.mark.parametrize("place", BACKENDS)
def test_spaces_spec_and_metadata_are_those_of_the_envs(place):
    where = PLACES[place]
    fns = [functools.partial(gym.make, "CartPole-v1") for _ in range(where.num_envs)]
    raw = fns[0]()
    with where(fns) as pool:
        assert pool.metadata == [raw.metadata] * len(fns)
        assert [spec.id for spec in pool.spec] == ["CartPole-v1"] * len(fns)
        assert len(pool) == pool.env_num == pool.num_envs == len(fns)
        for name in ("observation_space", "action_space"):
            found, again = getattr(pool, name), getattr(pool, name)
            assert found == [getattr(raw, name)] * len(fns)
            assert all(a is b for a, b in zip(found, again, strict=True))
        assert len({id(space) for space in pool.action_space}) == len(fns)
    with where(make_fns("undeclared-alike", 2)) as pool:
        assert pool.observation_space == pool.action_space == [None, None]
