"""Who listens on a port, in words for whoever finds it taken.

For the processes that have psutil: the command line and the workers.
"""

from __future__ import annotations


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
