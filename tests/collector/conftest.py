"""What the tests of the collector share."""

import pytest

from envpool_py.collector import policy


@pytest.fixture(autouse=True)
def few_actions_at_once(monkeypatch):
    """Draw eight random actions at a time: 128 of a nested space take longer than their test."""
    monkeypatch.setattr(policy, "_DRAWN", 8)
