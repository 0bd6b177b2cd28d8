"""The exceptions and warnings of the package, and the names of envs and exits in their messages.

Wrong ids, counts and values raise Python's ``IndexError``, ``TypeError`` and ``ValueError``. Calls
at the wrong time raise exceptions of ``gymnasium.error``: ``AlreadyPendingCallError`` (the env is
in flight), ``ResetNeeded`` (reset the env first), ``ClosedEnvironmentError`` (the pool is closed).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import re
import signal
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The folder of this package.
PACKAGE = str(Path(__file__).parent) + os.sep
# The folders of Python and of installed packages.
_INSTALLED = tuple(path + os.sep for path in sysconfig.get_paths().values())

# A warning names the first caller outside these modules; contextlib calls our context managers.
_PASSED = ("envpool_py.", "contextlib")

# A line of a stack by faulthandler.
_DUMPED = re.compile(r'  File "(.*)", line (\d+) in ')

#: Largest pickled exception that a worker process sends, in bytes; a larger one is sent as text.
LARGEST_EXCEPTION = 1 << 20

# An error that is an instance of one of these would end a generator or match an ``except*``.
_NEVER_MIXED_IN: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration)
if sys.version_info >= (3, 11):
    _NEVER_MIXED_IN += (BaseExceptionGroup,)  # noqa: F821 - from 3.11 on


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

    _original: type[Exception] | None = None  # the other base class, see _mixed

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
        kind = type(self) if self._original is None else EnvError
        arguments = (self.message, self.env_ids, self.request, self.details)
        return _rebuild, (kind, self._original, arguments), vars(self)


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


class Failure(NamedTuple):
    """An exception to send to another process: as text, and pickled if it can be unpickled."""

    description: str
    details: str
    pickled: bytes | None


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


def from_signal_handler(exception: BaseException) -> bool:
    """Whether a signal handler of this program raised the exception, not an env."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {
        getattr(handler, "__code__", getattr(type(handler).__call__, "__code__", None))
        for handler in handlers
        if callable(handler)
    }
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(exception.__traceback__))


