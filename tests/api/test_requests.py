"""/requests: submit, poll, lists, cancel, delete, idempotent PUT, timeline. The broker is real."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.schemas import RequestBody
from api.settings import ApiSettings
from shared.request import Message, Priority, Trim
from shared.sampling import SamplingParams
from tests.api.answering import TOKEN, Answerer, answering
from tests.api.serving import Front, eventually, front_door

POLL_FIELDS = {
    "id",
    "status",
    "created_at",
    "started_at",
    "finished_at",
    "queue_s",
    "compute_s",
    "attempts",
    "worker",
    "text",
    "finish_reason",
    "stop_reason",
    "usage",
    "reasoning_content",
    "metadata",
    "error",
}
UNKNOWN = "00000000000000000000000000"


async def submit(front: Front, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    reply = await front.client.post("/requests", json=body, headers=headers)
    assert reply.status_code == 202, reply.text
    shown: dict[str, Any] = reply.json()
    return shown


async def finished(front: Front, rid: str) -> dict[str, Any]:
    reply = await front.client.get(f"/requests/{rid}?wait=10")
    assert reply.status_code == 200, reply.text
    shown: dict[str, Any] = reply.json()
    return shown


async def test_a_submit_is_answered_at_once_and_polled_to_its_end(
    front: Front, worker: Answerer
) -> None:
    reply = await front.client.post("/requests", json={"prompt": "!slow", "metadata": {"user": 7}})
    body = reply.json()
    rid = body["id"]
    assert reply.status_code == 202
    assert body.keys() == {
        "id",
        "status",
        "queue_position",
        "estimated_start_s",
        "created_at",
        "expires_at",
        "urls",
    }
    assert (body["status"], body["queue_position"]) == ("pending", 0)
    assert body["expires_at"] - body["created_at"] == pytest.approx(3600)
    assert body["urls"] == {"self": f"/requests/{rid}", "cancel": f"/requests/{rid}/cancel"}
    assert reply.headers["location"] == f"/requests/{rid}"
    assert "retry-after" in reply.headers

    await eventually(lambda: len(worker.seen) == 1)
    live = await front.client.get(f"/requests/{rid}")
    assert (live.status_code, live.json()["status"]) == (202, "running")
    assert live.json().keys() >= POLL_FIELDS
    assert live.json()["metadata"] == {"user": 7}

    worker.go.set()
    done = await finished(front, rid)
    assert done.keys() == POLL_FIELDS
    assert (done["status"], done["text"], done["finish_reason"]) == ("finished", "A(!slow)", "stop")
    assert (done["stop_reason"], done["error"], done["reasoning_content"]) == (None, None, None)
    assert done["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "cached_tokens": 0,
    }
    assert (done["compute_s"], done["attempts"]) == (0.25, 1)
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    assert done["worker"].startswith("w-1")


async def test_defaults_of_the_full_face_are_neutral(front: Front, worker: Answerer) -> None:
    await finished(front, (await submit(front, {"prompt": "hi"}))["id"])
    (req,) = worker.seen
    s = req.sampling
    assert (s.max_tokens, s.min_tokens, s.temperature, s.top_p, s.top_k) == (512, 0, 1.0, 1.0, -1)
    assert (s.repetition_penalty, s.frequency_penalty, s.stop) == (1.0, 0.0, ())
    assert (req.system_prompt, req.delivery.trim, req.delivery.route) == (None, None, None)


async def test_every_field_reaches_the_request(front: Front, worker: Answerer) -> None:
    body = {
        "prompt": "hi",
        "system_prompt": "be brief",
        "max_new_tokens": 9,
        "min_tokens": 2,
        "stop": "END",
        "stop_token_ids": [5, 5, 6],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "repetition_penalty": 1.1,
        "frequency_penalty": -1,
        "presence_penalty": 1,
        "seed": 42,
        "skip_special_tokens": False,
        "ignore_eos": True,
        "echo": True,
        "trim": True,
        "priority": "interactive",
        "queue_timeout_s": 5,
        "timeout_s": 7.5,
        "on_disconnect": "continue",
        "on_worker_loss": "restart",
        "metadata": {"a": [1, {"b": None}]},
        "n": 1,
        "tools": [],
        "response_format": {"type": "text"},
        "stream": False,
    }
    rid = (await submit(front, body))["id"]
    await finished(front, rid)
    (req,) = worker.seen
    s = req.sampling
    assert (s.max_tokens, s.min_tokens, s.stop, s.stop_token_ids) == (9, 2, ("END",), (5, 6))
    assert (s.temperature, s.top_p, s.top_k, s.seed) == (0.5, 0.9, -1, 42)
    assert (s.repetition_penalty, s.frequency_penalty, s.presence_penalty) == (1.1, -1, 1)
    assert (s.skip_special_tokens, s.ignore_eos, s.echo) == (False, True, True)
    assert (req.priority, req.queue_timeout_s, req.timeout_s) == (Priority.interactive, 5, 7.5)
    assert (req.system_prompt, req.on_worker_loss) == ("be brief", "restart")
    assert req.delivery.trim == Trim(cut_examples=True, max_sentences=6)
    assert req.delivery.metadata == {"a": [1, {"b": None}]}


async def test_messages_go_as_they_are(front: Front, worker: Answerer) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ada"},
    ]
    rid = (await submit(front, {"messages": messages}))["id"]
    assert (await finished(front, rid))["text"] == "A(hi)"
    assert worker.seen[0].messages == (Message("system", "be brief"), Message("user", "hi", "ada"))
    assert worker.seen[0].prompt is None


async def test_raw_prompts_get_no_system_prompt(front: Front, worker: Answerer) -> None:
    await front.services.producer.set_system_prompt("stored", "test")
    for body in (
        {"prompt": "x", "raw": True},
        {"prompt": "x"},
        {"prompt": "x", "system_prompt": ""},
    ):
        await finished(front, (await submit(front, body))["id"])
    assert [(r.raw, r.system_prompt) for r in worker.seen] == [
        (True, None),
        (False, "stored"),
        (False, ""),
    ]


async def test_nothing_is_put_before_a_clients_own_messages(front: Front, worker: Answerer) -> None:
    await front.services.producer.set_system_prompt("stored", "test")
    body = {"messages": [{"role": "user", "content": "gemm"}]}
    await finished(front, (await submit(front, body))["id"])
    (req,) = worker.seen
    assert (req.system_prompt, req.messages) == (None, (Message("user", "gemm"),))
    assert (req.sampling.max_tokens, req.delivery.trim, req.delivery.route) == (512, None, None)


async def test_an_answer_is_given_as_it_is(front: Front, worker: Answerer) -> None:
    text = " 一。二。三。四。五。六。七。例如：八。\n"
    done = await finished(front, (await submit(front, {"prompt": f"!say {text}"}))["id"])
    assert done["text"] == text


async def test_fields_that_are_null_are_as_good_as_absent(front: Front, worker: Answerer) -> None:
    names = set(SamplingParams.__struct_fields__) | RequestBody.model_fields.keys()
    body = {**dict.fromkeys(sorted(names)), "prompt": "hi"}
    await finished(front, (await submit(front, body))["id"])
    await finished(front, (await submit(front, {"prompt": "hi"}))["id"])
    first, second = worker.seen
    assert first.sampling == second.sampling
    assert (first.delivery, first.priority, first.raw) == (second.delivery, second.priority, False)


async def test_logprobs_come_back_with_the_answer_where_they_were_asked_for(
    front: Front, settings: ApiSettings
) -> None:
    async with answering(settings, capabilities=("logprobs",)) as worker:
        await eventually(lambda: bool(front.services.producer.known_workers))
        for asked in (2, 0):
            body = {"prompt": "hi", "logprobs": asked}
            done = await finished(front, (await submit(front, body))["id"])
            assert done["logprobs"] == [TOKEN]
        assert [req.sampling.logprobs for req in worker.seen] == [2, 0]
        assert "logprobs" not in await finished(
            front, (await submit(front, {"prompt": "hi"}))["id"]
        )


@pytest.mark.parametrize(("priority", "lane"), [("interactive", 0), ("standard", 1), ("batch", 2)])
async def test_metadata_and_priority_travel_with_a_request(
    priority: str, lane: int, front: Front, worker: Answerer
) -> None:
    metadata = {"order": 7, "tags": ["a", None]}
    body = {"prompt": "hi", "priority": priority, "metadata": metadata}
    rid = (await submit(front, body))["id"]
    assert (await finished(front, rid))["metadata"] == metadata
    assert worker.seen[0].priority == lane


async def test_time_outs_may_come_as_headers_and_the_body_stands_over_them(
    front: Front, worker: Answerer
) -> None:
    headers = {"X-Queue-Timeout": "11", "X-Request-Timeout": "12"}
    await submit(front, {"prompt": "x"}, **headers)
    await submit(front, {"prompt": "x", "timeout_s": 13}, **headers)
    await eventually(lambda: len(worker.seen) == 2)
    assert [(r.queue_timeout_s, r.timeout_s) for r in worker.seen] == [(11, 12), (11, 13)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_new_tokens": 0}, "max_tokens"),
        ({"max_new_tokens": 4097}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 513}, "min_tokens"),
        ({"max_tokens": 4097}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_new_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": -0.5}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"frequency_penalty": 2.01}, "frequency_penalty"),
        ({"frequency_penalty": -2.01}, "frequency_penalty"),
        ({"presence_penalty": -2.01}, "presence_penalty"),
        ({"echo": 1}, "echo"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(1025))}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"top_k": 2**70}, "top_k"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"stop": "x" * 300}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"timeout_s": 3600.5}, "timeout_s"),
        ({"metadata": {"a": "x" * 4096}}, "metadata"),
        ({"metadata": {"a": 2**64}}, "metadata"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["x"] * 10_000}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"raw": True, "system_prompt": "x"}, "system_prompt"),
        ({"system_prompt": "x" * 20_001}, "system_prompt"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_bad_input_is_422_naming_the_field_and_nothing_is_queued(
    body: dict[str, Any], field: str, front: Front
) -> None:
    reply = await front.client.post("/requests", json={"prompt": "x", **body})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (422, "invalid_request", field)
    assert field in error["message"]
    assert (error["type"], error["retryable"], error["stage"]) == (
        "invalid_request_error",
        False,
        "admission",
    )
    assert (await front.services.producer.stats()).live == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("webhook", "https://example.org"),
        ("n", 2),
        ("response_format", {"type": "json_object"}),
        ("tools", [{}]),
        ("lora", "adapter"),
        ("not_before_s", 5),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(
    field: str, value: object, front: Front
) -> None:
    reply = await front.client.post("/requests", json={"prompt": "x", field: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (
        422,
        "unsupported_parameter",
        field,
    )


async def test_what_the_workers_lack_is_refused_by_name(front: Front, worker: Answerer) -> None:
    await eventually(lambda: bool(front.services.producer.known_workers))
    for body, status in (({"logprobs": 2}, 422), ({"logprobs": 0}, 422), ({"echo": True}, 202)):
        reply = await front.client.post("/requests", json={"prompt": "x", **body})
        assert reply.status_code == status, body
    reply = await front.client.post(
        "/requests", json={"prompt": "x", "chat_template_kwargs": {"a": 1}}
    )
    assert reply.json()["error"]["param"] == "chat_template_kwargs"


async def test_a_list_has_one_id_and_its_items_in_order(front: Front, worker: Answerer) -> None:
    body = {"prompt": ["a", "!engine", "!slow", "b"], "metadata": {"job": 1}}
    accepted = await submit(front, body)
    rid = accepted["id"]
    await eventually(lambda: len(worker.seen) == 4)

    async def others_ended() -> bool:
        return bool((await front.client.get(f"/requests/{rid}")).json()["n_ended"] == 3)

    await eventually(others_ended)
    live = await front.client.get(f"/requests/{rid}")
    assert (live.status_code, live.json()["status"]) == (202, "running")
    statuses = [item["status"] for item in live.json()["items"]]
    assert statuses == ["finished", "error", "running", "finished"]

    worker.go.set()
    done = await finished(front, rid)
    assert (done["status"], done["n_items"], done["n_ended"]) == ("finished", 4, 4)
    assert done["metadata"] == {"job": 1}
    assert [item["index"] for item in done["items"]] == [0, 1, 2, 3]
    assert [item["text"] for item in done["items"]] == ["A(a)", None, "A(!slow)", "A(b)"]
    assert done["items"][1]["error"]["code"] == "engine_error"
    assert all("metadata" not in item for item in done["items"])

    one = await front.client.get(f"/requests/{rid}.3")
    assert (one.status_code, one.json()["text"]) == (200, "A(b)")


async def test_a_long_list_is_answered_whole(front: Front, worker: Answerer) -> None:
    prompts = [f"p{i}" for i in range(300)]
    done = await finished(front, (await submit(front, {"prompt": prompts}))["id"])
    assert [item["text"] for item in done["items"]] == [f"A({p})" for p in prompts]


async def test_cancelling_a_list_cancels_every_open_item(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": ["done", "!slow 1", "!slow 2"]}))["id"]

    async def first_ended() -> bool:
        return bool((await front.client.get(f"/requests/{rid}.0")).status_code == 200)

    await eventually(first_ended)
    for _ in range(2):
        reply = await front.client.post(f"/requests/{rid}/cancel")
        statuses = [item["status"] for item in reply.json()["items"]]
        assert reply.status_code == 200
        assert statuses == ["finished", "cancelled", "cancelled"]
    await eventually(lambda: {f"{rid}.1", f"{rid}.2"} <= set(worker.aborted))
    assert (await finished(front, rid))["status"] == "cancelled"


async def test_cancel_is_idempotent_in_every_state(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "!slow"}))["id"]
    for _ in range(2):
        reply = await front.client.post(f"/requests/{rid}/cancel")
        assert (reply.status_code, reply.json()["status"]) == (200, "cancelled")
        assert reply.json()["error"]["code"] == "cancelled"
    rid = (await submit(front, {"prompt": "quick"}))["id"]
    await finished(front, rid)
    reply = await front.client.post(f"/requests/{rid}/cancel")
    assert (reply.status_code, reply.json()["text"]) == (200, "A(quick)")


async def test_a_dropped_result_is_gone_and_not_forgotten(front: Front, worker: Answerer) -> None:
    for prompt in ("quick", ["a", "b"]):
        rid = (await submit(front, {"prompt": prompt}))["id"]
        await finished(front, rid)
        for _ in range(2):
            reply = await front.client.delete(f"/requests/{rid}")
            assert (reply.status_code, reply.content) == (204, b"")
        reply = await front.client.get(f"/requests/{rid}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (410, "result_expired")


async def test_deleting_what_runs_cancels_it(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "!slow"}))["id"]
    await eventually(lambda: len(worker.seen) == 1)
    assert (await front.client.delete(f"/requests/{rid}")).status_code == 204
    await eventually(lambda: rid in worker.aborted)
    assert (await finished(front, rid))["status"] == "cancelled"


async def test_an_unknown_id_is_404_everywhere(front: Front, queue_name: str) -> None:
    for rid in (f"{queue_name}.0-{UNKNOWN}", f"other.0-{UNKNOWN}", "mine", "%00", "a%2Fb", "ü"):
        for method, path in (
            ("GET", f"/requests/{rid}"),
            ("GET", f"/requests/{rid}?wait=0.1"),
            ("POST", f"/requests/{rid}/cancel"),
            ("DELETE", f"/requests/{rid}"),
            ("GET", f"/requests/{rid}/timeline"),
        ):
            reply = await front.client.request(method, path)
            assert reply.status_code == 404, (method, path)
            if "/" not in rid and "%2F" not in rid:
                assert reply.json()["error"]["code"] == "unknown_request"


async def test_a_long_poll_waits_as_long_as_asked(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "!slow"}))["id"]
    loop = asyncio.get_running_loop()
    began = loop.time()
    reply = await front.client.get(f"/requests/{rid}?wait=0.5")
    assert reply.status_code == 202
    assert loop.time() - began >= 0.5
    assert front.services.producer.waiting == 0
    reply = await front.client.get(f"/requests/{rid}?wait=soon")
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "wait")


async def test_a_put_makes_once_and_then_joins(front: Front, worker: Answerer) -> None:
    body = {"prompt": "!slow"}
    first = await front.client.put("/requests/job-1", json=body)
    assert first.status_code == 202
    rid = first.json()["id"]
    again = await front.client.put("/requests/job-1", json=body)
    assert (again.status_code, again.json()["id"]) == (202, rid)
    other = await front.client.put("/requests/job-1", json={"prompt": "else"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")
    worker.go.set()
    assert (await finished(front, "job-1"))["id"] == rid
    stored = await front.client.put("/requests/job-1", json=body)
    assert (stored.status_code, stored.json()["text"]) == (200, "A(!slow)")
    assert len(worker.seen) == 1
    assert (await front.client.put("/requests/a%20b", json=body)).status_code == 422


@pytest.mark.parametrize("own", ["v1.2-rc1", "other.0-job", "a.0-b.3", "-.9999-a", "QUEUE.1-job"])
async def test_an_id_of_the_clients_own_may_look_like_one_of_a_queue(
    own: str, front: Front, queue_name: str
) -> None:
    own, body = own.replace("QUEUE", queue_name), {"prompt": "x"}
    assert (await front.client.get(f"/requests/{own}")).status_code == 404
    made = await front.client.put(f"/requests/{own}", json=body)
    assert made.status_code == 202, made.text
    rid = made.json()["id"]
    assert (await front.client.put(f"/requests/{own}", json=body)).json()["id"] == rid
    assert (await front.client.get(f"/requests/{own}")).json()["id"] == rid
    assert (await front.client.post(f"/requests/{own}/cancel")).json()["status"] == "cancelled"
    assert (await front.client.delete(f"/requests/{own}")).status_code == 204


async def test_a_put_to_an_id_that_was_given_out_attaches(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "quick"}))["id"]
    await finished(front, rid)
    reply = await front.client.put(f"/requests/{rid}", json={"prompt": "quick"})
    assert (reply.status_code, reply.json()["text"]) == (200, "A(quick)")
    reply = await front.client.put(f"/requests/{rid}", json={"prompt": "other"})
    assert reply.json()["error"]["code"] == "idempotency_mismatch"
    reply = await front.client.put(f"/requests/{rid[:-26]}{UNKNOWN}", json={"prompt": "x"})
    assert reply.status_code == 404


async def test_an_idempotency_key_joins_whatever_the_order_of_fields(
    front: Front, worker: Answerer
) -> None:
    key = {"Idempotency-Key": "k"}
    first = await submit(front, {"prompt": "!slow", "max_tokens": 5}, **key)
    reply = await front.client.post(
        "/requests", json={"max_tokens": 5, "prompt": "!slow"}, headers=key
    )
    assert (reply.status_code, reply.json()["id"]) == (202, first["id"])
    reply = await front.client.post("/predict", json={"prompt": "!slow"}, headers=key)
    assert reply.json()["error"]["code"] == "idempotency_mismatch"


async def test_the_timeline_says_what_happened(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "quick"}))["id"]
    await finished(front, rid)
    shown = (await front.client.get(f"/requests/{rid}/timeline")).json()
    kinds = [event["kind"] for event in shown["events"]]
    assert (kinds[0], kinds[-1]) == ("submitted", "ended")
    assert (shown["batch_id"], shown["batch_size"], shown["engine"]) == ("b1", 1, "simulated")
    assert shown["bucket_key"] == worker.seen[0].bucket_key
    assert shown["stages"]["inference_s"] == 0.25
    assert shown["stages"]["total_s"] >= shown["stages"]["queue_s"] >= 0
    rid = (await submit(front, {"prompt": ["a", "b"]}))["id"]
    await finished(front, rid)
    shown = (await front.client.get(f"/requests/{rid}/timeline")).json()
    assert [item["id"] for item in shown["items"]] == [f"{rid}.0", f"{rid}.1"]


async def test_a_request_that_waited_too_long_is_expired(front: Front) -> None:
    rid = (await submit(front, {"prompt": "x", "queue_timeout_s": 0.2}))["id"]
    done = await finished(front, rid)
    assert (done["status"], done["error"]["code"], done["usage"]) == ("error", "expired", None)


async def test_another_replica_answers_for_an_id(
    front: Front, settings: ApiSettings, worker: Answerer
) -> None:
    rid = (await submit(front, {"prompt": "!slow"}))["id"]
    async with front_door(settings) as other:
        waiting = asyncio.create_task(finished(other, rid))
        await eventually(lambda: other.services.producer.waiting == 1)
        worker.go.set()
        assert (await waiting)["text"] == "A(!slow)"


async def test_token_ids_are_told_when_asked_for(front: Front, worker: Answerer) -> None:
    rid = (await submit(front, {"prompt": "quick"}))["id"]
    await finished(front, rid)
    reply = await front.client.get(f"/requests/{rid}?include=output_token_ids")
    assert reply.json()["output_token_ids"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("cap", "within", "beyond"),
    [
        ("queue_cap", {"prompt": ["x", "y"]}, {"prompt": ["x", "y", "z"]}),
        ("tenant_queue_cap", {"prompt": ["x", "y"]}, {"prompt": ["x", "y", "z"]}),
        (
            "queue_tokens_cap",
            {"prompt": ["x", "y"], "max_tokens": 900},
            {"prompt": ["x", "y", "z"], "max_tokens": 900},
        ),
        (
            "tenant_queue_tokens_cap",
            {"messages": [{"role": "user", "content": "x" * 5_000}]},
            {"messages": [{"role": "user", "content": "x" * 6_000}]},
        ),
    ],
)
async def test_what_an_empty_queue_has_no_room_for_is_refused_for_good(
    cap: str, within: dict[str, Any], beyond: dict[str, Any], settings: ApiSettings
) -> None:
    room = 2_200 if "tokens" in cap else 2
    async with front_door(settings.model_copy(update={cap: room})) as front:
        reply = await front.client.post("/requests", json=beyond)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["retryable"]) == (
            422,
            "invalid_request",
            False,
        )
        assert error["param"] == ("messages" if "messages" in beyond else "prompt")
        assert f"({cap.upper()})" in error["message"]
        assert reply.headers["x-should-retry"] == "false"
        await submit(front, within)
        reply = await front.client.post("/requests", json=within)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
