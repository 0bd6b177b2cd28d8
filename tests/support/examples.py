"""Settings of Hypothesis: each run tries the same examples, however busy the machine is."""

import functools

from hypothesis import HealthCheck, settings

same = functools.partial(
    settings,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
