"""What the clients of a simulation were told, and whether it agrees: the oracle from outside, as a client sees it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shared.queue.waiters import Answer
from shared.request import Outcome


class Ask:
    """One request, or a list of `n`. `owns`: its id is nobody else's."""

    def __init__(self, rid: str, text: str, *, n: int = 0, timeout_s: float, at: float) -> None:
        self.id = rid
        self.text = text
        self.n = n
        self.timeout_s = timeout_s
        self.owns = True
        self.tenant = "t0"
        self.parent: Ask | None = None  # the list that it is of
        self.is_streamed = False
        self.is_lost = False  # whoever asked for it was told that the broker lost it
        self.has_left = False  # who asked for it, so that it was cancelled
        self.was_crowded = False  # no slot was free at some time of its life
        self.after: list[Ask] = []  # what it depends on
        self.digest = f"d-{rid}"
        self.made_at = at
        self.accepted_at: float | None = None
        self.endings: list[tuple[str, tuple[Any, ...]]] = []
        self.callbacks: Counter[str] = Counter()

    def text_of(self, index: int) -> str:
        return f"{self.text} {index}"

    @property
    def answer(self) -> str:
        """What it is answered: its text with the answers that it repeats in their places."""
        text = self.text
        for before in self.after:
            text = text.replace(f"{{{{{before.id}.text}}}}", before.answer)
        return f"A({text})"


class Ledger:
    def __init__(self) -> None:
        self.asks: dict[str, Ask] = {}
        self.broken: list[str] = []
        self.flushed_at: list[float] = []
        self.counts: Counter[str] = Counter()

    def add(self, ask: Ask) -> Ask:
        self.asks[ask.id] = ask
        return ask

    def child(self, ask: Ask, index: int) -> Ask:
        """Of a list."""
        rid = f"{ask.id}.{index}"
        if rid not in self.asks:
            made = Ask(rid, ask.text_of(index), timeout_s=ask.timeout_s, at=ask.made_at)
            made.tenant, made.accepted_at = ask.tenant, ask.accepted_at
            made.parent, made.was_crowded = ask, ask.was_crowded
            self.add(made)
        return self.asks[rid]

    def fault(self, message: str) -> None:
        self.broken.append(message)

    def accepted(self, ask: Ask, at: float) -> None:
        self.counts["accepted"] += 1
        if ask.accepted_at is None:
            ask.accepted_at = at

    def may_be_wiped(self, ask: Ask) -> bool:
        return any(at >= ask.made_at for at in self.flushed_at)

    def lost(self, ask: Ask, who: str) -> None:
        """Somebody who was waiting was told to send it again. So is whoever outstays the client that left."""
        if not ((ask.parent or ask).has_left or self.may_be_wiped(ask)):
            self.fault(f"{who} was told that {ask.id} was lost")

    def unknown(self, ask: Ask, who: str) -> None:
        """Somebody who asked after it was accepted was told that it was never there."""
        if ask.accepted_at is not None and not self.may_be_wiped(ask):
            self.fault(f"{ask.id} was accepted and is unknown to {who}")

    def ended(self, ask: Ask, who: str, outcome: Outcome) -> None:
        """A caller saw its end."""
        end = (outcome.state, outcome.code, outcome.token, outcome.ended_ms)
        self.counts[outcome.state if not outcome.code else outcome.code] += 1
        if ask.endings and not self.may_be_wiped(ask) and ask.endings[0][1] != end:
            self.fault(f"{ask.id} ended as {ask.endings[0]} and, for {who}, as {end}")
        ask.endings.append((who, end))

    def answered(self, ask: Ask, who: str, answer: Answer) -> None:
        self.ended(ask, who, answer.outcome)
        if not ask.n:
            self._check_text(ask, answer, ask.answer)

    def children(self, ask: Ask, who: str, answers: list[Answer | None]) -> None:
        """Of a list that has ended."""
        for index, answer in enumerate(answers):
            if answer is None:
                if not self.may_be_wiped(ask):
                    self.fault(f"{ask.id} ended before its child {index} (seen by {who})")
                continue
            child = self.child(ask, index)
            self.ended(child, who, answer.outcome)
            self._check_text(ask, answer, child.answer)

    def _check_text(self, ask: Ask, answer: Answer, text: str) -> None:
        if answer.outcome.state == "F":
            got = answer.body.text if answer.body else None
            if got is None and self.may_be_wiped(ask):
                return
            if got != text:
                self.fault(f"{answer.id} finished with the text {got!r}, expected was {text!r}")
