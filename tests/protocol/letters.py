"""The model of dead letters: what was given up for good is kept with its payload, bounded by bytes."""

from __future__ import annotations

from shared.request import Outcome
from tests.protocol.clocked import Clocked
from tests.protocol.state import Letter, size_of

OLDEST_A_CALL = 8


class Letters(Clocked):
    def drop_letter(self, letter: str) -> list[str]:
        if letter not in self.letter_ids:
            return ["GONE"]
        self.take_letter(self.letter_ids.index(letter))
        return ["OK"]

    def keep_letter(self, rid: str, payload: bytes, outcome: Outcome, max_bytes: int) -> None:
        """The oldest go first, this one too where it is too large by itself."""
        letters = self.state.letters
        if not letters:
            self.state.stat["dlq_bytes"] = 0
        letters.append(Letter(rid, payload, outcome))
        self.count("dlq_bytes", size_of(letters[-1]))
        for _ in range(OLDEST_A_CALL):
            if self.state.stat["dlq_bytes"] > max_bytes:
                self.take_letter(0)

    def take_letter(self, index: int) -> None:
        self.count("dlq_bytes", -size_of(self.state.letters.pop(index)))
