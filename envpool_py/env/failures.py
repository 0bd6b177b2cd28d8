"""The failures of envs: name an exception of an env, carry it to the caller, raise it there."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pickle
import re
import sysconfig
import traceback
from collections import ChainMap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from envpool_py.errors import PACKAGE_FOLDER, EnvError, adopt, make_error
from envpool_py.interrupts import ordinary, suppressed

# In the path of a file of Python, or of an installed package.
_INSTALLED = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_INSTALLED += sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep
# The files of code that is in no file: of ``python -c`` and ``python < script.py``, of cloudpickle.
_PSEUDO_FILES = "<string>", "<stdin>", "<dynamic-code>"

#: Largest pickled exception that a worker process sends, in bytes; a larger one is sent as text.
LARGEST_EXCEPTION = 1 << 20


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
        data = dumps(exception)
        # An exception that cannot be unpickled here cannot be unpickled in the caller either.
        if len(data) <= LARGEST_EXCEPTION and type(pickle.loads(data)) is type(exception):  # noqa: S301
            pickled = data
    texts = description_of(exception), traceback_of(exception, exception.__traceback__)
    return pickle.dumps((request, texts, pickled))


def place_of(exception: BaseException) -> str:
    """Return the last line of the user's code that was run: ``" (reacher.py:41)"``, or ""."""
    lines = traceback.walk_tb(exception.__traceback__)  # ``extract_tb`` reads the files
    return place_in([(frame.f_code.co_filename, line) for frame, line in lines])


def in_one_line(exception: BaseException) -> str:
    """Return ``ValueError: boom (reacher.py:41)``, with the last line of the user's code."""
    return " ".join(describe(exception).split()) + place_of(exception)


def place_in(lines: Sequence[Any]) -> str:
    """Return the last of these (file, line, ...) that is the user's, or of an installed package."""
    file, line, *_ = max(
        reversed(lines), key=lambda each: _closeness_to_user(each[0]), default=("", 0)
    )
    return f" ({Path(file).name}:{line})" if _closeness_to_user(file) else ""


def _closeness_to_user(file: str) -> int:
    """Return 3 for a file of the user, 2 for such code in no file, 1 for other packages; else 0."""
    if not file or file.startswith(("<", PACKAGE_FOLDER)):
        return 2 * (file in _PSEUDO_FILES)
    return 1 if any(part in file for part in _INSTALLED) else 3


def stack_of(dump: str, number: int = 0) -> tuple[str, str]:
    """Return the last line of the user's code in a stack by ``faulthandler``, and the env's frames.

    These are above the first frame of this package; threads without such a frame are left out.
    Of the others, thread ``number`` comes first, then the one that got the signal.
    """
    frames, names = dump, (f"hread 0x{number:016x} ", "Current thread ")
    threads = dump.split("\n\n")
    for thread in sorted(threads, key=lambda text: [name not in text for name in names]):
        above, ours, _ = thread.partition(f'  File "{PACKAGE_FOLDER}')
        if ours:
            frames = above.partition(":\n")[2]  # none: no code of the user was run
            dump = "Most recent call first:\n" + frames
            break
    found = re.findall(r'  File "(.*)", line (\d+) in ', frames)
    return place_in(found[::-1]), dump.strip() if found else ""


def description_of(exception: BaseException) -> str:
    """Return the description with the user's line."""
    first, newline, rest = describe(exception).partition("\n")
    return first + place_of(exception) + newline + rest


def traceback_of(exception: BaseException, trace: Any) -> str:
    """Return the traceback ``trace`` of an exception without our frames, or ""."""
    try:
        kind = type(exception)
        whole = traceback.TracebackException(kind, exception, trace, lookup_lines=False)
        parts = [whole]
        for part in parts:
            kept = [frame for frame in part.stack if not frame.filename.startswith(PACKAGE_FOLDER)]
            part.stack = traceback.StackSummary.from_list(kept)
            parts += [each for each in (part.__cause__, part.__context__) if each is not None]
        text = "".join(whole.format()).rstrip()
    except ordinary():  # formatting calls the user's __str__ and __repr__
        return ""
    return text if any(part.stack for part in parts) else ""


def unpack_failure(data: bytes, env_id: int) -> EnvError:
    """Return the error that a pool raises for a failure in another process."""
    request, texts, pickled = pickle.loads(data)  # noqa: S301 - comes from our own worker process
    cause: BaseException | None = None
    with suppressed():  # there is none, or the user's code that is run raises
        cause = pickle.loads(pickled)  # noqa: S301 - as above
    return env_error(cause, env_id, request, texts)


def env_error(
    cause: Any, env_id: int, request: str, texts: tuple[str, Any] | None = None
) -> EnvError:
    """Return the error that a pool raises for an exception of an env.

    It is also an instance of the exception's class, if that is possible. ``texts``: those of an
    exception in another process, from where ``cause`` may not have arrived.
    """
    if texts is None:
        trace = cause.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            trace = trace.tb_next
        cause = BaseException.with_traceback(cause, trace)
        texts = description_of(cause), partial(traceback_of, cause, trace)
    arguments = f"env {env_id}: {request} raised {texts[0]}", (env_id,), request, texts[1]
    error = EnvError(*arguments)
    error.__cause__ = cause
    # An instance of one of these would end a generator, or match an ``except*`` of Python 3.11.
    unmixed = StopIteration, StopAsyncIteration, getattr(builtins, "BaseExceptionGroup", ())
    if isinstance(cause, Exception) and not isinstance(cause, (EnvError, *unmixed)):
        # A class may forbid subclasses, instances or attributes.
        with suppressed():
            mixed = make_error(type(cause), *arguments)
            adopt(mixed, cause)
            mixed.__cause__, error = cause, mixed
    return error


def dumps(value: Any) -> bytes:
    """Pickle ``value``, if possible by reference: a forked process has the caller's classes."""
    try:
        return pickle.dumps(value, protocol=5)
    except ordinary():
        return dumps_by_value(value)  # cloudpickle can pickle more


def dumps_by_value(value: Any) -> bytes:
    """Pickle ``value``; errors in it then name the file and the line of the user's code."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    # From 3.1.3 on, cloudpickle replaces the name of the file.
    make, parts = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # it has no type hints
    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )
