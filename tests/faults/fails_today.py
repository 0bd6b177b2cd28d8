"""The cells of `table.py` that do not hold yet, each with what is missing.

"sometimes": the cell is not run in every tier, or depends on which process is faster.
"""

_NO_PHASE = "sometimes: the driver does not see that an env of an actor is in its close"

FAILS_TODAY = {
    # place, fault, backend, on_error: reason
    ("close after a crash", "hangs", "Ray", "raise"): _NO_PHASE,
    ("close after a crash", "hangs", "Ray", "restart"): _NO_PHASE,
    ("close of the pool", "hangs", "Ray", "raise"): _NO_PHASE,
    ("close of the pool", "hangs", "Ray", "restart"): _NO_PHASE,
}
