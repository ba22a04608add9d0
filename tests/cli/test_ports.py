"""A busy port names its holder before anything is started."""

from __future__ import annotations

import os
import socket

import pytest

from cli.ports import PortError, check_free


def test_a_busy_port_names_the_process_that_holds_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortError, match=rf"port {port} is in use by pid {os.getpid()} \(.+\)"):
            check_free("127.0.0.1", port)


def test_a_port_whose_holder_just_left_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_RDWR)
    check_free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)) as again:
        assert again.getsockname()[1] == port


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(PortError, match=r"203\.0\.113\.1"):
        check_free("203.0.113.1", 8000)
    with pytest.raises(PortError, match=r"HOST=no.such.host.invalid is no address"):
        check_free("no.such.host.invalid", 8000)
