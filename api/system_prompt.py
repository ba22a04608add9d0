"""The stored system prompt: read, write, and the last known text while the broker is away.

The built-in default is not stored: it stands as long as nobody set one, and again after a reset.
"""

from __future__ import annotations

from shared.queue.producer import Producer

MAX_CHARS = 20_000


class SystemPrompts:
    def __init__(self, producer: Producer, default: str) -> None:
        self._producer = producer
        self._default = clean(default)

    @property
    def current(self) -> str:
        """What /predict puts before a prompt. An operator's empty text is kept: it is an empty turn."""
        stored = self.stored
        return self._default if stored is None else stored

    @property
    def stored(self) -> str | None:
        """What an operator set, at most a second old; None if there is none."""
        return self._producer.known_system_prompt[0]

    @property
    def version(self) -> int:
        return self._producer.known_system_prompt[1]

    async def write(self, text: str, by: str) -> str:
        """Returns the text as stored. Raises BrokerUnavailable."""
        stored = clean(text)
        await self._producer.set_system_prompt(stored, by)
        return stored

    async def reset(self, by: str) -> str:
        """As if nobody had ever set one; returns the default. Raises BrokerUnavailable."""
        await self._producer.set_system_prompt(None, by)
        return self._default


def clean(text: str) -> str:
    """Trimmed, then cut to 20,000 characters, as the first seed does."""
    return text.strip()[:MAX_CHARS]
