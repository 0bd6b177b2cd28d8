"""Errors that are no ordinary ones, and ends that hang, concern only the env that has them."""

import asyncio
import contextlib
import functools
import logging
import sys
import time
import warnings

import pytest

from envpool_py import BaseVectorEnv, EnvError, ShmemVectorEnv
from tests.backends.test_worker_contract import ThreadWorker
from tests.faults.helpers import EACH, FNS, GOOD, RESTART, goes_on, raising, reset_pool
from tests.support import envs
from tests.support.places import PLACES, paired

LEAVING = {"SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt()}
LEAVING["GeneratorExit"] = GeneratorExit("gone")


def raising_once(error, path):
    """Raise this error, the first time that it is called in any process."""
    with contextlib.suppress(FileExistsError):
        path.touch(exist_ok=False)
        raise error


class AsyncEnv(envs.FaultEnv):
    """Its methods are coroutines; ``acts[place]`` is called there."""

    def __init__(self, tag, **acts):
        super().__init__(tag)
        self.acts = acts

    async def reset(self, **kwargs):
        row = super().reset(**kwargs)
        if self.episode:
            self.acts.get("reset", lambda: None)()
        return row

    async def step(self, action):
        row = super().step(action)
        self.acts.get("step", lambda: None)()
        return row


@pytest.mark.parametrize(
    ("place", "kind", "where", "on_error"),
    [
        # A KeyboardInterrupt is Ctrl-C in the program itself.
        ("dummy", "SystemExit", "step", "restart"),
        ("thread", "GeneratorExit", "step", "raise"),
        ("thread-packed", "GeneratorExit", "reset", "restart"),
        *paired(
            ["thread", "shmem-fork-packed", "thread-packed", "thread", "thread-packed", "thread"],
            [*LEAVING][:2],
            ["reset", "step", "step", "reset"],
            ["raise", "restart", "restart"],
        ),
    ],
)
def test_what_would_end_an_event_loop_ends_no_other_coroutine(
    place, kind, where, on_error, tmp_path
):
    act = functools.partial(raising_once, LEAVING[kind], tmp_path / "raised")
    fns = [functools.partial(AsyncEnv, tag, **{where: act} if tag == 1 else {}) for tag in range(3)]
    options = RESTART if on_error == "restart" else {}
    with reset_pool(place, fns, **options) as pool:
        pool.send(GOOD) if where == "step" else pool.send_reset()
        text = f"env 1: {where} raised {kind}"
        if on_error == "raise":
            with pytest.raises(EnvError, match=text) as raised:
                pool.drain()
            assert not isinstance(raised.value, (SystemExit, KeyboardInterrupt))
            assert pool.drain()[4][0]["env_id"] != 1
        else:
            told = [info["env_error"] for info in pool.drain()[4] if "env_error" in info]
            assert [each.startswith(text) for each in told] == [True]
        goes_on(pool, [0, 1, 2])
        pool.restart([1])
        goes_on(pool, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "ends", "max_restarts"),
    [("shmem-fork", 1, 3), ("shmem-fork", 0, None), ("thread", 0, 3)],
)
def test_if_every_first_reset_hangs_or_dies_it_is_told(place, ends, max_restarts):
    act = functools.partial(sys.exit, 0) if ends else functools.partial(time.sleep, 2)

    def reset(env, row):
        del env, row
        return act()

    fns = [functools.partial(envs.ChangedEnv, tag, reset=reset) for tag in range(3)]
    options = {"max_restarts": max_restarts, "step_timeout": 0.3, **RESTART}
    with PLACES[place](fns, **options) as pool:
        with pytest.raises(EnvError, match="envs? 0"):
            pool.reset()
        assert pool.restarts.max() < 3


