"""Keeps claims alive: beats from a thread of its own until each result is stored, and tells what was lost.

The thread goes on while the event loop is blocked; it stops renewing when the engine makes no progress,
so that the work of a wedged engine moves elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue.consumer import BeatReply, Consumer, Grant
from shared.worker_info import WorkerInfo, WorkerState

log = logging.getLogger(__name__)
BEAT_S = 1.0


class StallWatch:
    """Whether something has run for `limit_s` without the engine's progress figure moving."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._progress = -1
        self._since: float | None = None

    def is_stalled(self, now: float, progress: int, has_running: bool) -> bool:
        if not has_running or progress != self._progress or self._since is None:
            self._progress = progress
            self._since = now
            return False
        return now - self._since >= self._limit_s


class Leases:
    """`hold` what was claimed, `mark_started` what the engine has, `drop` what is stored or given back."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        info: Callable[[], WorkerInfo],
        progress: Callable[[], int],
        stall_limit_s: float,
        on_reply: Callable[[BeatReply], None],
        on_stalled: Callable[[float], None],
    ) -> None:
        """`on_reply` runs in the loop that called `start`; `on_stalled` in the beat thread, with the
        seconds since the stall was seen."""
        self._consumer = consumer
        self._info = info
        self._progress = progress
        self._watch = StallWatch(stall_limit_s)
        self._on_reply = on_reply
        self._on_stalled = on_stalled
        self._held: dict[str, tuple[str, bool]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._stalled_at: float | None = None
        self._failures = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """The last beat may still run; returns when the thread has ended."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._consumer.close_beats()

    @property
    def is_stalled(self) -> bool:
        return self._stalled_at is not None

    def hold(self, grants: Iterable[Grant]) -> None:
        with self._lock:
            self._held.update({grant.id: (grant.token, False) for grant in grants})

    def mark_started(self, ids: Sequence[str]) -> None:
        """Tells the broker at once: from here on a lost lease counts as a crash."""
        with self._lock:
            for rid in ids:
                if rid in self._held:
                    self._held[rid] = (self._held[rid][0], True)
        self.beat_now()

    def drop(self, rid: str) -> None:
        with self._lock:
            self._held.pop(rid, None)

    def beat_now(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._is_over:
            self._beat()
            self._wake.wait(BEAT_S)
            self._wake.clear()

    def _beat(self) -> None:
        with self._lock:
            held = dict(self._held)
        now = time.monotonic()
        has_running = any(started for _, started in held.values())
        if self._watch.is_stalled(now, self._progress(), has_running):
            if self._stalled_at is None:
                self._stalled_at = now
                log.error("the engine makes no progress; leases are no longer renewed")
            self._on_stalled(now - self._stalled_at)
            held = {}
        elif self._stalled_at is not None:
            self._stalled_at = None
            log.warning("the engine goes on")
        info = self._info()
        if self.is_stalled:
            info = msgspec.structs.replace(info, state=WorkerState.STALLED)
        try:
            reply = self._consumer.beat(held, info)
        except BrokerUnavailable as error:
            self._failures += 1
            if self._failures == 1 or self._failures % 30 == 0:
                log.warning("a beat did not get through (%d in a row): %s", self._failures, error)
            return
        except Exception:
            log.exception("a beat failed")
            return
        self._failures = 0
        if self._loop is not None and not self._loop.is_closed() and not self.is_stalled:
            try:
                self._loop.call_soon_threadsafe(self._on_reply, reply)
            except RuntimeError:
                log.debug("the loop closed before the last beat's reply")
