"""What holds for every function and class that makes a pool: an option works, or is refused."""

import ast
import contextlib
import functools
import inspect
import os
import re
import signal
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.faults.helpers import running
from tests.support.helpers import wait_until


class Door(NamedTuple):
    """A function or class that makes a pool of two envs.

    ``refuses``: the options that it does not take, and those whose value in ``OPTIONS`` is not the
    one that it decides. ``mode``: the autoreset mode that it decides; ``...``: it takes any.
    """

    make: Callable[..., object]
    refuses: frozenset = frozenset()
    mode: object = ...
    own: frozenset = frozenset()
    """Names in FOREIGN that are its own."""


def seed_of(env_id, episode):
    return env_id + episode, None


def note(env_id, error):
    del env_id, error


RAY = frozenset(("threads_per_process", "affinity", "context", "start_method", "fresh_process"))
THREADS = RAY | {"caller_steps", "num_processes"}
IN_PROCESS = THREADS | {"step_timeout"}
WHOLE = frozenset(("wait_num", "timeout"))
ARRAYS = frozenset(("columns", "copy"))

#: A value of each option that is not the default, and options that it needs.
OPTIONS = {
    "strict_timeout": (True, {}),
    "columns": (False, {}),
    "copy": (False, {}),
    "reset_first": (False, {}),
    "measure": (True, {}),
    "record": ("a.record", {}),
    "autoreset_mode": ("same_step", {}),
    "episode_seeds": (True, {}),
    "reset_fn": (seed_of, {}),
    "recycle": (3, {}),
    "validate": ("always", {}),
    "on_error": ("restart", {}),
    "max_restarts": (3, {"on_error": "restart"}),
    "restart_backoff": (0.5, {}),
    "on_restart": (note, {"on_error": "restart"}),
    "threads_per_process": (2, {}),
    "affinity": (True, {}),
    "step_timeout": (60.0, {}),
    "fresh_process": (True, {}),
    "caller_steps": (True, {"num_processes": 1}),
    "num_processes": (1, {}),
    "context": ("fork", {}),
    "start_method": ("fork", {}),
    "wait_num": (1, {}),
    "timeout": (9.0, {}),
}
#: Names of other libraries, misspelt ones, and one that was an option.
FOREIGN = ["batch_size", "n_envs", "num_threads", "num_workers", "vectorization_mode", "on_eror"]
FOREIGN += ["concurrent"]

SPELLINGS = {
    "same_step": ["same_step", "SameStep", "SAME_STEP", AutoresetMode.SAME_STEP],
    "next_step": ["next_step", "NextStep", "NEXT_STEP", AutoresetMode.NEXT_STEP],
    None: [None, "disabled", "Disabled", AutoresetMode.DISABLED],
}


@contextlib.contextmanager
def made(door, **options):
    """What the door makes, and the pool in it; both are closed."""
    found = door.make(**options)
    with found as entered:
        assert entered is found
        pool = found
        while hasattr(pool, "pool"):
            pool = pool.pool
        yield found, pool
    assert found.closed
    assert found.is_closed
    found.close()


def held_by(pool, found=None):
    """The value of each option of a pool, and of the interface ``found`` over it."""
    held = {name: value for part in pool._options for name, value in vars(part).items()}
    context = re.search(r"context='(\w+)'", repr(pool))
    held["context"] = held["start_method"] = context and context[1]
    copies = getattr(found, "_copies", getattr(found, "copy", None))  # of two interfaces
    held["copy"] = copies if isinstance(copies, bool) else held["copy"]
    return {**held, "wait_num": pool.wait_num, "timeout": pool.timeout}


ALONE = ("reset_fn", "fresh_process", "caller_steps", "start_method")
"""Options that do not go with all others."""


def check_options(door, folder, names=tuple(OPTIONS)):
    """Each option works or is refused with a reason; the value that a door decides is taken."""
    together, taken = {}, []
    for name in names:
        value, more = OPTIONS[name]
        given = {**more, name: str(folder / value) if name == "record" else value}
        if name in door.refuses:
            with pytest.raises((TypeError, ValueError), match=name) as raised:
                door.make(**given)
            if isinstance(raised.value, ValueError):
                decided = re.search(rf"{name} must be (.+), because ", str(raised.value))
                together[name] = ast.literal_eval(decided[1])
        elif name in ALONE:
            check_held(door, given, [name])
        else:
            together |= given
            taken.append(name)
    check_held(door, together, taken)


