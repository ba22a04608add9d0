"""Whatever JSON comes, it is answered with less than 500, and every 4xx says what is wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest

from api.schemas import SAMPLING_FIELDS, PredictBody, RequestBody
from tests.api.serving import Front

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.5, 1e308, -1e308, 2**31, 2**63, -(2**63), 2**64, 10**40,
    "", "x", "\x00", "\u2028", "🙂", "nan", "Infinity", "x" * 5000, [], [[]], [None], ["a", 1],
    ["", "b"], {}, {"": None}, {"a": {"b": [1, {"c": 10**30}]}}, [{"role": "user", "content": "x"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "interactive", "cancel",
)  # fmt: skip
FIELDS = sorted(
    {*PredictBody.model_fields, *RequestBody.model_fields, *SAMPLING_FIELDS, "other", ""}
)


def body(dice: random.Random) -> Any:
    """Mostly a good prompt with some fields of junk; sometimes junk altogether."""
    if dice.random() < 0.05:
        return dice.choice(JUNK)
    made: dict[str, Any] = {"prompt": "x"} if dice.random() < 0.9 else {}
    for _ in range(dice.randint(0, 3)):
        made[dice.choice(FIELDS)] = dice.choice(JUNK)
    return made


@pytest.mark.parametrize("seed", range(8))
async def test_no_body_makes_a_server_error(seed: int, front: Front) -> None:
    dice = random.Random(seed)
    refused = 0
    for _ in range(150):
        sent = body(dice)
        path = dice.choice(("/predict", "/requests"))
        headers = {"Prefer": "respond-async"}
        reply = await front.client.post(path, json=sent, headers=headers)
        shown = reply.json()
        if reply.status_code in (200, 202):
            assert shown.get("id") or shown == {"response": []}, (path, sent)
            continue
        refused += 1
        assert reply.status_code in (422, 503), (path, sent, reply.text)
        assert shown["error"]["param"] or shown["error"]["code"] == "no_workers", (path, sent)
        if path == "/predict" and reply.status_code == 422:
            assert shown["detail"][0]["loc"][0] in ("body", "header")
    assert refused > 20
