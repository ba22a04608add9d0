"""`down`: asks the `up` that owns the data folder to stop, and waits until nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from cli import processes
from cli.data_folder import DataFolder, Owner
from cli.records import end_leftovers

LOOK_EVERY_S = 0.1
SAY_EVERY_S = 5.0


def stop(path: Path, say: Callable[[str], None]) -> None:
    """Returns when nothing runs. Nothing to stop is no error."""
    folder = DataFolder(path)
    owner = folder.owner()
    if owner is not None:
        say(f"stopping (pid {owner.pid}); what has begun is finished first")
        os.kill(owner.pid, signal.SIGTERM)
        wait_for(owner, say)
    if not folder.records():
        say("stopped" if owner is not None else "nothing runs")
        return
    # An `up` that was killed may have left something, and nobody else looks after it.
    with folder:
        left = end_leftovers(folder.records())
        say(f"stopped what was left: {', '.join(left)}" if left else "stopped")


def wait_for(owner: Owner, say: Callable[[str], None]) -> None:
    said_at = time.monotonic()
    while processes.identity(owner.pid) == owner.mark:
        if time.monotonic() - said_at >= SAY_EVERY_S:
            said_at = time.monotonic()
            say("still draining…")
        time.sleep(LOOK_EVERY_S)
