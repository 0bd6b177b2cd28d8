"""The examples run and learn, and so do the programs of docs/coming_from.md, where installed."""

import re

import pytest

from tests.support.helpers import ROOT, run_python

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(Before|After).*?:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"{title} {when.lower()}": code
    for title, text in SECTION.findall(PAGE)
    for when, code in BLOCK.findall(text)
}
# Runs a program in one process, once for each line of arguments.
RUNS = """
import runpy, sys
program, *runs = sys.argv[1:]
for args in runs:
    sys.argv = [program, *args.split()]
    runpy.run_path(program, run_name="__main__")
    print("end of run")
"""


def run(program, *runs, timeout=170, ours=True):
    """Return the last line that each run prints; warnings of other libraries are ignored."""
    env = {} if ours else {"PYTHONWARNINGS": "ignore"}
    path = ROOT / "examples" / program
    printed = run_python("-c", RUNS, path, *runs, env=env, quiet=ours, timeout=timeout)
    return [one.rstrip().rpartition("\n")[2] for one in printed.split("end of run\n")[:-1]]


def mean_returns(name, *runs, timeout=170):
    """Run an example; return the last mean return that each run prints."""
    lines = run(name, *runs, timeout=timeout)
    return [float(re.search(r"mean return (\d+\.\d)$", line).group(1)) for line in lines]


def test_ppo_over_partial_batches():
    [found] = mean_returns("ppo_envpool.py", "--updates 6")
    assert found > 28  # random actions give 22


def test_ppo_over_a_vector_env():
    runs = [f"--updates 3 --mode {mode}" for mode in ("sync", "async")]
    found = mean_returns("ppo_vector_env.py", *runs, f"{runs[0]} --vector gymnasium")
    assert found == [found[2]] * 3
    assert found[2] > 20


def test_torchrl_takes_our_vector_env_as_it_takes_gymnasiums():
    runs = [f"--mode sync --vector {each}" for each in ("gymnasium", "ours")]
    gymnasiums, ours = run("torchrl_rollout.py", *runs, ours=False)
    assert re.match(r"400 steps  [1-9]\d* episodes  checksum ", gymnasiums)
    assert ours == gymnasiums


@pytest.mark.parametrize("name", ["dqn_collector.py", "ppo_collector.py"])
def test_the_examples_of_the_collector_learn_something(name):
    [line] = run(name, "--goal 60 --max-steps 40000")
    assert line.startswith("learnt after")


@pytest.mark.soak
@pytest.mark.parametrize("args", ["", "--sync"])
@pytest.mark.parametrize("name", ["dqn_collector.py", "ppo_collector.py"])
def test_the_examples_of_the_collector_learn_cartpole(name, args):
    assert run(name, args)[0].startswith("learnt after")


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ppo_envpool.py", "ppo_vector_env.py"])
def test_ppo_learns(name):
    [found] = mean_returns(name, "--updates 200", timeout=600)
    assert found > 250


def test_each_library_has_two_programs_that_differ_in_the_import_alone():
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
def test_the_program_runs(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BLOCKS[name], encoding="utf-8")
    run(program, "", ours=name.endswith("after"))