def ordinary(*kinds: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Return the classes for an ``except`` around code of users: none if a signal handler raised.

    ``except ordinary(TypeError) as error:`` catches a TypeError of the code in the ``try`` block,
    and lets that of a signal handler, which may run at any line, pass. Default: ``Exception``.
    """
    error: Any = sys.exc_info()[1]
    # An error of C code that the block itself calls has no deeper frame; a handler has one.
    if error.__traceback__.tb_next is not None and from_signal_handler(error):
        return ()
    return kinds or (Exception,)


def describe(exception: BaseException) -> str:
    """Return ``ValueError: boom``, even if the exception's ``__str__`` raises."""
    name = type(exception).__qualname__
    try:
        text = str(exception)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"{name} (its __str__ raises)"
    return f"{name}: {text}" if text else name


def pack_failure(exception: BaseException) -> Failure:
    """Prepare ``exception`` to be sent to another process."""
    pickled: bytes | None = None
    with contextlib.suppress(Exception):  # pickling runs the user's code
        data = cloudpickle.dumps(exception)
        # An exception that cannot be unpickled here cannot be unpickled in the caller either.
        if len(data) <= LARGEST_EXCEPTION and type(pickle.loads(data)) is type(exception):  # noqa: S301
            pickled = data
    return Failure(_located(exception), _details_of(exception), pickled)


def line_of(exception: BaseException) -> str:
    """Return the last line of the user's code that was run: ``" (reacher.py:41)"``, or ""."""
    frames = traceback.extract_tb(exception.__traceback__)
    return place_in([(frame.filename, frame.lineno or 0) for frame in frames])


def place_in(lines: Sequence[tuple[str, int]]) -> str:
    """Return the last of these (file, line) that is the user's, or of an installed package."""
    found = [line for line in lines if not line[0].startswith(("<", PACKAGE))]
    found = [line for line in found if not line[0].startswith(_INSTALLED)] or found
    return f" ({Path(found[-1][0]).name}:{found[-1][1]})" if found else ""


def stack_of(dump: str) -> tuple[str, str]:
    """Return the last line of the user's code in a stack by ``faulthandler``, and the env's frames.

    These are above the first frame of this package; threads without such a frame are left out.
    """
    frames = [line for line in dump.splitlines() if line.startswith("  File ")]
    threads = [thread.splitlines() for thread in dump.split("\n\n")]
    for lines in threads:
        ours = [n for n, line in enumerate(lines) if f'File "{PACKAGE}' in line]
        if ours:
            frames = [line for line in lines[: ours[0]] if line.startswith("  File ")]
            frames = frames or lines[1:]  # no env was stepped
            dump = "\n".join(["Most recent call first:", *frames])
            break
    found = [_DUMPED.match(line) for line in reversed(frames)]
    place = place_in([(match[1], int(match[2])) for match in found if match])
    return place, dump.strip() if frames else ""


def _located(exception: BaseException) -> str:
    first, newline, rest = describe(exception).partition("\n")
    return first + line_of(exception) + newline + rest


def _details_of(exception: BaseException) -> str:
    """Return the traceback, and those of its causes, without frames of this package."""
    try:
        whole = traceback.TracebackException.from_exception(exception)
        parts = [whole]
        for part in parts:
            kept = [frame for frame in part.stack if not frame.filename.startswith(PACKAGE)]
            part.stack = traceback.StackSummary.from_list(kept)
            parts += [each for each in (part.__cause__, part.__context__) if each is not None]
        text = "".join(whole.format()).rstrip()
    except Exception:  # noqa: BLE001 - formatting calls the user's __str__ and __repr__
        return ""
    return text if any(part.stack for part in parts) else ""


def unpack_failure(failure: Failure, env_id: int, request: str) -> EnvError:
    """Return the error that a pool raises for a failure in another process."""
    cause: BaseException | None = None
    if failure.pickled is not None:
        with contextlib.suppress(Exception):  # unpickling runs the user's code
            cause = pickle.loads(failure.pickled)  # noqa: S301 - comes from our own worker process
    return _make(env_id, request, failure.description, failure.details, cause)


def env_error(exception: BaseException, env_id: int, request: str) -> EnvError:
    """Return the error that a pool raises for an exception in its own process."""
    description, details = _located(exception), _details_of(exception)
    trace = exception.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        trace = trace.tb_next
    return _make(env_id, request, description, details, exception.with_traceback(trace))


def combine(errors: Sequence[EnvError]) -> EnvError:
    """Return the first of several errors; its message and ``env_ids`` also name the others.

    Envs that died with one process count as one error. If their process was killed because one of
    them took too long, the error of that env comes first.
    """
    first = errors[0]
    if isinstance(first, WorkerDiedError):
        died = first.env_ids
        late = (e for e in errors if isinstance(e, EnvTimeoutError) and e.env_id in died)
        first = next(late, first)
    distinct: dict[object, EnvError] = {}
    for error in errors:
        is_death = isinstance(error, WorkerDiedError)
        distinct.setdefault(frozenset(error.env_ids) if is_death else id(error), error)
    others = [error for error in distinct.values() if error is not first]
    first.env_ids = tuple(dict.fromkeys(i for e in (first, *errors) for i in e.env_ids))
    first.message += "".join("\nalso: " + error.message.partition("\n")[0] for error in others)
    return first


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the line of the user's program that called this package."""
    level = 1
    frame = sys._getframe()  # noqa: SLF001 - there is no other way before Python 3.12
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PASSED):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


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


def _make(
    env_id: int, request: str, description: str, details: str, cause: BaseException | None
) -> EnvError:
    """Make an ``EnvError`` that is also an instance of its cause's class, if that is possible."""
    error = EnvError(f"env {env_id}: {request} raised {description}", (env_id,), request, details)
    if isinstance(cause, Exception) and not isinstance(cause, (*_NEVER_MIXED_IN, EnvError)):
        # A class may forbid subclasses, instances or attributes.
        with contextlib.suppress(Exception):
            error = _mixed_with(cause, error)
    error.__cause__ = cause
    return error


def _mixed_with(cause: Exception, error: EnvError) -> EnvError:
    mixed = _mixed(type(cause))(error.message, error.env_ids, error.request, error.details)
    mixed.args = cause.args
    # Some attributes of built-in exceptions are not in __dict__: errno, filename, ...
    members = inspect.getmembers(type(cause), inspect.ismemberdescriptor)
    facts = {name: getattr(cause, name, None) for name, _ in members} | vars(cause)
    for name in facts.keys() - vars(mixed).keys():
        setattr(mixed, name, facts[name])
    return mixed


def _mixed(original: type[Exception]) -> type[EnvError]:
    name = f"EnvError[{original.__name__}]"
    return type(name, (EnvError, original), {"_original": original})


def _rebuild(
    kind: type[EnvError], original: type[Exception] | None, arguments: tuple[Any, ...]
) -> EnvError:
    """Unpickle an error; a mixed class is created again, because no module holds it by name."""
    return (kind if original is None else _mixed(original))(*arguments)
