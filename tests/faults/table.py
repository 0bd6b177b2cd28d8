"""The table of faults: what the caller gets, for each place, fault and backend. Data alone.

`test_table.py` tries each cell and `docs/fault_table.md` shows it, so the texts are for readers: in
them `...` stands for any text. A text begins with how it arrives:

* `raised`: the call raises an `EnvError` with this message;
* `row`: the row has `info["env_error"]` with this text;
* `warned`: a warning; `logged`: a line of the logger `envpool_py`;
* `nothing`: no error, no warning, no log line about the env.

In every cell the rows of the other envs are right, the pool resets and steps all of its envs
afterwards, and after its end no process is left. Env 1 of three has the fault, once.
"""

from typing import NamedTuple

IN_PROCESS, PROCESSES, THREADS, RAY = "in process", "shared memory", "threads", "Ray"
BACKENDS = (IN_PROCESS, PROCESSES, THREADS, RAY)

PLACES = {
    "env_fn": "`env_fn`, when the pool is made",
    "env_fn at a restart": "`env_fn`, when the env is recreated after an exception in `step`",
    "first reset": "the first `reset` of the env, beside others that succeed",
    "first reset of all": "the first `reset` of every env",
    "reset": "a later `reset`",
    "step": "`step`",
    "call": "a method that `pool.call` calls",
    "close after a crash": "`close` of an env that raised in `step` and is recreated",
    "close at recycling": "`close` of an env that `recycle=1` replaces",
    "close of the pool": "`close` of an env when the pool is closed",
}

FORKS = {
    "forks, child raises": "the env forks; an exception leaves the env's code in the child",
    "forks, child exits": "the env forks; the child calls `sys.exit`",
    "forks, exec fails": "the env forks; the child's `exec` finds no program",
    "forks, child goes on": "the env forks; the child returns as the parent does",
}
FAULTS = {
    "raises": "raises an exception",
    "raises SystemExit": "calls `sys.exit`",
    "hangs": "never returns",
    "exits": "ends its process by `os._exit`",
    "is killed": "its process is killed by SIGKILL",
    "returns nonsense": "returns something else than it should",
    **FORKS,
}

NO_HANG = "an env that hangs in the program itself stops it: use processes or threads"
NO_DEATH = "the program itself would end: use processes"
NOTHING = ("nothing",)

# Texts that several rows have.
_CRASH = "row: env 1: step raised RuntimeError: crash ..."
_MADE = "env 1: env_fn raised RuntimeError: boom (env_of_table.py:...)"
_NO_ENV = "env 1: env_fn raised TypeError: ..."
_NO_RETURN = "env 1: did not return from env_fn within ... seconds"
_FIRST = "envs 0 to 2: reset raised RuntimeError: boom (env_of_table.py:...)"
_CLOSED = "warned: env 1: close raised RuntimeError: boom (env_of_table.py:...)..."
_ACTOR = "raised: env 1: the actor ... died..."
_EXITED = "warned: env 1: close raised SystemExit: 3 (env_of_table.py:...)..."
_MADE_EXIT = "env 1: env_fn raised SystemExit: 3 (env_of_table.py:...)"


class Row(NamedTuple):
    """A place and a fault.

    Attributes:
        raises: the texts with `on_error="raise"`.
        restarts: the texts with `on_error="restart"`; None: the same.
        but: the same two for backends where they differ.
        limit: seconds after which the whole cell counts as hanging.
    """

    place: str
    fault: str
    raises: tuple[str, ...]
    restarts: tuple[str, ...] | None = None
    but: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {}  # noqa: RUF012
    limit: float = 10.0

    def texts(self, backend: str, on_error: str) -> tuple[str, ...]:
        """Return what the caller gets."""
        raises, restarts = self.but.get(backend, (self.raises, self.restarts))
        return raises if on_error == "raise" or restarts is None else restarts

    def options(self, backend: str, on_error: str) -> dict[str, object]:
        """Return the options of the pool."""
        found: dict[str, object] = {"on_error": on_error}
        if self.fault == "hangs" and self.place not in ("env_fn", "close of the pool"):
            # It is also the limit for a new actor, which takes a second to start.
            found["step_timeout"] = 5 if backend == RAY else 0.5
        if self.place == "close at recycling":
            found["recycle"] = 1
        return found


