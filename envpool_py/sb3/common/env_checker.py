"""``check_env``: whether an env, or a VecEnv, can be trained on."""

from __future__ import annotations

import warnings
from typing import Any

from envpool_py.sb3.checks import stages


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Check an env, a VecEnv, or what makes envs.

    Looked at are spaces, signatures, returned values and their types, a whole episode and the step
    after it, goals, seeds, options, buffers that are used again, pickling, and draws from global
    generators; of several env_fns, whether their envs are alike. The env itself is reset and
    stepped, but not closed, unless it is rendered or was made here.

    Args:
        env: an env; a VecEnv; an env_fn, or a sequence of them.
        warn: say also what may be wrong, and what policies can't take.
        skip_render_check: do not render.

    Raises:
        EnvCheckError: it can't be trained on; an ``AssertionError``, whose cause is what the env
            raised, if it did. A ``TypeError`` as well where ``reset`` does not take a seed.

    Warns:
        UserWarning: something may be wrong.
    """
    for stage in stages(env, render=not skip_render_check):
        for finding in stage.findings:
            if finding.level == "error":
                raise finding.kind(finding.message) from finding.cause
            if finding.level == "warning" and warn:
                warnings.warn(finding.message, stacklevel=2)
