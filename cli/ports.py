"""Whether a port is free. Raises before anything is started where it is not."""

from __future__ import annotations

import errno
import socket

from shared.port_holder import holder


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