def why_not(row: Row, backend: str) -> str:
    """Return why this cell cannot be, or ""."""
    if row.fault == "hangs" and backend == IN_PROCESS:
        return NO_HANG
    if row.fault in ("exits", "is killed") and backend in (IN_PROCESS, THREADS):
        return NO_DEATH
    return ""


def _failure(place: str, request: str) -> list[Row]:
    """Return the rows of a request whose error is raised, or reported with a row."""
    did = "return from close" if place == "close at recycling" else "end its request"
    late = f"env 1: did not {did} within step_timeout=... seconds"
    rows = {
        "raises": f"env 1: {request} raised RuntimeError: boom (env_of_table.py:...)",
        "raises SystemExit": f"env 1: {request} raised SystemExit: 3 (env_of_table.py:...)",
        "hangs": late,
        "exits": "env 1: the worker process exited with code 37",
        "is killed": "env 1: the worker process was killed by SIGKILL",
        "returns nonsense": f"env 1: {request} raised TypeError: ...",
    }
    actor = "env 1: the actor on node ... died..."
    return [
        Row(
            place,
            fault,
            (f"raised: {text}...",),
            (f"row: {text}...", "logged: env 1 restarted (...): ..."),
            {RAY: ((f"raised: {actor}",), (f"row: {actor}",))}
            if fault in ("exits", "is killed")
            else {},
        )
        for fault, text in rows.items()
    ]


def _call() -> list[Row]:
    """Return the rows of a call: it has no row, so its error is raised in any case.

    An env whose process or thread is lost with it is recreated, and reported with its next row.
    """
    found = []
    for row in _failure("call", "call"):
        (raised,), (reported, *_) = row.raises, row.restarts
        lost = row.fault in ("hangs", "exits", "is killed")
        but = {name: (own[0], own[0] + own[1]) for name, own in row.but.items()}
        found.append(row._replace(restarts=(raised, reported) if lost else None, but=but))
    return [row for row in found if row.fault != "returns nonsense"]


def _close_after_a_crash() -> list[Row]:
    """Return the rows of an env whose `close` misbehaves when `restart` or a crash recreates it."""
    warned = {
        "raises": "warned: env 1: close raised RuntimeError: boom (env_of_table.py:...)...",
        "raises SystemExit": "warned: env 1: close raised SystemExit: 3 (env_of_table.py:...)...",
        "hangs": "warned: env 1: ...close...step_timeout=...",
        "exits": "warned: env 1: ...close...exited with code 37...",
        "is killed": "warned: env 1: ...close...was killed by SIGKILL...",
    }
    died = "warned: env 1: ...close...died..."
    place = "close after a crash"
    rows = [
        Row(
            place,
            fault,
            (text,),
            (_CRASH, text),
            {RAY: ((died,), (_CRASH, died))} if fault in ("exits", "is killed") else {},
        )
        for fault, text in warned.items()
    ]
    return [*rows, Row(place, "returns nonsense", NOTHING, (_CRASH,))]


def _close_at_recycling() -> list[Row]:
    """Return the rows of an env whose `close` misbehaves in the reset that replaces the env.

    The others are those of the reset: its process or thread is lost.
    """
    place = "close at recycling"
    return [
        Row(place, "raises", (_CLOSED,)),
        Row(place, "raises SystemExit", (_EXITED,)),
        Row(place, "returns nonsense", NOTHING),
        *(row for row in _failure(place, "reset") if row.fault in ("hangs", "exits", "is killed")),
    ]


