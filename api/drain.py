"""Whether this process is on its way out, and from when on it lets go of those who still wait."""

from __future__ import annotations

import asyncio

from shared.errors import Draining

# A caller that is let go waits so long at most until the broker knows that its request goes on without it.
CARRY_ON_S = 2.0


class Drain:
    """From `begin` nothing new is accepted; `over` is done once the grace for waiting callers has passed.

    Their requests stay in the queue: only the connection is given up.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._over: asyncio.Future[None] | None = None
        self.has_begun = False

    @property
    def over(self) -> asyncio.Future[None]:
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
        return self._over

    def begin(self) -> None:
        """Call it in the event loop's thread."""
        if not self.has_begun:
            self.has_begun = True
            asyncio.get_running_loop().call_later(self._grace_s, self._end)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def check(self) -> None:
        if self.has_begun:
            raise Draining(
                "this front door is stopping; another one, or this one restarted, will serve"
            )
