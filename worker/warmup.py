"""A first run before the first request: the greeting, batches of several lengths, and the operator's questions.

Failure is told, not fatal: but for an engine that dies, the worker serves whatever happens here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.request import Delivery, Req
from shared.sampling import SamplingParams
from worker.engines.base import EngineDead, EngineError, EnginePrompt
from worker.settings import EngineSettings
from worker.startup import Started
from worker.warmup_data import load_user_prompts

log = logging.getLogger(__name__)
TOKENS = 8
BATCH = 8
LIMIT_S = 120.0  # all in all: a worker is there to serve
# The front door's own text comes with each request, and is not known here.
SYSTEM = "Answer briefly."
PARAMS = SamplingParams(max_tokens=TOKENS, min_tokens=0, temperature=0)


@dataclass
class Tally:
    """How many prompts were run, and how many were refused, with the first reason."""

    done: int = 0
    refused: int = 0
    why: Exception | None = None

    def refuse(self, error: Exception) -> None:
        self.refused += 1
        self.why = self.why or error


async def warm_up(started: Started, settings: EngineSettings, limit_s: float = LIMIT_S) -> None:
    """Runs through template, engine and sampler as a request does, without the queue. Raises EngineDead.

    Takes `limit_s` at most, since the worker is not ready before; what was not run by then never is.
    """
    began = time.monotonic()
    path = settings.warmup_data_path
    samples = await asyncio.to_thread(load_user_prompts, path, settings.warmup_samples)
    texts = [settings.warmup_prompt, *samples] * settings.warmup_repeat
    log.info(
        "warm-up: the greeting and %d questions of %s (at most %d), %d times over",
        len(samples),
        path or "no file",
        settings.warmup_samples,
        settings.warmup_repeat,
    )
    tally = Tally()
    clock = asyncio.timeout(limit_s)
    try:
        async with clock:
            for batch in batches(texts, started.engine.slots):
                await _run(started, batch, tally)
                if tally.done == 0:  # not even the greeting
                    raise tally.why or EngineError("the engine gave no answer")
    except EngineDead:
        raise
    except Exception as error:
        if clock.expired():
            log.warning("warm-up given up after %g s, %d prompts run", limit_s, tally.done)
        else:
            log.warning("warm-up failed, the first request will be slow: %s", error)
        return
    if tally.refused:
        log.warning("warm-up: %d prompts were refused: %s", tally.refused, tally.why)
    log.info("warmed up with %d prompts in %.1f s", tally.done, time.monotonic() - began)


def batches(texts: Sequence[str], slots: int) -> Iterator[Sequence[str]]:
    """The first text alone, then as many lengths of it as are a usual batch, then the rest, the engine full.

    Of several lengths, since equal ones would share a cached prefix.
    """
    yield texts[:1]
    yield [" ".join([texts[0]] * n) for n in range(1, min(BATCH, slots) + 1)]
    for at in range(1, len(texts), slots):
        yield texts[at : at + slots]


async def _run(started: Started, texts: Sequence[str], tally: Tally) -> None:
    """One call of the engine. What is refused, as a question that is too long is, costs itself alone."""
    prompts = []
    for n, text in enumerate(texts):
        try:
            prompts.append(await _prompt(started, text, n))
        except Exception as error:
            tally.refuse(error)
    if not prompts:
        return
    async for piece in started.engine.generate(prompts, PARAMS, stream=False):
        if isinstance(piece.error, EngineDead):
            raise piece.error
        if piece.error is not None:
            tally.refuse(piece.error)
        elif piece.is_last:
            tally.done += 1


async def _prompt(started: Started, text: str, n: int) -> EnginePrompt:
    """As a request of /predict is rendered, thinking off where the model can be told so."""
    req = Req(
        id=f"warm-up-{n}-{time.monotonic_ns()}",
        sampling=PARAMS,
        bucket_key="",
        digest="",
        prompt=text,
        system_prompt=SYSTEM,
        delivery=Delivery(route="short"),
    )
    return await started.prompts.build(req, started.engine.max_model_len)
