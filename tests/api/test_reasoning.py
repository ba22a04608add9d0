"""What reasoning took of an answer's budget, told by both faces. A worker's own loop answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from shared.request import FinishReason
from shared.sampling import SamplingParams
from tests.api.serving import Front
from tests.worker.scripted_engine import ScriptedEngine
from tests.worker.serving import Service
from worker.engines.base import EngineOutput, EnginePrompt

SHORT = "<think>one</think>two"
REASONING = len("<think>one</think>")


class Repeater(ScriptedEngine):
    """Says the prompt, one token a character, up to its budget."""

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        for prompt in prompts:
            said = prompt.text[: params.max_tokens]
            reason = FinishReason.stop if said == prompt.text else FinishReason.length
            yield EngineOutput(prompt.request_id, said, tuple(range(len(said))), reason)


@pytest.fixture
async def reasoner(broker_url: str, queue_name: str) -> AsyncIterator[None]:
    service = Service(broker_url, queue_name)
    async with service.worker(Repeater()):
        yield
    await service.connection.close()


async def post(front: Front, prompt: Any) -> Any:
    reply = await front.client.post("/predict", json={"prompt": prompt})
    assert reply.status_code == 200, reply.text
    return reply


async def test_predict_tells_what_reasoning_took(front: Front, reasoner: None) -> None:
    reply = await post(front, SHORT)
    assert reply.json() == {"response": "two"}
    assert reply.headers["x-reasoning-tokens"] == str(REASONING)
    assert reply.headers["x-generated-tokens"] == str(len(SHORT))

    assert "x-reasoning-tokens" not in (await post(front, "no block")).headers


async def test_predict_tells_of_a_budget_that_reasoning_ate_up(
    front: Front, reasoner: None
) -> None:
    reply = await post(front, "<think>never comes to an end in so few tokens")
    assert reply.json() == {"response": "never comes to an end in"}
    headers = reply.headers
    assert headers["x-finish-reason"] == "length"
    assert headers["x-reasoning-tokens"] == headers["x-generated-tokens"] == "32"


async def test_predict_tells_it_of_each_item_of_a_list(front: Front, reasoner: None) -> None:
    reply = await post(front, ["no block", SHORT])
    assert reply.json() == {"response": ["no block", "two"]}
    assert reply.headers["x-reasoning-tokens"] == f"0,{REASONING}"
    assert "x-reasoning-tokens" not in (await post(front, ["a", "b"])).headers


async def test_a_poll_shows_the_reasoning_and_what_it_took(front: Front, reasoner: None) -> None:
    for prompt, reasoning, tokens in ((SHORT, "one", REASONING), ("no block", None, None)):
        reply = await front.client.post("/requests", json={"prompt": prompt})
        shown = (await front.client.get(f"/requests/{reply.json()['id']}?wait=10")).json()
        assert shown["reasoning_content"] == reasoning
        assert shown["usage"].get("reasoning_tokens") == tokens
        assert shown["usage"]["completion_tokens"] == len(prompt)
