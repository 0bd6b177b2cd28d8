"""Every function and class that makes a pool: an option works, or is refused; equal meanings."""

import ast
import copy
import functools
import inspect
import multiprocessing
import tempfile

import gymnasium as gym
import numpy as np
import pytest

import envpool_py
from envpool_py import (
    DummyVectorEnv,
    NormalizeReward,
    ShmemVectorEnv,
    SubprocVectorEnv,
    ThreadVectorEnv,
    VectorEnvWrapper,
    envpool,
    make,
    replay,
)
from envpool_py.gymnasium import VectorEnv, make_vec
from envpool_py.options import CLASSES
from envpool_py.sb3 import DummyVecEnv, ShmemVecEnv, SubprocVecEnv
from envpool_py.sb3.common.env_util import make_vec_env
from tests.support import doors
from tests.support.doors import ARRAYS, IN_PROCESS, OPTIONS, THREADS, WHOLE, Door
from tests.support.envs import CountEnv
from tests.support.helpers import ROOT, run_python
from tests.support.places import paired

CART = "CartPole-v1"
FNS = [functools.partial(gym.make, CART)] * 2


def by_vec_env(cls, **options):
    return make_vec_env(CART, 2, vec_env_cls=cls, vec_env_kwargs=options)


_MAKE = functools.partial(make, CART, 2)
DOORS = {
    "DummyVectorEnv": Door(functools.partial(DummyVectorEnv, FNS), IN_PROCESS),
    "ShmemVectorEnv": Door(functools.partial(ShmemVectorEnv, FNS)),
    "SubprocVectorEnv": Door(functools.partial(SubprocVectorEnv, FNS)),
    "ThreadVectorEnv": Door(functools.partial(ThreadVectorEnv, FNS), THREADS, own={"num_threads"}),
    "make": Door(functools.partial(_MAKE, backend="shmem")),
    "make, dummy": Door(functools.partial(_MAKE, backend="dummy"), IN_PROCESS),
    "make, thread": Door(functools.partial(_MAKE, backend="thread"), THREADS, own={"num_threads"}),
    "make_vec": Door(lambda **options: make_vec(CART, 2, "async", options), WHOLE),
    "make_vec, sync": Door(
        lambda **options: make_vec(CART, 2, "sync", options), WHOLE | IN_PROCESS
    ),
    "VectorEnv": Door(functools.partial(VectorEnv, FNS), WHOLE),
    "envpool.make": Door(
        lambda **options: envpool.make(CART, num_envs=2, options={"backend": "shmem", **options}),
        ARRAYS | {"wait_num", "autoreset_mode"},
        "next_step",
    ),
    "envpool.make, dm": Door(
        lambda **options: envpool.make_dm(
            CART, num_envs=2, options={"backend": "dummy", **options}
        ),
        ARRAYS | IN_PROCESS | {"wait_num", "autoreset_mode"},
        "next_step",
    ),
    "DummyVecEnv": Door(
        functools.partial(DummyVecEnv, FNS), ARRAYS | WHOLE | IN_PROCESS, "same_step"
    ),
    "SubprocVecEnv": Door(functools.partial(SubprocVecEnv, FNS), ARRAYS | WHOLE, "same_step"),
    "ShmemVecEnv": Door(functools.partial(ShmemVecEnv, FNS), ARRAYS | WHOLE, "same_step"),
    "make_vec_env": Door(functools.partial(by_vec_env, SubprocVecEnv), ARRAYS | WHOLE, "same_step"),
}
ONE_OF_EACH = ("DummyVectorEnv", "make, thread", "VectorEnv", "envpool.make", "SubprocVecEnv")
"""A door of each column of the table in docs/options.md."""

WITH_PROCESSES = sorted(
    name for name, door in DOORS.items() if name in ONE_OF_EACH and "context" not in door.refuses
)


def test_every_option_is_in_the_table():
    fields = {name for kind in CLASSES for name in inspect.signature(kind).parameters}
    assert fields <= OPTIONS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("door", ONE_OF_EACH)
def test_each_option_works_or_is_refused(door, tmp_path):
    def make(**options):  # processes that are forked start in no time
        forks = "context" not in DOORS[door].refuses and not {"context", "start_method"} & {
            *options
        }
        return DOORS[door].make(**options, **({"context": "fork"} if forks else {}))

    found = DOORS[door]._replace(make=make)
    doors.check_options(found, tmp_path)
    doors.check_foreign(found)
    doors.check_spellings(found)


