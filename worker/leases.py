"""Keeps claims alive: beats from a thread of its own until each result is stored, and tells what was lost.

The thread goes on while the event loop is blocked; it stops renewing when the engine makes no progress,
so that the work of a wedged engine moves elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue.claiming import Grant
from shared.queue.consumer import BeatReply, Consumer
from shared.worker_info import WorkerInfo, WorkerState

log = logging.getLogger(__name__)
BEAT_S = 1.0
BEATS_A_LEASE = 5  # at least, so that one that is lost costs nothing
# What ends sooner costs no beat: each takes a thread switch, and the broker's time.
STARTED_SOON_S = 0.02
TIMER_STEP_S = 0.001  # of uvloop: a timer may come that much early


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


class _Held:
    """One claim. `is_told`: the broker knows that it has started; `is_running`: the engine has it now."""

    __slots__ = ("has_started", "is_running", "is_told", "started_at", "token")

    def __init__(self, token: str) -> None:
        self.token = token
        self.has_started = False
        self.started_at = 0.0
        self.is_told = False
        self.is_running = False


class Leases:
    """`hold` what was claimed, `mark_started` what the engine has, `mark_ended` what it has no more, `drop`
    what is stored or given back."""

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
        self._beat_s = min(BEAT_S, consumer.lease_s / BEATS_A_LEASE)
        self._info = info
        self._progress = progress
        self._watch = StallWatch(stall_limit_s)
        self._on_reply = on_reply
        self._on_stalled = on_stalled
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._stalled_at: float | None = None
        self._is_tell_due = False
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
            self._held.update({grant.id: _Held(grant.token) for grant in grants})

    def mark_started(self, grants: Sequence[Grant]) -> None:
        """Told to the broker within moments: from then on a lost lease counts as a crash."""
        now = time.monotonic()
        for held in self._find(grants):
            held.has_started = held.is_running = True
            held.started_at = now
        if not self._is_tell_due:
            self._tell_in(STARTED_SOON_S)

    def _tell_in(self, seconds: float) -> None:
        if self._loop is not None:
            self._is_tell_due = True
            self._loop.call_later(seconds, self._tell_started)

    def _tell_started(self) -> None:
        """Each is told when it has run for so long itself: under load something has always just begun."""
        self._is_tell_due = False
        if (oldest := self._untold_since()) is None:
            return
        left_s = oldest + STARTED_SOON_S - time.monotonic()
        if left_s > 0:
            self._tell_in(left_s + TIMER_STEP_S)
        else:
            self._wake.set()

    def mark_ended(self, grant: Grant) -> None:
        """The engine has answered; the lease is needed until the answer is stored."""
        for held in self._find([grant]):
            held.is_running = False

    def drop(self, grant: Grant) -> None:
        """A later claim of the same request by this worker stays."""
        with self._lock:
            if self._is_held(grant.id, grant.token):
                del self._held[grant.id]

    def _is_held(self, rid: str, token: str) -> bool:
        held = self._held.get(rid)
        return held is not None and held.token == token

    def _find(self, grants: Iterable[Grant]) -> list[_Held]:
        with self._lock:
            return [self._held[g.id] for g in grants if self._is_held(g.id, g.token)]

    def beat_now(self) -> None:
        """For what must be told now, such as another state."""
        self._wake.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_over:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            if not self._is_over:
                due = time.monotonic() + self._beat_s
                self._beat()

    def _untold_since(self) -> float | None:
        with self._lock:
            untold = [h.started_at for h in self._held.values() if h.has_started and not h.is_told]
        return min(untold, default=None)

    def _beat(self) -> None:
        with self._lock:
            kept = dict(self._held)
        held = {rid: (h.token, h.has_started) for rid, h in kept.items()}
        now = time.monotonic()
        has_running = any(h.is_running for h in kept.values())
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
        for rid, (_, has_started) in held.items():
            kept[rid].is_told = has_started
        if not (reply.lost or reply.orphaned or reply.draining) or self.is_stalled:
            return
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._deliver, reply, held)
            except RuntimeError:
                log.debug("the loop closed before the last beat's reply")

    def _deliver(self, reply: BeatReply, asked: Mapping[str, tuple[str, bool]]) -> None:
        """In the loop. What was claimed again or claimed only just now is not what the beat meant."""
        with self._lock:
            lost = [rid for rid in reply.lost if self._is_held(rid, asked[rid][0])]
            orphaned = [(r, token) for r, token in reply.orphaned if not self._is_held(r, token)]
        self._on_reply(msgspec.structs.replace(reply, lost=lost, orphaned=orphaned))
