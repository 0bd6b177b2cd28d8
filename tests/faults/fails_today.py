"""The cells of `table.py` that do not hold yet, each with what is missing.

"sometimes": the cell is not run in every tier, or depends on which process is faster.
"""

_ONE_REPLY = "sometimes: an actor replies when it has closed all of its envs, so the first is named"

FAILS_TODAY = {
    # place, fault, backend, on_error: reason
    ("close of the pool", "hangs", "Ray", "raise"): _ONE_REPLY,
    ("close of the pool", "hangs", "Ray", "restart"): _ONE_REPLY,
    ("close of the pool", "exits", "Ray", "raise"): _ONE_REPLY,
    ("close of the pool", "exits", "Ray", "restart"): _ONE_REPLY,
    ("close of the pool", "is killed", "Ray", "raise"): _ONE_REPLY,
    ("close of the pool", "is killed", "Ray", "restart"): _ONE_REPLY,
}
