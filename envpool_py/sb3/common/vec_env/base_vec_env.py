"""``VecEnv``, the interface; ``VecEnvWrapper``, which delegates to the VecEnv that it wraps."""

from __future__ import annotations

import copy
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeVar, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from envpool_py import extras, seeding
from envpool_py.pool import arguments, frame_grid
from envpool_py.pool.base import BaseVectorEnv
from envpool_py.sb3.registration import register_if_imported

if TYPE_CHECKING:  # the algorithms of Stable-Baselines3 take no other type; no import at run time
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv as _TheirVecEnv
else:
    _TheirVecEnv = ABC

#: Envs: None (all), an index, several, a boolean mask or a slice; negative ones count from the end.
VecEnvIndices: TypeAlias = "SupportsIndex | Iterable[SupportsIndex] | slice | None"
#: An array ``(num_envs, *shape)``; for Dict and Tuple spaces a dict or tuple of such arrays.
VecEnvObs: TypeAlias = Any
#: ``(obs, rewards, dones, infos)``.
VecEnvStepReturn: TypeAlias = (
    "tuple[VecEnvObs, NDArray[np.floating[Any]], NDArray[np.bool_], list[dict[str, Any]]]"
)

Method = TypeVar("Method", bound=Callable[..., Any])


class UnsuitableEnvError(ValueError, AssertionError):
    """An env or a VecEnv cannot be used here; Stable-Baselines3 raises an ``AssertionError``."""


def require(condition: Any, problem: str) -> None:
    """Raise ``UnsuitableEnvError(problem)`` unless the condition holds."""
    if not condition:
        raise UnsuitableEnvError(problem)


