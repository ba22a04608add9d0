"""The five states and the moves between them."""

from __future__ import annotations

from itertools import product

import pytest

from shared.status import MOVES, RECORD_STATES, ReqStatus

PENDING, RUNNING = ReqStatus.PENDING, ReqStatus.RUNNING
FINISHED, CANCELLED, ERROR = ReqStatus.FINISHED, ReqStatus.CANCELLED, ReqStatus.ERROR
ALLOWED = {
    (PENDING, RUNNING),
    (PENDING, CANCELLED),
    (PENDING, ERROR),
    (RUNNING, FINISHED),
    (RUNNING, CANCELLED),
    (RUNNING, ERROR),
    (RUNNING, PENDING),
}


@pytest.mark.parametrize(("start", "to"), list(product(ReqStatus, ReqStatus)))
def test_only_the_listed_moves_are_allowed(start: ReqStatus, to: ReqStatus) -> None:
    assert start.can_become(to) is ((start, to) in ALLOWED)


def test_the_moves_as_data_are_the_same() -> None:
    assert {(start, to) for start, targets in MOVES.items() for to in targets} == ALLOWED
    assert set(MOVES) == set(ReqStatus)


@pytest.mark.parametrize("status", ReqStatus)
def test_final_states_absorb(status: ReqStatus) -> None:
    assert status.is_final is (status in {FINISHED, CANCELLED, ERROR})
    if status.is_final:
        assert not any(status.can_become(to) for to in ReqStatus)


def test_the_same_state_again_is_no_change() -> None:
    assert not any(status.can_become(status) for status in ReqStatus)


def test_the_words_are_the_second_seeds() -> None:
    words = ["pending", "running", "finished", "cancelled", "error"]
    assert [status.value for status in ReqStatus] == words


def test_every_letter_of_a_record_is_one_of_the_five() -> None:
    expected = {"W": PENDING, "L": PENDING, "Q": PENDING, "R": RUNNING, "K": RUNNING}
    assert {**expected, "F": FINISHED, "C": CANCELLED, "E": ERROR} == RECORD_STATES
