"""The judgement: from the clients' history and the last look at each id. Pure; asks nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import (
    CANCELLED,
    ERROR,
    EXPIRED,
    FINISHED,
    MAX_CRASHES,
    UNKNOWN,
    Accepted,
    History,
    Look,
    Remains,
    Strike,
    Wipe,
)

# Whoever asks for a short time may see these.
TIMED_OUT = ("expired", "deadline_exceeded")
EXHAUSTED = "attempts_exhausted"
# A worker tells the broker every 0.4 s that it is there, so what lasts less than this costs no lease of 2 s.
LEASE_COST_S = 1.0
# The calls of which a front door holds the connection until there is an answer.
HELD = ("predict", "held")
# A front door looks after what it has heard nothing of for 5 s, once a second; the rest is for a slow machine.
RECONCILED_S = 7.5
# What whoever waits may be told instead of an answer: send it again, ask elsewhere.
TOLD = ("broker_lost", "broker_unavailable", "draining")
DOOR_ENDS = ("kill_door", "drain_door", "kill_midway")
# A list that nobody goes on with ends after 30 s; the rest is for the housekeepers' round.
RESERVED_S = 34.0


@dataclass
class Verdict:
    """Ids by their end; the last three are failures, each with its reason."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    double: dict[str, str] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.double or self.stuck)

    @property
    def failures(self) -> dict[str, str]:
        return {**self.lost, **self.double, **self.stuck}

    def line(self, unknown: int) -> str:
        names = ("accepted", FINISHED, ERROR, CANCELLED, "wiped")
        shown = " ".join(f"{name}={self.counts[name]}" for name in names)
        return (
            f"{shown} unknown={unknown} lost={len(self.lost)} double={len(self.double)} "
            f"stuck={len(self.stuck)}"
        )


def judge(history: History, last: Mapping[str, Sequence[Look]], remains: Remains) -> Verdict:
    """`last`: for each accepted id what each front door said when all was over."""
    verdict = Verdict()
    for rid, asked in history.accepted.items():
        verdict.counts["accepted"] += 1
        looks = last.get(rid, ())
        end = _end_of(history, asked, looks, verdict)
        if end is not None:
            verdict.counts[end] += 1
        is_letter, is_exhausted = rid in remains.letters, any(x.code == EXHAUSTED for x in looks)
        if is_letter != is_exhausted and not asked.is_list:
            verdict.lost.setdefault(rid, f"{EXHAUSTED} {is_exhausted}, dead letter {is_letter}")
        reason = _contradiction(history, asked, looks)
        if reason is not None:
            verdict.double.setdefault(rid, reason)
    may_be_reserved = remains.at < reserved_until(history)
    for rid, keys in remains.left.items():
        if not (may_be_reserved and all(key.endswith(":resv") for key in keys)):
            verdict.stuck.setdefault(rid, f"still in {', '.join(keys)}")
    return verdict


def reserved_until(history: History) -> float:
    """Until when a list may be half there since its front door ended. The queue clock leaves a long stop of the
    broker out.
    """
    at = max((s.at for s in history.strikes if s.kind in DOOR_ENDS), default=None)
    if at is None:
        return 0.0
    return at + RESERVED_S + sum(s.seconds for s in history.strikes if s.kind == "stop_broker")


def _end_of(
    history: History, asked: Accepted, looks: Sequence[Look], verdict: Verdict
) -> str | None:
    """The one end that all agree on; None and a failure where there is none."""
    rid = asked.rid
    said = {(look.state, look.code) for look in looks}
    if not looks or any(look.state == "" for look in looks):
        verdict.stuck[rid] = "a front door did not tell its end"
        return None
    if len(said) > 1:
        verdict.double[rid] = f"two front doors differ: {sorted(said)}"
        return None
    look = looks[0]
    if look.state == UNKNOWN:
        lost = _not_wiped(history, asked)
        if lost is None:
            return "wiped"
        verdict.lost[rid] = lost
        return None
    if look.state == EXPIRED or not look.is_final:
        verdict.stuck[rid] = f"at the end it was {look.state}"
        return None
    wrong = _wrong(history, asked, look)
    if wrong is not None:
        verdict.lost[rid] = wrong
        return None
    if look.state == ERROR:
        verdict.errors[look.code] += 1
    return look.state


