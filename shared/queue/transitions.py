"""The log of moves: one debug line for each move of a request between its states, said by the half that learns of it.

Causes are words of the code alone: no text of a client's or an engine's gets in here.
"""

from __future__ import annotations

import logging

from shared.status import ReqStatus

log = logging.getLogger(__name__)


def moved(rid: str, start: ReqStatus | None, to: ReqStatus, cause: str) -> None:
    """`start` None: it was not there before."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s: %s -> %s (%s)", rid, start.value if start else "nothing", to.value, cause)
