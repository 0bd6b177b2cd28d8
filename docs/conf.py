"""How Sphinx builds these pages: `sphinx-build -W docs OUT`."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import re
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes

import envpool_py
from envpool_py import cli
from envpool_py.options import CLASSES

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
]
exclude_patterns = ["_build", "build"]
nb_execution_mode = "off"  # the tests run the notebooks
# The reference is built without these packages too.
_optional = ["pettingzoo", "ray", "stable_baselines3", "torch"]
autodoc_mock_imports = [
    name for name in _optional if importlib.util.find_spec(name) is None
]

# The address of the published pages, which previews in chats need: CONTRIBUTING.md, A release.
html_baseurl = os.environ.get(
    "READTHEDOCS_CANONICAL_URL", os.environ.get("DOCS_URL", "")
)
if html_baseurl:
    extensions.append("sphinxext.opengraph")
    ogp_site_url = html_baseurl
    ogp_social_cards = {"enable": False}
    ogp_image = f"{html_baseurl.rstrip('/')}/_static/card.png"
# Links of the page for wrong addresses begin with the path of the published pages.
notfound_urls_prefix = urlsplit(html_baseurl).path or "/"
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
pygments_dark_style = "github-dark"  # the theme's own underlines names, as links
html_title = "envpool_py"
html_static_path = ["static", "pictures/card.png"]
html_css_files = ["pages.css"]
html_favicon = html_logo = "static/logo.svg"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # `np.bool_` in an annotation would read as a link
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def plain_summary(*event: Any) -> None:
    """Put back together the summary of a property that has a colon.

    Napoleon takes what stands before the colon for a type.
    """
    lines = event[-1]
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


# ------------------------------------------------------------- the options of pools, listed once

_OPTIONS = {
    name: parameter
    for kind in CLASSES
    for name, parameter in inspect.signature(kind).parameters.items()
}
_ENTRY = re.compile(r"^( *)(\w+): .*(?:\n\1 +.*)*\n?", re.MULTILINE)
_SEVERAL = 8
"""A class or function with so many of the options takes all of them."""


def _own_texts() -> dict[str, str]:
    """The meaning of each option, in one line."""
    docs = (inspect.cleandoc(kind.__doc__ or "") for kind in CLASSES)
    return {entry[2]: _line(entry[0]) for doc in docs for entry in _ENTRY.finditer(doc)}


def _line(entry: str) -> str:
    return " ".join(entry.split())


def _plain(lines: list[str]) -> list[re.Match[str]]:
    """The entries of a docstring that repeat an option's own meaning."""
    own = _own_texts()
    found = _ENTRY.finditer("\n".join(lines) + "\n")
    return [one for one in found if one[2] in _OPTIONS and _line(one[0]) == own[one[2]]]


def options_of_pools() -> str:
    """A definition list of all options: default and meaning."""
    found = []
    for name, entry in _own_texts().items():
        if name in _OPTIONS:
            text = entry.partition(": ")[2].replace("``", "`")
            text = f"{text[0].upper()}{text[1:]}"
            found.append(f"`{name}={_OPTIONS[name].default!r}`\n: {text}\n")
    return "\n".join(found)


def insert_options(_app: object, _page: str, source: list[str]) -> None:
    """Put the lists in the places of their marks."""
    if "%OPTIONS%" in source[0]:
        source[0] = source[0].replace("%OPTIONS%", options_of_pools())
    # A doctest ends with an empty line; the page does not show it.
    source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)
    source[0] = re.sub(
        r"^%HELP (\w+)%$", help_of_command, source[0], flags=re.MULTILINE
    )


def help_of_command(mark: re.Match[str]) -> str:
    """The ``--help`` of the command that a mark names."""
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        cli.main([mark[1], "--help"])
    return f"```text\n{shown.getvalue().rstrip()}\n```"


def leave_out_options(*event: Any) -> None:
    """Refer to the list in place of repeating all options."""
    lines = event[-1]
    taken = _plain(lines)
    if len(taken) < _SEVERAL:
        return
    text = "\n".join(lines) + "\n"
    where = f"{taken[-1][1]}**options: the options of pools, listed once on the page of pools.\n"
    for entry in taken[:-1]:
        text = text.replace(entry[0], "", 1)
    lines[:] = text.replace(taken[-1][0], where, 1).split("\n")


def shorten_signature(
    _app: object,
    _what: str,
    _name: str,
    obj: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:
    """Write ``**options`` for the options of pools."""
    left_out = {
        entry[2] for entry in _plain(inspect.cleandoc(obj.__doc__ or "").split("\n"))
    }
    if signature is None or len(left_out) < _SEVERAL:
        return None
    parts, depth, part = [], 0, ""
    for letter in signature[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    parts.append(part.strip())
    kept = [
        each for each in parts if re.split(r"[:=]", each)[0].strip() not in left_out
    ]
    while kept and kept[-1] == "*":
        kept.pop()
    return f"({', '.join([*kept, '**options'])})", returns


_OF_OTHERS = re.compile(
    r"(SB3|Stable-Baselines3|Tianshou|Gymnasium|EnvPool|PettingZoo|Ray|TorchRL)(['\u2019]s)? $"
)


def link_names(app: Any, doctree: nodes.document, page: str) -> None:
    """Make links of our classes and errors in prose, such as `ShmemVectorEnv` or `make()`.

    A function is linked by its full name or as `make`: others have names such as `load`, which many
    things have. A class that the text calls another library's is not ours.
    """
    targets: dict[str, Any] = {}
    objects = app.env.get_domain("py").objects.items()
    for full, entry in sorted(objects, key=lambda item: item[0].count(".")):
        if entry.objtype in ("class", "exception", "function") and not entry.aliased:
            short = full.rpartition(".")[2]
            is_clear = entry.objtype != "function" or full == "envpool_py.make"
            for name in (full, short) if is_clear else (full,):
                targets.setdefault(
                    name, entry
                )  # the name nearest to the top of the package
    for literal in list(doctree.findall(nodes.literal)):
        entry = targets.get(literal.astext().removesuffix("()"))
        is_link = isinstance(literal.parent, (nodes.reference, nodes.title))
        if entry is None or is_link or entry.docname == page:
            continue
        place = literal.parent.index(literal)
        before = literal.parent[place - 1].astext() if place else ""
        if _OF_OTHERS.search(before):
            continue
        uri = app.builder.get_relative_uri(page, entry.docname) + "#" + entry.node_id
        link = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(link)
        link += literal


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("source-read", insert_options)
    app.connect(
        "autodoc-process-docstring", leave_out_options, priority=400
    )  # before napoleon's
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect(
        "autodoc-process-docstring", plain_summary, priority=600
    )  # after napoleon's
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("doctree-resolved", link_names)
