"""What is asked for, and the answer that the simulated engine must give. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engines.simulated import CHARS, answer_to

PRIORITIES = ("interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked for, and the answer that the engine must give. `whole`: the text with the answers of others in
    it that it asks for, where it does.
    """

    text: str
    max_tokens: int
    ignore_eos: bool = False
    whole: str = ""

    @property
    def priority(self) -> str:
        """The same each time that it is asked: another body would be another request."""
        return PRIORITIES[len(self.text) % len(PRIORITIES)]

    @property
    def answer(self) -> str:
        """As `worker/engines/simulated.py` says: so many tokens of three characters, over again where it must go on."""
        whole, most = answer_to(self.whole or self.text), self.max_tokens * CHARS
        if self.ignore_eos:
            whole *= most // len(whole) + 1
        return whole[:most]
