"""The exceptions and warnings of the package, and the names of envs and exits in their messages.

Wrong ids, counts and values raise Python's ``IndexError``, ``TypeError`` and ``ValueError``. Calls
at the wrong time raise exceptions of ``gymnasium.error``: ``AlreadyPendingCallError`` (the env is
in flight), ``ResetNeeded`` (reset the env first), ``ClosedEnvironmentError`` (the pool is closed).
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import os
import pickle
import re
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from envpool_py.interrupts import ordinary, suppressed

#: The folder of this package.
PACKAGE = str(Path(__file__).parent) + os.sep
# The folders of Python and of installed packages.
_INSTALLED = tuple(path + os.sep for path in sysconfig.get_paths().values())

#: Largest pickled exception that a worker process sends, in bytes; a larger one is sent as text.
LARGEST_EXCEPTION = 1 << 20


class EnvError(Exception):
    """An env raised an exception, or did not carry out a request.

    The message names the env, the cause, and the last line of the user's code that was run.
    ``__cause__`` is the original exception if it could be pickled. If the original is an ordinary
    ``Exception``, the error is also an instance of its class: ``except KeyError`` catches a
    ``KeyError`` of an env.

    Attributes:
        env_ids: the ids of the envs concerned, ints.
        request: the kind of the request that failed: ``"step"``, ``"reset"``, ``"get_attr"``, ...
        details: the traceback in the worker, without frames of this package, or "".
    """

    _original: type[Exception] | None = None  # the other base class, see _new

    def __init__(
        self, message: str, env_ids: Iterable[int], request: str = "", details: str = ""
    ) -> None:
        self.message = message
        self.env_ids = tuple(env_ids)
        self.request = request
        self.details = details

    @property
    def text(self) -> str:
        """The message and the details."""
        return f"{self.message}\n\n{self.details}".rstrip()

    @property
    def env_id(self) -> int:
        """The first of ``env_ids``."""
        return self.env_ids[0]

    def __str__(self) -> str:
        # Python shows the traceback of a cause itself.
        is_shown = self.__cause__ is not None and self.__cause__.__traceback__ is not None
        return self.message if is_shown else self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        kind = self._original or type(self)
        return _new, (kind, self.message, self.env_ids, self.request, self.details), vars(self)


class EnvTimeoutError(EnvError):
    """A request to an env took longer than the pool's ``step_timeout``.

    The stuck process was killed; ``details`` has the frames of the env. Later requests to the envs
    of that process raise ``WorkerDiedError``.
    """


class WorkerDiedError(EnvError):
    """The worker process of an env has ended: a signal killed it, or it exited.

    Every later request to that env raises the same error at once, until ``reset`` or ``restart``.
    """


class ReplayError(Exception):
    """A replay differs from the record: the env is not the same, or not deterministic.

    Attributes:
        env_id: the id of the env in the recorded run.
        episode: the number of the env's episode, 0 for the first; -1 before the first.
        step: the number of the step in the episode, 1 for the first; 0 for the reset.
    """

    def __init__(self, message: str, env_id: int, episode: int, step: int) -> None:
        super().__init__(message, env_id, episode, step)
        self.env_id, self.episode, self.step = env_id, episode, step

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def closed_on_error(pool: Any) -> Iterator[None]:
    """Close ``pool``, unless it is None, if the block raises."""
    try:
        yield
    except BaseException:
        if pool is not None:
            pool.close()
        raise


@contextlib.contextmanager
def naming_env(env_id: int, request: str) -> Iterator[None]:
    """Make an ``EnvError`` of what the block raises; Ctrl-C stays what it is."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise env_error(error, env_id, request) from error


def describe(exception: BaseException) -> str:
    """Return ``ValueError: boom``, even if the exception's ``__str__`` raises."""
    name = type(exception).__qualname__
    try:
        text = str(exception)
    except ordinary():  # a user's __str__ may raise anything
        return f"{name} (its __str__ raises)"
    return f"{name}: {text}" if text else name


def pack_failure(exception: BaseException, request: str) -> bytes:
    """Pickle an exception as text, and also the exception if it can be unpickled."""
    pickled = b""
    with suppressed():  # pickling runs the user's code
        data = cloudpickle.dumps(exception)
        # An exception that cannot be unpickled here cannot be unpickled in the caller either.
        if len(data) <= LARGEST_EXCEPTION and type(pickle.loads(data)) is type(exception):  # noqa: S301
            pickled = data
    return pickle.dumps((request, _texts_of(exception), pickled))


def line_of(exception: BaseException) -> str:
    """Return the last line of the user's code that was run: ``" (reacher.py:41)"``, or ""."""
    return place_in(traceback.extract_tb(exception.__traceback__))


def place_in(lines: Sequence[Any]) -> str:
    """Return the last of these (file, line, ...) that is the user's, or of an installed package."""
    found = [line for line in lines if not line[0].startswith(("<", PACKAGE))]
    found = [line for line in found if not line[0].startswith(_INSTALLED)] or found
    return f" ({Path(found[-1][0]).name}:{found[-1][1]})" if found else ""


