"""Seeds: the forms in which they may be written, what is refused, and those of episodes."""

import numpy as np
import pytest

from envpool_py import seeding

# What a user may write for envs 0 to 3, and the seeds it means.
FORMS = [
    (None, [None] * 4),
    (5, [5, 6, 7, 8]),
    (np.array(5), [5, 6, 7, 8]),
    (np.uint8(254), [254, 255, 256, 257]),
    (range(4), [0, 1, 2, 3]),
    (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
    ([np.int64(4), np.uint8(3), None, 1], [4, 3, None, 1]),
]
# For envs 4 and 7, the error and its text.
WRONG = [
    (np.array([1, 2, 3]), ValueError, "got 3 seeds for 2 envs"),
    (1.5, TypeError, r"got float 1\.5"),
    (True, TypeError, "got bool True"),
    ([1, "c"], TypeError, "env 7: .*got str 'c'"),
    (-1, ValueError, "must be 0 or more, got -1"),
    ([0, -5], ValueError, "env 7: .*got -5"),
]


@pytest.mark.parametrize(("written", "meant"), FORMS)
def test_forms(written, meant):
    found = seeding.per_env(written, [0, 1, 2, 3])
    assert found == meant
    assert {type(seed) for seed in found} <= {int, type(None)}
    if np.ndim(written) == 0:  # one for all: seed + env_id, for subsets too
        assert seeding.per_env(written, [3, 1]) == [meant[3], meant[1]]


@pytest.mark.parametrize(("seed", "error", "text"), WRONG)
def test_wrong_seeds(seed, error, text):
    with pytest.raises(error, match=text):
        seeding.per_env(seed, [4, 7])


def test_a_seed_sequence():
    sequence = np.random.SeedSequence(5)
    children = [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(5).spawn(4)]
    assert seeding.per_env(sequence, [2, 0]) == [children[2], children[0]]
    assert len({*children, *seeding.per_env(sequence.spawn(2)[1], [0, 1])}) == 6
    assert seeding.per_env([sequence, 3], [0, 1]) == [int(sequence.generate_state(1)[0]), 3]


def test_seeds_of_episodes():
    words = [np.random.SeedSequence(7, spawn_key=(k,)).generate_state(1)[0] for k in range(1, 50)]
    assert [seeding.of_episode(7, k) for k in range(50)] == [7, *words]
