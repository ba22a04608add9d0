"""What a request that depends on others needs of them: their answers, as their clients see them."""

from __future__ import annotations

from collections.abc import Sequence

from shared import codec
from shared.errors import CodecError
from shared.postprocess import postprocess
from shared.queue.line import Line
from shared.queue.scripts import Scripts


async def answer_texts(line: Line, scripts: Scripts, rids: Sequence[str]) -> dict[str, str]:
    """By id, without those that are no longer there or cannot be read. Waits for a broker that is away."""
    keys = (*map(scripts.keys.outcome, rids), *map(scripts.keys.body, rids))
    raw = await line.run(("MGET", *keys), patient=True)
    texts = {}
    for rid, outcome, body in zip(rids, raw[: len(rids)], raw[len(rids) :], strict=True):
        if outcome is None or body is None:
            continue
        try:
            delivery = codec.decode_outcome(outcome).delivery
            texts[rid] = postprocess(codec.decode_body(body).text, delivery.trim)
        except CodecError:
            continue
    return texts
