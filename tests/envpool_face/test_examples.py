"""The examples run and learn, and so do the programs of docs/coming_from.md, where installed."""

import itertools
import os
import re

import pytest

from tests.support.helpers import ROOT, run_python

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:Before|After).*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARIES = ("Gymnasium", "Stable-Baselines3", "EnvPool", "PufferLib", "Tianshou")
IMPORT_TORCH = ("Stable-Baselines3", "Tianshou")
OWN = "Your own worker processes"
NAMES = itertools.product([*LIBRARIES, OWN], ("before", "after"))
PROGRAMS = dict(zip(NAMES, BLOCK.findall(PAGE), strict=True))
COLLECTORS = ("dqn_collector", "ppo_rollouts")
IN_TURN = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def soak(*cases):
    return [pytest.param(*case, marks=pytest.mark.soak) for case in cases]


LONG = "--updates 200"
ENVPOOL = "--interface envpool"
VECTORS = ("vector --mode async", "gymnasium")
PPO = [
    # Random actions give 22.
    ([f"{ENVPOOL} --updates 6"], 28),
    ([f"--updates 1 --interface {each}" for each in VECTORS], 20),
    *soak(([f"{ENVPOOL} {LONG}"], 250), ([LONG], 250)),
]


@pytest.mark.parametrize(("runs", "more_than"), PPO)
def test_ppo_learns(runs, more_than, run_example):
    lines = [run_example("ppo_torch", *args.split()).splitlines()[-1] for args in runs]
    assert len({*lines}) == 1
    assert float(re.search(r"mean return (\d+\.\d)$", lines[0]).group(1)) > more_than


# Random actions give 22.
LEARN = [("dqn_collector", "--goal 30 --hold 1"), ("ppo_rollouts", "--goal 40")]
LEARN += soak(*itertools.product(COLLECTORS, ("", "--sync")))


@pytest.mark.parametrize(("name", "args"), LEARN)
def test_the_examples_of_the_collector_learn(name, args, run_example):
    assert run_example(name, *args.split()).splitlines()[-1].startswith("learnt after")


def test_the_interface_of_multi_agent_trainers_has_the_flags_of_the_last_step():
    example = ROOT / "examples" / "mappo_vec_env.py"
    printed = run_python(example, quiet=True)
    assert printed.startswith("(16, 3, 18) (16, 3, 1) True {'dones': array([ True,  True,  True])")
    assert len(example.read_text().splitlines()) <= 40


TORCHRL = """
import runpy, sys

main = runpy.run_path("torchrl_rollout.py")["main"]
for vector in ("gymnasium", "ours"):
    sys.argv[1:] = ["--mode", "sync", "--vector", vector]
    main()
"""


def test_torchrl_takes_our_vector_env_as_it_takes_gymnasiums():
    """In another process: other tests need not have TorchRL in their worker processes."""
    environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
    lines = run_python("-c", TORCHRL, cwd=ROOT / "examples", env=environ).splitlines()
    gymnasiums, ours = (line for line in lines if "checksum" in line)
    assert re.match(r"400 steps  [1-9]\d* episodes  checksum ", gymnasiums)
    assert ours == gymnasiums


def test_each_library_has_two_programs_that_differ_in_the_import_alone():
    for library in LIBRARIES:
        both = [PROGRAMS[library, when].splitlines() for when in ("before", "after")]
        assert ["envpool_py" in "".join(code) for code in both] == [False, True]
        own = [[line for line in code if not re.match("import|from", line)] for code in both]
        same = [line.replace("gym.make_vec", "make_vec") for line in own[0]] == own[1]
        assert same == (library != "PufferLib")
        if library != "PufferLib":  # the rest of the code runs after the change
            exec("\n".join(line for line in both[0] if re.match("import|from", line)), {})


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_the_programs_run(when, tmp_path):
    """In turn in one process, as to import the libraries takes longer than all else."""
    paths = []
    for library in sorted([*LIBRARIES, OWN], key=IMPORT_TORCH.__contains__):  # those last
        # PufferLib comes as a source package that is built for minutes.
        if (library, when) != ("PufferLib", "before"):
            paths.append(tmp_path / f"{library}.py")
            paths[-1].write_text(PROGRAMS[library, when], encoding="utf-8")
    env = {"PYTHONWARNINGS": "ignore"} if when == "before" else {}
    run_python("-c", IN_TURN, *paths, env=env, quiet=when == "after")
