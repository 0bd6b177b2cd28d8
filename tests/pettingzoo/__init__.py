"""Tests of PettingZoo's environments over the pool."""