@pytest.mark.slow
@pytest.mark.parametrize("door", WITH_PROCESSES)
def test_processes(door):
    doors.check_both_names(DOORS[door])
    doors.check_revival(DOORS[door], context="fork")


#: The doors of each column of the table in docs/options.md.
COLUMNS = {
    "pools": ["DummyVectorEnv", "ShmemVectorEnv", "SubprocVectorEnv", "ThreadVectorEnv"],
    "`make`": ["make", "make, dummy", "make, thread"],
    "`VectorEnv`, `make_vec`": ["VectorEnv", "make_vec", "make_vec, sync"],
    "`envpool.make`": ["envpool.make", "envpool.make, dm"],
    "SB3 classes": ["DummyVecEnv", "SubprocVecEnv", "ShmemVecEnv", "make_vec_env"],
}


def defaults_in_the_docs():
    """Each option, and by column the text of its default and whether it is decided (bold)."""
    text = (ROOT / "docs/options.md").read_text().partition("## Defaults that differ")[2]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["option", *COLUMNS]
    for name, *cells in rows[1:]:
        for column, cell in zip(COLUMNS, cells, strict=True):
            yield name.strip("`"), column, cell.strip("*"), cell.startswith("**")


def default_of(name, text, door):
    """The value that the text of a default means for a door."""
    if name == "context":
        forkserver = text == "forkserver, else spawn"
        return "forkserver" if forkserver else multiprocessing.get_start_method()
    if name == "num_processes":  # measured: a number of one of the two envs
        return ANY_NUMBER if text.endswith('`"auto"`') and door != "VectorEnv" else None
    return 2 if text in ("all", "`batch_size`") else ast.literal_eval(text.strip("`"))


ANY_NUMBER = {1, 2}
#: Values that are not decided.
OTHER = {"wait_num": 1, "timeout": 9.0, "same_step": "next_step", "next_step": "same_step"}


@pytest.mark.slow
def test_the_defaults_are_those_of_the_docs():
    held = {}
    for name, door in DOORS.items():
        with doors.made(door) as (found, pool):
            held[name] = doors.held_by(pool, found)
    listed = list(defaults_in_the_docs())
    for name, column, text, is_decided in listed:
        for door in COLUMNS[column]:
            refuses, found = DOORS[door].refuses, held[door][name]
            if name in ("num_processes", "context") and name in refuses:
                continue  # as the page says below the table
            expected = default_of(name, text, door)
            assert found in ANY_NUMBER if expected is ANY_NUMBER else found == expected, name
            if is_decided:
                other = OTHER[found] if isinstance(found, str) else not found
                with pytest.raises(ValueError, match=f"{name} must be .*, because "):
                    DOORS[door].make(**{name: OTHER.get(name, other)})
            else:
                assert name not in refuses
    for name in OPTIONS.keys() - {name for name, *_ in listed} - {"start_method"}:
        assert len({str(each[name]) for each in held.values()}) == 1, name


# --------------------------------------------------------------------------------- names of envs

ARGS = [("module", f"gymnasium:{CART}"), ("spec", gym.spec(CART)), ("id", CART)]
ARGS += [("class", "gymnasium.envs.classic_control:CartPoleEnv"), ("callable", FNS[0])]
BY_NAME = {
    "make": lambda env: make(env, 2, backend="dummy"),
    "make_vec": lambda env: make_vec(env, 2, "sync"),
    "envpool.make": lambda env: envpool.make(env, num_envs=2, seed=3, options={"backend": "dummy"}),
    "make_vec_env": lambda env: make_vec_env(env, 2),
}


@pytest.mark.parametrize(
    ("door", "env"), paired([*BY_NAME], [env for _, env in ARGS]), ids=[name for name, _ in ARGS]
)
def test_each_form_of_a_name(door, env):
    with BY_NAME[door](env) as found:
        if door == "make_vec_env":
            found.seed(3)
        obs = found.reset() if door == "make_vec_env" else found.reset(seed=3)[0]
    expected = [gym.make(CART).reset(seed=3 + i)[0] for i in range(2)]
    np.testing.assert_array_equal(obs, expected)


