"""The model of dead letters: what was given up for good is kept with its payload, bounded by bytes."""

from __future__ import annotations

from shared.request import Outcome
from tests.protocol.clocked import Clocked
from tests.protocol.state import Letter, size_of

OLDEST_A_CALL = 256


class Letters(Clocked):
    def drop_letter(self, letter: str) -> list[str]:
        if letter not in self.letter_ids:
            return ["GONE"]
        self.take_letter(self.letter_ids.index(letter))
        return ["OK"]

    def keep_letter(self, rid: str, payload: bytes, outcome: Outcome, max_bytes: int) -> None:
        """The oldest make room for it; one that finds none is not kept."""
        letters, letter = self.state.letters, Letter(rid, payload, outcome)
        size = size_of(letter)
        if size > max_bytes:
            return
        kept, must_go = self.count("dlq_bytes", 0), 0
        while must_go < len(letters) and kept + size > max_bytes:
            kept -= size_of(letters[must_go])
            must_go += 1
        if must_go > OLDEST_A_CALL:
            return
        for _ in range(must_go):
            self.take_letter(0)
        if not letters:
            self.state.stat["dlq_bytes"] = 0
        letters.append(letter)
        self.count("dlq_bytes", size)

    def take_letter(self, index: int) -> None:
        self.count("dlq_bytes", -size_of(self.state.letters.pop(index)))
