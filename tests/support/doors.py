"""What holds for every function and class that makes a pool: an option works, or is refused."""

import ast
import contextlib
import functools
import inspect
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

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
    "max_restarts": (3, {}),
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


def check_options(door, folder):
    """Each option works or is refused with a reason; the value that a door decides is taken."""
    for name, (value, more) in OPTIONS.items():
        given = {name: str(folder / value) if name == "record" else value, **more}
        if name in door.refuses:
            with pytest.raises((TypeError, ValueError), match=name) as raised:
                door.make(**given)
            decided = re.search(rf"{name} must be (.+), because ", str(raised.value))
            if isinstance(raised.value, ValueError):
                with made(door, **{name: ast.literal_eval(decided[1])}):
                    pass
            continue
        with made(door, **given) as (found, pool):
            assert len(found) in (2, 2 * len(getattr(found, "possible_agents", "1")))
            assert "num_envs=2" in repr(found)
            assert held_by(pool, found)[name] == given[name], name
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


def check_both_names(door):
    with pytest.raises(TypeError, match="are the same option"):
        door.make(context="fork", start_method="fork")


def check_revival(door, **options):
    with made(door, **options) as (found, pool):
        found.reset()
        pid = pool.apply(pid_of, id=[1])[0]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not alive(pid))
        found.reset()
        assert pool.apply(pid_of, id=[1])[0] != pid


def pid_of(_):
    return os.getpid()


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    return False


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