def check_held(door, given, names):
    with made(door, **given) as (found, pool):
        assert len(found) in (2, 2 * len(getattr(found, "possible_agents", "1")))
        assert "num_envs=2" in repr(found)
        held = held_by(pool, found)
        assert {name: held[name] for name in names} == {name: given[name] for name in names}
        found.reset()


def check_foreign(door):
    for name in set(FOREIGN) - door.own:
        with pytest.raises(TypeError, match=name):
            door.make(**{name: 2})


def check_spellings(door):
    for mode, spellings in SPELLINGS.items():
        for spelling in spellings:
            if door.mode not in (..., mode):
                with pytest.raises(ValueError, match="autoreset_mode must be"):
                    door.make(autoreset_mode=spelling)
                continue
            with made(door, autoreset_mode=spelling) as (_, pool):
                assert pool._options.env.autoreset_mode == mode
    with pytest.raises(ValueError, match="autoreset_mode must be"):
        door.make(autoreset_mode="now")


ROWS = "wait_num.* must be None, because it waits for all envs"
OF_RUN = "wait_num must be None, because it is that of the run"
RESET = r"an argument of reset\(seed="
COPIES = "num_envs in envpool_py.make|makes copies"
ENV_FN = r"in its env_fn: lambda: Env\("
ENV_FNS = "pass env_fns that"
ENV_KWARGS = r"pass arguments of the env as env_kwargs=\{"
PROCESSES = (
    "num_processes; .* does not take num_processes; ShmemVectorEnv and SubprocVectorEnv take"
)
UNKNOWN = "unexpected keyword argument"
WITH_MISTAKES = ["DummyVectorEnv", "ThreadVectorEnv", "make", "VectorEnv", "SubprocVecEnv"]
WITH_MISTAKES += ["make_vec", "envpool.make", "make_vec_env", "replay", "ParallelVectorEnv"]
WITH_MISTAKES += ["SB3MultiAgentVecEnv", "AsyncRollouts"]
_NUM_PROCESSES = "here it is num_processes$"
#: Each mistake, and by function and class: what it says, or None: it takes the argument.
MISTAKES = {
    "on_eror": ["did you mean on_error"] * 5
    + ["no option; on_error is; pass"] * 3
    + ["on_error must be 'raise', because", *["did you mean on_error"] * 2]
    + [UNKNOWN],
    "n_envs": [COPIES] * 5 + ["here it is num_envs"] * 2 + [None] + [COPIES] * 3 + [UNKNOWN],
    "num_env": [COPIES, COPIES, "did you mean num_envs", COPIES, COPIES]
    + ["here it is num_envs"] * 2
    + ["here it is n_envs", COPIES, COPIES, COPIES, UNKNOWN],
    "batch_size": ["here it is wait_num"] * 3
    + [ROWS, ROWS, ROWS, None, ROWS, OF_RUN, "here it is wait_num", ROWS, None],
    "bach_size": ["here it is wait_num"] * 3
    + [ROWS] * 3
    + ["here it is batch_size", ROWS, OF_RUN, "here it is wait_num", ROWS, UNKNOWN],
    "num_workers": [PROCESSES, "takes num_threads"]
    + [_NUM_PROCESSES] * 3
    + ["num_processes", "here it is num_threads", "num_processes", PROCESSES]
    + [_NUM_PROCESSES] * 2
    + [UNKNOWN],
    "backend": ["the class decides"] * 2
    + [None, "the class", "the class"]
    + ["vectorization_mode", r"pass options=\{", "here it is vec_env_cls"]
    + ["backend must be one of"] * 3
    + [UNKNOWN],
    "wait_num": [None] * 3
    + [ROWS] * 3
    + ["here it is batch_size", ROWS, OF_RUN, "in .1, 2.", ROWS, "in .1, 2."],
    "render_mode": [ENV_FN, ENV_FN, ENV_KWARGS, ENV_FN, ENV_FN, None, None, "pass env_kwargs="]
    + [ENV_FN] * 3
    + [UNKNOWN],
    "seed": [RESET] * 6 + [None] * 2 + [RESET] * 3 + [None],
    "env_kwargs": [ENV_FNS, ENV_FNS, None, ENV_FNS, ENV_FNS]
    + ["keywords of make_vec", "keywords of make", None]
    + [ENV_FNS] * 3
    + [UNKNOWN],
}
MISTAKES["max_episode_steps"] = MISTAKES["render_mode"]
#: What a message says to write: a name, or a place and a name in it.
ADVICE = re.compile(r"(?:did you mean |here it is |(\w+)=\{')(\w+)(?=\?|': \.\.\.\}|$)")
FOLLOWED = {name: value for name, (value, _) in OPTIONS.items()}
FOLLOWED |= {"num_envs": 2, "n_envs": 2, "batch_size": 1, "num_threads": 1, "backend": "dummy"}
FOLLOWED |= {"vectorization_mode": "sync", "vec_env_cls": None, "render_mode": None}
FOLLOWED |= {"max_episode_steps": 9}


