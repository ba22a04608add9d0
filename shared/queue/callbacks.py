"""Who is told of a request's end without waiting for it: one call for each submit that asked. No I/O of its own.

The second seed keeps a callback in its request. A request here travels to another process, so the callback stays
with the half that submitted it, behind the same waiter that serves `Producer.wait`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial

from shared.errors import SluiceError
from shared.queue.waiters import Answer, Waiters

log = logging.getLogger(__name__)
# Gets the answer (finished, cancelled or error), or an error where the broker lost it, holds what cannot be read, or
# this process stops first. Called once, in the event loop and outside of any lock, so it must not block; what it raises
# is logged and goes no further.
Callback = Callable[[Answer | SluiceError], object]


class Callbacks:
    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters

    def add(self, rid: str, callback: Callback) -> None:
        """Call it once at the end of a watched id, at once if that is over.

        It counts as a reader of its own, so a lost notice costs it time alone, as it does a waiting caller.
        """
        waiter = self._waiters.add(rid)
        waiter.future.add_done_callback(partial(self._call, rid, callback))

    def _call(self, rid: str, callback: Callback, future: asyncio.Future[Answer]) -> None:
        self._waiters.remove(rid)
        error = future.exception()
        assert error is None or isinstance(error, SluiceError)
        try:
            callback(future.result() if error is None else error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            log.exception("the callback of %s failed", rid)


def check(callback: Callback | None) -> None:
    """Raises TypeError for a coroutine function, which nobody would await."""
    if callback is None:
        return
    if any(map(inspect.iscoroutinefunction, (callback, type(callback).__call__))):
        raise TypeError("a callback is called and not awaited: it must be no coroutine function")
