"""`python -m bench.engine --quick`: what the service makes of its engine, beside vLLM's own server under the same load.

Real model, real processes, over HTTP. Both are started, warmed up, and asked in turns, with greedy
sampling and a fixed number of new tokens, so that both do the same work; who is not asked is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench import figures, machine
from bench.load import Run, closed_loop, joined
from bench.peer import vllm_server
from bench.stack import StackError, model_folder, service

WAIT_S = 120
SHARE_OF_PEER = 0.9
THINGS = (
    *(
        "a lighthouse",
        "the violin",
        "volcanoes",
        "sourdough",
        "glaciers",
        "the abacus",
        "honeybees",
    ),
    *("a canal lock", "the printing press", "comets", "coral reefs", "the compass", "windmills"),
)
QUESTIONS = (
    "What should a visitor know about {}?",
    "Explain {} to a child of nine.",
    "Why do people care about {}?",
    "Describe {} in two sentences.",
    "What is often misunderstood about {}?",
)


@dataclass(frozen=True)
class Load:
    """`warm_up` requests go first and are not counted."""

    requests: int = 200
    in_flight: int = 64
    max_tokens: int = 32
    warm_up: int = 64


@dataclass(frozen=True)
class Reply:
    prompt_tokens: int
    completion_tokens: int


Ask = Callable[[str], Awaitable[Reply]]


@dataclass(frozen=True)
class Side:
    """Who is asked, where, and how."""

    name: str
    url: str
    make_ask: Callable[[httpx.AsyncClient, Load], Ask]


def prompts(prefix: str) -> Iterator[str]:
    """No two are equal, so that a prefix cache holds no more of them than their template."""
    number = 0
    while True:
        number += 1
        thing = THINGS[number % len(THINGS)]
        question = QUESTIONS[number % len(QUESTIONS)].format(thing)
        yield f"{prefix} {number}: {question}"


def sampling(load: Load) -> dict[str, object]:
    """Understood by both sides."""
    return {
        "max_tokens": load.max_tokens,
        "min_tokens": 0,
        "temperature": 0.0,
        "ignore_eos": True,
    }


def ask_sluice(client: httpx.AsyncClient, load: Load) -> Ask:
    async def ask(prompt: str) -> Reply:
        sent = await client.post("/requests", json={"prompt": prompt, **sampling(load)})
        sent.raise_for_status()
        path = sent.json()["urls"]["self"]
        while True:
            polled = await client.get(path, params={"wait": WAIT_S})
            polled.raise_for_status()
            if polled.status_code == httpx.codes.OK:
                break
        answer = polled.json()
        if answer["status"] != "finished":
            raise StackError(f"a request ended as {answer['status']}: {answer['error']}")
        return Reply(answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])

    return ask


def ask_vllm(client: httpx.AsyncClient, load: Load) -> Ask:
    async def ask(prompt: str) -> Reply:
        body = {"model": "model", "messages": [{"role": "user", "content": prompt}]}
        reply = await client.post("/v1/chat/completions", json={**body, **sampling(load)})
        reply.raise_for_status()
        usage = reply.json()["usage"]
        return Reply(usage["prompt_tokens"], usage["completion_tokens"])

    return ask


async def measure(sides: Sequence[Side], load: Load) -> list[Run[Reply]]:
    """Turn and turn about, the second half of the turns in the other order: so a machine that grows slower or
    quicker meanwhile favours neither side.
    """
    limits = httpx.Limits(max_connections=load.in_flight)
    asks: list[Ask] = []
    async with AsyncExitStack() as stack:
        for side in sides:
            client = httpx.AsyncClient(
                base_url=side.url, timeout=2 * WAIT_S, limits=limits, trust_env=False
            )
            asks.append(side.make_ask(await stack.enter_async_context(client), load))
        for side, ask in zip(sides, asks, strict=True):
            figures.note(f"warming up {side.name}")
            source = prompts("Warm-up")
            await closed_loop([next(source) for _ in range(load.warm_up)], load.in_flight, ask)
        sources = [prompts("Question") for _ in sides]
        runs: list[list[Run[Reply]]] = [[] for _ in sides]
        order = list(range(len(sides)))
        for place in order + order[::-1]:
            n = load.requests // 2
            figures.note(f"{n} requests, {load.in_flight} in flight, to {sides[place].name}")
            items = [next(sources[place]) for _ in range(n)]
            runs[place].append(await closed_loop(items, load.in_flight, asks[place]))
    return [joined(turns) for turns in runs]


def tokens(run: Run[Reply]) -> int:
    return sum(reply.completion_tokens for reply in run.replies)


def compare(ours: Run[Reply], peer: Run[Reply], load: Load) -> Iterator[figures.Figure]:
    yield figures.at_least("engine.answered", len(ours.replies), "requests", load.requests)
    yield figures.at_least_of_peer(
        "engine.tokens_per_s",
        tokens(ours) / ours.seconds,
        "tokens/s",
        tokens(peer) / peer.seconds,
        SHARE_OF_PEER,
    )
    yield figures.plain("engine.requests_per_s", ours.per_s, "requests/s", peer.per_s)
    for percent in (50, 99):
        yield figures.plain(
            f"engine.latency_p{percent}",
            figures.percentile(ours.latencies_s, percent),
            "s",
            figures.percentile(peer.latencies_s, percent),
        )
    # Equal where both sides rendered the same prompts with the same template: a check of the comparison itself.
    yield figures.plain(
        "engine.prompt_tokens",
        sum(reply.prompt_tokens for reply in ours.replies),
        "tokens",
        sum(reply.prompt_tokens for reply in peer.replies),
    )


def run(load: Load, folder: Path) -> bool:
    figures.note(machine.described())
    model = model_folder()
    figures.note("starting the service with one worker")
    with service(folder / "sluice", {"MODEL_DIR": str(model), "ENGINE": "vllm_async"}) as ours:
        figures.note("starting vLLM's own server with the same engine arguments")
        with vllm_server(folder / "peer", model, ours.worker_args()) as url:
            sides = (Side("the service", ours.url, ask_sluice), Side("vLLM", url, ask_vllm))
            mine, theirs = asyncio.run(measure(sides, load))
    return figures.show(compare(mine, theirs, load))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="200 requests, 64 in flight (default)")
    size.add_argument("--full", action="store_true", help="2,000 requests, 64 in flight")
    options = parser.parse_args()
    load = Load(requests=2000) if options.full else Load()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        try:
            return 0 if run(load, Path(folder)) else 1
        except (StackError, httpx.HTTPError) as error:
            figures.note(f"bench.engine: {type(error).__name__}: {error}")
            return 2


if __name__ == "__main__":
    sys.exit(main())
