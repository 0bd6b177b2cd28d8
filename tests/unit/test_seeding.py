"""Seeds: every form in which they may be written, what is refused, and those of episodes."""

import numpy as np
import pytest

from envpool_py import seeding

# What a user may write for envs 0 to 3, and the seeds it means.
FORMS = [
    (None, [None] * 4),
    (5, [5, 6, 7, 8]),
    (np.int64(5), [5, 6, 7, 8]),
    (np.array(5), [5, 6, 7, 8]),
    (np.uint8(254), [254, 255, 256, 257]),
    ([9, 1, 9, 2], [9, 1, 9, 2]),
    (range(4), [0, 1, 2, 3]),
    (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
    ([np.int64(4), np.uint8(3), None, 1], [4, 3, None, 1]),
]


@pytest.mark.parametrize(("written", "meant"), FORMS)
def test_forms(written, meant):
    found = seeding.per_env(written, [0, 1, 2, 3])
    assert found == meant
    assert {type(seed) for seed in found} <= {int, type(None)}
    if np.ndim(written) == 0:  # one for all: seed + env_id, for subsets too
        assert seeding.per_env(written, [3, 1]) == [meant[3], meant[1]]


def test_a_seed_sequence():
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
        ([1, 2], [0, 1, 2], ValueError, "got 2 seeds for 3 envs"),
        (np.array([1, 2, 3, 4]), [0, 1, 2], ValueError, "got 4 seeds for 3 envs"),
        (1.5, [0], TypeError, r"got float 1\.5"),
        ("1", [0], TypeError, "got str '1'"),
        (True, [0], TypeError, "got bool True"),
        ([1, 2, "c"], [0, 1, 4], TypeError, "env 4: .*got str 'c'"),
        (-1, [0], ValueError, "must be 0 or more, got -1"),
        ([0, 1, -5], [0, 1, 7], ValueError, "env 7: .*got -5"),
        (np.array([0.5, 1.0, 2.0]), [0, 1, 2], TypeError, r"env 0: .*0\.5"),
    ],
)
def test_wrong_seeds(seed, ids, kind, text):
    with pytest.raises(kind, match=text):
        seeding.per_env(seed, ids)


def test_seeds_of_episodes():
    assert seeding.of_episode(7, 0) == 7
    words = [np.random.SeedSequence(7, spawn_key=(k,)).generate_state(1)[0] for k in range(1, 50)]
    assert [seeding.of_episode(7, k) for k in range(1, 50)] == words
    assert len({seeding.of_episode(root, k) for root in range(20) for k in range(50)}) == 1000
