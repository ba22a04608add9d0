"""The broker is killed, loses power or comes back empty under both halves of the queue, or its log is damaged."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from cli.broker import server_binary
from shared.errors import BrokerLost, BrokerUnavailable
from shared.queue.consumer import Finished
from shared.queue.keys import Keys
from shared.request import Body
from tests.queue.pair import FREE, INFO, Pair, pair_on, serving, until
from tests.valkey_server import Server

# Whoever waits for what the broker has lost has its answer, or knows, so long after the broker is there again.
RESOLVED_S = 6.0


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.queue.producer.RECONCILE_AFTER_S", 0.5)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(aof=True, extra=("--appendfsync", "always")).start()
    yield server
    server.stop()
    server.clean()


def client_of(server: Server) -> Any:
    return redis.Redis.from_url(server.url)


async def submit(pair: Pair, n: int) -> list[str]:
    reqs = [pair.req(str(i)) for i in range(n)]
    await asyncio.gather(*(pair.producer.submit(req, FREE, watch=True) for req in reqs))
    return [req.id for req in reqs]


async def answered(pair: Pair, rids: list[str], timeout_s: float = 20) -> None:
    answers = await asyncio.gather(*(pair.producer.wait(rid, timeout_s) for rid in rids))
    assert [a.body for a in answers] == [Body(text=f"A({i})") for i in range(len(rids))]
    assert {(a.outcome.crashes, a.outcome.attempts) for a in answers} == {(0, 0)}


async def test_a_broker_that_is_killed_and_reads_its_log_back_has_lost_nothing(
    server: Server, queue_name: str
) -> None:
    """200 requests, of which 50 run: leases hold, and results are taken though the scripts are forgotten."""
    async with pair_on(server.url, queue_name) as pair:
        rids = await submit(pair, 200)
        running = (await pair.consumer.claim(50, is_idle=True, slots=64)).grants
        assert len(running) == 50
        server.stop(signal.SIGKILL)
        finishing = [asyncio.ensure_future(pair.answer(grant)) for grant in running]
        server.start()
        assert {await done for done in finishing} == {Finished.OK}
        async with serving(pair):
            await answered(pair, rids)
        assert (await pair.producer.stats()).live == 0


async def test_work_goes_on_though_the_broker_is_away_for_longer_than_a_lease(
    server: Server, queue_name: str
) -> None:
    """As while it reads back a log that takes longer: nobody is blamed, nothing is run twice. Shorter than 5 s would be
    no pause to the queue clock, and count against so short a lease.
    """
    async with pair_on(server.url, queue_name, lease_s=2) as pair:
        rids = await submit(pair, 5)
        grants = (await pair.consumer.claim(5, is_idle=True)).grants
        held = {grant.id: (grant.token, True) for grant in grants}
        assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == []
        server.stop(signal.SIGKILL)
        await asyncio.sleep(5.5)
        server.start()
        await until(lambda: pair.producer.is_up)
        # A housekeeping round of the front door comes before the first beat.
        await asyncio.sleep(1.2)
        assert (await asyncio.to_thread(pair.consumer.beat, held, INFO)).lost == []
        assert [await pair.answer(grant) for grant in grants] == [Finished.OK] * 5
        await answered(pair, rids)


async def damaged(server: Server, queue: str, damage: bytes | None) -> tuple[Pair, list[str]]:
    """Ten requests, then the power goes: the end of the log is cut off in a write, or followed by zeros."""
    pair = Pair(server.url, queue)
    await pair.producer.start()
    rids = await submit(pair, 10)
    server.stop(signal.SIGKILL)
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    if damage is None:
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 20)
    else:
        with log.open("ab") as file:
            file.write(damage)
    return pair, rids


@pytest.mark.usefixtures("soon")
async def test_a_log_that_ends_in_the_middle_of_a_write_is_read_up_to_there(
    server: Server, queue_name: str
) -> None:
    pair, rids = await damaged(server, queue_name, None)
    try:
        server.start()
        async with serving(pair):
            # What stood last in the log is what was not acknowledged yet, or it is submitted again by its waiter.
            await answered(pair, rids)
    finally:
        await pair.close()


async def test_a_log_with_zeros_behind_it_is_refused_and_can_be_mended_by_the_servers_own_tool(
    server: Server, queue_name: str
) -> None:
    pair, rids = await damaged(server, queue_name, bytes(4096))
    try:
        with pytest.raises(redis.RedisError):
            server.start()
        (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
        await asyncio.to_thread(mend, log)
        server.start()
        async with serving(pair):
            await answered(pair, rids)
    finally:
        await pair.close()


def mend(log: Path) -> None:
    """By the tool that the server's own line names, which is the server's binary under another name.

    It takes the damaged file: given the manifest it stops at the base file, whose format of Valkey 9 it does not know.
    """
    command = ["valkey-check-aof", "--fix", str(log)]
    done = subprocess.run(
        command, executable=server_binary(), input="y\n", capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Successfully truncated" in done.stdout


async def test_what_is_waited_for_when_all_keys_go_is_answered_or_told_as_lost_within_6_s(
    pair: Pair, queue_name: str
) -> None:
    """What its front door still holds is submitted again; of another's it knows no more than that it is lost."""
    async with pair_on(pair.settings.redis_url, queue_name) as other:
        held, foreign = await submit(pair, 10), [pair.req(f"foreign {i}") for i in range(10)]
        for req in foreign:
            await pair.producer.submit(req, FREE)
            assert await other.producer.attach(req.id) is not None
        client: Any = redis.Redis.from_url(pair.settings.redis_url)
        client.delete(*client.scan_iter(f"{Keys(queue_name).prefix}*", 1000))
        client.close()
        wiped_at = time.monotonic()
        async with serving(pair):
            await answered(pair, held, RESOLVED_S)
            for req in foreign:
                with pytest.raises(BrokerLost):
                    await other.producer.wait(req.id, wiped_at + RESOLVED_S - time.monotonic())
        assert time.monotonic() - wiped_at < RESOLVED_S


