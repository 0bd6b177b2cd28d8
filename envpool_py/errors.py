"""The exceptions of the package, and how env ids and exits are named in their messages.

::

    Exception
    └── EnvError            an environment did not carry out a request
        ├── EnvTimeoutError     it took longer than step_timeout
        └── WorkerDiedError     its process (or actor) has ended
    ReplayError             a replay does not do what the record says

Misuse of the pool itself raises what Python and Gymnasium already have: ``IndexError``,
``TypeError`` and ``ValueError`` for ids, counts and values, and of ``gymnasium.error``
``AlreadyPendingCallError`` (the env is in flight), ``ResetNeeded`` (stepped before a reset) and
``ClosedEnvironmentError`` (the pool is closed).
"""

from __future__ import annotations

import inspect
import pickle
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A pickled exception larger than this travels as text alone, bytes.
LARGEST_EXCEPTION = 1 << 20

# Raising one of these out of a request would end a generator, the interpreter or an ``except*``.
_NEVER_MIXED_IN: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration)
if sys.version_info >= (3, 11):
    _NEVER_MIXED_IN += (BaseExceptionGroup,)  # noqa: F821 - from 3.11 on


class EnvError(Exception):
    """An environment did not carry out a request.

    Attributes:
        env_ids: the ids of the environments concerned, ints.
        request: what was asked of them: ``"step"``, ``"reset"``, ``"get_attr"``, ...

    The message names the env and the cause, and holds the worker's own traceback. ``__cause__`` is
    the original exception where it could be had. Where the original is an ordinary ``Exception``,
    the raised error is also an instance of its class: ``except KeyError`` catches a ``KeyError``
    that an environment raised.
    """

    def __init__(self, message: str, env_ids: Iterable[int], request: str = "") -> None:
        self.message = message
        self.env_ids = tuple(env_ids)
        self.request = request

    @property
    def env_id(self) -> int:
        """The first of ``env_ids``."""
        return self.env_ids[0]

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        original = kind.__mro__[2] if kind.__name__.startswith("EnvError[") else None
        own = EnvError if original is not None else kind
        return _rebuild, (own, original, self.message, self.env_ids, self.request, vars(self))


class EnvTimeoutError(EnvError):
    """The environment took longer over a request than the pool's ``step_timeout`` allows.

    The message holds the Python stack of the stuck process, which has been killed: later requests
    to its environments raise ``WorkerDiedError``.
    """


class WorkerDiedError(EnvError):
    """The process that ran the environment has ended: killed by a signal, or by an exit.

    Every later request to that environment raises the same at once; the rest of the pool goes on.
    """


class ReplayError(Exception):
    """A replay did not do what the record says: the env is not the same, or not deterministic.

    Attributes:
        env_id: the id of the environment, as in the run that was recorded.
        episode: the number of its episode, 0 for the first; -1 before that.
        step: the number of the step in it, 1 for the first; 0 for the reset.
    """

    def __init__(self, message: str, env_id: int, episode: int, step: int) -> None:
        super().__init__(message, env_id, episode, step)
        self.env_id = env_id
        self.episode = episode
        self.step = step

    def __str__(self) -> str:
        return str(self.args[0])


class RemoteTraceback(Exception):  # noqa: N818 - the name that concurrent.futures has made known
    """The text of a traceback from another process, shown as the cause of an exception."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class Failure(NamedTuple):
    """An exception on its way home: as text always, as an object where that survives."""

    description: str
    traceback: str
    pickled: bytes | None


def from_signal_handler(exception: BaseException) -> bool:
    """Whether a signal handler of this program raised it, so that no env is to blame."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {
        getattr(handler, "__code__", getattr(type(handler).__call__, "__code__", None))
        for handler in handlers
        if callable(handler)
    }
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(exception.__traceback__))


def describe(exception: BaseException) -> str:
    """``ValueError: boom``; also for an exception whose ``__str__`` raises."""
    name = type(exception).__qualname__
    try:
        text = str(exception)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"{name} (its __str__ raises)"
    return f"{name}: {text}" if text else name


def pack_failure(exception: BaseException) -> Failure:
    """Make ``exception`` fit to travel to another process."""
    try:
        text = "".join(traceback.format_exception(exception)).rstrip()
    except Exception:  # noqa: BLE001 - formatting calls the user's __str__ and __repr__
        text = "".join(traceback.format_tb(exception.__traceback__)) + describe(exception)
    pickled: bytes | None = None
    try:
        pickled = cloudpickle.dumps(exception)
        # What can't be read back here can't be read there either.
        if len(pickled) > LARGEST_EXCEPTION or type(pickle.loads(pickled)) is not type(exception):  # noqa: S301
            pickled = None
    except Exception:  # noqa: BLE001 - pickling runs the user's code
        pickled = None
    return Failure(describe(exception), text, pickled)