@pytest.mark.parametrize("door", ["make", "make_vec_env"])
def test_wrong_names(door):
    for env, error, text in [
        ("CartPol-v1", gym.error.Error, "CartPole"),
        ("Breakout-v5", gym.error.Error, "ALE/Breakout-v5"),
        ("gymnasium:envs", TypeError, "must be a class or function, got module"),
    ]:
        with pytest.raises(error, match=text):
            BY_NAME[door](env)


@pytest.mark.slow
def test_an_atari_game_needs_no_import():
    """All doors ask one function what a name means."""
    program = "import envpool_py\nwith envpool_py.make('ALE/Pong-v5', backend='dummy') as pool:"
    assert run_python("-c", f"{program} print(len(pool))").split() == ["1"]


@pytest.mark.slow
def test_envpools_num_threads_is_the_number_of_threads_or_processes():
    door = functools.partial(envpool.make, CART, num_envs=3, num_threads=2)
    for backend, count in [("thread", "num_threads"), ("shmem", "num_processes")]:
        with door(options={"backend": backend}) as found:
            assert f"{count}=2" in repr(found.pool)
        with pytest.raises(TypeError, match=f"num_threads and {count} are the same option"):
            door(options={"backend": backend, count: 3})


class Knobs(gym.Env):
    """An env with parameters that have names of options."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, timeout=1.0):
        self.timeout = timeout

    def reset(self, *, seed, options):
        del seed, options  # both are required
        return 0, {}


def test_an_option_reaches_the_env_only_if_the_env_has_a_parameter_for_it():
    options = {"backend": "dummy"}
    with envpool.make(Knobs, num_envs=2, timeout=5.0, options=options) as found:
        assert found.pool.get_env_attr("timeout") == [5.0, 5.0]
    for door, place in [
        (functools.partial(envpool.make, CART, num_envs=2), "options"),
        (functools.partial(make_vec, CART, 2), "vector_kwargs"),
        (functools.partial(make_vec_env, CART, 2), "vec_env_kwargs"),
    ]:
        for name in ("on_error", "restart_backoff", "measure"):
            with pytest.raises(TypeError, match=f"{name} is an option of the pool; pass {place}="):
                door(**{name: 3})
        with pytest.raises(TypeError, match=f"on_eror is no option; on_error is; pass {place}="):
            door(on_eror="restart")
    with pytest.raises(TypeError, match=r"stiffness is no argument; .* env_kwargs=\{'stiffness'"):
        make_vec_env(CountEnv, 2, stiffness=3)


class Anything(Knobs):
    def __init__(self, **kwargs):
        self.kwargs = kwargs


def replayed(**options):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.record"
        with DummyVectorEnv(FNS, record=path) as pool:
            pool.reset()
        return replay(path, FNS, **options)


WITH_MISTAKES = {
    **{name: DOORS[name].make for name in ("DummyVectorEnv", "ThreadVectorEnv")},
    "make": functools.partial(make, CART, num_envs=2),
    **{name: DOORS[name].make for name in ("VectorEnv", "SubprocVecEnv")},
    "make_vec": functools.partial(make_vec, Anything, num_envs=2),
    "envpool.make": functools.partial(envpool.make, Anything, num_envs=2),
    "make_vec_env": functools.partial(make_vec_env, Anything),
    "replay": replayed,
}


WITH_OPTIONS = [DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, VectorEnv]
WITH_OPTIONS += [DummyVecEnv, SubprocVecEnv, ShmemVecEnv, make_vec, make_vec_env, envpool.make]


@pytest.mark.parametrize("door", WITH_MISTAKES)
def test_a_mistake_is_named_with_what_to_write(door):
    advice = [*doors.check_mistakes(door, WITH_MISTAKES[door])]
    assert bool(advice) == (door != "replay")  # which takes none of these options


@pytest.mark.slow
@pytest.mark.parametrize("door", WITH_MISTAKES)
def test_a_door_takes_what_it_says_to_write(door):
    for better in doors.check_mistakes(door, WITH_MISTAKES[door]):
        WITH_MISTAKES[door](**better).close()


@pytest.mark.parametrize(
    ("door", "mistake", "text"),
    [
        ("make, dummy", "num_process", "num_processes; ShmemVectorEnv and SubprocVectorEnv take"),
        ("make, thread", "num_process", r"make\(backend='thread'\) takes num_threads"),
        ("make_vec, sync", "num_worker", "num_processes must be None, because vectorization_mode"),
        ("envpool.make", "bach_size", "here it is batch_size"),
        ("envpool.make", "num_env", "here it is num_envs"),
        ("envpool.make", "rendermode", "pass rendermode to make itself"),
        ("DummyVecEnv", "num_threads", "DummyVecEnv does not take num_processes; ShmemVectorEnv"),
    ],
)
def test_no_advice_is_refused(door, mistake, text):
    with pytest.raises(TypeError, match=text):
        DOORS[door].make(**{mistake: 2})


@pytest.mark.parametrize("door", WITH_OPTIONS, ids=[door.__qualname__ for door in WITH_OPTIONS])
def test_an_editor_shows_the_options(door):
    source = ast.parse(inspect.getsource(door)).body[0]  # which an editor reads
    assert "``on_error``, " in ast.get_docstring(source)


def test_options_of_envpools_make_are_not_its_arguments():
    for name in ("batch_size", "num_envs", "env_kwargs", "max_episode_steps"):
        with pytest.raises(TypeError, match=f"pass {name} to make itself, not in options"):
            envpool.make(CART, num_envs=2, options={name: 1})


def test_gymnasium_resets_get_seed_and_options():
    with make_vec(Knobs, 2, "sync") as envs:
        assert envs.reset()[0].tolist() == [0, 0]
        assert [type(env.unwrapped) for env in envs.envs] == [Knobs, Knobs]


def test_gymnasium_finds_make_vec():
    spec = gym.spec(CART)
    gym.register(
        "FoundCart-v0",
        entry_point=spec.entry_point,
        vector_entry_point="envpool_py.gymnasium:make_vec",
        max_episode_steps=7,
    )
    try:
        envs = gym.make_vec("FoundCart-v0", 3)
        assert type(envs) is VectorEnv
        assert envs.get_attr("spec")[0].max_episode_steps == 7
        envs.close()
    finally:
        del gym.registry["FoundCart-v0"]
    with pytest.raises(TypeError, match="the id is missing"):
        make_vec()


def test_the_spec_of_make_vec_is_gymnasiums():
    for options in [{}, {"vector_kwargs": {"copy": False}}, {"max_episode_steps": 7}]:
        made = [make(CART, 2, "sync", **options) for make in (make_vec, gym.make_vec)]
        assert made[0].spec == made[1].spec
        for envs in made:
            envs.close()


def test_a_pool_is_not_copied_by_a_copy_of_its_interface():
    with make_vec(CART, 2, "sync") as envs:
        with pytest.raises(TypeError, match="VectorEnv cannot be copied or pickled"):
            copy.copy(envs)
        envs.reset()


def pool_of_three():
    return DummyVectorEnv([functools.partial(CountEnv, i) for i in range(3)])


def envpool_of_three(make):
    found = make(CountEnv, num_envs=3, render_mode="rgb_array", options={"backend": "dummy"})
    for i in range(3):
        found.pool.set_env_attr("tag", i, i)
    return found


THREE = {
    "DummyVectorEnv": (pool_of_three, set(doors.TAKE_IDS) - {"state"}),
    "NormalizeReward": (lambda: NormalizeReward(pool_of_three()), set(doors.TAKE_IDS) - {"state"}),
    **{
        make.__name__: (
            functools.partial(envpool_of_three, make),
            {"reset", "step", "send", "render"},
        )
        for make in (envpool.make_gymnasium, envpool.make_dm)
    },
}


@pytest.mark.parametrize("name", THREE)
def test_ids_have_two_names_everywhere(name):
    make_three, methods = THREE[name]
    assert set(doors.check_ids(make_three, [1, 2])) == methods


def test_the_names_of_ids_of_all_classes():
    classes = {cls for cls in vars(envpool_py).values() if isinstance(cls, type)}
    classes = {cls for cls in classes if issubclass(cls, envpool_py.BaseVectorEnv)}
    assert {VectorEnvWrapper, NormalizeReward, ThreadVectorEnv} <= classes
    for cls in classes:
        for method, names in doors.taking_ids(cls).items():
            assert {"id", "env_id"} <= names, (cls, method)
