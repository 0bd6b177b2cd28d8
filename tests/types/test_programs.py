"""Type checkers take right programs of users, and find what is misspelt."""

import itertools
import json
import re
import subprocess
import sys

import pytest

import envpool_py
from tests.support.helpers import ROOT
from tests.types.programs import PROGRAMS, REVEALED

CHECKERS = {
    # --strict, but for what a script need not have
    "mypy": ["mypy", "--strict", "--no-error-summary", "--ignore-missing-imports"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}
MODES = {"mypy": ["strict"], "pyright": ["basic", "strict"]}

#: What a strict checker says of the programs, and of the untyped parts of Gymnasium and SB3.
OF_OTHERS = ("reportUnused", 'Type of "learn" is partially unknown')
# Packages that take minutes, and of which no program uses a type.
SKIPPED = ("torch", "ray", "minari", "pettingzoo", "pandas", "matplotlib", "IPython", "PIL", "cv2")
SKIPPED += ("rich", "cloudpickle", "jax", "pygame", "mujoco")
MYPY = f"""
[mypy]
mypy_path = {ROOT}
follow_imports = silent
[mypy-{",".join(f"{name}.*" for name in SKIPPED)}]
follow_imports = skip
"""


def parts_of(text):
    """The types in a tuple, without their own parameters."""
    text = re.sub(r"\w+\.", "", text)
    inner = text.removeprefix("tuple[").removesuffix("]")
    while (flat := re.sub(r"\[[^\[\]]*\]", "", inner)) != inner:
        inner = flat
    return inner.split(", ")


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.slow
def test_right_programs_pass_and_each_misspelt_one_is_found(checker, tmp_path):
    programs, expected = [*PROGRAMS.values(), REVEALED], {}
    for (number, text), mode in itertools.product(enumerate(programs), MODES[checker]):
        path = tmp_path / f"program_{number}_{mode}.py"
        path.write_text(f"# pyright: {mode}{text}")
        expected[path.name] = [n for n, one in enumerate(text.splitlines(), 1) if "# wrong" in one]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    (tmp_path / "mypy.ini").write_text(MYPY)
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker], *expected],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {name: [] for name in expected}
    pattern = r"(program_\w+\.py):(\d+)(?::\d+)?:? -? ?(?:error|warning): ([^\n]*)"
    for name, line, message in re.findall(pattern, done.stdout):
        if not any(one in message for one in OF_OTHERS):
            found[name].append(int(line))
    assert {name: sorted(set(lines)) for name, lines in found.items()} == expected, done.stdout
    pattern = r'(?:note: Revealed type is|information: Type of ".*" is) "(.*)"'
    revealed = re.findall(pattern, done.stdout)
    assert len(revealed) == REVEALED.count("reveal_type") * len(MODES[checker])
    for text in revealed:
        assert "Any" not in parts_of(text)[1:], text


def test_type_checkers_see_the_names_of_the_package():
    text = (ROOT / "envpool_py" / "__init__.pyi").read_text()
    seen = {*re.findall(r"^from \S+ import (\w+) as \1$", text, re.MULTILINE)}
    assert seen == {name for name in dir(envpool_py) if not name.startswith("_")}
