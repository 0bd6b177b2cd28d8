"""The examples run and learn, and so do the programs of docs/coming_from.md, where installed."""

import itertools
import re

import pytest

from tests.support.helpers import ROOT, run_python

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:Before|After).*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIBRARIES = ("Gymnasium", "Stable-Baselines3", "EnvPool", "PufferLib", "Tianshou")
OWN = "Your own worker processes"
NAMES = itertools.product([*LIBRARIES, OWN], ("before", "after"))
PROGRAMS = dict(zip(NAMES, BLOCK.findall(PAGE), strict=True))
COLLECTORS = ("dqn_collector.py", "ppo_rollouts.py")


def run(program, args="", *, ours=True):
    """Return the last line that a program prints; warnings of other libraries are ignored."""
    path, env = ROOT / "examples" / program, {} if ours else {"PYTHONWARNINGS": "ignore"}
    printed = run_python(path, *args.split(), env=env, quiet=ours, timeout=600)
    return printed.rstrip().rpartition("\n")[2]


def soak(*cases):
    return [pytest.param(*case, marks=pytest.mark.soak) for case in cases]


LONG = "--updates 200"
ENVPOOL = "--interface envpool"
VECTORS = ("vector --mode sync", "vector --mode async", "gymnasium")
PPO = [
    # Random actions give 22.
    ([f"{ENVPOOL} --updates 6"], 28),
    ([f"--updates 1 --interface {each}" for each in VECTORS], 20),
    *soak(([f"{ENVPOOL} {LONG}"], 250), ([LONG], 250)),
]


@pytest.mark.parametrize(("runs", "more_than"), PPO)
def test_ppo_learns(runs, more_than):
    lines = [run("ppo_torch.py", args) for args in runs]
    assert len({*lines}) == 1
    assert float(re.search(r"mean return (\d+\.\d)$", lines[0]).group(1)) > more_than


# Random actions give 22.
LEARN = [("dqn_collector.py", "--goal 30 --hold 1"), ("ppo_rollouts.py", "--goal 40")]
LEARN += soak(*itertools.product(COLLECTORS, ("", "--sync")))


@pytest.mark.parametrize(("name", "args"), LEARN)
def test_the_examples_of_the_collector_learn(name, args):
    assert run(name, args).startswith("learnt after")


def test_the_interface_of_multi_agent_trainers_has_the_flags_of_the_last_step():
    printed = run("mappo_vec_env.py", "")
    assert printed.startswith("(16, 3, 18) (16, 3, 1) True {'dones': array([ True,  True,  True])")
    assert len((ROOT / "examples" / "mappo_vec_env.py").read_text().splitlines()) <= 40


def test_torchrl_takes_our_vector_env_as_it_takes_gymnasiums():
    runs = [f"--mode sync --vector {each}" for each in ("gymnasium", "ours")]
    gymnasiums, ours = (run("torchrl_rollout.py", args, ours=False) for args in runs)
    assert re.match(r"400 steps  [1-9]\d* episodes  checksum ", gymnasiums)
    assert ours == gymnasiums


def test_each_library_has_two_programs_that_differ_in_the_import_alone():
    for library in LIBRARIES:
        both = [PROGRAMS[library, when].splitlines() for when in ("before", "after")]
        assert ["envpool_py" in "".join(code) for code in both] == [False, True]
        own = [[line for line in code if not re.match("import|from", line)] for code in both]
        same = [line.replace("gym.make_vec", "make_vec") for line in own[0]] == own[1]
        assert same == (library != "PufferLib")


# PufferLib comes as a source package that is built for minutes.
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {("PufferLib", "before")}), ids=" ".join)
def test_the_program_runs(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[name], encoding="utf-8")
    run(program, ours=name[1] == "after")
