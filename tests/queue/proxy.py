"""Between clients and the real broker: answers a call itself, or cuts the connection around it, where a test asks."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import hiredis

from shared.queue.loader import NAMES, load

SCRIPTS = {load(name).sha: name for name in NAMES}


class Cut(Enum):
    """BEFORE the server has the call; AFTER it has run it, in place of its reply; HOLD: silent from this call on."""

    BEFORE = 1
    AFTER = 2
    HOLD = 3


Fault = bytes | Cut | None
"""An error reply such as b"READONLY ..." in place of the server's; a cut; None lets the call through."""


def end_of(data: bytes | bytearray, at: int = 0) -> int | None:
    """Where the RESP2 value that begins at `at` ends; None while it is incomplete."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, size = data[at : at + 1], data[at + 1 : line]
    end = line + 2
    if kind == b"$" and size != b"-1":
        end += int(size) + 2
        return end if end <= len(data) else None
    for _ in range(int(size) if kind == b"*" else 0):
        inner = end_of(data, end)
        if inner is None:
            return None
        end = inner
    return end


def name_of(command: list[bytes]) -> str:
    """A script's name, else the command's."""
    word = command[0].decode().upper()
    if word == "EVALSHA":
        return SCRIPTS.get(command[1].decode(), word)
    if word == "EVAL":
        return SCRIPTS.get(hashlib.sha1(command[1]).hexdigest(), word)
    return word


class Proxy:
    """`on_call` is asked for each call, by name and arguments. `connections` counts those that were made."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._clients: set[asyncio.StreamWriter] = set()
        self._serving: list[asyncio.Task[None]] = []
        self.url = ""
        self.connections = 0
        self.calls: list[str] = []
        self.bytes_per_s = 0  # taken from the client; 0: as they come
        self.on_call: Callable[[str, list[bytes]], Fault] = lambda name, command: None

    def cut_all(self) -> None:
        for writer in self._clients:
            writer.transport.abort()

    def say(self, error: bytes) -> None:
        """To every client, unasked."""
        for writer in self._clients:
            writer.write(b"-" + error + b"\r\n")

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._clients.add(writer)
        tasks: list[asyncio.Task[None]] = []
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._target)
            ends.append(server_writer)
            owed: deque[Fault] = deque()
            ways = (
                self._forward(reader, server_writer, writer, owed),
                self._answer(server_reader, writer, owed),
            )
            tasks += map(asyncio.ensure_future, ways)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the server is away: so is what stands before it
        finally:
            self._clients.discard(writer)
            for task in tasks:
                task.cancel()
            for end in ends:
                end.transport.abort()
            closing = (end.wait_closed() for end in ends)
            await asyncio.gather(*tasks, *closing, return_exceptions=True)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        owed: deque[Fault],
    ) -> None:
        held = bytearray()
        is_silent = False
        while data := await reader.read(1 << 16):
            if self.bytes_per_s:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            held += data
            while not is_silent and (end := end_of(held)) is not None:
                raw = bytes(held[:end])
                del held[:end]
                fault = self._judge(raw)
                if fault is Cut.BEFORE:
                    return
                is_silent = fault is Cut.HOLD
                if is_silent:
                    break
                owed.append(fault)
                if isinstance(fault, bytes):
                    _settle(owed, client)
                else:
                    server.write(raw)
            await server.drain()

    def _judge(self, raw: bytes) -> Fault:
        reader = hiredis.Reader()
        reader.feed(raw)
        command: Any = reader.gets()
        name = name_of(command)
        self.calls.append(name)
        return self.on_call(name, command)

    async def _answer(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, owed: deque[Fault]
    ) -> None:
        held = bytearray()
        while data := await server.read(1 << 16):
            held += data
            while (end := end_of(held)) is not None:
                if owed.popleft() is Cut.AFTER:
                    return
                client.write(held[:end])
                del held[:end]
                _settle(owed, client)
            await client.drain()


def _settle(owed: deque[Fault], client: asyncio.StreamWriter) -> None:
    """Own replies go out in their turn."""
    while owed and isinstance(owed[0], bytes):
        client.write(b"-" + owed.popleft() + b"\r\n")  # type: ignore[operator]


@asynccontextmanager
async def proxy_to(target: Path, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """On a socket of its own in front of the server's; with `tls` on a port of the loopback, as a TLS terminator."""
    proxy = Proxy(str(target))
    with tempfile.TemporaryDirectory(prefix="sluice-p-") as folder:
        if tls is None:
            path = f"{folder}/p.sock"
            listening = await asyncio.start_unix_server(proxy.accept, path)
            proxy.url = f"unix://{path}"
        else:
            listening = await asyncio.start_server(proxy.accept, "127.0.0.1", 0, ssl=tls)
            proxy.url = f"rediss://localhost:{listening.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            listening.close()
            await proxy.close()
