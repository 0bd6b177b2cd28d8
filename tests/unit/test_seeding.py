"""Seeds: every form in which they may be written, what is refused, and those of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envpool_py import seeding

# What a user may write for envs 0 to 3, and the seeds it means.
FORMS: dict[str, tuple[Any, list[int | None]]] = {
    "none": (None, [None] * 4),
    "int": (5, [5, 6, 7, 8]),
    "NumPy int": (np.int64(5), [5, 6, 7, 8]),
    "NumPy int in an array": (np.array(5), [5, 6, 7, 8]),
    "NumPy unsigned at its end": (np.uint8(254), [254, 255, 256, 257]),
    "list": ([9, 1, 9, 2], [9, 1, 9, 2]),
    "range": (range(4), [0, 1, 2, 3]),
    "array": (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
    "list of NumPy ints": ([np.int64(4), np.uint8(3), 2, 1], [4, 3, 2, 1]),
    "some None": ([None, 3, None, 4], [None, 3, None, 4]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    written, meant = FORMS[form]
    found = seeding.per_env(written, [0, 1, 2, 3])
    assert found == meant
    assert {type(seed) for seed in found} <= {int, type(None)}
    if np.ndim(written) == 0:  # one for all: seed + env_id, for subsets too
        assert seeding.per_env(written, [3, 1]) == [meant[3], meant[1]]


def test_a_seed_sequence() -> None:
    found = seeding.per_env(np.random.SeedSequence(5), [0, 1, 2, 3])
    children = np.random.SeedSequence(5).spawn(4)
    assert found == [int(child.generate_state(1)[0]) for child in children]
    assert seeding.per_env(np.random.SeedSequence(5), [2, 0]) == [found[2], found[0]]
    assert not set(found) & set(seeding.per_env(np.random.SeedSequence(6), [0, 1, 2, 3]))
    grandchild = np.random.SeedSequence(5).spawn(2)[1]
    assert len({*found, *seeding.per_env(grandchild, [0, 1])}) == 6
    assert seeding.per_env([np.random.SeedSequence(5), 3], [0, 1])[1] == 3


@pytest.mark.parametrize(
    ("seed", "ids", "kind", "text"),
    [
        ([1, 2], [0, 1, 2], ValueError, r"got 2 seeds for 3 envs"),
        (np.array([1, 2, 3, 4]), [0, 1, 2], ValueError, r"got 4 seeds for 3 envs"),
        ([], [0], ValueError, r"got 0 seeds for 1 envs"),
        (1.5, [0], TypeError, r"1\.5"),
        ("1", [0], TypeError, r"'1'"),
        (True, [0], TypeError, r"True"),
        ([1, 2, "c"], [0, 1, 2], TypeError, r"env 2.*'c'"),
        ([1, 2.5, 3], [0, 1, 2], TypeError, r"env 1.*2\.5"),
        (-1, [0], ValueError, r"-1"),
        ([0, 1, -5], [0, 1, 7], ValueError, r"env 7.*-5"),
        (np.array([0.5, 1.0, 2.0]), [0, 1, 2], TypeError, r"0\.5"),
    ],
)
def test_wrong_seeds(seed: Any, ids: list[int], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        seeding.per_env(seed, ids)


def test_seeds_of_episodes() -> None:
    assert seeding.of_episode(7, 0) == 7
    words = [np.random.SeedSequence(7, spawn_key=(k,)).generate_state(1)[0] for k in range(1, 50)]
    assert [seeding.of_episode(7, k) for k in range(1, 50)] == words
    assert len({seeding.of_episode(root, k) for root in range(20) for k in range(50)}) == 1000
