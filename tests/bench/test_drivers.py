"""Drivers make the steps that they say, and need nothing of ours where the peer is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from envpool_py.bench import interpreters, measure
from envpool_py.bench.contestants import CONTESTANTS, OURS
from envpool_py.bench.job import Job
from envpool_py.bench.workloads import KINDS
from tests.support.helpers import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Those that the tests ask for. The others are checked in the same way by hand, each where it is
# installed: python -m tests.bench.counting LIBRARY
INSTALLED = [OURS, "gymnasium"] + (["tianshou"] if sys.version_info >= (3, 11) else [])


@pytest.mark.parametrize("library", INSTALLED)
def test_drivers_make_the_steps_that_they_say(library: str) -> None:
    # In a process of its own: peers leave descriptors open.
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.counting", library],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    checked = done.stdout.split()
    assert checked == [each.name for each in CONTESTANTS if each.library == library]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", [each.name for each in CONTESTANTS if each.library == OURS])
def test_every_workload_with_every_pool_of_ours(name: str, kind: str) -> None:
    for wait_num in (None, 2) if kind != "pong" else (None,):  # its envs are slow to make
        measured = measure.measure(Job(name, kind, 3, wait_num, 2, 0.0))
        assert measured.steps >= (wait_num or 3)
        assert measured.batches >= 1
        assert 0 < measured.latency_p50 <= measured.latency_p99 <= measured.seconds
        assert measured.startup_seconds > 0


@pytest.mark.parametrize("kind", ["cartpole", "sleep"])
def test_the_bare_env(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    measured = measure.measure(Job("bare", kind, 4, None, 2, 0.01))
    assert measured.steps > 0
    if kind == "sleep":  # whole episodes alone can be compared
        assert measured.steps % 100 == 0
    if sys.platform == "linux":
        assert measured.cpu_seconds is not None
        assert measured.memory_bytes is not None


def test_a_peer_is_measured_without_our_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely.py").write_text(
        textwrap.dedent("""
        import sys
        import gymnasium as gym
        from gymnasium.envs.classic_control import CartPoleEnv

        class Lonely(CartPoleEnv):
            def step(self, action):
                ours = {name for name in sys.modules if name.startswith("envpool_py")}
                assert "envpool_py.bench.measure" in ours
                assert not any("pool" in name.partition(".")[2] for name in ours), ours
                assert not hasattr(sys.modules["envpool_py"], "BaseVectorEnv")
                print("what an env prints is no answer")
                return super().step(action)

        gym.register("Lonely-v0", entry_point=Lonely)
        """)
    )
    monkeypatch.chdir(tmp_path)
    here = interpreters.here()
    for name in ("bare", "gymnasium-sync", "gymnasium-async"):
        job = Job(name, "lonely:Lonely-v0", 2, None, 2, 0.01)
        assert interpreters.carry_out(here, job, ours=False).steps > 0
    with pytest.raises(interpreters.MeasurementError, match="AssertionError"):
        interpreters.carry_out(here, job._replace(contestant="dummy"), ours=True)
