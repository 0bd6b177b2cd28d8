"""``VecEnv``, the interface, and ``VecEnvWrapper``, which hands on to the VecEnv that it holds."""

from __future__ import annotations

import copy
import importlib
import math
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envpool_py import seeding
from envpool_py.seeding import Seed

#: Which envs: None (all), an index, negative ones too, several of them, a boolean mask or a slice.
VecEnvIndices: TypeAlias = "SupportsIndex | Iterable[SupportsIndex] | slice | None"
#: An array ``(num_envs, *shape)``; for Dict and Tuple spaces a dict or tuple of such arrays.
VecEnvObs: TypeAlias = Any
#: ``(obs, rewards, dones, infos)``.
VecEnvStepReturn: TypeAlias = (
    "tuple[VecEnvObs, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]"
)

Info: TypeAlias = "dict[str, Any]"


class UnsuitableEnvError(ValueError, AssertionError):
    """An env, or a VecEnv, is not what its user needs it to be.

    A ``ValueError``; also the ``AssertionError`` that Stable-Baselines3 raises in these places.
    """


class VecEnv(ABC):
    """Many envs that reset themselves, behind one interface: ``obs, rewards, dones, infos``.

    Args:
        num_envs: the number of envs.
        observation_space: of a single env.
        action_space: of a single env.

    Attributes:
        num_envs: as given.
        observation_space: as given.
        action_space: as given.
        reset_infos: the info of the latest reset of every env, automatic ones included.
        render_mode: that of all envs.
        metadata: ``{"render_modes": [...]}``.

    Raises:
        UnsuitableEnvError: the envs have different render modes.

    Warns:
        UserWarning: the envs have no ``render_mode``; it is then None.
    """

    reset_infos: list[Info]
    _seeds: list[int | None]
    _options: list[dict[str, Any]]

    def __init__(
        self,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
    ) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.reset_infos = [{} for _ in range(num_envs)]
        self._reset_seeds()
        self._reset_options()
        self.render_mode: str | None = self._common_render_mode()
        modes = [] if self.render_mode is None else [self.render_mode]
        # The images of all envs can be shown in one window.
        self.metadata: dict[str, Any] = {
            "render_modes": ["human", "rgb_array"] if modes == ["rgb_array"] else modes
        }

    def _common_render_mode(self) -> str | None:
        try:
            modes = self.get_attr("render_mode")
        except AttributeError:
            warnings.warn("the envs have no render_mode; it is taken to be None", stacklevel=3)
            return None
        for i, mode in enumerate(modes):
            if mode != modes[0]:
                raise UnsuitableEnvError(
                    f"env {i}: render_mode is {mode!r}, but that of env 0 is {modes[0]!r}"
                )
        first: str | None = modes[0]
        return first

    # ---------------------------------------------------------------------------- reset and step

    @abstractmethod
    def reset(self) -> VecEnvObs:
        """Reset all envs, with the seeds and options that were set for it; a step is given up.

        Returns:
            The first observations ``(num_envs, *shape)``; the infos are in ``reset_infos``.
        """

    @abstractmethod
    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs; ``step_wait`` brings what comes of it.

        Args:
            actions: ``(num_envs, *shape)``.
        """

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that ``step_async`` has begun.

        Returns:
            ``obs`` ``(num_envs, *shape)``, of the next episode where an env is done; ``rewards``
            ``(num_envs,)``; ``dones`` bool ``(num_envs,)``; ``infos``, a list of one dict per env.
        """

    def step(self, actions: NDArray[Any]) -> VecEnvStepReturn:
        """Step all envs: ``step_async``, then ``step_wait``.

        Args:
            actions: ``(num_envs, *shape)``.

        Returns:
            As ``step_wait``.
        """
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def close(self) -> None:
        """Close all envs."""

    # --------------------------------------------------------------------------- seeds, options

    def seed(self, seed: Seed = None) -> Sequence[int | None]:
        """Set the seeds of the next ``reset``; later resets go on with the envs' own streams.

        Args:
            seed: an int ``s``: ``s + i`` for env ``i``; a list: one for each env, None for none;
                None: drawn anew, from the system's entropy.

        Returns:
            The seed of every env.

        Raises:
            TypeError, ValueError: seeds are wrong, or not as many as envs.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._seeds = seeding.per_env(seed, range(self.num_envs))
        return self._seeds

    def set_options(
        self, options: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None
    ) -> None:
        """Set the options of the next ``reset``; a copy is taken.

        Args:
            options: one dict for all envs, or a list of one for each; None or empty for none.

        Raises:
            TypeError, ValueError: no dicts, or not as many as envs.
        """
        if options is None or isinstance(options, Mapping):
            listed: list[Mapping[str, Any] | None] = [options] * self.num_envs
        else:
            listed = list(options)
            if len(listed) != self.num_envs:
                raise ValueError(f"got {len(listed)} options for {self.num_envs} envs")
        for i, one in enumerate(listed):
            if one is not None and not isinstance(one, Mapping):
                raise TypeError(
                    f"env {i}: options must be a dict or None, got {type(one).__name__} {one!r:.80}"
                )
        self._options = [copy.deepcopy(dict(one or {})) for one in listed]

    def _reset_seeds(self) -> None:
        """Forget the seeds: they serve one reset."""
        self._seeds = [None] * self.num_envs

    def _reset_options(self) -> None:
        """Forget the options: they serve one reset."""
        self._options = [{} for _ in range(self.num_envs)]

    # ----------------------------------------------------------------------- into the envs

    @abstractmethod
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each env, from the outermost wrapper that has it.

        Args:
            attr_name: its name.
            indices: which envs; None is all.
        """

    @abstractmethod
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute of each env.

        Args:
            attr_name: its name.
            value: its value, the same for all.
            indices: which envs; None is all.
        """

    @abstractmethod
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, that of the outermost wrapper that has it.

        Args:
            method_name: its name.
            *method_args: its arguments.
            indices: which envs; None is all.
            **kwargs: its keyword arguments.

        Returns:
            What each returned.
        """

    @abstractmethod
    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env has a wrapper of this class around it.

        Args:
            wrapper_class: the class, or a base class of it.
            indices: which envs; None is all.
        """

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute.

        Args:
            attr_name: its name.
        """
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def _get_indices(self, indices: VecEnvIndices) -> list[int]:
        """The indices as a list of ints from 0 to ``num_envs - 1``.

        Raises:
            IndexError: one is out of range, or a mask has another length.
            TypeError: not integers.
        """
        return resolve_indices(indices, self.num_envs)

    # ---------------------------------------------------------------------------------- rendering

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """An RGB image ``(height, width, 3)`` of each env, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no images")

    def render(self, mode: str | None = None) -> NDArray[Any] | None:
        """Render all envs, in their own render mode.

        Args:
            mode: None or the envs' render mode; where that is ``"rgb_array"``, also ``"human"``,
                which shows the image in a window, by OpenCV.

        Returns:
            Under ``"rgb_array"`` one image of all envs, tiled; else None.

        Warns:
            UserWarning: the envs have another render mode, or none; nothing is rendered.
        """
        own = self.render_mode
        if own is None and mode is None:
            warnings.warn(
                "render: the envs have no render_mode; pass one when they are made", stacklevel=2
            )
            return None
        if mode not in (None, own) and (mode, own) != ("human", "rgb_array"):
            warnings.warn(
                f"render: mode is {mode!r}, but the envs' render_mode is {own!r}, and it is fixed"
                " when they are made",
                stacklevel=2,
            )
            return None
        if own != "rgb_array":
            self.env_method("render")
            return None
        image = tile_images([image for image in self.get_images() if image is not None])
        if mode == "human":
            _show(image)
            return None
        return image

    # ------------------------------------------------------------------------------- wrapped ones

    @property
    def unwrapped(self) -> VecEnv:
        """The VecEnv within all wrappers."""
        return self

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """The class whose attribute ``name`` is hidden by that of a wrapper, if there is one.

        Args:
            name: the attribute.
            already_found: a wrapper has it.
        """
        return _class_name(self) if already_found and hasattr(self, name) else None


class VecEnvWrapper(VecEnv):
    """Hands on to the VecEnv it holds; the base class of wrappers.

    A subclass writes ``reset`` and ``step_wait``. Attributes that the wrapper does not have are
    looked for in what it holds. Around another library's VecEnv it works as well.

    Args:
        venv: the VecEnv to wrap.
        observation_space: that of the wrapper; None is that of ``venv``.
        action_space: likewise.

    Attributes:
        venv: as given.
    """

    venv: Any

    def __init__(
        self,
        venv: Any,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        self.venv = venv
        super().__init__(
            venv.num_envs,
            venv.observation_space if observation_space is None else observation_space,
            venv.action_space if action_space is None else action_space,
        )

    @property
    def reset_infos(self) -> list[Info]:
        """The info of the latest reset of every env, kept by the innermost VecEnv."""
        infos: list[Info] = self.venv.reset_infos
        return infos

    @reset_infos.setter
    def reset_infos(self, infos: list[Info]) -> None:
        # Those that the constructor of VecEnv begins with are not news.
        if any(infos):
            self.venv.reset_infos = infos

    @abstractmethod
    def reset(self) -> VecEnvObs:
        """Reset all envs; return the first observations."""

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs."""
        self.venv.step_async(actions)

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step begun; return ``obs, rewards, dones, infos``."""

    def close(self) -> None:
        """Close what is wrapped."""
        self.venv.close()

    def seed(self, seed: Seed = None) -> Sequence[int | None]:
        """Set the seeds of the next ``reset``."""
        seeds: Sequence[int | None] = self.venv.seed(seed)
        return seeds

    def set_options(
        self, options: Sequence[Mapping[str, Any] | None] | Mapping[str, Any] | None = None
    ) -> None:
        """Set the options of the next ``reset``."""
        self.venv.set_options(options)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each env."""
        values: list[Any] = self.venv.get_attr(attr_name, indices)
        return values

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute of each env."""
        self.venv.set_attr(attr_name, value, indices)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute."""
        return bool(self.venv.has_attr(attr_name))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env."""
        results: list[Any] = self.venv.env_method(
            method_name, *method_args, indices=indices, **kwargs
        )
        return results

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env has a wrapper of this class around it."""
        wrapped: list[bool] = self.venv.env_is_wrapped(wrapper_class, indices=indices)
        return wrapped

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """An image of each env."""
        images: Sequence[NDArray[Any] | None] = self.venv.get_images()
        return images

    def render(self, mode: str | None = None) -> NDArray[Any] | None:
        """Render all envs."""
        image: NDArray[Any] | None = self.venv.render(mode=mode)
        return image

    @property
    def unwrapped(self) -> Any:
        """The VecEnv within all wrappers."""
        return self.venv.unwrapped

    # ----------------------------------------------------------------- attributes of what it holds

    def __getattr__(self, name: str) -> Any:
        # Python comes here for what is nowhere else. Special names are a class's own business, and
        # without a venv (a copy being made, a file being read) there is nobody to ask.
        if name.startswith("__") or vars(self).get("venv") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        hidden = self.getattr_depth_check(name, already_found=False)
        if hidden is not None:
            raise AttributeError(
                f"{_class_name(self)} has no {name!r}, and the one found in what it wraps hides"
                f" that of {hidden}: read it from the VecEnv that is meant"
            )
        return self.getattr_recursive(name)

    def getattr_recursive(self, name: str) -> Any:
        """The attribute of the outermost layer that has it.

        Args:
            name: the attribute.

        Raises:
            AttributeError: none has it.
        """
        if self._has(name):
            return getattr(self, name)
        if hasattr(self.venv, "getattr_recursive"):
            return self.venv.getattr_recursive(name)
        return getattr(self.venv, name)

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """The class whose attribute ``name`` is hidden by that of a wrapper, if there is one.

        Args:
            name: the attribute.
            already_found: a wrapper further out has it.
        """
        own = self._has(name)
        if own and already_found:
            return _class_name(self)
        hidden: str | None = self.venv.getattr_depth_check(name, own or already_found)
        return hidden

    def _has(self, name: str) -> bool:
        return name in vars(self) or hasattr(type(self), name)


