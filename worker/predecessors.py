"""Fills the answers of its predecessors into a request, once it is claimed: its prompt is whole only then."""

from __future__ import annotations

from shared.errors import DependencyFailed
from shared.placeholders import awaited_by, with_answers
from shared.queue.consumer import Consumer
from shared.request import Req


async def with_predecessors(req: Req, consumer: Consumer) -> Req:
    """Raises DependencyFailed where an answer that its prompt repeats is no longer there."""
    wanted = awaited_by(req)
    if not wanted:
        return req
    answers = await consumer.answers(wanted)
    gone = [rid for rid in wanted if rid not in answers]
    if gone:
        raise DependencyFailed(f"the answer of {gone[0]}, which it repeats, is no longer kept")
    return with_answers(req, answers)
