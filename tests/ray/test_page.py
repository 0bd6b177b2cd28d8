"""The program of the docs page runs."""

from __future__ import annotations

from pathlib import Path

from tests.docs.programs import run


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    run("docs/ray.md", tmp_path)
