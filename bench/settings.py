"""The environment that measured processes run in: the user's, without settings that would change what is measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Blank means absent to every part of Sluice: a key, a broker or a port of the user's own service has no place here.
ABSENT = (
    "API_KEYS",
    "ADMIN_TOKEN",
    "REDIS_URL",
    "QUEUE_NAME",
    "BROKER_PORT",
    "WORKER_ID",
    "WORKERS",
    "DURABILITY",
)
PEER_BROKER = "BENCH_PEER_BROKER"


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """`own` stands over everything. The checkout is found from any working directory."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **dict.fromkeys(ABSENT, ""), "PYTHONPATH": path, **own}


def api_key() -> str | None:
    """With which a service that is there is asked: one of its API_KEYS, as in the examples."""
    return os.environ.get("SLUICE_API_KEY") or None


def peer_broker() -> str:
    """The broker's address, for the processes of a peer; a command line can be read by everybody."""
    return os.environ[PEER_BROKER]
