"""Faults put into the loops of both halves, each of which the simulation must notice: see `test_mutants.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from shared.errors import BrokerUnavailable
from shared.queue.cancelling import Cancelling
from shared.queue.claiming import Claimed, Claiming, Grant
from shared.queue.consumer import BeatReply, Consumer
from shared.queue.results import Results
from shared.queue.waiters import Waiter
from worker.generate import Generator
from worker.loop import Loop


class Mutant(msgspec.Struct, frozen=True):
    """`by` takes the place of a method. Runs of the profile notice it, and say so in words with `told` in them."""

    name: str
    where: type
    method: str
    by: Callable[..., Any]
    profile: str
    told: str


async def _nothing_async(*_: Any, **__: Any) -> None:
    return None


def _nothing(*_: Any, **__: Any) -> None:
    return None


_resubmit, _claim = Results._resubmit, Claiming._claim
_on_beat, _can_take = Loop._on_beat, Loop._can_take


async def _only_tell(self: Results, rid: str, waiter: Waiter) -> None:
    waiter.resubmit = None
    await _resubmit(self, rid, waiter)


async def _count_on(self: Claiming, shard: Any, *options: Any) -> Claimed:
    try:
        return await _claim(self, shard, *options)
    except BrokerUnavailable:
        shard.seq += 1
        raise


def _ignore_orphans(self: Loop, reply: BeatReply) -> None:
    _on_beat(self, msgspec.structs.replace(reply, orphaned=[]))


def _take_when_idle(self: Loop) -> bool:
    return not self._used and _can_take(self)


async def _retry(self: Consumer, grants: list[Grant]) -> None:
    await self._nack("retry", "", [(grant.id, grant.token) for grant in grants])


async def _leave(self: Consumer) -> None:
    await asyncio.gather(*self._notifying, return_exceptions=True)
    self._bell.close()


MUTANTS = (
    Mutant(
        "what the broker forgot is not submitted again",
        Results,
        "_resubmit",
        _nothing_async,
        "wipe",
        "s after a wipe",
    ),
    Mutant(
        "what the broker forgot is only told of",
        Results,
        "_resubmit",
        _only_tell,
        "wipe",
        "told ['broker_lost']",
    ),
    Mutant(
        "nothing is asked for that was not heard of",
        Results,
        "reconcile",
        _nothing_async,
        "wipe",
        "s after a wipe",
    ),
    Mutant(
        "a failed claim goes on with the next number",
        Claiming,
        "_claim",
        _count_on,
        "claims",
        "had ample time",
    ),
    Mutant(
        "orphans are not given back", Loop, "_on_beat", _ignore_orphans, "late", "had ample time"
    ),
    Mutant("what was put off is not cancelled", Cancelling, "later", _nothing, "leave", "lives on"),
    Mutant("what has ended is not stopped", Generator, "stop", _nothing, "leave", "runs on"),
    Mutant("what is given back counts", Consumer, "release", _retry, "calm", "attempts"),
    Mutant(
        "a worker that runs something takes no more",
        Loop,
        "_can_take",
        _take_when_idle,
        "leave",
        "beside a free slot",
    ),
    Mutant(
        "a worker leaves without a word",
        Consumer,
        "leave",
        _leave,
        "calm",
        "has left and is still known",
    ),
)
