"""The cells of `table.py` that fail today, each with the number of its finding.

"sometimes": two processes answer for one env, and it depends on which is faster.
"""

FAILS_TODAY: dict[tuple[str, str, str, str], str] = {}
