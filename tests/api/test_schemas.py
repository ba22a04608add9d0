"""Reading bodies: what is no JSON, what is no request, and that each refusal names its field."""

from __future__ import annotations

from typing import Any

import pytest

from api.schemas import Malformed, check_integers, read_json, read_predict, read_request
from shared.errors import InvalidRequest

JSON = "application/json"


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "body"),
        (b"   ", "body"),
        (b"{", "body"),
        (b"nonsense", "body"),
        (b'{"prompt": "\xff\xfe"}', "body"),
        (b'{"prompt": "a\x00b"}', "body"),
        (b'{"prompt": "line\nbreak"}', "body"),
        (b"[" * 200_000, "body"),
        (b'{"a":' * 100_000, "body"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"prompt": "x", "temperature": Infinity}', "temperature"),
        (b'{"prompt": "x", "metadata": {"a": [1, -Infinity]}}', "metadata.a[1]"),
        (b'{"prompt": "x", "top_p": 1e999}', "top_p"),
        (b'{"prompt": "half \\ud800"}', "prompt"),
        (b'{"prompt": ["ok", "half \\udc00"]}', "prompt[1]"),
        (b'{"prompt": "x", "max_new_tokens": ' + b"9" * 5000 + b"}", "body"),
    ],
)
def test_what_is_no_json_is_refused_by_name(raw: bytes, named: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_json(raw, JSON)
    assert caught.value.param == named
    assert named in caught.value.message
    assert caught.value.detail[0]["loc"][0] == "body"


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded"]
)
def test_another_content_type_is_refused_by_name(content_type: str | None) -> None:
    with pytest.raises(Malformed, match="content-type"):
        read_json(b"{}", content_type)


@pytest.mark.parametrize(
    "content_type",
    [JSON, "application/json; charset=utf-8", "application/problem+json", "Application/JSON"],
)
def test_json_content_types_are_taken(content_type: str) -> None:
    assert read_json(b'{"a": "\\u0000 \\u2028"}', content_type) == {"a": "\x00 \u2028"}


@pytest.mark.parametrize(("given", "taken"), [("12", 12), (12.0, 12), (True, 1), (None, None)])
def test_predict_coerces_numbers_as_the_seed_did(given: Any, taken: int | None) -> None:
    assert read_predict({"prompt": "x", "max_new_tokens": given}).max_new_tokens == taken


def test_predict_ignores_what_it_does_not_know() -> None:
    assert read_predict({"prompt": "x", "whatever": {"a": 1}, "max_tokens": 5}).prompt == "x"


def test_an_error_does_not_send_a_long_body_back() -> None:
    with pytest.raises(Malformed) as caught:
        read_predict({"prompt": {"a": "x" * 10_000}})
    assert all(item["input"] is None for item in caught.value.detail)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "body"),
        ("text", "body"),
        ({"prompt": "x", "colour": "red"}, "colour"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": "x", "raw": "yes"}, "raw"),
        ({"prompt": "x", "raw": 1}, "raw"),
        ({"prompt": "x", "priority": "urgent"}, "priority"),
        ({"prompt": "x", "priority": 1}, "priority"),
        ({"prompt": "x", "timeout_s": "5"}, "timeout_s"),
        ({"prompt": "x", "timeout_s": True}, "timeout_s"),
        ({"prompt": "x", "timeout_s": 0}, "timeout_s"),
        ({"prompt": "x", "queue_timeout_s": -1}, "queue_timeout_s"),
        ({"prompt": "x", "max_new_tokens": 1.5}, "max_new_tokens"),
        ({"prompt": "x", "metadata": []}, "metadata"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_requests_refuses_bad_bodies_by_name(body: Any, named: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_request(body)
    assert caught.value.param == named


def test_requests_keeps_sampling_fields_apart_and_takes_null_for_absent() -> None:
    body, sampling = read_request({"prompt": "x", "top_k": 5, "seed": None, "metadata": None})
    assert (body.prompt, body.metadata, sampling) == ("x", None, {"top_k": 5})


def test_content_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body, _ = read_request({"messages": [{"role": "user", "content": parts}]})
    assert body.messages is not None
    assert body.messages[0].text == "ab"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_integers_of_over_64_bits_are_refused_by_name(value: int) -> None:
    with pytest.raises(InvalidRequest, match="top_k"):
        check_integers({"top_k": value})
