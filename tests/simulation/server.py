"""The broker of a simulation: every command runs on the real server, at the simulation's time and in its order.

Blocking reads are kept here, since the real server would block us. What a whole broker suffers is here too: away,
stopped, refusing, wiped, its clock stepped.
"""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import hiredis

from shared.queue.loader import NAMES, load
from tests.simulation.loop import VirtualLoop

START_MS = 1_800_000_000_000
OUT_LIFE_S = 60.0
_ALL = [load(name) for name in NAMES]
_ALL += [script.several for script in _ALL if script.several is not None]
# By what EVALSHA and EVAL name them.
SCRIPTS = {s.sha.encode(): s.name for s in _ALL} | {s.source.encode(): s.name for s in _ALL}
FULL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
# Replies by which a server turns every call away for a while.
TURNED_AWAY = {
    "loading": b"-LOADING the dataset is being loaded\r\n",
    "readonly": b"-READONLY You can't write against a read only replica.\r\n",
    "busy": b"-BUSY the server is busy running a script\r\n",
}
# Scripts that a full server refuses: all others say allow-oom.
GROWING = frozenset(s.name for s in _ALL if "allow-oom" not in s.source.partition("\n")[0])

Command = list[bytes]
Answer = Callable[[bytes], None]


class Peer(Protocol):
    """The server's end of a connection."""

    name: str

    def answer(self, raw: bytes) -> None: ...

    def reset(self) -> None:
        """The server closes it."""
        ...


class Parked:
    """A blocking read that found nothing. `look` tries it on some of its keys, and takes out the empty ones."""

    def __init__(
        self,
        peer: Peer,
        keys: list[bytes],
        look: Callable[[set[bytes]], bytes | None],
        answer: Answer,
    ) -> None:
        self.peer = peer
        self.keys = keys
        self.look = look
        self.answer = answer
        self.timer: Any = None


