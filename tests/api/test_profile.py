"""PROFILE=neutral: /predict in its own shape, asking for what /requests asks for. The broker is real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.request import Trim
from shared.sampling import SamplingParams
from tests.api.answering import Answerer
from tests.api.conftest import Load
from tests.api.serving import Front, front_door

LONG = "!say 一。二。三。四。五。六。七。例如：八。"


@pytest.fixture
async def neutral(load_settings: Load, broker_url: str, queue_name: str) -> AsyncIterator[Front]:
    variables = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "PROFILE": "neutral"}
    async with front_door(load_settings(variables)) as front:
        yield front


async def test_predict_asks_for_what_requests_asks_for(neutral: Front, worker: Answerer) -> None:
    prompts = ["gemm", "写代码", LONG]
    reply = await neutral.client.post("/predict", json={"prompt": prompts})
    assert reply.json() == {"response": ["A(gemm)", "A(写代码)", LONG.removeprefix("!say ")]}
    for req in worker.seen:
        assert req.sampling == SamplingParams(max_tokens=512, min_tokens=0)
        assert (req.system_prompt, req.delivery.trim, req.delivery.route) == (None, None, None)


async def test_a_bodys_own_fields_hold(neutral: Front, worker: Answerer) -> None:
    fields = {"temperature": "0.5", "top_k": 3, "repetition_penalty": 1.2, "frequency_penalty": -1}
    for budget in (50, 0, 99_999):
        body = {"prompt": LONG, "max_new_tokens": budget, "trim": True, **fields}
        reply = await neutral.client.post("/predict", json=body)
        assert reply.json() == {"response": "一。二。三。四。五。六。"}
    assert [req.sampling.max_tokens for req in worker.seen] == [50, 1, 4096]
    sampling, delivery = worker.seen[0].sampling, worker.seen[0].delivery
    assert (sampling.temperature, sampling.top_k, sampling.stop) == (0.5, 3, ())
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.2, -1)
    assert delivery.trim == Trim(cut_examples=True, max_sentences=6)
    reply = await neutral.client.post("/predict", json={"prompt": "x", "top_p": 0})
    assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body", "top_p"])


async def test_only_a_stored_system_prompt_stands(neutral: Front, worker: Answerer) -> None:
    assert (await neutral.client.get("/system_prompt")).json() == {"system_prompt": ""}
    await neutral.client.post("/system_prompt", json={"system_prompt": "be brief"})
    await neutral.client.post("/predict", json={"prompt": "x"})
    reply = await neutral.client.delete("/system_prompt")
    assert reply.json() == {"status": "ok", "system_prompt_len": 0}
    await neutral.client.post("/predict", json={"prompt": "x"})
    assert [req.system_prompt for req in worker.seen] == ["be brief", None]


async def test_info_tells_what_is_in_force(neutral: Front, front: Front) -> None:
    shown = (await neutral.client.get("/info")).json()
    assert (shown["profile"], shown["system_prompt_len"]) == ("neutral", 0)
    assert shown["defaults"] == {
        "max_new_tokens": 512,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
    }
    assert (await front.client.get("/info")).json()["profile"] == "seed"
