"""Bringing requests and lists to the broker, and what becomes of those that may or may not have got there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shared import codec
from shared.errors import BrokerUnavailable
from shared.queue import submission
from shared.queue.cancelling import Cancelling
from shared.queue.ending import CHUNK
from shared.queue.fitness import Watch
from shared.queue.line import Line
from shared.queue.scripts import Call, Scripts
from shared.queue.shards import Shards
from shared.queue.snapshot import Caps, Submitted
from shared.queue.transitions import moved
from shared.request import Req
from shared.status import ReqStatus


class Submitting:
    """One front door's submits. `owns_id` everywhere: nobody else can have used this id, so what got through though its
    caller was told that it did not is ended.
    """

    def __init__(
        self, line: Line, shards: Shards, api_id: str, fitness: Watch, cancelling: Cancelling
    ) -> None:
        self._line = line
        self._shards = shards
        self._api_id = api_id
        self._fitness = fitness
        self._cancelling = cancelling

    def call(self, req: Req, caps: Caps, *, held: bool, wants_position: bool) -> Call:
        """The submit of one request, which may be sent again as it is."""
        meta = submission.meta(req, api_id=self._api_id, held=held, wants_position=wants_position)
        share = caps.share(len(self._shards))
        return self._shards.of(req.id).submit(req.id, codec.encode(req), meta, share)

    async def one(self, rid: str, call: Call, owns_id: bool) -> Submitted:
        """Raises what `submission.submitted` raises, BrokerUnavailable."""
        submitted = submission.submitted(rid, await self._run(rid, call, owns_id))
        # Under an id of its own there was nobody to join but itself: the reply to its first run was lost.
        if owns_id or not submitted.joined:
            moved(rid, None, ReqStatus.PENDING, "submitted")
        return submitted

    async def list(
        self, parent: Req, children: Sequence[Req], caps: Caps, owns_id: bool, held: bool
    ) -> Submitted:
        """Room for all is reserved first, then they go in by chunks. Raises as `one`."""
        scripts, delivery = self._shards.of(parent.id), submission.delivery_json(parent)
        tokens = sum(child.cost_tokens for child in children)
        reply = await self._run(
            parent.id,
            scripts.reserve(
                parent.id,
                len(children),
                tokens,
                parent.tenant,
                parent.digest,
                self._api_id,
                delivery,
                caps.share(len(self._shards)),
            ),
            owns_id,
        )
        is_there = reply[0] in (b"OK", b"DUP")
        if reply[0] == b"DUP":
            await self._line.run(scripts.attach(parent.id, self._api_id))
        place = (0,) if is_there else ()
        submitted = submission.submitted(parent.id, [reply[0], *place, *reply[1:]])
        if is_there:
            # After DUP too: the first run of this may have ended, or its reply been lost, before all were in.
            try:
                await self._children(scripts, parent, children, owns_id, held)
            except BaseException:
                # Some are in, and their caller is told that none is.
                if owns_id:
                    message = "the broker did not take all of its list"
                    self._cancelling.later(parent.id, message=message)
                raise
        return submitted

    async def _children(
        self, scripts: Scripts, parent: Req, children: Sequence[Req], owns_id: bool, held: bool
    ) -> None:
        for start in range(0, len(children), CHUNK):
            chunk = children[start : start + CHUNK]
            packed = [
                (codec.encode(child), child.cost_tokens, submission.delivery_json(child))
                for child in chunk
            ]
            meta = submission.meta(chunk[0], api_id=self._api_id, held=held, wants_position=False)
            part = scripts.submit_many(parent.id, start, meta, packed)
            sent = await self._run(parent.id, part, owns_id)
            if sent[0] not in (b"OK", b"DUP"):
                return  # cancelled or timed out meanwhile: the list ends by its own rules
            if owns_id or sent[0] == b"OK":
                for child in chunk:
                    moved(child.id, None, ReqStatus.PENDING, "submitted")

    async def _run(self, rid: str, call: Call, owns_id: bool) -> Any:
        await self._fitness.require()
        self._cancelling.not_later(rid)
        try:
            return await self._line.run(call)
        except (BrokerUnavailable, asyncio.CancelledError) as error:
            # It may have got through; nobody waits for it, so it must not run. Under an id that others use too
            # somebody may wait: there the same submit again finds it.
            if owns_id and (not isinstance(error, BrokerUnavailable) or error.may_have_run):
                message = "the broker did not answer when it was submitted"
                self._cancelling.later(rid, message=message)
            raise
