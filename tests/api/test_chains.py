"""Chains at the front door: names to ids, placeholders, and everything that is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from api.settings import ApiSettings
from shared.request import queue_and_shard
from tests.api.answering import Answerer, answering
from tests.api.conftest import Load
from tests.api.serving import Front, eventually, front_door


async def post(front: Front, **body: Any) -> Any:
    return await front.client.post("/requests", json={"prompt": "p", **body})


async def accepted(front: Front, **body: Any) -> str:
    reply = await post(front, **body)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


async def final(front: Front, rid: str) -> Any:
    reply = await front.client.get(f"/requests/{rid}", params={"wait": "10"})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refusal(reply: Any) -> tuple[int, str, str]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


async def test_a_dependent_waits_shows_for_whom_and_runs_after_it(
    front: Front, settings: ApiSettings
) -> None:
    first = await accepted(front, prompt="one")
    reply = await post(front, prompt=f"<{{{{{first}.text}}}}>", depends_on=[first])
    assert (reply.status_code, reply.json()["queue_position"]) == (202, None)
    second = reply.json()["id"]
    polled = (await front.client.get(f"/requests/{second}")).json()
    assert (polled["status"], polled["depends_on"]) == ("pending", [first])
    assert polled["queue_position"] is None
    async with answering(settings) as worker:
        assert (await final(front, second))["status"] == "finished"
    assert [req.id for req in worker.seen] == [first, second]
    assert worker.seen[1].prompt == f"<{{{{{first}.text}}}}>"
    assert worker.seen[1].depends_on == (first,)
    events = (await front.client.get(f"/requests/{second}/timeline")).json()["events"]
    kinds = [event["kind"] for event in events]
    assert kinds[:3] == ["submitted", "waits", "ready"]


async def test_own_ids_may_be_named_and_the_queue_sees_its_own(
    front: Front, worker: Answerer
) -> None:
    await front.client.put("/requests/step-1", json={"prompt": "one"})
    body = {
        "messages": [
            {"role": "system", "content": "as {{step-1.text}}"},
            {"role": "user", "content": "{{step-1.text}} and {{ this }}"},
        ],
        "depends_on": ["step-1"],
    }
    reply = await front.client.put("/requests/step-2", json=body)
    assert reply.status_code == 202
    again = await front.client.put("/requests/step-2", json=body)
    assert again.json()["id"] == reply.json()["id"]
    await final(front, "step-2")
    first = front.services.producer.derived_id("anonymous", "id", "step-1")
    seen = next(req for req in worker.seen if req.messages)
    assert [message.content for message in seen.messages or ()] == [
        f"as {{{{{first}.text}}}}",
        f"{{{{{first}.text}}}} and {{{{ this }}}}",
    ]
    assert seen.depends_on == (first,)


async def test_a_stored_system_prompt_is_nobodys_placeholder(
    front: Front, worker: Answerer
) -> None:
    await front.services.prompts.write("be {{kind.text}}", "admin")
    first = await accepted(front)
    second = await accepted(front, depends_on=[first])
    assert (await final(front, second))["status"] == "finished"
    assert worker.seen[-1].system_prompt == "be {{kind.text}}"


async def test_without_depends_on_braces_are_plain_text(front: Front, worker: Answerer) -> None:
    rid = await accepted(front, prompt="{{x.text}}", depends_on=[])
    assert (await final(front, rid))["text"] == "A({{x.text}})"


async def test_predict_knows_no_chains(front: Front, worker: Answerer) -> None:
    body = {"prompt": "{{x.text}}", "depends_on": ["x"]}
    reply = await front.client.post("/predict", json=body)
    assert reply.json()["response"] == "A({{x.text}})"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"depends_on": ["never"]}, "depends_on"),
        ({"depends_on": ["{known}", "never"]}, "depends_on"),
        ({"depends_on": ["{list}"]}, "depends_on"),
        ({"depends_on": ["{known}"], "prompt": ["a", "b"]}, "depends_on"),
        ({"depends_on": ["{known}"] * 17}, "depends_on"),
        ({"depends_on": "{known}"}, "depends_on"),
        ({"depends_on": [7]}, "depends_on[0]"),
        ({"depends_on": ["a b"]}, "depends_on[0]"),
        ({"depends_on": ["{known}"], "prompt": "{{other.text}}"}, "prompt"),
        ({"depends_on": ["{known}"], "system_prompt": "{{other.text}}"}, "system_prompt"),
        (
            {
                "depends_on": ["{known}"],
                "prompt": None,
                "messages": [{"role": "user", "content": "{{other.text}}"}],
            },
            "messages",
        ),
    ],
)
async def test_what_cannot_be_depended_on_is_refused_by_its_field(
    fields: dict[str, Any], param: str, front: Front
) -> None:
    known, of_list = await accepted(front), await accepted(front, prompt=["a"])
    names = {"{known}": known, "{list}": of_list}
    wanted = fields["depends_on"]
    fields = {
        **fields,
        "depends_on": [names.get(name, name) for name in wanted]
        if isinstance(wanted, list)
        else wanted,
    }
    assert refusal(await post(front, **fields)) == (422, "invalid_request", param)
    assert (await front.services.producer.stats()).live == 2


async def test_the_client_is_told_its_own_name_for_who_is_unknown(front: Front) -> None:
    reply = await post(front, depends_on=["my-own"])
    assert "my-own: no such single request" in reply.json()["error"]["message"]


async def test_a_request_cannot_depend_on_itself(front: Front) -> None:
    reply = await front.client.put("/requests/me", json={"prompt": "p", "depends_on": ["me"]})
    assert refusal(reply) == (422, "invalid_request", "depends_on")
    assert "itself" in reply.json()["error"]["message"]


async def test_another_tenants_request_is_unknown(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    keys = {"API_KEYS": "one-key-0123456789,other-key-0123456789"}
    settings = load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, **keys})
    async with front_door(settings) as front:
        front.client.headers["authorization"] = "Bearer one-key-0123456789"
        theirs = await accepted(front)
        front.client.headers["authorization"] = "Bearer other-key-0123456789"
        assert refusal(await post(front, depends_on=[theirs]))[0] == 422


async def test_the_65th_dependent_is_refused(front: Front) -> None:
    first = await accepted(front)
    for _ in range(64):
        await accepted(front, depends_on=[first])
    reply = await post(front, depends_on=[first])
    assert refusal(reply) == (422, "invalid_request", "depends_on")
    assert "too many" in reply.json()["error"]["message"]


async def test_who_depends_on_a_cancelled_request_ends_with_424(front: Front) -> None:
    first = await accepted(front)
    second = await accepted(front, depends_on=[first])
    third = await accepted(front, depends_on=[second])
    await front.client.post(f"/requests/{first}/cancel")

    async def has_ended() -> bool:
        return (await front.client.get(f"/requests/{third}")).status_code == 200

    await eventually(has_ended)
    shown = (await front.client.get(f"/requests/{second}")).json()
    assert (shown["status"], shown["error"]["code"]) == ("error", "dependency_failed")
    assert shown["error"]["retryable"] is False


async def test_a_chain_lives_in_the_shard_of_its_first_and_is_found_by_its_own_id(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    settings = load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "SHARDS": "4"})
    async with front_door(settings) as front, answering(settings):
        shards = set()
        before = await accepted(front)
        for i in range(6):
            body = {"prompt": "p", "depends_on": [before]}
            reply = await front.client.put(f"/requests/own-{i}", json=body)
            assert reply.status_code == 202, reply.text
            before = f"own-{i}"
            shards.add(queue_and_shard(reply.json()["id"]))
            assert (await front.client.get(f"/requests/{before}")).status_code in (200, 202)
            again = await front.client.put(f"/requests/{before}", json=body)
            assert again.json()["id"] == reply.json()["id"]
            other = await front.client.put(f"/requests/{before}", json={"prompt": "p"})
            assert refusal(other) == (422, "idempotency_mismatch", "id")
        assert len(shards) == 1
        assert (await final(front, "own-5"))["status"] == "finished"


async def test_predecessors_in_two_shards_are_refused(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    settings = load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "SHARDS": "2"})
    async with front_door(settings) as front:
        pair = [await accepted(front), await accepted(front)]
        assert refusal(await post(front, depends_on=pair)) == (
            422,
            "chain_across_shards",
            "depends_on",
        )
        elsewhere = await front.client.put("/requests/own", json={"prompt": "p"})
        at = queue_and_shard(elsewhere.json()["id"])
        other = next(rid for rid in pair if queue_and_shard(rid) != at)
        body = {"prompt": "p", "depends_on": [other]}
        again = await front.client.put("/requests/own", json=body)
        assert refusal(again) == (422, "idempotency_mismatch", "id")


async def test_placeholders_are_counted_as_what_they_may_become_and_are_not_without_number(
    front: Front, settings: ApiSettings
) -> None:
    first = await accepted(front, prompt="one")
    placeholder = f"{{{{{first}.text}}}}"
    reply = await post(front, prompt=placeholder * 65, depends_on=[first])
    assert refusal(reply) == (422, "invalid_request", "prompt")
    before = (await front.client.get("/queue")).json()["tokens"]
    reply = await post(front, prompt=placeholder * 64, depends_on=[first], max_tokens=1)
    assert reply.status_code == 202, reply.text
    after = (await front.client.get("/queue")).json()["tokens"]
    assert after - before >= 64 * settings.default_max_tokens
