"""POST /predict: shapes, errors of items, waiting, leaving. The broker is real."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from api.holding import LetGo, hold
from api.settings import ApiSettings
from shared.request import Priority, Trim
from tests.api.answering import Answerer
from tests.api.conftest import Load
from tests.api.serving import Front, eventually, front_door


async def test_a_prompt_gives_a_string_and_a_list_gives_a_list(
    front: Front, worker: Answerer
) -> None:
    for prompt, response in (
        ("hi", "A(hi)"),
        (["a"], ["A(a)"]),
        (["a", "b", "a"], ["A(a)", "A(b)", "A(a)"]),
        ("", "A()"),
        ([], []),
    ):
        reply = await front.client.post("/predict", json={"prompt": prompt})
        assert (reply.status_code, reply.json()) == (200, {"response": response})
        assert reply.headers["x-request-id"]


async def test_the_seeds_defaults_make_a_complete_request(front: Front, worker: Answerer) -> None:
    await front.client.post("/predict", json={"prompt": "hi"})
    (req,) = worker.seen
    s = req.sampling
    assert (s.max_tokens, s.min_tokens, s.temperature, s.top_p, s.top_k) == (32, 0, 0.0, 1.0, 1)
    assert (s.repetition_penalty, s.frequency_penalty) == (1.05, 0.1)
    assert s.stop == ("<|im_end|>", "<|endoftext|>")
    assert req.bucket_key == s.bucket_key
    assert req.system_prompt == front.services.settings.system_prompt
    assert req.delivery.trim == Trim(cut_examples=True, max_sentences=6)
    assert (req.priority, req.timeout_s, req.queue_timeout_s) == (Priority.standard, 3600, 3600)
    assert req.cost_tokens == len((req.system_prompt + "hi").encode()) // 3 + 1 + 32


async def test_raising_only_the_temperature_samples(front: Front, worker: Answerer) -> None:
    await front.client.post("/predict", json={"prompt": "hi", "temperature": 0.7})
    await front.client.post("/predict", json={"prompt": "hi", "temperature": 0.7, "top_k": 3})
    await front.client.post("/predict", json={"prompt": "hi", "temperature": 0, "top_p": 0.5})
    found = [(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p) for r in worker.seen]
    assert found == [(0.7, -1, 1.0), (0.7, 3, 1.0), (0.0, 1, 0.5)]


async def test_items_of_a_list_are_routed_one_by_one(front: Front, worker: Answerer) -> None:
    prompts = ["gemm", "短", "写代码", "短2", "#include", "gemm2"]
    reply = await front.client.post("/predict", json={"prompt": prompts})
    assert reply.json() == {"response": [f"A({p})" for p in prompts]}
    by_prompt = {r.prompt: (r.sampling.max_tokens, r.delivery.route) for r in worker.seen}
    assert [by_prompt[p] for p in prompts] == [
        (192, "long"),
        (32, "short"),
        (64, "soft"),
        (32, "short"),
        (192, "hard"),
        (192, "long"),
    ]


async def test_token_routing_is_logged_once_for_a_request_when_asked(
    load_settings: Load,
    broker_url: str,
    queue_name: str,
    worker: Answerer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "LOG_TOKEN_ROUTING": "1"}
    async with front_door(load_settings(variables)) as front:
        with caplog.at_level(logging.INFO, "uvicorn.error"):
            await front.client.post("/predict", json={"prompt": ["gemm", "短", "短2"]})
            await front.client.post("/predict", json={"prompt": "短"})
    said = [r.getMessage() for r in caplog.records if "token_routing" in r.getMessage()]
    assert said == ["token_routing: {32: 2, 192: 1}", "token_routing: {32: 1}"]


async def test_no_budget_is_above_the_cap_of_all_requests(
    load_settings: Load, broker_url: str, queue_name: str, worker: Answerer
) -> None:
    where = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name}
    capped = {"MAX_TOKENS_CAP": "20", "DEFAULT_MAX_TOKENS": "20", "MAX_NEW_TOKENS_CODE": "15"}
    async with front_door(load_settings({**where, **capped})) as front:
        await front.client.post("/predict", json={"prompt": ["gemm", "短"]})
        await front.client.post("/predict", json={"prompt": "x", "max_new_tokens": 99})
        info = (await front.client.get("/info")).json()
    budgets = {req.prompt: req.sampling.max_tokens for req in worker.seen}
    assert budgets == {"gemm": 15, "短": 20, "x": 20}
    assert info["defaults"]["max_new_tokens"] == 20


async def test_prompts_are_never_logged(
    front: Front, worker: Answerer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for body in (
            {"prompt": "pelican"},
            {"prompt": ["!engine pelican"]},
            {"prompt": {"pelican": 1}},
        ):
            await front.client.post("/predict", json=body)
    assert "pelican" not in caplog.text


async def test_one_budget_of_the_callers_own_holds_for_every_item(
    front: Front, worker: Answerer
) -> None:
    for given, budget in ((50, 50), ("12", 12), (12.0, 12), (True, 1), (0, 1), (99_999, 4096)):
        worker.seen.clear()
        body = {"prompt": ["gemm", "短"], "max_new_tokens": given}
        assert (await front.client.post("/predict", json=body)).status_code == 200
        assert [r.sampling.max_tokens for r in worker.seen] == [budget, budget]


async def test_short_answers_are_trimmed_and_others_are_not(front: Front, worker: Answerer) -> None:
    long = "一。二。三。四。五。六。七。例如：八。"
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"prompt": f"!say {long}"}, "一。二。三。四。五。六。"),
        ({"prompt": f"!say {long}", "trim": False}, long),
        ({"prompt": f"!say {long}", "max_new_tokens": 600}, long),
        (
            {"prompt": f"!say {long}", "max_new_tokens": 600, "trim": True},
            "一。二。三。四。五。六。",
        ),
    ]
    for body, text in bodies:
        assert (await front.client.post("/predict", json=body)).json() == {"response": text}


async def test_each_item_of_a_list_is_trimmed_by_its_own_rule(
    front: Front, worker: Answerer
) -> None:
    short, long = "!say 一。二。三。四。五。六。七。", "!say gemm。二。三。四。五。六。七。"
    for prompts in ([short, long], [long, short]):
        reply = await front.client.post("/predict", json={"prompt": prompts})
        assert reply.json()["response"] == [
            "一。二。三。四。五。六。" if p == short else "gemm。二。三。四。五。六。七。"
            for p in prompts
        ]


async def test_a_failing_item_leaves_its_place_empty_and_is_named(
    front: Front, worker: Answerer
) -> None:
    body: dict[str, Any] = {"prompt": ["ok", "!engine", "fine"]}
    reply = await front.client.post("/predict", json=body)
    assert reply.status_code == 200
    assert reply.json()["response"] == ["A(ok)", "", "A(fine)"]
    (error,) = reply.json()["errors"]
    assert (error["index"], error["code"]) == (1, "engine_error")
    assert reply.headers["x-finish-reason"] == "stop,error,stop"

    reply = await front.client.post("/predict", json={**body, "partial": False})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_error")

    reply = await front.client.post("/predict", json={"prompt": ["!long", "!engine"]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "prompt_too_long")


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        ("!engine", 500, "engine_error"),
        ("!long", 413, "prompt_too_long"),
        ("!dead", 502, "attempts_exhausted"),
    ],
)
async def test_a_failed_request_is_told_with_its_code(
    prompt: str, status: int, code: str, front: Front, worker: Answerer
) -> None:
    reply = await front.client.post("/predict", json={"prompt": prompt})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["retryable"]) == (status, code, False)
    assert error["request_id"] == reply.headers["x-request-id"]
    assert reply.headers["x-should-retry"] == "false"


async def test_what_an_answer_cost_is_in_its_headers(front: Front, worker: Answerer) -> None:
    headers = (await front.client.post("/predict", json={"prompt": "hi"})).headers
    assert headers["x-finish-reason"] == "stop"
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("7", "3")
    assert headers["x-inference-time"] == "0.250"
    assert float(headers["x-queue-time"]) >= 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -9}, "top_k"),
        ({"top_k": 2**70}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": "inf"}, "repetition_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"max_new_tokens": 12.5}, "max_new_tokens"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
        ({"timeout_s": 3601}, "timeout_s"),
        ({"queue_timeout_s": 0}, "queue_timeout_s"),
        ({"priority": "urgent"}, "priority"),
        ({"stream": True}, "stream"),
        ({"metadata": {"a": "x" * 5000}}, "metadata"),
        ({"metadata": {"a": 10**30}}, "metadata"),
        ({"metadata": {"as JSON more than 4096 bytes": [1] * 4000}}, "metadata"),
        ({"prompt": ["x"] * 10_000}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
    ],
)
async def test_bad_input_is_422_with_a_detail_list_that_names_the_field(
    body: dict[str, Any], field: str, front: Front
) -> None:
    reply = await front.client.post("/predict", json={"prompt": "x", **body})
    assert reply.status_code == 422
    detail = reply.json()["detail"]
    assert detail[0]["loc"][:2] == ["body", field]
    assert {"type", "loc", "msg"} <= detail[0].keys()
    assert (await front.services.producer.stats()).live == 0


async def test_no_body_at_all_is_told_as_the_first_seed_told_it(front: Front) -> None:
    reply = await front.client.post("/predict")
    assert reply.status_code == 422
    missing = {"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}
    assert reply.json()["detail"] == [missing]
    reply = await front.client.post("/predict", content=b"{}")
    assert reply.json()["detail"][0]["loc"] == ["header", "content-type"]


async def test_metadata_may_have_4096_bytes_of_json(front: Front) -> None:
    fits = {"a": "x" * (4096 - len('{"a":""}'))}
    for metadata, status in ((fits, 202), ({"a": fits["a"] + "x"}, 422)):
        reply = await front.client.post(
            "/predict",
            json={"prompt": "x", "metadata": metadata},
            headers={"prefer": "respond-async"},
        )
        assert reply.status_code == status


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'"\xff"', b"[" * 100_000, b'{"prompt": "x", "top_p": NaN}']
)
async def test_what_is_no_json_is_422(raw: bytes, front: Front) -> None:
    headers = {"content-type": "application/json"}
    reply = await front.client.post("/predict", content=raw, headers=headers)
    assert (reply.status_code, reply.json()["detail"][0]["loc"][0]) == (422, "body")
    assert reply.json()["error"]["code"] == "invalid_request"


async def test_control_characters_in_a_prompt_are_served(front: Front, worker: Answerer) -> None:
    prompt = "a\x00b\x1b[31m\u2028\t\r\n\u200f🙂"
    reply = await front.client.post("/predict", json={"prompt": prompt})
    assert reply.json() == {"response": f"A({prompt})"}


async def test_unknown_fields_are_ignored(front: Front, worker: Answerer) -> None:
    body = {"prompt": "hi", "max_tokens": 5, "whatever": [1], "n": 3}
    assert (await front.client.post("/predict", json=body)).json() == {"response": "A(hi)"}
    assert worker.seen[0].sampling.max_tokens == 32


async def test_an_answer_can_be_fetched_later(front: Front, worker: Answerer) -> None:
    reply = await front.client.post(
        "/predict", json={"prompt": "!slow"}, headers={"Prefer": "respond-async"}
    )
    body = reply.json()
    assert (reply.status_code, reply.headers["preference-applied"]) == (202, "respond-async")
    assert reply.headers["location"] == f"/requests/{body['id']}" == body["urls"]["self"]
    assert reply.headers["x-request-id"] == body["id"]
    assert int(reply.headers["retry-after"]) >= 1
    worker.go.set()
    done = await front.client.get(f"/requests/{body['id']}?wait=10")
    assert (done.status_code, done.json()["text"]) == (200, "A(!slow)")


async def test_a_preferred_wait_ends_in_the_answer_or_in_202(
    front: Front, worker: Answerer
) -> None:
    headers = {"Prefer": "wait=1"}
    reply = await front.client.post("/predict", json={"prompt": "hi"}, headers=headers)
    assert (reply.status_code, reply.headers["preference-applied"]) == (200, "wait=1")
    reply = await front.client.post("/predict", json={"prompt": "!slow"}, headers=headers)
    assert (reply.status_code, reply.headers["preference-applied"]) == (202, "wait=1")
    state = await front.client.get(f"/requests/{reply.json()['id']}")
    assert (state.status_code, state.json()["status"]) == (202, "running")


async def test_an_answer_that_comes_as_the_preferred_wait_ends_is_given_as_an_answer(
    front: Front, worker: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_late(*args: Any) -> LetGo:
        await hold(*args)
        return LetGo.timed_out

    monkeypatch.setattr("api.routes.predict.hold", too_late)
    for prompt, answer in (("x", "A(x)"), (["x", "y"], ["A(x)", "A(y)"])):
        body = {"prompt": prompt}
        reply = await front.client.post("/predict", json=body, headers={"prefer": "wait=5"})
        assert (reply.status_code, reply.json()) == (200, {"response": answer})


async def test_when_the_sync_wait_is_over_the_request_is_cancelled(
    load_settings: Load, settings: ApiSettings, worker: Answerer
) -> None:
    short = settings.model_copy(update={"sync_wait_s": 0.5})
    async with front_door(short) as front:
        reply = await front.client.post("/predict", json={"prompt": "!slow"})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (504, "wait_timeout")
        assert reply.headers["x-should-retry"] == "false"
        state = await front.client.get(f"/requests/{error['request_id']}")
        assert (state.status_code, state.json()["status"]) == (200, "cancelled")
        await eventually(lambda: error["request_id"] in worker.aborted)

        reply = await front.client.post("/predict", json={"prompt": ["!slow 1", "!slow 2"]})
        assert reply.status_code == 504
        rid = reply.json()["error"]["request_id"]
        state = await front.client.get(f"/requests/{rid}")
        assert {item["status"] for item in state.json()["items"]} == {"cancelled"}


async def test_the_same_idempotency_key_joins_the_run(front: Front, worker: Answerer) -> None:
    headers = {"Idempotency-Key": "order-1"}
    body = {"prompt": "!slow"}
    first = asyncio.create_task(front.client.post("/predict", json=body, headers=headers))
    await eventually(lambda: len(worker.seen) == 1)
    second = asyncio.create_task(front.client.post("/predict", json=body, headers=headers))
    await eventually(lambda: front.services.producer.waiting == 1)
    worker.go.set()
    for reply in await asyncio.gather(first, second):
        assert reply.json() == {"response": "A(!slow)"}
    third = await front.client.post("/predict", json=body, headers=headers)
    assert third.json() == {"response": "A(!slow)"}
    assert len(worker.seen) == 1

    other = await front.client.post("/predict", json={"prompt": "else"}, headers=headers)
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_mismatch"


async def test_a_joined_run_is_shown_as_it_is_by_now(front: Front, worker: Answerer) -> None:
    headers = {"Idempotency-Key": "k", "Prefer": "respond-async"}
    body = {"prompt": "!slow"}
    first = await front.client.post("/predict", json=body, headers=headers)
    rid = first.json()["id"]
    await eventually(lambda: len(worker.seen) == 1)
    second = await front.client.post("/predict", json=body, headers=headers)
    assert (second.status_code, second.json()["id"]) == (202, rid)
    assert second.json()["status"] == "running"
    worker.go.set()
    await front.client.get(f"/requests/{rid}?wait=10")
    third = await front.client.post("/predict", json=body, headers=headers)
    assert (third.status_code, third.json()["text"]) == (200, "A(!slow)")
    assert third.headers["preference-applied"] == "respond-async"


async def test_a_trace_reaches_the_request_if_it_is_one(front: Front, worker: Answerer) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    for value in (trace, "nonsense"):
        headers = {"traceparent": value}
        await front.client.post("/predict", json={"prompt": "x"}, headers=headers)
    assert [req.traceparent for req in worker.seen] == [trace, None]


async def test_a_list_under_an_idempotency_key_joins_too(front: Front, worker: Answerer) -> None:
    headers = {"Idempotency-Key": "list-1"}
    for _ in range(2):
        reply = await front.client.post("/predict", json={"prompt": ["a", "b"]}, headers=headers)
        assert reply.json() == {"response": ["A(a)", "A(b)"]}
    assert len(worker.seen) == 2


async def test_who_waits_for_a_cancelled_request_gets_409(front: Front, worker: Answerer) -> None:
    waiting = asyncio.create_task(front.client.post("/predict", json={"prompt": "!slow"}))
    await eventually(lambda: len(worker.seen) == 1)
    rid = worker.seen[0].id
    assert (await front.client.post(f"/requests/{rid}/cancel")).json()["status"] == "cancelled"
    reply = await waiting
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "cancelled")
    assert reply.headers["x-should-retry"] == "false"


async def test_a_clients_own_request_id_comes_back(front: Front, worker: Answerer) -> None:
    headers = {"X-Request-Id": "trace-7.a_B"}
    reply = await front.client.post("/predict", json={"prompt": "hi"}, headers=headers)
    assert reply.headers["x-request-id"] == "trace-7.a_B"
    assert worker.seen[0].id != "trace-7.a_B"
    for bad in ("with space", "x" * 129, "new\x7fline"):
        reply = await front.client.get("/livez", headers={"X-Request-Id": bad})
        assert reply.headers["x-request-id"] not in ("", bad)


async def test_a_full_queue_is_429_with_a_time_to_come_again(
    load_settings: Load, settings: ApiSettings
) -> None:
    full = settings.model_copy(update={"queue_cap": 3})
    async with front_door(full) as front:
        for _ in range(2):
            assert (await front.client.post("/requests", json={"prompt": "x"})).status_code == 202
        reply = await front.client.post("/predict", json={"prompt": ["a", "b"]})
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        assert "retry-after-ms" in reply.headers
        assert "x-should-retry" not in reply.headers
        reply = await front.client.post("/predict", json={"prompt": ["a", "b", "c", "d"]})
        assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["body", "prompt"])
        assert (await front.services.producer.stats()).live == 2


async def test_a_request_that_needs_a_worker_is_refused_without_one(front: Front) -> None:
    reply = await front.client.post("/predict", json={"prompt": "hi", "require_worker": True})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_workers")
    assert "retry-after" in reply.headers