def resolve_indices(indices: VecEnvIndices, num_envs: int) -> list[int]:
    """Indices, as a user may write them, as ints from 0 to ``num_envs - 1``, in the order written.

    Raises:
        IndexError: one is out of range, or a mask has another length.
        TypeError: not integers.
    """
    if indices is None:
        return list(range(num_envs))
    if isinstance(indices, slice):
        return list(range(num_envs))[indices]
    if isinstance(indices, (bool, np.bool_, str, bytes)):
        raise TypeError(f"indices must be integers, got {indices!r}")
    if isinstance(indices, SupportsIndex) and np.ndim(indices) == 0:  # type: ignore[arg-type]
        listed: list[Any] = [indices]
    elif isinstance(indices, Iterable):
        listed = list(indices)
    else:
        raise TypeError(f"indices must be integers, got {indices!r}")
    if listed and all(isinstance(i, (bool, np.bool_)) for i in listed):
        if len(listed) != num_envs:
            raise IndexError(f"the mask has {len(listed)} entries, but there are {num_envs} envs")
        return [i for i, chosen in enumerate(listed) if chosen]
    resolved = []
    for one in listed:
        try:
            i = operator.index(one)
        except TypeError:
            raise TypeError(f"indices must be integers, got {one!r}") from None
        if not -num_envs <= i < num_envs:
            raise IndexError(f"index {i} is out of range: there are envs 0 to {num_envs - 1}")
        resolved.append(i % num_envs)
    return resolved


