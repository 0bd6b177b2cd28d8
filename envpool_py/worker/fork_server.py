"""The fork server of a pool: its processes are forked from one that has imported their modules.

multiprocessing's own server belongs to the whole program, and what it imports cannot be changed
once it runs. A pool's server imports this module, and so the modules that a variable names.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import gc
import importlib
import io
import itertools
import json
import math
import os
import pickle
import pickletools
import queue
import signal
import sys
import threading
import types
from collections.abc import Iterable
from multiprocessing import context, forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from envpool_py import interrupts
from envpool_py.env_by_name import modules_of_id
from envpool_py.errors import warn
from envpool_py.worker import cores_and_threads

#: Seconds that a server may take to fork, before another one takes its place.
ANSWERS_WITHIN = 5.0
_SETTING_VAR = "ENVPOOL_PY_FORK_SERVER"
_lock = threading.Lock()  # pools that start at once in threads: one server reads the variable


class _Probe:
    """In place of a process: it ends at once, and its start shows that the server is ready."""

    def _bootstrap(self, _: int) -> int:
        return 0


class _Server(forkserver.ForkServer):
    """A fork server that ``close`` ends, also if the thread of ``_fork`` starts one meanwhile."""

    is_closed = False

    def ensure_running(self) -> None:
        super().ensure_running()
        if self.is_closed:
            self.close()

    def close(self) -> None:
        self.is_closed, own = True, vars(self)
        with own["_lock"], contextlib.suppress(OSError):  # the program may have waited for all
            if (pid := own["_forkserver_pid"]) is not None:
                os.kill(pid, signal.SIGKILL)  # a process of an env's fork would keep it alive
                self._stop_unlocked()  # type: ignore[attr-defined]


def _kill_server(server: Any) -> None:
    """Kill the server and wait for its end; its processes go on, and the next one gets another."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(server._forkserver_pid, signal.SIGKILL)  # noqa: SLF001
        os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOWAIT)  # noqa: SLF001


class _Popen(popen_forkserver.Popen):
    """Starts a process as its base class does, but by the server of its pool."""

    def _launch(self, process: Any) -> None:
        server, buffer = vars(process).pop("server"), io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), buffer)
            reduction.dump(process, buffer)
        finally:
            context.set_spawning_popen(None)
        try:
            found = _fork(server, self._fds, ANSWERS_WITHIN)  # type: ignore[attr-defined]
        except (EOFError, ConnectionError, TimeoutError):  # it is about to end, or stopped
            _kill_server(server)
            found = _fork(server, self._fds, 10 * ANSWERS_WITHIN)  # type: ignore[attr-defined]
        status, data, self.pid = found
        self.sentinel, self.finalizer = status.fileno(), util.Finalize(self, status.close)
        with data, open(data.fileno(), "wb", closefd=False) as file:
            file.write(buffer.getbuffer())


def _fork(server: Any, fds: Any, limit: float, patience: float = math.inf) -> tuple[Any, Any, int]:
    """Let the server fork a process: what tells its exit code, what it reads, and its pid.

    With a warning after ``patience`` seconds; TimeoutError after ``limit`` seconds. In a thread: a
    server that imports does not fork, and from Python 3.14 on it does not even connect.
    """
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()  # an interrupt leaves no lock held

    def fork() -> None:
        try:
            status, data = server.connect_to_new_process(fds)
            # They close the descriptors when they are deleted, without a warning.
            ends = Connection(status, writable=False), Connection(data, readable=False)
            found.put((*ends, forkserver.read_signed(status)))
        except BaseException as error:  # noqa: BLE001 - raised below
            found.put(error.with_traceback(None))  # which has ``ends``

    with interrupts.deferred():
        threading.Thread(target=fork, name="envpool_py fork server", daemon=True).start()

    def wait(seconds: float) -> Any:
        with contextlib.suppress(queue.Empty):
            return found.get(timeout=min(seconds, threading.TIMEOUT_MAX))

    answer = wait(min(patience, limit))
    if answer is None and patience < limit:
        text = "the fork server has not imported the modules of the envs"
        warn(f"{text} after {patience:g} seconds; still waiting")
        answer = wait(limit - patience)
    if answer is None:
        answer = TimeoutError(errno.ETIMEDOUT, "the fork server does not answer")
    if isinstance(answer, BaseException):
        raise answer
    return answer  # type: ignore[no-any-return]


class _Process(context.ForkServerProcess):
    server: Any
    _Popen = staticmethod(_Popen)


