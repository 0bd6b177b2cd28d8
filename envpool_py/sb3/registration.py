"""Our classes as virtual subclasses of those of Stable-Baselines3, whichever is imported first.

Stable-Baselines3 asks by ``isinstance`` what it is given. Its classes are ABCs, so ours can be made
known to them; but they are there only once Stable-Baselines3 was imported, which costs a second and
brings torch. So it is never imported here: where it is loaded already, ours are registered at once,
and else as its modules come.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from envpool_py.sb3.common.vec_env.base_vec_env import VecEnv, VecEnvWrapper
from envpool_py.sb3.common.vec_env.dummy_vec_env import DummyVecEnv
from envpool_py.sb3.common.vec_env.subproc_vec_env import SubprocVecEnv
from envpool_py.sb3.common.vec_env.vec_check_nan import VecCheckNan
from envpool_py.sb3.common.vec_env.vec_extract_dict_obs import VecExtractDictObs
from envpool_py.sb3.common.vec_env.vec_frame_stack import VecFrameStack
from envpool_py.sb3.common.vec_env.vec_monitor import VecMonitor
from envpool_py.sb3.common.vec_env.vec_normalize import VecNormalize
from envpool_py.sb3.common.vec_env.vec_transpose import VecTransposeImage
from envpool_py.sb3.common.vec_env.vec_video_recorder import VecVideoRecorder

_PACKAGE = "stable_baselines3.common.vec_env"

#: Ours; each stands for the class of the same name and module in Stable-Baselines3.
CLASSES: tuple[type[Any], ...] = (
    VecEnv,
    VecEnvWrapper,
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)


def register() -> bool:
    """Make our classes known to Stable-Baselines3, as far as it is loaded.

    Importing ``envpool_py.sb3`` does this by itself, also where Stable-Baselines3 is imported
    later. A second call does nothing.

    Returns:
        Whether all classes are known now.
    """
    done = [_register(cls) for cls in CLASSES]  # each of them, though one is not there yet
    return all(done)


def _register(cls: type[Any]) -> bool:
    module = sys.modules.get(cls.__module__.replace("envpool_py.sb3.", "stable_baselines3.", 1))
    theirs = getattr(module, cls.__name__, None)
    if theirs is None:
        return False
    if not issubclass(cls, theirs):
        theirs.register(cls)
    return True


def register_now_or_later() -> None:
    """Register at once, or when Stable-Baselines3's modules are imported."""
    if not register():
        sys.meta_path.insert(0, _Watcher())


class _Watcher(MetaPathFinder):
    """Registers after each of the modules concerned; takes itself away when all is done."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._asking or not fullname.startswith(_PACKAGE):
            return None
        self._asking = True
        try:
            spec = _found_by_others(self, fullname, path, target)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            # A loader that can't be changed loads as ever; register() is there for that case.
            with contextlib.suppress(AttributeError):
                self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        """Register when ``loader`` has executed its module."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            execute(module)
            if register() and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module


def _found_by_others(
    own: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is own or find_spec is None:
            continue
        spec: ModuleSpec | None = find_spec(name, path, target)
        if spec is not None:
            return spec
    return None