def check_mistakes(door, make):
    """Each mistake is an error that says what to write; yield that: names and values."""
    for mistake, texts in MISTAKES.items():
        text = dict(zip(WITH_MISTAKES, texts, strict=True))[door]
        if text is not None:
            with pytest.raises((TypeError, ValueError), match=text) as raised:
                make(**{mistake: 3})
            for place, name in ADVICE.findall(str(raised.value)):
                better = {name: FOLLOWED[name]}
                yield {place: better} if place else better


def check_both_names(door):
    with pytest.raises(TypeError, match="are the same option"):
        door.make(context="fork", start_method="fork")


def check_revival(door, **options):
    with made(door, **options) as (found, pool):
        found.reset()
        pid = pool.apply(pid_of, id=[1])[0]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not running(pid))
        found.reset()
        assert pool.apply(pid_of, id=[1])[0] != pid


def pid_of(_):
    return os.getpid()


IDS = [2, 0]


def concerned_by_rows(method, found, actions, **ids):
    """The envs of the rows that come after a call."""
    getattr(found, method)(*actions, **ids)
    pool = getattr(found, "pool", found)
    if pool.waiting_id:
        found.recv()
    return pool.batch_ids.tolist()


def concerned_by_cancel(found, _, **ids):
    found.send_reset()
    found.cancel(**ids)
    return [i for i in (2, 1, 0) if i not in found.waiting_id]


def concerned_by_restart(found, _, **ids):
    found.restart(**ids)
    return np.flatnonzero(found.restarts)[::-1].tolist()


def concerned_by_setting(found, _, **ids):
    found.set_env_attr("mark", 0)
    found.set_env_attr("mark", 1, **ids)
    return np.flatnonzero(found.get_env_attr("mark"))[::-1].tolist()


def tag_of(env):
    return env.tag


def of_frames(frames):
    return [int(frame[0, 0, 0]) for frame in frames]


#: Every method that takes ids: a function of a pool of three envs, of the arguments before the ids,
#: and of the ids, that returns the envs which were concerned. The tag of an env is its id.
TAKE_IDS = {
    "reset": functools.partial(concerned_by_rows, "reset"),
    "step": functools.partial(concerned_by_rows, "step"),
    "send": functools.partial(concerned_by_rows, "send"),
    "send_reset": functools.partial(concerned_by_rows, "send_reset"),
    "cancel": concerned_by_cancel,
    "restart": concerned_by_restart,
    "get_env_attr": lambda found, _, **ids: found.get_env_attr("tag", **ids),
    "set_env_attr": concerned_by_setting,
    "call": lambda found, _, **ids: of_frames(found.call("render", **ids)),
    "apply": lambda found, _, **ids: found.apply(tag_of, **ids),
    "render": lambda found, _, **ids: of_frames(found.render(**ids)),
    "render_grid": lambda found, _, **ids: found.render_grid(**ids)[::2, 0, 0].tolist(),
    "state": lambda found, _, **ids: found.state(**ids)[:, 0].tolist(),
}


def taking_ids(cls):
    """The public methods of a class that take ids, and the names of their parameters."""
    names = {}
    for name, method in inspect.getmembers(cls, callable):
        if not name.startswith("_"):
            names[name] = inspect.signature(method).parameters.keys()
    return {name: own for name, own in names.items() if own & {"id", "ids", "env_id", "env_ids"}}


def check_ids(make, actions):
    """Each method takes ids as `id` and as `env_id`, not as both; return its name.

    ``make`` makes a pool of three envs with frames of two rows; ``actions`` are those of two envs.
    """
    with make() as found:
        methods = sorted(taking_ids(type(found)))
    for method in methods:
        before = [actions] if method in ("step", "send") else []
        for names in (["id"], ["env_id"], ["id", "env_id"]):
            with make() as found:
                found.reset()
                ids = dict.fromkeys(names, IDS)
                if len(names) == 1:
                    assert TAKE_IDS[method](found, before, **ids) == IDS, method
                    continue
                with pytest.raises(TypeError, match="ids are given twice"):
                    TAKE_IDS[method](found, before, **ids)
    return methods
