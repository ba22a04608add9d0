"""How results come back to one API process: its stream of notices, and the store behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from shared import codec
from shared.errors import BrokerLost, BrokerUnavailable, CodecError
from shared.queue.connection import Connection
from shared.queue.shards import Shards
from shared.queue.snapshot import Snapshot, parse_snapshot
from shared.queue.streams import Streams
from shared.queue.transitions import moved
from shared.queue.waiters import Answer, Waiter, Waiters
from shared.queue.wire import Command
from shared.request import Outcome
from shared.status import ReqStatus

log = logging.getLogger(__name__)
READ_BLOCK_S = 1.0
FETCH = 256


class Results:
    """Reads the process's stream of each shard, delivers to its waiters; what does not fit in a notice is fetched."""

    def __init__(
        self,
        connection: Connection,
        shards: Shards,
        api_id: str,
        waiters: Waiters,
        abandoned: Callable[[str], None],
    ) -> None:
        """`abandoned` is told of a request that was made again and that nobody waits for any more."""
        self.has_lost = False
        self._abandoned = abandoned
        self._line = connection.line
        self._reader = connection.reader("reading results")
        self._shards = shards
        # By stream: the last entry that was read. Every stream is read on one connection.
        self._last_ids = {scripts.keys.out(api_id): "0-0" for scripts in shards}
        self._waiters = waiters
        self.streams = Streams(self._line, shards, api_id, waiters, self.deliver_from_store)
        self._fetching: set[asyncio.Task[None]] = set()
        self._forgotten = 0

    async def close(self) -> None:
        for task in self._fetching:
            task.cancel()
        await asyncio.gather(*self._fetching, return_exceptions=True)
        self._reader.close()

    async def answers(self, rids: Sequence[str]) -> list[Answer | None]:
        """Results with bodies, in order; None where it is not final (or unknown)."""
        found: dict[str, Answer | None] = {}
        for scripts, of_shard in self._shards.split(rids):
            for start in range(0, len(of_shard), FETCH):
                part, keys = of_shard[start : start + FETCH], scripts.keys
                outcomes, bodies = await asyncio.gather(
                    self._line.run(("MGET", *map(keys.outcome, part))),
                    self._line.run(("MGET", *map(keys.body, part))),
                )
                for rid, outcome, body in zip(part, outcomes, bodies, strict=True):
                    found[rid] = _answer(rid, outcome, body)
        return [found[rid] for rid in rids]

    def last_id(self, stream: str) -> str:
        """The last entry that was read of one of the process's streams."""
        return self._last_ids[stream]

    async def snapshots(self, rids: Sequence[str]) -> list[Snapshot | None]:
        """What is known of each, in one round trip."""
        peeks = (self._line.run(self._shards.of(rid).peek(rid)) for rid in rids)
        replies = await asyncio.gather(*peeks)
        return [parse_snapshot(rid, reply) for rid, reply in zip(rids, replies, strict=True)]

    async def run(self) -> None:
        head: Command = ("XREAD", "COUNT", 512, "BLOCK", int(READ_BLOCK_S * 1000), "STREAMS")
        while True:
            try:
                command = (*head, *self._last_ids, *self._last_ids.values())
                reply = await self._reader.run(command, READ_BLOCK_S)
                for stream, entry_id, flat in _entries(reply):
                    self._last_ids[stream] = entry_id
                    for fields in notices(flat):
                        self._on_notice(fields)
                if reply:
                    # Who was answered goes first. What ends meanwhile is kept, and fewer reads bring it.
                    await asyncio.sleep(0)
            except Exception:
                log.exception("reading results failed; it goes on")
                await asyncio.sleep(READ_BLOCK_S)

    def _on_notice(self, fields: Mapping[bytes, bytes]) -> None:
        rid = fields[b"i"].decode(errors="replace")
        if rid not in self._waiters:
            return
        if b"c" in fields:
            self.streams.on_chunk(rid, fields)
            return
        try:
            outcome = codec.decode_outcome(fields.get(b"r", b""))
            body = codec.decode_body(fields[b"b"]) if b"b" in fields else None
        except CodecError as error:
            log.error("an unreadable notice for %s: %s", rid, error)
            return
        if body is None and outcome.state == "F" and not outcome.n_children:
            task = asyncio.create_task(self.deliver_from_store(rid))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
            return
        self._deliver(Answer(rid, outcome, body))

    async def deliver_from_store(self, rid: str) -> None:
        try:
            answer = (await self.answers([rid]))[0]
        except BrokerUnavailable:
            return  # the reconcile comes back to it
        except (CodecError, ResponseError) as error:
            self._unreadable(rid, error)
            return
        if answer is not None:
            self._deliver(answer)

    def _deliver(self, answer: Answer) -> None:
        waiter = self._waiters.get(answer.id)
        if waiter is not None and waiter.resubmit is not None and _was_abandoned(answer.outcome):
            # It came in here, and nobody heard of this process for too long: it stood still, or was cut off.
            message = (
                "this front door was away for too long and the request was given up; send it again"
            )
            self._waiters.fail(answer.id, BrokerLost(message, retry_after_s=1))
        else:
            self._waiters.deliver(answer)

    async def reconcile(self, age_s: float) -> None:
        """Ask for every waiter that heard nothing for so long: its notice, or all of it, may be lost.

        For every one where the stream was lost.
        """
        if self.has_lost:
            self.has_lost, age_s = False, 0.0
        now = asyncio.get_running_loop().time()
        overdue = self._waiters.overdue(now, age_s)
        for start in range(0, len(overdue), FETCH):
            part = overdue[start : start + FETCH]
            peeks = (self._line.run(self._shards.of(rid).peek(rid)) for rid, _ in part)
            replies = await asyncio.gather(*peeks, return_exceptions=True)
            for reply in replies:
                if isinstance(reply, BaseException) and not isinstance(reply, ResponseError):
                    raise reply  # the broker is away for all of them
            for _, waiter in part:
                waiter.checked_at = now
            await asyncio.gather(
                *(
                    self._catch_up(rid, waiter, reply)
                    for (rid, waiter), reply in zip(part, replies, strict=True)
                )
            )
            if self._forgotten:
                # One line for all: an empty broker has forgotten every one of thousands.
                log.warning("the broker forgot %d requests that are waited for", self._forgotten)
                self._forgotten = 0

    async def _catch_up(self, rid: str, waiter: Waiter, reply: Any) -> None:
        """By the reply of a `peek`, or its error."""
        try:
            if isinstance(reply, ResponseError):
                raise reply
            snapshot = parse_snapshot(rid, reply)
            if snapshot is None:
                await self._resubmit(rid, waiter)
                return
        except (CodecError, ResponseError) as error:
            self._unreadable(rid, error)
            return
        if snapshot.outcome is not None:
            await self.deliver_from_store(rid)
        else:
            self.streams.look_again(rid)

    def _unreadable(self, rid: str, error: CodecError | ResponseError) -> None:
        """Of a later release, or damaged: waiting longer would not make it readable. It costs itself alone."""
        log.error("what the broker holds of %s cannot be read: %s", rid, error)
        if isinstance(error, ResponseError):
            # Its text is of the broker's insides, and this one goes to clients.
            error = CodecError("what the broker holds of this request cannot be read", b"")
        self._waiters.fail(rid, error)

    async def _resubmit(self, rid: str, waiter: Waiter) -> None:
        self._forgotten += 1
        if waiter.resubmit is not None and self._waiters.get(rid) is waiter:
            reply = await self._line.run(waiter.resubmit)
            if reply[0] == b"OK":
                moved(rid, None, ReqStatus.PENDING, "submitted again")
                if self._waiters.get(rid) is not waiter:
                    self._abandoned(
                        rid
                    )  # its caller left while it was on its way, and cancelled what was not there
            if reply[0] == b"DONE":
                await self.deliver_from_store(rid)
            if reply[0] in (b"OK", b"DUP", b"DONE"):
                return
        message = "the broker lost this request; send it again"
        self._waiters.fail(rid, BrokerLost(message, retry_after_s=1))


def _was_abandoned(outcome: Outcome) -> bool:
    """By all front doors that waited for it; a client that left by itself has the same code and no such event."""
    why = ("dead", "client_gone")
    return outcome.code == why[1] and any((e.kind, e.detail) == why for e in outcome.events)


def _answer(rid: str, outcome: bytes | None, body: bytes | None) -> Answer | None:
    if outcome is None:
        return None
    return Answer(rid, codec.decode_outcome(outcome), codec.decode_body(body) if body else None)


def notices(flat: list[bytes]) -> Iterator[dict[bytes, bytes]]:
    """Of one entry, which holds all that one command had to tell. Each begins with its id; a hello has none."""
    fields: dict[bytes, bytes] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        if name == b"i":
            if b"i" in fields:
                yield fields
            fields = {}
        fields[name] = value
    if b"i" in fields:
        yield fields


def _entries(reply: Any) -> Iterable[tuple[str, str, list[bytes]]]:
    for stream, entries in reply or ():
        for entry_id, flat in entries:
            yield stream.decode(), entry_id.decode(), flat