class Context(context.ForkServerContext):
    """A multiprocessing context with a fork server of its own, which ``close`` ends."""

    def __init__(self) -> None:
        self._server: Any = _Server()

    def Process(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # noqa: N802
        """Return a process that the server forks."""
        process = _Process(*args, **kwargs)
        process.server = self._server
        return process

    def prepare(
        self, pickled: Iterable[bytes], threads: int | None, patience: float, limit: float
    ) -> bool:
        """Start the server; wait until it has imported the modules that these env_fns name.

        ``threads``: see ``limit_threads``. There is a warning after ``patience`` seconds. Return
        False if it has not imported them within ``limit`` seconds.
        """
        preload: list[str] = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]  # noqa: SLF001
        # Python 3.14 would import the main file before all others, with its tracebacks.
        own = [name for name in preload if name != "__main__"]
        self._server.set_forkserver_preload([*own, __name__])
        path = spawn.get_preparation_data("")["sys_path"]
        names = sorted(modules_in(pickled) | _modules_of_main())
        with _lock, interrupts.deferred():  # an interrupt would leave a server without a pid
            os.environ[_SETTING_VAR] = json.dumps([os.getpid(), path, sys.argv, threads, names])
            try:
                with interrupts.kept_from_children("forkserver"):
                    self._server.ensure_running()
            finally:
                del os.environ[_SETTING_VAR]
        try:
            _, data, _ = _fork(self._server, [], limit, patience)
            with data, open(data.fileno(), "wb", closefd=False) as file:
                file.write(pickle.dumps({"sys_path": path}) + pickle.dumps(_Probe()))
        except interrupts.ordinary(TimeoutError):
            return False
        except interrupts.ordinary(EOFError, ConnectionError):
            # An import has ended the server. Once it has ended, the processes get another one, and
            # raise the error again.
            _kill_server(self._server)
        return True

    def stop(self) -> None:
        """Kill a server that does not answer; the next process gets another one."""
        _kill_server(self._server)

    def close(self) -> None:
        """End the server."""
        self._server.close()


def modules_in(pickled: Iterable[bytes]) -> set[str]:
    """Return the modules that these pickles name, and those of the ids of envs in them."""
    operations = itertools.chain.from_iterable(map(pickletools.genops, set(pickled)))
    names = {text for _, text, _ in operations if isinstance(text, str)}
    found = (sys.modules.keys() & names).union(*map(modules_of_id, names))
    return found - {"__main__", "builtins"}


def _modules_of_main() -> set[str]:
    """Return the modules of the main file's globals, if a process imports that file again.

    What the file imports under ``if __name__ == "__main__":`` no such process needs.
    """
    main = sys.modules["__main__"]
    if not spawn.get_preparation_data("").keys() & {"init_main_from_name", "init_main_from_path"}:
        return set()
    guarded = _imported_under_guard(getattr(main, "__file__", ""))
    # To read anything of a lazy module would load it.
    values = [value for name, value in vars(main).items() if name not in guarded]
    found = {one.__name__ for one in values if type(one) is types.ModuleType}
    found |= {one.__module__ for one in values if issubclass(type(one), (types.FunctionType, type))}
    return found & sys.modules.keys() - {"__main__"}


def _imported_under_guard(path: str) -> set[str]:
    """Return the names that this file imports under its main guard."""
    body: list[ast.stmt] = []
    with interrupts.suppressed(OSError, SyntaxError, ValueError):  # there is no such file any more
        body = ast.parse(Path(path).read_bytes()).body
    guards = (
        node for node in body if isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
    )
    inside = itertools.chain.from_iterable(map(ast.walk, guards))
    imports = (node for node in inside if isinstance(node, (ast.Import, ast.ImportFrom)))
    names = itertools.chain.from_iterable(node.names for node in imports)
    return {one.asname or one.name.partition(".")[0] for one in names}


def _import_all() -> None:
    """Import the modules that the variable names, if this process is the server."""
    parent, path, argv, threads, names = json.loads(os.environ.pop(_SETTING_VAR))
    if parent == os.getppid():
        sys.path[:], sys.argv = path, argv
        cores_and_threads.limit_threads(threads)  # libraries read variables when they are imported
        for name in names:
            with contextlib.suppress(BaseException):  # the process that needs it raises it again
                importlib.import_module(name)
        cores_and_threads.thread_pools.cache_clear()
        cores_and_threads.limit_threads(threads)
        gc.collect()
        gc.freeze()  # else a collection of garbage would copy every page in every process


if _SETTING_VAR in os.environ:
    _import_all()