class VecEnv(_TheirVecEnv):
    """Many envs with automatic resets and the interface of Stable-Baselines3.

    ``num_envs`` and the spaces of a single env are arguments and attributes. ``render_mode`` is
    that of all envs; if they have none, None, with a warning. ``reset_infos`` has the info of the
    latest reset of every env, automatic resets included. UnsuitableEnvError if the envs have
    different render modes.
    """

    reset_infos: list[dict[str, Any]]
    _seeds: list[int | None]
    _options: list[dict[str, Any]]

    def __init__(
        self, num_envs: int, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> None:
        register_if_imported()
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.reset_infos = [{} for _ in range(num_envs)]
        self._reset_seeds()
        self._reset_options()
        try:
            modes: list[str | None] = self.get_attr("render_mode")
        except AttributeError:
            warnings.warn("the envs have no render_mode; it is taken to be None", stacklevel=2)
            modes = [None]
        self.render_mode = first = modes[0]
        for i, mode in enumerate(modes):
            text = f"env {i}: render_mode is {mode!r}, but that of env 0 is {first!r}"
            require(mode == first, text)
        # Of images, "human" shows all in one window.
        shown = {None: [], "rgb_array": ["human", "rgb_array"]}.get(first, [first])
        self.metadata: dict[str, Any] = {"render_modes": shown}

    @abstractmethod
    def reset(self) -> VecEnvObs:
        """Reset all envs, with the seeds and options set for this reset; cancel a pending step.

        Return the first observations ``(num_envs, *shape)``; the infos are in ``reset_infos``. If
        an env raises, it is an EnvError, and the seeds and options are kept.
        """

    @abstractmethod
    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all envs; ``actions`` have shape ``(num_envs, *shape)``."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the step that ``step_async`` has begun.

        Return ``obs`` ``(num_envs, *shape)``, of the next episode where an env is done; ``rewards``
        floats ``(num_envs,)``; ``dones`` bool ``(num_envs,)``, terminated or truncated; ``infos``,
        a list of one dict per env, each with ``TimeLimit.truncated`` (truncated and not terminated)
        and, where done, ``terminal_observation``.
        """

    def step(self, actions: NDArray[Any]) -> VecEnvStepReturn:
        """``step_async(actions)``, then ``step_wait()``: their values and errors."""
        self.step_async(actions)
        return self.step_wait()

    @abstractmethod
    def close(self) -> None:
        """Close all envs."""

    def seed(self, seed: seeding.Seed = None) -> Sequence[int | None]:
        """Set the seeds of the next ``reset`` and return them; later resets continue the streams.

        An int ``s`` is ``s + i`` for env ``i``; a list has one for each env, None for none; None
        draws from the system's entropy. TypeError or ValueError if seeds are wrong or too few.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._seeds = seeding.per_env(seed, range(self.num_envs))
        return list(self._seeds)

    def set_options(self, options: arguments.Options = None) -> None:
        """Set the options of the next ``reset``: a copy, for all envs or one for each.

        TypeError if they are no dicts, ValueError if they are not as many as envs.
        """
        requests = arguments.reset_requests(range(self.num_envs), None, options, {})
        self._options = [copy.deepcopy(request.kwargs.get("options", {})) for request in requests]

    def _reset_seeds(self) -> None:
        """Forget the seeds: they serve one reset."""
        self._seeds = [None] * self.num_envs

    def _reset_options(self) -> None:
        """Forget the options: they serve one reset."""
        self._options = [{} for _ in range(self.num_envs)]

    @abstractmethod
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each env, from the outermost wrapper that has it.

        EnvError if an env has no such attribute (an AttributeError too), reading it raises, or its
        value can't be sent; then no reset is needed.
        """

    @abstractmethod
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set the attribute where it is, else on the outermost wrapper; EnvError if that raises."""

    @abstractmethod
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, of the outermost wrapper that has it; else EnvError."""

    @abstractmethod
    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether each env has a wrapper of this class, or of a subclass, around it."""

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have the attribute; its value need not be picklable."""
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def _get_indices(self, indices: VecEnvIndices) -> list[int]:
        """Indices as ints from 0 to ``num_envs - 1``, in the order written; else IndexError."""
        index: Any = slice(None) if indices is None else indices
        if isinstance(index, Iterable) and not isinstance(index, np.ndarray):
            index = list(index)
        try:
            return np.atleast_1d(np.arange(self.num_envs)[index]).tolist()  # type: ignore[no-any-return]
        except IndexError:
            text = f"got indices {indices!r}, but there are {self.num_envs} envs"
            raise IndexError(text) from None

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """An RGB image, uint8 ``(height, width, 3)``, of each env, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no images")

    def render(self, mode: str | None = None) -> NDArray[Any] | None:
        """Render all envs; if ``"rgb_array"``, return one image ``(height, width, 3)``, else None.

        ``mode`` is None or the envs' render mode; where that is ``"rgb_array"``, also ``"human"``,
        which shows the image in a window, by OpenCV. Another mode is a UserWarning.
        """
        own = self.render_mode
        if own is None or (mode not in (None, own) and (mode, own) != ("human", "rgb_array")):
            text = f"render: mode is {mode!r}, but the envs' render_mode is {own!r}"
            warnings.warn(f"{text}; pass render_mode when the envs are made", stacklevel=2)
            return None
        if own != "rgb_array":
            self.env_method("render")
            return None
        image = tile_images([image for image in self.get_images() if image is not None])
        if mode != "human":
            return image
        cv2 = extras.load("cv2", "render: a window needs OpenCV; pip install opencv-python")
        cv2.imshow("vecenv", image[..., ::-1])
        cv2.waitKey(1)
        return None

    @property
    def unwrapped(self) -> VecEnv:
        """The VecEnv within all wrappers."""
        return self

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """The class whose attribute ``name`` is hidden by a wrapper that has it, or None."""
        return _class_name(self) if already_found and hasattr(self, name) else None


def _delegated(method: Method) -> Method:
    """The method of the same name of the wrapped VecEnv."""

    @functools.wraps(method, updated=())  # the mark of an abstract method is not copied
    def call(wrapper: VecEnvWrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(wrapper.venv, method.__name__)(*args, **kwargs)

    return cast("Method", call)


class VecEnvWrapper(VecEnv):
    """Delegates to the VecEnv that it wraps; the base class of wrappers.

    A subclass defines ``reset`` and ``step_wait``. Spaces that are not given, and attributes that
    the wrapper does not have, are those of the wrapped ``venv``, which may be of another library.
    """

    venv: Any
    closed: bool  # read from the VecEnv inside, as these two are
    is_closed: bool
    restarts: NDArray[np.int64]

    def __init__(
        self,
        venv: Any,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        if isinstance(venv, BaseVectorEnv):
            raise TypeError(f"venv: got {type(venv).__name__}; pass PoolVecEnv(pool) of a pool")
        self.venv = venv
        observed = venv.observation_space if observation_space is None else observation_space
        acted = venv.action_space if action_space is None else action_space
        super().__init__(venv.num_envs, observed, acted)

    @property
    def reset_infos(self) -> Any:
        """The info of the latest reset of every env, kept by the innermost VecEnv."""
        return self.venv.reset_infos

    @reset_infos.setter
    def reset_infos(self, infos: list[dict[str, Any]]) -> None:
        # The empty infos that the constructor of VecEnv sets are no news.
        if any(infos):
            self.venv.reset_infos = infos

    step_async = _delegated(VecEnv.step_async)
    close = _delegated(VecEnv.close)
    seed = _delegated(VecEnv.seed)
    set_options = _delegated(VecEnv.set_options)
    get_attr = _delegated(VecEnv.get_attr)
    set_attr = _delegated(VecEnv.set_attr)
    has_attr = _delegated(VecEnv.has_attr)
    env_method = _delegated(VecEnv.env_method)
    env_is_wrapped = _delegated(VecEnv.env_is_wrapped)
    get_images = _delegated(VecEnv.get_images)
    render = _delegated(VecEnv.render)

    @property
    def unwrapped(self) -> VecEnv:
        found: VecEnv = self.venv.unwrapped
        return found

    if not TYPE_CHECKING:  # type checkers would take any misspelt name

        def __getattr__(self, name: str) -> Any:
            # Special names belong to the class. A copy, or an unpickled wrapper, has no venv.
            if name.startswith("__") or vars(self).get("venv") is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            hidden = self.getattr_depth_check(name, already_found=False)
            if hidden is not None:
                text = f"has no {name!r}, and the first wrapper that has it hides that of {hidden}"
                raise AttributeError(f"{_class_name(self)} {text}: ask the VecEnv that is meant")
            return self.getattr_recursive(name)

    def getattr_recursive(self, name: str) -> Any:
        """The attribute of the outermost layer that has it; AttributeError if none has it."""
        return getattr(self if self._has(name) else self.venv, name)

    def getattr_depth_check(self, name: str, already_found: bool) -> Any:
        own = self._has(name)
        if own and already_found:
            return _class_name(self)
        return self.venv.getattr_depth_check(name, own or already_found)

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self).get('venv')!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has(self, name: str) -> bool:
        return name in vars(self) or hasattr(type(self), name)


class ResultWrapper(VecEnvWrapper):
    """Changes what ``reset`` and ``step_wait`` of the wrapped VecEnv return, or records it."""

    @abstractmethod
    def _after_reset(self, obs: Any) -> Any:
        """What ``reset`` returns, of the first observations."""

    @abstractmethod
    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> VecEnvStepReturn:
        """What ``step_wait`` returns."""

    def reset(self) -> VecEnvObs:
        return self._after_reset(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        return self._after_step(*self.venv.step_wait())


class ObservationWrapper(ResultWrapper):
    """Maps observations by one function, terminal observations included."""

    @abstractmethod
    def observations(self, obs: Any, /) -> Any:
        """Map the observations of all envs, or that of one env, which has no batch axis."""

    def _after_reset(self, obs: Any) -> Any:
        return self.observations(obs)

    def _after_step(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        for i in np.flatnonzero(dones).tolist():
            if "terminal_observation" in infos[i]:
                terminal = infos[i]["terminal_observation"]
                infos[i]["terminal_observation"] = self.observations(terminal)
        return self.observations(obs), rewards, dones, infos


def tile_images(images_nhwc: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One image of many ``(n, height, width, channels)``, tiled in rows as ``render_grid`` does.

    ValueError if there are no images, or images of different shapes.
    """
    return frame_grid.grid(np.stack(images_nhwc))


def _class_name(venv: VecEnv) -> str:
    return f"{type(venv).__module__}.{type(venv).__name__}"
