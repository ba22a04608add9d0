"""The first seed's routes, driven step by step as they were recorded. What removes think blocks is the worker's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.answering import answering
from tests.api.conftest import Load
from tests.api.serving import eventually, front_door
from tests.api.vectors import vectors

THINKING = {"http-025-think_then_post", "http-026-think_only_inner_gets_trimmed"}
VECTORS = [v for v in vectors("http") if v["name"] not in THINKING]
TRUTHY = {"1", "true", "yes", "y", "on"}


def steps(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the right output is only what differs, it is the same for every step."""
    recorded: list[dict[str, Any]] = vector["output"]
    if vector["verdict"] in ("ok", "quirk"):
        return recorded
    right = vector["right_output"]
    if isinstance(right, list):
        return right
    return [{"request": step["request"], **right} for step in recorded]


def assert_holds(wanted: Any, found: Any) -> None:
    """All that is written must be there; lists have their length, further fields are free."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            if key == "system_prompt_len":
                assert isinstance(found[key], int)
            else:
                assert_holds(value, found[key])
    elif isinstance(wanted, list) and isinstance(found, list):
        assert len(wanted) == len(found)
        for one, other in zip(wanted, found, strict=True):
            assert_holds(one, other)
    else:
        assert wanted == found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
async def test_routes_answer_as_recorded(
    vector: dict[str, Any], load_settings: Load, broker_url: str, queue_name: str
) -> None:
    where = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name}
    settings = load_settings({**where, **vector["env"]})
    is_batch = vector["env"].get("BATCH_MODE", "").lower() in TRUTHY
    async with (
        front_door(settings) as front,
        answering(settings, engine="vllm", batch_mode=is_batch) as worker,
    ):
        worker.script = vector["input"]["script"]
        await eventually(lambda: bool(front.services.producer.known_workers))
        for step in steps(vector):
            worker.seen.clear()
            request = step["request"]
            reply = await front.client.request(
                request["method"], request["path"], json=request["json"]
            )
            assert reply.status_code == step["status"]
            if "response" in step:
                assert_holds(step["response"], reply.json())
            calls = step.get("engine_calls")
            if calls is not None:
                budgets = sorted(c["max_tokens"] for c in calls for _ in range(c.get("n", 1)))
                assert sorted(req.sampling.max_tokens for req in worker.seen) == budgets
