"""What several files of fault tests use."""

from __future__ import annotations

import pytest


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that hang be killed soon."""
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
