"""A socket in front of the broker that can fail as networks do: cut, cut after some bytes, stall, swallow replies.
It may stall at a command, too, so that a process is caught in the middle of what it does.

Knows no protocol: what is cut is cut anywhere, in the middle of a command or of a reply.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

CHUNK = 65_536


class Link:
    """One connection through the proxy: two directions, which end together."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._ends = (client, broker)
        self.swallows = False
        self.left: dict[
            bool, int
        ] = {}  # bytes until the cut, of replies (True) or commands (False)

    def take(self, data: bytes, *, is_reply: bool) -> tuple[bytes, bool]:
        """What of it goes on, and whether the connection ends after that."""
        if is_reply and self.swallows:
            return b"", False
        if is_reply not in self.left:
            return data, False
        passed = data[: self.left[is_reply]]
        self.left[is_reply] -= len(passed)
        return passed, self.left[is_reply] == 0

    def close(self) -> None:
        for end in self._ends:
            end.transport.abort()


class Proxy:
    """Listens at `path`; each connection goes on to the broker's socket."""

    def __init__(self, path: Path, broker: Path) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self._broker = broker
        self._links: dict[Link, None] = {}
        self._flows = asyncio.Event()
        self._flows.set()
        self._mark = b""
        self._marked: asyncio.Future[bytes] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    # --- faults; each returns how many connections it struck

    def cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.close()
        return len(links)

    def cut_after(self, n_bytes: int, *, replies: bool) -> int:
        """Those that are open now, each once that much more has passed."""
        for link in self._links:
            link.left[replies] = n_bytes
        return len(self._links)

    def swallow(self) -> int:
        """Commands go through, and no reply comes back: until `cut`, after which a new connection works."""
        for link in self._links:
            link.swallows = True
        return len(self._links)

    def stall(self) -> int:
        """Not a byte passes, new connections included, until `resume`."""
        self._flows.clear()
        return len(self._links)

    def stall_at(self, mark: bytes) -> asyncio.Future[bytes]:
        """As `stall`, once commands that hold these bytes have passed; what passed, from there on. Whoever waits no
        longer cancels it.
        """
        self._mark, self._marked = mark, asyncio.get_running_loop().create_future()
        return self._marked

    def resume(self) -> None:
        self._flows.set()

    def _look_for_mark(self, commands: bytes) -> None:
        if self._marked is None or self._marked.done():
            return
        at = commands.find(self._mark)
        if at >= 0:
            self.stall()
            self._marked.set_result(commands[at:])

    # --- carrying

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the broker is away, or the run is over: to the client it is a lost connection
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_unix_connection(self._broker)
        link = Link(writer, broker_writer)
        self._links[link] = None
        try:
            pumps = [
                asyncio.create_task(self._pump(link, reader, broker_writer, is_reply=False)),
                asyncio.create_task(self._pump(link, broker_reader, writer, is_reply=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            del self._links[link]
            link.close()

    async def _pump(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_reply: bool,
    ) -> None:
        while data := await reader.read(CHUNK):
            await self._flows.wait()
            passed, is_over = link.take(data, is_reply=is_reply)
            if passed:
                writer.write(passed)
                if not is_reply:
                    self._look_for_mark(passed)
                await writer.drain()
            if is_over:
                return
