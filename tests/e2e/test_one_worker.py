"""The service for real: broker, front door and a vLLM worker as processes, the packaged model, questions over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.door import Door
from tests.e2e.places import wait_until
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
LIMIT_S = 60.0
# vLLM's own figures.
RUNNING, GENERATED = "vllm:num_requests_running", "vllm:generation_tokens_total"
FREED_S = 5.0  # a beat at most until the worker hears of it; then a step, on a slow machine
# So long that nobody waits for its end by mistake.
ENDLESS: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}


def test_it_says_warming_until_a_worker_serves_and_then_ok(stack: Stack) -> None:
    assert stack.statuses == ["warming", "ok"]


def test_the_worker_tells_its_engine_and_its_memory(door: Door) -> None:
    worker = door.workers()[0]
    assert worker["engine"] == "vllm_async"
    assert worker["state"] in ("ready", "busy")
    assert worker["effective_args"]["kv_cache_memory_bytes"] == 2**30
    assert worker["effective_args"]["dtype"] in ("bfloat16", "float32")  # by what the CPU computes
    assert worker["slots"] == 8
    assert [step["name"] for step in worker["start_report"]] == ["tokenizer", "vllm_async"]
    assert all(step["error"] is None for step in worker["start_report"])


def test_a_question_is_answered_to_the_letter(door: Door) -> None:
    reply = door.post("/predict", {"prompt": QUESTION})
    assert reply.status_code == 200
    assert reply.json() == {"response": ANSWER}
    assert reply.headers["x-finish-reason"] == "stop"
    assert int(reply.headers["x-prompt-tokens"]) > int(reply.headers["x-generated-tokens"]) > 3


def test_a_list_gives_a_list_of_the_same_length_in_the_same_order(door: Door) -> None:
    places = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Germany": "Berlin"}
    answers = door.predict([f"What is the capital of {country}?" for country in places])
    assert len(answers) == len(places)
    assert [city in answer for city, answer in zip(places.values(), answers, strict=True)] == [
        True
    ] * len(places), answers


def test_a_list_of_one_stays_a_list(door: Door) -> None:
    assert door.predict([QUESTION]) == [ANSWER]
    assert door.predict(QUESTION) == ANSWER


def test_a_request_is_accepted_polled_and_told_in_full(door: Door) -> None:
    sent = door.post("/requests", {"prompt": QUESTION, "max_tokens": 16, "temperature": 0})
    assert sent.status_code == 202
    assert sent.json()["status"] == "pending"
    rid = sent.json()["id"]
    assert sent.headers["location"] == f"/requests/{rid}"

    first = door.get(f"/requests/{rid}")
    assert first.status_code == (200 if first.json()["status"] == "finished" else 202)
    shown = door.final(rid, LIMIT_S)

    assert shown["id"] == rid
    assert shown["status"] == "finished"
    assert "Paris" in shown["text"]
    assert shown["finish_reason"] in ("stop", "length")
    assert shown["stop_reason"] is None
    assert shown["error"] is None
    usage = shown["usage"]
    assert usage["prompt_tokens"] > 5
    assert 1 <= usage["completion_tokens"] <= 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert shown["created_at"] <= shown["started_at"] <= shown["finished_at"]
    assert shown["compute_s"] > 0
    assert shown["queue_s"] >= 0
    assert shown["attempts"] == 1
    assert shown["worker"].startswith("worker-1")
    assert door.get(f"/requests/{rid}").json() == shown


def test_a_stop_string_ends_the_answer_and_is_named(door: Door) -> None:
    rid = door.submit(prompt=QUESTION, max_tokens=32, temperature=0, stop=["Paris"])
    shown = door.final(rid, LIMIT_S)
    assert shown["finish_reason"] == "stop"
    assert shown["stop_reason"] == "Paris"
    assert "Paris" not in shown["text"]


def test_a_submitted_list_is_one_request_with_its_answers_in_order(door: Door) -> None:
    countries = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}
    prompts = [f"What is the capital of {country}?" for country in countries]
    system_prompt = door.get("/system_prompt").json()["system_prompt"]
    rid = door.submit(prompt=prompts, system_prompt=system_prompt, max_tokens=24, temperature=0)
    shown = door.final(rid, LIMIT_S)
    assert shown["status"] == "finished"
    assert shown["n_items"] == shown["n_ended"] == len(prompts)
    assert [item["index"] for item in shown["items"]] == [0, 1, 2]
    for city, item in zip(countries.values(), shown["items"], strict=True):
        assert item["status"] == "finished"
        assert city in item["text"]


def test_requests_that_sample_differently_are_served_together(door: Door) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.2},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 20},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0, "min_tokens": 8, "presence_penalty": 0.5},
    ]
    rids = [door.submit(prompt=QUESTION, max_tokens=8, **kind) for kind in kinds * 2]
    for shown in door.finals(rids, LIMIT_S):
        assert shown["status"] == "finished", shown
        assert shown["text"]
        assert 1 <= shown["usage"]["completion_tokens"] <= 8


def test_a_prompt_longer_than_the_model_is_refused_by_name(door: Door) -> None:
    too_long = "word " * (door.workers()[0]["max_model_len"] + 10)
    reply = door.post("/predict", {"prompt": too_long})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "prompt_too_long"
    assert reply.json()["error"]["stage"] == "worker"

    shown = door.final(door.submit(prompt=too_long), LIMIT_S)
    assert shown["status"] == "error"
    assert shown["error"]["code"] == "prompt_too_long"
    assert door.predict(QUESTION) == ANSWER


def test_a_running_request_is_cancelled_and_its_engine_freed(stack: Stack, door: Door) -> None:
    made = stack.engine_figure(GENERATED)
    rid = door.submit(prompt="Count upwards.", **ENDLESS)
    wait_until("it runs", lambda: door.look(rid)["status"] == "running", 30.0)
    wait_until("it has made tokens", lambda: stack.engine_figure(GENERATED) > made + 2, 30.0)
    # The engine's figures trail its steps, so that the tokens may be an earlier request's.
    wait_until("the engine has it", lambda: stack.engine_figure(RUNNING) == 1, 30.0)
    reply = door.post(f"/requests/{rid}/cancel")
    assert reply.status_code == 200
    assert reply.json()["status"] == "cancelled"
    # vLLM's own figure: the worker's slot is free at once, though an engine that did not hear of it
    # would go on for minutes.
    wait_until("the engine is idle", lambda: stack.engine_figure(RUNNING) == 0, FREED_S)
    wait_until("so is the worker", lambda: door.workers()[0]["running"] == 0, 10.0)

    def is_settled() -> bool:
        usage = door.look(rid)["usage"]
        return usage is not None and usage["completion_tokens"] > 0

    wait_until("what it cost is known", is_settled, 10.0)
    again = door.post(f"/requests/{rid}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert door.look(rid)["status"] == "cancelled"
    assert door.predict(QUESTION) == ANSWER


def test_one_cancel_ends_a_whole_list(stack: Stack, door: Door) -> None:
    # More than run at once, so that some are still queued.
    rid = door.submit(prompt=[f"Count from {n}." for n in range(12)], **ENDLESS)
    wait_until("it runs", lambda: stack.engine_figure(RUNNING) > 1, 30.0)
    assert door.post(f"/requests/{rid}/cancel").status_code == 200
    shown = door.final(rid, 15.0)
    assert shown["status"] == "cancelled"
    assert [item["status"] for item in shown["items"]] == ["cancelled"] * 12
    wait_until("the engine is idle", lambda: stack.engine_figure(RUNNING) == 0, FREED_S)
    wait_until("so is the worker", lambda: door.workers()[0]["running"] == 0, 10.0)


def test_nothing_is_left_in_the_queue(door: Door) -> None:
    """Last on purpose: every request of this module has ended, so none may be queued or leased."""
    figures = door.get("/queue").json()
    assert (figures["queued"], figures["running"], figures["live"]) == (0, 0, 0)