def _forks() -> list[Row]:
    crashed = ("env_fn at a restart", "close after a crash")
    return [
        Row(place, fault, NOTHING, (_CRASH,) if place in crashed else None)
        for place in PLACES
        if place != "first reset of all"
        for fault in FORKS
    ]


ROWS = [
    Row("env_fn", "raises", (f"raised: {_MADE}...",)),
    Row("env_fn", "raises SystemExit", (f"raised: {_MADE_EXIT}...",)),
    # The time that a first start takes is not known: no limit, and a warning.
    Row("env_fn", "hangs", ("warned: env 1: env_fn has not returned after ... seconds; ...",)),
    Row(
        "env_fn",
        "exits",
        ("raised: env 1: the worker process exited with code 37 while starting...",),
        but={RAY: ((_ACTOR,), None)},
    ),
    Row(
        "env_fn",
        "is killed",
        ("raised: env 1: the worker process was killed by SIGKILL while starting...",),
        but={RAY: ((_ACTOR,), None)},
    ),
    Row("env_fn", "returns nonsense", (f"raised: {_NO_ENV}",)),
    Row(
        "env_fn at a restart",
        "raises",
        (f"raised: {_MADE}...",),
        (f"{_CRASH}then: {_MADE}...",),
    ),
    Row(
        "env_fn at a restart",
        "raises SystemExit",
        (f"raised: {_MADE_EXIT}...",),
        (f"{_CRASH}then: {_MADE_EXIT}...",),
    ),
    Row(
        "env_fn at a restart",
        "hangs",
        (f"raised: {_NO_RETURN}...",),
        (f"{_CRASH}then: {_NO_RETURN}...",),
    ),
    Row(
        "env_fn at a restart",
        "exits",
        ("raised: env 1: the worker process exited with code 37...",),
        (f"{_CRASH}then: env 1: the worker process exited with code 37...",),
        {RAY: ((_ACTOR,), (f"{_CRASH}then: env 1: the actor ... died...",))},
    ),
    Row(
        "env_fn at a restart",
        "is killed",
        ("raised: env 1: the worker process was killed by SIGKILL...",),
        (f"{_CRASH}then: env 1: the worker process was killed by SIGKILL...",),
        {RAY: ((_ACTOR,), (f"{_CRASH}then: env 1: the actor ... died...",))},
    ),
    Row(
        "env_fn at a restart",
        "returns nonsense",
        (f"raised: {_NO_ENV}",),
        (f"{_CRASH}then: {_NO_ENV}",),
    ),
    *_failure("first reset", "reset"),
    # No env has ever completed a reset: a bug in the env's code or arguments, told at once.
    Row("first reset of all", "raises", (f"raised: {_FIRST}...",)),
    *_failure("reset", "reset"),
    *_failure("step", "step"),
    *_call(),
    # A lock, which cannot leave its process.
    Row(
        "call",
        "returns nonsense",
        ("raised: env 1: call raised TypeError: ...cannot pickle ...",),
        but={IN_PROCESS: (NOTHING, None), THREADS: (NOTHING, None)},
    ),
    *_close_after_a_crash(),
    *_close_at_recycling(),
    # All envs share a process; env 2 is closed after env 1, if there still is a process.
    Row("close of the pool", "raises", (_CLOSED,)),
    Row("close of the pool", "raises SystemExit", (_EXITED,)),
    Row("close of the pool", "hangs", ("warned: env 1: ...close...",)),
    Row(
        "close of the pool",
        "exits",
        ("warned: env 1: ...close...exited with code 37...env 2...",),
        but={RAY: (("warned: env 1: ...close...died...env 2...",), None)},
    ),
    Row(
        "close of the pool",
        "is killed",
        ("warned: env 1: ...close...was killed by SIGKILL...env 2...",),
        but={RAY: (("warned: env 1: ...close...died...env 2...",), None)},
    ),
    Row("close of the pool", "returns nonsense", NOTHING),
    *_forks(),
]
