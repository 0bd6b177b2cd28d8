"""Seeds: what an env does depends on its own seeds, resets and actions, and on nothing else."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from envpool_py import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tests.support import envs
from tests.support.places import BACKENDS, PLACES, QUICK
from tests.support.reference import HandStepped, Row, check_reset, same, spread

if TYPE_CHECKING:
    from collections.abc import Callable

NUM = 4
FNS = [functools.partial(envs.RandomEnv, tag) for tag in range(NUM)]
COUNT_FNS = [functools.partial(envs.CountEnv, tag, 3) for tag in range(NUM)]
STEPS = 25
SPACE = envs.RandomEnv().observation_space


def policy(obs: np.ndarray, info: dict) -> np.int64:
    """Choose an action from the last bit of what is seen: any difference would soon be large."""
    return np.int64((int(obs.view(np.int64)[0]) + info["coin"]) % 4)


Log = dict[int, list[tuple[bytes, ...]]]


def note(log: Log, i: int, obs: Any, reward: Any, ended: tuple, info: dict) -> None:
    told = sorted((k, v) for k, v in info.items() if k not in ("env_id", "is_reset"))
    log[i].append((obs.tobytes(), np.float64(reward).tobytes(), repr((ended, told)).encode()))


def play_by_hand(seed: int) -> Log:
    """Play every env to its end of `STEPS` steps, one env after another."""
    hand = HandStepped(FNS)
    log: Log = {i: [] for i in range(NUM)}
    for i in range(NUM):
        row = hand.reset([i], [seed + i])[0]
        note(log, i, row.obs, 0.0, (False, False), row.info)
        for _ in range(STEPS):
            row = hand.step([policy(row.obs, row.info)], [i])[0]
            note(log, i, row.obs, row.reward, (row.terminated, row.truncated), row.info)
            if row.terminated or row.truncated:
                row = hand.reset([i])[0]
                note(log, i, row.obs, 0.0, (False, False), row.info)
    return log


def play(pool: BaseVectorEnv, seed: int, *, sent_resets: bool = False) -> Log:
    """Play a pool, each env for `STEPS` steps, in whatever order its rows come."""
    log: Log = {i: [] for i in range(NUM)}
    left = dict.fromkeys(range(NUM), STEPS)
    last: dict[int, tuple[np.ndarray, dict]] = {}

    def first(obs: np.ndarray, info: dict) -> None:
        note(log, info["env_id"], obs, 0.0, (False, False), info)
        last[info["env_id"]] = obs, info

    for obs, info in zip(*pool.reset(seed=seed), strict=True):
        first(obs, info)
    ready, in_flight = list(range(NUM)), 0
    while any(left.values()) or in_flight:
        go = [i for i in ready if left[i]]
        pool.send([policy(*last[i]) for i in go], go)
        in_flight += len(go)
        for i in go:
            left[i] -= 1
        batch = pool.recv()
        ready = []
        for obs, reward, terminated, truncated, info in zip(*batch, strict=True):
            i = info["env_id"]
            ready.append(i)
            in_flight -= 1
            if info.get("is_reset"):
                first(obs, info)
                continue
            note(log, i, obs, reward, (bool(terminated), bool(truncated)), info)
            last[i] = obs, info
            if (terminated or truncated) and sent_resets:
                pool.send_reset([i])
                in_flight += 1
                ready.remove(i)
            elif terminated or truncated:
                obs_first, info_first = pool.reset([i])
                first(obs_first[0], info_first[0])
    return log


POOLS: dict[str, Callable[..., BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    **{
        f"{kind.__name__}-{num}": functools.partial(kind, context="fork", num_processes=num)
        for kind in (SubprocVectorEnv, ShmemVectorEnv)
        for num in (1, 2, 3, None)
    },
}


@pytest.fixture(scope="module")
def by_hand() -> Log:
    return play_by_hand(99)


@pytest.mark.parametrize("wait_num", [1, 2, 3, 4])
@pytest.mark.parametrize("name", POOLS)
def test_the_same_episodes_in_every_pool(name: str, wait_num: int, by_hand: Log) -> None:
    with POOLS[name](FNS, wait_num=wait_num) as pool:
        assert play(pool, 99) == by_hand
    with POOLS[name](FNS, wait_num=wait_num, timeout=0.001) as pool:
        assert play(pool, 99, sent_resets=True) == by_hand


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", [SubprocVectorEnv, ShmemVectorEnv])
def test_the_same_episodes_under_every_start_method(
    kind: type[BaseVectorEnv], method: str, by_hand: Log
) -> None:
    with kind(FNS, wait_num=2, context=method, num_processes=2) as pool:
        assert play(pool, 99) == by_hand


def test_another_seed_is_another_run(by_hand: Log) -> None:
    assert play_by_hand(100) != by_hand


# --------------------------------------------------------------------------- forms of seeds

SEEDS: dict[str, tuple[Any, list[int | None]]] = {
    "int": (5, [5, 6, 7, 8]),
    "zero": (0, [0, 1, 2, 3]),
    "NumPy int": (np.int64(5), [5, 6, 7, 8]),
    "NumPy unsigned": (np.uint8(200), [200, 201, 202, 203]),
    "NumPy unsigned at its end": (np.uint8(254), [254, 255, 256, 257]),
    "list": ([9, 1, 9, 2], [9, 1, 9, 2]),
    "tuple": ((9, 1, 9, 2), [9, 1, 9, 2]),
    "array": (np.array([4, 3, 2, 1]), [4, 3, 2, 1]),
    "array of bytes": (np.array([4, 3, 2, 1], np.uint8), [4, 3, 2, 1]),
    "list of NumPy ints": ([np.int64(4), np.uint8(3), 2, 1], [4, 3, 2, 1]),
    "some None": ([None, 3, None, 4], [None, 3, None, 4]),
    "large": (2**40, [2**40 + i for i in range(4)]),
}


@pytest.mark.parametrize("form", SEEDS)
@pytest.mark.parametrize("place", QUICK)
def test_every_form_of_seed_means_its_seeds(place: str, form: str) -> None:
    given, meant = SEEDS[form]
    hand = HandStepped(COUNT_FNS)
    space = hand.envs[0].observation_space
    with PLACES[place](COUNT_FNS) as pool:
        # The infos tell the seeds that the envs were given, and their types.
        check_reset(pool.reset(seed=given), hand.reset(seeds=meant), space)
        backwards = given if form.endswith(("int", "unsigned", "end", "zero", "large")) else None
        if backwards is not None:  # an int means seed + env_id, for subsets too
            ids = [3, 1]
            rows = hand.reset(ids, [meant[i] for i in ids])
            check_reset(pool.reset(ids, seed=given), rows, space)
        returned = pool.seed(given)
        assert same(returned, [[seed] for seed in meant])


@pytest.mark.parametrize("place", QUICK)
def test_a_seed_sequence_is_taken(place: str) -> None:
    with PLACES[place](FNS) as pool:
        first, _ = pool.reset(seed=np.random.SeedSequence(5))
        again, _ = pool.reset(seed=np.random.SeedSequence(5))
        other, _ = pool.reset(seed=np.random.SeedSequence(6))
        assert same(first, again)
        assert not same(first, other)
        assert len({row.tobytes() for row in first}) == NUM
        # A subset gets what it would have got among all.
        some, _ = pool.reset([2, 0], seed=np.random.SeedSequence(5))
        assert same(some, first[[2, 0]])


@pytest.mark.parametrize("place", QUICK)
def test_a_seed_serves_one_reset(place: str) -> None:
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        check_reset(pool.reset(seed=7), hand.reset(seeds=spread(7, range(NUM))), SPACE)
        for _ in range(3):  # goes on with the env's own stream
            check_reset(pool.reset(), hand.reset(), SPACE)
        check_reset(pool.reset([1], seed=7), hand.reset([1], [8]), SPACE)
        check_reset(pool.reset(), hand.reset(), SPACE)


@pytest.mark.parametrize("place", QUICK)
def test_seed_counts_as_a_reset_whose_observation_is_dropped(place: str) -> None:
    hand = HandStepped(FNS)
    with PLACES[place](FNS) as pool:
        assert pool.seed(3) == [[3], [4], [5], [6]]
        hand.reset(seeds=[3, 4, 5, 6])
        obs = pool.step([0] * NUM)[0]
        assert same(obs, np.stack([row.obs for row in hand.step([0] * NUM)]))
        check_reset(pool.reset(), hand.reset(), SPACE)
        assert pool.seed([8, None, 9, None]) == [[8], [None], [9], [None]]
        hand.reset(seeds=[8, None, 9, None])
        check_reset(pool.reset(), hand.reset(), SPACE)
        assert pool.seed() == [[None]] * NUM
        assert type(pool.seed()) is list


@pytest.mark.parametrize("place", QUICK)
def test_seeds_of_a_reset_do_not_depend_on_what_was_before(place: str) -> None:
    with PLACES[place](FNS) as pool:
        first, _ = pool.reset(seed=4)
        for _ in range(5):
            pool.step([1, 2, 3, 0])
        again, _ = pool.reset(seed=4)
        assert same(first, again)


# ------------------------------------------------------------------------------ action spaces


def samples(pool: BaseVectorEnv) -> list[list[Any]]:
    return [[space.sample() for _ in range(20)] for space in pool.action_space]


def test_action_spaces_are_seeded_alike_on_every_backend() -> None:
    drawn = []
    for place in (*BACKENDS, "shmem-fork-packed"):
        with PLACES[place](FNS) as pool:
            pool.seed(11)
            by_seed = samples(pool)
            pool.reset(seed=11)
            by_reset = samples(pool)
            pool.seed(11)
            assert samples(pool) == by_seed
            pool.seed(12)
            assert samples(pool) != by_seed
            assert by_seed == by_reset
            drawn.append(by_seed)
    assert all(one == drawn[0] for one in drawn)
    assert len({repr(one) for one in drawn[0]}) == NUM, "each env samples its own actions"


@pytest.mark.parametrize("place", QUICK)
def test_a_kept_action_space_is_seeded_too(place: str) -> None:
    # Tianshou's Collector keeps the list of spaces from its construction on.
    with PLACES[place](FNS) as pool:
        kept = pool.action_space
        pool.seed(2)
        first = [kept[i].sample() for i in range(NUM) for _ in range(9)]
        pool.seed(2)
        assert [kept[i].sample() for i in range(NUM) for _ in range(9)] == first


# ------------------------------------------------------------------- episode seeds, reset_fn


def first_obs(pool: BaseVectorEnv, steps: list[int], seed: int) -> list[np.ndarray]:
    """First observations of successive episodes, `steps[k]` steps after each other."""
    obs, _ = pool.reset(seed=seed)
    found = [obs]
    for count in steps:
        for _ in range(count):
            pool.step([1] * NUM)
        found.append(pool.reset()[0])
    return found


@pytest.mark.parametrize("place", QUICK)
def test_with_episode_seeds_an_episode_does_not_depend_on_what_came_before(place: str) -> None:
    with PLACES[place](FNS, episode_seeds=True) as pool:
        short = first_obs(pool, [1, 1, 1], seed=5)
    with PLACES[place](FNS, episode_seeds=True) as pool:
        long = first_obs(pool, [7, 2, 9], seed=5)
    assert same(short, long)
    flat = [row.tobytes() for obs in short for row in obs]
    assert len(set(flat)) == len(flat), "all episodes of all envs differ"
    with PLACES[place](FNS, episode_seeds=True) as pool:
        assert not same(first_obs(pool, [1, 1, 1], seed=6), short)
    with PLACES[place](FNS) as pool:
        plain = first_obs(pool, [1, 1, 1], seed=5), first_obs(pool, [7, 2, 9], seed=5)
    assert not same(*plain)  # without the option they do depend


def test_episode_seeds_are_the_same_on_every_backend() -> None:
    found = []
    for place in QUICK:
        with PLACES[place](FNS, episode_seeds=True) as pool:
            found.append(first_obs(pool, [1, 2, 3], seed=5))
    assert all(same(one, found[0]) for one in found)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("place", QUICK)
def test_episode_seeds_serve_automatic_resets(place: str, mode: str) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(2)]

    def told(pool: BaseVectorEnv) -> list[list[int]]:
        seeds = [[info["seed"]] for info in pool.reset(seed=50)[1]]
        for _ in range(8):
            for info in pool.step([0, 0])[4]:
                if "seed" in info:
                    seeds[info["env_id"]].append(info["seed"])
        return seeds

    with PLACES[place](fns, autoreset_mode=mode, episode_seeds=True) as pool:
        automatic = told(pool)
    by_hand: list[list[int]] = []
    with PLACES[place](fns, episode_seeds=True) as pool:
        first = [info["seed"] for info in pool.reset(seed=50)[1]]
        rounds = [[info["seed"] for info in pool.reset()[1]] for _ in range(len(automatic[0]) - 1)]
        by_hand = [list(column) for column in zip(first, *rounds, strict=True)]
    assert automatic == by_hand
    assert all(seed is not None for seeds in automatic for seed in seeds)
    assert len(set(itertools.chain(*automatic))) == len(automatic[0]) * 2


@pytest.mark.parametrize("place", QUICK)
def test_episode_seeds_do_not_depend_on_how_steps_are_batched(place: str) -> None:
    fns = [functools.partial(envs.RandomEnv, tag) for tag in range(NUM)]
    logs = []
    for wait_num in (1, 4):
        log: dict[int, list[bytes]] = {i: [] for i in range(NUM)}
        options: dict[str, Any] = {"autoreset_mode": "same_step", "episode_seeds": True}
        with PLACES[place](fns, wait_num=wait_num, **options) as pool:
            pool.reset(seed=1)
            ready = list(range(NUM))
            while min(len(rows) for rows in log.values()) < 30:
                obs, *_, info = pool.step([len(log[i]) % 4 for i in ready], ready)
                ready = [row["env_id"] for row in info]
                for i, row in zip(ready, obs, strict=True):
                    log[i].append(row.tobytes())
        logs.append({i: rows[:30] for i, rows in log.items()})
    assert logs[0] == logs[1]


def seed_and_level(env_id: int, episode: int) -> tuple[int, dict]:
    return 1000 * env_id + episode, {"level": episode}


@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
@pytest.mark.parametrize("place", QUICK)
def test_reset_fn_gives_every_reset_its_seed_and_options(place: str, mode: str | None) -> None:
    fns = [functools.partial(envs.CountEnv, tag, 2) for tag in range(3)]
    with PLACES[place](fns, autoreset_mode=mode, reset_fn=seed_and_level) as pool:
        given: dict[int, list[tuple]] = {i: [] for i in range(3)}

        def look(infos: np.ndarray) -> None:
            for info in infos:
                if "seed" in info:
                    given[info["env_id"]].append((info["seed"], info["options"]))

        look(pool.reset()[1])
        for _ in range(7):
            *_, terminated, truncated, info = pool.step([0, 0, 0])
            look(info)
            if mode is None and (terminated | truncated).any():
                look(pool.reset(terminated | truncated)[1])
        for i, told in given.items():
            assert len(told) >= 3
            assert told == [seed_and_level(i, k) for k in range(len(told))]


@pytest.mark.parametrize("place", QUICK)
def test_reset_fn_may_be_a_closure_and_serves_sent_resets(place: str) -> None:
    base = 70

    def closure(env_id: int, episode: int) -> tuple[int | None, dict | None]:
        return base + env_id, None if episode else {"first": True}

    with PLACES[place](COUNT_FNS, reset_fn=closure) as pool:
        assert [info["options"] for info in pool.reset()[1]] == [{"first": True}] * NUM
        pool.send_reset([2])
        info = pool.recv()[4][0]
        assert (info["seed"], info["options"]) == (72, None)


def test_rows_have_no_memory_of_the_pools_own_random_state() -> None:
    np.random.seed(0)  # noqa: NPY002
    with DummyVectorEnv(FNS) as pool:
        one, _ = pool.reset(seed=3)
    np.random.seed(1)  # noqa: NPY002
    with DummyVectorEnv(FNS) as pool:
        two, _ = pool.reset(seed=3)
    assert same(one, two)
    assert isinstance(HandStepped(FNS).reset(seeds=[3, 4, 5, 6])[0], Row)