def stack_of(dump: str, number: int = 0) -> tuple[str, str]:
    """Return the last line of the user's code in a stack by ``faulthandler``, and the env's frames.

    These are above the first frame of this package; threads without such a frame are left out.
    Of the others, thread ``number`` comes first, then the one that got the signal.
    """
    frames, names = dump, (f"hread 0x{number:016x} ", "Current thread ")
    threads = dump.split("\n\n")
    for thread in sorted(threads, key=lambda text: [name not in text for name in names]):
        above, ours, _ = thread.partition(f'  File "{PACKAGE}')
        if ours:
            frames = above.partition(":\n")[2]  # none: no code of the user was run
            dump = "Most recent call first:\n" + frames
            break
    found = re.findall(r'  File "(.*)", line (\d+) in ', frames)
    return place_in(found[::-1]), dump.strip() if found else ""


def _texts_of(exception: BaseException) -> tuple[str, str]:
    """Return the description with the user's line, and the traceback without our frames, or ""."""
    first, newline, rest = describe(exception).partition("\n")
    description = first + line_of(exception) + newline + rest
    try:
        whole = traceback.TracebackException.from_exception(exception)
        parts = [whole]
        for part in parts:
            kept = [frame for frame in part.stack if not frame.filename.startswith(PACKAGE)]
            part.stack = traceback.StackSummary.from_list(kept)
            parts += [each for each in (part.__cause__, part.__context__) if each is not None]
        text = "".join(whole.format()).rstrip()
    except ordinary():  # formatting calls the user's __str__ and __repr__
        return description, ""
    return description, text if any(part.stack for part in parts) else ""


def unpack_failure(data: bytes, env_id: int) -> EnvError:
    """Return the error that a pool raises for a failure in another process."""
    request, texts, pickled = pickle.loads(data)  # noqa: S301 - comes from our own worker process
    cause: BaseException | None = None
    with suppressed():  # there is none, or the user's code that is run raises
        cause = pickle.loads(pickled)  # noqa: S301 - as above
    return env_error(cause, env_id, request, texts)


def env_error(
    cause: Any, env_id: int, request: str, texts: tuple[str, str] | None = None
) -> EnvError:
    """Return the error that a pool raises for an exception of an env.

    It is also an instance of the exception's class, if that is possible. ``texts``: those of an
    exception in another process, from where ``cause`` may not have arrived.
    """
    if texts is None:
        texts, trace = _texts_of(cause), cause.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
            trace = trace.tb_next
        cause = cause.with_traceback(trace)
    arguments = f"env {env_id}: {request} raised {texts[0]}", (env_id,), request, texts[1]
    error = EnvError(*arguments)
    # An instance of one of these would end a generator, or match an ``except*`` of Python 3.11.
    unmixed = StopIteration, StopAsyncIteration, getattr(builtins, "BaseExceptionGroup", ())
    if isinstance(cause, Exception) and not isinstance(cause, (EnvError, *unmixed)):
        # A class may forbid subclasses, instances or attributes.
        with suppressed():
            mixed = _new(type(cause), *arguments)
            mixed.args = cause.args
            # Some attributes of built-in exceptions are not in __dict__: errno, filename, ...
            members = inspect.getmembers(type(cause), inspect.ismemberdescriptor)
            for name in {*dict(members), *vars(cause)} - vars(mixed).keys():
                setattr(mixed, name, getattr(cause, name, None))
            error = mixed
    error.__cause__ = cause
    return error


def _new(kind: type[Any], *arguments: Any) -> Any:
    """Make an error of a subclass of ``EnvError``, or of a class that is made of both."""
    if not issubclass(kind, EnvError):
        kind = type(f"EnvError[{kind.__name__}]", (EnvError, kind), {"_original": kind})
    return kind(*arguments)


def combine(errors: Sequence[EnvError]) -> EnvError:
    """Return the first of several errors; its message and ``env_ids`` also name the others.

    Envs that died with one process count as one error. If their process was killed because one of
    them took too long, or was not restarted because of one, the error of that env comes first.
    """
    first = next((error for error in errors if error.request != "restart"), errors[0])
    if isinstance(first, WorkerDiedError):
        died = first.env_ids
        late = (e for e in errors if isinstance(e, EnvTimeoutError) and e.env_id in died)
        first = next(late, first)
    distinct: dict[frozenset[int], EnvError] = {}
    for error in errors:
        distinct.setdefault(frozenset(error.env_ids), error)
    others = [error for error in distinct.values() if error is not first]
    first.env_ids = tuple(dict.fromkeys(i for e in (first, *errors) for i in e.env_ids))
    first.message += "".join("\nalso: " + error.message.partition("\n")[0] for error in others)
    return first


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the line of the user's program that called this package."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())]  # noqa: SLF001
    passed = PACKAGE, contextlib.__file__  # contextlib calls our context managers
    ours = itertools.takewhile(lambda file: file.startswith(passed), files)
    warnings.warn(text, category, stacklevel=len(list(ours)) + 1)


def name_ids(ids: Sequence[int]) -> str:
    """Return ``env 3``, ``envs 0 to 7`` or ``envs 1, 4``."""
    if len(ids) == 1:
        return f"env {ids[0]}"
    if list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return f"envs {ids[0]} to {ids[-1]}"
    shown = ", ".join(str(i) for i in ids[:10])
    return f"envs {shown}" + (", ..." if len(ids) > 10 else "")


def name_exit(exitcode: int | None) -> str:
    """Return ``was killed by SIGKILL`` or ``exited with code 37``."""
    if exitcode is None:
        return "has ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"
