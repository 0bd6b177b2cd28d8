"""The contract that the package ships for worker classes, on ours and on a custom one."""

import functools
import queue
import signal
import threading

import pytest

from envpool_py import BaseVectorEnv, EnvError
from envpool_py.env.executor import Executor
from envpool_py.testing import EnvWorkerContract
from envpool_py.worker import DummyEnvWorker, EnvWorker, ShmemEnvWorker
from tests.faults.helpers import handling, signalling
from tests.support import envs
from tests.support.reference import same
from tests.support.session import Session, script


class ThreadWorker(EnvWorker):
    """A custom worker: `send`, `recv` and `close` alone, the env in a thread."""

    def __init__(self, env_fn):
        super().__init__(env_fn)
        self.requests = queue.Queue()
        self.replies = queue.Queue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        if (error := self.replies.get()[1]) is not None:
            raise error

    def run(self):
        try:
            executor = Executor(self.env_fn)
        except Exception as error:  # noqa: BLE001
            self.replies.put((False, error))
            return
        self.replies.put((True, None))
        while (request := self.requests.get()) is not None:
            try:
                self.replies.put((True, executor(request)))
            except Exception as error:  # noqa: BLE001
                self.replies.put((False, error))
        executor.close()

    def send(self, request):
        self.requests.put(request)

    def recv(self):
        fine, reply = self.replies.get()
        if not fine:
            raise reply
        return reply

    def close(self):
        if self.thread.is_alive():
            self.requests.put(None)
            self.thread.join()


class PromptThreadWorker(ThreadWorker):
    """As ThreadWorker; says as well whose replies are there."""

    @classmethod
    def wait(cls, workers, wait_num, timeout=None):
        done = [worker for worker in workers if not worker.replies.empty()]
        return done if len(done) >= wait_num else super().wait(workers, wait_num, timeout)


WORKERS = [ThreadWorker, PromptThreadWorker]


class TestDummyEnvWorker(EnvWorkerContract):
    make_worker = staticmethod(DummyEnvWorker)


class TestShmemEnvWorker(EnvWorkerContract):  # a SubprocEnvWorker in all but its constructor
    make_worker = staticmethod(functools.partial(ShmemEnvWorker, context="fork"))


class TestThreadWorker(EnvWorkerContract):
    make_worker = staticmethod(ThreadWorker)


CASES = [
    ("same_step", functools.partial(envs.SpaceEnv, name="nested", length=2)),
    ("next_step", functools.partial(envs.UndeclaredEnv, kind="ragged", length=2)),
    (None, functools.partial(envs.VectorRewardEnv, length=2)),
]


@pytest.mark.parametrize(("mode", "subject"), CASES)
@pytest.mark.parametrize("worker", WORKERS)
def test_a_pool_of_a_custom_worker_gives_what_raw_envs_give(worker, mode, subject):
    def make(fns, **options):
        return BaseVectorEnv(fns, worker, **options)

    Session(make, [functools.partial(subject, tag) for tag in range(3)], mode).run(script(3))


class FailsEnv(envs.RandomEnv):
    """Raises at action 3."""

    def step(self, action):
        if action == 3:
            raise ValueError("boom")
        return super().step(action)


def without_tracebacks(info):
    """Return the info without the texts of errors, whose tracebacks differ."""
    parts = {key: without_tracebacks(v) if key == "final_info" else v for key, v in info.items()}
    return {**parts, "env_error": True} if "env_error" in info else parts


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("episode_seeds", [False, True])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_envs_of_custom_workers_are_recreated_as_others(mode, episode_seeds, worker):
    options = {"autoreset_mode": mode, "episode_seeds": episode_seeds}
    options |= {"on_error": "restart", "max_restarts": None, "restart_backoff": 0}
    found = []
    for worker_fn in (DummyEnvWorker, worker):
        with BaseVectorEnv([FailsEnv] * 2, worker_fn, **options) as pool:
            for seed in (1, None, 0):
                pool.reset(seed=seed)
            rows = [pool.step([1, 3 if t % 9 == 8 else 2]) for t in range(45)]
            assert pool.restarts.tolist()[0] == 0
            assert pool.restarts.tolist()[1] > 2
        found.append([(*row[:4], [*map(without_tracebacks, row[4])]) for row in rows])
    for t, (ours, theirs) in enumerate(zip(*found, strict=True)):
        assert same(ours, theirs), t


def test_what_is_refused_at_construction():
    def one_then_another(env_fn):
        return next(kinds)(env_fn)

    kinds = iter([ThreadWorker, DummyEnvWorker])
    broken = functools.partial(envs.raise_in_constructor, "no")
    refused = [
        (ThreadWorker, broken, EnvError, "env 1: env_fn raised ValueError: no"),
        (Executor, envs.CountEnv, TypeError, "EnvWorker"),
        (EnvWorker, envs.CountEnv, TypeError, "abstract"),
        (one_then_another, envs.CountEnv, TypeError, "env 1.*DummyEnvWorker.*ThreadWorker"),
    ]
    for worker, env_fn, error, text in refused:
        with pytest.raises(error, match=text):
            BaseVectorEnv([envs.CountEnv, env_fn], worker)
    with pytest.raises(TypeError, match="num_processes"):
        BaseVectorEnv([envs.CountEnv], ThreadWorker, num_processes=2)


class GateEnv(envs.CountEnv):
    """Waits in a step until its gate is open."""

    gate = threading.Event()

    def step(self, action):
        assert self.gate.wait(120)
        return super().step(action)


@pytest.mark.parametrize("worker", WORKERS)
def test_an_interrupted_wait_leaves_no_reply_for_the_next_request(worker, beside):
    def interrupt(*_):
        GateEnv.gate.set()
        raise InterruptedError("by a signal handler")

    GateEnv.gate.clear()
    with handling(signal.SIGUSR1, interrupt), BaseVectorEnv([GateEnv] * 2, worker) as pool:
        pool.reset()
        beside(signalling())
        with pytest.raises(InterruptedError):
            pool.step([0, 0])
        assert pool.reset()[0].tolist() == [[0, 1, 0]] * 2  # env, episode, step
        assert len(pool.step([0, 0])[0]) == 2


@pytest.mark.parametrize("worker", WORKERS)
def test_an_interrupted_restart_leaves_no_request_for_the_next_one(worker, monkeypatch):
    """That by which an env recreates itself was sent, and nobody waits for its reply any more."""

    def send(self, request):
        plain(self, request)
        if request.kind == "configure":
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)

    with BaseVectorEnv([envs.CountEnv] * 2, worker) as pool:
        pool.reset()
        plain = worker.send
        monkeypatch.setattr(worker, "send", send)
        with pytest.raises(KeyboardInterrupt):
            pool.restart([0])
        assert pool.reset()[0][:, 2].tolist() == [0, 0]
        assert pool.step([0, 0])[0][:, 2].tolist() == [1, 1]
