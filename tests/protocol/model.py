"""The protocol as plain Python: one method a script, with the arguments of its face in `shared/queue/scripts.py`.

It is an executable specification: each call changes the state and replies as the script on the real server must.
"""

from __future__ import annotations

from typing import Any

from tests.protocol.accepting import Accepting
from tests.protocol.clocked import Refused
from tests.protocol.ending import Ending
from tests.protocol.granting import Granting
from tests.protocol.reading import Reading
from tests.protocol.returning import Returning
from tests.protocol.upkeep import Upkeep


class Model(Accepting, Granting, Returning, Ending, Reading, Upkeep):
    """All scripts over one state."""

    def run(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """One script by its name; a full broker refuses those that need memory."""
        try:
            reply: list[Any] = getattr(self, name)(*args, **options)
        except Refused:
            reply = ["OOM"]
        return reply
