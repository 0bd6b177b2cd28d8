"""The files that a release needs agree with each other."""

import json
import re
import struct
import subprocess

import envpool_py
from tests.support.helpers import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
README = (ROOT / "README.md").read_text()
RELEASE = (ROOT / "CONTRIBUTING.md").read_text().partition("## A release\n")[2]


def test_the_recipe_of_conda_is_that_of_the_package():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    assert f'version: "{envpool_py.__version__}"' in recipe
    run = recipe.partition("\n  run:\n")[2].partition("\n\n")[0]
    needs = re.findall(r"^    - (.*)$", run, re.MULTILINE)
    declared = json.loads(re.search(r"^dependencies = (\[.*\])$", PROJECT, re.MULTILINE)[1])
    assert [each.replace(" ", "") for each in needs[1:]] == declared
    build = json.loads(re.search(r"^requires = (\[.*?\])", PROJECT, re.MULTILINE)[1])
    assert [f"    - {each.replace('>', ' >')}\n" in recipe for each in build] == [True]
    for name, value in (("name", "envpool-py"), ("license", "MIT")):
        assert f'\n{name} = "{value}"\n' in PROJECT
        assert f"\n  {name}: {value}\n" in recipe
    script = re.search(r"^envpool-py = \"(.*)\"$", PROJECT, re.MULTILINE)[1]
    assert f"- envpool-py = {script}\n" in recipe


def test_the_links_of_the_released_readme_resolve(tmp_path):
    """Those of the package's page, which has no files beside README; pictures are files."""
    (tmp_path / "README.md").write_text(README)
    command = re.search(r"^(sed .*?README\.md)$", RELEASE, re.MULTILINE | re.DOTALL)[1]
    environ = {"REPOSITORY_URL": "https://code.invalid/x", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, check=True)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert len(links) > 20
    for is_picture, link in links:
        assert link.startswith("https://")
        _, own, path = link.partition("https://code.invalid/x/")
        if own:
            assert path.startswith("raw/main/" if is_picture else "blob/main/")
            assert (ROOT / path.split("/main/")[1].partition("#")[0]).exists()


def test_the_changelog_begins_with_this_version_and_is_short():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[0] == envpool_py.__version__
    first = text.partition("\n## 0.1.0\n")[2].partition("\n## ")[0]
    assert len(text[: text.index(first)].splitlines()) + len(first.splitlines()) <= 60


def test_the_citation_names_no_person():
    citation = (ROOT / "CITATION.cff").read_text()
    assert citation.partition("authors:\n")[2] == "  - name: the envpool_py developers\n"
    assert 'authors = [{ name = "the envpool_py developers" }]' in PROJECT


def test_the_card_has_the_size_that_previews_show():
    head = (ROOT / "docs" / "pictures" / "card.png").read_bytes()[:24]
    assert struct.unpack(">II", head[16:]) == (1200, 630)
    assert "/_static/card.png" in (ROOT / "docs" / "conf.py").read_text()