def _not_wiped(history: History, asked: Accepted) -> str | None:
    """Why no FLUSHALL explains that it is unknown at the end."""
    wipes = [wipe for wipe in history.wipes if asked.sent_at < wipe.ended]
    if not wipes:
        return "accepted, and unknown at the end"
    for look in asked.looks:
        if look.state not in ("", UNKNOWN) and look.began >= wipes[-1].ended:
            return f"{look.state} at {look.began:.3f}, after the wipe, and unknown at the end"
        for wipe in wipes:
            if _was_held_across(history, look, wipe) and look.code not in TOLD:
                told = look.code or look.state
                return (
                    f"held by {look.by} since before the wipe, told {told}, and unknown at the end"
                )
    return None


def _was_held_across(history: History, look: Look, wipe: Wipe) -> bool:
    """By a front door that nothing kept from finding out in time that the broker had forgotten the request."""
    until = wipe.ended + RECONCILED_S
    is_across = look.call in HELD and look.began < wipe.began and until < look.ended
    return is_across and not any(
        wipe.began < strike.at < until and _keeps_up(strike, look.by) for strike in history.strikes
    )


def _keeps_up(strike: Strike, door: str) -> bool:
    is_broker_away = strike.name == "broker" and strike.seconds > LEASE_COST_S
    return strike.name == door or is_broker_away or strike.kind == "fill_memory"


def _wrong(history: History, asked: Accepted, look: Look) -> str | None:
    """Why this end is none that the request could rightly have."""
    if asked.is_list:
        if look.state == CANCELLED and not asked.may_be_cancelled:
            return "cancelled, and nobody asked for that"
        return None
    if look.state == CANCELLED:
        return None if asked.may_be_cancelled else "cancelled, and nobody asked for that"
    if look.state == ERROR:
        if look.code in TIMED_OUT and asked.may_expire:
            return None
        if look.code == "dependency_failed" and not _all_finished(history, asked.needs):
            return None
        if look.code == EXHAUSTED:
            return _not_exhausted(history, asked, look)
        return f"ended as {look.code}, which nothing explains"
    if look.text is None and not asked.is_dropped:
        return "finished without its answer"
    return None


def _not_exhausted(history: History, asked: Accepted, look: Look) -> str | None:
    """Why it cannot have lost that many workers while it lived. The broker's own faults take none away."""
    until = look.ended if look.final_at is None else look.final_at
    n = sum(asked.sent_at < s.at < until and _costs_leases(s) for s in history.strikes)
    if n > MAX_CRASHES:
        return None
    return f"ended as {EXHAUSTED}, and only {n} workers were struck while it lived"


def _costs_leases(strike: Strike) -> bool:
    is_away = strike.kind in ("stop_worker", "stall", "swallow") and strike.seconds > LEASE_COST_S
    return strike.kind == "kill_worker" or (is_away and strike.name.startswith("worker"))


def _all_finished(history: History, needs: Sequence[str]) -> bool:
    """By what anybody ever saw of them."""
    looks = (history.accepted[rid].looks for rid in needs)
    return all(any(look.state == FINISHED for look in seen) for seen in looks)


def _contradiction(history: History, asked: Accepted, last: Sequence[Look]) -> str | None:
    """Two ends that differ, an end that was taken back, or a text that the engine cannot have given."""
    looks = sorted((*asked.looks, *last), key=lambda look: look.ended)
    wrong = next(filter(None, (_wrong_text(asked, look) for look in looks)), None)
    if wrong is not None:
        return wrong
    for same in _by_epoch(history, looks):
        ends = {(look.state, look.code) for look in same if look.is_final}
        if len(ends) > 1:
            return f"was seen to end as {sorted(ends)}"
        texts = {look.text for look in same if look.is_final and look.text is not None}
        if len(texts) > 1:
            return "was seen with two texts"
        ended_at = min((look.ended for look in same if look.is_final), default=None)
        if ended_at is None:
            continue
        later = (
            look for look in same if look.began >= ended_at and look.state and not look.is_final
        )
        for look in later:
            if not (look.state == EXPIRED and asked.is_dropped):
                return f"was final at {ended_at:.3f}, and {look.state} at {look.began:.3f}"
    return None


def _wrong_text(asked: Accepted, look: Look) -> str | None:
    if look.text is None or asked.answer is None:
        return None
    # A run that its deadline cut short shows what it had by then.
    is_right = (
        look.text == asked.answer if look.state == FINISHED else asked.answer.startswith(look.text)
    )
    return None if is_right else f"has a text that is not its answer: {look.text[:60]!r}"


def _by_epoch(history: History, looks: Sequence[Look]) -> Iterator[list[Look]]:
    """Looks between two wipes, which may bring an id a second life. Those during one are left out."""
    epochs: dict[int, list[Look]] = {}
    for look in looks:
        epoch = history.epoch(look.began, look.ended)
        if epoch is not None:
            epochs.setdefault(epoch, []).append(look)
    yield from epochs.values()