def unpack_failure(failure: Failure, env_id: int, request: str) -> EnvError:
    """The error that a pool raises for a failure in another process."""
    cause: BaseException | None = None
    if failure.pickled is not None:
        try:
            cause = pickle.loads(failure.pickled)  # noqa: S301 - comes from our own worker process
        except Exception:  # noqa: BLE001 - unpickling runs the user's code
            cause = None
    message = f"env {env_id}: {_verb(request)} {failure.description}\n\n{failure.traceback}"
    error = _make(message, env_id, request, cause)
    remote = RemoteTraceback(failure.traceback)
    if cause is None:
        error.__cause__ = remote
    else:
        cause.__cause__ = remote
        error.__cause__ = cause
    return error


def env_error(exception: BaseException, env_id: int, request: str) -> EnvError:
    """The error that a pool raises for an exception in its own process."""
    text = "".join(traceback.format_tb(exception.__traceback__))
    message = f"env {env_id}: {_verb(request)} {describe(exception)}\n\n{text}".rstrip()
    error = _make(message, env_id, request, exception)
    error.__cause__ = exception
    return error


def combine(errors: Sequence[EnvError]) -> EnvError:
    """One error for all: the first, which also names the others.

    Of envs that died with one process one error is enough: it names them all. Where an env that
    took too long is what ended that process, its error comes before those of the others.
    """
    first = errors[0]
    if isinstance(first, WorkerDiedError):
        died = first.env_ids
        late = (e for e in errors if isinstance(e, EnvTimeoutError) and e.env_id in died)
        first = next(late, first)
    if len(errors) > 1:
        others: list[EnvError] = []
        lost: list[set[int]] = []
        for error in errors:
            envs = set(error.env_ids)
            if not isinstance(error, WorkerDiedError) or envs not in lost:
                others.append(error)
            if isinstance(error, WorkerDiedError) and len(envs) > 1:
                lost.append(envs)
        others.remove(first)
        named = (i for error in (first, *errors) for i in error.env_ids)
        first.env_ids = tuple(dict.fromkeys(named))
        first.message += "".join("\nalso: " + error.message.partition("\n")[0] for error in others)
    return first


def renewed(error: EnvError) -> EnvError:
    """A new error for the same end of a process: each raise has a traceback of its own."""
    return WorkerDiedError(error.message, error.env_ids)


def name_ids(ids: Sequence[int]) -> str:
    """``env 3``, ``envs 0 to 7`` or ``envs 1, 4``."""
    if len(ids) == 1:
        return f"env {ids[0]}"
    if list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return f"envs {ids[0]} to {ids[-1]}"
    shown = ", ".join(str(i) for i in ids[:10])
    return f"envs {shown}" + (", ..." if len(ids) > 10 else "")


def name_exit(exitcode: int | None) -> str:
    """``was killed by SIGKILL``, ``exited with code 37``."""
    if exitcode is None:
        return "has ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"


def _verb(request: str) -> str:
    return f"{request} raised" if request else "raised"


def _make(message: str, env_id: int, request: str, cause: BaseException | None) -> EnvError:
    """An ``EnvError`` that is also an instance of its cause's class, where that can be."""
    if isinstance(cause, Exception) and not isinstance(cause, (*_NEVER_MIXED_IN, EnvError)):
        try:
            error = _mixed(type(cause))(message, (env_id,), request)
            error.args = cause.args
            own = vars(error)
            facts = {**_members(cause), **vars(cause)}
            for name in facts.keys() - own.keys():
                setattr(error, name, facts[name])
        except Exception:  # noqa: BLE001, S110 - a class may forbid subclasses, instances or attributes
            pass
        else:
            return error
    return EnvError(message, (env_id,), request)


def _members(exception: BaseException) -> dict[str, Any]:
    """What a built-in exception keeps outside its ``__dict__``: ``errno``, ``filename``, ..."""
    return {
        name: getattr(exception, name)
        for base in type(exception).__mro__
        if base.__module__ == "builtins" and base not in (BaseException, Exception, object)
        for name, member in vars(base).items()
        if inspect.ismemberdescriptor(member) and getattr(exception, name, None) is not None
    }


def _mixed(original: type[Exception]) -> type[EnvError]:
    return type(f"EnvError[{original.__name__}]", (EnvError, original), {})


def _rebuild(
    own: type[EnvError],
    original: type[Exception] | None,
    message: str,
    env_ids: tuple[int, ...],
    request: str,
    attributes: dict[str, Any],
) -> EnvError:
    """Unpickle an error: a mixed class is made again, for it has no name to be found by."""
    error = (own if original is None else _mixed(original))(message, env_ids, request)
    vars(error).update(attributes)
    return error
