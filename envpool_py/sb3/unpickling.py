"""Read pickles of ``VecNormalize`` without running code of the file.

A pickle is a program that may call anything that it can name, and that may change whatever it can
name. Here it can name what makes NumPy's arrays, whose types cannot be changed. Every other class
or function of a ``VecNormalize`` is replaced by a new class, whose instances hold their state and
do nothing.
"""

from __future__ import annotations

import functools
import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

#: Types and functions in C: a pickle may call them, and cannot set their attributes. Old protocols
#: have the module names of Python 2, and NumPy has renamed numpy.core.
_BUILT_IN = re.compile(
    r"(builtins|__builtin__)\.(object|bytes|bytearray|set|frozenset|slice)"
    r"| collections\.OrderedDict"
    r"| _codecs\.encode"
    r"| numpy\.(_?core\.)?(dtype|ndarray|multiarray\.(_reconstruct|scalar))"
    r"| numpy\.(bool_?|u?int\d+|float\d+)",
    re.VERBOSE,
)
#: Modules of what Stable-Baselines3, its predecessor and we have in a ``VecNormalize``.
_OWNERS = ("envpool_py.sb3.", "stable_baselines3.common.", "stable_baselines.common.")
_PARTS = (*_OWNERS, "gym.spaces.", "gymnasium.spaces.", "gym.utils.", "gymnasium.utils.", "numpy.")


class Part:
    """An object of a pickle: the name of its class, and its attributes."""

    name: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Take the arguments of any class, and ignore them."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes; of a NumPy generator they are no dict, and nothing needs them."""
        if isinstance(state, dict):
            vars(self).update({str(key): value for key, value in state.items()})


def parts_of(path: Path) -> Any:
    """The value of a pickle, with a ``Part`` for each object that is no array.

    Raises:
        OSError: the file can't be read.
        pickle.UnpicklingError: it is no pickle, or names what is no part of a VecNormalize.
    """
    file = io.BytesIO(path.read_bytes())
    try:
        return _Unpickler(file).load()
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"{path}: {error}") from None
    except Exception as error:  # of a file that is no pickle, or of a crafted one
        raise pickle.UnpicklingError(f"{path}: damaged: {error}") from error


def trust(path: Path) -> Any:
    """The value of a pickle, whose code is run; with our classes in place of the same of others."""
    with path.open("rb") as file:
        return _Trusting(file).load()


class _Trusting(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_OWNERS):
            own = module.replace("stable_baselines3.", "envpool_py.sb3.")
            module = own.replace("stable_baselines.", "envpool_py.sb3.")
        return super().find_class(module, name)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if _BUILT_IN.fullmatch(full):
            return super().find_class(module, name)
        if full in ("copyreg._reconstructor", "copy_reg._reconstructor"):
            return lambda cls, _, __: cls()
        if full.endswith(".numeric._frombuffer") and full.startswith("numpy."):
            return functools.partial(_from_buffer)  # a new one: its attributes can be set
        if full.startswith(_PARTS):
            return type("Part", (Part,), {"name": full})
        raise pickle.UnpicklingError(
            f"it names {full}, which is no part of a VecNormalize; trusted=True reads the"
            " file nevertheless, and runs its code"
        )


def _from_buffer(
    data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, *_: Any
) -> NDArray[Any]:
    return np.frombuffer(data, dtype).reshape(shape, order=order).copy()
