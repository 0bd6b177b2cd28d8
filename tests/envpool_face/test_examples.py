"""The examples run and learn, and so do the programs of docs/coming_from.md, where installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(Before|After).*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"{title} {when.lower()}": code
    for title, text in SECTION.findall(PAGE)
    for when, code in BLOCK.findall(text)
}


def run(program: Path, *args: str, timeout: float = 170, ours: bool = True) -> str:
    """Run a program; return what it prints. Of other libraries warnings are ignored."""
    warnings = "error" if ours else "ignore"
    done = subprocess.run(
        [sys.executable, str(program), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": warnings, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or not ours
    return done.stdout


def mean_return(name: str, *args: str, timeout: float = 170) -> float:
    """Run an example; return the last mean return that it prints."""
    out = run(EXAMPLES / name, *args, timeout=timeout)
    return float(re.search(r"mean return (\d+\.\d)\n$", out).group(1))


def test_ppo_over_partial_batches() -> None:
    assert mean_return("ppo_envpool.py", "--updates", "6") > 28  # random actions give 22


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ppo_over_a_vector_env(mode: str) -> None:
    args = ("ppo_vector_env.py", "--updates", "3", "--mode", mode)
    over_gymnasium = mean_return(*args, "--vector", "gymnasium")
    assert over_gymnasium > 20
    assert mean_return(*args) == over_gymnasium


def test_torchrl_takes_our_vector_env_as_it_takes_gymnasiums() -> None:
    args = (EXAMPLES / "torchrl_rollout.py", "--mode", "sync", "--vector")
    lines = [run(*args, each, ours=False).splitlines()[-1] for each in ("gymnasium", "ours")]
    assert re.match(r"400 steps  [1-9]\d* episodes  checksum ", lines[0])
    assert lines[0] == lines[1]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ppo_envpool.py", "ppo_vector_env.py"])
def test_ppo_learns(name: str) -> None:
    assert mean_return(name, "--updates", "200", timeout=600) > 250


def test_each_library_has_two_programs_that_differ_in_the_import_alone() -> None:
    libraries = ("Gymnasium", "Stable-Baselines3", "EnvPool", "PufferLib", "Tianshou")
    assert list(BLOCKS) == [f"{one} {when}" for one in libraries for when in ("before", "after")]
    for name, code in BLOCKS.items():
        assert ("envpool_py" in code) == name.endswith("after")
    for library in set(libraries) - {"PufferLib"}:
        both = (BLOCKS[f"{library} {when}"].splitlines() for when in ("before", "after"))
        own = [[line for line in code if not re.match("import|from", line)] for code in both]
        assert [line.replace("gym.make_vec", "make_vec") for line in own[0]] == own[1]


# PufferLib comes as a source package that is built for minutes.
@pytest.mark.parametrize("name", [name for name in BLOCKS if name != "PufferLib before"])
def test_the_program_runs(name: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BLOCKS[name], encoding="utf-8")
    run(program, ours=name.endswith("after"))
