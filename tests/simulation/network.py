"""Connections between simulated processes and the broker, and what becomes of each call on its way.

A connection keeps order in each direction, as TCP does; between connections there is none. The client's end is an
asyncio transport, so that everything above it (redis-py's connecting, `Wire`, `Line`, readers) is the product's.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import hiredis
import redis

from tests.simulation.loop import HOST, Host, VirtualLoop
from tests.simulation.server import SCRIPTS, Command, SimServer
from tests.simulation.threads import current

TINY_S = 1e-6
SPLIT_RATE = 0.02  # replies that come in two pieces


class Fate(Enum):
    """`late`: silence, and the call runs long after its caller has given it up, as of a server that was stopped.
    `cut`: half of the reply comes.
    """

    deliver = auto()
    drop_request = auto()
    drop_reply = auto()
    cut = auto()
    mute = auto()
    late = auto()


class Weather:
    """What the network does, drawn call by call. `quiet` ends all faults."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.fault_rate = 0.0
        self.slow_rate = 0.0
        self.slow_s = 0.0
        self.base_s = 0.0005
        # Scripts that have a worse time than others: how often they fail, and how often they are slow.
        self.worse: dict[str, float] = {}
        self.slower: dict[str, float] = {}
        # Scripts that run, and whose replies are lost.
        self.unheard: set[str] = set()

    def quiet(self) -> None:
        self.fault_rate = self.slow_rate = 0.0
        self.worse = {}
        self.slower = {}
        self.unheard = set()

    def fate(self, name: str) -> Fate:
        if name in self.unheard:
            return Fate.drop_reply
        rate = self.worse.get(name, self.fault_rate)
        if self.chance.random() >= rate:
            return Fate.deliver
        return self.chance.choice(
            (
                Fate.drop_request,
                Fate.drop_reply,
                Fate.drop_reply,
                Fate.cut,
                Fate.mute,
                Fate.late,
            )
        )

    def delay_s(self, name: str = "") -> float:
        draw = self.chance.random()
        if draw < self.slower.get(name, self.slow_rate):
            return self.slow_s * self.chance.random()
        return self.base_s * (0.2 + draw)


class Network:
    def __init__(
        self, server: SimServer, weather: Weather, loop: VirtualLoop, say: Callable[..., None]
    ) -> None:
        self.server = server
        self.weather = weather
        self.loop = loop
        self.say = say
        self.faults = 0
        self.busy_until = 0.0  # the last that is on its way has arrived
        # What is under way is nobody's any more: it arrives though its sender has vanished.
        self.context = contextvars.copy_context()
        self._count = 0

    def link(self, on_data: Callable[[bytes], None], on_lost: Callable[[Exception], None]) -> Link:
        """Raises OSError where there is nobody to connect to."""
        host = HOST.get()
        if host is not None and host.is_ghost:
            raise ConnectionRefusedError("a process that is no more")
        self._count += 1
        link = Link(self, host, f"{host.name if host else '?'}#{self._count}", on_data, on_lost)
        self.server.accept(link)
        if host is not None:
            host.links[link] = None
        return link

    async def connect(self, protocol_factory: Callable[[], Any]) -> tuple[Any, Any]:
        await asyncio.sleep(self.weather.delay_s())
        protocol = protocol_factory()
        transport = SimTransport(self, protocol)
        protocol.connection_made(transport)
        return transport, protocol


