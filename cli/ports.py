"""Whether a port is free, and who holds it if not."""

from __future__ import annotations

import errno
import socket


class PortError(Exception):
    """The address cannot be listened on; the text names the holder."""


def check_free(host: str, port: int) -> None:
    """Raises `PortError` where nothing could listen on the address now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise PortError(f"HOST={host} is no address of this machine: {error}") from error
    with socket.socket(family, kind, protocol) as probe:
        # As servers do it: a connection of an earlier run that is still winding down is no
        # obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise PortError(f"cannot listen on {host} port {port}: {error.strerror}") from error
            raise PortError(
                f"port {port} is in use by {holder(port)}: stop it, or choose another port "
                f"with `make up PORT={port + 1}`"
            ) from error


def holder(port: int) -> str:
    """`pid 123 (command line)` of who listens, as far as we may see it."""
    import psutil

    try:
        for link in psutil.net_connections("inet"):
            if link.laddr and link.laddr.port == port and link.status == psutil.CONN_LISTEN:
                return "a process of another user" if link.pid is None else describe(link.pid)
    except psutil.AccessDenied:  # macOS shows the connections of all processes to root alone
        return "another process"
    return "another process"


def describe(pid: int) -> str:
    import psutil

    try:
        words = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return f"pid {pid}"
    return f"pid {pid} ({words[:120]})" if words else f"pid {pid}"
