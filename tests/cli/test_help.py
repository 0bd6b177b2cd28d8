"""Every command: its help fits into 80 columns, its options, its numbers."""

import pytest

from envpool_py import cli as commands
from envpool_py.cli.arguments import at_least, counted

NAMES = [command.__name__.rpartition(".")[2] for command in commands._COMMANDS]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_the_help_fits_into_80_columns(name, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(f"{name} --help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize(("text", "value"), [("1e5", 100_000), ("50_000", 50_000), ("2E3", 2000)])
def test_large_numbers(text, value):
    assert at_least(1)(text) == value


def test_numbers_that_are_none(cli):
    for text in ("1e-3", "1.5e0"):
        assert f"must be an integer, got {text}" in cli(f"tune CartPole-v1 --num-envs {text}").err
    assert "invalid integer value: 'e'" in cli("tune CartPole-v1 --num-envs e").err


def test_options_that_every_command_has(cli):
    for name in NAMES:
        shown = cli(f"{name} --help").out
        assert "--json FILE" in shown
        assert ("--context {" in shown) == (name in ("tune", "bench", "collect", "timeline"))


def test_counts_are_separated_and_plural():
    counts = [(1, "error"), (12_345, "step"), (0, "policy"), (1000, "batch")]
    texts = ["1 error", "12 345 steps", "0 policies", "1 000 batches"]
    assert [counted(*each) for each in counts] == texts
