"""Which requests an env takes, and which results count."""

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ResetNeeded

from envpool_py import states
from envpool_py.worker.channel import ASK, GENERATION, RESET


def ids(*listed):
    return np.array(listed, np.intp)


@pytest.fixture
def table():
    table = states.States(4)
    table.take_as_reset()
    return table


def send(table, *listed):
    table.sent(ids(*listed), ids(*listed), states.STEPPING)


def come_back(table, *listed):
    table.returned(ids(*listed), ids(*listed), states.READY)


@pytest.mark.parametrize(
    ("state", "word"), [(states.STEPPING, "stepping"), (states.RESETTING, "resetting")]
)
def test_an_env_in_flight_takes_nothing(table, state, word):
    table.sent(ids(2, 1), ids(2, 1), state)
    with pytest.raises(AlreadyPendingCallError, match=f"env 2: still {word}") as caught:
        table.check_free(ids(0, 2))
    assert caught.value.name == word
    with pytest.raises(AlreadyPendingCallError, match="envs 1 to 2"):
        table.check_step(ids(0, 1, 2), ids(0, 1, 2))
    table.check_step(ids(0, 3), ids(0, 3))
    table.check_fetch(ids(1, 2))
    with pytest.raises(ValueError, match="env 3: not in flight; send actions first"):
        table.check_fetch(ids(1, 3))


def test_the_order_of_sending_and_returning(table):
    send(table, 3, 1)
    send(table, 2)
    assert (table.waiting().tolist(), table.ready().tolist()) == ([3, 1, 2], [0])
    come_back(table, 1)
    assert (table.waiting().tolist(), table.ready().tolist()) == ([3, 2], [0, 1])
    assert table.in_flight == 2
    for _ in range(700):  # longer than the log
        send(table, 0)
        come_back(table, 0)
    assert (table.waiting().tolist(), table.ready().tolist()) == ([3, 2], [1, 0])
    send(table, 1, 0)
    come_back(table, 3, 2)
    assert (table.waiting().tolist(), table.ready().tolist()) == ([1, 0], [3, 2])


def arrived(table, *tokens):
    arrivals = states.Arrivals(table)
    arrivals.chunks.append(np.array(tokens, np.int64).tobytes())
    return arrivals


def test_results_count_once_and_only_if_they_are_current(table):
    first = table.tokens.tolist()
    send(table, 0, 1, 2)
    arrivals = arrived(table, first[2], first[0] | RESET, first[2])
    arrivals.drop_stale()
    assert arrivals.ids().tolist() == [2, 0]
    arrivals.stale[2] = first[2]
    table.cancelled(ids(2))
    assert table.in_flight == 2
    with pytest.raises(ResetNeeded, match="env 2: its last request was cancelled"):
        table.check_step(ids(2), ids(2))
    arrivals.drop_stale()
    assert arrivals.ids().tolist() == [0]
    assert not arrivals.stale
    assert table.tokens[2] == first[2] + GENERATION


def test_what_is_no_result_is_noticed_and_replies_are_told_from_rows(table):
    first = table.tokens.tolist()
    assert arrived(table, first[1], first[0]).sound_ids().tolist() == [1, 0]
    assert arrived(table, first[1] | RESET).sound_ids().tolist() == [1]
    assert arrived(table, first[1], first[0] + GENERATION).sound_ids() is None
    assert arrived(table, 0, 17).sound_ids() is None
    cut = arrived(table, first[1])
    cut.chunks.append(b"abc")
    assert cut.sound_ids() is None
    assert cut.ids().tolist() == [1]
    # Replies and rows are taken apart.
    arrivals = arrived(table, first[3], first[1] | ASK, first[0])
    assert arrivals.take_replies() == [1]
    assert arrivals.ids().tolist() == [3, 0]
    arrivals.take(ids(3))
    assert arrivals.ids().tolist() == [0]
    arrivals.take(ids(0))
    assert not arrivals.chunks
