"""Which contestants step which envs, and what a random number stands for."""

from __future__ import annotations

import pytest

from envpool_py.bench import contestants, games, schedule
from envpool_py.bench.contestants import AGENT_CONTESTANTS, BY_NAME, CEILINGS, CONTESTANTS
from envpool_py.bench.games import GYM, PARALLEL, TURNS
from envpool_py.bench.interpreters import Interpreter
from envpool_py.bench.workloads import AGENT_WORKLOADS, WORKLOADS, Workload

FOUND = {
    contestant.library: Interpreter("here", "python", {})
    for contestant in CONTESTANTS + AGENT_CONTESTANTS
}


def taking_part(workload: Workload) -> set[str]:
    chosen = CONTESTANTS + AGENT_CONTESTANTS
    entries, _ = schedule.entries(workload, chosen, FOUND, 256)
    return {entry.contestant for entry in entries} - {"bare"}


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CONTESTANTS) + len(CEILINGS) + len(AGENT_CONTESTANTS)
    titles = {each.title for each in AGENT_CONTESTANTS}
    assert len(titles) == len(AGENT_CONTESTANTS)
    assert len({each.title for each in WORKLOADS + AGENT_WORKLOADS}) == len(
        WORKLOADS + AGENT_WORKLOADS
    )


def test_everybody_steps_the_envs_of_its_kind() -> None:
    of = {face: {c.name for c in BY_NAME.values() if c.plays == face} for face in (PARALLEL, TURNS)}
    assert taking_part(Workload("cartpole", 8)) == {c.name for c in CONTESTANTS}
    assert taking_part(Workload("Any-v0", 8)) == {c.name for c in CONTESTANTS}
    assert taking_part(Workload("spread", 16)) == of[PARALLEL] | of[TURNS]
    assert taking_part(Workload("tictactoe", 16)) == of[TURNS]
    assert games.faces("spread")[0] == PARALLEL
    assert games.faces("cartpole") == (GYM,)
    assert not contestants.takes_part(BY_NAME["shmem"], Workload("spread", 16))


def test_titles_say_whose_steps_are_counted() -> None:
    assert Workload("spread", 16).title == "simple_spread, steps of agents, x 16"


@pytest.mark.parametrize("mask", [[0, 1, 0, 1], [False, True, False, True]])
def test_random_numbers_stand_for_legal_actions(mask: list) -> None:
    assert [games.legal(mask, number) for number in range(5)] == [1, 3, 1, 3, 1]
