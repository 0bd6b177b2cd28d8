"""``spell_out`` writes the signature and docstring of a function that takes options of pools."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from envpool_py.options import CLASSES

T = TypeVar("T", bound="Callable[..., Any]")

_ARGS = re.compile(r"\nArgs:\n(?: {4}.*\n?)*|\Z")
_ENTRY = re.compile(r"^ {4}(\w+): .*(?:\n {8}.*)*", re.MULTILINE)
_PARAMETERS = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for cls in CLASSES
    for name, parameter in inspect.signature(cls, eval_str=True).parameters.items()
}


def spell_out(keywords: Any, **defaults: Any) -> Callable[[T], T]:
    """List these keywords in the signature, type hints and docstring, in place of ``**options``.

    A decorator of functions and classes. The way they are called does not change. ``defaults``:
    those that differ from the options' own.
    """
    added = [
        _PARAMETERS[name].replace(default=defaults.get(name, _PARAMETERS[name].default))
        for name in keywords.__annotations__
    ]

    def decorate(target: T) -> T:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        signature = inspect.signature(function)
        kept = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*kept, *added])
        del function.__annotations__["options"]
        function.__annotations__.update((each.name, each.annotation) for each in added)
        if target.__doc__:  # python -OO has none
            owners = [*CLASSES, *reversed(getattr(target, "__mro__", (target,)))]
            docs = [inspect.cleandoc(owner.__doc__ or "") for owner in owners]
            meanings = {entry[1]: entry[0] for doc in docs for entry in _ENTRY.finditer(doc)}
            names = [each.name for each in [*kept, *added] if each.name != "self"]
            text = "\n".join(["\nArgs:", *(meanings[name] for name in names), ""])
            target.__doc__ = _ARGS.sub(lambda _: text, docs[-1] + "\n", count=1)
        return target

    return decorate
