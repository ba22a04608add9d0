"""Bodies made to cost more than they weigh: wide, deep, and with long names. All within MAX_BODY_BYTES."""

from __future__ import annotations

import json
import time

import pytest

from api.schemas import MAX_DEPTH, MAX_DETAILS, Malformed, read_json, read_predict, read_request
from tests.api.serving import Front

JSON = "application/json"
HEADERS = {"content-type": JSON, "prefer": "respond-async"}
SIZE = 10 * 2**20 - 100


@pytest.mark.parametrize(
    ("path", "head", "piece", "tail", "field"),
    [
        ("/predict", b'{"prompt":[', b"1,", b"1]}", "prompt"),
        ("/predict", b'{"prompt":[', b'"",', b'""]}', "prompt"),
        ("/predict", b'{"prompt":[', b"[],", b"[]]}", "body"),
        ("/predict", b'{"prompt":[', b"{},", b"{}]}", "body"),
        ("/predict", b'{"prompt":{', b'"a":1,', b'"a":1}}', "body"),
        ("/predict", b'{"prompt":{"a":[', b"1,", b"1]}}", "prompt"),
        ("/predict", b'{"prompt":"x","a":[', b"1,", b"NaN]}", "a["),
        ("/predict", b'{"prompt":"x","metadata":{"a":[', b"1,", b"1]}}", "metadata"),
        ("/predict", b"[", b"[" * 60 + b"]" * 60 + b",", b"1]", "body"),
        ("/requests", b'{"prompt":[', b"1,", b"1]}", "prompt"),
        ("/requests", b'{"messages":[', b"1,", b"1]}", "messages[0]"),
        (
            "/requests",
            b'{"messages":[{"role":"user","content":[',
            b"1,",
            b"1]}]}",
            "messages[0].content[0]",
        ),
        ("/requests", b'{"prompt":"x","stop":[', b'"a",', b'"a"]}', "stop"),
        ("/requests", b'{"prompt":"x","stop_token_ids":[-1,', b"1,", b"1]}", "stop_token_ids"),
        ("/requests", b'{"prompt":"x","tools":[', b"1,", b"1]}", "tools"),
        ("/requests", b'{"prompt":"x","', b"k", b'":1}', "k" * 128 + "..."),
        ("/system_prompt", b'{"system_prompt":[', b"1,", b"1]}", "system_prompt"),
    ],
)
async def test_a_large_body_of_the_wrong_shape_is_refused_soon_and_in_few_words(
    path: str, head: bytes, piece: bytes, tail: bytes, field: str, front: Front
) -> None:
    body = head + piece * ((SIZE - len(head) - len(tail)) // len(piece)) + tail
    began = time.monotonic()
    reply = await front.client.post(path, content=body, headers=HEADERS)
    assert time.monotonic() - began < 5
    assert len(reply.content) < 8_192
    assert reply.status_code == 422
    assert reply.json()["error"]["param"].startswith(field)


async def test_a_large_prompt_full_of_brackets_and_quotes_is_taken(front: Front) -> None:
    prompt = 'a["b"] = {c: 1}\\\n' * 400_000
    reply = await front.client.post("/predict", json={"prompt": prompt}, headers=HEADERS)
    assert reply.status_code == 202


def test_of_many_faults_a_few_are_told() -> None:
    with pytest.raises(Malformed) as caught:
        read_request({"prompt": "x", **{f"k{i}": 1 for i in range(5_000)}})
    assert len(caught.value.detail) == MAX_DETAILS
    with pytest.raises(Malformed) as caught:
        read_predict({"prompt": ["a", *[5] * 1_000]})
    assert [d["loc"] for d in caught.value.detail] == [
        ("body", "prompt", "str"),
        ("body", "prompt", "list[str]", 1),
    ]


def test_more_messages_than_a_chat_has_are_refused() -> None:
    message = {"role": "user", "content": "x"}
    assert len(read_request({"messages": [message] * 1_024})[0].messages or ()) == 1_024
    with pytest.raises(Malformed) as caught:
        read_request({"messages": [message] * 1_025})
    assert caught.value.param == "messages"


def test_brackets_in_strings_are_no_levels() -> None:
    for text in ("[" * 500, '"[{' * 500, '\\"[' * 500, "\\" * 501 + '"' + "{" * 500):
        assert read_json(json.dumps([text, {text: text}]).encode(), JSON) == [text, {text: text}]


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_a_body_may_have_so_many_levels_and_no_more(opened: str, closed: str) -> None:
    per_turn = opened.count("[") + opened.count("{")
    n = MAX_DEPTH // per_turn
    assert read_json((opened * n + "1" + closed * n).encode(), JSON)
    for depth in (n + 1, 10 * n, 100_000):
        with pytest.raises(Malformed, match=r"body: must (be nested at most 64 levels|have at)"):
            read_json((opened * depth + "1" + closed * depth).encode(), JSON)


DEPTHS = (50, 60, 62, 63, 64, 65, 100, 300, 600, 850, *range(900, 1_101, 9))


@pytest.mark.parametrize("depth", DEPTHS)
async def test_what_is_accepted_at_any_depth_can_be_polled_and_cancelled(
    depth: int, front: Front
) -> None:
    inner = '{"a":' * (depth - 2) + "{}" + "}" * (depth - 2)
    for method, path, body, is_sound in (
        ("POST", "/requests", '{"prompt": "x", "metadata": %s}', True),
        ("POST", "/requests", '{"prompt": "x", "chat_template_kwargs": %s}', True),
        ("POST", "/requests", '{"prompt": ["x", "y"], "metadata": %s}', True),
        ("POST", "/requests", '{"prompt": "x", "response_format": %s}', False),
        ("PUT", "/requests/mine", '{"prompt": "x", "metadata": %s}', True),
        ("POST", "/predict", '{"prompt": "x", "metadata": %s}', True),
        ("POST", "/predict", '{"prompt": "x", "ignored": %s}', True),
        ("POST", "/predict", '{"prompt": %s}', False),
    ):
        reply = await front.client.request(method, path, content=body % inner, headers=HEADERS)
        is_accepted = is_sound and depth <= MAX_DEPTH
        assert reply.status_code == (202 if is_accepted else 422), (path, body)
        if is_accepted:
            rid = reply.json()["id"]
            assert (await front.client.get(f"/requests/{rid}")).status_code == 202
            ended = await front.client.post(f"/requests/{rid}/cancel")
            assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
        elif depth > MAX_DEPTH:
            assert reply.json()["error"]["message"] == "body: must be nested at most 64 levels deep"
