"""The five states of a request and the moves between them (source: seed 2, FIX of Q-09).

The moves are carried out by the broker's scripts; here they are data, for checks and for the docs.
"""

from __future__ import annotations

from enum import StrEnum


class ReqStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    ERROR = "error"

    @property
    def is_final(self) -> bool:
        """Final states absorb: nothing leads out of them."""
        return not MOVES[self]

    def can_become(self, to: ReqStatus) -> bool:
        """Whether the move is a change that is allowed; the same state again is no change."""
        return to in MOVES[self]


MOVES: dict[ReqStatus, frozenset[ReqStatus]] = {
    ReqStatus.PENDING: frozenset({ReqStatus.RUNNING, ReqStatus.CANCELLED, ReqStatus.ERROR}),
    ReqStatus.RUNNING: frozenset(
        {ReqStatus.FINISHED, ReqStatus.CANCELLED, ReqStatus.ERROR, ReqStatus.PENDING}
    ),
    ReqStatus.FINISHED: frozenset(),
    ReqStatus.CANCELLED: frozenset(),
    ReqStatus.ERROR: frozenset(),
}
# The record's one-letter states (design of the scripts) seen from outside.
RECORD_STATES: dict[str, ReqStatus] = {
    "W": ReqStatus.PENDING,
    "L": ReqStatus.PENDING,
    "Q": ReqStatus.PENDING,
    "R": ReqStatus.RUNNING,
    "K": ReqStatus.RUNNING,
    "F": ReqStatus.FINISHED,
    "C": ReqStatus.CANCELLED,
    "E": ReqStatus.ERROR,
}
