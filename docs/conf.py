"""How Sphinx builds these pages: `sphinx-build -W docs OUT`."""

from __future__ import annotations

import os
from typing import Any

from docutils import nodes

import envpool_py

project = "envpool_py"
version = release = envpool_py.__version__
author = "the envpool_py developers"
project_copyright = "2026, the envpool_py developers"

extensions = [
    "myst_nb",
    "notfound.extension",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxext.opengraph",
]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # the tests run the notebooks
ogp_social_cards = {"enable": False}
copybutton_exclude = ".linenos, .gp, .go"  # no prompts and no output

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "gymnasium": ("https://gymnasium.farama.org", None),
    "stable_baselines3": ("https://stable-baselines3.readthedocs.io/en/master", None),
    "pettingzoo": ("https://pettingzoo.farama.org", None),
}
if os.environ.get("DOCS_OFFLINE"):  # CI may have no network
    intersphinx_mapping = {}

html_theme = "furo"
html_title = f"envpool_py {version}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # `np.bool_` in an annotation would read as a link
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def plain_summary(
    _app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Put back together the summary of a property that has a colon.

    Napoleon takes what stands before the colon for a type.
    """
    for place, line in enumerate(lines):
        if line.startswith(":type: "):
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"
            del lines[place]
            break


def skip_fields(
    _app: object, _what: str, _name: str, obj: object, skip: bool, _options: object
) -> bool:
    """Leave out the fields of a NamedTuple, which have no text but Python's own."""
    return skip or str(obj.__doc__).startswith("Alias for field number")


def link_names(app: Any, doctree: nodes.document, page: str) -> None:
    """Make links of the public names in prose, such as `ShmemVectorEnv` or `make()`."""
    targets: dict[str, Any] = {}
    objects = app.env.get_domain("py").objects.items()
    for full, entry in sorted(objects, key=lambda item: item[0].count(".")):
        if entry.objtype in ("class", "exception", "function") and not entry.aliased:
            for name in (full, full.rpartition(".")[2]):
                targets.setdefault(name, entry)  # the name nearest to the top of the package
    for literal in list(doctree.findall(nodes.literal)):
        entry = targets.get(literal.astext().removesuffix("()"))
        is_link = isinstance(literal.parent, (nodes.reference, nodes.title))
        if entry is None or is_link or entry.docname == page:
            continue
        uri = app.builder.get_relative_uri(page, entry.docname) + "#" + entry.node_id
        link = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(link)
        link += literal


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("autodoc-process-docstring", plain_summary, priority=600)  # after napoleon's
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("doctree-resolved", link_names)
