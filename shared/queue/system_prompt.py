"""The system prompt that an operator stored: in shard 0, with a version that every front door's tick tells."""

from __future__ import annotations

from shared.queue.line import Line
from shared.queue.scripts import Scripts


class StoredPrompt:
    """`known` is text and version as last heard of; text None: none is stored."""

    def __init__(self, line: Line, scripts: Scripts) -> None:
        self.known: tuple[str | None, int] = (None, 0)
        self._line = line
        self._scripts = scripts
        self._seen_version = -1

    async def read(self) -> tuple[str | None, int]:
        """Raises BrokerUnavailable."""
        key = self._scripts.keys.fixed("sys")
        text, version = await self._line.run(("HMGET", key, "t", "v"))
        self.known = (None if text is None else text.decode(), int(version or 0))
        return self.known

    async def write(self, text: str | None, by: str) -> int:
        """Store the next version, which for None says that there is none. Returns its number."""
        version = int((await self._line.run(self._scripts.set_prompt(text, by)))[0])
        self.known = (text, version)
        return version

    async def keep_up(self, version: int) -> None:
        """`version` is what a tick told: read what is new."""
        if version != self._seen_version:
            await self.read()
            self._seen_version = version
