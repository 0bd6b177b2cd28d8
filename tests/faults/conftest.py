"""What several files of fault tests use."""

import pytest


@pytest.fixture
def short_grace(monkeypatch):
    """Have processes that hang be killed soon."""
    monkeypatch.setattr("envpool_py.worker.processes.GRACE", 0.1)