def tile_images(images_nhwc: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One image of many, in rows; as near to a square as their number allows.

    Args:
        images_nhwc: ``n`` images of one shape ``(height, width, channels)``.

    Returns:
        ``(rows * height, columns * width, channels)``, with ``rows = ceil(sqrt(n))`` and
        ``columns = ceil(n / rows)``; places left over are 0.

    Raises:
        ValueError: no images, or images of different shapes.
    """
    images = [np.asarray(image) for image in images_nhwc]
    if not images:
        raise ValueError("images: got none to tile")
    shape = images[0].shape
    if len(shape) != 3:
        raise ValueError(f"env 0: the image has shape {shape}, but (height, width, 3) is needed")
    for i, image in enumerate(images):
        if image.shape != shape:
            raise ValueError(
                f"env {i}: the image has shape {image.shape}, but that of env 0 has {shape}"
            )
    height, width, channels = shape
    rows = math.ceil(math.sqrt(len(images)))
    columns = math.ceil(len(images) / rows)
    tiled = np.zeros((rows * height, columns * width, channels), images[0].dtype)
    for i, image in enumerate(images):
        top, left = i // columns * height, i % columns * width
        tiled[top : top + height, left : left + width] = image
    return tiled


def _show(image: NDArray[Any]) -> None:
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        raise gym.error.DependencyNotInstalled(
            "render: a window needs OpenCV; pip install opencv-python"
        ) from error
    cv2.imshow("vecenv", image[..., ::-1])
    cv2.waitKey(1)


def _class_name(venv: VecEnv) -> str:
    return f"{type(venv).__module__}.{type(venv).__name__}"