class Link:
    """One connection, both ends."""

    def __init__(
        self,
        net: Network,
        host: Host | None,
        name: str,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.name = name
        self._net = net
        self._host = host
        self._on_data = on_data
        self._on_lost = on_lost
        self._context = contextvars.copy_context()  # of whoever connects
        self._requests: Any = hiredis.Reader()
        self._request_at = self._reply_at = 0.0
        self._is_closed = False  # by the client
        self._is_reset = False  # by the server, or on the way
        self._is_mute = False  # nothing comes back any more
        self._late_s = 0.0

    # --- the client's end

    def send(self, data: bytes) -> None:
        self._requests.feed(data)
        while (command := self._requests.gets()) is not False:
            if not (self._is_closed or self._is_reset):
                self._dispatch(command)

    def close(self) -> None:
        """The server notices a little later; what was sent is not called back."""
        if not self._is_closed:
            self._is_closed = True
            net, at = self._net, self._net.loop.now + self._net.weather.delay_s()
            net.loop.call_at(at, net.server.forget, self, context=net.context)
            if self._host is not None:
                self._host.links.pop(self, None)

    def _dispatch(self, command: Command) -> None:
        net, loop = self._net, self._net.loop
        name = name_of(command)
        fate = net.weather.fate(name)
        if fate is not Fate.deliver:
            net.faults += 1
        if fate is Fate.late:
            self._late_s = max(self._late_s, net.weather.chance.uniform(1.0, 8.0))
        delay_s = net.weather.delay_s(name) + self._late_s
        self._request_at = max(self._request_at + TINY_S, loop.now + delay_s)
        net.busy_until = max(net.busy_until, self._request_at)
        loop.call_at(self._request_at, self._arrive, name, command, fate, context=net.context)

    # --- the server's end

    def _arrive(self, name: str, command: Command, fate: Fate) -> None:
        if self._is_reset or self._net.server.is_away:
            return
        if fate is Fate.drop_request:
            self._net.say(self.name, f"{name}: lost on its way there")
            self._break()
            return
        if fate is Fate.late:
            self._is_mute = True
            self._net.say(self.name, f"{name}: comes late")
        self._net.server.take(self, command, lambda raw: self._reply(name, raw, fate))

    def answer(self, raw: bytes) -> None:
        self._reply("", raw, Fate.deliver)

    def _reply(self, name: str, raw: bytes, fate: Fate) -> None:
        shown = "" if fate is Fate.deliver else f" ({fate.name})"
        self._net.say(self.name, f"{name} -> {verdict(raw)}{shown}")
        if fate is Fate.mute:
            self._is_mute = True
        if self._is_reset or self._is_mute:
            return
        if fate is Fate.drop_reply:
            # What was sent behind it runs all the same, and is not answered either.
            self._is_mute = True
            self._later(self._lose)
            return
        if fate is Fate.cut:
            self._later(self._deliver, raw[: len(raw) // 2])
            self._is_mute = True
            self._later(self._lose)
            return
        if self._net.weather.chance.random() < SPLIT_RATE:
            middle = len(raw) // 2
            self._later(self._deliver, raw[:middle])
            raw = raw[middle:]
        self._later(self._deliver, raw, name=name)

    def reset(self) -> None:
        if not self._is_reset:
            self._break()

    def _break(self) -> None:
        self._is_reset = True
        self._net.server.forget(self)
        self._later(self._lose)

    def _later(self, callback: Callable[..., None], *args: Any, name: str = "") -> None:
        loop = self._net.loop
        delay_s = self._net.weather.delay_s(name)
        self._reply_at = max(self._reply_at + TINY_S, loop.now + delay_s)
        loop.call_at(self._reply_at, callback, *args, context=self._context)

    # --- what comes back, in the client's process

    def _deliver(self, data: bytes) -> None:
        if not self._is_closed:
            self._on_data(data)

    def _lose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._host is not None:
                self._host.links.pop(self, None)
            self._on_lost(ConnectionResetError("the connection broke"))


class SimTransport(asyncio.Transport):
    def __init__(self, net: Network, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol
        self._is_closing = False
        self._link = net.link(self._on_data, self._on_lost)

    def _on_data(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def _on_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._protocol.connection_lost(error)

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._link.send(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.close()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None


class ThreadClient:
    """What redis-py's blocking client is to `SyncLine`, for a stepped thread."""

    def __init__(self, net: Network, timeout_s: float) -> None:
        self._net = net
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._replies: Any = None
        self._lost: Exception | None = None
        self.connection_pool = self

    def execute_command(self, *command: Any) -> Any:
        thread, loop = current(), self._net.loop
        is_waiting = True

        def wake(*_: Any) -> None:
            if is_waiting:
                thread.wake()

        def on_data(data: bytes) -> None:
            self._replies.feed(data)
            wake()

        def on_lost(error: Exception) -> None:
            self._lost = error
            wake()

        if self._link is None:
            self._replies = hiredis.Reader(replyError=redis.ResponseError)
            self._lost = None
            self._link = self._net.link(on_data, on_lost)
        else:
            self._link._on_data, self._link._on_lost = on_data, on_lost
        self._link.send(hiredis.pack_command(command))
        is_over = False

        def give_up() -> None:
            nonlocal is_over
            is_over = True
            wake()

        timer = loop.call_at(loop.now + self._timeout_s, give_up, context=thread.context)
        try:
            while (reply := self._replies.gets()) is False:
                if self._lost is not None:
                    raise redis.ConnectionError("the connection broke") from self._lost
                if is_over:
                    raise redis.TimeoutError("no answer")
                thread.pause()
        finally:
            is_waiting = False
            timer.cancel()
        if isinstance(reply, redis.ResponseError):
            if str(reply).startswith("NOSCRIPT"):
                raise redis.exceptions.NoScriptError(str(reply))
            raise reply
        return reply

    def disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    close = disconnect


def name_of(command: Command) -> str:
    if command[0] in (b"EVALSHA", b"EVAL"):
        return SCRIPTS.get(command[1], "?")
    return command[0].decode()


def verdict(raw: bytes) -> str:
    """The first word of a reply, without what differs from run to run."""
    if raw.startswith(b"-"):
        return raw[1:40].split(b"\r\n")[0].decode()
    reader: Any = hiredis.Reader()
    reader.feed(raw)
    reply = reader.gets()
    if isinstance(reply, list):
        if reply and isinstance(reply[0], bytes) and reply[0].isalpha():
            return f"{reply[0].decode()} ({len(reply)})"
        return f"({len(reply)})"
    return type(reply).__name__
