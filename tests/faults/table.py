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
    "exits": "calls `os._exit`",
    "is killed": "its process is killed by SIGKILL",
    "returns nonsense": "returns something else than it should",
    **FORKS,
}

NO_HANG = "an env that hangs in the program itself stops it: use processes or threads"
NO_DEATH = "the program itself is killed: use processes"
NOTHING = ("nothing",)

# Texts that several rows have.
_CRASH = "row: env 1: step raised RuntimeError: crash ..."
_ACTOR = "env 1: the actor ... died..."
_ENDS = {"exits": "exited with code 37", "is killed": "was killed by SIGKILL"}


def _raised(request: str) -> dict[str, str]:
    """Return the texts of the two exceptions in a request."""
    errors = {"raises": "RuntimeError: boom", "raises SystemExit": "SystemExit: 3"}
    at = "(env_of_table.py:...)"
    return {fault: f"env 1: {request} raised {error} {at}" for fault, error in errors.items()}


class Row(NamedTuple):
    """A place and a fault.

    Attributes:
        raises: the texts with `on_error="raise"`.
        restarts: the texts with `on_error="restart"`; None: the same.
        but: the same two for backends where they differ.
    """

    place: str
    fault: str
    raises: tuple[str, ...]
    restarts: tuple[str, ...] | None = None
    but: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {}  # noqa: RUF012

    def texts(self, backend: str, on_error: str) -> tuple[str, ...]:
        """Return what the caller gets."""
        raises, restarts = self.but.get(backend, (self.raises, self.restarts))
        return raises if on_error == "raise" or restarts is None else restarts

    def options(self, backend: str, on_error: str) -> dict[str, object]:
        """Return the options of the pool."""
        found: dict[str, object] = {"on_error": on_error}
        if self.fault == "hangs" and self.place not in ("env_fn", "close of the pool"):
            # It is also the limit for a new actor, which takes a second to start.
            found["step_timeout"] = 5 if backend == RAY else 2
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
        **_raised(request),
        "hangs": late,
        **{fault: f"env 1: the worker process {end}" for fault, end in _ENDS.items()},
        "returns nonsense": f"env 1: {request} raised TypeError: ...",
    }
    actor = "env 1: the actor on node ... died..."
    return [
        Row(
            place,
            fault,
            (f"raised: {text}...",),
            (f"row: {text}...", "logged: env 1 restarted (...): ..."),
            {RAY: ((f"raised: {actor}",), (f"row: {actor}",))} if fault in _ENDS else {},
        )
        for fault, text in rows.items()
    ]


def _env_fn() -> list[Row]:
    """Return the rows of a new env, and of one that is recreated after a crash."""
    made, nonsense = _raised("env_fn"), "env 1: env_fn raised TypeError: "
    ends = {fault: f"env 1: the worker process {end}" for fault, end in _ENDS.items()}
    again = {**made, "hangs": "env 1: did not return from env_fn within ... seconds", **ends}
    crashed, here = f"{_CRASH}then: ", "env_fn at a restart"
    on_ray = {RAY: ((f"raised: {_ACTOR}",), (f"{crashed}{_ACTOR}",))}
    late = "warned: env 1: env_fn has not returned after ... seconds; ..."
    return [
        *(Row("env_fn", fault, (f"raised: {text}...",)) for fault, text in made.items()),
        # The time that a first start takes is not known: no limit, and a warning.
        Row("env_fn", "hangs", (late,)),
        *(
            Row("env_fn", fault, (f"raised: {end} while starting...",), but={RAY: (raised, None)})
            for fault, end in ends.items()
            for raised in [(f"raised: {_ACTOR}",)]
        ),
        Row("env_fn", "returns nonsense", (f"raised: {nonsense}...",)),
        *(
            Row(
                here,
                fault,
                (f"raised: {text}...",),
                (f"{crashed}{text}...",),
                on_ray if fault in ends else {},
            )
            for fault, text in [*again.items(), ("returns nonsense", nonsense)]
        ),
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
    warned = {fault: f"warned: {text}..." for fault, text in _raised("close").items()}
    warned["hangs"] = "warned: env 1: ...close...step_timeout=..."
    warned |= {fault: f"warned: env 1: ...close...{end}..." for fault, end in _ENDS.items()}
    died = "warned: env 1: ...close...died..."
    on_ray = {RAY: ((died,), (_CRASH, died))}
    place = "close after a crash"
    rows = [
        Row(place, fault, (text,), (_CRASH, text), on_ray if fault in _ENDS else {})
        for fault, text in warned.items()
    ]
    return [*rows, Row(place, "returns nonsense", NOTHING, (_CRASH,))]


def _close_at_recycling() -> list[Row]:
    """Return the rows of an env whose `close` misbehaves in the reset that replaces the env.

    The others are those of the reset: its process or thread is lost.
    """
    place = "close at recycling"
    return [
        *(Row(place, f, (f"warned: {text}...",)) for f, text in _raised("close").items()),
        Row(place, "returns nonsense", NOTHING),
        *(row for row in _failure(place, "reset") if row.fault in ("hangs", *_ENDS)),
    ]


def _close_of_the_pool() -> list[Row]:
    """Return those where all envs share a process; env 2 is closed last, if there is a process."""
    place = "close of the pool"
    on_ray = {RAY: (("warned: env 1: ...close...died...env 2...",), None)}
    return [
        *(Row(place, f, (f"warned: {text}...",)) for f, text in _raised("close").items()),
        Row(place, "hangs", ("warned: env 1: ...close...",)),
        *(
            Row(place, fault, (f"warned: env 1: ...close...{end}...env 2...",), but=on_ray)
            for fault, end in _ENDS.items()
        ),
        Row(place, "returns nonsense", NOTHING),
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
    *_env_fn(),
    *_failure("first reset", "reset"),
    # No env has ever completed a reset: a bug in the env's code or arguments, told at once.
    Row(
        "first reset of all",
        "raises",
        ("raised: envs 0 to 2: reset raised RuntimeError: boom (env_of_table.py:...)...",),
    ),
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
    *_close_of_the_pool(),
    *_forks(),
]
