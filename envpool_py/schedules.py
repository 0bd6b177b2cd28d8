"""Where each env is in its schedule of episodes, as its executor writes it into the block.

An executor alone knows which resets have reached its env, so it alone counts them: a restarted
process goes on from what the last one wrote.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from envpool_py.spaces import Array

#: (seed under ``episode_seeds`` or None, number of the episode, -1 before the first, is it over)
Place: TypeAlias = "tuple[int | None, int, bool]"

#: Numbers of one env: size of the seed in bytes (0 for none), episode, over.
NUMBERS = 3
#: Bytes of a seed.
LARGEST_SEED = 64


class Schedules:
    """The places of all envs.

    Args:
        numbers: int64 ``(num_envs, NUMBERS)``.
        seeds: uint8 ``(num_envs, LARGEST_SEED)``.
    """

    def __init__(self, numbers: Array, seeds: Array) -> None:
        self._array = numbers
        self._numbers: Any = memoryview(numbers.reshape(-1))  # type: ignore[arg-type]
        self._seeds: Any = memoryview(seeds.reshape(-1))  # type: ignore[arg-type]

    def clear(self) -> None:
        """No env has had an episode; called once, by the pool."""
        self._array[:, 1] = -1

    def put(self, i: int, place: Place) -> None:
        """Env ``i`` is at this place.

        Raises:
            ValueError: the seed has more than 511 bits.
        """
        root, episode, over = place
        numbers, at, size = self._numbers, i * NUMBERS, 0
        if root is not None:
            size = root.bit_length() // 8 + 1  # 0 has a byte as well
            if size > LARGEST_SEED:
                raise ValueError("a seed under episode_seeds has at most 511 bits")
            start = i * LARGEST_SEED
            self._seeds[start : start + size] = root.to_bytes(size, "little")
        numbers[at], numbers[at + 1], numbers[at + 2] = size, episode, over

    def get(self, i: int) -> Place:
        """Where env ``i`` is."""
        at, start = i * NUMBERS, i * LARGEST_SEED
        size, episode, over = self._numbers[at : at + NUMBERS].tolist()
        seed = bytes(self._seeds[start : start + size])
        return int.from_bytes(seed, "little") if size else None, episode, bool(over)