class SimServer:
    def __init__(self, socket_path: str, loop: VirtualLoop, say: Callable[..., None]) -> None:
        self._loop = loop
        self._say = say
        self._real = socket.socket(socket.AF_UNIX)
        self._real.connect(socket_path)
        self._parked: list[Parked] = []
        self._peers: dict[Peer, None] = {}
        self._ticked: dict[bytes, float] = {}
        self._backlog: deque[tuple[Peer, Command, Answer]] = deque()
        # What came behind a blocking read, which its connection runs when that is over.
        self._behind: dict[Peer, deque[tuple[Command, Answer]]] = {}
        self._skew_ms = 0
        self.commands = 0
        # What came a second time, by what it is.
        self.repeats: Counter[str] = Counter()
        # By shard and worker: its last claim.
        self.claims: dict[tuple[bytes, bytes], Command] = {}
        self._accepted: set[bytes] = set()
        self.is_away = False
        self.is_stopped = False
        self.is_full = False
        self.turned_away: str | None = None
        self.run_real([b"FLUSHALL"])
        self.run_real([b"SCRIPT", b"FLUSH"])

    def close(self) -> None:
        self._real.close()

    @property
    def now_ms(self) -> int:
        """What its TIME would say."""
        return START_MS + int(self._loop.now * 1000) + self._skew_ms

    # --- connections

    def accept(self, peer: Peer) -> None:
        """Raises ConnectionRefusedError."""
        if self.is_away:
            raise ConnectionRefusedError("the broker is away")
        self._peers[peer] = None

    def forget(self, peer: Peer) -> None:
        """The client has closed it, and the server has noticed."""
        self._peers.pop(peer, None)
        self._behind.pop(peer, None)
        for parked in [p for p in self._parked if p.peer is peer]:
            self._unpark(parked)

    # --- commands

    def take(self, peer: Peer, command: Command, answer: Answer) -> None:
        """Runs it; a blocking one answers later, as does all while the server is stopped."""
        if self.is_stopped:
            self._backlog.append((peer, command, answer))
            return
        if peer in self._behind or any(parked.peer is peer for parked in self._parked):
            self._behind.setdefault(peer, deque()).append((command, answer))
            return
        name = command[0].upper()
        if self.turned_away and name not in (b"CLIENT", b"SCRIPT"):
            answer(TURNED_AWAY[self.turned_away])
        elif name == b"XREAD":
            self._read(peer, command, answer)
        elif name == b"BZPOPMIN":
            self._pop(peer, command, answer)
        else:
            answer(self._run(command))
            self._serve(command)

    def _run(self, command: Command) -> bytes:
        if command[0] in (b"EVALSHA", b"EVAL"):
            name = SCRIPTS.get(command[1], "")
            if self.is_full and name in GROWING:
                return FULL
            self._expire()
            at = 3 + int(command[2])
            if command[at] == b"0":
                command[at] = b"%d" % self.now_ms
            if name == "tick" and int(command[2]) > 2:
                self._ticked[command[at - 1]] = self._loop.now
            if name in ("claim", "submit", "submit, several"):
                return self._note(name, command, at)
        return self.run_real(command)

    def _note(self, name: str, command: Command, at: int) -> bytes:
        raw = self.run_real(command)
        if name.startswith("submit"):
            rids = set(_submitted(command[at:], raw))
            self.repeats["submitted again"] += len(rids & self._accepted)
            self._accepted |= rids
        elif not raw.startswith(b"-"):
            worker, number = command[at + 1 : at + 3]
            before = self.claims.get((command[3], worker))
            self.repeats["claims repeated"] += before is not None and before[at + 2] == number
            self.claims[command[3], worker] = list(command)
        return raw

    def run_late(self, claim: Command) -> None:
        """A copy that the network held back; who sent it has long had its answer."""
        claim[3 + int(claim[2])] = b"%d" % self.now_ms
        self.run_real(claim)

    def run_real(self, command: Command) -> bytes:
        """The reply as it travels."""
        self.commands += 1
        pack: Any = hiredis.pack_command
        self._real.sendall(pack(tuple(command)))
        reader: Any = hiredis.Reader()
        raw = b""
        while True:
            data = self._real.recv(1 << 20)
            if not data:
                raise ConnectionError("the real server is gone")
            raw += data
            reader.feed(data)
            if reader.gets() is not False:
                return raw

    def _expire(self) -> None:
        """Result streams live by the clock of the simulation: the real server's stands still beside it."""
        for key, at in list(self._ticked.items()):
            if self._loop.now - at > OUT_LIFE_S:
                del self._ticked[key]
                self.run_real([b"DEL", key])

    # --- blocking reads

    def _read(self, peer: Peer, command: Command, answer: Answer) -> None:
        words = [part.upper() for part in command]
        block = words.index(b"BLOCK")
        plain = command[:block] + command[block + 2 :]
        streams = command[words.index(b"STREAMS") + 1 :]

        def look(keys: set[bytes]) -> bytes | None:
            raw = self.run_real(plain)
            return None if raw == b"*-1\r\n" else raw

        keys = streams[: len(streams) // 2]
        self._park(Parked(peer, keys, look, answer), int(command[block + 1]) / 1000)

    def _pop(self, peer: Peer, command: Command, answer: Answer) -> None:
        def look(keys: set[bytes]) -> bytes | None:
            for key in command[1:-1]:
                if key in keys:
                    raw = self.run_real([b"ZPOPMIN", key])
                    if raw != b"*0\r\n":
                        return b"*3\r\n$%d\r\n%s\r\n%s" % (len(key), key, raw.split(b"\r\n", 1)[1])
                    keys.discard(key)
            return None

        self._park(Parked(peer, command[1:-1], look, answer), float(command[-1]))

    def _park(self, parked: Parked, block_s: float) -> None:
        raw = parked.look(set(parked.keys))
        if raw is not None:
            parked.answer(raw)
            return

        def over() -> None:
            self._unpark(parked)
            parked.answer(b"*-1\r\n")
            self._go_on_behind(parked.peer)

        parked.timer = self._loop.call_at(self._loop.now + block_s, over)
        self._parked.append(parked)

    def _unpark(self, parked: Parked) -> None:
        parked.timer.cancel()
        if parked in self._parked:
            self._parked.remove(parked)

    def _serve(self, command: Command) -> None:
        """Those who wait for a key that this command declared, longest first."""
        if not self._parked:
            return
        touched = set(command[1:])  # less what is found to be empty
        served: list[Peer] = []
        for parked in list(self._parked):
            if touched.isdisjoint(parked.keys):
                continue
            raw = parked.look(touched)
            if raw is not None:
                self._unpark(parked)
                parked.answer(raw)
                served.append(parked.peer)
        for peer in served:
            self._go_on_behind(peer)

    def _go_on_behind(self, peer: Peer) -> None:
        """Until the connection blocks again."""
        waiting = self._behind.pop(peer, None)
        while waiting:
            self.take(peer, *waiting.popleft())
            if waiting and any(parked.peer is peer for parked in self._parked):
                self._behind[peer] = waiting
                return

    # --- what a broker suffers

    def go_away(self) -> None:
        """As when it is restarted: what it holds stays, every connection breaks."""
        self.is_away = True
        for peer in list(self._peers):
            peer.reset()
        for parked in list(self._parked):
            self._unpark(parked)
        self._peers.clear()
        self._behind.clear()
        self._backlog.clear()

    def come_back(self) -> None:
        self.is_away = False
        self.run_real([b"SCRIPT", b"FLUSH"])

    def stop(self) -> None:
        """SIGSTOP: it accepts, and answers nothing until `go_on`."""
        self.is_stopped = True

    def go_on(self) -> None:
        """What has gathered runs now, also that of clients that have given up since."""
        self.is_stopped = False
        backlog, self._backlog = self._backlog, deque()
        for peer, command, answer in backlog:
            self.take(peer, command, answer)

    def step_clock(self, ms: int) -> None:
        self._skew_ms += ms

    def unblock(self, chance: random.Random) -> None:
        """As a failover does to who is blocked."""
        if self._parked:
            parked = chance.choice(self._parked)
            self._unpark(parked)
            parked.peer.answer(b"-UNBLOCKED force unblock from blocking operation\r\n")
            self._go_on_behind(parked.peer)


def _submitted(args: Command, raw: bytes) -> list[bytes]:
    """What a submit, or several in one command, has put into the queue."""
    reader: Any = hiredis.Reader()
    reader.feed(raw)
    reply = reader.gets()
    if not isinstance(reply, list):
        return []
    if not isinstance(reply[0], list):
        return [args[1]] if reply[0] == b"OK" else []
    rids, at = [], 2
    for one in reply:
        if isinstance(one, list) and one[0] == b"OK":
            rids.append(args[at + 2])
        at += 2 + int(args[at + 1])
    return rids
