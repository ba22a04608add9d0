"""Who may ask, whose answers they see, and who may change the system prompt."""

from __future__ import annotations

import httpx
import pytest

from api.settings import ApiSettings
from tests.api.answering import Answerer
from tests.api.conftest import Load
from tests.api.serving import Front, eventually, front_door


@pytest.fixture
def keyed(load_settings: Load, broker_url: str, queue_name: str) -> ApiSettings:
    variables = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "API_KEYS": "ada,bob"}
    return load_settings(variables)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_where_keys_are_set_requests_need_one(keyed: ApiSettings, worker: Answerer) -> None:
    async with front_door(keyed) as front:
        for headers in (
            {},
            bearer("eve"),
            {"Authorization": "Basic ada"},
            {"Authorization": "ada"},
        ):
            for method, path in (
                ("POST", "/predict"),
                ("POST", "/requests"),
                ("GET", "/requests/x"),
            ):
                reply = await front.client.request(
                    method, path, json={"prompt": "x"}, headers=headers
                )
                assert (reply.status_code, reply.json()["error"]["code"]) == (
                    401,
                    "invalid_api_key",
                )
                assert reply.headers["www-authenticate"] == "Bearer"
        reply = await front.client.post("/predict", json={"prompt": "x"}, headers=bearer("bob"))
        assert reply.json() == {"response": "A(x)"}
        assert (await front.client.get("/")).status_code == 200
        assert (await front.client.get("/readyz")).status_code == 200


async def test_anothers_id_is_unknown_on_every_path(keyed: ApiSettings, worker: Answerer) -> None:
    async with front_door(keyed) as front:
        body = {"prompt": "!slow"}
        reply = await front.client.put("/requests/job", json=body, headers=bearer("ada"))
        rid = reply.json()["id"]
        for known in (rid, "job"):
            for method, path in (
                ("GET", f"/requests/{known}"),
                ("GET", f"/requests/{known}?wait=0.1"),
                ("POST", f"/requests/{known}/cancel"),
                ("DELETE", f"/requests/{known}"),
                ("GET", f"/requests/{known}/timeline"),
            ):
                reply = await front.client.request(method, path, headers=bearer("bob"))
                assert reply.status_code == 404, (method, path)
        reply = await front.client.put(f"/requests/{rid}", json=body, headers=bearer("bob"))
        assert reply.status_code == 404
        # The same name is another request for another key.
        other = await front.client.put("/requests/job", json=body, headers=bearer("bob"))
        assert other.json()["id"] != rid
        reply = await front.client.get(f"/requests/{rid}", headers=bearer("ada"))
        assert (reply.status_code, reply.json()["status"]) == (202, "running")


async def test_a_new_system_prompt_holds_for_every_replica_at_once(
    front: Front, settings: ApiSettings, worker: Answerer
) -> None:
    default = (await front.client.get("/system_prompt")).json()["system_prompt"]
    assert default == settings.system_prompt
    async with front_door(settings) as other:
        await eventually(lambda: other.services.producer.is_up)
        await front.client.post("/system_prompt", json={"system_prompt": "  be brief "})

        async def knows() -> bool:
            reply = await other.client.get("/system_prompt")
            return bool(reply.json() == {"system_prompt": "be brief"})

        await eventually(knows, within_s=2)
        await other.client.post("/predict", json={"prompt": "x"})
    await front.client.post("/predict", json={"prompt": "x"})
    await front.client.post("/system_prompt", json={"system_prompt": " "})
    await front.client.post("/predict", json={"prompt": "x"})
    assert [req.system_prompt for req in worker.seen] == ["be brief", "be brief", ""]


async def test_a_stored_system_prompt_is_taken_back(
    front: Front, settings: ApiSettings, worker: Answerer
) -> None:
    default = settings.system_prompt
    async with front_door(settings) as other:
        await eventually(lambda: other.services.producer.is_up)
        await front.client.post("/system_prompt", json={"system_prompt": ""})
        for _ in range(2):
            reply = await front.client.delete("/system_prompt")
            assert reply.json() == {"status": "ok", "system_prompt_len": len(default)}
        assert (await front.client.get("/system_prompt")).json() == {"system_prompt": default}

        def has_heard() -> bool:
            return other.services.prompts.version == 2

        await eventually(has_heard, within_s=2)
        await other.client.post("/predict", json={"prompt": "x"})
        await other.client.post("/requests", json={"prompt": "y"})
        await eventually(lambda: len(worker.seen) == 2)
    assert [req.system_prompt for req in worker.seen] == [default, None]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "system_prompt"]),
        ({"system_prompt": 5}, ["body", "system_prompt"]),
        ([], ["body"]),
    ],
)
async def test_a_bad_system_prompt_is_422_as_the_seed_told_it(
    body: object, loc: list[str], front: Front
) -> None:
    reply = await front.client.post("/system_prompt", json=body)
    assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, loc)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Host": "x"},
        {"Forwarded": "for=127.0.0.1"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
async def test_without_a_token_only_this_machine_sets_the_system_prompt(
    headers: dict[str, str], front: Front
) -> None:
    body = {"system_prompt": "x"}
    reply = await front.client.post("/system_prompt", json=body, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")
    assert "ADMIN_TOKEN" in reply.json()["error"]["message"]
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        reply = await front.client.post("/system_prompt", json=body, headers={"Host": host})
        assert reply.status_code == 200, host


async def test_a_client_from_elsewhere_may_not(front: Front) -> None:
    transport = httpx.ASGITransport(front.app, client=("192.168.1.9", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        reply = await client.post("/system_prompt", json={"system_prompt": "x"})
        assert reply.status_code == 403
        assert (await client.delete("/system_prompt")).status_code == 403


async def test_a_server_that_others_reach_needs_the_token(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    variables = {
        "REDIS_URL": broker_url,
        "QUEUE_NAME": queue_name,
        "HOST": "0.0.0.0",
        "ALLOW_ANONYMOUS": "1",
    }
    body = {"system_prompt": "x"}
    async with front_door(load_settings(variables)) as front:
        assert (await front.client.post("/system_prompt", json=body)).status_code == 403
    async with front_door(load_settings({**variables, "ADMIN_TOKEN": "s3cret"})) as front:
        for headers, code in (({}, 401), (bearer("wrong"), 401), (bearer("s3cret"), 200)):
            reply = await front.client.post("/system_prompt", json=body, headers=headers)
            assert reply.status_code == code
            reply = await front.client.delete("/system_prompt", headers=headers)
            assert reply.status_code == code
