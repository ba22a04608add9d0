"""The oracle on histories made by hand: it finds what it is there for, and forgives what the faults explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.history import (
    CANCELLED,
    ERROR,
    EXPIRED,
    FINISHED,
    LAST,
    UNKNOWN,
    History,
    Look,
    Remains,
    Strike,
    Wipe,
)
from tests.chaos.oracle import Verdict, judge

RID, ANSWER = "chaos.0-a", "A(hello)"
NOTHING = Remains(99.0)
DOORS = ("door-1", "door-2")
EXHAUSTED = "attempts_exhausted"


def look(
    at: float, state: str, code: str = "", text: str | None = None, *, by: str = "door-1"
) -> Look:
    return Look(at, at + 0.1, by, LAST if at >= 90 else "poll", 200, state, code, text)


def finished(at: float, text: str = ANSWER, *, by: str = "door-1") -> Look:
    return look(at, FINISHED, text=text, by=by)


@pytest.fixture
def history() -> History:
    """One id, accepted at second 1."""
    history = History()
    history.accept(RID, 0, 1.0, ANSWER)
    return history


def verdict(history: History, first: Look, second: Look | None = None) -> Verdict:
    """By the last look at two doors, alike if only one is given."""
    return judge(history, {RID: [first, second or replace(first, by="door-2")]}, NOTHING)


def test_an_answer_seen_again_at_both_doors_is_good(history: History) -> None:
    history.saw(RID, look(2, "running"))
    history.saw(RID, finished(3))
    found = verdict(history, finished(90))
    assert found.is_good
    assert found.line(2) == (
        "accepted=1 finished=1 error=0 cancelled=0 wiped=0 unknown=2 lost=0 double=0 stuck=0"
    )


def test_an_id_that_nobody_knows_any_more_is_lost(history: History) -> None:
    assert verdict(history, look(90, UNKNOWN)).lost.keys() == {RID}


def test_what_was_accepted_before_a_flush_may_be_wiped_by_it(history: History) -> None:
    history.saw(RID, finished(3))
    history.wipes.append(Wipe(10.0, 10.1))
    found = verdict(history, look(90, UNKNOWN))
    assert found.is_good
    assert found.counts["wiped"] == 1


def test_what_was_accepted_after_the_flush_may_not(history: History) -> None:
    history.wipes.append(Wipe(0.1, 0.2))
    assert verdict(history, look(90, UNKNOWN)).lost.keys() == {RID}


@pytest.mark.parametrize("state", ["pending", "running", EXPIRED, ""])
def test_what_has_no_end_when_all_is_over_is_stuck(history: History, state: str) -> None:
    assert verdict(history, look(90, state)).stuck.keys() == {RID}


def test_an_id_that_a_door_could_not_be_asked_for_is_stuck(history: History) -> None:
    assert judge(history, {}, NOTHING).stuck.keys() == {RID}


def test_what_the_broker_still_holds_is_stuck_whoever_sent_it(history: History) -> None:
    both = [finished(90), finished(90, by="door-2")]
    left = {"chaos.0-other": ("sl:{chaos:0}:lease",)}
    found = judge(history, {RID: both}, Remains(99.0, left))
    assert found.stuck == {"chaos.0-other": "still in sl:{chaos:0}:lease"}


def test_doors_that_differ_show_it_double(history: History) -> None:
    history.accepted[RID].may_be_cancelled = True
    found = verdict(history, finished(90), look(90, CANCELLED, "cancelled", by="door-2"))
    assert found.double.keys() == {RID}


def test_an_end_that_a_client_saw_and_that_is_another_later_is_double(history: History) -> None:
    history.accepted[RID].may_be_cancelled = True
    history.saw(RID, look(3, CANCELLED, "cancelled"))
    assert verdict(history, finished(90)).double.keys() == {RID}


def test_an_end_that_was_taken_back_is_double(history: History) -> None:
    history.saw(RID, finished(3))
    history.saw(RID, look(4, "running"))
    assert verdict(history, finished(90)).double.keys() == {RID}


def test_two_replies_that_crossed_are_not(history: History) -> None:
    history.saw(RID, Look(2.0, 4.0, "door-1", "poll", 200, FINISHED, "", ANSWER))
    history.saw(RID, Look(2.5, 4.5, "door-2", "poll", 202, "running"))
    assert verdict(history, finished(90)).is_good


def test_a_text_that_the_engine_does_not_give_is_double(history: History) -> None:
    history.saw(RID, finished(3, "A(another)"))
    assert verdict(history, finished(90)).double.keys() == {RID}


def test_a_second_life_after_a_flush_may_end_otherwise(history: History) -> None:
    history.accepted[RID].may_be_cancelled = True
    history.saw(RID, look(3, CANCELLED, "cancelled"))
    history.wipes.append(Wipe(10.0, 10.1))
    assert verdict(history, finished(90)).is_good


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (CANCELLED, "cancelled"),
        (ERROR, "expired"),
        (ERROR, "deadline_exceeded"),
        (ERROR, "payload_lost"),
        (ERROR, "engine_error"),
    ],
)
def test_an_end_that_nobody_asked_for_is_a_loss(history: History, state: str, code: str) -> None:
    assert verdict(history, look(90, state, code)).lost.keys() == {RID}


def test_an_end_that_somebody_asked_for_is_none(history: History) -> None:
    history.will_cancel(RID)
    assert verdict(history, look(90, CANCELLED, "cancelled")).is_good
    history.accepted[RID].may_expire = True
    # A run that its deadline cut short shows the part that it had.
    assert verdict(history, look(90, ERROR, "deadline_exceeded", ANSWER[:4])).is_good


def test_a_finished_request_without_a_text_is_a_loss_unless_it_was_dropped(
    history: History,
) -> None:
    assert verdict(history, look(90, FINISHED)).lost.keys() == {RID}
    history.accepted[RID].is_dropped = True
    assert verdict(history, look(90, FINISHED)).is_good


def test_a_list_may_be_cancelled_with_its_children() -> None:
    history = History()
    history.accept_list(RID, 0, 1.0, [ANSWER, "A(two)"])
    both = [look(90, CANCELLED, "cancelled"), look(90, CANCELLED, "cancelled", by="door-2")]
    last = dict.fromkeys(history.accepted, both)
    assert judge(history, last, NOTHING).lost.keys() == set(last)
    history.will_cancel(RID)
    assert judge(history, last, NOTHING).is_good


def exhausted(history: History, *strikes: Strike) -> Verdict:
    """One that ended so at second 10, with faults beside it."""
    history.strikes += strikes
    looks = [Look(90, 90.1, by, LAST, 200, ERROR, EXHAUSTED, None, 10.0) for by in DOORS]
    return judge(history, {RID: looks}, Remains(99.0, letters=frozenset({RID})))


def kills(*times: float) -> list[Strike]:
    return [Strike(at, "kill_worker", f"worker-{n}") for n, at in enumerate(times, 1)]


def test_a_request_that_lost_one_worker_too_many_may_be_given_up(history: History) -> None:
    cut_off = [Strike(4.0, "stop_worker", "worker-2", 2.5), Strike(6.0, "stall", "worker-3", 3.0)]
    found = exhausted(history, *kills(2.0), *cut_off)
    assert found.is_good
    assert found.errors == {EXHAUSTED: 1}


@pytest.mark.parametrize(
    "others",
    [
        [Strike(at, "stop_broker", "broker", 0.9) for at in (3.0, 4.0, 5.0, 6.0)],
        [Strike(at, "kill_broker", "broker") for at in (3.0, 5.0, 7.0)],
        [Strike(5.0, "stop_worker", "worker-3", 0.6)],
        [Strike(5.0, "swallow", "door-2", 3.0)],
        kills(0.5),
        kills(10.5),
    ],
    ids=["broker stopped", "broker killed", "short stop", "a door's", "before it", "after it"],
)
def test_what_costs_no_lease_of_it_does_not_explain_its_end(
    history: History, others: list[Strike]
) -> None:
    """Beside two that may have."""
    assert exhausted(history, *kills(2.0, 3.0), *others).lost.keys() == {RID}


def test_what_was_given_up_is_a_dead_letter_and_nothing_else_is(history: History) -> None:
    exhausted(history, *kills(2.0, 3.0, 4.0))
    end = {RID: [look(90, ERROR, EXHAUSTED), look(90, ERROR, EXHAUSTED, by="door-2")]}
    assert judge(history, end, NOTHING).lost.keys() == {RID}
    good = {RID: [finished(90), finished(90, by="door-2")]}
    letters = Remains(99.0, letters=frozenset({RID, "chaos.0-unheard-of"}))
    assert judge(history, good, letters).lost.keys() == {RID}


def test_what_was_seen_alive_after_the_wipe_is_lost(history: History) -> None:
    history.wipes.append(Wipe(10.0, 10.1))
    history.saw(RID, look(12, "running"))
    assert verdict(history, look(90, UNKNOWN)).lost.keys() == {RID}


def held(history: History, code: str, *, call: str = "predict", until: float = 20.0) -> Verdict:
    """By a front door from before the wipe on."""
    history.wipes.append(Wipe(10.0, 10.1))
    history.saw(RID, Look(9.0, until, "door-1", call, 503, "", code))
    return verdict(history, look(90, UNKNOWN))


@pytest.mark.parametrize("call", ["predict", "held"])
def test_who_was_held_across_a_wipe_is_told_of_it(history: History, call: str) -> None:
    assert held(history, "wait_timeout", call=call).lost.keys() == {RID}


@pytest.mark.parametrize("code", ["broker_lost", "draining"])
def test_who_was_told_to_send_it_again_has_lost_nothing(history: History, code: str) -> None:
    found = held(history, code)
    assert found.is_good
    assert found.counts["wiped"] == 1


def test_who_was_let_go_before_the_door_could_know_was_not_held(history: History) -> None:
    assert held(history, "wait_timeout", until=12.0).is_good


def test_an_answer_long_after_the_wipe_shows_a_second_life(history: History) -> None:
    history.wipes.append(Wipe(10.0, 10.1))
    history.saw(RID, Look(9.0, 19.0, "door-1", "predict", 200, FINISHED, "", ANSWER))
    assert verdict(history, look(90, UNKNOWN)).lost.keys() == {RID}


@pytest.mark.parametrize(
    ("strike", "is_excuse"),
    [
        (Strike(12.0, "stop_door", "door-1", 2.0), True),
        (Strike(12.0, "stop_broker", "broker", 7.0), True),
        (Strike(12.0, "fill_memory", "broker"), True),
        (Strike(12.0, "stop_door", "door-2", 2.0), False),
        (Strike(12.0, "stop_broker", "broker", 0.5), False),
        (Strike(12.0, "kill_worker", "worker-1"), False),
        (Strike(9.5, "stop_door", "door-1", 0.3), False),
        (Strike(18.0, "fill_memory", "broker"), False),
    ],
)
def test_a_door_that_was_kept_up_may_learn_too_late(
    history: History, strike: Strike, is_excuse: bool
) -> None:
    history.strikes.append(strike)
    assert held(history, "wait_timeout").is_good == is_excuse


@pytest.mark.parametrize(
    ("strikes", "is_good"),
    [
        ([], False),
        ([Strike(50.0, "stop_door", "door-1", 3.0)], False),
        ([Strike(50.0, "kill_door", "door-1")], False),
        ([Strike(80.0, "kill_door", "door-1")], True),
        ([Strike(60.0, "drain_door", "door-2"), Strike(70.0, "stop_broker", "broker", 8.0)], True),
    ],
)
def test_a_list_is_half_there_no_longer_than_its_reservation_lasts(
    strikes: list[Strike], is_good: bool
) -> None:
    history = History()
    history.strikes += strikes
    half = Remains(99.0, {"chaos.0-list": ("sl:{chaos:0}:resv",)})
    assert judge(history, {}, half).is_good == is_good
    live = Remains(99.0, {"chaos.0-list": ("sl:{chaos:0}:resv", "sl:{chaos:0}:live")})
    assert not judge(history, {}, live).is_good


def test_a_failed_dependency_must_not_have_finished(history: History) -> None:
    history.accept("chaos.0-b", 0, 1.0, ANSWER).needs = (RID,)
    both = [look(90, ERROR, "dependency_failed"), look(90, ERROR, "dependency_failed", by="door-2")]
    end = [finished(90), finished(90, by="door-2")]
    assert judge(history, {RID: end, "chaos.0-b": both}, NOTHING).is_good
    history.saw(RID, finished(2))
    assert judge(history, {RID: end, "chaos.0-b": both}, NOTHING).lost.keys() == {"chaos.0-b"}


def test_what_happened_to_an_id_can_be_told(history: History) -> None:
    history.strike(Strike(2.0, "kill_worker", "worker-1"))
    history.saw(RID, finished(3))
    told = history.told(RID)
    assert told.index("kill_worker worker-1") < told.index(
        "door-1 poll     200 finished 'A(hello)'"
    )
