"""/dlq: who may look, what is shown, and a letter that runs again."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from api.settings import ApiSettings
from shared.queue.claiming import Grant
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.queue.housekeeper import Housekeeper
from shared.request import FinishReason, Report
from tests.api.answering import answering
from tests.api.conftest import Load
from tests.api.serving import Front, front_door


class Failing:
    """A worker that gives up on all it claims."""

    def __init__(self, settings: ApiSettings) -> None:
        self._connection = Connection.open(settings)
        self.consumer = Consumer(self._connection, settings, worker_id="w")
        self._housekeeper = Housekeeper(self._connection, settings)

    async def claim(self) -> Grant:
        (grant,) = (await self.consumer.claim(1, is_idle=True)).grants
        return grant

    async def kill(self) -> str:
        """The one that is queued, until its crashes are used up."""
        for _ in range(3):
            grant = await self.claim()
            await self.consumer.suspect([grant], "the engine died")
        await self._housekeeper.once()
        return grant.id

    async def close(self) -> None:
        await self.consumer.leave()
        self.consumer.close_beats()
        await self._connection.close()


async def bury(front: Front, settings: ApiSettings, *prompts: str) -> list[str]:
    """Requests that end as dead letters, oldest first; their ids."""
    worker, rids = Failing(settings), []
    for prompt in prompts:
        body = {"prompt": prompt, "priority": "batch", "metadata": {"k": 1}, "timeout_s": 60}
        await front.client.post("/requests", json=body)
        rids.append(await worker.kill())
    await worker.close()
    return rids


async def letters(front: Front, **query: Any) -> Any:
    reply = await front.client.get("/dlq", params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_what_killed_its_workers_can_be_looked_at_run_again_and_taken_away(
    front: Front, settings: ApiSettings
) -> None:
    (rid,) = await bury(front, settings, "poison")
    (row,) = (await letters(front))["letters"]
    assert (row["request_id"], row["code"], row["crashes"]) == (rid, "attempts_exhausted", 3)
    shown = (await front.client.get(f"/dlq/{row['id']}")).json()
    assert (shown["request"]["prompt"], shown["request"]["id"]) == ("poison", rid)
    assert [event["kind"] for event in shown["timeline"]["events"]].count("suspect") == 2
    reply = await front.client.post(f"/dlq/{row['id']}/requeue")
    assert (reply.status_code, reply.json()["joined"]) == (202, False)
    again = await front.client.post(f"/dlq/{row['id']}/requeue")
    assert (again.json()["id"], again.json()["joined"]) == (reply.json()["id"], True)
    assert (await letters(front))["letters"] == []
    async with answering(settings) as worker:
        made = await front.client.get(f"/requests/{reply.json()['id']}", params={"wait": "10"})
        assert made.json()["text"] == "A(poison)"
    assert (made.json()["metadata"], made.json()["attempts"]) == ({"k": 1}, 1)
    (req,) = worker.seen
    assert (req.priority.name, req.timeout_s) == ("batch", 60)
    assert req.delivery.retried_from == rid


async def test_letters_are_listed_newest_first_by_pages_and_taken_away(
    front: Front, settings: ApiSettings
) -> None:
    rids = await bury(front, settings, "a", "b", "c")
    first = await letters(front, limit=2)
    rest = await letters(front, limit=2, cursor=first["next"])
    rows = [*first["letters"], *rest["letters"]]
    assert [row["request_id"] for row in rows] == rids[::-1]
    assert rest["next"] is None
    assert (await front.client.delete(f"/dlq/{rows[0]['id']}")).status_code == 204
    assert (await front.client.delete(f"/dlq/{rows[0]['id']}")).status_code == 404
    assert [row["id"] for row in (await letters(front))["letters"]] == [
        row["id"] for row in rows[1:]
    ]


async def test_letters_of_several_shards_are_one_list(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    settings = load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "SHARDS": "3"})
    async with front_door(settings) as front:
        rids = await bury(front, settings, *"abcdef")
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            part = await letters(front, limit=2, **cursor)
            seen += [row["request_id"] for row in part["letters"]]
            if part["next"] is None:
                break
            cursor = {"cursor": part["next"]}
        assert seen == rids[::-1]


async def test_a_payload_that_cannot_be_read_is_shown_as_it_is_and_not_run(
    front: Front, settings: ApiSettings
) -> None:
    rid = (await front.client.post("/requests", json={"prompt": "x"})).json()["id"]
    client = front.services.producer
    scripts = client._shards.of(rid)
    await client._line.run(("DEL", scripts.keys.fixed("in")))
    entry = (await client.peek(rid)).record.entry_id  # type: ignore[union-attr]
    key = scripts.keys.fixed("in")
    await client._line.run(("XADD", key, entry, "i", rid, "p", b"\xc1 garbage"))
    worker = Failing(settings)
    report = Report(finish_reason=FinishReason.error)
    await worker.consumer.finish(await worker.claim(), report, None, code="bad_record")
    await worker.close()
    (row,) = (await letters(front))["letters"]
    assert (row["code"], row["payload_bytes"]) == ("bad_record", 9)
    shown = (await front.client.get(f"/dlq/{row['id']}")).json()
    assert shown["request"] is None
    assert base64.b64decode(shown["payload_base64"]) == b"\xc1 garbage"
    reply = await front.client.post(f"/dlq/{row['id']}/requeue")
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "id")
    assert (await front.client.delete(f"/dlq/{row['id']}")).status_code == 204


@pytest.mark.parametrize("letter", ["0-1-1", "9-1-1", "x", "0-1-1-1", "0-99999999999999999-0"])
async def test_a_letter_that_is_not_there_is_404(letter: str, front: Front) -> None:
    for method, path in (("GET", ""), ("POST", "/requeue"), ("DELETE", "")):
        reply = await front.client.request(method, f"/dlq/{letter}{path}")
        assert reply.status_code == 404


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"cursor": "x"}]
)
async def test_a_page_that_cannot_be_is_refused_by_its_field(
    query: dict[str, str], front: Front
) -> None:
    reply = await front.client.get("/dlq", params=query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, next(iter(query)))


async def test_only_an_admin_sees_dead_letters(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    variables = {"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "ADMIN_TOKEN": "s3cret"}
    async with front_door(load_settings(variables)) as front:
        for method, path in (
            ("GET", "/dlq"),
            ("GET", "/dlq/0-1-1"),
            ("POST", "/dlq/0-1-1/requeue"),
            ("DELETE", "/dlq/0-1-1"),
        ):
            reply: httpx.Response = await front.client.request(method, path)
            assert reply.status_code == 401
        front.client.headers["authorization"] = "Bearer s3cret"
        assert (await front.client.get("/dlq")).json() == {"letters": [], "next": None}


async def test_a_full_queue_refuses_to_run_a_letter_again_and_keeps_it(
    load_settings: Load, broker_url: str, queue_name: str
) -> None:
    settings = load_settings({"REDIS_URL": broker_url, "QUEUE_NAME": queue_name, "QUEUE_CAP": "1"})
    async with front_door(settings) as front:
        await bury(front, settings, "a")
        (row,) = (await letters(front))["letters"]
        await front.client.post("/requests", json={"prompt": "b"})
        reply = await front.client.post(f"/dlq/{row['id']}/requeue")
        assert reply.status_code == 429
        assert len((await letters(front))["letters"]) == 1
