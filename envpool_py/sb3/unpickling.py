"""Read pickles of ``VecNormalize`` without running code of the file.

A pickle is a program that may call anything it can name. Here it can name only the classes of which
a ``VecNormalize`` consists, and the functions that rebuild NumPy's arrays and generators.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import IO, Any

import gymnasium as gym

from envpool_py.env.spaces import FIXED, RAGGED

#: Modules of the classes that Stable-Baselines3, its predecessor and we have.
_OWNERS = ("envpool_py.sb3.", "stable_baselines3.", "stable_baselines.")
_SPACES = {cls.__name__: cls for cls in (*FIXED, *RAGGED, gym.spaces.Dict, gym.spaces.Tuple)}
# Old protocols have the module names of Python 2, and NumPy has renamed numpy.core.
_HARMLESS = re.compile(
    r"""
    (builtins|__builtin__)\.(object|set|frozenset|slice)
    | collections\.OrderedDict | (copyreg|copy_reg)\._reconstructor | _codecs\.encode
    | numpy\.(_?core\.)?(
        dtype | ndarray | multiarray\.(_reconstruct|scalar) | numeric\._frombuffer
        | bool_? | u?int\d+ | float\d+ | dtypes\.(Bool|U?Int\d+|Float\d+)DType
    )
    | numpy\.random\.(
        _generator\.Generator | _mt19937\.MT19937 | _pcg64\.PCG64 | _philox\.Philox | _sfc64\.SFC64
        | _pickle\.__(bit_generator|generator|randomstate)_ctor
        | bit_generator\.(SeedSequence|SeedlessSeedSequence|__pyx_unpickle_SeedSequence)
    )
    """,
    re.VERBOSE,
)


class Unpickler(pickle.Unpickler):
    """Raises UnpicklingError if a pickle names something that is not allowed, unless ``trusted``.

    ``known`` are our classes by name; they replace Stable-Baselines3's classes of the same name.
    """

    def __init__(self, file: IO[bytes], known: Mapping[str, type[Any]], *, trusted: bool) -> None:
        super().__init__(file)
        self._known = known
        self._trusted = trusted

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle names."""
        full = f"{module}.{name}"
        if module.startswith(_OWNERS) and name in self._known:
            return self._known[name]
        if module.startswith(("gym.spaces", "gymnasium.spaces")) and name in _SPACES:
            return _SPACES[name]
        if self._trusted or _HARMLESS.fullmatch(full):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the file names {full}, which is no part of a VecNormalize; trusted=True reads the"
            " file nevertheless, and runs its code"
        )