@pytest.mark.parametrize(
    ("place", "on_error", "error"),
    paired(
        EACH, ["raise", "restart"], [GeneratorExit("gone"), *[asyncio.CancelledError("gone")] * 2]
    ),
)
def test_an_env_whose_close_raises_what_is_no_exception_is_recreated(place, on_error, error):
    fns = [FNS[0], functools.partial(envs.ClosingEnv, 1, raising(error)), FNS[2]]
    options = RESTART if on_error == "restart" else {}
    with warnings.catch_warnings(record=True) as found, reset_pool(place, fns, **options) as pool:
        warnings.simplefilter("always")
        if on_error == "raise":
            with pytest.raises(EnvError, match="env 1: step raised ValueError: boom"):
                pool.step(["", "value", ""])
            pool.cancel()
            pool.restart([1])
        else:
            assert "ValueError: boom" in pool.step(["", "value", ""])[4][1]["env_error"]
        assert pool.restarts.tolist() == [0, 1, 0]
        goes_on(pool, [0, 1, 2])
        assert pool.get_env_attr("resets", [1]) == [1], "it is a new env"
    texts = [str(each.message) for each in found]
    assert any(text.startswith(f"env 1: close raised {type(error).__name__}") for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["shmem-fork", "thread"])
def test_all_envs_that_can_be_are_closed_when_several_hang(place, tmp_path, monkeypatch):
    monkeypatch.setattr("envpool_py.worker.supervisor.GRACE", 2.0)

    def close(tag):
        if tag < 2:
            time.sleep(4)
        (tmp_path / str(tag)).touch()

    fns = [functools.partial(envs.ClosingEnv, i, functools.partial(close, i)) for i in range(5)]
    shared = {"num_threads": 1} if place == "thread" else {"context": "fork", "num_processes": 1}
    pool = PLACES[place].pool(fns, **shared)
    pool.reset()
    with pytest.warns(RuntimeWarning, match="env 0: .*close.*env 1"):
        pool.close()
    assert {"2", "3", "4"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("mode", [None, "same_step"])
def test_a_handler_of_the_log_that_raises_loses_no_row(mode):
    class Broken(logging.Handler):
        def emit(self, _):
            raise OSError("the log is full")

    logger, handler = logging.getLogger("envpool_py"), Broken()
    logger.addHandler(handler)
    try:
        with reset_pool("dummy", autoreset_mode=mode, **RESTART) as pool:
            obs, _, _, truncated, infos = pool.step(["", "value", ""])
            assert truncated.tolist() == [False, True, False]
            assert ["env_error" in info for info in infos] == [False, True, False]
            assert obs[[0, 2], 2].tolist() == [1, 1]
            goes_on(pool, [0, 1, 2])
    finally:
        logger.removeHandler(handler)


def test_a_warning_of_a_custom_worker_names_its_env(tmp_path):
    close = functools.partial(raising_once, RuntimeError("boom"), tmp_path / "raised")
    fns = [FNS[0], functools.partial(envs.ClosingEnv, 1, close)]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with BaseVectorEnv(fns, ThreadWorker, **RESTART) as pool:
            pool.reset()
            pool.step(["", "value"])
            goes_on(pool, [0, 1])
    texts = [str(each.message) for each in found if "boom" in str(each.message)]
    assert [text.startswith("env 1: close raised") for text in texts] == [True]


class NoLookup(envs.CountEnv):
    """A lookup of one of its spaces raises."""

    def __init__(self, name):
        super().__init__(1)
        self.name = name

    def __getattribute__(self, name):
        if name.endswith("_space") and name == super().__getattribute__("__dict__").get("name"):
            raise RuntimeError("no config")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("place", "name"), paired(EACH, ["reward_space", "action_space", "observation_space"])
)
def test_a_lookup_of_a_space_that_raises_names_the_env(place, name):
    with pytest.raises(EnvError, match=r"env 1: env_fn raised RuntimeError: no config"):
        PLACES[place]([envs.CountEnv, functools.partial(NoLookup, name), envs.CountEnv])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "next_step"])
def test_the_error_of_an_env_fn_that_fails_in_a_planned_new_process_is_told_whole(mode, tmp_path):
    def make(tag):
        if tag == 1 and envs.count_call(tmp_path / "made") == 2:
            raise RuntimeError("no display")
        return envs.CountEnv(tag, 1)

    fns, infos = [functools.partial(make, tag) for tag in range(2)], []
    options = {"context": "fork", "fresh_process": True, "recycle": 1, **RESTART}
    with ShmemVectorEnv(fns, autoreset_mode=mode, **options) as pool:
        pool.reset()
        for _ in range(3):
            infos += [*pool.step([0, 0])[4]]
            infos += [*(pool.reset()[1] if mode is None else pool.step([0, 0])[4])]
    (text,) = [info["env_error"] for info in infos if "env_error" in info]
    assert text.startswith("env 1: env_fn raised RuntimeError: no display")
    assert "Traceback" in text