class Asked(msgspec.Struct):
    """One request of the load: when it was asked and resolved, and how: answered, lost, or refused with a 503."""

    began: float
    ended: float
    how: str

    def met(self, wipes: list[tuple[float, float]]) -> int:
        return sum(self.began <= over and began <= self.ended for began, over in wipes)


async def test_a_broker_that_comes_back_empty_under_load_is_recovered_from_by_itself(
    queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Emptied again and again: what a front door still holds is submitted again, nobody waits for ever."""
    server = Server().start()
    client = client_of(server)
    asked: list[Asked] = []
    wipes: list[tuple[float, float]] = []
    is_over = asyncio.Event()

    async def ask(pair: Pair) -> bool:
        req, began, how = pair.req("x"), time.monotonic(), "answered"
        try:
            await pair.producer.submit(req, FREE, watch=True)
            assert (await pair.producer.wait(req.id, 15)).body == Body(text="A(x)")
        except BrokerLost:
            how = "lost"
        except BrokerUnavailable:
            how = "refused"
        finally:
            pair.producer.unwatch(req.id)
        asked.append(Asked(began, time.monotonic(), how))
        return how == "answered"

    async def keep_asking(pair: Pair) -> None:
        while not is_over.is_set():
            await ask(pair)

    try:
        async with pair_on(server.url, queue_name) as pair, serving(pair):
            asking = [asyncio.ensure_future(keep_asking(pair)) for _ in range(20)]
            for pause_s in (0.3, 0.0, 0.3, 0.3):
                await asyncio.sleep(pause_s)
                began = time.monotonic()
                client.flushall()
                wipes.append((began, time.monotonic()))
                if len(wipes) == 1:
                    # Whoever was under way meets one wipe, before it is too many to tell them apart.
                    await until(lambda: sum(each.met(wipes) for each in asked) >= len(asking))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            server.stop(signal.SIGKILL)
            server.start()
            wipes.append((began, time.monotonic()))
            await asyncio.sleep(0.3)
            is_over.set()
            await asyncio.gather(*asking)
            assert all(await asyncio.gather(*(ask(pair) for _ in range(20)))), "the load is over"
            async with asyncio.timeout(10):
                while (await pair.producer.stats()).live:
                    await asyncio.sleep(0.05)
    finally:
        client.close()
        server.stop()
        server.clean()
    answers = sum(each.how == "answered" for each in asked)
    assert answers > len(asked) - answers, "more were answered than not"
    once = [each for each in asked if each.met(wipes) == 1]
    assert len(once) >= len(asking)
    assert "lost" not in {each.how for each in asked if each.met(wipes) <= 1}
    for each in asked:
        since = max([each.began, *(over for _, over in wipes if over <= each.ended)])
        assert each.ended - since < RESOLVED_S
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) <= 30, [r.getMessage() for r in lines]
    assert not [r for r in lines if r.exc_info], "no fault of ours"


async def test_a_script_cache_that_is_emptied_in_a_loop_is_not_noticed(
    server: Server, queue_name: str
) -> None:
    client = client_of(server)

    async def flush() -> None:
        while True:
            client.script_flush()
            await asyncio.sleep(0)

    async with pair_on(server.url, queue_name) as pair, serving(pair):
        flushing = asyncio.ensure_future(flush())
        try:
            await answered(pair, await submit(pair, 30))
        finally:
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)
    client.close()


def test_what_a_server_that_cannot_read_its_log_says(server: Server) -> None:
    """A clear end with the tool's name, and no loop: `make up` shows these lines."""
    client = client_of(server)
    client.set("k", "v")
    client.close()
    server.stop(signal.SIGKILL)
    (log,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(bytes(64))
    done = subprocess.run(server.command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "check-aof --fix" in done.stdout + done.stderr
