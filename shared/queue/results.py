"""How results come back to one API process: its stream of notices, and the store behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from shared import codec
from shared.errors import BrokerLost, BrokerUnavailable, CodecError
from shared.queue.connection import Connection
from shared.queue.scripts import Call, Scripts
from shared.queue.snapshot import Snapshot, parse_snapshot
from shared.queue.transitions import moved
from shared.queue.waiters import Answer, Waiter, Waiters
from shared.status import ReqStatus

log = logging.getLogger(__name__)
READ_BLOCK_S = 1.0
FETCH = 256


class Results:
    """Reads the process's stream and delivers to its waiters; what does not fit in a notice is fetched."""

    def __init__(
        self, connection: Connection, scripts: Scripts, api_id: str, waiters: Waiters
    ) -> None:
        self.last_id = "0-0"
        self._line = connection.line
        self._reader = connection.reader("reading results")
        self._scripts = scripts
        self._keys = scripts.keys
        self._api_id = api_id
        self._waiters = waiters
        self._fetching: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._fetching:
            task.cancel()
        await asyncio.gather(*self._fetching, return_exceptions=True)
        self._reader.close()

    async def answers(self, rids: Sequence[str]) -> list[Answer | None]:
        """Results with bodies, in order; None where it is not final (or unknown)."""
        found: list[Answer | None] = []
        for start in range(0, len(rids), FETCH):
            part = rids[start : start + FETCH]
            outcomes, bodies = await asyncio.gather(
                self._line.run(("MGET", *map(self._keys.outcome, part))),
                self._line.run(("MGET", *map(self._keys.body, part))),
            )
            found += [
                _answer(rid, outcome, body)
                for rid, outcome, body in zip(part, outcomes, bodies, strict=True)
            ]
        return found

    async def snapshots(self, rids: Sequence[str]) -> list[Snapshot | None]:
        """What is known of each, in one round trip."""
        replies = await asyncio.gather(*(self._line.run(self._scripts.peek(rid)) for rid in rids))
        return [parse_snapshot(rid, reply) for rid, reply in zip(rids, replies, strict=True)]

    async def run(self) -> None:
        key = self._keys.out(self._api_id)
        while True:
            command = (
                "XREAD",
                "COUNT",
                512,
                "BLOCK",
                int(READ_BLOCK_S * 1000),
                "STREAMS",
                key,
                self.last_id,
            )
            try:
                reply = await self._reader.run(command, READ_BLOCK_S)
                for entry_id, flat in _entries(reply):
                    self.last_id = entry_id
                    self._on_notice(flat)
            except Exception:
                log.exception("reading results failed; it goes on")
                await asyncio.sleep(READ_BLOCK_S)

    def _on_notice(self, flat: list[bytes]) -> None:
        fields = {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}
        if b"r" not in fields:
            return
        rid = fields[b"i"].decode()
        if rid not in self._waiters:
            return
        try:
            outcome = codec.decode_outcome(fields[b"r"])
            body = codec.decode_body(fields[b"b"]) if b"b" in fields else None
        except CodecError as error:
            log.error("an unreadable notice for %s: %s", rid, error)
            return
        if body is None and outcome.state == "F" and not outcome.n_children:
            task = asyncio.create_task(self.deliver_from_store(rid))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
            return
        self._waiters.deliver(Answer(rid, outcome, body))

    async def deliver_from_store(self, rid: str) -> None:
        try:
            answer = (await self.answers([rid]))[0]
        except BrokerUnavailable:
            return  # the reconcile comes back to it
        except (CodecError, ResponseError) as error:
            self._unreadable(rid, error)
            return
        if answer is not None:
            self._waiters.deliver(answer)

    async def reconcile(self, age_s: float) -> None:
        """Ask for every waiter that heard nothing for so long: its notice, or all of it, may be lost."""
        now = asyncio.get_running_loop().time()
        overdue = self._waiters.overdue(now, age_s)
        for start in range(0, len(overdue), FETCH):
            part = overdue[start : start + FETCH]
            peeks = (self._line.run(self._scripts.peek(rid)) for rid, _ in part)
            replies = await asyncio.gather(*peeks, return_exceptions=True)
            for (rid, waiter), reply in zip(part, replies, strict=True):
                if isinstance(reply, BaseException) and not isinstance(reply, ResponseError):
                    raise reply  # the broker is away for all of them
                waiter.checked_at = now
                try:
                    await self._catch_up(rid, waiter, reply)
                except (CodecError, ResponseError) as error:
                    self._unreadable(rid, error)

    async def _catch_up(self, rid: str, waiter: Waiter, reply: Any) -> None:
        """By the reply of a `peek`, or its ResponseError, which is raised."""
        if isinstance(reply, ResponseError):
            raise reply
        snapshot = parse_snapshot(rid, reply)
        if snapshot is None:
            await self._resubmit(rid, waiter.resubmit)
        elif snapshot.outcome is not None:
            await self.deliver_from_store(rid)

    def _unreadable(self, rid: str, error: CodecError | ResponseError) -> None:
        """Of a later release, or damaged: waiting longer would not make it readable. It costs itself alone."""
        log.error("what the broker holds of %s cannot be read: %s", rid, error)
        if isinstance(error, ResponseError):
            # Its text is of the broker's insides, and this one goes to clients.
            error = CodecError("what the broker holds of this request cannot be read", b"")
        self._waiters.fail(rid, error)

    async def _resubmit(self, rid: str, call: Call | None) -> None:
        if call is not None:
            log.warning("the broker forgot %s; it is submitted again", rid)
            reply = await self._line.run(call)
            if reply[0] == b"OK":
                moved(rid, None, ReqStatus.PENDING, "submitted again")
            if reply[0] in (b"OK", b"DUP"):
                return
        message = "the broker lost this request; send it again"
        self._waiters.fail(rid, BrokerLost(message, retry_after_s=1))


def _answer(rid: str, outcome: bytes | None, body: bytes | None) -> Answer | None:
    if outcome is None:
        return None
    return Answer(rid, codec.decode_outcome(outcome), codec.decode_body(body) if body else None)


def _entries(reply: Any) -> Iterable[tuple[str, list[bytes]]]:
    for _, entries in reply or ():
        for entry_id, flat in entries:
            yield entry_id.decode(), flat
