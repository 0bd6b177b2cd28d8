"""The exceptions and warnings of the package, and the names of envs and exits in their messages.

Wrong ids, counts and values raise Python's ``IndexError``, ``TypeError`` and ``ValueError``. Calls
at the wrong time raise exceptions of ``gymnasium.error``: ``AlreadyPendingCallError`` (the env is
in flight), ``ResetNeeded`` (reset the env first), ``ClosedEnvironmentError`` (the pool is closed).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGE_FOLDER = str(Path(__file__).parent) + os.sep

__all__ = ["EnvError", "EnvTimeoutError", "ReplayError", "WorkerDiedError"]


class EnvError(Exception):
    """An env raised an exception, or did not carry out a request.

    The message names the env, the cause, and the last line of the user's code that was run.
    ``__cause__`` is the original exception if it could be pickled. If the original is an ordinary
    ``Exception``, the error is also an instance of its class: ``except KeyError`` catches a
    ``KeyError`` of an env.

    Attributes:
        env_ids: the ids of the envs concerned, ints.
        request: the kind of the request that failed: ``"step"``, ``"reset"``, ``"get_attr"``, ...
        finished: the finished tasks, as ``Evaluation`` of ``evaluate``, or ``Outcomes`` of ``map``.
    """

    finished: Any = None
    _original: type[Exception] | None = None  # the other base class, see make_error
    with_traceback = Exception.with_traceback  # not that of the other base class

    def __init__(
        self,
        message: str,
        env_ids: Iterable[int],
        request: str = "",
        details: str | Callable[[], str] = "",
    ) -> None:
        self.message = message
        self.env_ids = tuple(env_ids)
        self.request = request
        self._details = details

    @property
    def details(self) -> str:
        """The traceback in the worker, without frames of this package, or ""."""
        if not isinstance(self._details, str):  # formatting takes more time than a step
            self._details = self._details()
        return self._details

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
        arguments = kind, self.message, self.env_ids, self.request, self.details
        return make_error, arguments, vars(self)


class EnvTimeoutError(EnvError, TimeoutError):
    """A request took longer than ``step_timeout``, or the timeout of a session; a TimeoutError.

    ``details`` has the frames of the env. Its process was killed, its thread abandoned, or its
    coroutine cancelled. Later requests to envs whose process was killed raise ``WorkerDiedError``.
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


def make_error(kind: type[Any], *arguments: Any) -> Any:
    """Make an error of a subclass of ``EnvError``, or of a class that is made of both."""
    if not issubclass(kind, EnvError):
        kind = type(f"EnvError[{kind.__name__}]", (EnvError, kind), {"_original": kind})
    return kind(*arguments)


def combine(errors: Sequence[EnvError]) -> EnvError:
    """Return a new error, of the class of the first; it also names the others and their envs.

    Equal errors, and envs that died with one process, count as one. If their process was killed
    because one of them took too long, or was not restarted because of one, the error of that env
    comes first.
    """
    first = next((error for error in errors if error.request != "restart"), errors[0])
    if isinstance(first, WorkerDiedError):
        died = first.env_ids
        late = (e for e in errors if isinstance(e, EnvTimeoutError) and e.env_id in died)
        first = next(late, first)
    distinct: dict[frozenset[int], EnvError] = {}
    for error in errors:
        distinct.setdefault(frozenset(error.env_ids), error)
    facts: dict[str, set[int]] = {}  # of equal errors only once, with all of their envs
    for error in (first, *distinct.values()):
        fact = error.message.partition("\n")[0].removeprefix(name_ids(error.env_ids))
        facts.setdefault(fact, set()).update(error.env_ids)
    lines = [(name_ids(sorted(facts[fact])) if fact[:1] in ": " else "") + fact for fact in facts]
    ids = tuple(dict.fromkeys(i for e in (first, *errors) for i in e.env_ids))
    _, newline, rest = first.message.partition("\n")
    text = "\nalso: ".join([lines[0] + newline + rest, *lines[1:]])
    kind, is_mixed = first._original or type(first), first._original is not None  # noqa: SLF001
    details = first._details  # noqa: SLF001 - not formatted yet
    combined: EnvError = make_error(kind, text, ids, first.request, details)
    if is_mixed:
        adopt(combined, first)
    combined.__cause__ = first.__cause__
    return combined


def adopt(error: BaseException, source: BaseException) -> None:
    """Give an error the ``args`` of another one, and those of its attributes that it lacks."""
    error.args = source.args
    # Some attributes of built-in exceptions are not in __dict__: errno, filename, ...
    own = [item for kind in type(source).__mro__ for item in vars(kind).items()]
    members = {name for name, value in own if inspect.ismemberdescriptor(value)}
    for name in {*members, *vars(source)} - {*vars(error), "details", "text", "env_id"}:
        setattr(error, name, getattr(source, name, None))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the line of the user's program that called this package."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())]  # noqa: SLF001
    passed = PACKAGE_FOLDER, contextlib.__file__  # contextlib calls our context managers
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
